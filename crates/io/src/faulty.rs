//! A simulated disk that fails on request and can lose power.
//!
//! It tracks which contents and names are durable and which only written. All files share one call
//! counter, so a test can cut the power at every call of a script:
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
//! * [`SimulatedDisk::survivor`]: after a power cut, with any subset of the unsynced 512-byte
//!   sectors, names and lengths (`platter.rs`, `names.rs`), across files, and any mixture of the
//!   lines of persistent memory (`lines.rs`).
//! * [`SimulatedDisk::killed`]: after `kill -9`, with all writes and stores, but still not durable.
//! * [`SimulatedDisk::fail`]: calls return system errors (`plan.rs`).
//! * [`SimulatedDisk::lie_about_syncs`]: syncs and fences succeed without effect, as on some disks.
//!
//! Everything follows from the seed and the order of calls. Contents are copied on write.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::BlockDevice;
use crate::directory::memory::{Locks, is_memory};
use crate::directory::{
    Directory, LockError, OpenMode, Sharing, already_exists, check_memory_mode, check_name, memory_is_open,
    not_found,
};
use crate::memory::persistent::{PersistentKind, PersistentMemory};

mod device;
mod lines;
mod memory;
mod names;
mod plan;
mod platter;
mod random;
mod state;

use device::SimulatedDevice;
use lines::Lines;
use memory::SimulatedLines;
use names::{FileNumber, Names};
use plan::ActivePlan;
pub use plan::{CallKind, FaultPlan};
use platter::Platter;
use random::Random;
use state::{Fate, State, power_lost};

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
        let state = State::new(random, names, files, memories, capacity_bytes);
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
    /// part may be carried out, and later ones fail with kind `Other` and "power lost".
    pub fn crash_at(&self, number: u64) {
        self.state.lock().crash_at = Some(number);
    }

    /// The call at which the power failed, such as `Write pages 4096+512`.
    pub fn crashed(&self) -> Option<String> {
        self.state.lock().crashed.clone()
    }

    /// Turns lying on or off: syncs, durable writes and fences succeed but make nothing durable.
    pub fn lie_about_syncs(&self, lying: bool) {
        self.state.lock().lying = lying;
    }

    /// Limits the total length of all named files: growing beyond it fails with `ENOSPC`.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_bytes = bytes;
    }

    /// One possible state after a power cut now, chosen by `seed`: an independent disk without
    /// faults, entirely durable.
    pub fn survivor(&self, seed: u64) -> SimulatedDisk {
        let state = self.state.lock();
        let mut random = Random::new(seed);
        let names = state.names.survivor(&mut random);
        let files = state.files.iter().map(|file| file.survivor(&mut random)).collect();
        let survivors = |(number, lines): (&FileNumber, &Lines)| (*number, lines.survivor(&mut random));
        let memories = state.memories.iter().map(survivors).collect();
        Self::with_files(random, names, files, memories, state.capacity_bytes)
    }

    /// The state after a kill now: all writes are there, unsynced ones are not durable, locks are
    /// free. An independent disk without faults.
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
        let (state, name) = (Arc::clone(&self.state), format!("simulated:{file}"));
        Ok(Arc::new(SimulatedDevice::new(state, number, name, mode.is_writable())))
    }

    fn open_memory(&self, file: &str, bytes: u64, mode: OpenMode) -> io::Result<Arc<PersistentMemory>> {
        check_memory_mode(file, mode)?;
        let (number, mapping) =
            self.name_call(CallKind::Open, file, |state| memory::open(state, file, bytes, mode))?;
        let name = format!("simulated:{file}");
        let lock = self.locks.take(file, Sharing::Alone).map_err(|_| memory_is_open(&name))?;
        let observer = Box::new(SimulatedLines::new(Arc::clone(&self.state), number, name.clone()));
        let memory = PersistentMemory::of(name, PersistentKind::Simulated, mapping, Some(lock));
        Ok(Arc::new(memory.observed_by(observer)))
    }

    fn resize_memory(&self, file: &str, bytes: u64) -> io::Result<()> {
        let _lock = self.locks.take(file, Sharing::Alone).map_err(|_| memory_is_open(file))?;
        self.name_call(CallKind::SetLen, file, |state| memory::resize(state, file, bytes))
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
