//! Frames for pages that are about to exist, reserved before the first of them is taken.
//!
//! Whoever makes several pages in one record has frames in hand while waiting for the next. Threads that do so beside
//! each other could have all frames in hand, each waiting for the others'. So the frames of all of them are reserved
//! first, with nothing in hand but a place in the line of the class. Reservations at the same time are for at most half of
//! a class's frames, so that faults always find the other half; one for more is let in alone. Where frames are few for
//! the threads there are, the makers of pages thus come one after the other.
//!
//! Order: gate, locked keys, reserved frames (smaller classes first), frames, log space. Whoever waits in one of these
//! holds at most what stands before it, and the holder of a reservation waits for no key and no other reservation.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::patience::Patience;
use super::pool::Pool;
use crate::error::{Error, Result};
use crate::ids::{ByClass, SizeClass};
use crate::planted::{Bug, planted};

/// The longest that somebody in line goes without looking whether the database still works.
const NAP: Duration = Duration::from_millis(5);

/// What is reserved, of all classes.
#[derive(Debug, Default)]
pub(super) struct ReservedFrames {
    classes: ByClass<Class>,
}

#[derive(Debug, Default)]
struct Class {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Frames that are reserved.
    reserved: u32,
    /// Reservations ever let in, and given back.
    moves: u64,
    /// The numbers of those in line, the next one first.
    line: VecDeque<u64>,
    next_number: u64,
}

impl State {
    fn has_room(&self, frames: u32, most: u32) -> bool {
        self.reserved == 0 || self.reserved + frames <= most || planted(Bug::ReserveBeyondFrames)
    }
}

/// Frames reserved, given back when dropped.
#[derive(Debug)]
pub(crate) struct FrameReservation<'p> {
    pool: &'p Pool,
    frames: ByClass<u32>,
}

impl FrameReservation<'_> {
    /// How many frames of `class` it is for.
    pub(crate) fn of(&self, class: SizeClass) -> u32 {
        self.frames[class.index()]
    }
}

impl Drop for FrameReservation<'_> {
    fn drop(&mut self) {
        for (class, frames) in self.pool.reserved_frames.classes.iter().zip(self.frames) {
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

impl Pool {
    /// Reserves so many frames of each class. Waits; the caller holds no frame, no log space and no other reservation.
    ///
    /// # Errors
    /// [`Error::OutOfFrames`] if nobody gets any further, [`Error::Poisoned`].
    pub(crate) fn reserve_frames(&self, frames: ByClass<u32>) -> Result<FrameReservation<'_>> {
        let mut reservation = FrameReservation { pool: self, frames: [0; SizeClass::COUNT] };
        for class in SizeClass::all() {
            let wanted = frames[class.index()];
            if wanted > 0 {
                self.reserve_frames_of(class, wanted)?;
                reservation.frames[class.index()] = wanted;
            }
        }
        Ok(reservation)
    }

    fn reserve_frames_of(&self, class: SizeClass, frames: u32) -> Result<()> {
        let of_class = &self.reserved_frames.classes[class.index()];
        let most = || self.frames.count(class) / 2;
        let mut state = of_class.state.lock();
        if !(state.line.is_empty() && state.has_room(frames, most())) {
            self.stats.frame_reservation_waits.fetch_add(1, Relaxed);
            let me = state.next_number;
            state.next_number += 1;
            state.line.push_back(me);
            let mut patience = Patience::new(false);
            while !(state.line.front() == Some(&me) && state.has_room(frames, most())) {
                let waits = self.check().and_then(|()| {
                    let lasts = patience.lasts((state.moves, self.log_progress(), self.stats.taken(class)));
                    if lasts { Ok(()) } else { Err(self.out_of_frames(class)) }
                });
                if let Err(error) = waits {
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
        // The next one may have room beside this one.
        of_class.moved.notify_all();
        Ok(())
    }

    pub(super) fn out_of_frames(&self, class: SizeClass) -> Error {
        let (count, bytes) = (self.frames.count(class), class.page_bytes());
        let what = format!("all {count} frames of {bytes} bytes of the DRAM tier are in use at once");
        Error::OutOfFrames { what }
    }
}
