//! Many caches over one trace, on several threads.
//!
//! Each cache is a [`Lane`] that takes chunks in order. The calling thread reads chunks into a
//! window; workers run idle lanes over available chunks. A chunk leaves the window once all lanes
//! have passed it, and the reader waits while the window is full.
//!
//! During reading, the lane furthest behind goes first, because it holds the window. With the whole
//! trace in memory, the lane furthest ahead does, so that few are unfinished; a lane is made only
//! when it begins. One mutex guards everything: taken twice per stretch of chunks, never held while
//! a lane runs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::Step;
use super::chunk::Chunk;
use super::counts::Counts;
use super::distance::Distances;
use super::error::SimError;
use super::parts::Part;

/// A consumer of a trace's chunks.
pub(super) trait Lane: Send {
    fn run(&mut self, chunk: &Chunk);
    fn finish(self: Box<Self>) -> Outcome;
}

/// A lane's result.
pub(super) enum Outcome {
    Cache { counts: Counts, dirty: u64, seconds: f64, parts: (Vec<Part>, Vec<Part>) },
    Distances(Distances),
}

/// Makes a lane in its turn.
pub(super) type Job = Box<dyn FnOnce() -> Box<dyn Lane> + Send>;

/// Chunks that a lane runs before it yields the thread.
const STRETCH_CHUNKS: usize = 64;

enum Location {
    /// Not begun.
    Waiting(Job),
    /// Not running.
    Idle(Box<dyn Lane>),
    /// On a worker.
    Running,
    Finished(Outcome),
}

struct Track {
    location: Location,
    /// Its next chunk.
    next: usize,
}

struct State {
    /// Chunks that some lane still needs.
    window: VecDeque<Arc<Chunk>>,
    /// The number of the window's first chunk.
    first: usize,
    /// No more chunks follow.
    ended: bool,
    /// A worker panicked, or the trace is malformed.
    given_up: bool,
    tracks: Vec<Track>,
}

impl State {
    fn end(&self) -> usize {
        self.first + self.window.len()
    }

    /// The lane to run now, if any.
    fn choice(&self) -> Option<usize> {
        let end = self.end();
        let can_run = |track: &Track| {
            let is_free = matches!(track.location, Location::Waiting(_) | Location::Idle(_));
            is_free && (track.next < end || self.ended)
        };
        let free = self.tracks.iter().enumerate().filter(|(_, track)| can_run(track));
        match self.ended {
            true => free.max_by_key(|(index, track)| (track.next, usize::MAX - index)),
            false => free.min_by_key(|(index, track)| (track.next, *index)),
        }
        .map(|(index, _)| index)
    }

    fn is_finished(&self) -> bool {
        self.tracks.iter().all(|track| matches!(track.location, Location::Finished(_)))
    }

    /// Drops chunks that all lanes have passed.
    fn trim(&mut self) {
        let unfinished = self.tracks.iter().filter(|track| !matches!(track.location, Location::Finished(_)));
        let Some(behind) = unfinished.map(|track| track.next).min() else { return };
        while self.first < behind {
            self.window.pop_front();
            self.first += 1;
        }
    }
}

struct Flow<'a> {
    state: Mutex<State>,
    /// A chunk came or went, or a lane became idle.
    changed: Condvar,
    /// Reports processed requests and read chunks.
    progress: &'a (dyn Fn(Step) + Sync),
}

/// Gives up for all when a thread panics, so that none waits for it.
struct GiveUp<'a, 'b>(&'a Flow<'b>);

impl Drop for GiveUp<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.give_up();
        }
    }
}

impl Flow<'_> {
    fn give_up(&self) {
        self.state.lock().given_up = true;
        self.changed.notify_all();
    }

    /// Runs lanes until all have finished.
    fn work(&self) {
        let _guard = GiveUp(self);
        let mut state = self.state.lock();
        loop {
            if state.given_up || (state.ended && state.is_finished()) {
                return;
            }
            let Some(index) = state.choice() else {
                self.changed.wait(&mut state);
                continue;
            };
            let track = &mut state.tracks[index];
            let location = std::mem::replace(&mut track.location, Location::Running);
            let next = track.next;
            let offset = next - state.first;
            let stretch: Vec<Arc<Chunk>> =
                state.window.iter().skip(offset).take(STRETCH_CHUNKS).cloned().collect();
            let is_last = state.ended && next + stretch.len() == state.end();
            drop(state);

            let mut lane = match location {
                Location::Waiting(job) => job(),
                Location::Idle(lane) => lane,
                Location::Running | Location::Finished(_) => unreachable!("only free lanes are chosen"),
            };
            stretch.iter().for_each(|chunk| lane.run(chunk));
            let location = if is_last { Location::Finished(lane.finish()) } else { Location::Idle(lane) };
            (self.progress)(Step::Taken(stretch.iter().map(|chunk| chunk.len() as u64).sum()));

            state = self.state.lock();
            state.tracks[index] = Track { location, next: next + stretch.len() };
            drop(stretch);
            state.trim();
            self.changed.notify_all();
        }
    }

    /// Adds a chunk, once the window has at most `window_chunks`.
    fn push(&self, chunk: Chunk, window_chunks: usize) {
        let mut state = self.state.lock();
        if state.tracks.is_empty() {
            // No lane would ever take it.
            return;
        }
        while state.window.len() >= window_chunks && !state.given_up {
            self.changed.wait(&mut state);
        }
        state.window.push_back(Arc::new(chunk));
        self.changed.notify_all();
    }
}

/// Runs all lanes over `loaded`, then over the chunks of `read`. At most `window_chunks` chunks, or
/// the loaded ones, are in memory at a time.
pub(super) fn drive(
    jobs: Vec<Job>,
    threads: usize,
    loaded: Vec<Arc<Chunk>>,
    window_chunks: usize,
    read: Option<&mut dyn FnMut() -> Result<Option<Chunk>, SimError>>,
    progress: &(dyn Fn(Step) + Sync),
) -> Result<Vec<Outcome>, SimError> {
    let tracks = jobs.into_iter().map(|job| Track { location: Location::Waiting(job), next: 0 }).collect();
    let ended = read.is_none();
    let state = State { window: loaded.into(), first: 0, ended, given_up: false, tracks };
    let flow = Flow { state: Mutex::new(state), changed: Condvar::new(), progress };
    let was_read = thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| flow.work());
        }
        let Some(read) = read else { return Ok(()) };
        loop {
            match read() {
                Ok(Some(chunk)) => {
                    progress(Step::Read);
                    flow.push(chunk, window_chunks);
                }
                Ok(None) => {
                    flow.state.lock().ended = true;
                    flow.changed.notify_all();
                    return Ok(());
                }
                Err(error) => {
                    flow.give_up();
                    return Err(error);
                }
            }
            if flow.state.lock().given_up {
                // The scope's end resumes a worker's panic.
                return Ok(());
            }
        }
    });
    was_read?;
    let outcomes = flow.state.into_inner().tracks.into_iter().map(|track| match track.location {
        Location::Finished(outcome) => outcome,
        _ => unreachable!("all lanes were finished"),
    });
    Ok(outcomes.collect())
}
