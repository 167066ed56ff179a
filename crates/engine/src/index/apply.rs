//! Changing one leaf, with whatever else belongs into the same log record.
//!
//! Splits come first, as system records of their own (`smo.rs`). Then the record is put together from what an
//! optimistic descent found; only when it is complete, and its log space is set aside, is the leaf latched, at the
//! version seen. Under the latch remain: copy, change the copy, append, store.

use super::edit::damaged_page;
use super::leaf;
use super::node::Node;
use super::op::NodeOp;
use super::split;
use super::tree::{Change, Scratch, Seek, Tree, Write, dangling, reserve_system, retry_write, with_scratch};
use crate::buffer::{Edit, Pool, ReadGuard, Stop};
use crate::error::Result;
use crate::ids::PageId;
use crate::planted::{Bug, planted};
use crate::store::page;
use crate::wal::{ALLOCATES, Appended, Kind, RecordBuilder, change_kind};

/// Splits that one entry may need. Each moves a part of a node away, level after level, so a sound tree needs few.
pub(super) const SPLITS_MAX: u32 = 1000;

/// How an attempt ended that met nothing in its way.
enum Attempt {
    Done { appended: Appended, underfull: bool },
    NoRoom,
}

impl Tree {
    /// Makes `change`, creates and frees the pages that go with it, all in one log record, after the splits it needs.
    /// `create` and `free` are used up. On an error nothing was logged but splits.
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
                        None if underfull => self.tidy(pool, change.key()),
                        None => {}
                    }
                    return Ok(appended);
                }
                Attempt::NoRoom => {
                    let Change::Put { key, value, .. } = change else {
                        unreachable!("removing needs no room")
                    };
                    let Write { grant, reservation, .. } = write;
                    self.make_room(pool, grant, reservation, 0, key, value.len())?;
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
    ) -> Result<Attempt, Stop> {
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
            Change::Remove { key } => leaf::find(&Node::new(leaf.view()), key).map(|_| change.op()),
        };
        write.describe(&mut scratch.record, leaf.id(), op.as_ref());
        let bytes = scratch.record.len() as u64;
        let enough = write.reservation.as_ref().is_some_and(|reservation| reservation.left() >= bytes);
        let mut own = if enough { None } else { Some(reserve_system(pool, bytes)?) };
        let reservation = if enough { write.reservation.as_deref_mut() } else { own.as_mut() };
        if planted(Bug::AppendBeforeLatching)
            && let Some(op) = &op
            && write.create.is_empty()
            && freed.is_empty()
        {
            let apply = |page: &mut [u8]| op.apply(page);
            let appended = pool.change_before_latching(&mut scratch.record, reservation, leaf.id(), apply)?;
            return Ok(Attempt::Done { appended, underfull: false });
        }

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

impl Write<'_, '_> {
    /// Puts the record together.
    fn describe(&self, record: &mut RecordBuilder, leaf: PageId, op: Option<&NodeOp<'_>>) {
        record.restart(Kind::Pages, self.transaction, self.previous);
        if !self.undo.is_empty() {
            record.undo(self.undo);
        }
        if self.commit {
            record.set_commit();
        }
        if let Some(undo_next) = self.compensation {
            record.compensation(undo_next);
        }
        if let Some(op) = op {
            describe_op(record, leaf, op);
        }
        for (new, content) in &self.create {
            describe_image(record, new.id(), ALLOCATES, content);
        }
        for &id in &self.free {
            record.change(id, change_kind::FREE, 0, &[]);
        }
    }
}

/// Adds an operation on a node to a record.
pub(super) fn describe_op(record: &mut RecordBuilder, page: PageId, op: &NodeOp<'_>) {
    record.change_with(page, op.kind(), 0, |out| op.encode(out));
}

/// Adds a page's whole content to a record.
pub(super) fn describe_image(record: &mut RecordBuilder, page: PageId, flags: u8, content: &[u8]) {
    record.change_with(page, change_kind::IMAGE, flags, |out| {
        page::compact(content, split::gap(content), out);
    });
}

/// Looks at pages that something known to stand refers to.
pub(super) fn read_all<'p>(pool: &'p Pool, ids: &[PageId]) -> Result<Vec<ReadGuard<'p>>, Stop> {
    ids.iter()
        .map(|&id| match pool.read(id) {
            Err(Stop::Missing(id)) => Err(dangling(id).into()),
            other => other,
        })
        .collect()
}
