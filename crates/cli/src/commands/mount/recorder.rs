//! Records what programs read and write on a mount, as a trace for `terrace simulate`.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use terrace_cache::trace::{Format, Relation, Request, TraceWriter};
use terrace_common::escape;
use terrace_common::failure::{Failure, Outcome};
use terrace_mount::{Observed, Observer};

/// Requests after which they are written to the file.
const WAITING_MAX: u64 = 4096;
/// More than those take, so that the file of a killed mount ends with a whole line.
const BUFFER_BYTES: usize = 1 << 20;
/// Blocks of a relation that a trace can name.
const BLOCKS_MAX: u64 = 1 << 32;

/// A trace that is being written; the first error ends it.
#[derive(Debug)]
pub(super) struct Recorder {
    path: PathBuf,
    block_bytes: u64,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    writer: TraceWriter<BufWriter<File>>,
    numbers: HashMap<String, u32>,
    blocks: u64,
    /// Requests of blocks that have no number in a trace.
    left_out: u64,
    /// Blocks in the file.
    flushed: u64,
    error: Option<io::Error>,
}

impl Recorder {
    /// Creates the file, which must be new.
    pub fn create(path: &Path, block_bytes: u64) -> Outcome<Arc<Recorder>> {
        let name = escape::path(path);
        let format = Format::of(path).map_err(|error| Failure::Usage(error.to_string()))?;
        // Checks the format first, so that an unsupported one leaves no file.
        TraceWriter::new(io::sink(), format).map_err(|error| Failure::Usage(format!("{name}: {error}")))?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let writer =
            file.and_then(|file| TraceWriter::new(BufWriter::with_capacity(BUFFER_BYTES, file), format));
        let writer = writer.map_err(|error| Failure::Work(format!("{name}: {error}")))?;
        let numbers = HashMap::new();
        let state = State { writer, numbers, blocks: 0, left_out: 0, flushed: 0, error: None };
        let (path, begun) = (path.to_owned(), Instant::now());
        Ok(Arc::new(Recorder { path, block_bytes, begun, state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic of another thread leaves at most half a request.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the file of a mount that did not begin, so that the next attempt may make it.
    pub fn discard(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(file = %escape::path(&self.path), %error, "the empty trace cannot be removed");
        }
    }

    /// Writes the rest, and returns how many requests there are, to be printed.
    ///
    /// # Errors
    /// That of the file that ended the trace.
    pub fn finish(&self) -> Outcome<String> {
        let mut state = self.state();
        let flushed = state.writer.flush();
        let (name, blocks) = (escape::path(&self.path), state.blocks);
        match state.error.take().map_or(flushed, Err) {
            Ok(()) if state.left_out == 0 => Ok(format!("{name} has {blocks} requests of a block")),
            Ok(()) => Ok(format!(
                "{name} has {blocks} requests of a block; {} are left out, of blocks from {BLOCKS_MAX} on",
                state.left_out
            )),
            Err(error) => Err(Failure::Work(format!("the trace {name} ends too early: {error}"))),
        }
    }
}

impl Observer for Recorder {
    fn note(&self, observed: &Observed<'_>) {
        let mut state = self.state();
        if state.error.is_some() {
            return;
        }
        let now = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        if let Err(error) = state.write(observed, self.block_bytes, now) {
            tracing::warn!(file = %escape::path(&self.path), %error, "the trace cannot be written, and ends");
            state.error = Some(error);
        }
    }
}

impl State {
    fn write(&mut self, observed: &Observed<'_>, block_bytes: u64, time_us: u64) -> io::Result<()> {
        let number = match self.numbers.get(observed.relation) {
            Some(&number) => number,
            None => {
                let number = self.numbers.len() as u32;
                let name = observed.relation.to_owned();
                let kind = if name.ends_with("_fsm") || name.ends_with("_vm") { "f" } else { "r" };
                self.writer.relation(&Relation { number, name: name.clone(), kind: kind.to_owned() })?;
                self.numbers.insert(name, number);
                number
            }
        };
        let (first, end) = (observed.offset / block_bytes, observed.offset.saturating_add(observed.bytes));
        let end = end.div_ceil(block_bytes);
        // A further one would be a block of another relation.
        let known = end.min(BLOCKS_MAX).max(first);
        self.left_out += end - known;
        for page in first..known.min(BLOCKS_MAX) {
            self.writer.request(&Request {
                block: (u64::from(number) << 32) | page,
                write: observed.is_write,
                relation: Some(number),
                query: None,
                time_us: Some(time_us),
                continues: page > first,
            })?;
            self.blocks += 1;
        }
        if self.blocks - self.flushed >= WAITING_MAX {
            self.writer.flush()?;
            self.flushed = self.blocks;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrace_cache::trace::{Event, Trace};

    use super::*;

    fn requests(path: &Path) -> Vec<u64> {
        let trace = Trace::open(path, None, 4096).expect("a trace");
        let blocks = trace.filter_map(|event| match event.expect("an event") {
            Event::Request(request) => Some(request.block),
            _ => None,
        });
        blocks.collect()
    }

    #[test]
    fn blocks_that_a_trace_cannot_name_are_left_out_and_counted() {
        for extension in ["pgt", "csv"] {
            let folder = tempfile::tempdir().expect("a directory");
            let path = folder.path().join("t").with_extension(extension);
            let recorder = Recorder::create(&path, 4096).expect("a trace");
            let note = |relation, page: u64, bytes| {
                let offset = page.saturating_mul(4096);
                recorder.note(&Observed { relation, offset, bytes, is_write: false });
            };
            note("a", 3, 4096);
            // The last block and the one behind it, one far behind, and the last bytes of all.
            note("a", BLOCKS_MAX - 1, 8192);
            note("a", BLOCKS_MAX + 9, 4096);
            note("b", u64::MAX, 4096);
            note("b", 5, 4096);
            let said = recorder.finish().expect("a whole trace");
            let expected = "3 requests of a block; 3 are left out, of blocks from 4294967296 on";
            assert!(said.ends_with(expected), "{said}");
            assert_eq!(requests(&path), [3, u64::from(u32::MAX), (1 << 32) + 5], "{extension}");
        }
    }

    #[test]
    fn a_trace_without_an_end_has_whole_lines_of_nearly_all() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("t.pgt");
        let recorder = Recorder::create(&path, 4096).expect("a trace");
        for page in 0..2 * WAITING_MAX + 100 {
            let offset = page * 4096;
            recorder.note(&Observed { relation: "a", offset, bytes: 4096, is_write: true });
        }
        let text = std::fs::read_to_string(&path).expect("a trace");
        assert!(text.ends_with('\n'));
        assert_eq!(requests(&path).len() as u64, 2 * WAITING_MAX);
    }
}
