//! What the database must hold: the acknowledged commits, and one open transaction per session.
//!
//! Each write of an item has a stamp that no other write of the run has, also of a history that is
//! gone because an older copy was put back. Value and filler follow from key and stamp, so a value
//! that was never written gives itself away.
//!
//! Only one session writes an item, so its last acknowledged stamp is exact. Accounts are shared;
//! each transfer leaves a row, from which all balances follow.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::Checked;

/// Sessions that write.
pub const WRITERS: usize = 4;
/// Rows at first. With their fillers they are ten times PostgreSQL's buffers.
pub const ITEMS: u64 = 20_000;
pub const ACCOUNTS: u64 = 1000;
const FIRST_BALANCE: i64 = 1000;
/// Differences that a message lists.
const SHOWN_MAX: usize = 8;

pub const SCHEMA: &str = "\
CREATE TABLE items (id bigint PRIMARY KEY, stamp bigint NOT NULL, value bigint NOT NULL, filler varchar(1000) NOT NULL);
CREATE INDEX items_by_value ON items (value);
CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL, filler varchar(1000) NOT NULL);
CREATE TABLE transfers (id bigint PRIMARY KEY, source bigint NOT NULL, target bigint NOT NULL, amount bigint NOT NULL);
";

/// All rows, one a line, for `Found::read`.
pub const EVERYTHING: &str = "\
SELECT 'item', id, stamp, value, CASE WHEN filler = repeat(md5(concat(id, '-', stamp)), \
CAST(10 + stamp % 8 AS integer)) THEN 1 ELSE 0 END FROM items;
SELECT 'transfer', id, source, target, amount FROM transfers;
SELECT 'account', id, balance FROM accounts;
";

/// Statements that fill the tables. `numbers(n)` gives a table of a column `seq` from 0 to n - 1.
pub fn rows(numbers: impl Fn(u64) -> String) -> String {
    format!(
        "INSERT INTO items SELECT seq, 0, (seq * 7919) % 1000003, repeat(md5(concat(seq, '-', 0)), 10) FROM {};\n\
         INSERT INTO accounts SELECT seq, {FIRST_BALANCE}, repeat('a', 200) FROM {};\n",
        numbers(ITEMS),
        numbers(ACCOUNTS)
    )
}

pub fn total() -> i64 {
    FIRST_BALANCE * ACCOUNTS as i64
}

fn value(id: u64, stamp: u64) -> u64 {
    (id * 7919 + stamp * 104_729) % 1_000_003
}

/// How a server spells what the standard leaves open.
pub struct Dialect {
    /// Whether UPDATE has RETURNING.
    pub update_returns: bool,
    /// Ends a transaction.
    pub commit: &'static str,
    /// The line that acknowledges it.
    pub committed: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub stamp: u64,
    /// A removed item keeps its last stamp.
    pub is_there: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    source: u64,
    target: u64,
    amount: i64,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Item { id: u64, before: Option<Item>, after: Item },
    Transfer { id: u64, transfer: Transfer },
}

#[derive(Clone, Debug)]
pub struct Transaction {
    changes: Vec<Change>,
}

impl Transaction {
    /// Statements. Each change of an item answers with a line `row`, id, stamp, value.
    pub fn sql(&self, dialect: &Dialect) -> String {
        let mut text = "BEGIN;\n".to_owned();
        for change in &self.changes {
            match *change {
                Change::Item { id, before, after } => text += &item_sql(id, before, after, dialect),
                Change::Transfer { id, transfer: Transfer { source, target, amount } } => {
                    // In the order of keys, so that sessions do not wait in a circle.
                    let mut both = [(source, -amount), (target, amount)];
                    both.sort_unstable();
                    for (account, amount) in both {
                        let set = format!("balance = balance + ({amount})");
                        writeln!(text, "UPDATE accounts SET {set} WHERE id = {account};").expect("memory");
                    }
                    let row = format!("{id}, {source}, {target}, {amount}");
                    writeln!(text, "INSERT INTO transfers VALUES ({row});").expect("memory");
                }
            }
        }
        text + dialect.commit
    }

    /// The lines that the items' statements answer.
    pub fn answers(&self) -> Vec<String> {
        let answer = |change: &Change| match *change {
            Change::Item { id, before, after } => {
                let stamp = if after.is_there { after.stamp } else { before?.stamp };
                Some(format!("row\t{id}\t{stamp}\t{}", value(id, stamp)))
            }
            Change::Transfer { .. } => None,
        };
        self.changes.iter().filter_map(answer).collect()
    }
}

fn item_sql(id: u64, before: Option<Item>, after: Item, dialect: &Dialect) -> String {
    let (stamp, repeats) = (after.stamp, 10 + after.stamp % 8);
    let (value, filler) = (value(id, stamp), format!("repeat(md5('{id}-{stamp}'), {repeats})"));
    let returning = "RETURNING 'row', id, stamp, value";
    match before.filter(|before| before.is_there) {
        None => format!("INSERT INTO items VALUES ({id}, {stamp}, {value}, {filler}) {returning};\n"),
        // The old stamp in the condition checks the old row, too.
        Some(before) if !after.is_there => {
            format!("DELETE FROM items WHERE id = {id} AND stamp = {} {returning};\n", before.stamp)
        }
        Some(before) => {
            let set = format!("stamp = {stamp}, value = {value}, filler = {filler}");
            let update = format!("UPDATE items SET {set} WHERE id = {id} AND stamp = {}", before.stamp);
            match dialect.update_returns {
                true => format!("{update} {returning};\n"),
                false => format!("{update};\nSELECT 'row', id, stamp, value FROM items WHERE id = {id};\n"),
            }
        }
    }
}

/// Rows that a query found.
#[derive(Default)]
pub struct Found {
    items: HashMap<u64, u64>,
    transfers: HashMap<u64, Transfer>,
    balances: BTreeMap<u64, i64>,
    wrong: Vec<String>,
}

impl Found {
    /// Reads the answer to `EVERYTHING`.
    pub fn read(answer: &str) -> Checked<Self> {
        let mut found = Self::default();
        for line in answer.lines() {
            let fields: Vec<_> = line.split('\t').collect();
            let numbers: Option<Vec<i64>> = fields[1..].iter().map(|field| field.parse().ok()).collect();
            let is_new = match (fields[0], numbers.as_deref()) {
                ("item", Some(&[id, stamp, seen, filler])) => {
                    let (id, stamp) = (id as u64, stamp as u64);
                    if seen != value(id, stamp) as i64 || filler != 1 {
                        found.wrong.push(format!("item {id}: value or filler is not of stamp {stamp}"));
                    }
                    found.items.insert(id, stamp).is_none()
                }
                ("transfer", Some(&[id, source, target, amount])) => {
                    let transfer = Transfer { source: source as u64, target: target as u64, amount };
                    found.transfers.insert(id as u64, transfer).is_none()
                }
                ("account", Some(&[id, balance])) => found.balances.insert(id as u64, balance).is_none(),
                _ => return Err(format!("an answer that no query asks for: {line}")),
            };
            if !is_new {
                found.wrong.push(format!("two rows have one key: {line}"));
            }
        }
        Ok(found)
    }

    fn has(&self, change: &Change) -> bool {
        match change {
            Change::Item { id, after, .. } => match after.is_there {
                true => self.items.get(id) == Some(&after.stamp),
                false => !self.items.contains_key(id),
            },
            Change::Transfer { id, .. } => self.transfers.contains_key(id),
        }
    }
}

/// The acknowledged state.
#[derive(Clone)]
pub struct State {
    items: HashMap<u64, Item>,
    transfers: HashMap<u64, Transfer>,
}

impl State {
    /// Items that were written since `older` and are there.
    pub fn written_since(&self, older: &Self) -> Vec<u64> {
        let is_newer = |id: &u64, item: &Item| item.is_there && older.items.get(id) != Some(item);
        self.items.iter().filter(|(id, item)| is_newer(id, item)).map(|(id, _)| *id).collect()
    }

    fn apply(&mut self, transaction: &Transaction) {
        for change in &transaction.changes {
            match *change {
                Change::Item { id, after, .. } => drop(self.items.insert(id, after)),
                Change::Transfer { id, transfer } => drop(self.transfers.insert(id, transfer)),
            }
        }
    }

    /// All differences between this state and the rows found.
    fn differences(&self, found: &Found) -> Vec<String> {
        let mut wrong = found.wrong.clone();
        for (id, item) in &self.items {
            match (found.items.get(id), item.is_there) {
                (Some(stamp), true) if *stamp == item.stamp => {}
                (None, false) => {}
                (None, true) => {
                    wrong.push(format!("item {id}: gone, acknowledged with stamp {}", item.stamp))
                }
                (Some(stamp), true) => {
                    let age = if *stamp < item.stamp { "older than" } else { "not" };
                    wrong.push(format!("item {id}: stamp {stamp}, {age} the acknowledged {}", item.stamp));
                }
                (Some(stamp), false) => {
                    wrong.push(format!("item {id}: stamp {stamp}, but its removal was acknowledged"));
                }
            }
        }
        let unknown = found.items.iter().filter(|(id, _)| !self.items.contains_key(id));
        wrong.extend(unknown.map(|(id, stamp)| format!("item {id}: stamp {stamp}, never committed")));
        for (id, transfer) in &self.transfers {
            if found.transfers.get(id) != Some(transfer) {
                let seen = found.transfers.get(id);
                wrong.push(format!("transfer {id}: {seen:?}, acknowledged as {transfer:?}"));
            }
        }
        let unknown = found.transfers.keys().filter(|id| !self.transfers.contains_key(id));
        wrong.extend(unknown.map(|id| format!("transfer {id}: never committed")));
        wrong.extend(self.wrong_balances(found));
        wrong
    }

    fn wrong_balances(&self, found: &Found) -> Vec<String> {
        let mut balances: BTreeMap<_, _> = (0..ACCOUNTS).map(|id| (id, FIRST_BALANCE)).collect();
        for transfer in self.transfers.values() {
            *balances.get_mut(&transfer.source).expect("an account") -= transfer.amount;
            *balances.get_mut(&transfer.target).expect("an account") += transfer.amount;
        }
        let mut wrong = Vec::new();
        for (id, balance) in &balances {
            if found.balances.get(id) != Some(balance) {
                let seen = found.balances.get(id);
                wrong.push(format!("account {id}: balance {seen:?}, by the transfers {balance}"));
            }
        }
        let sum: i64 = found.balances.values().sum();
        if sum != total() || found.balances.len() != balances.len() {
            wrong.push(format!("{} accounts with {sum} in all, not {}", found.balances.len(), total()));
        }
        wrong
    }
}

pub struct Ledger {
    state: State,
    open: Vec<Option<Transaction>>,
    /// Stamps and keys are never used again, also when an older state comes back.
    last_stamp: u64,
    next_ids: Vec<u64>,
    pub acknowledged: u64,
}

impl Ledger {
    pub fn new() -> Self {
        let items = (0..ITEMS).map(|id| (id, Item { stamp: 0, is_there: true })).collect();
        Self {
            state: State { items, transfers: HashMap::new() },
            open: vec![None; WRITERS],
            last_stamp: 0,
            next_ids: (ITEMS..).take(WRITERS).collect(),
            acknowledged: 0,
        }
    }

    fn stamp(&mut self) -> u64 {
        self.last_stamp += 1;
        self.last_stamp
    }

    /// Opens a random transaction of `session`.
    pub fn begin(&mut self, session: usize, random: &mut SmallRng) -> Transaction {
        let changes = match random.random_range(0..100) {
            0..30 => vec![self.transfer(random)],
            30..45 => {
                let first = self.next_ids[session];
                let ids = (first..).step_by(WRITERS).take(random.random_range(1..5));
                let changes: Vec<_> = ids.map(|id| self.write(id, true)).collect();
                self.next_ids[session] += (WRITERS * changes.len()) as u64;
                changes
            }
            45..52 => {
                vec![self.own_item(session, random)].into_iter().map(|id| self.write(id, false)).collect()
            }
            _ => {
                let mut ids: Vec<_> =
                    (0..random.random_range(1..4)).map(|_| self.own_item(session, random)).collect();
                ids.sort_unstable();
                ids.dedup();
                ids.into_iter().map(|id| self.write(id, true)).collect()
            }
        };
        let transaction = Transaction { changes };
        self.open[session] = Some(transaction.clone());
        transaction
    }

    fn own_item(&self, session: usize, random: &mut SmallRng) -> u64 {
        let id = random.random_range(0..self.next_ids[session] - WRITERS as u64);
        id - id % WRITERS as u64 + session as u64
    }

    /// A write, or a removal if the item is there.
    fn write(&mut self, id: u64, is_there: bool) -> Change {
        let before = self.state.items.get(&id).copied();
        let is_there = is_there || before.is_none_or(|before| !before.is_there);
        Change::Item { id, before, after: Item { stamp: self.stamp(), is_there } }
    }

    fn transfer(&mut self, random: &mut SmallRng) -> Change {
        let source = random.random_range(0..ACCOUNTS);
        let target = (source + random.random_range(1..ACCOUNTS)) % ACCOUNTS;
        let transfer = Transfer { source, target, amount: random.random_range(1..50) };
        Change::Transfer { id: self.stamp(), transfer }
    }

    /// The open transaction of `session` was acknowledged.
    pub fn acknowledge(&mut self, session: usize) {
        let transaction = self.open[session].take().expect("a transaction is open");
        self.state.apply(&transaction);
        self.acknowledged += 1;
    }

    /// Items that a reader may ask for, with their acknowledged states.
    pub fn some_items(&self, random: &mut SmallRng) -> Vec<(u64, Item)> {
        let max = self.next_ids.iter().max().expect("there are sessions");
        let ids = (0..5).map(|_| random.random_range(0..*max));
        ids.filter_map(|id| Some((id, *self.state.items.get(&id)?))).collect()
    }

    /// Checks what a reader saw of an item that was `before` when it asked.
    pub fn check_read(&self, id: u64, before: Item, seen: Option<(u64, u64)>) -> Checked {
        let now = self.state.items[&id];
        let is_open = |change: &Change| matches!(change, Change::Item { id: other, .. } if *other == id);
        let mut open = self.open.iter().flatten().flat_map(|transaction| &transaction.changes);
        let is_changing = now != before || open.any(is_open);
        let wrong = match seen {
            Some((stamp, seen)) if seen != value(id, stamp) => {
                format!("value {seen} is not of stamp {stamp}")
            }
            Some((stamp, _)) if stamp < before.stamp => format!("stamp {stamp} is old"),
            Some((stamp, _)) if stamp > before.stamp && !is_changing => {
                format!("stamp {stamp} is not committed")
            }
            Some(_) if !before.is_there && !is_changing => "a removed item is there".to_owned(),
            None if before.is_there && !is_changing => "it is gone".to_owned(),
            _ => return Ok(()),
        };
        Err(format!("a reader saw item {id}: {wrong}; acknowledged: {before:?}, now {now:?}"))
    }

    /// Compares the rows of a restarted server with the ledger. An open transaction is whole or
    /// absent, and closed by what was found.
    pub fn check(&mut self, found: &Found) -> Checked {
        let mut wrong = Vec::new();
        for session in 0..WRITERS {
            let Some(transaction) = self.open[session].take() else { continue };
            let seen = transaction.changes.iter().filter(|change| found.has(change)).count();
            if seen == transaction.changes.len() {
                self.state.apply(&transaction);
            } else if seen > 0 {
                wrong.push(format!("session {session}: a part of an open transaction: {transaction:?}"));
            }
        }
        wrong.extend(self.state.differences(found));
        if wrong.is_empty() {
            return Ok(());
        }
        let count = wrong.len();
        wrong.truncate(SHOWN_MAX);
        Err(format!("{count} differences from the ledger:\n  {}", wrong.join("\n  ")))
    }

    /// The acknowledged state, while no transaction is open.
    pub fn saved(&self) -> State {
        assert!(self.open.iter().all(Option::is_none), "a transaction is open");
        self.state.clone()
    }

    /// An older copy of the database is back.
    pub fn put_back(&mut self, state: State) {
        self.open.fill(None);
        self.state = state;
    }

    /// For messages.
    pub fn summary(&self) -> String {
        let open = self.open.iter().flatten().count();
        let there = self.state.items.values().filter(|item| item.is_there).count();
        let (last, commits) = (self.last_stamp, self.acknowledged);
        format!("ledger: {there} items, last stamp {last}, {commits} commits acknowledged, {open} open")
    }
}
