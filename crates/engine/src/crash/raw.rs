//! Pages of cells: a cell is one value, repeated over some hundred bytes, so that a torn one is seen.

use crate::buffer::{Edit, Pool, Redo, Stop, Undo, WriteGuard};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, Timestamp};
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::wal::{ALLOCATES, RecordBuilder, change_kind};

/// Cells of a page.
pub(super) const CELLS: usize = 6;
/// Bytes of a cell.
pub(super) const CELL_BYTES: usize = 320;
/// Bytes from cell to cell.
const STRIDE: usize = 640;
/// The change that adds to a cell: doing it twice shows.
const ADD: u8 = change_kind::INDEX_FIRST;

/// Attempts at latching several pages; nobody else is there, so that it is the pool that takes them away.
const ATTEMPTS_MAX: u32 = 50;

/// The values of a page's cells.
pub(super) type Cells = [u64; CELLS];

fn cell_at(cell: usize) -> std::ops::Range<usize> {
    let start = HEADER_BYTES + cell * STRIDE;
    start..start + CELL_BYTES
}

pub(super) fn set_cell(content: &mut [u8], cell: usize, value: u64) {
    for word in content[cell_at(cell)].chunks_exact_mut(8) {
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The cells of a page, each of them whole.
pub(super) fn cells(content: &[u8]) -> Result<Cells, String> {
    let mut cells = [0; CELLS];
    for (cell, value) in cells.iter_mut().enumerate() {
        let bytes = &content[cell_at(cell)];
        *value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        if bytes.chunks_exact(8).any(|word| word != value.to_le_bytes()) {
            return Err(format!("cell {cell} of page {} is torn", page::page_id(content)));
        }
    }
    Ok(cells)
}

/// The content of a new page.
pub(super) fn content(id: PageId, cells: &Cells) -> Vec<u8> {
    let mut content = vec![0; super::PAGE_BYTES];
    page::set_kind(&mut content, Kind::Raw);
    page::set_page_id(&mut content, id);
    for (cell, &value) in cells.iter().enumerate() {
        set_cell(&mut content, cell, value);
    }
    content
}

/// Notes in `record` that a cell goes from `old` to `new`, as bytes or as a sum.
pub(super) fn note_write(record: &mut RecordBuilder, id: PageId, cell: usize, old: u64, new: u64) {
    if new.is_multiple_of(2) {
        let bytes = new.to_le_bytes().repeat(CELL_BYTES / 8);
        record.change_bytes(id, cell_at(cell).start as u32, &bytes);
    } else {
        let mut payload = (cell as u64).to_le_bytes().to_vec();
        payload.extend_from_slice(&new.wrapping_sub(old).to_le_bytes());
        record.change(id, ADD, 0, &payload);
    }
}

/// Notes in `record` that a page comes into being.
pub(super) fn note_create(record: &mut RecordBuilder, id: PageId, content: &[u8]) {
    let end = cell_at(CELLS - 1).end;
    record.change_with(id, change_kind::IMAGE, ALLOCATES, |out| {
        page::compact(content, end..content.len(), out);
    });
}

/// Undo bytes of a write: where, and what was there.
pub(super) fn undo_entry(undo: &mut Vec<u8>, id: PageId, cell: usize, before: u64) {
    for word in [id.0, cell as u64, before] {
        undo.extend_from_slice(&word.to_le_bytes());
    }
}

/// Redo and undo of the above.
pub(super) struct Raw;

impl Redo for Raw {
    fn redo(&self, kind: u8, payload: &[u8], content: &mut [u8]) -> Result<()> {
        let word = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().expect("eight bytes"));
        assert_eq!((kind, payload.len()), (ADD, 16));
        let (cell, sum) = (word(0) as usize, word(8));
        let old = u64::from_le_bytes(content[cell_at(cell)][..8].try_into().expect("eight bytes"));
        set_cell(content, cell, old.wrapping_add(sum));
        Ok(())
    }
}

impl Undo for Raw {
    fn undo(&self, pool: &Pool, loser: Timestamp, previous: Lsn, undo_next: Lsn, undo: &[u8]) -> Result<Lsn> {
        let mut record = RecordBuilder::pages(loser, previous);
        record.compensation(undo_next);
        let entries: Vec<[u64; 3]> = undo
            .chunks_exact(24)
            .map(|entry| [0, 8, 16].map(|at| u64::from_le_bytes(entry[at..at + 8].try_into().expect("word"))))
            .collect();
        let ids: Vec<PageId> = entries.iter().map(|entry| PageId(entry[0])).collect();
        let mut guards = latch_all(pool, &ids).map_err(|stop| match stop {
            Stop::Fail(error) => error,
            other => Error::corrupt("the pages", None, format!("{other:?} in undo")),
        })?;
        let mut contents: Vec<Vec<u8>> = Vec::new();
        for (guard, &[id, cell, before]) in guards.iter().zip(&entries) {
            let mut copy = Vec::new();
            guard.copy(&mut copy);
            set_cell(&mut copy, cell as usize, before);
            let bytes = before.to_le_bytes().repeat(CELL_BYTES / 8);
            record.change_bytes(PageId(id), cell_at(cell as usize).start as u32, &bytes);
            contents.push(copy);
        }
        let edits = guards.iter_mut().zip(&mut contents).map(|(guard, copy)| Edit::Update(guard, copy));
        pool.change(&mut record, None, edits).map(|appended| appended.lsn)
    }
}

/// Latches all of `ids`, which are different pages.
pub(super) fn latch_all<'p>(pool: &'p Pool, ids: &[PageId]) -> Result<Vec<WriteGuard<'p>>, Stop> {
    for _ in 0..ATTEMPTS_MAX {
        for &id in ids {
            pool.read(id)?;
        }
        let guards: Vec<_> = ids.iter().map_while(|&id| pool.try_latch(id)).collect();
        if guards.len() == ids.len() {
            return Ok(guards);
        }
    }
    Err(Stop::Fail(Error::Config(format!("pages {ids:?} cannot be latched together"))))
}

/// A copy of a page.
pub(super) fn read(pool: &Pool, id: PageId) -> Result<Vec<u8>, Stop> {
    let mut copy = vec![0; pool.page_bytes()];
    loop {
        let guard = pool.read(id)?;
        crate::buffer::view::View::copy_to(&guard.view(), 0, &mut copy);
        if guard.validate().is_ok() {
            return Ok(copy);
        }
    }
}
