//! Many caches over one trace, on several threads.
//!
//! Each cache is a [`Lane`], which takes the chunks of the trace in their order. One thread, the caller's, reads chunks
//! into a window; workers take an idle lane that has chunks before it, run it over those, and put it back. A chunk leaves
//! the window when all lanes are past it, and the reader waits while the window is full. So a trace of any length
//! takes a window of memory, and no thread waits for another as long as any lane can go on.
//!
//! While the trace is being read, the lane furthest behind goes first, because it holds up the window. When all of it is
//! in memory, the lane furthest ahead does, so that few are begun and not finished, and a lane is made only
//! when it is begun.
//!
//! One mutex guards all of it; it is taken twice for a stretch of chunks, and never while a lane runs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::cache::Counts;
use super::chunk::Chunk;
use super::distance::Distances;
use super::parts::Part;
use super::{SimError, Step};

/// Something that takes a trace, chunk after chunk.
pub(super) trait Lane: Send {
    fn run(&mut self, chunk: &Chunk);
    fn finish(self: Box<Self>) -> Outcome;
}

/// What a lane comes to.
pub(super) enum Outcome {
    Cache { counts: Counts, dirty: u64, seconds: f64, parts: (Vec<Part>, Vec<Part>) },
    Distances(Distances),
}

/// Makes a lane when its turn comes.
pub(super) type Job = Box<dyn FnOnce() -> Box<dyn Lane> + Send>;

/// Chunks that a lane is run over before another may have the thread.
const STRETCH_CHUNKS: usize = 64;

/// Where a lane is.
enum Place {
    /// Not begun.
    Waiting(Job),
    /// Nobody runs it.
    Idle(Box<dyn Lane>),
    /// A worker runs it.
    Running,
    Finished(Outcome),
}

struct Track {
    place: Place,
    /// The chunk it takes next.
    next: usize,
}

struct State {
    /// Chunks that not all lanes have taken.
    window: VecDeque<Arc<Chunk>>,
    /// The number of the first of those.
    first: usize,
    /// No chunks will follow.
    ended: bool,
    /// A worker panicked, or the trace is malformed: nothing will be finished.
    given_up: bool,
    tracks: Vec<Track>,
}

impl State {
    fn end(&self) -> usize {
        self.first + self.window.len()
    }

    /// The lane that should run now, if any can.
    fn choice(&self) -> Option<usize> {
        let end = self.end();
        let can_run = |track: &Track| {
            let is_free = matches!(track.place, Place::Waiting(_) | Place::Idle(_));
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
        self.tracks.iter().all(|track| matches!(track.place, Place::Finished(_)))
    }

    /// Drops chunks that all lanes have taken.
    fn trim(&mut self) {
        let unfinished = self.tracks.iter().filter(|track| !matches!(track.place, Place::Finished(_)));
        let Some(behind) = unfinished.map(|track| track.next).min() else { return };
        while self.first < behind {
            self.window.pop_front();
            self.first += 1;
        }
    }
}

struct Flow<'a> {
    state: Mutex<State>,
    /// A chunk came or went, or a lane is free again.
    changed: Condvar,
    /// Told of requests that a lane has taken, and of chunks that were read.
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

    /// Runs lanes until all are finished.
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
            let place = std::mem::replace(&mut track.place, Place::Running);
            let next = track.next;
            let offset = next - state.first;
            let stretch: Vec<Arc<Chunk>> =
                state.window.iter().skip(offset).take(STRETCH_CHUNKS).cloned().collect();
            let is_last = state.ended && next + stretch.len() == state.end();
            drop(state);

            let mut lane = match place {
                Place::Waiting(job) => job(),
                Place::Idle(lane) => lane,
                Place::Running | Place::Finished(_) => unreachable!("only free lanes are chosen"),
            };
            stretch.iter().for_each(|chunk| lane.run(chunk));
            let place = if is_last { Place::Finished(lane.finish()) } else { Place::Idle(lane) };
            (self.progress)(Step::Taken(stretch.iter().map(|chunk| chunk.len() as u64).sum()));

            state = self.state.lock();
            state.tracks[index] = Track { place, next: next + stretch.len() };
            drop(stretch);
            state.trim();
            self.changed.notify_all();
        }
    }

    /// Puts a chunk into the window, when there is room in it for one more than `window_chunks`.
    fn push(&self, chunk: Chunk, window_chunks: usize) {
        let mut state = self.state.lock();
        if state.tracks.is_empty() {
            // Nobody would ever take it out of the window.
            return;
        }
        while state.window.len() >= window_chunks && !state.given_up {
            self.changed.wait(&mut state);
        }
        state.window.push_back(Arc::new(chunk));
        self.changed.notify_all();
    }
}

/// Runs all lanes over `loaded` and then over what `read` yields until it yields nothing; at most `window_chunks` chunks,
/// or those loaded, are in memory at a time.
pub(super) fn drive(
    jobs: Vec<Job>,
    threads: usize,
    loaded: Vec<Arc<Chunk>>,
    window_chunks: usize,
    read: Option<&mut dyn FnMut() -> Result<Option<Chunk>, SimError>>,
    progress: &(dyn Fn(Step) + Sync),
) -> Result<Vec<Outcome>, SimError> {
    let tracks = jobs.into_iter().map(|job| Track { place: Place::Waiting(job), next: 0 }).collect();
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
                // A worker's panic goes on when the scope ends.
                return Ok(());
            }
        }
    });
    was_read?;
    let outcomes = flow.state.into_inner().tracks.into_iter().map(|track| match track.place {
        Place::Finished(outcome) => outcome,
        _ => unreachable!("all lanes were finished"),
    });
    Ok(outcomes.collect())
}
