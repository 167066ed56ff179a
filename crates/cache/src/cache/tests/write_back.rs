//! Write-back under power cuts, kills and faults.
//!
//! Acknowledged writes survive a kill, synced ones a power cut, and the slow device alone always
//! has a state between two syncs. After a random end, the content must match the sectors'
//! histories.

use super::lives::{Failure, Lives, Machine, copy_of_cache, run, with_cache};
use super::*;
use crate::CacheError;
use crate::policy::Relation;
use terrace_io::{CallKind, Directory, FaultPlan, OpenMode, SimulatedDisk, Write};

const BLOCKS: u64 = 40;
const SECTOR: usize = 512;
const SECTORS: usize = BLOCKS as usize * BLOCK / SECTOR;

#[derive(Clone, Copy, Debug)]
struct Written {
    version: u64,
    syncs: u32,
    /// It may be missing, or may be lost.
    maybe: bool,
}

struct Histories {
    sectors: Vec<Vec<Written>>,
    syncs: u32,
}

impl Histories {
    fn new(versions: &[u64]) -> Self {
        let first = |&version: &u64| vec![Written { version, syncs: 0, maybe: false }];
        Self { sectors: versions.iter().map(first).collect(), syncs: 1 }
    }

    fn write(&mut self, offset: u64, length: usize, version: u64, is_acknowledged: bool) {
        let first = offset as usize / SECTOR;
        let written = Written { version, syncs: self.syncs, maybe: !is_acknowledged };
        self.sectors[first..first + length / SECTOR].iter_mut().for_each(|sector| sector.push(written));
    }

    /// After a failed sync, writes since the last one are uncertain.
    fn sync(&mut self, is_done: bool) {
        if is_done {
            self.syncs += 1;
            return;
        }
        for written in self.sectors.iter_mut().flatten().filter(|written| written.syncs == self.syncs) {
            written.maybe = true;
        }
    }

    /// Whether a sector may have this version.
    ///
    /// Writes before `certain` syncs exist, and none after `last`.
    fn allows(&self, sector: usize, version: u64, certain: u32, last: u32) -> bool {
        let history = &self.sectors[sector];
        let base = history.iter().rposition(|written| !written.maybe && written.syncs < certain).unwrap_or(0);
        history[base..].iter().any(|written| written.version == version && written.syncs <= last)
    }

    fn first_wrong(&self, versions: &[u64], certain: u32, last: u32) -> Option<usize> {
        (0..SECTORS).find(|&sector| !self.allows(sector, versions[sector], certain, last))
    }

    fn is_prefix(&self, versions: &[u64]) -> bool {
        (1..=self.syncs).any(|syncs| self.first_wrong(versions, syncs, syncs).is_none())
    }
}

/// The versions of all sectors, or the name of a torn one.
pub(super) fn versions_of(device: &dyn BlockDevice, blocks: u64) -> Result<Vec<u64>, Failure> {
    let bytes = read(device, 0, blocks as usize * BLOCK);
    let version = |(number, sector): (usize, &[u8])| {
        let word = |word: &[u8]| u64::from_le_bytes(word.try_into().unwrap());
        let first = word(&sector[..8]);
        let is_whole = sector.chunks_exact(8).all(|other| word(other) == first);
        is_whole.then_some(first).ok_or_else(|| format!("sector {number} has parts of two versions"))
    };
    bytes.chunks(SECTOR).enumerate().map(version).collect()
}

pub(super) fn content(length: usize, version: u64) -> AlignedBuffer {
    let mut bytes = AlignedBuffer::zeroed(length);
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&version.to_le_bytes()));
    bytes
}

struct Back {
    machine: Machine,
    policy: &'static str,
    /// Whether all writes are written back, or those of one relation.
    in_order: bool,
    with_faults: bool,
    version: u64,
    older: Option<AlignedBuffer>,
}

#[derive(Default, Debug)]
struct Seen {
    cycles: u64,
    recovered: u64,
    written_back: u64,
    incomplete: u64,
    stranded: u64,
    hits: u64,
}

impl Back {
    fn open(&self, disk: &SimulatedDisk, fast: &str) -> Result<Cached, CacheError> {
        let gone = |source| CacheError::Directory { file: "the disk".to_owned(), source };
        let file = |name: &str| disk.open(name, OpenMode::Write).map_err(gone);
        let mut config = self
            .machine
            .config(disk, 14, self.policy)
            .map_err(gone)?
            .mode(if self.in_order { WriteMode::Back } else { WriteMode::Through })
            .relations(Arc::new(|block: u64| Some((Relation((block % 2) as u32), block / 2))));
        config.dirty_blocks_max = Some(8);
        let cached = Cached::open(file("slow")?, file(fast)?, config)?;
        if !self.in_order {
            cached.write_mode(Relation(0), WriteMode::Back)?;
        }
        Ok(cached)
    }

    fn step(&mut self, cached: &Cached, histories: &mut Histories) -> Result<(), Failure> {
        let block = self.machine.random.skewed(BLOCKS);
        let count = (1 + self.machine.random.below(3)).min(BLOCKS - block);
        let (offset, length) = (block * BLOCK as u64, count as usize * BLOCK);
        self.version += 1;
        let version = self.version;
        match self.machine.random.below(24) {
            0..=3 => {
                histories.sync(cached.sync().is_ok());
            }
            4 => cached.maintain(),
            5 => drop(cached.drain()),
            6 => {
                histories.sync(cached.close().is_ok());
            }
            7 => {
                let written = cached.write_at(offset + 512, &content(1024, version));
                histories.write(offset + 512, 1024, version, written.is_ok());
            }
            8 => {
                let written = cached.write_through_at(offset, &content(length, version));
                histories.write(offset, length, version, written.is_ok());
                histories.sync(written.is_ok());
            }
            9 => {
                let (bytes, other) = (content(BLOCK, version), (block + BLOCKS / 2) % BLOCKS * BLOCK as u64);
                let written = cached.write_batch(&[Write::new(offset, &bytes), Write::new(other, &bytes)]);
                histories.write(offset, BLOCK, version, written.is_ok());
                histories.write(other, BLOCK, version, written.is_ok());
            }
            10 => {
                cached.resize(7 + self.machine.random.below(8) as u32).map_err(|error| error.to_string())?
            }
            11..=17 => {
                let length = if self.in_order { length } else { BLOCK };
                let written = cached.write_at(offset, &content(length, version));
                histories.write(offset, length, version, written.is_ok());
            }
            _ => {
                let mut bytes = filled(length, 0xee);
                if cached.read_at(offset, &mut bytes).is_err() {
                    return Ok(());
                }
                for (sector, bytes) in (offset as usize / SECTOR..).zip(bytes.chunks(SECTOR)) {
                    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    if !histories.allows(sector, version, u32::MAX, u32::MAX) {
                        return Err(format!("sector {sector} is read as version {version}"));
                    }
                }
            }
        }
        self.machine.wait();
        Ok(())
    }

    /// Checks the content through a cache, and the slow device alone, against the histories.
    fn check(
        &self,
        disk: &SimulatedDisk,
        histories: &Histories,
        certain: u32,
        seen: &mut Seen,
    ) -> Result<(), Failure> {
        let slow = disk.open("slow", OpenMode::Write).unwrap();
        let alone = versions_of(&*slow, BLOCKS)?;
        if self.in_order && !self.with_faults && !histories.is_prefix(&alone) {
            return Err("the slow device alone is not as it was between two syncs".to_owned());
        }
        let is_complete = histories.first_wrong(&alone, certain.min(histories.syncs), u32::MAX).is_none();
        // Another, empty cache is usable only if nothing is missing.
        let other = disk.killed();
        other.open("empty", OpenMode::CreateNew).unwrap();
        match self.open(&other, "empty") {
            Err(CacheError::Incomplete { .. }) => seen.incomplete += 1,
            Err(error) => return Err(format!("with an empty cache: {error}")),
            Ok(_) if is_complete => {}
            Ok(_) => return Err("an empty cache is used though blocks are missing".to_owned()),
        }
        // The previous run's file, too.
        if let Some(older) = &self.older {
            match self.open(&with_cache(disk, older), "fast") {
                Err(CacheError::Incomplete { .. }) => {}
                Err(error) => return Err(format!("with an older cache: {error}")),
                Ok(cached) => {
                    let versions = versions_of(&cached, BLOCKS)?;
                    if let Some(sector) = histories.first_wrong(&versions, certain, u32::MAX) {
                        return Err(format!(
                            "with an older cache sector {sector} is of {}",
                            versions[sector]
                        ));
                    }
                }
            }
        }
        let cached = self.open(disk, "fast").map_err(|error| format!("it cannot be opened: {error}"))?;
        seen.recovered += cached.stats().recovered;
        for round in 0..2 {
            let versions = versions_of(&cached, BLOCKS)?;
            if let Some(sector) = histories.first_wrong(&versions, certain, u32::MAX) {
                let (version, history) = (versions[sector], &histories.sectors[sector]);
                return Err(format!(
                    "sector {sector} is of version {version} in round {round} after {certain} syncs of {}: {history:?}",
                    histories.syncs
                ));
            }
            if versions != versions_of(&*slow, BLOCKS)? {
                return Err("the slow device is not complete after opening".to_owned());
            }
        }
        seen.hits += cached.stats().hits;
        Ok(())
    }
}

impl Lives for Back {
    type Seen = Seen;

    fn new(seed: u64) -> Self {
        let mut machine = Machine::new(seed, BLOCKS);
        Self {
            policy: machine.one_of(&["sieve", "fifo", "lru", "w-tinylfu", "probability:0.6+lru"]),
            in_order: machine.random.below(4) > 0,
            with_faults: machine.random.below(4) == 0,
            version: 0,
            older: None,
            machine,
        }
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn describe(&self) -> String {
        format!("{}, in order: {}, faults: {}", self.policy, self.in_order, self.with_faults)
    }

    fn cycle(&mut self, seen: &mut Seen) -> Result<(), Failure> {
        seen.cycles += 1;
        let cached =
            self.open(&self.machine.disk, "fast").map_err(|error| format!("it cannot be opened: {error}"))?;
        let mut histories = Histories::new(&versions_of(&cached, BLOCKS)?);
        self.machine.end_within(500);
        if self.with_faults {
            self.machine.fail_within(30, 4);
        }
        for step in 0..80 {
            if self.machine.disk.crashed().is_some() {
                break;
            }
            self.step(&cached, &mut histories).map_err(|what| format!("step {step}: {what}"))?;
        }
        let stats = cached.stats();
        seen.hits += stats.hits;
        seen.written_back += stats.written_back;
        seen.stranded += u64::from(stats.out_of_service.is_some() && stats.dirty_blocks > 0);
        // After a failed sync, reads may return what will not last, so the next run cannot begin
        // there.
        let is_killed = self.machine.random.below(3) == 0 && !self.with_faults;
        let left = self.machine.next_life(is_killed);
        let copy = copy_of_cache(&left);
        self.check(&left, &histories, if is_killed { u32::MAX } else { histories.syncs }, seen)?;
        self.older = Some(copy);
        Ok(())
    }
}

#[test]
fn what_was_synced_outlives_a_crash_and_the_slow_device_is_never_between() {
    let seeds = std::env::var("TERRACE_CACHE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    let seen = run::<Back>(0..seeds).unwrap();
    println!("{seen:?}");
    assert!(seen.recovered > 300 && seen.written_back > 1000 && seen.hits > 5000, "{seen:?}");
    assert!(seen.incomplete > 50 && seen.stranded > 5, "{seen:?}");
}

/// Rewrites a settling block while the next epoch fails, and is killed after the drain.
///
/// The journal's record of the old slot is then outdated.
fn written_again_while_it_settles() -> Result<(), Failure> {
    let mut settled = 0;
    for nth in 1..12 {
        let mut lives = Back { policy: "sieve", in_order: true, ..Back::new(1) };
        lives.machine.power_cycle = Some([1; 16]);
        let disk = lives.machine.disk.clone();
        let cached = lives.open(&disk, "fast").unwrap();
        let write = |block: u64, version| cached.write_at(block * BLOCK as u64, &content(BLOCK, version));
        let written = (|| {
            write(0, 1)?;
            cached.sync()?;
            write(1, 2)?;
            cached.sync()?;
            disk.fail(FaultPlan::once(CallKind::Write, nth, libc::EIO));
            let drained = cached.drain();
            disk.mend();
            write(0, 3)?;
            cached.sync()?;
            cached.drain()?;
            drained
        })();
        settled += u64::from(written.is_err());
        let left = disk.killed();
        drop(cached);
        let Ok(cached) = lives.open(&left, "fast") else { continue };
        let read = versions_of(&cached, BLOCKS)?;
        if read[0] != 3 {
            return Err(format!("write {nth}: version {} of what was written three times", read[0]));
        }
    }
    if settled > 0 { Ok(()) } else { Err("no drain was cut off".into()) }
}

#[test]
fn a_block_that_is_written_again_while_it_settles_is_not_stale_after_a_kill() {
    written_again_while_it_settles().unwrap();
}

/// The cycles above catch each planted bug.
mod planted_bugs {
    use super::*;
    use crate::planted::{CacheBug, plant};

    fn is_caught(bug: CacheBug) {
        plant(Some(bug));
        let outcome = run::<Back>(0..500);
        plant(None);
        let failure = outcome.expect_err("the cycles must notice");
        println!("{bug:?} is noticed as: {failure}");
    }

    #[test]
    fn catches_keep_settling() {
        plant(Some(CacheBug::KeepSettling));
        let outcome = written_again_while_it_settles();
        plant(None);
        println!("{}", outcome.expect_err("it must be noticed"));
    }

    #[test]
    fn catches_evict_dirty() {
        is_caught(CacheBug::EvictDirty);
    }

    #[test]
    fn catches_overwrite_dirty() {
        is_caught(CacheBug::OverwriteDirty);
    }

    #[test]
    fn catches_clean_before_sync() {
        is_caught(CacheBug::CleanBeforeSync);
    }

    #[test]
    fn catches_drain_out_of_order() {
        is_caught(CacheBug::DrainOutOfOrder);
    }

    #[test]
    fn catches_direct_before_earlier() {
        is_caught(CacheBug::DirectBeforeEarlier);
    }

    #[test]
    fn catches_acknowledge_before_journal() {
        is_caught(CacheBug::AcknowledgeBeforeJournal);
    }

    #[test]
    fn catches_sync_without_fast() {
        is_caught(CacheBug::SyncWithoutFast);
    }

    #[test]
    fn catches_forget_dirty() {
        is_caught(CacheBug::ForgetDirty);
    }
}
