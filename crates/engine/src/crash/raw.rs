//! Pages of cells. A cell repeats one value over some hundred bytes, so that torn cells show.

use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, Timestamp};
use crate::pool::migration::Access;
use crate::pool::operation;
use crate::pool::view::View;
use crate::pool::{Edit, Leaf, Pool, Retry, Unread, WriteGuard, access_leaf};
use crate::recovery::Redo;
use crate::recovery::Undo;
use crate::store::image::COMPRESS;
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::wal::{ALLOCATES, RecordBuilder, change_kind};

pub(super) const CELLS: usize = 6;
pub(super) const CELL_BYTES: usize = 320;
/// Distance of cells, bytes.
const STRIDE: usize = 640;
/// The change that adds to a cell, so that a repeated redo shows.
const ADD: u8 = change_kind::INDEX_FIRST;
/// The change that sets a cell of a large page.
const SET: u8 = change_kind::INDEX_FIRST + 1;
/// Bytes with the cells; the rest of a large page follows from them.
const SMALL_BYTES: usize = 4096;

/// Attempts to latch several pages. Only the pool itself interferes here.
const ATTEMPTS_MAX: u32 = 50;

pub(super) type Cells = [u64; CELLS];

fn page_bytes(id: PageId) -> usize {
    id.class().expect("pages that were given out have a class").page_bytes()
}

fn cell_at(cell: usize) -> std::ops::Range<usize> {
    let start = HEADER_BYTES + cell * STRIDE;
    start..start + CELL_BYTES
}

/// The part of a large page that follows from a cell's value: noise or zeros.
///
/// Noise does not compress and zeros do, so images of a page vary in length.
fn echo_at(content: &[u8], cell: usize) -> std::ops::Range<usize> {
    let length = content.len().saturating_sub(SMALL_BYTES) / CELLS / 8 * 8;
    let start = SMALL_BYTES.min(content.len()) + cell * length;
    start..start + length
}

/// The words of a value's noise, of which a quiet one has none.
fn noise(value: u64) -> impl Iterator<Item = [u8; 8]> {
    let mut word = value;
    std::iter::repeat_with(move || {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (word ^ word >> 29).to_le_bytes()
    })
}

fn is_quiet(value: u64) -> bool {
    value % 8 < 5
}

/// A value from `draw` that makes no noise.
pub(super) fn quiet(draw: impl FnMut() -> u64) -> u64 {
    std::iter::repeat_with(draw).find(|&value| is_quiet(value)).expect("there is no end of them")
}

pub(super) fn set_cell(content: &mut [u8], cell: usize, value: u64) {
    content[cell_at(cell)].as_chunks_mut().0.fill(value.to_le_bytes());
    let at = echo_at(content, cell);
    let (echo, _) = content[at].as_chunks_mut();
    if is_quiet(value) {
        echo.fill([0; 8]);
    } else {
        echo.iter_mut().zip(noise(value)).for_each(|(word, noise)| *word = noise);
    }
}

/// Whether `bytes` are `word` again and again. Compares whole slices, as checks of pages take most
/// of the harness' time.
fn repeats(bytes: &[u8], word: u64) -> bool {
    bytes.get(..8).is_none_or(|first| first == word.to_le_bytes() && bytes[8..] == bytes[..bytes.len() - 8])
}

/// The cells of a page; fails for a torn one.
pub(super) fn cells(content: &[u8]) -> Result<Cells, String> {
    let mut cells = [0; CELLS];
    for (cell, value) in cells.iter_mut().enumerate() {
        let bytes = &content[cell_at(cell)];
        *value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let echo = &content[echo_at(content, cell)];
        let is_echo = match is_quiet(*value) {
            true => repeats(echo, 0),
            false => echo.as_chunks().0.iter().zip(noise(*value)).all(|(word, noise)| *word == noise),
        };
        if !repeats(bytes, *value) || !is_echo {
            return Err(format!("cell {cell} of page {} is torn", page::page_id(content)));
        }
    }
    Ok(cells)
}

/// Content of a new page, without noise if it is large. Two of three pages are compressed.
pub(super) fn content(id: PageId, cells: &Cells) -> Vec<u8> {
    let mut content = vec![0; page_bytes(id)];
    page::set_kind(&mut content, Kind::Raw);
    page::set_page_id(&mut content, id);
    content[page::LEVEL_AT] = if id.0.is_multiple_of(3) { 0 } else { COMPRESS };
    for (cell, &value) in cells.iter().enumerate() {
        set_cell(&mut content, cell, value);
    }
    content
}

/// Notes a cell's change from `old` to `new` in `record`: as bytes, a value or a sum.
pub(super) fn note_write(record: &mut RecordBuilder, content: &[u8], cell: usize, old: u64, new: u64) {
    let id = page::page_id(content);
    if !new.is_multiple_of(2) {
        let mut payload = (cell as u64).to_le_bytes().to_vec();
        payload.extend_from_slice(&new.wrapping_sub(old).to_le_bytes());
        record.change(id, ADD, 0, &payload);
    } else {
        note_value(record, content, cell, new);
    }
}

fn note_value(record: &mut RecordBuilder, content: &[u8], cell: usize, value: u64) {
    let id = page::page_id(content);
    if content.len() > SMALL_BYTES {
        let mut payload = (cell as u64).to_le_bytes().to_vec();
        payload.extend_from_slice(&value.to_le_bytes());
        record.change(id, SET, 0, &payload);
    } else {
        let bytes = value.to_le_bytes().repeat(CELL_BYTES / 8);
        record.change_bytes(id, cell_at(cell).start as u32, &bytes);
    }
}

pub(super) fn note_create(record: &mut RecordBuilder, id: PageId, content: &[u8]) {
    let end = cell_at(CELLS - 1).end;
    record.change_with(id, change_kind::IMAGE, ALLOCATES, |out| {
        page::compact(content, end..content.len(), out);
    });
}

/// Undo bytes of a write: page, cell and old value.
pub(super) fn undo_entry(undo: &mut Vec<u8>, id: PageId, cell: usize, before: u64) {
    for word in [id.0, cell as u64, before] {
        undo.extend_from_slice(&word.to_le_bytes());
    }
}

pub(super) struct Raw;

impl Redo for Raw {
    fn redo(&self, kind: u8, payload: &[u8], content: &mut [u8]) -> Result<()> {
        let word = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().expect("eight bytes"));
        assert!([ADD, SET].contains(&kind) && payload.len() == 16);
        let (cell, value) = (word(0) as usize, word(8));
        let old = u64::from_le_bytes(content[cell_at(cell)][..8].try_into().expect("eight bytes"));
        set_cell(content, cell, if kind == SET { value } else { old.wrapping_add(value) });
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
        let bytes_max = (entries.len() + 1) * (CELL_BYTES + 128);
        let mut reservation = pool.reserve_log_for_structure(bytes_max as u64)?;
        let mut guards = latch_all(pool, &ids).map_err(|stop| match stop {
            Retry::Fail(error) => error,
            other => Error::corrupt("the pages", None, format!("{other:?} in undo")),
        })?;
        let mut contents: Vec<Vec<u8>> = Vec::new();
        for (guard, &[_, cell, before]) in guards.iter().zip(&entries) {
            let mut copy = Vec::new();
            guard.copy(&mut copy);
            set_cell(&mut copy, cell as usize, before);
            note_value(&mut record, &copy, cell as usize, before);
            contents.push(copy);
        }
        let edits = guards.iter_mut().zip(&mut contents).map(|(guard, copy)| Edit::Update(guard, copy));
        pool.change(&mut record, Some(&mut reservation), edits).map(|appended| appended.lsn)
    }
}

pub(super) fn latch_all<'p>(pool: &'p Pool, ids: &[PageId]) -> Result<Vec<WriteGuard<'p>>, Retry> {
    operation::begin(Access::Write);
    for _ in 0..ATTEMPTS_MAX {
        for &id in ids {
            pool.read(id)?;
        }
        let guards: Vec<_> = ids.iter().map_while(|&id| pool.try_latch(id)).collect();
        if guards.len() == ids.len() {
            return Ok(guards);
        }
        operation::again();
    }
    Err(Retry::Fail(Error::Config(format!("pages {ids:?} cannot be latched together"))))
}

pub(super) fn read(pool: &Pool, id: PageId) -> Result<Vec<u8>, Retry> {
    let mut copy = vec![0; page_bytes(id)];
    loop {
        let guard = pool.read(id)?;
        guard.view().copy_to(0, &mut copy);
        if guard.validate().is_ok() {
            return Ok(copy);
        }
    }
}

/// Reads a cell as a point read does, which may load lines only; `None` if the page is whole in
/// DRAM, or in the store.
pub(super) fn read_cell(pool: &Pool, id: PageId, cell: usize) -> Result<Option<u64>, Retry> {
    operation::begin(Access::Read);
    let at = cell_at(cell).start;
    let partial = match Unread::try_read(&pool.tiers, id)? {
        Some(partial) => partial,
        None => match pool.try_read(id).filter(|guard| guard.is_in_middle()) {
            None => return Ok(None),
            Some(guard) => match access_leaf(pool, guard, false)? {
                Leaf::Partial(partial) => partial,
                Leaf::Whole(guard) => {
                    let value = guard.view().u64(at);
                    return guard.validate().map(|()| Some(value));
                }
            },
        },
    };
    let partial = partial.open();
    let value = partial.view().u64(at);
    partial.validate().map(|()| Some(value))
}
