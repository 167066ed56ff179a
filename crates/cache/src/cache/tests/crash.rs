//! Power cuts and kills at every call: the cache serves the slow device's content.
//!
//! After each run (`lives.rs`) everything is read through a cache, also through the previous run's
//! file, and compared with the slow device. Every fifth disk also reports errors.

use super::lives::{Failure, Lives, Machine, copy_of_cache, run, with_cache};
use super::*;
use crate::{CacheStats, Start};
use terrace_io::{Directory, OpenMode, SimulatedDisk, Write};

const BLOCKS: u64 = 48;

struct Through {
    machine: Machine,
    policy: &'static str,
    mode: WriteMode,
    version: u64,
    with_faults: bool,
    /// A failed sync was not recorded by any cache, so the machine must restart.
    is_forsaken: bool,
    older: Option<AlignedBuffer>,
}

#[derive(Default, Debug)]
struct Seen {
    cycles: u64,
    kept: u64,
    dropped: u64,
    damaged: u64,
    given_up: u64,
    hits: u64,
    relocated: u64,
}

impl Seen {
    fn add(&mut self, stats: &CacheStats) {
        self.hits += stats.hits;
        self.damaged += stats.damaged;
        self.relocated += stats.relocations;
        self.given_up += u64::from(stats.out_of_service.is_some());
    }
}

impl Through {
    fn open(&self, disk: &SimulatedDisk) -> Option<(Cached, Arc<dyn BlockDevice>)> {
        let file = |name| disk.open(name, OpenMode::Write).ok();
        let (slow, fast) = (file("slow")?, file("fast")?);
        let config = self.machine.config(disk, 12, self.policy).ok()?.mode(self.mode);
        Some((Cached::open(Arc::clone(&slow), fast, config).ok()?, slow))
    }

    /// One run: random steps, with reads compared, until the power fails or the steps end.
    fn live(&mut self, seen: &mut Seen) -> Result<(), Failure> {
        let Some((cached, slow)) = self.open(&self.machine.disk) else { return Ok(()) };
        for step in 0..60 {
            if self.machine.disk.crashed().is_some() {
                break;
            }
            let blocks = slow.len() / BLOCK as u64;
            let block = self.machine.random.skewed(blocks);
            let count = (1 + self.machine.random.below(3)).min(blocks - block);
            let (offset, length) = (block * BLOCK as u64, count as usize * BLOCK);
            // Errors are expected; only served content counts.
            let _ = match self.machine.random.below(26) {
                0 => cached.set_len((BLOCKS / 2 + self.machine.random.below(BLOCKS / 2)) * BLOCK as u64),
                1 => cached.set_len(BLOCKS * BLOCK as u64),
                2 => {
                    cached.free(offset, length as u64);
                    Ok(())
                }
                3..=5 => self.synced(&cached, cached.sync()),
                6 => {
                    cached.maintain();
                    Ok(())
                }
                7 => self.synced(&cached, cached.close().map_err(std::io::Error::other)),
                8..=9 => {
                    self.version += 1;
                    cached.write_at(offset + 512, &self.content(512))
                }
                10 => {
                    self.version += 1;
                    let bytes = self.content(length);
                    self.synced(&cached, cached.write_through_at(offset, &bytes))
                }
                11 => {
                    self.version += 1;
                    let bytes = self.content(BLOCK);
                    let other = (block + blocks / 2) % blocks * BLOCK as u64;
                    cached.write_batch(&[Write::new(offset, &bytes), Write::new(other, &bytes)])
                }
                12..=15 => {
                    self.version += 1;
                    cached.write_at(offset, &self.content(length))
                }
                16..=17 => {
                    let to = self.machine.random.below(blocks - count + 1) * BLOCK as u64;
                    let mut bytes = filled(length, 0xee);
                    let moved =
                        cached.read_past(offset, &mut bytes).and_then(|()| cached.write_past(to, &bytes));
                    if moved.is_ok() {
                        cached.relocate(offset, to, &bytes);
                    }
                    moved
                }
                _ => {
                    let mut bytes = filled(length, 0xee);
                    let read = cached.read_at(offset, &mut bytes);
                    let mut truth = filled(length, 0xdd);
                    if read.is_ok() && slow.read_at(offset, &mut truth).is_ok() && bytes[..] != truth[..] {
                        return Err(format!("blocks {block}+{count} differ in step {step}"));
                    }
                    read
                }
            };
            self.machine.wait();
        }
        seen.add(&cached.stats());
        Ok(())
    }

    /// Passes on a sync's result; a cache out of service cannot record a failure.
    fn synced(&mut self, cached: &Cached, synced: std::io::Result<()>) -> std::io::Result<()> {
        self.is_forsaken |= synced.is_err() && cached.stats().out_of_service.is_some();
        synced
    }

    fn content(&self, length: usize) -> AlignedBuffer {
        let mut bytes = AlignedBuffer::zeroed(length);
        for (sector, chunk) in bytes.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&((self.version << 16) | (sector as u64 / 64)).to_le_bytes());
        }
        bytes
    }

    fn check(&self, disk: &SimulatedDisk, seen: &mut Seen) -> Result<(), Failure> {
        let Some((cached, slow)) = self.open(disk) else {
            return Err("the cache cannot be opened".to_owned());
        };
        if let Start::Warm { kept, dropped } = cached.start() {
            seen.kept += kept;
            seen.dropped += dropped;
        }
        for round in 0..2 {
            for block in 0..slow.len() / BLOCK as u64 {
                let (truth, served) =
                    (read(&*slow, block * BLOCK as u64, BLOCK), read(&cached, block * BLOCK as u64, BLOCK));
                if truth[..] != served[..] {
                    return Err(format!("block {block} differs in round {round}"));
                }
            }
        }
        seen.hits += cached.stats().hits;
        seen.damaged += cached.stats().damaged;
        Ok(())
    }
}

impl Lives for Through {
    type Seen = Seen;

    fn new(seed: u64) -> Self {
        let mut machine = Machine::new(seed, BLOCKS);
        let policies = ["sieve", "fifo", "lru", "probability:0.6+lru", "probability:0.6@writes+fifo"];
        Self {
            policy: machine.one_of(&policies),
            mode: machine.one_of(&[WriteMode::Around, WriteMode::Through, WriteMode::Through]),
            version: 0,
            with_faults: machine.random.below(5) == 0,
            is_forsaken: false,
            older: None,
            machine,
        }
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn describe(&self) -> String {
        format!("{} {:?}, faults: {}", self.policy, self.mode, self.with_faults)
    }

    fn cycle(&mut self, seen: &mut Seen) -> Result<(), Failure> {
        seen.cycles += 1;
        self.machine.end_within(260);
        if self.with_faults {
            self.machine.fail_within(20, 6);
        }
        self.live(seen)?;
        let is_killed = self.machine.random.below(3) == 0 && !std::mem::take(&mut self.is_forsaken);
        let left = self.machine.next_life(is_killed);
        if let Some(older) = self.older.replace(copy_of_cache(&left)) {
            let put_back = with_cache(&left, &older);
            let checked = self.check(&put_back, &mut Seen::default());
            checked.map_err(|what| format!("with the cache of the life before, {what}"))?;
        }
        self.check(&left, seen)
    }
}

#[test]
fn what_is_served_after_a_crash_is_what_the_slow_device_has() {
    let seen = run::<Through>(0..200).unwrap();
    println!("{seen:?}");
    assert!(seen.kept > 1000 && seen.dropped > 1000 && seen.hits > 10_000, "{seen:?}");
    assert!(seen.damaged > 10 && seen.given_up > 10 && seen.relocated > 1000, "{seen:?}");
}

/// Ten thousand cycles, by hand: `cargo test --release -p terrace-cache --lib -- --ignored
/// ten_thousand`.
#[test]
#[ignore = "takes a minute"]
fn ten_thousand_cycles_serve_nothing_stale() {
    let seen = run::<Through>(1_000_000..1_001_000).unwrap();
    println!("{seen:?}");
    assert_eq!(seen.cycles, 10_000);
}

/// The cycles above catch each planted bug.
mod planted_bugs {
    use super::*;
    use crate::planted::{CacheBug, plant};

    fn is_caught(bug: CacheBug) {
        plant(Some(bug));
        let failure = run::<Through>(0..2000);
        plant(None);
        let failure = failure.expect_err("the cycles must notice");
        assert!(failure.contains("differ"), "{bug:?} is noticed as: {failure}");
    }

    #[test]
    fn catches_serve_marked_regions() {
        is_caught(CacheBug::ServeMarkedRegions);
    }

    #[test]
    fn catches_no_generation_in_journal() {
        is_caught(CacheBug::NoGenerationInJournal);
    }

    #[test]
    fn catches_serve_unverified() {
        is_caught(CacheBug::ServeUnverified);
    }

    #[test]
    fn catches_unmark_before_data() {
        is_caught(CacheBug::UnmarkBeforeData);
    }

    #[test]
    fn catches_unmark_before_sync() {
        is_caught(CacheBug::UnmarkBeforeSync);
    }

    #[test]
    fn catches_write_before_mark() {
        is_caught(CacheBug::WriteBeforeMark);
    }

    #[test]
    fn catches_slow_before_fast() {
        is_caught(CacheBug::SlowBeforeFast);
    }

    #[test]
    fn catches_forget_left() {
        is_caught(CacheBug::ForgetLeft);
    }

    #[test]
    fn catches_forget_truncate() {
        is_caught(CacheBug::ForgetTruncate);
    }

    #[test]
    fn catches_forget_session() {
        is_caught(CacheBug::ForgetSession);
    }

    #[test]
    fn catches_trust_failed_sync() {
        is_caught(CacheBug::TrustFailedSync);
    }

    #[test]
    fn catches_forget_revoked() {
        is_caught(CacheBug::ForgetRevoked);
    }
}
