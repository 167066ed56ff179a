//! Tests of verification beside other work, without threads.
//!
//! At every yield point a script that follows from the seed works on the database.
//! `TERRACE_SEED=FIRST TERRACE_RUNS=N` chooses the seeds; a failure names its seed.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::MemoryDirectory;

use crate::crash;
use crate::ids::{Lsn, PageId, Timestamp};
use crate::index::node::OVERFLOW;
use crate::index::{Change, Stored, Tree, Write};
use crate::pool::Edit;
use crate::store::page;
use crate::wal::{ALLOCATES, RecordBuilder, change_kind};
use crate::{Db, Durability, Error, Mode, Snapshot, Table, Transaction};

const KEYS: u32 = 300;

fn open() -> Db {
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(3 << 20).log_max(1 << 20);
    builder.mode(Mode::Inline).durability(Durability::Buffered).seed(1).open("").unwrap()
}

struct Others {
    db: Db,
    random: SmallRng,
    /// Tables that come and go, open transactions, and snapshots.
    tables: Vec<(String, Table)>,
    named: u32,
    open: Vec<Transaction>,
    snapshots: Vec<Snapshot>,
}

impl Others {
    fn new(db: &Db, seed: u64) -> Self {
        let mut others = Others {
            db: db.clone(),
            random: SmallRng::seed_from_u64(seed),
            tables: Vec::new(),
            named: 0,
            open: Vec::new(),
            snapshots: Vec::new(),
        };
        for _ in 0..2 {
            others.create();
        }
        for _ in 0..400 {
            others.step();
        }
        others
    }

    fn create(&mut self) {
        self.named += 1;
        let name = format!("t{}", self.named);
        let table = self.db.create_table(&name).unwrap();
        self.tables.push((name, table));
    }

    fn key(&mut self) -> [u8; 4] {
        self.random.random_range(0..KEYS).to_be_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        let length = match self.random.random_range(0..10) {
            0..6 => self.random.random_range(0..300),
            6..9 => self.random.random_range(2000..9000),
            _ => self.random.random_range(20_000..90_000),
        };
        vec![self.random.random_range(0..=255); length]
    }

    fn step(&mut self) {
        match self.try_step() {
            Ok(()) | Err(Error::Conflict | Error::SnapshotTooOld | Error::TableNotFound(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn try_step(&mut self) -> crate::Result<()> {
        let table = self.random.random_range(0..self.tables.len());
        let (name, table_at) = (self.tables[table].0.clone(), table);
        let table = self.tables[table].1.clone();
        match self.random.random_range(0..100) {
            0..40 => {
                let (key, value) = (self.key(), self.value());
                table.put(key, value)?;
            }
            40..55 => {
                let key = self.key();
                table.delete(key)?;
            }
            55..60 => {
                // Many at once, so that leaves are merged.
                let first = self.random.random_range(0..KEYS);
                let transaction = self.db.begin();
                for key in first..KEYS.min(first + 60) {
                    transaction.delete(&table, key.to_be_bytes())?;
                }
                transaction.commit()?;
            }
            60..68 => {
                let transaction = self.db.begin();
                let (key, value) = (self.key(), self.value());
                transaction.put(&table, key, value)?;
                self.open.push(transaction);
            }
            68..78 if !self.open.is_empty() => {
                let at = self.random.random_range(0..self.open.len());
                let transaction = self.open.swap_remove(at);
                if self.random.random_range(0..4) > 0 {
                    transaction.commit()?;
                }
            }
            78..82 if self.snapshots.len() < 2 => self.snapshots.push(self.db.snapshot()),
            82..87 => _ = self.snapshots.pop(),
            87..90 if self.tables.len() < 4 => self.create(),
            90..93 if self.tables.len() > 1 => {
                self.db.drop_table(&name)?;
                self.tables.swap_remove(table_at);
            }
            93..95 => {
                self.named += 1;
                let new = format!("t{}", self.named);
                self.db.rename_table(&name, &new)?;
                self.tables[table_at].0 = new;
            }
            95..98 => self.db.checkpoint()?,
            _ => self.db.set_dram(self.random.random_range(2 << 20..=3 << 20))?,
        }
        Ok(())
    }
}

/// Runs `others` at every yield point of `work`.
fn beside<T>(others: Others, work: impl FnOnce() -> T) -> (Others, T) {
    let others = Rc::new((RefCell::new(others), Cell::new(false)));
    let played = Rc::clone(&others);
    crash::play(Some(Rc::new(move |pool| {
        let (others, busy) = &*played;
        // Not within their own work, and not where a real thread would wait for this one.
        // Maintenance frees the few frames of a middle tier repeatedly.
        if !pool.keeps_others_waiting() && !busy.replace(true) {
            let mut others = others.borrow_mut();
            for _ in 0..others.random.random_range(0..4) {
                others.step();
            }
            busy.set(false);
        }
    })));
    let result = work();
    crash::play(None);
    let (others, _) = Rc::into_inner(others).expect("nobody plays any more");
    (others.into_inner(), result)
}

fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let first = number("TERRACE_SEED").unwrap_or(0);
    first..first + number("TERRACE_RUNS").unwrap_or(count)
}

fn nothing_is_reported(seed: u64) {
    let db = open();
    let mut others = Others::new(&db, seed);
    for round in 0..4 {
        let report;
        (others, report) = beside(others, || db.verify().unwrap());
        assert_eq!(report.errors, [], "TERRACE_SEED={seed}, round {round}");
        let still = db.verify().unwrap();
        assert_eq!(still.errors, [], "TERRACE_SEED={seed}, after round {round}");
    }
}

#[test]
fn nothing_is_reported_of_a_sound_database_that_changes() {
    seeds(60).for_each(nothing_is_reported);
}

/// A new value got a garbage entry under the key of a half-freed one.
#[test]
fn nothing_is_reported_where_a_value_is_freed_in_parts() {
    nothing_is_reported(1132);
}

/// Findings of the first failing seed with `bug`; without it the seed finds nothing.
fn caught(bug: crate::planted::Bug) -> Vec<crate::Damage> {
    let found = |seed, bug| {
        let db = open();
        let others = Others::new(&db, seed);
        crate::planted::plant(bug);
        let (_, report) = beside(others, || db.verify().unwrap());
        crate::planted::plant(None);
        report.errors
    };
    let mut runs = (0..60).map(|seed| (seed, found(seed, Some(bug))));
    let (seed, reported) = runs.find(|(_, reported)| !reported.is_empty()).expect("it is caught");
    assert_eq!(found(seed, None), [], "TERRACE_SEED={seed}");
    reported
}

#[test]
fn catches_renewal_untold() {
    assert!(!caught(crate::planted::Bug::RenewalUntold).is_empty());
}

#[test]
fn catches_passing_untold() {
    assert!(!caught(crate::planted::Bug::PassingUntold).is_empty());
}

fn leak(db: &Db) -> PageId {
    let pool = &db.shared.pool;
    let new = pool.new_page(pool.class(), None).unwrap();
    let id = new.id();
    let mut content = Tree::init_root(id, false);
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    record.change_with(id, change_kind::IMAGE, ALLOCATES, |out| {
        page::compact(&content, page::HEADER_BYTES..page::HEADER_BYTES, out);
    });
    pool.change(&mut record, None, [Edit::Create(new, &mut content)]).unwrap();
    id
}

#[test]
fn a_lost_page_is_found_while_others_work() {
    for seed in seeds(20) {
        let db = open();
        let others = Others::new(&db, seed);
        let lost = leak(&db);
        let (_, report) = beside(others, || db.verify().unwrap());
        let pages: Vec<_> = report.errors.iter().map(|damage| (damage.page, damage.what.as_str())).collect();
        assert_eq!(
            pages,
            [(Some(lost.0), "it belongs to nothing: its space is lost")],
            "TERRACE_SEED={seed}"
        );
    }
}

#[test]
fn a_page_of_two_owners_is_found_while_others_work() {
    for seed in seeds(20) {
        let db = open();
        let table = db.create_table("quiet").unwrap();
        table.put("a", vec![1; 30_000]).unwrap();
        let others = Others::new(&db, seed);
        // A second entry refers to the value of the first.
        let tree = table.state().tree;
        let found = tree.get(&db.shared.pool, b"a").unwrap().unwrap();
        let Stored::Overflow(reference) = found.value else { panic!("the value is large") };
        let value = reference.encode();
        let change = Change::Put { key: b"b", timestamp: found.timestamp, flags: OVERFLOW, value: &value };
        tree.apply(&db.shared.pool, &mut Write::default(), change).unwrap();
        // Counted like a commit, so that only the owners are wrong.
        table.state().count.add(1);
        let (_, report) = beside(others, || db.verify().unwrap());
        assert!(report.errors.len() >= 8, "TERRACE_SEED={seed}: {:?}", report.errors);
        for damage in &report.errors {
            assert_eq!(
                damage.what, "it belongs to table \"quiet\" and to another owner",
                "TERRACE_SEED={seed}"
            );
        }
    }
}

#[test]
fn commits_of_other_threads_do_not_wait_for_a_verification() {
    let db = open();
    let table = db.create_table("t").unwrap();
    for key in 0..KEYS {
        table.put(key.to_be_bytes(), vec![7; 500]).unwrap();
    }
    let commits = Rc::new(Cell::new(0));
    let (counted, committer) = (Rc::clone(&commits), db.clone());
    crash::play(Some(Rc::new(move |_| {
        let (db, (done, is_done)) = (committer.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let table = db.open_table("t").unwrap();
            let transaction = db.begin();
            transaction.put(&table, "large", vec![1; 20_000]).unwrap();
            transaction.put(&table, "small", "1").unwrap();
            transaction.commit().unwrap();
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("a commit gets through");
        counted.set(counted.get() + 1);
    })));
    let report = db.verify().unwrap();
    crash::play(None);
    assert_eq!(report.errors, []);
    assert!(commits.get() > 50, "{} commits", commits.get());
}
