//! A simulated disk that fails on request and can lose power.
//!
//! It tracks which contents and names of its files are durable and which are only written. All
//! files share one call counter, so that a test can cut the power at every call of a script:
//!
//! ```text
//!   let disk = SimulatedDisk::new(seed);   run the script once, note disk.calls()
//!   for call in 1..=calls {
//!       let disk = SimulatedDisk::new(seed);
//!       disk.crash_at(call);               run the script until it fails with "power lost"
//!       for seed in .. {
//!           let after = disk.survivor(seed);   recover from it and check the promises
//!       }
//!   }
//! ```
//!
//! * [`SimulatedDisk::survivor`]: the disk after a power cut, with any subset of the unsynced
//!   512-byte sectors, reordered across files, and of unsynced names and lengths (`platter.rs`,
//!   `names.rs`).
//! * [`SimulatedDisk::killed`]: the disk after `kill -9`, with all writes, but still not durable.
//! * [`SimulatedDisk::fail`]: calls return system errors (`plan.rs`).
//! * [`SimulatedDisk::lie_about_syncs`]: syncs succeed without effect, as on some disks.
//!
//! Everything follows from the seed and the order of calls. Contents are copied on write, so
//! crashes are cheap.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::device::memory::SECTOR_BYTES;
use crate::device::{BlockDevice, Write, check_read, check_write, opened_for_reading};
use crate::directory::memory::{Locks, is_memory};
use crate::directory::{
    Directory, LockError, OpenMode, Sharing, already_exists, check_memory_mode, check_name, memory_is_open,
    not_found,
};
use crate::memory::persistent::{PersistentKind, PersistentMemory};

mod memory;
mod names;
mod plan;
mod platter;
mod random;

use memory::{Lines, SimulatedLines};
use names::{FileNumber, Names};
use plan::ActivePlan;
pub use plan::{CallKind, FaultPlan};
use platter::Platter;
use random::Random;

/// Repeats of an interrupted call before a fault that never ends is reported.
const INTERRUPTIONS_MAX: u32 = 100;

/// A directory of files on a disk with faults. Clones are handles of the same disk.
///
/// ```
/// use terrace_io::{AlignedBuffer, BlockDevice, Directory, OpenMode, SimulatedDisk};
///
/// let disk = SimulatedDisk::new(42);
/// let device = disk.open("pages", OpenMode::CreateNew)?;
/// disk.sync()?;
/// device.set_len(1024)?;
/// device.sync()?;
/// disk.crash_at(disk.calls() + 2);
/// device.write_at(0, &AlignedBuffer::zeroed(512))?;
/// assert!(device.sync().unwrap_err().to_string().contains("power lost"));
///
/// let after = disk.survivor(7);
/// assert_eq!(after.open("pages", OpenMode::Write)?.len(), 1024);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
    locks: Locks,
}

#[derive(Debug)]
struct State {
    random: Random,
    names: Names,
    files: Vec<Platter>,
    /// The files that are persistent memory; their platters stay empty.
    memories: BTreeMap<FileNumber, Lines>,
    calls: u64,
    calls_by_kind: [u64; CallKind::ALL.len()],
    plans: Vec<ActivePlan>,
    /// The number of the call at which the power fails.
    crash_at: Option<u64>,
    /// The call at which the power failed.
    crashed: Option<String>,
    lying: bool,
    capacity_bytes: u64,
}

enum Fate {
    /// It is carried out.
    Proceed,
    /// The power fails during the call: some part may be carried out.
    Crash,
    /// The system reports an error, after part of the transfer if `short`.
    Fail { error: io::Error, short: bool },
    /// The power is already off: nothing happens.
    Dead,
}

impl SimulatedDisk {
    /// An empty disk. `seed` decides how much of the crashing call is carried out.
    pub fn new(seed: u64) -> Self {
        Self::with_files(Random::new(seed), Names::default(), Vec::new(), BTreeMap::new(), u64::MAX)
    }

    fn with_files(
        random: Random,
        names: Names,
        files: Vec<Platter>,
        memories: BTreeMap<FileNumber, Lines>,
        capacity_bytes: u64,
    ) -> Self {
        let state = State {
            random,
            names,
            files,
            memories,
            calls: 0,
            calls_by_kind: [0; CallKind::ALL.len()],
            plans: Vec::new(),
            crash_at: None,
            crashed: None,
            lying: false,
            capacity_bytes,
        };
        Self { state: Arc::new(Mutex::new(state)), locks: Locks::default() }
    }

    /// Number of calls of all kinds, on all files.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Number of calls of `kind`.
    pub fn calls_of(&self, kind: CallKind) -> u64 {
        let state = self.state.lock();
        state.calls_by_kind.get(kind as usize).copied().unwrap_or(state.calls)
    }

    /// Adds a fault. If several strike the same call, the earliest planned wins.
    pub fn fail(&self, plan: FaultPlan) {
        self.state.lock().plans.push(ActivePlan::new(plan));
    }

    /// Clears all planned faults. Lost power stays lost.
    pub fn mend(&self) {
        let mut state = self.state.lock();
        state.plans.clear();
        state.lying = false;
    }

    /// Cuts the power at call `number`, counting from 1 since creation. That call, of which some
    /// part may be carried out, and all later ones fail with kind `Other` and "power lost".
    pub fn crash_at(&self, number: u64) {
        self.state.lock().crash_at = Some(number);
    }

    /// The call at which the power failed, such as `Write pages 4096+512`.
    pub fn crashed(&self) -> Option<String> {
        self.state.lock().crashed.clone()
    }

    /// Turns lying on or off: syncs and durable writes succeed but make nothing durable.
    pub fn lie_about_syncs(&self, lying: bool) {
        self.state.lock().lying = lying;
    }

    /// Limits the total length of all named files: growing beyond it fails with `ENOSPC`.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_bytes = bytes;
    }

    /// One possible state after a power cut now, chosen by `seed`. The result is an independent
    /// disk without faults, entirely durable.
    pub fn survivor(&self, seed: u64) -> SimulatedDisk {
        let state = self.state.lock();
        let mut random = Random::new(seed);
        let names = state.names.survivor(&mut random);
        let files = state.files.iter().map(|file| file.survivor(&mut random)).collect();
        let survivors = |(number, lines): (&FileNumber, &Lines)| (*number, lines.survivor(&mut random));
        let memories = state.memories.iter().map(survivors).collect();
        Self::with_files(random, names, files, memories, state.capacity_bytes)
    }

    /// The state after the process was killed now: all writes are there, unsynced ones are not
    /// durable, locks are free. The result is an independent disk without faults.
    pub fn killed(&self) -> SimulatedDisk {
        let state = self.state.lock();
        let memories = state.memories.iter().map(|(number, lines)| (*number, lines.killed())).collect();
        let (random, names, files) = (state.random.clone(), state.names.clone(), state.files.clone());
        Self::with_files(random, names, files, memories, state.capacity_bytes)
    }

    /// A call on a name: takes effect as a whole or not at all.
    fn name_call<T>(
        &self,
        kind: CallKind,
        file: &str,
        act: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        check_name(file)?;
        let mut state = self.state.lock();
        match state.fate(kind, || file.to_owned()) {
            Fate::Proceed => act(&mut state),
            Fate::Crash => {
                if state.random.chance(50) {
                    let _ = act(&mut state);
                }
                Err(power_lost())
            }
            Fate::Fail { error, .. } => Err(error),
            Fate::Dead => Err(power_lost()),
        }
    }
}

impl State {
    fn fate(&mut self, kind: CallKind, target: impl Fn() -> String) -> Fate {
        for _ in 0..INTERRUPTIONS_MAX {
            match self.fate_of_attempt(kind, &target) {
                Fate::Fail { error, .. } if error.kind() == io::ErrorKind::Interrupted => {}
                fate => return fate,
            }
        }
        Fate::Fail { error: io::Error::from_raw_os_error(libc::EINTR), short: false }
    }

    fn fate_of_attempt(&mut self, kind: CallKind, target: &impl Fn() -> String) -> Fate {
        if self.crashed.is_some() {
            return Fate::Dead;
        }
        self.calls += 1;
        self.calls_by_kind[kind as usize] += 1;
        if self.crash_at.is_some_and(|number| self.calls >= number) {
            self.crashed = Some(format!("{kind:?} {}", target()));
            self.memories.values_mut().for_each(Lines::freeze);
            return Fate::Crash;
        }
        // Every plan counts the call, even after another has decided.
        let mut struck = None;
        for plan in &mut self.plans {
            if plan.strikes(kind) && struck.is_none() {
                struck = Some(plan.plan);
            }
        }
        match struck {
            Some(plan) => Fate::Fail { error: io::Error::from_raw_os_error(plan.error), short: plan.short },
            None => Fate::Proceed,
        }
    }
}

impl State {
    /// Whether the named files may have `grown` bytes more.
    fn has_room(&self, grown: u64) -> bool {
        let length = |file| self.memories.get(&file).map_or(self.files[file].len(), Lines::len);
        let used: u64 = self.names.files().map(length).sum();
        grown == 0 || used.saturating_add(grown) <= self.capacity_bytes
    }
}

fn power_lost() -> io::Error {
    io::Error::other("power lost")
}

impl Directory for SimulatedDisk {
    fn name(&self) -> String {
        "simulated:".to_owned()
    }

    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Arc<dyn BlockDevice>> {
        let number = self.name_call(CallKind::Open, file, |state| match (state.names.find(file), mode) {
            (Some(_), OpenMode::CreateNew) => Err(already_exists(file)),
            (Some(number), _) if state.memories.contains_key(&number) => Err(is_memory(file)),
            (Some(number), _) => Ok(number),
            (None, OpenMode::CreateNew) => {
                state.files.push(Platter::default());
                state.names.add(file, state.files.len() - 1);
                Ok(state.files.len() - 1)
            }
            (None, _) => Err(not_found(file)),
        })?;
        let (disk, name) = (self.clone(), format!("simulated:{file}"));
        Ok(Arc::new(SimulatedDevice { disk, number, name, writable: mode.is_writable() }))
    }

    fn open_memory(&self, file: &str, bytes: u64, mode: OpenMode) -> io::Result<Arc<PersistentMemory>> {
        check_memory_mode(file, mode)?;
        let (number, mapping) =
            self.name_call(CallKind::Open, file, |state| state.memory(file, bytes, mode))?;
        let name = format!("simulated:{file}");
        let lock = self.locks.take(file, Sharing::Alone).map_err(|_| memory_is_open(&name))?;
        let observer = Box::new(SimulatedLines::new(self.clone(), number, name.clone()));
        let memory = PersistentMemory::of(name, PersistentKind::Simulated, mapping, Some(lock));
        Ok(Arc::new(memory.observed_by(observer)))
    }

    fn exists(&self, file: &str) -> io::Result<bool> {
        self.name_call(CallKind::Exists, file, |state| Ok(state.names.find(file).is_some()))
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        self.name_call(CallKind::Remove, file, |state| {
            state.names.find(file).ok_or_else(|| not_found(file))?;
            state.names.remove(file);
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(to)?;
        self.name_call(CallKind::Rename, from, |state| {
            state.names.find(from).ok_or_else(|| not_found(from))?;
            state.names.rename(from, to);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        match state.fate(CallKind::SyncDirectory, String::new) {
            Fate::Proceed => {
                if !state.lying {
                    state.names.sync();
                }
                Ok(())
            }
            Fate::Fail { error, .. } => Err(error),
            Fate::Crash | Fate::Dead => Err(power_lost()),
        }
    }

    fn lock(&self, file: &str) -> Result<Box<dyn Send + Sync>, LockError> {
        self.name_call(CallKind::Lock, file, |_| Ok(()))?;
        self.locks.take(file, Sharing::Alone)
    }

    fn lock_existing(&self, file: &str, sharing: Sharing) -> Result<Box<dyn Send + Sync>, LockError> {
        self.name_call(CallKind::Lock, file, |state| {
            state.names.find(file).map(drop).ok_or_else(|| not_found(file))
        })?;
        self.locks.take(file, sharing)
    }

    fn lock_owner(&self, file: &str) -> Option<u32> {
        self.locks.owner(file)
    }
}

#[derive(Debug)]
struct SimulatedDevice {
    disk: SimulatedDisk,
    number: FileNumber,
    name: String,
    writable: bool,
}

impl SimulatedDevice {
    fn target(&self, offset: u64, bytes: &[u8]) -> String {
        format!("{} {offset}+{}", self.name, bytes.len())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.disk.state.lock()
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
