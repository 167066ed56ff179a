//! Everything of a simulated disk, behind one lock: files, memories, names, and the fate of calls.

use std::collections::BTreeMap;
use std::io;

use super::lines::Lines;
use super::names::{FileNumber, Names};
use super::plan::{ActivePlan, CallKind};
use super::platter::Platter;
use super::random::Random;

/// Repeats of an interrupted call before a fault that never ends is reported.
const INTERRUPTIONS_MAX: u32 = 100;

#[derive(Debug)]
pub(super) struct State {
    pub(super) random: Random,
    pub(super) names: Names,
    pub(super) files: Vec<Platter>,
    /// The files that are persistent memory; their platters stay empty.
    pub(super) memories: BTreeMap<FileNumber, Lines>,
    pub(super) calls: u64,
    pub(super) calls_by_kind: [u64; CallKind::ALL.len()],
    pub(super) plans: Vec<ActivePlan>,
    pub(super) crash_at: Option<u64>,
    /// The call at which the power failed.
    pub(super) crashed: Option<String>,
    pub(super) lying: bool,
    pub(super) capacity_bytes: u64,
}

pub(super) enum Fate {
    /// It is carried out.
    Proceed,
    /// The power fails during the call: some part may be carried out.
    Crash,
    /// The system reports an error, after part of the transfer if `short`.
    Fail { error: io::Error, short: bool },
    /// The power is already off: nothing happens.
    Dead,
}

impl State {
    pub(super) fn new(
        random: Random,
        names: Names,
        files: Vec<Platter>,
        memories: BTreeMap<FileNumber, Lines>,
        capacity_bytes: u64,
    ) -> State {
        State {
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
        }
    }

    pub(super) fn fate(&mut self, kind: CallKind, target: impl Fn() -> String) -> Fate {
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

    /// Whether the named files may have `grown` bytes more.
    pub(super) fn has_room(&self, grown: u64) -> bool {
        let length = |file| self.memories.get(&file).map_or(self.files[file].len(), Lines::len);
        let used: u64 = self.names.files().map(length).sum();
        grown == 0 || used.saturating_add(grown) <= self.capacity_bytes
    }
}

pub(super) fn power_lost() -> io::Error {
    io::Error::other("power lost")
}
