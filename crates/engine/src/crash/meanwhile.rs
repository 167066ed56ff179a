//! What other threads would do while a change is prepared or images are in flight.
//!
//! The harness has no other threads, so that every run can be replayed. Instead, yield points call
//! [`in_flight`], which plays what the test set ([`play`]). Yield points are between a look at a
//! leaf and its latch; and, in write-back and checkpoint, between copy and write, write and sync,
//! sync and mapping record, cut and superblock.
//!
//! In lives of raw pages a [`Script`] changes or frees resident pages, and appends and acknowledges
//! commits. It does nothing that needs a frame or the maintenance lock, because a thread would wait
//! there.

use std::cell::RefCell;
use std::rc::Rc;

use super::Sizes;
use super::life;
use super::model::{Deed, Model};
use super::raw::{self, CELLS};
use crate::ids::{Lsn, PageId, Timestamp};
use crate::pool::{Edit, Pool};
use crate::wal::{Class, RecordBuilder};

/// Reproducible random numbers: SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// The model and the random numbers of a run.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) model: Model,
    pub(super) random: Random,
    pub(super) sizes: Sizes,
    /// Records fill whole fractions of a block and nothing else is logged.
    ///
    /// So one life's log often ends where a record of an earlier life begins.
    pub(super) aligned: bool,
    /// Upper bound of open transactions. They hold the cut back, so some runs have none.
    pub(super) open_max: usize,
    pub(super) resizes: bool,
}

pub(super) type Script = Rc<RefCell<State>>;

/// The work of other threads at a yield point.
type Others = Rc<dyn Fn(&Pool)>;

thread_local! {
    static CURRENT: RefCell<Option<Others>> = const { RefCell::new(None) };
}

/// Sets what happens at this thread's yield points; `None` for nothing.
pub(crate) fn play(others: Option<Others>) {
    CURRENT.with(|current| *current.borrow_mut() = others);
}

/// A yield point: lets others work.
pub(crate) fn in_flight(pool: &Pool) {
    if let Some(others) = CURRENT.with(|current| current.borrow().clone()) {
        others(pool);
    }
}

/// Follows `script`, unless it is in use for this thread's own next step.
pub(super) fn follow(script: Script) -> Others {
    Rc::new(move |pool| disturb(pool, &script))
}

fn disturb(pool: &Pool, script: &Script) {
    let Ok(mut state) = script.try_borrow_mut() else { return };
    let (choice, times) = (state.random.below(100), 1 + state.random.below(3));
    drop(state);
    for _ in 0..times {
        // A failure here is one of the log and stays: the next call meets it too.
        let done = match choice {
            0..35 => Some(()),
            35..70 => write(pool, script),
            70..76 => free(pool, script),
            76..84 => commit_nothing(pool, script),
            84..96 => acknowledge(pool, script),
            _ => fill_log(pool, script),
        };
        if done.is_none() {
            return;
        }
    }
}

fn fill_log(pool: &Pool, script: &Script) -> Option<()> {
    let full = (0..1000).try_for_each(|_| write(pool, script)).is_none();
    acknowledge(pool, script).filter(|()| !full)
}

fn some_page(script: &Script) -> Option<PageId> {
    let mut state = script.borrow_mut();
    let count = state.model.pages.len();
    let chosen = (count > 0).then(|| state.random.below(count))?;
    state.model.pages.keys().nth(chosen).map(|&id| PageId(id))
}

fn write(pool: &Pool, script: &Script) -> Option<()> {
    let mut reservation = pool.wal().reserve(1 << 10, Class::Commit)?;
    let Some(mut guard) = some_page(script).and_then(|id| pool.try_latch(id)) else { return Some(()) };
    let mut state = script.borrow_mut();
    let (id, cell) = (guard.id(), state.random.below(CELLS));
    if state.model.locked.contains_key(&(id.0, cell)) {
        return Some(());
    }
    let timestamp = life::draw(pool);
    let mut record = RecordBuilder::pages(timestamp, Lsn::NONE);
    record.set_commit();
    let mut copy = Vec::new();
    guard.copy(&mut copy);
    let (old, value) = (raw::cells(&copy).ok()?[cell], state.model.fresh_value());
    raw::note_write(&mut record, &copy, cell, old, value);
    raw::set_cell(&mut copy, cell, value);
    let edit = Edit::Update(&mut guard, &mut copy);
    let (before, deed) = (pool.wal().tail(), Deed::Write { page: id.0, cell, value });
    let changed = pool.change(&mut record, Some(&mut reservation), [edit]).inspect_err(|_| {
        let deeds = std::slice::from_ref(&deed);
        state.model.interrupted(before, pool.wal().tail(), timestamp, deeds);
    });
    let appended = changed.ok()?;
    state.model.did(&deed);
    state.model.committed(appended.end, timestamp, vec![deed]);
    Some(())
}

fn free(pool: &Pool, script: &Script) -> Option<()> {
    let mut reservation = pool.wal().reserve(1 << 10, Class::Commit)?;
    let Some(guard) = some_page(script).and_then(|id| pool.try_latch(id)) else { return Some(()) };
    life::free(pool, script, guard, &mut reservation).ok()
}

/// Commits without a dirty page: only its lack of durability keeps the log from being cut past it.
fn commit_nothing(pool: &Pool, script: &Script) -> Option<()> {
    let mut reservation = pool.wal().reserve(1 << 10, Class::Commit)?;
    let timestamp: Timestamp = life::draw(pool);
    let mut record = RecordBuilder::commit(timestamp, Lsn::NONE);
    let appended = pool.wal().append(&mut record, Some(&mut reservation)).ok()?;
    script.borrow_mut().model.committed(appended.end, timestamp, Vec::new());
    Some(())
}

fn acknowledge(pool: &Pool, script: &Script) -> Option<()> {
    let end = script.borrow().model.last_end();
    pool.wal().acknowledge(end).ok()?;
    script.borrow_mut().model.acknowledge(end);
    Some(())
}
