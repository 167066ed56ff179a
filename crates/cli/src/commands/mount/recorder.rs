//! Records what programs read and write on a mount, as a trace for `terrace simulate`.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use terrace_cache::trace::{Format, Relation, Request, TraceWriter};
use terrace_common::escape;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::output::print;
use terrace_mount::{Observed, Observer};

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
        let writer = file.and_then(|file| TraceWriter::new(BufWriter::new(file), format));
        let writer = writer.map_err(|error| Failure::Work(format!("{name}: {error}")))?;
        let state = State { writer, numbers: HashMap::new(), blocks: 0, error: None };
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

    /// Writes the rest, and says how many requests there are.
    ///
    /// # Errors
    /// That of the file that ended the trace.
    pub fn finish(&self, output: &mut dyn Write) -> Outcome {
        let mut state = self.state();
        let flushed = state.writer.flush();
        let name = escape::path(&self.path);
        match state.error.take().map_or(flushed, Err) {
            Ok(()) => print(output, format_args!("{name} has {} requests of a block\n", state.blocks)),
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
        for page in first..end.div_ceil(block_bytes) {
            self.writer.request(&Request {
                // A page beyond the format makes it a block of another relation, which is refused.
                block: (u64::from(number) << 32) + page,
                write: observed.is_write,
                relation: Some(number),
                query: None,
                time_us: Some(time_us),
                continues: page > first,
            })?;
            self.blocks += 1;
        }
        Ok(())
    }
}
