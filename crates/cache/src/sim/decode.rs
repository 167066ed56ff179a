//! A trace decoded ahead by another thread.
//!
//! Decoding takes about as long as one policy, and numbering blocks as long again. So a thread
//! decodes batches of events, at most [`BATCHES_MAX`] ahead, in order. It ends with the trace, at
//! an error, or without a consumer.

use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};

use crate::trace::{Event, Trace, TraceError};

const BATCH_EVENTS: usize = 1 << 12;

/// Most batches ahead: 4 MiB of requests. A relation or query, as long as a line, ends its batch.
const BATCHES_MAX: usize = 16;

type Batch = (Vec<Event>, Option<Result<(), TraceError>>);

/// Events decoded ahead; ends after an error.
pub(super) struct Decoded {
    batches: Receiver<Batch>,
    events: std::vec::IntoIter<Event>,
    end: Option<Result<(), TraceError>>,
    thread: Option<JoinHandle<()>>,
}

impl Decoded {
    pub(super) fn new(trace: Trace) -> Decoded {
        let (sender, batches) = mpsc::sync_channel(BATCHES_MAX);
        let thread = Some(thread::spawn(move || decode(trace, &sender)));
        Decoded { batches, events: Vec::new().into_iter(), end: None, thread }
    }
}

fn decode(mut trace: Trace, sender: &SyncSender<Batch>) {
    loop {
        let mut events = Vec::new();
        let end = loop {
            match trace.next() {
                Some(Ok(event)) => {
                    let is_long = !matches!(event, Event::Request(_));
                    events.push(event);
                    if is_long || events.len() == BATCH_EVENTS {
                        break None;
                    }
                }
                Some(Err(error)) => break Some(Err(error)),
                None => break Some(Ok(())),
            }
        };
        let is_last = end.is_some();
        // Fails if the simulation has failed elsewhere.
        if sender.send((events, end)).is_err() || is_last {
            return;
        }
    }
}

impl Iterator for Decoded {
    type Item = Result<Event, TraceError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.events.next() {
                return Some(Ok(event));
            }
            match self.end.take() {
                None => {}
                Some(Ok(())) => {
                    self.end = Some(Ok(()));
                    return None;
                }
                Some(Err(error)) => {
                    self.end = Some(Ok(()));
                    return Some(Err(error));
                }
            }
            match self.batches.recv() {
                Ok((events, end)) => (self.events, self.end) = (events.into_iter(), end),
                // The thread panicked before its last batch, so this one does.
                Err(_) => match self.thread.take().map(JoinHandle::join) {
                    Some(Err(panic)) => std::panic::resume_unwind(panic),
                    _ => unreachable!("the decoder ends with a last batch"),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::{BATCH_EVENTS, Decoded};
    use crate::trace::{Event, Trace, TraceError};

    fn decoded(reader: impl Read + Send + 'static) -> Vec<Result<u64, TraceError>> {
        let trace = Trace::new("t", reader, "lis".parse().unwrap(), 4096);
        let block = |event| match event {
            Event::Request(request) => request.block,
            other => panic!("{other:?}"),
        };
        Decoded::new(trace).map(|event| event.map(block)).collect()
    }

    #[test]
    fn events_come_in_their_order_and_the_error_last() {
        for blocks in [0, 1, BATCH_EVENTS - 1, BATCH_EVENTS, BATCH_EVENTS + 1, 20 * BATCH_EVENTS + 7] {
            let good: String = (0..blocks).map(|block| format!("{block} 1 0 0\n")).collect();
            let events: Vec<u64> =
                decoded(std::io::Cursor::new(good.clone())).into_iter().map(Result::unwrap).collect();
            assert!(events.into_iter().eq(0..blocks as u64), "{blocks}");
            let mut bad = decoded(std::io::Cursor::new(good + "x\n"));
            assert!(matches!(bad.pop(), Some(Err(TraceError::Malformed { .. }))), "{blocks}");
            assert_eq!(bad.into_iter().filter(Result::is_ok).count(), blocks);
        }
    }

    #[test]
    fn a_panic_of_the_reader_is_not_the_end_of_the_trace() {
        struct Panics;
        impl Read for Panics {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                panic!("planted");
            }
        }
        assert!(std::panic::catch_unwind(|| decoded(Panics)).is_err());
    }
}
