//! Old versions against a model with the whole history.

use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};

use proptest::prelude::*;

use super::*;

const TABLE: TableId = TableId(1);

fn with_chains(chains: usize, bytes_max: usize) -> Versions {
    Versions::new(Room { chains, bytes_max, bytes_reserved: 8 << 20, entry_bytes_max: 2000 }).unwrap()
}

fn versions_of(bytes_max: usize) -> Versions {
    with_chains(64, bytes_max)
}

fn borrowed(timestamp: u64, value: &[u8]) -> OldVersion<&[u8]> {
    OldVersion { timestamp: Timestamp(timestamp), value: OldValue::Inline(value) }
}

fn inline(timestamp: u64, value: &[u8]) -> OldVersion {
    OldVersion { timestamp: Timestamp(timestamp), value: OldValue::Inline(value.to_vec()) }
}

fn absent<B>() -> OldVersion<B> {
    OldVersion { timestamp: Timestamp::NONE, value: OldValue::Absent }
}

fn push(versions: &Versions, key: &[u8], at: u64, deletes: bool, old: OldVersion<&[u8]>) {
    versions.push(TABLE, key, Timestamp(at), deletes, &old).unwrap();
}

#[test]
fn absent_and_not_stored_are_two_answers() {
    let versions = versions_of(1 << 20);
    push(&versions, b"k", 4, false, absent());
    push(&versions, b"k", 9, true, borrowed(4, b"a"));
    push(&versions, b"k", 15, false, absent());
    let read = |at| versions.read(TABLE, b"k", Timestamp(at));
    assert_eq!(read(3), Some(absent()));
    assert_eq!(read(4), Some(inline(4, b"a")));
    assert_eq!(read(8), Some(inline(4, b"a")));
    assert_eq!(read(9), Some(absent()));
    assert_eq!(read(15), None);
    assert_eq!(versions.read(TableId(2), b"k", Timestamp(4)), None);
    let all = (Unbounded, Unbounded);
    assert_eq!(versions.deleted_in(TABLE, all, Timestamp(8)), [(Key::from(&b"k"[..]), inline(4, b"a"))]);
    assert!(versions.deleted_in(TABLE, all, Timestamp(9)).is_empty());
    assert!(versions.deleted_in(TABLE, all, Timestamp(3)).is_empty());
    assert!(versions.deleted_in(TABLE, (Excluded(b"k"), Unbounded), Timestamp(8)).is_empty());
}

#[test]
fn a_read_below_what_was_dropped_finds_nothing_once_its_memory_is_used_again() {
    let versions = versions_of(1 << 20);
    push(&versions, b"k", 5, false, borrowed(2, b"old"));
    push(&versions, b"k", 8, false, borrowed(5, b"new"));
    let collected = versions.collect(Timestamp(5), Timestamp(100), &mut Vec::new());
    assert_eq!(collected.versions, 1);
    assert!(collected.bytes > 0);
    assert_eq!(versions.read(TABLE, b"k", Timestamp(5)), Some(inline(5, b"new")));
    assert_eq!(versions.collect(Timestamp(8), Timestamp(100), &mut Vec::new()).versions, 1);
    push(&versions, b"l", 9, false, borrowed(1, b"another"));
    assert_eq!(versions.read(TABLE, b"k", Timestamp(3)), None);
    assert_eq!(versions.read(TABLE, b"k", Timestamp(5)), None);
    assert_eq!(versions.read(TABLE, b"l", Timestamp(5)), Some(inline(1, b"another")));
}

#[test]
fn a_long_history_is_found_in_few_steps_also_beside_another_key() {
    let versions = with_chains(1, 64 << 20);
    push(&versions, b"other", 2, false, borrowed(1, b"before"));
    for at in (3..20_000u64).step_by(2) {
        push(&versions, b"hot", at, false, borrowed(at - 1, &at.to_le_bytes()));
        if at == 7001 {
            push(&versions, b"other", 7002, false, borrowed(2, b"middle"));
            push(&versions, b"hot", 7002, false, borrowed(7001, b"failed"));
            versions.retract(TABLE, b"hot", Timestamp(7002));
        }
    }
    for at in [2u64, 4, 78, 7000, 7002, 19_998] {
        let found = versions.read(TABLE, b"hot", Timestamp(at)).unwrap();
        assert_eq!(found, inline(at, &(at + 1).to_le_bytes()));
        let (mut link, mut steps) = (Link(versions.heads[0].load(Relaxed)), 0);
        while let Some(header) = versions.arena.header(link).filter(|header| header.superseded_at.0 > at) {
            let jump = versions.arena.header(header.jump).filter(|header| header.superseded_at.0 > at);
            link = if jump.is_some() { header.jump } else { header.below };
            steps += 1;
        }
        assert!(steps < 64, "{steps} steps to {at}");
    }
    assert_eq!(versions.read(TABLE, b"other", Timestamp(1)), Some(inline(1, b"before")));
    assert_eq!(versions.read(TABLE, b"other", Timestamp(7001)), Some(inline(2, b"middle")));
    assert_eq!(versions.read(TABLE, b"other", Timestamp(7002)), None);
}

#[test]
fn no_room_at_all_is_an_error_and_keeps_nothing() {
    let room = Room { chains: 4, bytes_max: 0, bytes_reserved: 0, entry_bytes_max: 2000 };
    let versions = Versions::new(room).unwrap();
    let value = [7; 1900];
    let pushed = (2..).take_while(|&at| {
        versions.push(TABLE, b"k", Timestamp(at), at % 2 == 0, &borrowed(at - 1, &value)).is_ok()
    });
    let last = pushed.last().unwrap();
    assert!(versions.is_over_limit(0));
    assert_eq!(versions.read(TABLE, b"k", Timestamp(last)), None);
    assert_eq!(versions.collect(Timestamp(last), Timestamp(last), &mut Vec::new()).versions as u64, last - 1);
    assert!(versions.nothing_deleted(TABLE) && !versions.is_over_limit(0));
    push(&versions, b"k", last + 1, false, borrowed(last, &value));
}

#[test]
fn an_entry_that_no_leaf_can_hold_is_damage() {
    let versions = versions_of(1 << 20);
    let pushed = versions.push(TABLE, b"k", Timestamp(5), true, &borrowed(2, &[0; 65_536]));
    assert!(matches!(pushed, Err(Error::Corrupt { .. })));
    assert!(versions.nothing_deleted(TABLE));
    assert_eq!(versions.read(TABLE, b"k", Timestamp(2)), None);
}

#[test]
fn nothing_is_dropped_above_visible() {
    let versions = versions_of(1 << 20);
    push(&versions, b"k", 5, false, borrowed(2, b"old"));
    assert_eq!(versions.collect(Timestamp(9), Timestamp(4), &mut Vec::new()), Collected::default());
    assert_eq!(versions.collect(Timestamp(9), Timestamp(5), &mut Vec::new()).versions, 1);
}

#[test]
fn overflow_values_come_back_once_and_never_after_a_retraction() {
    let versions = versions_of(1 << 20);
    let overflow = |timestamp, name| OldVersion {
        timestamp: Timestamp(timestamp),
        value: OldValue::Overflow(OverflowRef([name; 16])),
    };
    push(&versions, b"a", 5, true, overflow(1, 1));
    push(&versions, b"b", 6, true, overflow(2, 2));
    versions.retract(TABLE, b"b", Timestamp(6));
    assert!(versions.deleted_in(TABLE, (Included(b"b"), Unbounded), Timestamp(3)).is_empty());
    push(&versions, b"b", 7, false, overflow(2, 2));
    let mut freed = Vec::new();
    versions.collect(Timestamp(6), Timestamp(9), &mut freed);
    assert_eq!(freed, [OverflowRef([1; 16])]);
    versions.collect(Timestamp(9), Timestamp(9), &mut freed);
    assert_eq!(freed, [OverflowRef([1; 16]), OverflowRef([2; 16])]);
    assert!(versions.deleted.is_empty(TABLE));
}

/// A reader without a snapshot may ask for a vanished key anytime.
#[test]
fn deletions_that_were_taken_back_are_remembered_in_little_memory() {
    let versions = versions_of(2 << 20);
    for number in 0..1000u64 {
        push(&versions, &number.to_be_bytes(), 2 + number, true, borrowed(1, b"v"));
        versions.restored(TABLE, &number.to_be_bytes(), Timestamp(2 + number));
    }
    assert_eq!(versions.collect(Timestamp(2000), Timestamp(2000), &mut Vec::new()).versions, 1000);
    assert!(!versions.nothing_deleted(TABLE));
    assert!(versions.deleted_in(TABLE, (Unbounded, Unbounded), Timestamp(1)).is_empty());
    let bytes = versions.deleted.size_bytes();
    assert!(bytes < 1000, "{bytes} bytes for keys that are there");
    push(&versions, b"k", 3000, true, borrowed(1, b"v"));
    versions.collect(Timestamp(4000), Timestamp(4000), &mut Vec::new());
    assert!(!versions.nothing_deleted(TABLE));
    assert_eq!(versions.deleted.size_bytes(), bytes);
}

#[test]
fn memory_is_counted_and_given_back() {
    let versions = versions_of(2 << 20);
    let empty = versions.size_bytes();
    assert!(!versions.is_over_limit(0));
    for timestamp in 2..20_002u64 {
        let name = (timestamp % 3000).to_be_bytes();
        push(&versions, &name, timestamp, timestamp % 5 == 0, borrowed(1, &[7; 100]));
    }
    let payload = 20_000 * (100 + 8);
    let full = versions.size_bytes() - empty;
    assert!(full > payload && full < payload * 2, "{full} for {payload}");
    assert!(versions.is_over_limit(0));
    let collected = versions.collect(Timestamp(20_001), Timestamp(20_001), &mut Vec::new());
    assert_eq!(collected.versions, 20_000);
    let left = versions.size_bytes() - empty;
    assert!(left <= (2 << 20) / 8 + 4096, "{left} bytes are left");
    assert_eq!(versions.arena.used_bytes(), 0);
}

#[test]
fn one_version_of_each_thread_is_not_too_much() {
    for bytes_max in [32 << 10, 64 << 10, 256 << 10, 4 << 20] {
        let versions = versions_of(bytes_max);
        std::thread::scope(|scope| {
            for thread in 0..100u64 {
                let versions = &versions;
                scope.spawn(move || push(versions, &thread.to_be_bytes(), 2, false, borrowed(1, b"v")));
            }
        });
        assert!(!versions.is_over_limit(0), "of {bytes_max} bytes");
    }
}

#[test]
fn addresses_take_no_memory_and_a_limit_beyond_them_comes_down() {
    let room = Room { chains: 64, bytes_max: 256 << 10, bytes_reserved: 8 << 30, entry_bytes_max: 2000 };
    assert!(Versions::new(room).unwrap().size_bytes() < 64 << 10);
    let versions = Versions::new(Room { bytes_max: 100 << 30, ..room }).unwrap();
    assert!(
        versions.bytes_max.load(Relaxed) < versions.arena.bytes_max()
            && versions.arena.bytes_max() <= 32 << 30
    );
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Delete(u8),
    Fail(u8, bool),
    Open,
    Close(prop::sample::Index),
    Collect,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0u8..12).prop_map(Step::Put),
        3 => (0u8..12).prop_map(Step::Delete),
        2 => (0u8..12, any::<bool>()).prop_map(|(key, deletes)| Step::Fail(key, deletes)),
        2 => Just(Step::Open),
        2 => any::<prop::sample::Index>().prop_map(Step::Close),
        1 => Just(Step::Collect),
    ];
    prop::collection::vec(step, 1..150)
}

/// The tree (newest entries), old versions, and every past state.
struct Model {
    versions: Versions,
    tree: BTreeMap<u8, u64>,
    history: Vec<BTreeMap<u8, u64>>,
}

impl Model {
    fn now(&self) -> u64 {
        self.history.len() as u64 - 1
    }

    fn push(&self, name: u8, deletes: bool) {
        let old = self.tree.get(&name).map(|&timestamp| (timestamp, timestamp.to_be_bytes()));
        let old = old.as_ref().map_or_else(absent, |(timestamp, value)| borrowed(*timestamp, value));
        push(&self.versions, &[name], self.now() + 1, deletes, old);
    }

    /// Reads like a snapshot: the page, then the old versions.
    fn get(&self, name: u8, at: u64) -> Option<u64> {
        match self.tree.get(&name) {
            Some(&timestamp) if timestamp <= at => Some(timestamp),
            entry => match self.versions.read(TABLE, &[name], Timestamp(at)) {
                Some(old) => (old.value != OldValue::Absent).then_some(old.timestamp.0),
                None => {
                    assert!(entry.is_none(), "a version that {at} needs is gone");
                    None
                }
            },
        }
    }

    fn scan(&self, range: (Bound<u8>, Bound<u8>), at: u64) -> BTreeMap<u8, u64> {
        let here = self.tree.range(range).filter_map(|(&name, _)| Some((name, self.get(name, at)?)));
        let mut seen: BTreeMap<u8, u64> = here.collect();
        let (low, high) = (range.0.map(|low| [low]), range.1.map(|high| [high]));
        let range = (low.as_ref().map(|low| &low[..]), high.as_ref().map(|high| &high[..]));
        for (name, old) in self.versions.deleted_in(TABLE, range, Timestamp(at)) {
            let before = seen.insert(name[0], old.timestamp.0);
            assert!(before.is_none_or(|before| before == old.timestamp.0), "leaf and index disagree");
        }
        seen
    }
}

proptest! {
    #[test]
    fn every_snapshot_reads_its_own_past(steps in steps(), low in 0u8..12, high in 0u8..13, chains in 1usize..9) {
        let mut model =
            Model { versions: with_chains(chains, 0), tree: BTreeMap::new(), history: vec![BTreeMap::new()] };
        let mut open: Vec<u64> = Vec::new();
        for step in steps {
            match step {
                Step::Put(name) => {
                    model.push(name, false);
                    model.tree.insert(name, model.now() + 1);
                    model.history.push(model.tree.clone());
                }
                Step::Delete(name) if model.tree.contains_key(&name) => {
                    model.push(name, true);
                    model.tree.remove(&name);
                    model.history.push(model.tree.clone());
                }
                Step::Fail(name, deletes) => {
                    model.push(name, deletes);
                    model.versions.retract(TABLE, &[name], Timestamp(model.now() + 1));
                    model.history.push(model.tree.clone());
                }
                Step::Open => open.push(model.now()),
                Step::Close(which) if !open.is_empty() => {
                    open.swap_remove(which.index(open.len()));
                }
                Step::Collect => {
                    let oldest = open.iter().copied().min().unwrap_or(model.now());
                    model.versions.collect(Timestamp(oldest), Timestamp(model.now()), &mut Vec::new());
                }
                Step::Delete(_) | Step::Close(_) => {}
            }
            for at in open.iter().copied().chain([model.now()]) {
                let past = &model.history[at as usize];
                for name in 0..12 {
                    prop_assert_eq!(model.get(name, at), past.get(&name).copied());
                }
                let range = (Included(low.min(high)), Excluded(high.max(low)));
                let expected: BTreeMap<u8, u64> = past.range(range).map(|(&name, &at)| (name, at)).collect();
                prop_assert_eq!(model.scan(range, at), expected);
            }
        }
        model.versions.collect(Timestamp(u64::MAX), Timestamp(u64::MAX), &mut Vec::new());
        prop_assert!(model.versions.queues.iter().all(|queue| queue.is_empty()));
        prop_assert_eq!(model.versions.arena.used_bytes(), 0);
        prop_assert!(model.versions.deleted.is_empty(TABLE));
    }
}
