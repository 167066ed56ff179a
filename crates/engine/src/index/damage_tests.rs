//! Trees and long values with damaged references between sound pages: a missing child, a page that
//! is its own child, a page with two parents. Without other threads nothing moves, so every call
//! must report damage at once.

use super::chain::{self, FreeStep};
use super::change::describe_image;
use super::node::overflow::{Reference, ValuePages};
use super::node::{INNER, LEFTMOST, Node, OVERFLOW};
use super::node::{edit, inner};
use super::pool_tests::{TestPool, new_tree, overwrite, put, test_pool};
use super::smo::make_room;
use super::tree::copy;
use super::{Change, Seek, Tree, Write, count_pages, release_step, tidy};
use crate::error::Error;
use crate::ids::{Lsn, PageId, Timestamp};
use crate::planted::{Bug, plant};
use crate::pool::{Edit, Mode, Pool};
use crate::wal::{ALLOCATES, RecordBuilder};

/// Offset of the first data page in an index page.
const FIRST_DATA_PAGE: usize = 40;

fn key(number: u64) -> Vec<u8> {
    [&number.to_be_bytes()[..], &[b'k'; 900]].concat()
}

/// Fills `tree` until the root's level is at least `level`.
fn fill(pool: &Pool, tree: Tree, level: u8) {
    for number in 0.. {
        put(pool, tree, &key(number), 1, &[7; 400]);
        if number % 16 == 0 && page(pool, tree.root).1 >= level {
            return;
        }
    }
}

fn page(pool: &Pool, id: PageId) -> (Vec<PageId>, u8) {
    let Ok(content) = copy(&pool.read(id).ok().unwrap()) else { panic!("nobody else is there") };
    let node = Node::new(&content[..]);
    let children = (node.kind() == INNER).then(|| 0..=node.count());
    (children.into_iter().flatten().map(|index| node.child_at(index)).collect(), node.level())
}

fn refer(pool: &Pool, parent: PageId, index: usize, child: PageId) {
    let Ok(content) = copy(&pool.read(parent).ok().unwrap()) else { panic!("nobody else is there") };
    let at = index.checked_sub(1).map_or(LEFTMOST, |slot| Node::new(&content[..]).slot(slot).at());
    overwrite(pool, parent, at, &child.0.to_le_bytes());
}

/// Asserts that the error names the damaged page.
fn assert_damaged<T: std::fmt::Debug>(result: Result<T, Error>, id: PageId, words: &str) {
    match result {
        Err(Error::Corrupt { page, what, .. }) if page == Some(id.0) && what.contains(words) => {}
        other => panic!("{other:?} of page {id}"),
    }
}

/// Releases the tree step by step, until it is empty or found damaged.
fn release(pool: &Pool, tree: Tree) -> Result<(), Error> {
    while !release_step(tree, pool, 16)? {}
    Ok(())
}

fn pool() -> TestPool {
    test_pool(4096, 400, Mode::Inline)
}

const NOWHERE: PageId = PageId(500_000);

#[test]
fn a_child_that_does_not_exist_is_damage() {
    let TestPool { pool, tree, .. } = &pool();
    fill(pool, *tree, 2);
    let last = page(pool, tree.root).0.len() - 1;
    refer(pool, tree.root, 0, NOWHERE);
    assert_damaged(count_pages(*tree, pool), NOWHERE, "does not exist");
    assert_damaged(tree.get(pool, &key(0)).map(drop), NOWHERE, "does not exist");
    refer(pool, tree.root, last, NOWHERE);
    assert_damaged(release(pool, *tree), NOWHERE, "does not exist");
}

#[test]
fn a_page_that_is_its_own_child_is_damage() {
    let TestPool { pool, tree, .. } = &pool();
    fill(pool, *tree, 2);
    let children = page(pool, tree.root).0;
    let (last, below) = (children.len() - 1, children[children.len() - 1]);
    for (parent, index) in [(below, page(pool, below).0.len() - 1), (tree.root, last)] {
        refer(pool, parent, index, parent);
        assert_damaged(release(pool, *tree), parent, "its parent says");
        assert_damaged(tree.get(pool, &key(u64::MAX)).map(drop), parent, "its parent says");
    }
    assert_damaged(count_pages(*tree, pool), tree.root, "its parent says");
}

#[test]
fn a_page_that_one_node_names_twice_is_damage() {
    let TestPool { pool, tree, .. } = &pool();
    fill(pool, *tree, 1);
    let children = page(pool, tree.root).0;
    let (last, other) = (children.len() - 1, children[children.len() - 2]);
    refer(pool, tree.root, last, other);
    assert_damaged(release(pool, *tree), tree.root, "twice");
    // A page does not merge with itself.
    let before = page(pool, tree.root);
    tidy(*tree, pool, &key(u64::MAX));
    assert_eq!(page(pool, tree.root), before);
}

/// A node with children of two levels: freeing one must not free the children of the other.
#[test]
fn a_neighbour_of_another_level_is_not_freed_as_a_leaf() {
    let TestPool { pool, tree, .. } = &pool();
    fill(pool, *tree, 2);
    let parent = *page(pool, tree.root).0.last().unwrap();
    let (children, level) = page(pool, parent);
    assert_eq!(level, 1);
    let first = page(pool, tree.root).0[0];
    refer(pool, parent, children.len() - 2, first);
    assert_damaged(release(pool, *tree), first, "its parent says");
}

/// Two trees that share a leaf; one is freed by a record that is not durable yet.
fn shared_leaf(test: &TestPool) -> (Tree, PageId) {
    let TestPool { pool, tree, .. } = test;
    let other = new_tree(pool);
    fill(pool, *tree, 1);
    fill(pool, other, 1);
    let shared = *page(pool, tree.root).0.last().unwrap();
    refer(pool, other.root, page(pool, other.root).0.len() - 1, shared);
    release(pool, *tree).unwrap();
    (other, shared)
}

/// A second free must fail; it once made the background work panic.
#[test]
fn a_page_of_two_trees_is_freed_once() {
    let test = pool();
    let (other, shared) = shared_leaf(&test);
    assert_damaged(release(&test.pool, other), shared, "does not exist");
    test.pool.wal().flush_to(test.pool.wal().tail()).unwrap();
    test.pool.round(false).unwrap();
    assert_damaged(release(&test.pool, other), shared, "does not exist");
    assert!(!test.pool.exists(shared));
    // Another page reuses its id, and can be changed and freed.
    let new = new_tree(&test.pool);
    fill(&test.pool, new, 2);
    assert!(test.pool.exists(shared), "the id was given out again");
    release(&test.pool, new).unwrap();
}

#[test]
fn catches_freed_unmarked() {
    let is_freed_twice = |bug| {
        plant(bug);
        let test = pool();
        let (other, _) = shared_leaf(&test);
        let released = release(&test.pool, other).is_ok();
        plant(None);
        released
    };
    assert!(is_freed_twice(Some(Bug::FreedUnmarked)), "nothing else notices");
    assert!(!is_freed_twice(None));
}

#[test]
fn a_page_that_another_tree_has_freed_is_not_changed() {
    let test = pool();
    let (other, shared) = shared_leaf(&test);
    let change = Change::Put { key: &key(u64::MAX), timestamp: Timestamp(2), flags: 0, value: b"new" };
    assert_damaged(other.apply(&test.pool, &mut Write::default(), change), shared, "does not exist");
}

/// A value of several pages under a key of `tree`.
fn long_value(test: &TestPool) -> Reference {
    let (pool, class) = (&test.pool, test.pool.class());
    let (value, sizes) = (vec![3; 30_000], ValuePages { own: class, most: class });
    let (mut from, mut next) = (value.len(), PageId::NONE);
    while from > 0 {
        let part = chain::store_part(pool, None, &value, from, next, (sizes, false)).unwrap();
        let mut write = Write { create: part.create, ..Write::default() };
        test.tree.apply(pool, &mut write, Change::Remove { key: b"none" }).unwrap();
        (from, next) = (part.from, part.head);
    }
    Reference { total_length: value.len() as u64, head: next }
}

#[test]
fn pages_of_a_tree_are_not_freed_with_a_value_that_lists_them() {
    let test = pool();
    let TestPool { pool, tree, .. } = &test;
    fill(pool, *tree, 1);
    let leaf = page(pool, tree.root).0[0];
    for pages_max in [4, 400] {
        let value = long_value(&test);
        // The last listed page goes first; all go in one record if it may be that long.
        overwrite(pool, value.head, FIRST_DATA_PAGE + 7 * 8, &leaf.0.to_le_bytes());
        assert_damaged(chain::free_step(pool, value.head, pages_max), leaf, "another kind");
    }
    test.pages();
}

/// The last leaf has a long value, but its key leads elsewhere: no step would make progress.
#[test]
fn a_long_value_that_is_not_found_by_its_key_ends_a_release() {
    let test = pool();
    let TestPool { pool, tree, .. } = &test;
    fill(pool, *tree, 1);
    let reference = long_value(&test).encode();
    let change = Change::Put { key: &[0; 4], timestamp: Timestamp(2), flags: OVERFLOW, value: &reference };
    tree.apply(pool, &mut Write::default(), change).unwrap();
    let children = page(pool, tree.root).0;
    refer(pool, tree.root, children.len() - 1, children[0]);
    refer(pool, tree.root, 0, children[1]);
    assert!(matches!(release_step(*tree, pool, 16), Err(Error::Corrupt { .. })));
}

/// A record frees a value and its leaf, but also changes the leaf.
#[test]
fn a_leaf_is_not_freed_by_the_record_that_changes_it() {
    let test = pool();
    let TestPool { pool, tree, .. } = &test;
    let mut write = Write { free: vec![tree.root], ..Write::default() };
    assert_damaged(tree.apply(pool, &mut write, Change::Remove { key: b"none" }), tree.root, "stays");
}

/// Each of a few nodes has the next one as all its children: 50^8 paths.
#[test]
fn a_tree_whose_nodes_share_their_children_is_counted_no_longer_than_there_are_pages() {
    let TestPool { pool, tree, .. } = &pool();
    let (mut id, class) = (tree.root, pool.class());
    for level in 1..10 {
        let new = pool.new_page(class, None).unwrap();
        let mut content = new.zeroed();
        edit::init(&mut content, INNER, level, new.id(), &[], None, id);
        for number in 0..50u64 {
            assert!(inner::insert(&mut content, &number.to_be_bytes(), id).unwrap());
        }
        id = new.id();
        let mut record = RecordBuilder::pages(Timestamp::NONE, Lsn::NONE);
        describe_image(&mut record, id, ALLOCATES, &content);
        pool.change(&mut record, None, [Edit::Create(new, &mut content)]).unwrap();
    }
    assert_damaged(count_pages(Tree { root: id }, pool), id, "more nodes");
}

/// Concurrent merges may remove the level that a separator was meant for.
#[test]
fn there_is_no_node_above_the_root() {
    let TestPool { pool, tree, .. } = &pool();
    let Ok(above) = tree.descend(pool, Seek::First, 1) else { panic!("nothing moves") };
    assert!(above.is_none());
    make_room(*tree, pool, &mut None, &mut None, 3, b"key", 0).unwrap();
}

#[test]
fn a_value_that_is_listed_twice_is_freed_once() {
    let test = pool();
    let TestPool { pool, .. } = &test;
    let (value, other) = (long_value(&test), long_value(&test));
    let Ok(content) = copy(&pool.read(value.head).ok().unwrap()) else { panic!("nobody else is there") };
    overwrite(pool, other.head, FIRST_DATA_PAGE, &content[FIRST_DATA_PAGE..FIRST_DATA_PAGE + 8]);
    let free = |reference: Reference| -> Result<(), Error> {
        let FreeStep::Last(free) = chain::free_step(pool, reference.head, 400)? else {
            panic!("it is short")
        };
        let mut write = Write { free, ..Write::default() };
        test.tree.apply(pool, &mut write, Change::Remove { key: b"none" }).map(drop)
    };
    free(value).unwrap();
    assert!(matches!(free(other), Err(Error::Corrupt { .. })));
    pool.wal().flush_to(pool.wal().tail()).unwrap();
    pool.round(false).unwrap();
}
