//! Persistent memory of a simulated disk, and what a power cut leaves of its lines.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::names::FileNumber;
use super::random::Random;
use super::{CallKind, Fate, SimulatedDisk, State, power_lost};
use crate::device::sparse::Sparse;
use crate::directory::memory::is_no_memory;
use crate::directory::{OpenMode, already_exists, not_found};
use crate::memory::persistent::mapping::{SharedMapping, whole_pages};
use crate::memory::persistent::{Observer, PAGE_BYTES};

/// The lines of one memory.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    durable: Sparse,
    /// The present content, while nobody has it mapped.
    present: Sparse,
    mapping: Option<Arc<SharedMapping>>,
}

impl Lines {
    fn new(bytes: u64) -> io::Result<Lines> {
        let mut durable = Sparse::default();
        durable.set_len(whole_pages(bytes)?)?;
        Ok(Lines { present: durable.clone(), durable, mapping: None })
    }

    pub(super) fn len(&self) -> u64 {
        self.durable.len()
    }

    fn map(&mut self, name: &str) -> io::Result<Arc<SharedMapping>> {
        if let Some(mapping) = &self.mapping {
            return Ok(Arc::clone(mapping));
        }
        let mapping = Arc::new(SharedMapping::anonymous(name, self.len())?);
        let mut page = [0; PAGE_BYTES];
        for at in (0..mapping.len()).step_by(PAGE_BYTES) {
            self.present.read(at as u64, &mut page);
            mapping.fill(at, &page);
        }
        self.mapping = Some(Arc::clone(&mapping));
        Ok(mapping)
    }

    fn content(&self) -> Sparse {
        let Some(mapping) = &self.mapping else { return self.present.clone() };
        let (mut content, mut page) = (self.present.clone(), [0; PAGE_BYTES]);
        for at in (0..mapping.len()).step_by(PAGE_BYTES) {
            mapping.read(at, &mut page);
            content.write(at as u64, &page);
        }
        content
    }

    /// Later stores do not count.
    pub(super) fn freeze(&mut self) {
        self.present = self.content();
        self.mapping = None;
    }

    pub(super) fn survivor(&self, _random: &mut Random) -> Lines {
        let content = self.content();
        Lines { durable: content.clone(), present: content, mapping: None }
    }

    pub(super) fn killed(&self) -> Lines {
        Lines { durable: self.durable.clone(), present: self.content(), mapping: None }
    }
}

impl State {
    /// Finds or creates the memory `file`.
    pub(super) fn memory(
        &mut self,
        file: &str,
        bytes: u64,
        mode: OpenMode,
    ) -> io::Result<(FileNumber, Arc<SharedMapping>)> {
        let number = match (self.names.find(file), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(already_exists(file)),
            (Some(number), _) => number,
            (None, OpenMode::CreateNew) => {
                let lines = Lines::new(bytes)?;
                if !self.has_room(lines.len()) {
                    return Err(io::Error::from_raw_os_error(libc::ENOSPC));
                }
                self.files.push(super::Platter::default());
                let number = self.files.len() - 1;
                self.names.add(file, number);
                self.memories.insert(number, lines);
                number
            }
            (None, _) => return Err(not_found(file)),
        };
        let lines = self.memories.get_mut(&number).ok_or_else(|| is_no_memory(file))?;
        Ok((number, lines.map(file)?))
    }
}

/// Tells the disk of stores, write-backs and fences.
#[derive(Debug)]
pub(super) struct SimulatedLines {
    disk: SimulatedDisk,
    number: FileNumber,
    name: String,
}

impl SimulatedLines {
    pub(super) fn new(disk: SimulatedDisk, number: FileNumber, name: String) -> Self {
        Self { disk, number, name }
    }

    fn call(&self, kind: CallKind, target: impl Fn() -> String) -> io::Result<()> {
        match self.disk.state.lock().fate(kind, target) {
            Fate::Proceed => Ok(()),
            Fate::Fail { error, .. } => Err(error),
            Fate::Crash | Fate::Dead => Err(power_lost()),
        }
    }
}

impl Observer for SimulatedLines {
    fn note(&self, _range: Range<usize>) {
        let _ = self.number;
    }

    fn write_back(&self, range: Range<usize>) -> io::Result<()> {
        self.call(CallKind::WriteBack, || format!("{} {}+{}", self.name, range.start, range.len()))
    }

    fn fence(&self) -> io::Result<()> {
        self.call(CallKind::Fence, || self.name.clone())
    }
}
