//! The account of a process that will be killed, kept by its parent.
//!
//! The child announces each transaction on a pipe before it commits and again when the commit has returned. What is
//! in a pipe survives the death of its writer, so the parent knows of every commit that was acknowledged, and of the
//! at most one transaction a thread had in flight. Lines are short words and numbers:
//!
//! ```text
//! begin THREAD VERSION KEY...    about to commit VERSION into these keys
//! commit THREAD                  it was acknowledged
//! abort THREAD                   it was given up after all; nobody may ever see it
//! doomed THREAD                  a transaction begins that will be aborted on purpose
//! done THREAD OPERATIONS         operations completed so far, reads included
//! wrong THREAD KEY               a value read was not what any transaction wrote
//! ```
//!
//! A key is its ordinal in key order. Each thread writes keys of its own (`ordinal % threads`), so the order of
//! writes to a key is known exactly and the audit is exact as well: a key must hold the version acknowledged last, and
//! the keys of a transaction in flight must all hold its version or none of them. An aborted version, a lost commit
//! and half a transaction all fail that test. A last line without its newline was cut by the kill and says nothing.

use std::collections::HashMap;
use std::fmt;

use super::serve::Keys;
use super::stamp;
use crate::failure::Outcome;
use crate::store::Store;

/// The most faults an audit describes; it counts all.
const FAULTS_SHOWN: usize = 20;

/// What a child announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// About to commit.
    Begin {
        /// The thread.
        thread: u64,
        /// The version written.
        version: u64,
        /// Ordinals of the keys written.
        keys: Vec<u64>,
    },
    /// The thread's transaction was acknowledged.
    Commit(u64),
    /// The thread's transaction was given up.
    Abort(u64),
    /// The thread begins a transaction whose version nobody may ever see.
    Doomed(u64),
    /// The thread completed so many operations.
    Done(u64, u64),
    /// The thread read a wrong value of a key.
    Wrong(u64, u64),
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Announcement::Begin { thread, version, keys } => {
                write!(f, "begin {thread} {version}")?;
                keys.iter().try_for_each(|key| write!(f, " {key}"))
            }
            Announcement::Commit(thread) => write!(f, "commit {thread}"),
            Announcement::Abort(thread) => write!(f, "abort {thread}"),
            Announcement::Doomed(thread) => write!(f, "doomed {thread}"),
            Announcement::Done(thread, operations) => write!(f, "done {thread} {operations}"),
            Announcement::Wrong(thread, key) => write!(f, "wrong {thread} {key}"),
        }
    }
}

impl std::str::FromStr for Announcement {
    type Err = String;

    fn from_str(line: &str) -> Result<Announcement, String> {
        let bad = || format!("{line:?} is no announcement");
        let mut words = line.split(' ');
        let word = words.next().ok_or_else(bad)?;
        let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().map_err(|_| bad())?;
        match (word, numbers.as_slice()) {
            ("begin", [thread, version, keys @ ..]) if !keys.is_empty() => {
                Ok(Announcement::Begin { thread: *thread, version: *version, keys: keys.to_vec() })
            }
            ("commit", [thread]) => Ok(Announcement::Commit(*thread)),
            ("abort", [thread]) => Ok(Announcement::Abort(*thread)),
            ("doomed", [thread]) => Ok(Announcement::Doomed(*thread)),
            ("done", [thread, operations]) => Ok(Announcement::Done(*thread, *operations)),
            ("wrong", [thread, key]) => Ok(Announcement::Wrong(*thread, *key)),
            _ => Err(bad()),
        }
    }
}

/// The account.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Version acknowledged last, by key; a key that is missing has the version it was loaded with, 0.
    versions: HashMap<u64, u64>,
    /// What each thread began and did not end.
    in_flight: HashMap<u64, (u64, Vec<u64>)>,
    done: HashMap<u64, u64>,
    /// Transactions acknowledged.
    pub committed: u64,
    /// Transactions given up on purpose.
    pub aborted: u64,
    /// Wrong values the child itself saw.
    pub wrong: u64,
}

impl Ledger {
    /// Enters one line, newline included. A line without one was cut off and is left out.
    pub fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let Some(line) = line.strip_suffix(b"\n") else { return Ok(()) };
        let text = std::str::from_utf8(line).map_err(|_| "an announcement is not text".to_owned())?;
        self.enter(text.parse()?)
    }

    /// Enters one announcement.
    pub fn enter(&mut self, announcement: Announcement) -> Result<(), String> {
        match announcement {
            Announcement::Begin { thread, version, keys } => {
                if self.in_flight.insert(thread, (version, keys)).is_some() {
                    return Err(format!("thread {thread} began a transaction inside another"));
                }
            }
            Announcement::Commit(thread) => {
                let (version, keys) = self.ended(thread)?;
                self.versions.extend(keys.into_iter().map(|key| (key, version)));
                self.committed += 1;
            }
            Announcement::Abort(thread) => {
                self.ended(thread)?;
                self.aborted += 1;
            }
            Announcement::Doomed(_) => self.aborted += 1,
            Announcement::Done(thread, operations) => {
                self.done.insert(thread, operations);
            }
            Announcement::Wrong(..) => self.wrong += 1,
        }
        Ok(())
    }

    fn ended(&mut self, thread: u64) -> Result<(u64, Vec<u64>), String> {
        self.in_flight.remove(&thread).ok_or_else(|| format!("thread {thread} ended what it had not begun"))
    }

    /// Operations completed by all threads.
    pub fn operations(&self) -> u64 {
        self.done.values().sum()
    }

    /// Begins to count operations anew, for the next child.
    pub fn forget_progress(&mut self) {
        self.done.clear();
    }

    /// Compares every record of the store with the account. Afterwards the account is that of the store: what was in
    /// flight has been settled one way or the other, and a next child may be followed.
    pub fn audit(&mut self, store: &dyn Store, keys: &Keys) -> Outcome<Audit> {
        let mut audit = Audit::default();
        let open: HashMap<u64, (u64, u64)> = self
            .in_flight
            .iter()
            .flat_map(|(thread, (version, keys))| keys.iter().map(|key| (*key, (*thread, *version))))
            .collect();
        let mut applied: HashMap<u64, Vec<bool>> = HashMap::new();
        let mut ordinal = 0;
        store.scan(b"", &mut |key, value| {
            // Missing records shift the rest, so the list of keys is walked along.
            while ordinal < keys.len() && keys.get(ordinal) < key {
                audit.fault(keys.get(ordinal), "is missing");
                ordinal += 1;
            }
            if ordinal >= keys.len() || keys.get(ordinal) != key {
                audit.fault(key, "was never written");
                return std::ops::ControlFlow::Continue(());
            }
            let known = ordinal;
            ordinal += 1;
            audit.records += 1;
            let Some((found, _)) = stamp::open(key, value) else {
                audit.fault(key, "does not match its checksum");
                return std::ops::ControlFlow::Continue(());
            };
            let expected = self.versions.get(&known).copied().unwrap_or(0);
            match open.get(&known) {
                Some((thread, version)) if found == *version || found == expected => {
                    applied.entry(*thread).or_default().push(found == *version);
                }
                _ if found == expected => {}
                _ => audit.fault(key, &format!("has version {found}, acknowledged was {expected}")),
            }
            std::ops::ControlFlow::Continue(())
        })?;
        (ordinal..keys.len()).for_each(|rest| audit.fault(keys.get(rest), "is missing"));
        for (thread, (version, written)) in self.in_flight.drain() {
            let votes = applied.remove(&thread).unwrap_or_default();
            if votes.iter().all(|applied| *applied) && votes.len() == written.len() {
                audit.in_flight_applied += 1;
                self.versions.extend(written.into_iter().map(|key| (key, version)));
            } else if votes.contains(&true) {
                audit.fault(keys.get(written[0]), "belongs to a transaction of which only half is there");
            } else {
                audit.in_flight_undone += 1;
            }
        }
        Ok(audit)
    }
}

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Records compared.
    pub records: u64,
    /// Transactions in flight at the kill that are there in whole.
    pub in_flight_applied: u64,
    /// Transactions in flight at the kill that are not there at all.
    pub in_flight_undone: u64,
    /// What is not as it should be; any at all means that the engine broke its promise.
    pub faults: u64,
    /// The first of the faults in words.
    pub descriptions: Vec<String>,
}

impl Audit {
    fn fault(&mut self, key: &[u8], what: &str) {
        self.faults += 1;
        if self.descriptions.len() < FAULTS_SHOWN {
            self.descriptions.push(format!("{} {what}", crate::escape::bytes(key)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::MemoryStore;

    fn loaded(records: u64) -> (MemoryStore, Keys) {
        let store = MemoryStore::default();
        for record in 0..records {
            let key = format!("key{record:03}");
            store.put(key.as_bytes(), &stamp::stamp(key.as_bytes(), 0, b"content")).unwrap();
        }
        let keys = Keys::of(&store).unwrap();
        (store, keys)
    }

    fn set(store: &MemoryStore, keys: &Keys, key: u64, version: u64) {
        store.put(keys.get(key), &stamp::stamp(keys.get(key), version, b"new")).unwrap();
    }

    fn ledger(lines: &str) -> Ledger {
        let mut ledger = Ledger::default();
        lines.split_inclusive('\n').for_each(|line| ledger.line(line.as_bytes()).unwrap());
        ledger
    }

    #[test]
    fn announcements_round_trip() {
        let all = [
            Announcement::Begin { thread: 1, version: 2, keys: vec![3, 4] },
            Announcement::Commit(1),
            Announcement::Abort(2),
            Announcement::Doomed(3),
            Announcement::Done(0, 99),
            Announcement::Wrong(1, 5),
        ];
        for announcement in all {
            assert_eq!(announcement.to_string().parse(), Ok(announcement));
        }
        for bad in ["", "begin 1 2", "commit", "commit x", "commit 1 2", "hello 1"] {
            assert!(bad.parse::<Announcement>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn acknowledged_commits_must_be_there() {
        let (store, keys) = loaded(10);
        let mut account = ledger("begin 0 7 2 4\ncommit 0\nbegin 1 8 3\nabort 1\ndone 0 50\ndone 1 20\n");
        assert_eq!((account.committed, account.aborted, account.operations()), (1, 1, 70));
        assert_eq!(account.audit(&store, &keys).unwrap().faults, 2);
        set(&store, &keys, 2, 7);
        set(&store, &keys, 4, 7);
        let audit = account.audit(&store, &keys).unwrap();
        assert_eq!(audit, Audit { records: 10, ..Audit::default() });
        set(&store, &keys, 3, 8);
        let audit = account.audit(&store, &keys).unwrap();
        assert_eq!(audit.descriptions, ["key003 has version 8, acknowledged was 0"]);
    }

    #[test]
    fn a_transaction_in_flight_is_there_in_whole_or_not_at_all() {
        let lines = "begin 0 7 2 4\ncommit 0\nbegin 0 9 4 6\ncommi";
        for (applied, faults) in [(&[][..], 0), (&[4, 6][..], 0), (&[4][..], 1), (&[6][..], 1)] {
            let (store, keys) = loaded(10);
            set(&store, &keys, 2, 7);
            set(&store, &keys, 4, 7);
            applied.iter().for_each(|key| set(&store, &keys, *key, 9));
            let mut account = ledger(lines);
            let audit = account.audit(&store, &keys).unwrap();
            assert_eq!(audit.faults, faults, "{applied:?}: {audit:?}");
            if faults == 0 {
                let whole = u64::from(applied.len() == 2);
                assert_eq!((audit.in_flight_applied, audit.in_flight_undone), (whole, 1 - whole));
                // Settled: the next audit finds the same without anything in flight.
                assert_eq!(account.audit(&store, &keys).unwrap(), Audit { records: 10, ..Audit::default() });
            }
        }
    }

    #[test]
    fn missing_foreign_and_broken_records_are_faults() {
        let (store, keys) = loaded(10);
        store.delete(b"key000").unwrap();
        store.delete(b"key005").unwrap();
        store.delete(b"key009").unwrap();
        store.put(b"key0055", b"x").unwrap();
        store.put(b"zzz", b"x").unwrap();
        store.put(b"key007", b"short").unwrap();
        let audit = Ledger::default().audit(&store, &keys).unwrap();
        assert_eq!((audit.faults, audit.records), (6, 7), "{:?}", audit.descriptions);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut account = ledger("begin 0 1 1\n");
        assert!(account.line(b"begin 0 2 2\n").is_err());
        assert!(account.line(b"commit 1\n").is_err());
        assert!(account.line(b"\xff\n").is_err());
        assert!(account.line(b"comm").is_ok());
    }
}
