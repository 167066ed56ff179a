//! Point reads of many keys, whose pages are read together.
//!
//! A round looks for every key that has no answer yet, in what is in memory only. A descent that comes to a page that is
//! not there ends, and the pages that were missing are brought in by one batch; then the next round begins. So a tree
//! of which nothing is in memory takes a batch for each level, one whose inner nodes are, a single one.
//!
//! Others may evict what was brought in before it is looked at, or hold a latch at every round. After a few rounds that
//! answered nothing, one key is read as a single read does it, which waits, and gets through.

use super::get::{Found, record};
use super::node::Node;
use super::tree::{Seek, Tree, checked_level, dangling};
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

/// Looks for `key` in what is in memory. Does no I/O and waits for nothing.
pub(crate) fn get_resident(pool: &Pool, tree: Tree, key: &[u8]) -> Result<Look> {
    let looked = descend(pool, tree, key).and_then(|leaf| match leaf {
        Ok(leaf) => record(&leaf, key).map(Look::Found),
        Err(away) => Ok(Look::Away(away)),
    });
    match looked {
        Ok(look) => Ok(look),
        Err(Stop::Restart) => Ok(Look::Moved),
        Err(Stop::Missing(id)) => Err(dangling(id)),
        Err(Stop::Fail(error)) => Err(error),
    }
}

/// As `Tree::descend`, in memory: the leaf of `key`, or the page that is not there.
fn descend<'p>(pool: &'p Pool, tree: Tree, key: &[u8]) -> Result<Result<ReadGuard<'p>, PageId>, Stop> {
    let Some(mut guard) = pool.read_resident(tree.root)? else { return Ok(Err(tree.root)) };
    let mut above = None;
    loop {
        let node = Node::new(guard.view());
        let here = checked_level(&node, &guard, above)?;
        if here == 0 {
            return Ok(Ok(guard));
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
        let Some(child) = child else { return Ok(Err(id)) };
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
    let each = pool.batch_pages().clamp(1, BATCH_PAGES_MAX);
    let mut open: Vec<usize> = Vec::with_capacity(each);
    for from in (0..wanted.len()).step_by(each) {
        open.extend(from..wanted.len().min(from + each));
        let mut idle_rounds = 0;
        while let Some(&first) = open.first() {
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

/// Answers those in `open` that memory can answer, takes them out of it, and has read what the others lack.
fn round(
    pool: &Pool,
    wanted: &[(Tree, &[u8])],
    open: &mut Vec<usize>,
    answer: &mut dyn FnMut(usize, Result<Option<Found>>),
) {
    let mut away: Vec<(PageId, usize)> = Vec::new();
    open.retain(|&index| {
        let (tree, key) = wanted[index];
        match get_resident(pool, tree, key) {
            Ok(Look::Found(found)) => answer(index, Ok(found)),
            Err(error) => answer(index, Err(error)),
            Ok(Look::Moved) => return true,
            Ok(Look::Away(id)) => {
                away.push((id, index));
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
        open.retain(|&other| other != index);
        answer(index, Err(error));
    }
}
