//! Long values over the pool: writes, reads and frees their pages. `overflow.rs` has the layout.
//!
//! A writer stores a value from its end to its beginning, in batches. Each has an index page that
//! names the next one, so one head page stands for everything written. A batch's record also enters
//! that head in the garbage tree, until the value's transaction commits.
//!
//! Values are freed from the beginning, except for the head, which stands for the rest until the
//! last record. Other records shorten an index page, or make the head name the index page behind a
//! freed one. So references stay valid, and neither the first nor the last index page can be reused
//! early. A record creates or frees only one page above 64 KiB.

use std::ops::Range;

use super::node::KIND;
use super::node::edit::damaged_page;
use super::node::overflow::{
    DATA, IDS, INDEX_COUNT, NEXT, OVERFLOW_DATA, OVERFLOW_INDEX, Reference, ValuePages, append_data,
    append_index, init_data, init_index, pages_of,
};
use super::part::{Wanted, Whole};
use super::tree::{copy, dangling, distinct, read_all, reserve_for_structure, retry, with_scratch};
use crate::error::Result;
use crate::ids::MAX_VALUE_BYTES;
use crate::ids::{Lsn, PageId, SizeClass, Timestamp};
use crate::pool::view::{Racy, View};
use crate::pool::{Edit, Grant, NewPage, Pool, ReadGuard, ReadReason, Retry, batch_pages, fault_many};
use crate::wal::{Kind, change_kind};

/// A batch of a value's pages, created in one record.
pub(crate) struct Part<'p> {
    /// Stands for this part and all behind it.
    pub(crate) head: PageId,
    pub(crate) from: usize,
    /// For [`Write::create`](super::Write::create).
    pub(crate) create: Vec<(NewPage<'p>, Vec<u8>)>,
}

/// Makes pages for the part of `value` before byte `stored_from`. The rest is under page `next`
/// already. Begin with the value's length and [`PageId::NONE`]; the value is complete when a part
/// begins at 0.
pub(crate) fn store_part<'p>(
    pool: &'p Pool,
    mut grant: Option<&mut Grant<'p>>,
    value: &[u8],
    stored_from: usize,
    next: PageId,
    (sizes, compress): (ValuePages, bool),
) -> Result<Part<'p>> {
    let capacity = sizes.capacity();
    let pages_before = stored_from.div_ceil(capacity);
    let from = pages_before.saturating_sub(sizes.batch()) * capacity;
    let mut create = Vec::new();
    let mut ids = Vec::new();
    for bytes in value[from..stored_from].chunks(capacity) {
        let new = pool.new_page(sizes.class_for(bytes.len()), grant.as_deref_mut())?;
        let mut page = new.zeroed();
        init_data(&mut page, new.id(), compress, bytes);
        ids.push(new.id());
        create.push((new, page));
    }
    let head = if value.len() <= capacity {
        ids.first().copied().unwrap_or(PageId::NONE)
    } else {
        let new = pool.new_page(sizes.own, grant)?;
        let mut page = new.zeroed();
        init_index(&mut page, new.id(), compress, next, &ids);
        let id = new.id();
        create.push((new, page));
        id
    };
    Ok(Part { head, from, create })
}

/// Reads a whole value, with batched page reads. The caller excludes concurrent freeing.
pub(crate) fn read_value(pool: &Pool, reference: Reference) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    read_value_to(pool, reference, Whole, &mut value)?;
    Ok(value)
}

/// [`read_value`] of the wanted bytes into a buffer, whose old content is lost. Reads their pages
/// only, and the index pages up to theirs.
pub(crate) fn read_value_to(
    pool: &Pool,
    reference: Reference,
    wanted: impl Wanted,
    value: &mut Vec<u8>,
) -> Result<()> {
    let wanted = wanted.inside(reference.total_length as usize)?;
    // An unchecked length must not allocate more than the page file could hold.
    let file_bytes = crate::pool::inspect::Footprint::of(pool).file_bytes;
    value.clear();
    value.reserve_exact(wanted.len().min(file_bytes as usize));
    each_page(pool, reference, wanted, &mut |part| {
        let Page::Data { id, expected, wanted } = part else { return Ok(()) };
        let start = value.len();
        let length = look(pool, id, |page| {
            value.truncate(start);
            (append_data(page, &wanted, value), data_at(&wanted))
        })?;
        match length {
            Some(length) if length == expected => Ok(()),
            _ => Err(damaged_page(id, "not the part of the value that refers to it")),
        }
    })
}

/// Visits every page of a value, and verifies that they belong to it.
pub(super) fn verify_value(pool: &Pool, reference: Reference, visit: &mut dyn FnMut(PageId)) -> Result<()> {
    let mut part = Vec::new();
    let whole = 0..reference.total_length as usize;
    each_page(pool, reference, whole, &mut |page| match page {
        Page::Index(id) => {
            visit(id);
            Ok(())
        }
        Page::Data { id, expected, wanted } => {
            visit(id);
            let length = look(pool, id, |page| {
                part.clear();
                (append_data(page, &wanted, &mut part), data_at(&wanted))
            })?;
            match length {
                Some(length) if length == expected => Ok(()),
                _ => Err(damaged_page(id, "not the part of the value that refers to it")),
            }
        }
    })
}

/// Visits every page under `head` of a partly written or freed value. A chain longer than the
/// longest value is damage, and may never end.
pub(crate) fn chain_pages(pool: &Pool, head: PageId, visit: &mut dyn FnMut(PageId)) -> Result<()> {
    // One index page per data page: more than any value has.
    let mut left = 2 * pages_of(head.page_bytes(), MAX_VALUE_BYTES as u64).0;
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

/// Whether `head` is a page of a long value, not a tree node.
pub(crate) fn is_value(pool: &Pool, head: PageId) -> Result<bool> {
    let kind = look(pool, head, |page| (page.u8(KIND), 0..0))?;
    Ok(kind == OVERFLOW_DATA || kind == OVERFLOW_INDEX)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FreeStep {
    /// It freed some pages in its own record. The head still stands for the others.
    Again,
    /// It did nothing. The remaining pages, first and last index page included, up to the number
    /// asked for. Pass them to [`Write::free`](super::Write::free) in the record that drops the
    /// head.
    Last(Vec<PageId>),
}

/// Takes a step of freeing the pages under `head`, which only the caller uses. The record frees
/// about `pages_max` pages at most, at least two, but only one above 64 KiB: all are in frames at
/// once.
pub(crate) fn free_step(pool: &Pool, head: PageId, pages_max: usize) -> Result<FreeStep> {
    let most = pages_max.max(2);
    let most_with = |ids: &[PageId]| {
        let is_for_values = |id: &PageId| id.class().is_some_and(SizeClass::is_for_values);
        if ids.iter().any(is_for_values) { 2 } else { most }
    };
    let Head::Index { ids: mut free, next } = look_at_head(pool, head)? else {
        return Ok(FreeStep::Last(vec![head]));
    };
    let pages_max = most_with(&free);
    let Some(second) = next else {
        if free.len() >= pages_max {
            return shorten(pool, head, free, pages_max);
        }
        free.push(head);
        return last(pool, head, free);
    };
    if !free.is_empty() {
        return shorten(pool, head, free, pages_max);
    }
    let Head::Index { ids: mut free, next } = look_at_head(pool, second)? else {
        return Err(damaged_page(second, "a long value refers to it as an index page"));
    };
    let pages_max = most_with(&free);
    if free.len() + 2 > pages_max {
        return shorten(pool, second, free, pages_max);
    }
    free.push(second);
    match next {
        Some(next) => edit_and_free(pool, head, NEXT, &next.0.to_le_bytes(), &free),
        None => {
            free.push(head);
            last(pool, head, free)
        }
    }
}

/// Frees the last of the pages `ids`, which the index page `index` lists.
fn shorten(pool: &Pool, index: PageId, mut ids: Vec<PageId>, pages_max: usize) -> Result<FreeStep> {
    let left = ids.len().saturating_sub(pages_max - 1);
    let free = ids.split_off(left);
    edit_and_free(pool, index, INDEX_COUNT, &(left as u32).to_le_bytes(), &free)
}

/// Writes `bytes` into the index page `index` and frees pages, in one record.
fn edit_and_free(pool: &Pool, index: PageId, at: usize, bytes: &[u8], free: &[PageId]) -> Result<FreeStep> {
    distinct(index, free.iter().copied().chain([index]))?;
    let mut reservation = reserve_for_structure(pool, 256 + 16 * free.len() as u64)?;
    retry(index, || {
        let guards = read_pages(pool, free)?;
        let page = pool.read(index)?;
        let mut content = copy(&page)?;
        content[at..at + bytes.len()].copy_from_slice(bytes);
        with_scratch(|scratch| {
            let record = scratch.record.restart(Kind::Pages, Timestamp::NONE, Lsn::NONE);
            record.change_bytes(index, at as u32, bytes);
            for &id in free {
                record.change(id, change_kind::FREE, 0, &[]);
            }
            let mut page = page.upgrade()?;
            let guards = guards.into_iter().map(ReadGuard::upgrade).collect::<Result<Vec<_>, _>>()?;
            let update = Edit::Update(&mut page, &mut content);
            let edits = std::iter::once(update).chain(guards.into_iter().map(Edit::Free));
            pool.change(record, Some(&mut reservation), edits)?;
            Ok(FreeStep::Again)
        })
    })
}

/// The rest of a value under `head`, for the caller's record to free.
fn last(pool: &Pool, head: PageId, free: Vec<PageId>) -> Result<FreeStep> {
    distinct(head, free.iter().copied())?;
    retry(head, || read_pages(pool, &free)?.iter().try_for_each(ReadGuard::validate))?;
    Ok(FreeStep::Last(free))
}

/// Reads pages to be freed. A damaged value may list pages of a tree, which must stay. Results
/// count once the guards validate or upgrade.
fn read_pages<'p>(pool: &'p Pool, ids: &[PageId]) -> Result<Vec<ReadGuard<'p>>, Retry> {
    let guards = read_all(pool, ids)?;
    for guard in &guards {
        let kind = guard.view().u8(KIND);
        if kind != OVERFLOW_DATA && kind != OVERFLOW_INDEX {
            guard.validate()?;
            return Err(
                damaged_page(guard.id(), "a long value refers to it, but it is of another kind").into()
            );
        }
    }
    Ok(guards)
}

enum Page {
    Index(PageId),
    /// `expected` is the page's share of the value, in bytes.
    Data {
        id: PageId,
        expected: usize,
        /// Of the page's share.
        wanted: Range<usize>,
    },
}

/// Visits the pages of a value's bytes `wanted` in order, and the index pages up to theirs. If they
/// are its last, fails if the number of pages does not match its length.
fn each_page(
    pool: &Pool,
    reference: Reference,
    wanted: Range<usize>,
    visit: &mut dyn FnMut(Page) -> Result<()>,
) -> Result<()> {
    if reference.total_length > MAX_VALUE_BYTES as u64 {
        return Err(damaged_page(reference.head, format!("a value of {} bytes", reference.total_length)));
    }
    let total_length = reference.total_length;
    if reference.is_one_page() {
        return visit(Page::Data { id: reference.head, expected: total_length as usize, wanted });
    }
    let (mut head, mut number, mut known) = (Some(reference.head), 0, None);
    while let Some(id) = head {
        let Head::Index { ids, next } = look_at_head(pool, id)? else {
            return Err(damaged_page(id, "a long value refers to it as an index page"));
        };
        // The first data page tells the size of all but the last.
        known = known.or_else(|| reference.pages(*ids.first()?));
        let sizes = known.ok_or_else(|| damaged_page(id, "an index page of no value there can be"))?;
        if ids.is_empty() || ids.len() as u64 > sizes.data_pages(total_length) - number {
            return Err(damaged_page(id, "not an index page of the value that refers to it"));
        }
        visit(Page::Index(id))?;
        let together = batch_pages(pool, sizes.most).max(1);
        let mut pages = ids;
        let (before, data) = (number as usize, pages.len());
        let capacity = sizes.capacity();
        let last = wanted.end.div_ceil(capacity);
        let of_page = |number: usize| number.saturating_sub(before).min(data);
        let (from, to) = (of_page(wanted.start / capacity), of_page(last));
        let ends_here = last <= before + data && (last as u64) < sizes.data_pages(total_length);
        if !ends_here {
            pages.extend(next);
        }
        let fetched = if ends_here { to } else { pages.len() };
        for at in from..to {
            let id = pages[at];
            if (at - from) % together == 0 {
                // The read of each page reports its error.
                let _ = fault_many(pool, &pages[at..fetched], ReadReason::Wanted, &mut |_, _| {});
            }
            let expected = sizes.length_of((before + at) as u64, total_length);
            if id.class() != Some(sizes.class_for(expected)) {
                return Err(damaged_page(id, "of another size than the part of the value that refers to it"));
            }
            let start = (before + at) * capacity;
            let wanted = wanted.start.saturating_sub(start)..(wanted.end - start).min(expected);
            visit(Page::Data { id, expected, wanted })?;
        }
        if ends_here {
            return Ok(());
        }
        number += data as u64;
        head = next;
    }
    match known.map_or(0, |sizes| sizes.data_pages(total_length)) {
        data_pages if data_pages == number => Ok(()),
        data_pages => {
            Err(damaged_page(reference.head, format!("{number} data pages under it, not {data_pages}")))
        }
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
        let next = append_index(page, &mut ids);
        ((page.u8(KIND), next), IDS..IDS + ids.len() * 8)
    })?;
    match next {
        Some(next) => Ok(Head::Index { ids, next: (!next.is_none()).then_some(next) }),
        None if kind == OVERFLOW_DATA => Ok(Head::Data),
        None => Err(damaged_page(head, "a long value refers to it, but it is of another kind")),
    }
}

/// The bytes `part` of those of a data page.
fn data_at(part: &Range<usize>) -> Range<usize> {
    DATA + part.start..DATA + part.end
}

/// Reads one page until it validates. `look` also returns the bytes that it read behind the header.
fn look<T>(pool: &Pool, id: PageId, mut look: impl FnMut(Racy<'_>) -> (T, Range<usize>)) -> Result<T> {
    retry(id, || {
        let guard = match pool.read(id) {
            Err(Retry::Missing(id)) => return Err(dangling(id).into()),
            other => other?,
        };
        let (seen, bytes) = look(guard.view());
        guard.validate()?;
        guard.looked(|view| _ = view.u64(KIND));
        guard.copied_lines(|view, lines| {
            view.u64(KIND);
            lines.add(bytes.start, bytes.len());
        });
        Ok(seen)
    })
}
