//! Restored copies of the cache's file, the guard and the slow device, in all mixtures.
//!
//! The slow device's first block is its superblock; its owner writes steps there, past the cache.

use super::*;
use crate::planted::{CacheBug, plant};
use crate::{CacheError, Start};
use terrace_io::{CallKind, Directory, FaultPlan, OpenMode, SimulatedDisk};

const BLOCKS: u64 = 12;
/// Runs; all three files are copied after each.
const LIVES: usize = 4;

#[derive(Clone)]
struct Copies {
    slow: Arc<MemoryDevice>,
    fast: Arc<MemoryDevice>,
    guard: Arc<MemoryDevice>,
    progress: u64,
}

impl Copies {
    fn new() -> Self {
        let device = |name, bytes| Arc::new(MemoryDevice::new(name, bytes));
        let slow = device("slow", BLOCKS * BLOCK as u64);
        Self { slow, fast: device("fast", 0), guard: device("guard", 0), progress: 5 }
    }

    fn copied(&self) -> Self {
        let copy = |device: &Arc<MemoryDevice>| Arc::new(device.copy());
        let (slow, fast, guard) = (copy(&self.slow), copy(&self.fast), copy(&self.guard));
        Self { slow, fast, guard, progress: self.progress }
    }

    fn open(&self, counts: bool) -> Result<Cached, CacheError> {
        let config = timeless(32).power_cycle(Some([1; 16])).guard(Arc::clone(&self.guard) as _);
        let config = CacheConfig { progress: if counts { self.progress } else { 0 }, ..config };
        Cached::open(Arc::clone(&self.slow) as _, Arc::clone(&self.fast) as _, config)
    }

    /// A run that reads, writes and rereads all blocks, and ends with a close or a kill.
    fn live(&mut self, life: usize, counts: bool, is_closed: bool) {
        let cached = self.open(counts).unwrap();
        for step in 0..2 {
            read(&cached, 0, BLOCKS as usize * BLOCK);
            for block in 0..BLOCKS {
                let bytes = filled(BLOCK, (16 * (life + 1)) as u8 + 8 * step + block as u8 % 8);
                cached.write_at(block * BLOCK as u64, &bytes).unwrap();
            }
            self.progress += 1;
            if counts {
                self.progress = self.progress.max(cached.first_step());
                cached.progress(self.progress);
            }
        }
        if is_closed {
            cached.close().unwrap();
        }
    }
}

/// Runs that end as the bits of `closed` say, then all mixtures of their copies.
fn mixtures(closed: u32, counts: bool) -> Result<u32, String> {
    let mut copies = Copies::new();
    let mut after = vec![];
    for life in 0..LIVES {
        copies.live(life, counts, closed >> life & 1 == 1);
        after.push(copies.copied());
    }
    let mut warm = 0;
    for mixture in 0..LIVES.pow(3) {
        let [slow, fast, guard] = [mixture % LIVES, mixture / LIVES % LIVES, mixture / LIVES.pow(2)];
        if !counts && slow != guard {
            // Without progress, guard and slow device are restored together or not at all.
            continue;
        }
        let copies = |of: usize| after[of].copied();
        let (fast_of, guard_of) = (copies(fast).fast, copies(guard).guard);
        let copies = Copies { fast: fast_of, guard: guard_of, ..copies(slow) };
        let cached = copies.open(counts).map_err(|error| error.to_string())?;
        let what = format!("ends {closed:b}, slow device of {slow}, cache of {fast}, guard of {guard}");
        for block in 0..BLOCKS {
            let truth = read(&*copies.slow, block * BLOCK as u64, BLOCK);
            if read(&cached, block * BLOCK as u64, BLOCK)[..] != truth[..] {
                return Err(format!("{what}: block {block} is stale"));
            }
        }
        match cached.start() {
            Start::Warm { kept, .. } if slow == fast && fast == guard && kept == BLOCKS => warm += 1,
            Start::Cold(_) if (slow, slow) != (fast, guard) => {}
            start => return Err(format!("{what}: {start:?}")),
        }
    }
    Ok(warm)
}

#[test]
fn no_mixture_of_copies_is_stale_and_what_was_left_together_is_warm() {
    for closed in 0..1 << LIVES {
        for counts in [true, false] {
            assert_eq!(mixtures(closed, counts), Ok(LIVES as u32));
        }
    }
}

#[track_caller]
fn is_caught(bug: CacheBug, counts: bool) {
    plant(Some(bug));
    let outcome = mixtures(0b0101, counts);
    plant(None);
    let failure = outcome.expect_err("the mixtures must notice");
    assert!(failure.contains("is stale"), "{bug:?} is noticed as: {failure}");
}

#[test]
fn catches_forget_session() {
    is_caught(CacheBug::ForgetSession, false);
}

#[test]
fn catches_forget_progress() {
    is_caught(CacheBug::ForgetProgress, true);
}

#[test]
fn catches_keep_session() {
    is_caught(CacheBug::KeepSession, false);
}

/// The first step is on the slow device, and a kill precedes its report.
#[test]
fn a_first_step_that_was_not_told_leaves_the_cache_warm_and_right() {
    let mut copies = Copies::new();
    copies.live(0, true, false);
    let cached = copies.open(true).unwrap();
    copies.progress = cached.first_step();
    drop(cached);
    let again = copies.open(true).unwrap();
    assert_eq!(again.start(), Start::Warm { kept: BLOCKS, dropped: 0 });
    // Another opening from there would have made a different step.
    assert!(copies.progress > 8 && again.first_step() > copies.progress + 1);
    copies.progress += 1;
    drop(again);
    assert!(matches!(copies.open(true).unwrap().start(), Start::Warm { .. }));
    copies.progress += 1;
    assert!(matches!(copies.open(true).unwrap().start(), Start::Warm { .. }));
    copies.progress -= 1;
    assert!(matches!(copies.open(true).unwrap().start(), Start::Cold(_)));
}

/// `cp -r a b`; `b` is used with the cache, and then `a` is opened with it.
#[test]
fn of_two_copies_of_a_device_that_use_a_cache_in_turn_each_finds_it_cold() {
    let mut a = Copies::new();
    a.live(0, false, true);
    let mut b = Copies { fast: Arc::clone(&a.fast), ..a.copied() };
    b.live(1, false, true);
    for copies in [&a, &b, &a] {
        let cached = copies.open(false).unwrap();
        assert!(matches!(cached.start(), Start::Cold(_)), "{:?}", cached.start());
        for block in 0..BLOCKS {
            let (offset, length) = (block * BLOCK as u64, BLOCK);
            assert!(read(&cached, offset, length)[..] == read(&*copies.slow, offset, length)[..]);
        }
        cached.close().unwrap();
    }
}

#[test]
fn with_a_guard_that_is_new_the_cache_is_cold() {
    let mut copies = Copies::new();
    copies.live(0, false, true);
    let slow = copies.copied().slow;
    copies.live(1, false, true);
    let copies = Copies { slow, guard: Copies::new().guard, ..copies };
    let cached = copies.open(false).unwrap();
    assert!(matches!(cached.start(), Start::Cold(_)), "{:?}", cached.start());
    for block in 0..BLOCKS {
        let offset = block * BLOCK as u64;
        assert!(read(&cached, offset, BLOCK)[..] == read(&*copies.slow, offset, BLOCK)[..]);
    }
}

#[test]
fn a_copy_made_while_the_cache_was_open_is_cold_after_a_close() {
    let copies = Copies::new();
    let cached = copies.open(false).unwrap();
    read(&cached, 0, BLOCKS as usize * BLOCK);
    cached.maintain();
    let fast = Arc::new(copies.fast.copy());
    cached.write_at(0, &filled(BLOCK, 7)).unwrap();
    cached.close().unwrap();
    drop(cached);
    let cached = Copies { fast, ..copies }.open(false).unwrap();
    assert!(matches!(cached.start(), Start::Cold(_)), "{:?}", cached.start());
    assert_eq!(read(&cached, 0, BLOCK)[0], 7);
}

#[test]
fn an_owner_that_keeps_the_session_finds_an_older_file_cold() {
    let slow = Arc::new(MemoryDevice::new("slow", BLOCKS * BLOCK as u64));
    let open = |fast: &Arc<MemoryDevice>, session| {
        let config = CacheConfig { session, ..timeless(32).power_cycle(Some([1; 16])) };
        let cached = Cached::open(Arc::clone(&slow) as _, Arc::clone(fast) as _, config).unwrap();
        cached.session_noted();
        cached
    };
    let fast = Arc::new(MemoryDevice::new("fast", 0));
    let cached = open(&fast, None);
    read(&cached, 0, BLOCKS as usize * BLOCK);
    cached.maintain();
    let (first, older) = (cached.session(), Arc::new(fast.copy()));
    drop(cached);
    let cached = open(&fast, first);
    assert!(matches!(cached.start(), Start::Warm { kept: BLOCKS, .. }));
    cached.write_at(0, &filled(BLOCK, 9)).unwrap();
    let second = cached.session();
    drop(cached);
    let cached = open(&older, second);
    assert!(matches!(cached.start(), Start::Cold(_)), "{:?}", cached.start());
    assert_eq!(read(&cached, 0, BLOCK)[0], 9);
}

/// A cache, its guard and the slow device on one disk that ends at a random call.
fn open_on(disk: &SimulatedDisk, power_cycle: u8) -> Option<Cached> {
    let file = |name| disk.open(name, OpenMode::Write).ok();
    let config = timeless(32).power_cycle(Some([power_cycle; 16])).guard(file("guard")?);
    Cached::open(file("slow")?, file("fast")?, config).ok()
}

fn disk_with_a_cache() -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    for name in ["slow", "fast", "guard"] {
        disk.open(name, OpenMode::CreateNew).unwrap();
    }
    disk.open("slow", OpenMode::Write).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap();
    disk.sync().unwrap();
    let cached = open_on(&disk, 1).unwrap();
    for block in 0..BLOCKS {
        cached.write_at(block * BLOCK as u64, &filled(BLOCK, block as u8)).unwrap();
    }
    cached.close().unwrap();
    disk
}

#[track_caller]
fn is_warm_and_right(disk: &SimulatedDisk, power_cycle: u8, what: &str) {
    let cached = open_on(disk, power_cycle).unwrap();
    assert_eq!(cached.start(), Start::Warm { kept: BLOCKS, dropped: 0 }, "{what}");
    for block in 0..BLOCKS {
        assert_eq!(read(&cached, block * BLOCK as u64, BLOCK)[0], block as u8, "{what}");
    }
}

#[test]
fn an_opening_or_a_close_that_is_cut_off_anywhere_leaves_the_cache_warm() {
    let (mut openings, mut closes) = (0, 0);
    for call in 1..60 {
        let disk = disk_with_a_cache().killed();
        disk.crash_at(disk.calls() + call);
        let cached = open_on(&disk, 1);
        openings += u32::from(cached.is_none());
        let closed = cached.map(|cached| cached.close());
        closes += u32::from(matches!(closed, Some(Err(_))));
        is_warm_and_right(&disk.killed(), 1, &format!("killed at call {call}"));
        for seed in 0..10 {
            let what = format!("power cut {seed} at call {call}");
            is_warm_and_right(&disk.survivor(seed), 2, &what);
        }
    }
    assert!(openings > 3 && closes > 0, "{openings} {closes}");
}

fn live_on(disk: &SimulatedDisk, power_cycle: u8) -> Option<()> {
    open_on(disk, power_cycle)?.close().ok()
}

fn cuts(disk: &SimulatedDisk, live: impl Fn(&SimulatedDisk) -> Option<()>) -> Vec<SimulatedDisk> {
    let mut cuts = vec![];
    for call in 1.. {
        let disk = disk.killed();
        disk.crash_at(disk.calls() + call);
        let lived = live(&disk);
        if disk.crashed().is_none() {
            lived.expect("nothing fails but for the crash");
            break;
        }
        cuts.push(disk);
    }
    assert!(cuts.len() > 8, "{} calls", cuts.len());
    cuts
}

#[test]
fn two_lives_in_a_row_that_are_cut_off_anywhere_leave_the_cache_warm() {
    let begun = disk_with_a_cache();
    for (first, disk) in cuts(&begun, |disk| live_on(disk, 1)).iter().enumerate() {
        for (second, disk) in cuts(disk, |disk| live_on(disk, 1)).iter().enumerate() {
            is_warm_and_right(&disk.killed(), 1, &format!("killed at call {first} and then {second}"));
            let what = format!("killed at call {first}, power cut at call {second}");
            is_warm_and_right(&disk.survivor(second as u64), 2, &what);
        }
    }
}

/// Like [`open_on`], with an owner that stores the session in the guard's file.
fn open_noted(disk: &SimulatedDisk) -> Option<(Cached, Arc<dyn BlockDevice>)> {
    let file = |name| disk.open(name, OpenMode::Write).ok();
    let (origin, mut page) = (file("guard")?, AlignedBuffer::zeroed(BLOCK));
    origin.read_at(0, &mut page).ok()?;
    let session = u64::from_le_bytes(page[..8].try_into().unwrap());
    let config = CacheConfig { session: Some(session), ..timeless(32).power_cycle(Some([1; 16])) };
    let cached = Cached::open(file("slow")?, file("fast")?, config).ok()?;
    note(&cached, &*origin)?;
    cached.session_noted();
    Some((cached, origin))
}

fn note(cached: &Cached, origin: &dyn BlockDevice) -> Option<()> {
    let mut page = AlignedBuffer::zeroed(BLOCK);
    page[..8].copy_from_slice(&cached.session()?.to_le_bytes());
    origin.write_through_at(0, &page).ok()
}

fn live_noted(disk: &SimulatedDisk) -> Option<()> {
    let (cached, origin) = open_noted(disk)?;
    cached.close().ok()?;
    note(&cached, &*origin)
}

#[test]
fn two_lives_in_a_row_that_are_cut_off_are_warm_for_an_owner_that_keeps_the_session() {
    let begun = disk_with_a_cache();
    begun.open("guard", OpenMode::Write).unwrap().set_len(0).unwrap();
    begun.open("guard", OpenMode::Write).unwrap().set_len(BLOCK as u64).unwrap();
    // The present cache has a session that was never stored, so it is emptied once.
    let (cached, origin) = open_noted(&begun).unwrap();
    for block in 0..BLOCKS {
        cached.write_at(block * BLOCK as u64, &filled(BLOCK, block as u8)).unwrap();
    }
    cached.close().unwrap();
    note(&cached, &*origin).unwrap();
    for (first, disk) in cuts(&begun, live_noted).iter().enumerate() {
        for (second, disk) in cuts(disk, live_noted).iter().enumerate() {
            let (cached, _) = open_noted(&disk.killed()).unwrap();
            let start = cached.start();
            assert_eq!(
                start,
                Start::Warm { kept: BLOCKS, dropped: 0 },
                "killed at {first} and then {second}"
            );
        }
    }
}

fn open_back_on(disk: &SimulatedDisk) -> Option<Result<Cached, String>> {
    let file = |name| disk.open(name, OpenMode::Write).ok();
    let config = timeless(32).power_cycle(Some([1; 16])).guard(file("guard")?).mode(WriteMode::Back);
    Some(Cached::open(file("slow")?, file("fast")?, config).map_err(|error| error.to_string()))
}

/// A write-back cache in use after a close that could not write the guard.
fn dirty_after_a_failed_close() -> (SimulatedDisk, Cached) {
    let disk = disk_with_a_cache();
    let cached = open_back_on(&disk).unwrap().unwrap();
    disk.fail(FaultPlan::once(CallKind::WriteThrough, 3, libc::EIO));
    let closed = cached.close();
    assert!(matches!(closed, Err(CacheError::Slow { .. })), "{closed:?} {:?}", cached.stats());
    disk.mend();
    cached.write_at(0, &filled(BLOCK, 77)).unwrap();
    cached.sync().unwrap();
    assert_eq!((cached.stats().dirty_blocks, cached.stats().out_of_service), (1, None));
    (disk, cached)
}

#[track_caller]
fn has_what_was_dirty(disk: &SimulatedDisk, call: u64) {
    let cached = open_back_on(&disk.killed()).unwrap();
    let cached = cached.unwrap_or_else(|error| panic!("killed at call {call}: {error}"));
    assert_eq!(read(&cached, 0, BLOCK)[0], 77, "killed at call {call}");
}

#[test]
fn a_guard_that_failed_at_a_close_does_not_cost_blocks_to_write_back_at_two_kills() {
    let (begun, _cached) = dirty_after_a_failed_close();
    for (call, disk) in (1..).zip(cuts(&begun, |disk| open_back_on(disk)?.ok().map(drop))) {
        has_what_was_dirty(&disk, call);
    }
}

#[test]
fn a_guard_that_failed_at_a_close_does_not_cost_blocks_to_write_back_at_a_kill_in_the_next() {
    for call in 1..100 {
        let (disk, cached) = dirty_after_a_failed_close();
        disk.crash_at(disk.calls() + call);
        let closed = cached.close();
        has_what_was_dirty(&disk, call);
        if disk.crashed().is_none() {
            closed.expect("nothing fails but for the crash");
            assert!(call > 8, "{call} calls");
            return;
        }
    }
    panic!("the close does not end");
}

#[test]
fn catches_keep_unneeded() {
    for test in [
        two_lives_in_a_row_that_are_cut_off_anywhere_leave_the_cache_warm,
        two_lives_in_a_row_that_are_cut_off_are_warm_for_an_owner_that_keeps_the_session,
        a_guard_that_failed_at_a_close_does_not_cost_blocks_to_write_back_at_two_kills,
        a_guard_that_failed_at_a_close_does_not_cost_blocks_to_write_back_at_a_kill_in_the_next,
    ] {
        plant(Some(CacheBug::KeepUnneeded));
        let outcome = std::panic::catch_unwind(test);
        plant(None);
        let told = outcome.expect_err("the test must notice");
        let told = told.downcast_ref::<String>().map_or("", |told| told);
        assert!(told.contains("killed at"), "it is noticed as: {told}");
    }
}

/// A write-back cache with dirty blocks; the slow device has zeros.
fn dirty() -> Copies {
    let copies = Copies::new();
    let cached = open_back(&copies).unwrap();
    (0..3).for_each(|block| cached.write_at(block * BLOCK as u64, &filled(BLOCK, 1)).unwrap());
    cached.sync().unwrap();
    assert!(cached.stats().dirty_blocks == 3);
    copies
}

fn open_back(copies: &Copies) -> Result<Cached, CacheError> {
    let config = timeless(32).power_cycle(Some([1; 16])).guard(Arc::clone(&copies.guard) as _);
    let config = config.mode(WriteMode::Back);
    Cached::open(Arc::clone(&copies.slow) as _, Arc::clone(&copies.fast) as _, config)
}

#[track_caller]
fn is_refused(copies: &Copies, why: &str) {
    let (slow, fast) = (copies.slow.copy(), copies.fast.copy());
    let error = open_back(copies).expect_err("blocks are missing").to_string();
    assert!(error.contains("not complete") && error.contains(why), "{error}");
    let is_same = |now: &MemoryDevice, before: &MemoryDevice| {
        now.len() == before.len()
            && read(now, 0, now.len() as usize)[..] == read(before, 0, now.len() as usize)[..]
    };
    assert!(is_same(&copies.slow, &slow) && is_same(&copies.fast, &fast), "what is refused stays as it is");
}

#[test]
fn an_older_copy_of_a_cache_with_blocks_to_write_back_is_refused() {
    let older = dirty();
    let newer = older.copied();
    let cached = open_back(&newer).unwrap();
    assert_eq!(cached.stats().recovered, 3);
    (0..3).for_each(|block| cached.write_at(block * BLOCK as u64, &filled(BLOCK, 2)).unwrap());
    cached.sync().unwrap();
    drop(cached);
    is_refused(&Copies { fast: Arc::clone(&older.fast), ..newer.clone() }, "an older copy");
    is_refused(&Copies { guard: Arc::clone(&older.guard), ..newer.clone() }, "newer than the guard");
    assert_eq!(open_back(&newer).unwrap().stats().recovered, 3);
    assert_eq!(read(&*newer.slow, 0, BLOCK)[0], 2);
}

#[test]
fn blocks_to_write_back_are_not_dropped_for_an_older_guard_that_knows_of_none() {
    let copies = Copies::new();
    open_back(&copies).unwrap().close().unwrap();
    let guard = Arc::new(copies.guard.copy());
    let cached = open_back(&copies).unwrap();
    cached.write_at(0, &filled(BLOCK, 1)).unwrap();
    cached.sync().unwrap();
    drop(cached);
    is_refused(&Copies { guard, ..copies.clone() }, "the guard is older");
    // The other way round, the older cache's dirty blocks were written back long ago.
    let fast = Arc::new(copies.fast.copy());
    open_back(&copies).unwrap().close().unwrap();
    let copies = Copies { fast, ..copies };
    let cached = open_back(&copies).unwrap();
    assert!(matches!(cached.start(), Start::Cold(_)) && cached.stats().recovered == 0);
    assert_eq!(read(&cached, 0, BLOCK)[0], 1);
}

/// If the guard cannot be written, the cache keeps the guard's session.
#[test]
fn a_guard_that_cannot_be_written_at_a_close_leaves_the_cache_warm() {
    let disk = disk_with_a_cache().killed();
    let cached = open_on(&disk, 1).unwrap();
    disk.fail(FaultPlan::once(CallKind::WriteThrough, 3, libc::EIO));
    let closed = cached.close();
    assert!(matches!(closed, Err(CacheError::Slow { .. })), "{closed:?} {:?}", cached.stats());
    drop(cached);
    disk.mend();
    is_warm_and_right(&disk, 1, "the guard was not written");
}

/// A cache without sessions saves its dirty blocks and begins anew.
#[test]
fn a_cache_of_an_earlier_version_is_cold_and_its_dirty_blocks_are_not_lost() {
    for is_dirty in [false, true] {
        let copies = if is_dirty { dirty() } else { Copies::new() };
        if !is_dirty {
            let cached = open_back(&copies).unwrap();
            read(&cached, 0, BLOCK);
            cached.close().unwrap();
        }
        // The new fields were zeros, and the checksum was at the end.
        for (device, page, version, zeros) in [
            (&copies.fast, 0, Some(1 + u32::from(is_dirty)), 104..128),
            (&copies.fast, 4096, Some(1 + u32::from(is_dirty)), 104..128),
            (&copies.guard, 0, None, 20..40),
        ] {
            let mut bytes = read(&**device, page, 4096);
            if let Some(version) = version {
                bytes[8..12].copy_from_slice(&version.to_le_bytes());
            }
            bytes[zeros].fill(0);
            let check = super::super::checksum::checksum(&bytes[..508]);
            bytes[508..512].copy_from_slice(&check.to_le_bytes());
            device.write_at(page, &bytes).unwrap();
        }
        let cached = open_back(&copies).unwrap();
        let start = cached.start();
        assert!(matches!(&start, Start::Cold(reason) if reason.contains("earlier version")), "{start:?}");
        assert_eq!(cached.stats().recovered, if is_dirty { 3 } else { 0 });
        assert_eq!(read(&cached, 0, BLOCK)[0], u8::from(is_dirty));
    }
}
