//! Point reads of many keys, whose pages are read together.
//!
//! A round looks for every key that has no answer yet, in what is in memory only. A descent that comes to a page that is
//! not there ends, and the pages that were missing are brought in by one batch; then the next round begins. So a tree
//! of which nothing is in memory takes a batch for each level, one whose inner nodes are, a single one.
//!
//! Others may evict what was brought in before it is looked at, or hold a latch at every round. After a few rounds that
//! answered nothing, one key is read as a single read does it, which waits, and gets through.

use super::get::{Found, recall, record, remember};
use super::node::Node;
use super::tree::{Seek, Tree, checked_level, dangling};
use crate::buffer::migration::Access;
use crate::buffer::operation;
use crate::buffer::{BATCH_PAGES_MAX, Pool, Purpose, ReadGuard, Stop};
use crate::error::{Error, Result};
use crate::ids::PageId;

/// Rounds without an answer after which a key is read by itself: more than trees have levels.
const IDLE_ROUNDS_MAX: u32 = 16;

/// What a look in memory came to.
pub(crate) enum Look {
    /// The answer.
    Found(Option<Found>),
    /// It needs this page, which is in the store only, or latched.
    Away(PageId),
    /// Something moved.
    Moved,
}

/// Looks for `key` in what is in memory, cached records included. Does no I/O and waits for nothing.
pub(crate) fn get_resident(pool: &Pool, tree: Tree, key: &[u8]) -> Result<Look> {
    look(pool, tree, key, false)
}

/// As [`get_resident`]; if the key was `missed` before, what is found is taken into the record cache.
fn look(pool: &Pool, tree: Tree, key: &[u8], missed: bool) -> Result<Look> {
    let looked = descend(pool, tree, key).and_then(|end| match end {
        End::Leaf(leaf) => {
            let found = record(&leaf, key)?;
            if missed {
                remember(pool, &leaf, key, found.as_ref());
            }
            Ok(Look::Found(found))
        }
        End::Recalled(found) => Ok(Look::Found(found)),
        End::Away(id) => Ok(Look::Away(id)),
    });
    match looked {
        Ok(look) => Ok(look),
        Err(Stop::Restart) => Ok(Look::Moved),
        Err(Stop::Missing(id)) => Err(dangling(id)),
        Err(Stop::Fail(error)) => Err(error),
    }
}

/// Where a descent in memory ends.
enum End<'p> {
    /// At the leaf of the key.
    Leaf(ReadGuard<'p>),
    /// Above it, with what the record cache knows.
    Recalled(Option<Found>),
    /// At a page that is not there.
    Away(PageId),
}

/// As `Tree::descend`, in memory.
fn descend<'p>(pool: &'p Pool, tree: Tree, key: &[u8]) -> Result<End<'p>, Stop> {
    let Some(mut guard) = pool.read_resident(tree.root)? else { return Ok(End::Away(tree.root)) };
    let mut above = None;
    loop {
        let node = Node::new(guard.view());
        let here = checked_level(&node, &guard, above)?;
        if here == 0 {
            return Ok(End::Leaf(guard));
        }
        let id = node.child_at(Seek::At(key).child_index(&node));
        guard.validate()?;
        let child = match pool.read_resident(id) {
            Err(Stop::Missing(_)) => {
                guard.validate()?;
                return Err(dangling(id).into());
            }
            child => child?,
        };
        // The child was the parent's at the version it was looked at, or found to be away.
        guard.validate()?;
        let Some(child) = child else {
            let recalled = if here == 1 { recall(pool, &guard, id, key)? } else { None };
            return Ok(recalled.map_or(End::Away(id), End::Recalled));
        };
        above = Some(here);
        guard = child;
    }
}

/// Calls `answer` once for each of `wanted`, in any order, with its index: the record of its key in its tree, or what
/// prevented finding it. The caller holds no latch, and `answer` is called with none held.
pub(crate) fn get_many(
    pool: &Pool,
    wanted: &[(Tree, &[u8])],
    answer: &mut dyn FnMut(usize, Result<Option<Found>>),
) {
    operation::begin(Access::Read);
    let each = pool.batch_pages(pool.class()).clamp(1, BATCH_PAGES_MAX);
    let mut open: Vec<Open> = Vec::with_capacity(each);
    for from in (0..wanted.len()).step_by(each) {
        open.extend((from..wanted.len().min(from + each)).map(|index| Open { index, missed: false }));
        let mut idle_rounds = 0;
        while let Some(&Open { index: first, .. }) = open.first() {
            let before = open.len();
            if idle_rounds == IDLE_ROUNDS_MAX {
                let (tree, key) = wanted[first];
                answer(first, tree.get(pool, key));
                open.remove(0);
            } else {
                round(pool, wanted, &mut open, answer);
            }
            idle_rounds = if open.len() < before { 0 } else { idle_rounds + 1 };
        }
    }
}

/// A key that has no answer yet.
#[derive(Clone, Copy)]
struct Open {
    index: usize,
    /// Whether a page was read for it.
    missed: bool,
}

/// Answers those in `open` that memory can answer, takes them out of it, and has read what the others lack.
fn round(
    pool: &Pool,
    wanted: &[(Tree, &[u8])],
    open: &mut Vec<Open>,
    answer: &mut dyn FnMut(usize, Result<Option<Found>>),
) {
    let mut away: Vec<(PageId, usize)> = Vec::new();
    open.retain_mut(|Open { index, missed }| {
        let (index, (tree, key)) = (*index, wanted[*index]);
        match look(pool, tree, key, *missed) {
            Ok(Look::Found(found)) => answer(index, Ok(found)),
            Err(error) => answer(index, Err(error)),
            Ok(Look::Moved) => return true,
            Ok(Look::Away(id)) => {
                away.push((id, index));
                *missed = true;
                return true;
            }
        }
        false
    });
    // Of several keys that need one page the first is told what is wrong with it. The others ask again.
    away.sort_unstable();
    away.dedup_by_key(|(id, _)| *id);
    let ids: Vec<PageId> = away.iter().map(|(id, _)| *id).collect();
    let mut failed: Vec<(usize, Error)> = Vec::new();
    let outcome = pool.fault_many(&ids, Purpose::Wanted, &mut |at, error| failed.push((away[at].1, error)));
    if let (Err(error), Some(&(_, index))) = (outcome, away.first()) {
        failed.push((index, error));
    }
    for (index, error) in failed {
        open.retain(|other| other.index != index);
        answer(index, Err(error));
    }
}
