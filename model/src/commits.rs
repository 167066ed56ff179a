//! Commits, exhaustively: every interleaving of two or three transactions, without crashes.
//!
//! A commit locks its keys, draws a timestamp, checks what it read, applies and unlocks. Every end
//! must be the state after the committed transactions in some order, and in that of timestamps.

use std::collections::{BTreeMap, BTreeSet};

/// What a transaction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// All keys.
    Scan,
    /// One key.
    Key(char),
}

/// A transaction: first all reads, then the commit of its writes.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Program {
    pub reads: &'static [Read],
    pub writes: &'static [(char, u8)],
}

/// Transactions that run at once.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Case {
    pub name: &'static str,
    pub programs: Vec<Program>,
}

/// What all interleavings led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Ends {
    pub states: usize,
    /// Ends that no order of the transactions leads to.
    pub unserializable: usize,
    /// Ends that only another order than that of timestamps leads to.
    pub out_of_order: usize,
}

/// A value and the timestamp of the transaction that wrote it.
type Version = (u8, u8);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    All(Vec<(char, u8)>),
    One(char, Option<Version>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Committed,
    Aborted,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Progress {
    steps: usize,
    seen: Vec<Seen>,
    timestamp: u8,
    outcome: Option<Outcome>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    keys: BTreeMap<char, Version>,
    locks: BTreeSet<(char, usize)>,
    clock: u8,
    progress: Vec<Progress>,
}

/// Runs every interleaving. Without `checks_inserts`, a scan does not notice keys that others are
/// about to insert.
pub fn explore(programs: &[Program], checks_inserts: bool) -> Ends {
    let progress = vec![Progress::default(); programs.len()];
    let keys = BTreeMap::from([('x', (0, 0))]);
    let mut waiting = vec![State { keys, locks: BTreeSet::new(), clock: 0, progress }];
    let mut known = BTreeSet::new();
    let mut ends = Ends::default();
    while let Some(state) = waiting.pop() {
        if !known.insert(state.clone()) {
            continue;
        }
        if state.progress.iter().all(|progress| progress.outcome.is_some()) {
            let (serializable, in_order) = state.judge(programs);
            ends.unserializable += usize::from(!serializable);
            ends.out_of_order += usize::from(serializable && !in_order);
        }
        let next = (0..programs.len()).filter_map(|at| state.step(at, &programs[at], checks_inserts));
        waiting.extend(next);
    }
    ends.states = known.len();
    ends
}

impl State {
    /// The state after the next step of a transaction; none if it has ended or waits.
    fn step(&self, at: usize, program: &Program, checks_inserts: bool) -> Option<State> {
        let mut next = self.clone();
        let progress = &mut next.progress[at];
        if progress.outcome.is_some() {
            return None;
        }
        let reads = program.reads.len();
        progress.steps += 1;
        match progress.steps - 1 {
            step if step < reads => progress.seen.push(match program.reads[step] {
                Read::Scan => Seen::All(self.all()),
                Read::Key(key) => Seen::One(key, self.keys.get(&key).copied()),
            }),
            step if step == reads => {
                let is_locked = |key| self.locks.iter().any(|lock| lock.0 == key && lock.1 != at);
                if program.writes.iter().any(|write| is_locked(write.0)) {
                    return None;
                }
                next.locks.extend(program.writes.iter().map(|write| (write.0, at)));
            }
            step if step == reads + 1 => {
                next.clock += 1;
                progress.timestamp = next.clock;
            }
            step if step == reads + 2 => {
                if !self.is_valid(at, checks_inserts) {
                    progress.outcome = Some(Outcome::Aborted);
                    next.locks.retain(|lock| lock.1 != at);
                }
            }
            step if step == reads + 3 => {
                let timestamp = progress.timestamp;
                next.keys.extend(program.writes.iter().map(|&(key, value)| (key, (value, timestamp))));
            }
            _ => {
                progress.outcome = Some(Outcome::Committed);
                next.locks.retain(|lock| lock.1 != at);
            }
        }
        Some(next)
    }

    fn all(&self) -> Vec<(char, u8)> {
        self.keys.iter().map(|(key, version)| (*key, version.0)).collect()
    }

    /// Whether what a transaction read is unchanged, and nobody else is about to change it.
    fn is_valid(&self, at: usize, checks_inserts: bool) -> bool {
        let foreign: BTreeSet<_> = self.locks.iter().filter(|lock| lock.1 != at).map(|lock| lock.0).collect();
        self.progress[at].seen.iter().all(|seen| match seen {
            Seen::One(key, version) => self.keys.get(key) == version.as_ref() && !foreign.contains(key),
            Seen::All(all) => {
                let is_locked = all.iter().any(|(key, _)| foreign.contains(key));
                *all == self.all() && !is_locked && (foreign.is_empty() || !checks_inserts)
            }
        })
    }

    /// Whether an order of the committed transactions leads here, and whether that of timestamps
    /// does.
    fn judge(&self, programs: &[Program]) -> (bool, bool) {
        let is_committed = |at: &usize| self.progress[*at].outcome == Some(Outcome::Committed);
        let mut committed: Vec<_> = (0..programs.len()).filter(is_committed).collect();
        committed.sort_by_key(|at| self.progress[*at].timestamp);
        let in_order = self.is_result_of(&committed, programs);
        let any = permutations(&committed).iter().any(|order| self.is_result_of(order, programs));
        (any, in_order)
    }

    fn is_result_of(&self, order: &[usize], programs: &[Program]) -> bool {
        let mut keys = BTreeMap::from([('x', 0)]);
        for &at in order {
            let as_seen = self.progress[at].seen.iter().all(|seen| match seen {
                Seen::All(all) => keys.iter().map(|(key, value)| (*key, *value)).eq(all.iter().copied()),
                Seen::One(key, version) => keys.get(key).copied() == version.map(|version| version.0),
            });
            if !as_seen {
                return false;
            }
            keys.extend(programs[at].writes.iter().copied());
        }
        keys.into_iter().eq(self.all())
    }
}

fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, &first) in items.iter().enumerate() {
        let rest = [&items[..at], &items[at + 1..]].concat();
        all.extend(permutations(&rest).into_iter().map(|order| [&[first], &order[..]].concat()));
    }
    all
}

/// Cases in which checks may be missed.
pub fn cases() -> Vec<Case> {
    use Read::{Key, Scan};
    const SCAN: &[Read] = &[Scan];
    let of = |reads, writes| Program { reads, writes };
    let case = |name, programs: &[Program]| Case { name, programs: programs.to_vec() };
    vec![
        case("a scan and an insert", &[of(SCAN, &[('x', 1)]), of(&[Key('x')], &[('i', 2)])]),
        case("two scans and two inserts", &[of(SCAN, &[('a', 1)]), of(SCAN, &[('b', 1)])]),
        case("write skew", &[of(&[Key('x')], &[('y', 1)]), of(&[Key('y')], &[('x', 2)])]),
        case(
            "a circle of three",
            &[of(&[Key('x')], &[('y', 1)]), of(&[Key('y')], &[('z', 2)]), of(&[Key('z')], &[('x', 3)])],
        ),
    ]
}
