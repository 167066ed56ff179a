//! The parent's ledger of a child process that will be killed.
//!
//! The child announces each transaction on a pipe before and after its commit. Pipe contents
//! survive the writer's death, so the parent knows every acknowledged commit, and at most one
//! transaction in flight per thread. The lines are:
//!
//! ```text
//! begin THREAD VERSION KEY...    about to commit VERSION into these keys
//! commit THREAD                  acknowledged
//! abort THREAD                   aborted after all; must never be visible
//! doomed THREAD                  begins a transaction that will be aborted on purpose
//! done THREAD OPERATIONS         operations completed so far, including reads
//! wrong THREAD KEY               read a value that no transaction wrote
//! ```
//!
//! A key is its ordinal in key order. Each thread writes only its own keys (`ordinal % threads`),
//! so the order of writes per key is known and the audit is exact. A key must hold its last
//! acknowledged version. The keys of a transaction in flight must all hold its version, or none.
//! This detects lost commits, visible aborts and partial transactions. The kill truncated a last
//! line without a newline; it is ignored.

use std::collections::HashMap;
use std::fmt;

use terrace_common::failure::Outcome;
use terrace_common::store::Store;

use super::keys::Keys;
use super::stamp;

/// Limit of described faults; all are counted.
const FAULTS_SHOWN: usize = 20;

/// An announcement of the child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// About to commit.
    Begin {
        /// The thread.
        thread: u64,
        /// Version written.
        version: u64,
        /// Ordinals of the written keys.
        keys: Vec<u64>,
    },
    /// The transaction was acknowledged.
    Commit(u64),
    /// The transaction was aborted.
    Abort(u64),
    /// A transaction begins whose version must never be visible.
    Doomed(u64),
    /// Number of operations the thread completed.
    Done(u64, u64),
    /// The thread read a wrong value for a key.
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
        let bad = || format!("{line:?} is not an announcement");
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

/// The ledger.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Last acknowledged version per key; absent means 0, the loaded version.
    versions: HashMap<u64, u64>,
    /// Unfinished transaction per thread.
    in_flight: HashMap<u64, (u64, Vec<u64>)>,
    done: HashMap<u64, u64>,
    /// Acknowledged transactions.
    pub committed: u64,
    /// Transactions aborted on purpose.
    pub aborted: u64,
    /// Wrong values seen by the child.
    pub wrong: u64,
}

impl Ledger {
    /// Enters one line with its newline; ignores a truncated line.
    pub fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let Some(line) = line.strip_suffix(b"\n") else { return Ok(()) };
        let text = std::str::from_utf8(line).map_err(|_| "an announcement is not text".to_owned())?;
        self.enter(text.parse()?)
    }

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
        self.in_flight
            .remove(&thread)
            .ok_or_else(|| format!("thread {thread} ended a transaction that it had not begun"))
    }

    /// Operations completed by all threads.
    pub fn operations(&self) -> u64 {
        self.done.values().sum()
    }

    /// Resets the operation counts for the next child.
    pub fn forget_progress(&mut self) {
        self.done.clear();
    }

    /// Compares every record of the store with the ledger. Resolves transactions in flight from the
    /// store, so that a next child can follow.
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
            // Walk the key list, because missing records shift the rest.
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
                _ => audit.fault(key, &format!("has version {found}, but {expected} was acknowledged")),
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
                audit.fault(keys.get(written[0]), "belongs to a partially applied transaction");
            } else {
                audit.in_flight_undone += 1;
            }
        }
        Ok(audit)
    }
}

/// Result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Records compared.
    pub records: u64,
    /// Transactions in flight at the kill that were applied in full.
    pub in_flight_applied: u64,
    /// Transactions in flight at the kill that left no trace.
    pub in_flight_undone: u64,
    /// Violations; any at all means that the engine broke its promise.
    pub faults: u64,
    /// Descriptions of the first faults.
    pub descriptions: Vec<String>,
}

impl Audit {
    fn fault(&mut self, key: &[u8], what: &str) {
        self.faults += 1;
        if self.descriptions.len() < FAULTS_SHOWN {
            self.descriptions.push(format!("{} {what}", terrace_common::escape::bytes(key)));
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_common::testing::MemoryStore;

    use super::*;

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
        assert_eq!(audit.descriptions, ["key003 has version 8, but 0 was acknowledged"]);
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
                // Resolved: a second audit has nothing in flight.
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
