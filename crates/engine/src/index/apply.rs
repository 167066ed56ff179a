//! Changes one leaf, with everything else in the same log record.
//!
//! Splits come first, as system records (`smo.rs`). Then an optimistic descent provides the content
//! of the record. Once the record is complete and its log space is reserved, the leaf is latched at
//! the version seen. Under the latch: copy, change the copy, append, store.

use super::change::{Change, Write};
use super::node::Node;
use super::node::edit::damaged_page;
use super::node::leaf;
use super::node::op::NodeOp;
use super::node::split;
use super::smo::{SPLITS_MAX, make_room, tidy};
use super::tree::{Scratch, Seek, Tree, read_all, reserve_for_structure, retry_write, with_scratch};
use crate::error::Result;
use crate::pool::{Edit, Pool, ReadGuard, Retry};
use crate::wal::Appended;

enum Attempt {
    Done { appended: Appended, underfull: bool },
    NoRoom,
}

impl Tree {
    /// Applies `change` in one log record, after any splits. The record also creates and frees
    /// pages, and uses up `create` and `free`. After an error only splits were logged.
    pub(crate) fn apply<'p>(
        &self,
        pool: &'p Pool,
        write: &mut Write<'_, 'p>,
        change: Change<'_>,
    ) -> Result<Appended> {
        for _ in 0..SPLITS_MAX {
            let attempt = || with_scratch(|scratch| self.try_apply(pool, write, &change, scratch));
            match retry_write(self.root, attempt)? {
                Attempt::Done { appended, underfull } => {
                    write.free.clear();
                    match &mut write.underfull {
                        Some(noted) => **noted = underfull,
                        None if underfull => tidy(*self, pool, change.key()),
                        None => {}
                    }
                    return Ok(appended);
                }
                Attempt::NoRoom => {
                    let Change::Put { key, value, .. } = change else {
                        unreachable!("only a put needs room")
                    };
                    let Write { grant, reservation, .. } = write;
                    make_room(*self, pool, grant, reservation, 0, key, value.len())?;
                }
            }
        }
        Err(damaged_page(self.root, "splits below it make no room"))
    }

    fn try_apply<'p>(
        &self,
        pool: &'p Pool,
        write: &mut Write<'_, 'p>,
        change: &Change<'_>,
        scratch: &mut Scratch,
    ) -> Result<Attempt, Retry> {
        let freed = read_all(pool, &write.free)?;
        let leaf = self.leaf(pool, Seek::At(change.key()))?;
        if write.free.contains(&leaf.id()) {
            leaf.validate()?;
            return Err(damaged_page(leaf.id(), "it is to be freed, but it is a leaf that stays").into());
        }
        let op = match *change {
            Change::Put { key, value, .. } => {
                if !leaf::has_room(leaf.view(), key, value.len()) {
                    leaf.validate()?;
                    return Ok(Attempt::NoRoom);
                }
                Some(change.op())
            }
            Change::Patch { .. } => Some(change.op()),
            Change::Remove { key } => leaf::find(&Node::new(leaf.view()), key).map(|_| change.op()),
        };
        write.describe(&mut scratch.record, leaf.id(), op.as_ref());
        let bytes = scratch.record.len() as u64;
        let enough = write.reservation.as_ref().is_some_and(|reservation| reservation.left() >= bytes);
        let mut own = if enough { None } else { Some(reserve_for_structure(pool, bytes)?) };
        let reservation = if enough { write.reservation.as_deref_mut() } else { own.as_mut() };
        pool.meanwhile();
        let mut leaf = leaf.upgrade()?;
        let freed = freed.into_iter().map(ReadGuard::upgrade).collect::<Result<Vec<_>, _>>()?;
        leaf.copy(&mut scratch.page);
        if let Some(op) = &op
            && !op.apply(&mut scratch.page)?
        {
            return Ok(Attempt::NoRoom);
        }
        let (new, mut contents): (Vec<_>, Vec<_>) = std::mem::take(&mut write.create).into_iter().unzip();
        let underfull = matches!(op, Some(NodeOp::LeafRemove { .. })) && split::is_underfull(&scratch.page);
        let update = op.is_some().then(|| Edit::Update(&mut leaf, &mut scratch.page));
        let create = new.into_iter().zip(&mut contents).map(|(new, content)| Edit::Create(new, content));
        let edits = update.into_iter().chain(create).chain(freed.into_iter().map(Edit::Free));
        let appended = pool.change(&mut scratch.record, reservation, edits)?;
        Ok(Attempt::Done { appended, underfull })
    }
}
