//! Old versions against a model with the whole history.

use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};

use proptest::prelude::*;

use super::*;
use crate::planted::Bug;

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

fn part_of(timestamp: u64, at: usize, bytes: &[u8]) -> OldVersion<&[u8]> {
    OldVersion { timestamp: Timestamp(timestamp), value: OldValue::Part { at, bytes } }
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

/// A key with changes of parts, whole values, a deletion, and a failed change; see [`HISTORY`].
fn with_parts(versions: &Versions) {
    push(versions, b"k", 4, false, absent());
    push(versions, b"k", 9, false, part_of(4, 1, b"bc"));
    push(versions, b"k", 12, false, part_of(9, 2, b"Yd"));
    push(versions, b"k", 13, false, part_of(12, 0, b"aX"));
    versions.retract(TABLE, b"k", Timestamp(13));
    push(versions, b"k", 15, false, borrowed(12, b"aXZWef"));
    push(versions, b"k", 20, false, part_of(15, 0, b"o"));
    push(versions, b"k", 22, true, borrowed(20, b"Other length"));
    push(versions, b"k", 25, false, absent());
    push(versions, b"k", 30, false, part_of(25, 2, b"w"));
    push(versions, b"k", 33, false, part_of(30, 0, b"ne"));
}

/// Commits of that key, and what each left.
const HISTORY: [(u64, Option<&[u8]>); 9] = [
    (4, Some(b"abcdef")),
    (9, Some(b"aXYdef")),
    (12, Some(b"aXZWef")),
    (15, Some(b"other length")),
    (20, Some(b"Other length")),
    (22, None),
    (25, Some(b"new")),
    (30, Some(b"nex")),
    (33, Some(b"NEx")),
];

/// Reads at each time, below each entry that a reader may have seen before.
fn parts_are_taken_back() {
    let versions = versions_of(1 << 20);
    with_parts(&versions);
    for (number, (at, expected)) in HISTORY.into_iter().enumerate() {
        let expected = expected.map(|value| inline(at, value));
        for (timestamp, entry) in &HISTORY[number + 1..] {
            let found = match entry {
                Some(entry) => versions.read_below(TABLE, b"k", Timestamp(at), &OldValue::Inline(entry)),
                // The leaf was read after the deletion.
                None => versions.read(TABLE, b"k", Timestamp(at)),
            };
            let found = found.expect("nothing was dropped");
            assert_eq!(
                (found.value != OldValue::Absent).then_some(found),
                expected,
                "{at} below {timestamp}"
            );
        }
    }
    for at in 25..33 {
        assert_eq!(versions.read(TABLE, b"k", Timestamp(at)), None, "a leaf without the key is older");
    }
}

#[test]
fn parts_are_taken_back_from_the_entry_read_to_the_time_asked_for() {
    parts_are_taken_back();
}

fn caught(bug: Bug, works: fn()) {
    crate::planted::plant(Some(bug));
    let outcome = std::panic::catch_unwind(works);
    crate::planted::plant(None);
    assert!(outcome.is_err(), "{bug:?} was not noticed");
    works();
}

#[test]
fn catches_oldest_part_first() {
    caught(Bug::OldestPartFirst, parts_are_taken_back);
}

#[test]
fn catches_whole_value_between() {
    caught(Bug::WholeValueBetween, parts_are_taken_back);
}

#[test]
fn a_part_of_an_entry_is_taken_back_as_far_as_changes_meet_it() {
    let versions = versions_of(1 << 20);
    with_parts(&versions);
    let read = |at, first, bytes: &[u8]| {
        let newer = OldValue::Part { at: first, bytes };
        versions.read_below(TABLE, b"k", Timestamp(at), &newer).unwrap()
    };
    let part = |timestamp, at, bytes: &[u8]| OldVersion {
        timestamp: Timestamp(timestamp),
        value: OldValue::Part { at, bytes: bytes.to_vec() },
    };
    assert_eq!(read(25, 1, b"E"), part(25, 1, b"e"));
    assert_eq!(read(25, 1, b"Ex"), part(25, 1, b"ew"));
    assert_eq!(read(30, 2, b"x"), part(30, 2, b"x"), "no change meets it");
    assert_eq!(read(25, 0, b"ne"), part(25, 0, b"ne"), "of an entry read before the last change");
    assert_eq!(read(25, 3, b""), part(25, 3, b""), "nothing, at the end");
    // A whole value is between.
    assert_eq!(read(4, 0, b"N"), inline(4, b"abcdef"));
    assert_eq!(read(22, 1, b"E"), absent());
}

/// Parts push less than values, and are collected from the old end.
#[test]
fn parts_that_no_snapshot_needs_are_dropped_and_the_others_hold() {
    let versions = with_chains(1, 64 << 10);
    let mut value = vec![0; 1000];
    let mut push_one = |at: u64| {
        let start = at as usize * 7 % 900;
        let old = value[start..start + 100].to_vec();
        push(&versions, b"k", at, false, part_of(at - 1, start, &old));
        push(&versions, b"other", at, false, borrowed(1, b"beside"));
        value[start..start + 100].fill(at as u8);
        value.clone()
    };
    let states: Vec<Vec<u8>> = (2..400).map(&mut push_one).collect();
    assert!(versions.pushed_bytes() < 398 * 320);
    for oldest in [2u64, 100, 250, 398] {
        versions.collect(Timestamp(oldest), Timestamp(1000), &mut Vec::new());
        let newest = OldValue::Inline(&states[397][..]);
        for at in oldest..399 {
            let found = versions.read_below(TABLE, b"k", Timestamp(at), &newest).unwrap();
            assert_eq!(found, inline(at, &states[at as usize - 2]), "at {at}");
        }
    }
    let collected = versions.collect(Timestamp(399), Timestamp(1000), &mut Vec::new());
    assert_eq!(collected.versions, 2);
}

#[test]
fn a_long_history_of_parts_is_rebuilt_from_the_next_whole_value() {
    let versions = with_chains(1, 64 << 20);
    let mut value = vec![0; 50];
    let mut wholes = 0;
    let mut states = Vec::new();
    for at in 2..20_000u64 {
        let start = at as usize % 40;
        let keeps_all = versions.wants_whole(TABLE, b"hot", || Timestamp(1));
        assert!(!versions.wants_whole(TABLE, b"hot", || Timestamp(at - 1)), "no snapshot needs it");
        wholes += u64::from(keeps_all);
        let old = if keeps_all {
            borrowed(at - 1, &value)
        } else {
            part_of(at - 1, start, &value[start..start + 10])
        };
        push(&versions, b"hot", at, false, old);
        value[start..start + 10].fill(at as u8);
        states.push(value.clone());
    }
    assert_eq!(wholes, 20_000 / WHOLE_EVERY);
    let chain = Chain::new(&versions.arena, Link(versions.heads[0].load(Relaxed)));
    let newest = OldValue::Inline(&value[..]);
    for at in [2u64, 3, 127, 128, 129, 5000, 19_998] {
        let expected = inline(at, &states[at as usize - 2]);
        assert_eq!(versions.read_below(TABLE, b"hot", Timestamp(at), &newest).unwrap(), expected);
        let (link, lowest) = chain.lowest_above(Timestamp(at)).unwrap();
        let depth = lowest.depth + WHOLE_EVERY;
        if let Some((start, _)) = chain.lowest_where(|header| header.depth >= depth) {
            let read = Read { table: TABLE, key: b"hot", at: Timestamp(at), value: None };
            assert_eq!(
                Chain::new(&versions.arena, start).rebuild_to(link, read),
                Some(expected),
                "at {at}, without the entry"
            );
        }
    }
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
    /// Key and length of the value.
    Put(u8, usize),
    /// Key, offset and length of the part.
    Part(u8, usize, usize),
    Delete(u8),
    Fail(Box<Step>),
    Open,
    Close(prop::sample::Index),
    Collect,
}

fn change() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..12, 0usize..40).prop_map(|(key, length)| Step::Put(key, length)),
        6 => (0u8..12, 0usize..40, 0usize..20).prop_map(|(key, at, length)| Step::Part(key, at, length)),
        3 => (0u8..12).prop_map(Step::Delete),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => change(),
        2 => change().prop_map(|step| Step::Fail(Box::new(step))),
        2 => Just(Step::Open),
        2 => any::<prop::sample::Index>().prop_map(Step::Close),
        1 => Just(Step::Collect),
    ];
    prop::collection::vec(step, 1..150)
}

/// Commit and value of each key.
type State = BTreeMap<u8, (u64, Vec<u8>)>;

/// The tree (newest entries), old versions, and every past state.
struct Model {
    versions: Versions,
    tree: State,
    history: Vec<State>,
}

impl Model {
    fn now(&self) -> u64 {
        self.history.len() as u64 - 1
    }

    /// Pushes what `step` replaces; returns the tree after it.
    fn push(&self, step: &Step) -> State {
        let (timestamp, mut after) = (self.now() + 1, self.tree.clone());
        let (Step::Put(name, ..) | Step::Part(name, ..) | Step::Delete(name)) = *step else {
            unreachable!("{step:?} is no change")
        };
        let Some((before, value)) = self.tree.get(&name) else {
            if let Step::Put(_, length) = *step {
                push(&self.versions, &[name], timestamp, false, absent());
                after.insert(name, (timestamp, vec![timestamp as u8; length]));
            }
            return after;
        };
        let whole = borrowed(*before, value);
        match *step {
            Step::Put(_, length) => {
                push(&self.versions, &[name], timestamp, false, whole);
                after.insert(name, (timestamp, vec![timestamp as u8; length]));
            }
            Step::Part(_, at, length) => {
                let part = at.min(value.len())..(at + length).min(value.len());
                let keeps_all = self.versions.wants_whole(TABLE, &[name], || Timestamp::NONE)
                    || part.len() == value.len();
                let old = if keeps_all { whole } else { part_of(*before, part.start, &value[part.clone()]) };
                push(&self.versions, &[name], timestamp, false, old);
                let mut value = value.clone();
                value[part].fill(timestamp as u8);
                after.insert(name, (timestamp, value));
            }
            _ => {
                push(&self.versions, &[name], timestamp, true, whole);
                after.remove(&name);
            }
        }
        after
    }

    fn commit(&mut self, after: State) {
        self.tree = after;
        self.history.push(self.tree.clone());
    }

    /// Reads at `at` like a snapshot: the page as it was in `leaf`, then the old versions.
    fn get(&self, leaf: &State, name: u8, at: u64) -> Option<(u64, Vec<u8>)> {
        let old = match leaf.get(&name) {
            Some((timestamp, value)) if *timestamp <= at => return Some((*timestamp, value.clone())),
            Some((_, value)) => {
                let old = self.versions.read_below(TABLE, &[name], Timestamp(at), &OldValue::Inline(value));
                Some(old.expect("a version that a snapshot needs is gone"))
            }
            None => self.versions.read(TABLE, &[name], Timestamp(at)),
        };
        old.and_then(|old| match old.value {
            OldValue::Absent => None,
            OldValue::Inline(value) => Some((old.timestamp.0, value)),
            other => panic!("{other:?} of a key whose entry was given"),
        })
    }

    /// Reads a part of an entry newer than `at`.
    fn get_part(&self, leaf: &State, name: u8, at: u64, part: std::ops::Range<usize>) -> Option<Vec<u8>> {
        let (_, value) = leaf.get(&name).filter(|(timestamp, _)| *timestamp > at)?;
        let newer = OldValue::Part { at: part.start, bytes: value.get(part.clone())? };
        match self.versions.read_below(TABLE, &[name], Timestamp(at), &newer)?.value {
            OldValue::Inline(value) => value.get(part).map(<[u8]>::to_vec),
            OldValue::Part { at, bytes } if at == part.start => Some(bytes),
            OldValue::Absent => None,
            other => panic!("{other:?}"),
        }
    }

    fn scan(&self, range: (Bound<u8>, Bound<u8>), at: u64) -> State {
        let here = self.tree.range(range);
        let here = here.filter_map(|(&name, _)| Some((name, self.get(&self.tree, name, at)?)));
        let mut seen: State = here.collect();
        let (low, high) = (range.0.map(|low| [low]), range.1.map(|high| [high]));
        let range = (low.as_ref().map(|low| &low[..]), high.as_ref().map(|high| &high[..]));
        for (name, old) in self.versions.deleted_in(TABLE, range, Timestamp(at)) {
            let OldValue::Inline(value) = old.value else { panic!("{:?} was deleted", old.value) };
            let old = (old.timestamp.0, value);
            let before = seen.insert(name[0], old.clone());
            assert!(before.is_none_or(|before| before == old), "leaf and index disagree");
        }
        seen
    }
}

proptest! {
    #[test]
    fn every_snapshot_reads_its_own_past(
        steps in steps(), low in 0u8..12, high in 0u8..13, chains in 1usize..9, part in 0usize..30,
    ) {
        let versions = with_chains(chains, 0);
        let mut model = Model { versions, tree: State::new(), history: vec![State::new()] };
        let mut open: Vec<u64> = Vec::new();
        for step in steps {
            match step {
                Step::Put(..) | Step::Part(..) | Step::Delete(_) => {
                    let after = model.push(&step);
                    model.commit(after);
                }
                Step::Fail(step) => {
                    let after = model.push(&step);
                    if after != model.tree {
                        let (Step::Put(name, ..) | Step::Part(name, ..) | Step::Delete(name)) = *step else {
                            unreachable!("it is a change")
                        };
                        model.versions.retract(TABLE, &[name], Timestamp(model.now() + 1));
                    }
                    model.commit(model.tree.clone());
                }
                Step::Open => open.push(model.now()),
                Step::Close(which) if !open.is_empty() => {
                    open.swap_remove(which.index(open.len()));
                }
                Step::Collect => {
                    let oldest = open.iter().copied().min().unwrap_or(model.now());
                    model.versions.collect(Timestamp(oldest), Timestamp(model.now()), &mut Vec::new());
                }
                Step::Close(_) => {}
            }
            for at in open.iter().copied().chain([model.now()]) {
                let past = &model.history[at as usize];
                // A leaf that was read a while ago, or now.
                let late = &model.history[(at + model.now()) as usize / 2];
                for name in 0..12 {
                    let expected = past.get(&name);
                    for leaf in [late, &model.tree] {
                        let found = model.get(leaf, name, at);
                        prop_assert_eq!(found.as_ref(), expected);
                        let range = part..part + 9;
                        if let Some(found) = model.get_part(leaf, name, at, range.clone()) {
                            prop_assert_eq!(Some(&found[..]), expected.and_then(|(_, value)| value.get(range)));
                        }
                    }
                }
                let range = (Included(low.min(high)), Excluded(high.max(low)));
                let expected: State = past.range(range).map(|(&name, at)| (name, at.clone())).collect();
                prop_assert_eq!(model.scan(range, at), expected);
            }
        }
        model.versions.collect(Timestamp(u64::MAX), Timestamp(u64::MAX), &mut Vec::new());
        prop_assert!(model.versions.queues.iter().all(|queue| queue.is_empty()));
        prop_assert_eq!(model.versions.arena.used_bytes(), 0);
        prop_assert!(model.versions.deleted.is_empty(TABLE));
    }
}
