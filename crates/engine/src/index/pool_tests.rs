//! The tree over a small pool and log, against a map: constant eviction, checkpoints and cuts.
//! Every run ends with a recovery, which must restore the same tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use terrace_io::{Directory, MemoryDirectory, OpenMode};

use super::chain::{self, FreeStep};
use super::node::LEFTMOST;
use super::node::leaf;
use super::node::overflow::{Reference, ValuePages};
use super::{
    Change, Found, LeafRows, Met, NodeRedo, Seek, Stored, Tree, Write, log_bytes, release_step, verify,
    verify_released,
};
use crate::error::Error;
use crate::ids::MAX_KEY_BYTES;
use crate::ids::{Lsn, PageId, SizeClass, Timestamp};
use crate::maintenance::Layout;
use crate::maintenance::Maintenance;
use crate::pool::{BufferSizes, Edit, Mode, Pool, PoolOptions, RecordCache, TierOptions, frame_bytes};
use crate::store::files::Files;
use crate::wal::{ALLOCATES, RecordBuilder};

/// A pool on in-memory files that outlive it.
pub(super) struct TestPool {
    pub(super) files: Files,
    options: PoolOptions,
    pub(super) pool: Arc<Maintenance>,
    pub(super) tree: Tree,
}

/// A pool of `frames` frames, with one tree.
pub(super) fn test_pool(page_bytes: usize, frames: u32, mode: Mode) -> TestPool {
    test_pool_with(page_bytes, frames, mode, RecordCache::Auto)
}

pub(super) fn test_pool_with(
    page_bytes: usize,
    frames: u32,
    mode: Mode,
    record_cache: RecordCache,
) -> TestPool {
    let directory = MemoryDirectory::new();
    let open = |name| directory.open(name, OpenMode::CreateNew).unwrap();
    let files = Files::new(open("pages.terrace"), open("log.terrace"));
    let class = SizeClass::of_bytes(page_bytes as u64).unwrap();
    let segment_blocks = 16 * class.blocks();
    let layout = Layout { uuid: [7; 16], page_bytes, segment_blocks, log_max: 1 << 20, log_first: 1 << 20 };
    let options = PoolOptions {
        frame_bytes: frame_bytes(class, frames),
        frame_bytes_max: frame_bytes(class, 2 * frames),
        frames_floor: 24,
        buffers: BufferSizes {
            log: 128 << 10,
            staging: 64 << 10,
            batches: 16 * page_bytes as u64,
            batch_least: 0,
        },
        pages_max: 1 << 20,
        hash: crate::config::hash_of_environment(),
        store_bytes_max: 256 << 20,
        record_cache,
        backend: crate::Backend::of_environment().unwrap(),
        replacement: Default::default(),
        tiers: TierOptions::default(),
        mode,
        in_memory: false,
        hints: true,
    };
    new_pool(files, &layout, options)
}

/// A small pool with long values on pages of up to 256 KiB. Nodes have 4 KiB, and frames are as few
/// as possible.
pub(super) fn value_pool() -> TestPool {
    let directory = MemoryDirectory::new();
    let open = |name| directory.open(name, OpenMode::CreateNew).unwrap();
    let files = Files::new(open("pages.terrace"), open("log.terrace"));
    let layout =
        Layout { uuid: [7; 16], page_bytes: 4096, segment_blocks: 256, log_max: 4 << 20, log_first: 4 << 20 };
    let options = PoolOptions {
        frame_bytes: 8 << 20,
        frame_bytes_max: 8 << 20,
        frames_floor: 24,
        buffers: BufferSizes { log: 512 << 10, staging: 512 << 10, batches: 1 << 20, batch_least: 512 << 10 },
        pages_max: 1 << 20,
        hash: crate::config::hash_of_environment(),
        store_bytes_max: 256 << 20,
        record_cache: RecordCache::Off,
        backend: crate::Backend::of_environment().unwrap(),
        replacement: Default::default(),
        tiers: TierOptions::default(),
        mode: Mode::Inline,
        in_memory: false,
        hints: true,
    };
    let test = new_pool(files, &layout, options);
    for bytes in [128 << 10, 256 << 10] {
        test.pool.resizer().use_class(SizeClass::of_bytes(bytes).unwrap()).unwrap();
    }
    test
}

fn new_pool(files: Files, layout: &Layout, options: PoolOptions) -> TestPool {
    crate::maintenance::create(&files, layout).unwrap();
    let pool = recover(&files, &options);
    let tree = new_tree(&pool);
    TestPool { files, options, pool, tree }
}

pub(super) fn new_tree(pool: &Pool) -> Tree {
    new_tree_of(pool, pool.class())
}

fn new_tree_of(pool: &Pool, class: SizeClass) -> Tree {
    let new = pool.new_page(class, None).unwrap();
    let tree = Tree { root: new.id() };
    let mut content = Tree::init_root(new.id(), false);
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    super::change::describe_image(&mut record, new.id(), ALLOCATES, &content);
    pool.change(&mut record, None, [Edit::Create(new, &mut content)]).unwrap();
    tree
}

fn recover(files: &Files, options: &PoolOptions) -> Arc<Maintenance> {
    let recovered = crate::recovery::recover(files, options, &NodeRedo).unwrap();
    recovered.maintenance.recovery_done();
    recovered.maintenance
}

impl TestPool {
    /// Drops the pool with its memory, and recovers it from its files.
    pub(super) fn reopen(self) -> TestPool {
        let TestPool { files, options, pool, tree } = self;
        pool.wal().flush_to(pool.wal().tail()).unwrap();
        drop(pool);
        let pool = recover(&files, &options);
        TestPool { files, options, pool, tree }
    }

    pub(super) fn put(&self, key: &[u8], timestamp: u64, value: &[u8]) {
        put(&self.pool, self.tree, key, timestamp, value);
    }

    fn remove(&self, key: &[u8], timestamp: u64) {
        remove(&self.pool, self.tree, key, timestamp);
    }

    /// The pages of the tree, which must be sound.
    pub(super) fn pages(&self) -> Vec<PageId> {
        let mut pages = Vec::new();
        let problems = problems(&self.pool, self.tree, &mut |id| pages.push(id));
        assert_eq!(problems, []);
        let mut unique = pages.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), pages.len(), "a page is in the tree twice");
        pages
    }
}

/// The problems of `tree`; shows every page to `visit`.
pub(super) fn problems(pool: &Pool, tree: Tree, visit: &mut dyn FnMut(PageId)) -> Vec<(PageId, String)> {
    let mut problems = Vec::new();
    verify(tree, pool, &mut |met| sort_out(met, visit, &mut problems)).unwrap();
    problems
}

fn problems_of_released(pool: &Pool, tree: Tree, visit: &mut dyn FnMut(PageId)) -> Vec<(PageId, String)> {
    let mut problems = Vec::new();
    verify_released(tree, pool, &mut |met| sort_out(met, visit, &mut problems)).unwrap();
    problems
}

fn sort_out(met: Met, visit: &mut dyn FnMut(PageId), problems: &mut Vec<(PageId, String)>) {
    match met {
        Met::Page(id) => visit(id),
        Met::Problem(id, what) => problems.push((id, what)),
    }
}

pub(super) fn put(pool: &Pool, tree: Tree, key: &[u8], timestamp: u64, value: &[u8]) {
    let timestamp = Timestamp(timestamp);
    let change = Change::Put { key, timestamp, flags: 0, value };
    commit(pool, tree, timestamp, change);
}

pub(super) fn remove(pool: &Pool, tree: Tree, key: &[u8], timestamp: u64) {
    commit(pool, tree, Timestamp(timestamp), Change::Remove { key });
}

fn commit(pool: &Pool, tree: Tree, transaction: Timestamp, change: Change<'_>) {
    try_commit(pool, tree, transaction, change).unwrap();
}

fn try_commit(pool: &Pool, tree: Tree, transaction: Timestamp, change: Change<'_>) -> Result<(), Error> {
    let mut reservation = pool.reserve_log(log_bytes(&change, 4)).unwrap();
    let mut write = Write {
        transaction,
        undo: b"undo",
        commit: true,
        reservation: Some(&mut reservation),
        ..Write::default()
    };
    tree.apply(pool, &mut write, change).map(drop)
}

type Model = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;
type Row = (Vec<u8>, (u64, Vec<u8>));

/// All rows, by a scan along the fences.
pub(super) fn rows(pool: &Pool, tree: Tree, forward: bool) -> Vec<Row> {
    let mut all = Vec::new();
    let mut leaf = LeafRows::new();
    tree.read_leaf(pool, if forward { Seek::First } else { Seek::Last }, &mut leaf).unwrap();
    loop {
        let row = |at| (leaf.key(at).to_vec(), (leaf.timestamp(at).0, leaf.value(at).to_vec()));
        if forward {
            all.extend((0..leaf.len()).map(row));
            let Some(upper) = leaf.upper.clone() else { return all };
            tree.read_leaf(pool, Seek::At(&upper), &mut leaf).unwrap();
            assert_eq!(leaf.lower, upper);
        } else {
            all.extend((0..leaf.len()).rev().map(row));
            if leaf.lower.is_empty() {
                all.reverse();
                return all;
            }
            let lower = std::mem::take(&mut leaf.lower);
            tree.read_leaf(pool, Seek::Before(&lower), &mut leaf).unwrap();
            assert_eq!(leaf.upper, Some(lower));
        }
    }
}

fn assert_holds(test: &TestPool, model: &Model) {
    test.pages();
    let expected: Vec<_> = model.clone().into_iter().collect();
    for forward in [true, false] {
        let found = rows(&test.pool, test.tree, forward);
        assert!(found == expected, "{} rows, {} expected, forward: {forward}", found.len(), expected.len());
    }
    let mut value = Vec::new();
    for (key, (timestamp, expected)) in model {
        let found = test.tree.get(&test.pool, key).unwrap();
        let inline = Stored::Inline(expected.clone());
        assert_eq!(found, Some(Found { timestamp: Timestamp(*timestamp), value: inline }));
        let into = test.tree.get_into(&test.pool, key, &mut value).unwrap();
        assert_eq!((into, &value), (Some((Timestamp(*timestamp), 0)), expected));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, u32),
    Remove(Vec<u8>),
    /// Removes this many records, from this part of the range on.
    RemoveSome(u16, u8),
    RoundState,
    Reopen,
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0..2000u64).prop_map(|number| number.to_be_bytes().to_vec()),
        2 => (0..400u32).prop_map(|number| format!("user/{:04}/{number}", number / 20).into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..MAX_KEY_BYTES + 1),
        // Long keys that differ only at their ends, and so have long separators.
        2 => (0..3u8, 900..MAX_KEY_BYTES, any::<[u8; 2]>()).prop_map(|(fill, length, end)| {
            let mut key = vec![fill; length - 2];
            key.extend(end);
            key
        }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![6 => 0..40u32, 3 => 0..1500u32, 1 => any::<u32>()];
    let step = prop_oneof![
        60 => (keys(), length).prop_map(|(key, length)| Step::Put(key, length)),
        20 => keys().prop_map(Step::Remove),
        4 => (any::<u16>(), any::<u8>()).prop_map(|(from, count)| Step::RemoveSome(from, count)),
        2 => Just(Step::RoundState),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..1500)
}

fn run(page_bytes: usize, frames: u32, steps: Vec<Step>) {
    let mut test = test_pool(page_bytes, frames, Mode::Inline);
    let mut model = Model::new();
    for (number, step) in steps.into_iter().enumerate() {
        let now = number as u64 + 1;
        match step {
            Step::Put(key, length) => {
                let max = leaf::max_inline_value(page_bytes, key.len());
                let length = if length > 10_000 { max } else { (length as usize).min(max) };
                let value = vec![number as u8; length];
                test.put(&key, now, &value);
                model.insert(key, (now, value));
            }
            Step::Remove(key) => {
                test.remove(&key, now);
                model.remove(&key);
                assert_eq!(test.tree.get(&test.pool, &key).unwrap(), None);
            }
            Step::RemoveSome(from, count) => {
                let from = usize::from(from) % (model.len() + 1);
                let some: Vec<_> = model.keys().skip(from).take(count.into()).cloned().collect();
                for key in some {
                    test.remove(&key, now);
                    model.remove(&key);
                }
            }
            Step::RoundState => test.pool.round(false).unwrap(),
            Step::Reopen => test = test.reopen(),
        }
    }
    assert_holds(&test, &model);
    test = test.reopen();
    assert_holds(&test, &model);
    while !release_step(test.tree, &test.pool, 5).unwrap() {
        let problems = problems_of_released(&test.pool, test.tree, &mut |_| {});
        assert_eq!(problems, []);
    }
    assert_eq!(test.pages(), [test.tree.root]);
    test = test.reopen();
    assert_holds(&test, &Model::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn a_small_pool_holds_what_a_map_holds(steps in steps()) {
        run(4096, 24, steps);
    }

    #[test]
    fn larger_pages_hold_what_a_map_holds(steps in steps()) {
        run(16 << 10, 32, steps);
    }
}

/// Loads `count` records, reopens, and removes them.
fn load_and_empty(count: u64, key: impl Fn(u64) -> u64, removal: impl Fn(u64) -> u64) {
    let mut test = test_pool(4096, 32, Mode::Inline);
    let mut model = Model::new();
    for number in 0..count {
        let key = key(number).to_be_bytes();
        test.put(&key, number + 1, &[number as u8; 100]);
        model.insert(key.to_vec(), (number + 1, vec![number as u8; 100]));
    }
    assert_holds(&test, &model);
    test = test.reopen();
    assert_holds(&test, &model);
    let full = test.pages().len();
    assert!(full > 64, "more pages than frames");
    for number in 0..count {
        let key = key(removal(number)).to_be_bytes();
        test.remove(&key, count + number);
        model.remove(&key[..]);
    }
    assert_holds(&test, &model);
    let left = test.pages().len();
    assert!(left <= full / 3 + 4, "{left} pages of {full} are left of an empty tree");
    test = test.reopen();
    assert_holds(&test, &model);
}

#[test]
fn ascending_loads() {
    load_and_empty(4000, |number| number, |number| number);
}

#[test]
fn descending_loads() {
    load_and_empty(4000, |number| 4000 - number, |number| 3999 - number);
}

#[test]
fn scattered_loads() {
    let scatter = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    load_and_empty(4000, scatter, |number| (number * 1237) % 4000);
}

#[test]
fn freed_pages_are_used_again() {
    let test = test_pool(4096, 32, Mode::Inline);
    let mut most = PageId::NONE;
    for round in 0..6u64 {
        for number in 0..1500u64 {
            test.put(&number.to_be_bytes(), round + 1, &[5; 200]);
        }
        let highest = test.pages().into_iter().max().unwrap();
        if round == 0 {
            most = highest;
        }
        assert!(highest.0 < most.0 * 2, "page {highest} in round {round}, {most} in the first");
        for number in 0..1500u64 {
            test.remove(&number.to_be_bytes(), round + 1);
        }
        test.pool.wal().flush_to(test.pool.wal().tail()).unwrap();
        test.pool.round(false).unwrap();
    }
}

/// Stores a long value like the layers above; the key "garbage" names the part written so far.
fn put_long(test: &TestPool, key: &[u8], value: &[u8]) -> Reference {
    put_long_on(test, test.pool.class(), key, value)
}

/// Stores a long value on pages of up to class `most`.
pub(super) fn put_long_on(test: &TestPool, most: SizeClass, key: &[u8], value: &[u8]) -> Reference {
    let sizes = ValuePages { own: test.pool.class(), most };
    let (mut from, mut head) = (value.len(), PageId::NONE);
    while from > 0 {
        let part = chain::store_part(&test.pool, None, value, from, head, (sizes, false)).unwrap();
        let named = part.head.0.to_le_bytes();
        let change = Change::Put { key: b"garbage", timestamp: Timestamp(1), flags: 0, value: &named };
        let mut write = Write { create: part.create, ..Write::default() };
        test.tree.apply(&test.pool, &mut write, change).unwrap();
        (from, head) = (part.from, part.head);
    }
    let reference = Reference { total_length: value.len() as u64, head };
    let change = Change::Put {
        key,
        timestamp: Timestamp(2),
        flags: super::node::OVERFLOW,
        value: &reference.encode(),
    };
    test.tree.apply(&test.pool, &mut Write::default(), change).unwrap();
    test.remove(b"garbage", 3);
    reference
}

#[test]
fn a_page_that_is_read_once_is_not_marked() {
    let test = test_pool(4096, 40, Mode::Inline);
    let reference = put_long(&test, b"long", &[3; 70_000]);
    let pages = test.pages();
    let test = test.reopen();
    test.pool.wal().flush_to(test.pool.wal().tail()).unwrap();
    test.pool.checkpoint_now(true).unwrap();
    // Enough records to evict all of them.
    for number in 0..2000u32 {
        test.put(&number.to_be_bytes(), 5, &[1; 300]);
    }
    let data = pages.into_iter().rfind(|&id| test.pool.is_marked(id).is_none()).expect("a page was evicted");
    assert_ne!(data, reference.head);
    test.pool.read(data).unwrap().validate().unwrap();
    assert_eq!(test.pool.is_marked(data), Some(false));
    test.pool.read(data).unwrap().validate().unwrap();
    assert_eq!(test.pool.is_marked(data), Some(true));
}

#[test]
fn long_values_come_back_and_leave_nothing() {
    let cases = [
        (4064, 6),
        (4065, 2),
        (8128, 6),
        (60_960, 17),
        (60_961, 2),
        (200_000, 2),
        (300_000, 6),
        (300_000, 17),
    ];
    for (length, pages_max) in cases {
        let mut test = test_pool(4096, 40, Mode::Inline);
        let value: Vec<u8> = (0..length as u32).map(|byte| (byte * 7 / 3) as u8).collect();
        let reference = put_long(&test, b"long", &value);
        let found = test.tree.get(&test.pool, b"long").unwrap().unwrap();
        assert_eq!(found.value, Stored::Overflow(reference));
        assert_eq!(chain::read_value(&test.pool, reference).unwrap(), value, "{length}");
        test = test.reopen();
        assert_eq!(chain::read_value(&test.pool, reference).unwrap(), value, "{length}");
        let pages = test.pages();
        let mut walked = vec![test.tree.root];
        chain::chain_pages(&test.pool, reference.head, &mut |id| walked.push(id)).unwrap();
        assert_eq!(walked, pages);

        let there = |pool: &Maintenance| -> Vec<PageId> {
            pool.wal().flush_to(pool.wal().tail()).unwrap();
            pool.round(false).unwrap();
            pages.iter().copied().filter(|&id| pool.exists(id)).collect()
        };
        test.remove(b"long", 4);
        let mut last = loop {
            match chain::free_step(&test.pool, reference.head, pages_max).unwrap() {
                FreeStep::Last(free) => break free,
                FreeStep::Again => test = test.reopen(),
            }
            // The head stands for the rest.
            let before = walked.len();
            walked.truncate(1);
            chain::chain_pages(&test.pool, reference.head, &mut |id| walked.push(id)).unwrap();
            assert_eq!(walked, there(&test.pool), "{length}");
            assert!((1..pages_max).contains(&(before - walked.len())), "{length}");
        };
        assert!(last.len() <= pages_max);
        let write = &mut Write { free: last.clone(), ..Write::default() };
        test.tree.apply(&test.pool, write, Change::Remove { key: b"nothing" }).unwrap();
        last.sort_unstable();
        walked.remove(0);
        walked.sort_unstable();
        assert_eq!(last, walked, "{length}");
        assert_eq!(there(&test.pool), [test.tree.root], "{length}");
    }
}

/// Overwrites bytes of a page, as in a hostile file.
pub(crate) fn overwrite(pool: &Pool, id: PageId, at: usize, bytes: &[u8]) {
    let mut guard = pool.latch(id).unwrap();
    let mut content = Vec::new();
    guard.copy(&mut content);
    content[at..at + bytes.len()].copy_from_slice(bytes);
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    record.change_bytes(id, at as u32, bytes);
    pool.change(&mut record, None, [Edit::Update(&mut guard, &mut content)]).unwrap();
}

/// A hostile file: no content goes to pages that it does not fit.
#[test]
fn a_node_of_another_size_than_its_tree_is_damage() {
    let test = test_pool(4096, 200, Mode::Inline);
    for number in 100..300u64 {
        test.put(&number.to_be_bytes(), 1, &[1; 100]);
    }
    let class = SizeClass::of_bytes(8192).unwrap();
    test.pool.resizer().use_class(class).unwrap();
    let other = new_tree_of(&test.pool, class);
    overwrite(&test.pool, test.tree.root, LEFTMOST, &other.root.0.to_le_bytes());
    let put = |number: u64| {
        let (key, timestamp) = (number.to_be_bytes(), Timestamp(2));
        let change = Change::Put { key: &key, timestamp, flags: 0, value: &[2; 100] };
        try_commit(&test.pool, test.tree, timestamp, change)
    };
    let refused = (0..100).find_map(|number| put(number).err());
    assert!(
        matches!(&refused, Some(Error::Corrupt { what, .. }) if what.contains("another size")),
        "{refused:?}"
    );
    let problems = problems(&test.pool, test.tree, &mut |_| {});
    assert_eq!(problems.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [other.root], "{problems:?}");
}

#[test]
fn a_long_value_without_an_end_is_damage_and_no_endless_walk() {
    const NEXT: usize = 24;
    let test = test_pool(4096, 40, Mode::Inline);
    let honest = put_long(&test, b"long", &[3; 70_000]);
    overwrite(&test.pool, honest.head, NEXT, &honest.head.0.to_le_bytes());
    chain::chain_pages(&test.pool, honest.head, &mut |_| {}).unwrap_err();
    chain::read_value(&test.pool, honest).unwrap_err();
    let freed = (0..20).try_for_each(|_| chain::free_step(&test.pool, honest.head, 6).map(|_| ()));
    freed.expect_err("no record frees the page that it changes");

    let endless = Reference { total_length: 1 << 60, ..honest };
    chain::read_value(&test.pool, endless).unwrap_err();
    let change = Change::Put {
        key: b"long",
        timestamp: Timestamp(4),
        flags: super::node::OVERFLOW,
        value: &endless.encode(),
    };
    test.tree.apply(&test.pool, &mut Write::default(), change).unwrap();
    let mut visited = 0u64;
    assert_eq!(problems(&test.pool, test.tree, &mut |_| visited += 1).len(), 1);
    assert!(visited < 10, "{visited} pages of a value that cannot be");
}

#[test]
fn a_tree_with_long_values_is_released() {
    let mut test = test_pool(4096, 40, Mode::Inline);
    for number in 0..200u64 {
        test.put(&number.to_be_bytes(), 1, &[1; 500]);
        if number % 20 == 0 {
            put_long(&test, &(number << 8).to_be_bytes(), &vec![3; 70_000]);
        }
    }
    let pages = test.pages();
    let mut left = pages.len();
    while !release_step(test.tree, &test.pool, 7).unwrap() {
        let mut now = 0;
        let problems = problems_of_released(&test.pool, test.tree, &mut |_| now += 1);
        assert_eq!(problems, []);
        assert!(now <= left);
        left = now;
        test = test.reopen();
    }
    assert_eq!(test.pages(), [test.tree.root]);
    test.pool.wal().flush_to(test.pool.wal().tail()).unwrap();
    test.pool.round(false).unwrap();
    for id in pages.into_iter().filter(|&id| id != test.tree.root) {
        assert!(!test.pool.exists(id), "page {id} is left");
    }
}

#[test]
fn a_leaf_read_knows_when_it_is_stale() {
    let test = test_pool(4096, 32, Mode::Inline);
    test.put(b"a", 1, b"1");
    let mut leaf = LeafRows::new();
    test.tree.read_leaf(&test.pool, Seek::At(b"a"), &mut leaf).unwrap();
    assert!(test.tree.leaf_version_is(&test.pool, leaf.leaf, leaf.version));
    assert_eq!((leaf.lower_bound(b"a"), leaf.lower_bound(b"b"), leaf.flags(0)), (0, 1, 0));
    test.put(b"b", 2, b"2");
    assert!(!test.tree.leaf_version_is(&test.pool, leaf.leaf, leaf.version));
}

#[test]
fn damage_is_reported_and_the_rest_is_walked() {
    let test = test_pool(4096, 64, Mode::Inline);
    for number in 0..200u64 {
        test.put(&number.to_be_bytes(), 1, &[1; 100]);
    }
    let pages = test.pages();
    // The first leaf's range is cut: it is sound, but contradicts its parent.
    let mut leaf = LeafRows::new();
    test.tree.read_leaf(&test.pool, Seek::First, &mut leaf).unwrap();
    let mut guard = test.pool.latch(leaf.leaf).unwrap();
    let mut content = Vec::new();
    guard.copy(&mut content);
    super::node::split::truncate(&mut content, &5u64.to_be_bytes()).unwrap();
    let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
    super::change::describe_image(&mut record, leaf.leaf, 0, &content);
    test.pool.change(&mut record, None, [Edit::Update(&mut guard, &mut content)]).unwrap();
    drop(guard);
    let mut seen = Vec::new();
    let problems = problems(&test.pool, test.tree, &mut |id| seen.push(id));
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].0, leaf.leaf);
    assert_eq!(seen, pages);
}
