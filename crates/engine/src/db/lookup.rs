//! Reads that do not block their caller: the answer at once where memory has it, else a future.
//!
//! What memory cannot answer is put on a queue. Two threads, started with the first such read, take what is waiting there,
//! up to a batch, and read it together ([`Core::get_many_now`]): the more is asked for, the more is read at a time.
//! A [`Promise`] goes with each request and answers it when it is dropped at the latest, so that a future never waits for
//! nobody. Wakers are called with no lock held.
//!
//! The queue is bounded. Beyond [`WAITING_MAX`] requests, and where there are no threads ([`crate::Mode::Inline`], a
//! database that is open read-only, a process forked from the one that opened it), the caller reads for itself.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::core::{Core, TableState};
use crate::buffer::BATCH_PAGES_MAX;
use crate::error::{Error, Result};

/// Threads that read for futures. While one has a batch on the disk the other looks at what came back.
const READERS: usize = 2;
/// Requests that may wait for them.
const WAITING_MAX: usize = 4096;

type Answer = Result<Option<Vec<u8>>>;

/// The value of a key, now or later: what [`crate::Table::get_async`] returns.
///
/// It is a [`Future`] for any executor. The read is under way whether it is polled or not; dropping it forgets the
/// answer. It does not keep the database open: closing it answers with [`Error::Poisoned`].
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let table = db.create_table("t")?;
/// table.put("k", "v")?;
/// match table.get_async("k").now() {
///     Ok(value) => assert_eq!(value?.as_deref(), Some(&b"v"[..])),
///     Err(_later) => unreachable!("it was written a moment ago, and is in memory"),
/// }
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the value is in the future"]
pub struct Lookup(Place);

#[derive(Debug)]
enum Place {
    /// Taken when it is polled.
    Here(Option<Answer>),
    There(Arc<Slot>),
}

impl Lookup {
    pub(crate) fn ready(answer: Answer) -> Self {
        Lookup(Place::Here(Some(answer)))
    }

    /// The answer, if it is known already; else the future again.
    ///
    /// # Panics
    /// If the answer has been taken.
    pub fn now(self) -> std::result::Result<Result<Option<Vec<u8>>>, Lookup> {
        match self.0 {
            Place::Here(answer) => Ok(answer.expect("the answer is taken once")),
            Place::There(slot) => {
                let answer = slot.0.lock().answer.take();
                answer.ok_or(Lookup(Place::There(slot)))
            }
        }
    }
}

impl Future for Lookup {
    type Output = Result<Option<Vec<u8>>>;

    /// # Panics
    /// If the answer has been taken.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let slot = match &mut self.get_mut().0 {
            Place::Here(answer) => return Poll::Ready(answer.take().expect("the answer is taken once")),
            Place::There(slot) => slot,
        };
        let mut state = slot.0.lock();
        if let Some(answer) = state.answer.take() {
            return Poll::Ready(answer);
        }
        assert!(!state.answered, "the answer is taken once");
        // The last to poll is the one to wake.
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            waker => *waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

/// Where the answer is put.
#[derive(Debug, Default)]
struct Slot(Mutex<SlotState>);

#[derive(Debug, Default)]
struct SlotState {
    answer: Option<Answer>,
    answered: bool,
    waker: Option<Waker>,
}

/// The duty to answer.
#[derive(Debug)]
struct Promise(Arc<Slot>);

impl Promise {
    /// Whether anybody waits for the answer.
    fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Answers, unless that has been done.
    fn keep(&self, answer: Answer) {
        let waker = {
            let mut state = self.0.0.lock();
            if state.answered {
                return;
            }
            (state.answered, state.answer) = (true, Some(answer));
            state.waker.take()
        };
        // It is the user's, and what it does must end neither a thread that others wait for nor an unwinding.
        let wake = || waker.map(Waker::wake);
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(wake)).is_err() {
            tracing::error!("the waker of a lookup has panicked");
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.keep(Err(Error::Poisoned {
            reason: "the database has been closed, or a thread of it has failed".into(),
        }));
    }
}

#[derive(Debug)]
struct Request {
    table: Arc<TableState>,
    key: Vec<u8>,
    promise: Promise,
}

/// The queue, and the threads that serve it.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Request>,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

impl Lookups {
    /// Has the threads of `core` read `key`; `None` if they cannot.
    pub(crate) fn submit(core: &Arc<Core>, table: &Arc<TableState>, key: &[u8]) -> Option<Lookup> {
        let this = &core.lookups;
        let mut queue = this.queue.lock();
        if queue.closed || queue.waiting.len() >= WAITING_MAX {
            return None;
        }
        // One may have ended by a panic of a waker.
        queue.threads.retain(|thread| !thread.is_finished());
        while queue.threads.len() < READERS {
            let core = Arc::clone(core);
            let builder = std::thread::Builder::new().name("terrace-read".to_owned());
            match builder.spawn(move || core.lookups.serve(&core)) {
                Ok(thread) => queue.threads.push(thread),
                // One does as well, only slower.
                Err(_) if !queue.threads.is_empty() => break,
                Err(error) => {
                    tracing::warn!(%error, "no thread to read in the background, reading in place");
                    return None;
                }
            }
        }
        let slot = Arc::new(Slot::default());
        let promise = Promise(Arc::clone(&slot));
        queue.waiting.push_back(Request { table: Arc::clone(table), key: key.to_vec(), promise });
        drop(queue);
        this.work.notify_one();
        Some(Lookup(Place::There(slot)))
    }

    /// How many requests wait for a thread.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Answers what is asked until the database is closed.
    fn serve(&self, core: &Core) {
        loop {
            let mut requests: Vec<Request> = {
                let mut queue = self.queue.lock();
                while queue.waiting.is_empty() && !queue.closed {
                    self.work.wait(&mut queue);
                }
                if queue.closed {
                    return;
                }
                let count = queue.waiting.len().min(BATCH_PAGES_MAX);
                queue.waiting.drain(..count).collect()
            };
            requests.retain(|request| request.promise.is_wanted());
            let wanted: Vec<(&TableState, &[u8])> =
                requests.iter().map(|request| (&*request.table, &request.key[..])).collect();
            core.get_many_now(&wanted, &mut |index, answer| {
                requests[index].promise.keep(core.check().and(answer));
            });
        }
    }

    /// Ends the threads and answers what waits. Called by one of them, by way of a waker that dropped the last handle,
    /// it does not wait for that one, which ends when the waker returns.
    pub(crate) fn close(&self) {
        let (waiting, threads) = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            (std::mem::take(&mut queue.waiting), std::mem::take(&mut queue.threads))
        };
        self.work.notify_all();
        drop(waiting);
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                // It ends by a panic only, which has been told.
                let _ = thread.join();
            }
        }
    }
}
