//! A device on a simulated disk.

use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::names::FileNumber;
use super::plan::CallKind;
use super::state::{Fate, State, power_lost};
use crate::device::memory::SECTOR_BYTES;
use crate::device::{BlockDevice, Write, check_read, check_write, opened_for_reading};

#[derive(Debug)]
pub(super) struct SimulatedDevice {
    state: Arc<Mutex<State>>,
    number: FileNumber,
    name: String,
    writable: bool,
}

impl SimulatedDevice {
    pub(super) fn new(state: Arc<Mutex<State>>, number: FileNumber, name: String, writable: bool) -> Self {
        Self { state, number, name, writable }
    }

    fn target(&self, offset: u64, bytes: &[u8]) -> String {
        format!("{} {offset}+{}", self.name, bytes.len())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn write(&self, state: &mut State, kind: CallKind, write: Write<'_>) -> io::Result<()> {
        let Write { offset, bytes } = write;
        let fate = state.fate(kind, || self.target(offset, bytes));
        let lying = state.lying;
        let State { files, random, .. } = state;
        let file = &mut files[self.number];
        match fate {
            Fate::Proceed if kind == CallKind::WriteThrough && !lying => file.write_through(offset, bytes),
            Fate::Proceed => file.write(offset, bytes),
            Fate::Crash => {
                file.write_torn(offset, bytes, random);
                return Err(power_lost());
            }
            Fate::Fail { error, short } => {
                if short {
                    file.write_torn(offset, bytes, random);
                }
                return Err(error);
            }
            Fate::Dead => return Err(power_lost()),
        }
        Ok(())
    }

    fn check_write(&self, state: &State, write: Write<'_>) -> io::Result<()> {
        if !self.writable {
            return Err(opened_for_reading(&self.name));
        }
        check_write(&self.name, SECTOR_BYTES, state.files[self.number].len(), write.offset, write.bytes)
    }
}

impl BlockDevice for SimulatedDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.lock().files[self.number].len()
    }

    fn alignment(&self) -> usize {
        SECTOR_BYTES
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut state = self.lock();
        check_read(&self.name, SECTOR_BYTES, state.files[self.number].len(), offset, buffer)?;
        match state.fate(CallKind::Read, || self.target(offset, buffer)) {
            Fate::Proceed => {
                state.files[self.number].read(offset, buffer);
                Ok(())
            }
            Fate::Fail { error, short } => {
                if short {
                    let half = buffer.len() / 2;
                    state.files[self.number].read(offset, &mut buffer[..half]);
                }
                Err(error)
            }
            Fate::Crash | Fate::Dead => Err(power_lost()),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut state, write) = (self.lock(), Write::new(offset, bytes));
        self.check_write(&state, write)?;
        self.write(&mut state, CallKind::Write, write)
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        let mut state = self.lock();
        let mut outcome = Ok(());
        let alive = state.crashed.is_none();
        for write in writes {
            let written = self.check_write(&state, *write).and_then(|()| {
                if alive && state.crashed.is_some() && state.random.chance(50) {
                    // The writes of a batch run concurrently: later ones may complete before the
                    // crashing one.
                    let State { files, random, .. } = &mut *state;
                    files[self.number].write_torn(write.offset, write.bytes, random);
                }
                self.write(&mut state, CallKind::Write, *write)
            });
            outcome = outcome.and(written);
        }
        outcome
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut state, write) = (self.lock(), Write::new(offset, bytes));
        self.check_write(&state, write)?;
        self.write(&mut state, CallKind::WriteThrough, write)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock();
        match state.fate(CallKind::Sync, || self.name.clone()) {
            Fate::Proceed => {
                if !state.lying {
                    state.files[self.number].sync();
                }
                Ok(())
            }
            Fate::Fail { error, .. } => {
                state.files[self.number].forsake();
                Err(error)
            }
            Fate::Crash | Fate::Dead => Err(power_lost()),
        }
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.lock();
        if !self.writable {
            return Err(opened_for_reading(&self.name));
        }
        let fate = state.fate(CallKind::SetLen, || format!("{} {bytes}", self.name));
        let grown = bytes.saturating_sub(state.files[self.number].len());
        let full = !state.has_room(grown);
        match fate {
            Fate::Proceed if full => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            Fate::Proceed => state.files[self.number].set_len(bytes),
            Fate::Crash => {
                if !full && state.random.chance(50) {
                    let _ = state.files[self.number].set_len(bytes);
                }
                Err(power_lost())
            }
            Fate::Fail { error, .. } => Err(error),
            Fate::Dead => Err(power_lost()),
        }
    }
}
