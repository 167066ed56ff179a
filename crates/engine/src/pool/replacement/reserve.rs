//! Frames reserved for pages about to be created.
//!
//! Threads that create several pages in one record could hold frames and wait for each other. So
//! each reserves all its frames first, while it holds none. Concurrent reservations take at most
//! half of a class's frames, so faults find the other half. A larger one is granted alone.
//!
//! Order: gate, locked keys, reserved frames (smaller classes first), frames, log space. A thread
//! that waits for one of these holds only earlier ones. The holder of a reservation waits for no
//! key and no other reservation.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::ids::{ByClass, SizeClass};
use crate::planted::{Bug, planted};
use crate::pool::patience::Patience;

/// Sleep of a waiting thread between checks for a failed database.
const NAP: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(in crate::pool) struct ReservedFrames {
    classes: ByClass<Class>,
}

#[derive(Debug, Default)]
struct Class {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reserved: u32,
    /// Reservations granted and released.
    moves: u64,
    /// Numbers of waiting threads, the next one first.
    line: VecDeque<u64>,
    next_number: u64,
}

impl State {
    fn has_room(&self, frames: u32, most: u32) -> bool {
        self.reserved == 0 || self.reserved + frames <= most || planted(Bug::ReserveBeyondFrames)
    }
}

#[derive(Debug)]
pub(crate) struct FrameReservation<'p> {
    reserved: &'p ReservedFrames,
    frames: ByClass<u32>,
}

impl FrameReservation<'_> {
    pub(crate) fn of(&self, class: SizeClass) -> u32 {
        self.frames[class.index()]
    }
}

impl Drop for FrameReservation<'_> {
    fn drop(&mut self) {
        for (class, frames) in self.reserved.classes.iter().zip(self.frames) {
            if frames > 0 {
                let mut state = class.state.lock();
                state.reserved -= frames;
                state.moves += 1;
                drop(state);
                class.moved.notify_all();
            }
        }
    }
}

pub(in crate::pool) trait Waits {
    fn most(&self, class: SizeClass) -> u32;

    /// Progress of other threads that use frames of `class`.
    ///
    /// An error if the database has failed.
    fn progress(&self, class: SizeClass) -> Result<((u64, u64, u64), u64)>;

    fn refused(&self, class: SizeClass) -> Error;
}

impl ReservedFrames {
    /// Reserves `frames` of each class; waits as `waits` says.
    ///
    /// Counts waits in `waited`. The caller holds no frame, no log space and no other reservation.
    ///
    /// # Errors
    /// Those of `waits`.
    pub(in crate::pool) fn reserve(
        &self,
        frames: ByClass<u32>,
        waited: &AtomicU64,
        waits: &impl Waits,
    ) -> Result<FrameReservation<'_>> {
        let mut reservation = FrameReservation { reserved: self, frames: [0; SizeClass::COUNT] };
        for class in SizeClass::all() {
            let wanted = frames[class.index()];
            if wanted > 0 {
                self.reserve_of(class, wanted, waited, waits)?;
                reservation.frames[class.index()] = wanted;
            }
        }
        Ok(reservation)
    }

    fn reserve_of(
        &self,
        class: SizeClass,
        frames: u32,
        waited: &AtomicU64,
        waits: &impl Waits,
    ) -> Result<()> {
        let of_class = &self.classes[class.index()];
        let most = || waits.most(class);
        let mut state = of_class.state.lock();
        if !(state.line.is_empty() && state.has_room(frames, most())) {
            waited.fetch_add(1, Relaxed);
            let me = state.next_number;
            state.next_number += 1;
            state.line.push_back(me);
            let mut patience = Patience::new(false);
            while !(state.line.front() == Some(&me) && state.has_room(frames, most())) {
                let lasts = waits.progress(class).and_then(|progress| {
                    let lasts = patience.lasts((state.moves, progress));
                    if lasts { Ok(()) } else { Err(waits.refused(class)) }
                });
                if let Err(error) = lasts {
                    state.line.retain(|&number| number != me);
                    of_class.moved.notify_all();
                    return Err(error);
                }
                of_class.moved.wait_for(&mut state, NAP);
            }
            state.line.pop_front();
        }
        state.reserved += frames;
        state.moves += 1;
        drop(state);
        // The next reservation may fit beside this one.
        of_class.moved.notify_all();
        Ok(())
    }
}
