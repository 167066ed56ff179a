//! Asynchronous reads: answered at once from memory, else by a future.
//!
//! Two threads take queued reads in batches and read each batch together ([`Mvcc::get_many_now`]).
//! They start with the first queued read. A request's [`Promise`] answers at the latest on drop, so
//! no future waits forever. Wakers run without locks held.
//!
//! The caller reads itself if [`WAITING_MAX`] requests wait, or without threads: in
//! [`crate::Mode::Inline`], in a read-only database, and in a forked process.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::pool::BATCH_PAGES_MAX;
use crate::txn::mvcc::Mvcc;
use crate::txn::table::TableState;

/// Reader threads: one processes a batch while the other's is on the disk.
const READERS: usize = 2;
const WAITING_MAX: usize = 4096;

type Answer = Result<Option<Vec<u8>>>;

/// The value of a key, now or later: the result of [`crate::Table::get_async`].
///
/// A [`Future`] for any executor. The read proceeds without polls; dropping the future discards the
/// answer. It does not keep the database open: a close answers with [`Error::Poisoned`].
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
pub struct Lookup(Handle);

#[derive(Debug)]
enum Handle {
    /// Taken by the first poll.
    Here(Option<Answer>),
    There(Arc<Slot>),
}

impl Lookup {
    pub(crate) fn ready(answer: Answer) -> Self {
        Lookup(Handle::Here(Some(answer)))
    }

    /// Returns the answer if it is known, else the future again.
    ///
    /// # Panics
    /// If the answer has been taken.
    pub fn now(self) -> std::result::Result<Result<Option<Vec<u8>>>, Lookup> {
        match self.0 {
            Handle::Here(answer) => Ok(answer.expect("the answer is taken once")),
            Handle::There(slot) => {
                let answer = slot.0.lock().answer.take();
                answer.ok_or(Lookup(Handle::There(slot)))
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
            Handle::Here(answer) => return Poll::Ready(answer.take().expect("the answer is taken once")),
            Handle::There(slot) => slot,
        };
        let mut state = slot.0.lock();
        if let Some(answer) = state.answer.take() {
            return Poll::Ready(answer);
        }
        assert!(!state.answered, "the answer is taken once");
        // Only the last poll's waker is called.
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            waker => *waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

#[derive(Debug, Default)]
struct Slot(Mutex<SlotState>);

#[derive(Debug, Default)]
struct SlotState {
    answer: Option<Answer>,
    answered: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Promise(Arc<Slot>);

impl Promise {
    fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn keep(&self, answer: Answer) {
        let waker = {
            let mut state = self.0.0.lock();
            if state.answered {
                return;
            }
            (state.answered, state.answer) = (true, Some(answer));
            state.waker.take()
        };
        // A waker is user code: its panic must not end this thread or an unwinding.
        let wake = || waker.map(Waker::wake);
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(wake)).is_err() {
            tracing::error!("the waker of a lookup has panicked");
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.keep(Err(Error::Poisoned { reason: "a thread of it ended; perhaps it was closed".into() }));
    }
}

#[derive(Debug)]
struct Request {
    table: Arc<TableState>,
    key: Vec<u8>,
    promise: Promise,
}

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
    /// Queues a read for the threads that `spawn` starts, unless they cannot take it.
    pub(crate) fn submit(
        &self,
        table: &Arc<TableState>,
        key: &[u8],
        spawn: impl Fn() -> io::Result<JoinHandle<()>>,
    ) -> Option<Lookup> {
        let mut queue = self.queue.lock();
        if queue.closed || queue.waiting.len() >= WAITING_MAX {
            return None;
        }
        // A panic of a waker may have ended a thread.
        queue.threads.retain(|thread| !thread.is_finished());
        while queue.threads.len() < READERS {
            match spawn() {
                Ok(thread) => queue.threads.push(thread),
                // One thread suffices, only slower.
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
        self.work.notify_one();
        Some(Lookup(Handle::There(slot)))
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    pub(crate) fn serve(&self, mvcc: &Mvcc) {
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
            mvcc.get_many_now(&wanted, &mut |index, answer| {
                requests[index].promise.keep(mvcc.check().and(answer));
            });
        }
    }

    /// Ends the threads and answers waiting requests.
    ///
    /// It may run in one of them, through a waker that dropped the last handle.
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
                // A thread ends early only by a reported panic.
                let _ = thread.join();
            }
        }
    }
}
