//! Point reads of many keys, with batched page reads.
//!
//! A round looks up every open key in memory only. A descent that reaches a missing page ends
//! there, and one batch reads all missing pages. Then the next round begins. A cold tree takes one
//! batch per level; a tree whose inner nodes are in memory takes one.
//!
//! Other threads may evict those pages before the next round, or hold a latch in every round. After
//! a few rounds without an answer, one key falls back to a single read, which waits.

use super::get::{Aside, Away, Found, insert, lookup, partial, record, record_of_partial};
use super::node::Node;
use super::tree::{Detour, Seek, Tree, checked_level, dangling, root_in_middle};
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::pool::migration::Access;
use crate::pool::operation;
use crate::pool::{BATCH_PAGES_MAX, Pool, ReadGuard, ReadReason, Retry, Unread, batch_pages, fault_many};

/// Rounds without an answer before a single read; more than trees have levels.
const IDLE_ROUNDS_MAX: u32 = 16;

pub(crate) enum Look {
    Found(Option<Found>),
    /// The lookup needs this page, which is only in the store, or latched.
    Away(PageId),
    /// A page changed during the lookup.
    Moved,
}

/// Looks up `key` in memory, record cache included. Does no I/O and never waits.
pub(crate) fn get_resident(pool: &Pool, tree: Tree, key: &[u8]) -> Result<Look> {
    look(pool, tree, key, false)
}

/// [`get_resident`], which also feeds the record cache if the key `missed` before.
fn look(pool: &Pool, tree: Tree, key: &[u8], missed: bool) -> Result<Look> {
    let mut aside = Aside::new(pool, key, missed);
    let looked = descend(pool, tree, key, &mut aside).and_then(|end| match end {
        End::Leaf(leaf) => {
            let found = record(&leaf, key)?;
            if aside.missed {
                insert(pool, &leaf, key, found.as_ref());
            }
            Ok(Look::Found(found))
        }
        End::Partial(leaf) => record_of_partial(pool, &leaf.open(), key, aside.missed).map(Look::Found),
        End::Recorded(found) => Ok(Look::Found(found)),
        End::Away(id) => Ok(Look::Away(id)),
    });
    match looked {
        Ok(look) => Ok(look),
        Err(Retry::Restart) => Ok(Look::Moved),
        Err(Retry::Missing(id)) => Err(dangling(id)),
        Err(Retry::Fail(error)) => Err(error),
    }
}

enum End<'p> {
    Leaf(ReadGuard<'p>),
    Partial(Unread<'p>),
    /// Above the leaf, with the record cache's answer.
    Recorded(Option<Found>),
    Away(PageId),
}

fn descend<'p>(pool: &'p Pool, tree: Tree, key: &[u8], aside: &mut Aside<'p, '_>) -> Result<End<'p>, Retry> {
    let root = pool.read_resident(tree.root, |root| root_in_middle(pool, root, false, (Seek::At(key), 0)))?;
    let Some(mut guard) = root else { return Ok(End::Away(tree.root)) };
    let mut above = None;
    loop {
        let node = Node::new(guard.view());
        let here = checked_level(&node, &guard, above)?;
        if here == 0 {
            return Ok(End::Leaf(guard));
        }
        let id = node.child_at(Seek::At(key).child_index(&node));
        guard.validate()?;
        let child = pool.read_resident(id, |child| {
            guard.validate()?;
            aside.in_middle(child, here, false)
        });
        let child = match child {
            Err(Away::Retry(Retry::Missing(_))) => {
                guard.validate()?;
                return Err(dangling(id).into());
            }
            Err(Away::Retry(stop)) => return Err(stop),
            Err(Away::Partial(leaf)) => return Ok(End::Partial(leaf)),
            Err(Away::Recorded(found)) => return Ok(End::Recorded(found)),
            Ok(child) => child,
        };
        // Proves that `child` belonged to this parent at the version seen.
        guard.validate()?;
        let Some(child) = child else {
            if let Some(leaf) = partial(pool, &guard, here, id)? {
                return Ok(End::Partial(leaf));
            }
            let recorded = if here == 1 { lookup(pool, &guard, id, key)? } else { None };
            return Ok(recorded.map_or(End::Away(id), End::Recorded));
        };
        above = Some(here);
        guard = child;
    }
}

/// Calls `answer` once per entry of `wanted`, in any order. Its arguments are the index and the
/// record or error. No latch is held during `answer`, nor by the caller.
pub(crate) fn get_many(
    pool: &Pool,
    wanted: &[(Tree, &[u8])],
    answer: &mut dyn FnMut(usize, Result<Option<Found>>),
) {
    operation::begin(Access::Read);
    let each = batch_pages(pool, pool.class()).clamp(1, BATCH_PAGES_MAX);
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

/// A key without an answer yet.
#[derive(Clone, Copy)]
struct Open {
    index: usize,
    /// Whether a page was read for it.
    missed: bool,
}

/// Answers keys in `open` from memory, and reads the pages that others need. Removes the answered
/// keys.
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
    // Of several keys that need one page, the first gets its error. The others ask again.
    away.sort_unstable();
    away.dedup_by_key(|(id, _)| *id);
    let ids: Vec<PageId> = away.iter().map(|(id, _)| *id).collect();
    let mut failed: Vec<(usize, Error)> = Vec::new();
    let outcome =
        fault_many(pool, &ids, ReadReason::Wanted, &mut |at, error| failed.push((away[at].1, error)));
    if let (Err(error), Some(&(_, index))) = (outcome, away.first()) {
        failed.push((index, error));
    }
    for (index, error) in failed {
        open.retain(|other| other.index != index);
        answer(index, Err(error));
    }
}
