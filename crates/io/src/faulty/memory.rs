//! A persistent memory on a simulated disk: its write-backs and fences are calls of the disk.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::lines::Lines;
use super::names::FileNumber;
use super::plan::CallKind;
use super::platter::Platter;
use super::state::{Fate, State, power_lost};
use crate::directory::memory::is_no_memory;
use crate::directory::{OpenMode, already_exists, not_found};
use crate::memory::persistent::Observer;
use crate::memory::persistent::mapping::SharedMapping;

#[derive(Debug)]
pub(super) struct SimulatedLines {
    state: Arc<Mutex<State>>,
    number: FileNumber,
    name: String,
}

impl SimulatedLines {
    pub(super) fn new(state: Arc<Mutex<State>>, number: FileNumber, name: String) -> Self {
        Self { state, number, name }
    }

    /// A call with an effect on the lines. One under way at a crash needs none: its lines may
    /// persist as any other.
    fn call(
        &self,
        kind: CallKind,
        target: impl Fn() -> String,
        act: impl FnOnce(&mut Lines),
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        match state.fate(kind, target) {
            Fate::Proceed if kind == CallKind::Fence && state.lying => Ok(()),
            Fate::Proceed => {
                act(lines(&mut state, self.number));
                Ok(())
            }
            Fate::Fail { error, .. } => Err(error),
            Fate::Crash | Fate::Dead => Err(power_lost()),
        }
    }
}

impl Observer for SimulatedLines {
    fn note(&self, range: Range<usize>) {
        let mut state = self.state.lock();
        if state.crashed.is_none() {
            lines(&mut state, self.number).note(range);
        }
    }

    fn write_back(&self, range: Range<usize>) -> io::Result<()> {
        let target = || format!("{} {}+{}", self.name, range.start, range.len());
        self.call(CallKind::WriteBack, target, |lines| lines.write_back(range.clone()))
    }

    fn fence(&self) -> io::Result<()> {
        self.call(CallKind::Fence, || self.name.clone(), Lines::fence)
    }
}

fn lines(state: &mut State, number: FileNumber) -> &mut Lines {
    state.memories.get_mut(&number).expect("memories of a disk stay, also without a name")
}

pub(super) fn open(
    state: &mut State,
    file: &str,
    bytes: u64,
    mode: OpenMode,
) -> io::Result<(FileNumber, Arc<SharedMapping>)> {
    let number = match (state.names.find(file), mode) {
        (Some(_), OpenMode::CreateNew) => return Err(already_exists(file)),
        (Some(number), _) => number,
        (None, OpenMode::CreateNew) => create(state, file, bytes)?,
        (None, _) => return Err(not_found(file)),
    };
    let lines = state.memories.get_mut(&number).ok_or_else(|| is_no_memory(file))?;
    Ok((number, lines.map(file)?))
}

pub(super) fn resize(state: &mut State, file: &str, bytes: u64) -> io::Result<()> {
    let number = state.names.find(file).ok_or_else(|| not_found(file))?;
    let lines = state.memories.get(&number).ok_or_else(|| is_no_memory(file))?;
    if !state.has_room(bytes.saturating_sub(lines.len())) {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    self::lines(state, number).resize(bytes)
}

fn create(state: &mut State, file: &str, bytes: u64) -> io::Result<FileNumber> {
    let lines = Lines::new(bytes)?;
    if !state.has_room(lines.len()) {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    let number = state.files.len();
    state.files.push(Platter::default());
    state.names.add(file, number);
    state.memories.insert(number, lines);
    Ok(number)
}
