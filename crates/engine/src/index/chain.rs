//! Long values over the pool: their pages written, read and freed. What is in the pages is `overflow.rs`'s.
//!
//! A value is written from its end to its beginning, some pages at a time, each batch with an index page that names
//! the next, so that after every batch one head page stands for all that was written: the caller has it in its
//! garbage tree, in the record that creates the batch, until the value's transaction commits. It is freed from its
//! beginning to its end. A batch that is too large for one step is freed in parts, the last pages first, its index
//! page shortened in the same record.

use super::apply::read_all;
use super::edit::damaged_page;
use super::node::KIND;
use super::overflow::{
    INDEX_COUNT, OVERFLOW_DATA, OVERFLOW_INDEX, Reference, append_data, append_index, data_capacity,
    expected_length, init_data, init_index, pages_of,
};
use super::tree::{copy, dangling, reserve_system, retry, with_scratch};
use crate::MAX_VALUE_BYTES;
use crate::buffer::view::{Racy, View};
use crate::buffer::{Edit, Grant, NewPage, Pool, ReadGuard, Stop};
use crate::error::Result;
use crate::ids::{Lsn, PageId, Timestamp};
use crate::wal::{Kind, change_kind};

/// Data pages written in one batch.
const BATCH_PAGES: usize = 15;

/// Pages that hold a part of a value, to be created in one record.
pub(crate) struct Part<'p> {
    /// Stands for this part and all behind it.
    pub(crate) head: PageId,
    /// Where in the value the part begins.
    pub(crate) from: usize,
    /// For [`Write::create`](super::Write::create).
    pub(crate) create: Vec<(NewPage<'p>, Vec<u8>)>,
}

/// Makes pages for the part of `value` in front of byte `stored_from`, everything behind which is under page `next`
/// already. Begin with the value's length and [`PageId::NONE`]; the value is complete when a part begins at 0.
pub(crate) fn store_part<'p>(
    pool: &'p Pool,
    mut grant: Option<&mut Grant<'p>>,
    value: &[u8],
    stored_from: usize,
    next: PageId,
) -> Result<Part<'p>> {
    let page_bytes = pool.page_bytes();
    let capacity = data_capacity(page_bytes);
    let pages_before = stored_from.div_ceil(capacity);
    let from = pages_before.saturating_sub(BATCH_PAGES) * capacity;
    let mut create = Vec::new();
    let mut ids = Vec::new();
    for bytes in value[from..stored_from].chunks(capacity) {
        let new = pool.new_page(grant.as_deref_mut())?;
        let mut page = vec![0; page_bytes];
        init_data(&mut page, new.id(), bytes);
        ids.push(new.id());
        create.push((new, page));
    }
    let alone = pages_of(page_bytes, value.len() as u64).1 == 0;
    let head = if alone {
        ids.first().copied().unwrap_or(PageId::NONE)
    } else {
        let new = pool.new_page(grant)?;
        let mut page = vec![0; page_bytes];
        init_index(&mut page, new.id(), next, &ids);
        let id = new.id();
        create.push((new, page));
        id
    };
    Ok(Part { head, from, create })
}

/// The value a leaf refers to. Nobody may free its pages meanwhile.
pub(crate) fn read_value(pool: &Pool, reference: Reference) -> Result<Vec<u8>> {
    let total_length = reference.total_length;
    // A length that nobody has checked yet allocates no more than the page file could hold.
    let mut value = Vec::with_capacity(total_length.min(pool.footprint().file_bytes) as usize);
    each_page(pool, reference, &mut |part| {
        let Page::Data { id, number } = part else { return Ok(()) };
        let start = value.len();
        let length = look(pool, id, |page| {
            value.truncate(start);
            append_data(page, &mut value)
        })?;
        match length {
            Some(length) if length == expected_length(pool.page_bytes(), total_length, number) => Ok(()),
            _ => Err(damaged_page(id, "not the part of the value that refers to it")),
        }
    })?;
    Ok(value)
}

/// Calls back with every page of a value, and verifies that they are its pages.
pub(super) fn verify_value(pool: &Pool, reference: Reference, visit: &mut dyn FnMut(PageId)) -> Result<()> {
    let mut part = Vec::new();
    each_page(pool, reference, &mut |page| match page {
        Page::Index(id) => {
            visit(id);
            Ok(())
        }
        Page::Data { id, number } => {
            visit(id);
            let length = look(pool, id, |page| {
                part.clear();
                append_data(page, &mut part)
            })?;
            match length {
                Some(length)
                    if length == expected_length(pool.page_bytes(), reference.total_length, number) =>
                {
                    Ok(())
                }
                _ => Err(damaged_page(id, "not the part of the value that refers to it")),
            }
        }
    })
}

/// Calls back with every page under `head`, a value that is half made or half freed. A chain that goes on for longer
/// than the longest value can is damaged: it may well end nowhere.
pub(crate) fn chain_pages(pool: &Pool, head: PageId, visit: &mut dyn FnMut(PageId)) -> Result<()> {
    // An index page for each data page is more than are ever made.
    let mut left = 2 * pages_of(pool.page_bytes(), MAX_VALUE_BYTES as u64).0;
    let mut head = Some(head);
    while let Some(id) = head {
        visit(id);
        head = match look_at_head(pool, id)? {
            Head::Data => None,
            Head::Index { ids, next } => {
                let pages = 1 + ids.len() as u64;
                left =
                    left.checked_sub(pages).ok_or_else(|| damaged_page(id, "a long value without an end"))?;
                ids.into_iter().for_each(&mut *visit);
                next
            }
        };
    }
    Ok(())
}

/// Whether `head` is a page of a long value, and not a node of a tree.
pub(crate) fn is_value(pool: &Pool, head: PageId) -> Result<bool> {
    let kind = look(pool, head, |page| page.u8(KIND))?;
    Ok(kind == OVERFLOW_DATA || kind == OVERFLOW_INDEX)
}

/// What [`free_step`] has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FreeStep {
    /// It freed some pages in a record of its own. The head still stands for the others.
    Again,
    /// It did nothing. Free these pages in the record that replaces the head by `next`, or forgets it.
    Rest {
        /// For [`Write::free`](super::Write::free); no more than were asked for.
        free: Vec<PageId>,
        /// Stands for what is left.
        next: Option<PageId>,
    },
}

/// A step towards freeing the pages under `head`, of which nobody reads any more and which only the caller frees: at
/// most `pages_max` pages, at least two.
pub(crate) fn free_step(pool: &Pool, head: PageId, pages_max: usize) -> Result<FreeStep> {
    let pages_max = pages_max.max(2);
    let (mut free, next) = match look_at_head(pool, head)? {
        Head::Data => (Vec::new(), None),
        Head::Index { ids, next } => (ids, next),
    };
    if free.len() < pages_max {
        free.push(head);
        return Ok(FreeStep::Rest { free, next });
    }
    let left = free.len() - (pages_max - 1);
    let tail = free.split_off(left);
    let mut reservation = reserve_system(pool, 256 + 16 * tail.len() as u64)?;
    retry(head, || {
        let guards = read_all(pool, &tail)?;
        let index = pool.read(head)?;
        let mut content = copy(pool, &index)?;
        content[INDEX_COUNT..INDEX_COUNT + 4].copy_from_slice(&(left as u32).to_le_bytes());
        with_scratch(|scratch| {
            let record = scratch.record.restart(Kind::Pages, Timestamp::NONE, Lsn::NONE);
            record.change_bytes(head, INDEX_COUNT as u32, &(left as u32).to_le_bytes());
            for &id in &tail {
                record.change(id, change_kind::FREE, 0, &[]);
            }
            let mut index = index.upgrade()?;
            let guards = guards.into_iter().map(ReadGuard::upgrade).collect::<Result<Vec<_>, _>>()?;
            let update = Edit::Update(&mut index, &mut content);
            let edits = std::iter::once(update).chain(guards.into_iter().map(Edit::Free));
            pool.change(record, Some(&mut reservation), edits)?;
            Ok(FreeStep::Again)
        })
    })
}

enum Page {
    Index(PageId),
    Data { id: PageId, number: u64 },
}

/// Calls back with the pages of a value in order. Ends with an error if there are more or fewer than its length needs.
fn each_page(pool: &Pool, reference: Reference, visit: &mut dyn FnMut(Page) -> Result<()>) -> Result<()> {
    if reference.total_length > MAX_VALUE_BYTES as u64 {
        return Err(damaged_page(reference.head, format!("a value of {} bytes", reference.total_length)));
    }
    let (data_pages, index_pages) = pages_of(pool.page_bytes(), reference.total_length);
    if index_pages == 0 {
        return visit(Page::Data { id: reference.head, number: 0 });
    }
    let (mut head, mut number) = (Some(reference.head), 0);
    while let Some(id) = head {
        let Head::Index { ids, next } = look_at_head(pool, id)? else {
            return Err(damaged_page(id, "a long value refers to it as an index page"));
        };
        if ids.is_empty() || ids.len() as u64 > data_pages - number {
            return Err(damaged_page(id, "not an index page of the value that refers to it"));
        }
        visit(Page::Index(id))?;
        for id in ids {
            visit(Page::Data { id, number })?;
            number += 1;
        }
        head = next;
    }
    if number == data_pages {
        Ok(())
    } else {
        Err(damaged_page(reference.head, format!("{number} data pages under it, not {data_pages}")))
    }
}

enum Head {
    Data,
    Index { ids: Vec<PageId>, next: Option<PageId> },
}

fn look_at_head(pool: &Pool, head: PageId) -> Result<Head> {
    let mut ids = Vec::new();
    let (kind, next) = look(pool, head, |page| {
        ids.clear();
        (page.u8(KIND), append_index(page, &mut ids))
    })?;
    match next {
        Some(next) => Ok(Head::Index { ids, next: (!next.is_none()).then_some(next) }),
        None if kind == OVERFLOW_DATA => Ok(Head::Data),
        None => Err(damaged_page(head, "a long value refers to it, but it is of another kind")),
    }
}

/// Looks at one page until it holds still.
fn look<T>(pool: &Pool, id: PageId, mut look: impl FnMut(Racy<'_>) -> T) -> Result<T> {
    retry(id, || {
        let guard = match pool.read(id) {
            Err(Stop::Missing(id)) => return Err(dangling(id).into()),
            other => other?,
        };
        let seen = look(guard.view());
        guard.validate().map(|()| seen)
    })
}
