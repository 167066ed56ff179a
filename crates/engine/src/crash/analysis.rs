//! Scripts for the bugs of recovery's analysis.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use terrace_io::SimulatedDisk;

use super::meanwhile;
use super::raw::{self, CELLS, Raw};
use super::ring::catches;
use super::tests::{SIZES, overwrite};
use super::{create, open};
use crate::error::Result;
use crate::ids::{Lsn, PageId, Timestamp};
use crate::maintenance::Maintenance;
use crate::planted::Bug;
use crate::pool::Edit;
use crate::recovery::{recover, undo_losers};
use crate::wal::RecordBuilder;

fn live(disk: &SimulatedDisk) -> Result<Arc<Maintenance>> {
    let files = open(disk).expect("the files are there");
    let recovered = recover(&files, &SIZES.options(), &Raw)?;
    undo_losers(&recovered.maintenance, &files, recovered.losers, &Raw)?;
    Ok(recovered.maintenance)
}

/// A database with pages that only the log has, each with its number in its cells.
fn with_pages(count: u64) -> (SimulatedDisk, Arc<Maintenance>, Vec<PageId>) {
    let disk = SimulatedDisk::new(1);
    create(&disk, &SIZES);
    let pool = live(&disk).expect("a new database opens");
    let mut ids = Vec::new();
    for number in 0..count {
        let new = pool.new_page(pool.class(), None).unwrap();
        ids.push(new.id());
        let mut content = raw::content(new.id(), &[number; CELLS]);
        let mut record = RecordBuilder::pages(Timestamp(number + 1), Lsn::NONE);
        raw::note_create(&mut record, new.id(), &content);
        record.set_commit();
        let mut reservation = pool.reserve_log(record.len() as u64).unwrap();
        pool.change(&mut record, Some(&mut reservation), [Edit::Create(new, &mut content)]).unwrap();
    }
    (disk, pool, ids)
}

/// Whether the pages of `ids` survive a power cut now with these cells.
fn survive(
    disk: &SimulatedDisk,
    pool: &Maintenance,
    ids: &[PageId],
    cells: fn(u64, PageId) -> [u64; CELLS],
) -> bool {
    pool.wal().flush_to(pool.wal().tail()).unwrap();
    let Ok(pool) = live(&disk.survivor(2)) else { return false };
    (0..).zip(ids).all(|(number, &id)| {
        let found = raw::read(&pool, id).ok().and_then(|content| raw::cells(&content).ok());
        found == Some(cells(number, id))
    })
}

/// More records of allocations than there is room for notes.
fn pages_beyond_the_notes_are_found() -> bool {
    let (disk, pool, ids) = with_pages(40);
    survive(&disk, &pool, &ids, |number, _| [number; CELLS])
}

#[test]
fn catches_analysis_of_noted() {
    catches(Bug::AnalysisOfNoted, pages_beyond_the_notes_are_found);
}

/// A page changes between the copy of its image and the mapping record.
fn a_change_beside_an_image_is_redone() -> bool {
    let (disk, pool, ids) = with_pages(1);
    let (page, changed) = (ids[0], Rc::new(Cell::new(false)));
    let seen = Rc::clone(&changed);
    meanwhile::play(Some(Rc::new(move |pool| {
        if !seen.replace(true) {
            overwrite(pool, page);
        }
    })));
    let written = pool.checkpoint_now(false);
    meanwhile::play(None);
    assert!(written.is_ok() && changed.get(), "an image was in flight");
    survive(&disk, &pool, &ids, |number, id| [number, number, 1001 + id.0, number, number, number])
}

#[test]
fn catches_image_as_new_as_mapping() {
    catches(Bug::ImageAsNewAsMapping, a_change_beside_an_image_is_redone);
}
