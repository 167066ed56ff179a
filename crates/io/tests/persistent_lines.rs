//! A toy of sealed frames on the simulated disk: right, it loses nothing; wrong, it is caught.
//!
//! A frame has a body and a line that seals it: version, checksum of the body, and a seal word. A
//! sealed frame claims that its body is the one of its version. The frame is unsealed, durably,
//! before its body changes, and sealed again behind it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use terrace_io::{Directory, OpenMode, PersistentMemory, SimulatedDisk};

const FRAMES: usize = 3;
const BODY_LINES: usize = 6;
const LINE: usize = 64;
const SEALED: u64 = 0x5ea1;
/// Power cuts of the right way; `TERRACE_CRASH_CYCLES` sets another number.
const CUTS: u64 = 20_000;

/// How the toy works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Right,
    /// The body is written back before the seal, without a fence between them.
    SkipFence,
    /// The seal is durable before the body is.
    SealFirst,
    /// The body changes before the seal is durably gone.
    UnsealLate,
}

/// What a frame must have after a power cut.
#[derive(Clone, Copy, Debug, Default)]
struct Promise {
    /// The last version that was sealed durably, if nothing has been done to the frame since.
    sealed: Option<u64>,
}

struct Toy {
    memory: Arc<PersistentMemory>,
    way: Way,
    promises: [Promise; FRAMES],
}

fn header(frame: usize) -> usize {
    frame * LINE
}

fn body(frame: usize) -> std::ops::Range<usize> {
    4096 + frame * BODY_LINES * LINE..4096 + (frame + 1) * BODY_LINES * LINE
}

fn word_of_body(version: u64, word: usize) -> u64 {
    version << 32 | word as u64
}

impl Toy {
    fn store(&self, at: usize, value: u64) {
        self.memory.note(at..at + 8);
        self.memory.words(at..at + 8)[0].store(value, Relaxed);
    }

    fn unseal(&self, frame: usize) -> std::io::Result<()> {
        let seal = header(frame) + 8;
        self.store(seal, 0);
        self.memory.persist(seal..seal + 8)
    }

    fn change(&mut self, frame: usize, version: u64) -> std::io::Result<()> {
        self.promises[frame].sealed = None;
        if self.way != Way::UnsealLate {
            self.unseal(frame)?;
        }
        for (word, at) in body(frame).step_by(8).enumerate() {
            self.store(at, word_of_body(version, word));
        }
        if self.way == Way::UnsealLate {
            self.unseal(frame)?;
        }
        Ok(())
    }

    fn seal(&mut self, frame: usize, version: u64) -> std::io::Result<()> {
        let header = header(frame);
        if self.way != Way::SealFirst {
            self.memory.write_back(body(frame))?;
        }
        self.store(header, version);
        self.memory.write_back(header..header + 8)?;
        if self.way != Way::SkipFence {
            self.memory.fence()?;
        }
        self.store(header + 8, SEALED);
        self.memory.persist(header..header + 16)?;
        if self.way == Way::SealFirst {
            self.memory.persist(body(frame))?;
        }
        self.promises[frame].sealed = Some(version);
        Ok(())
    }
}

fn open(disk: &SimulatedDisk) -> Arc<PersistentMemory> {
    disk.open_memory("frames", 8192, OpenMode::Write).unwrap()
}

/// A disk with frames of zeros, none of them sealed.
fn disk(seed: u64) -> SimulatedDisk {
    let disk = SimulatedDisk::new(seed);
    disk.open_memory("frames", 8192, OpenMode::CreateNew).unwrap();
    disk.sync().unwrap();
    disk
}

/// Changes and seals frames, in an order by `seed`, until the power fails.
fn run(disk: &SimulatedDisk, way: Way, seed: u64) -> [Promise; FRAMES] {
    let mut toy = Toy { memory: open(disk), way, promises: [Promise::default(); FRAMES] };
    let (mut next, mut version) = (numbers(seed), 0);
    loop {
        let frame = next(FRAMES as u64) as usize;
        version += 1;
        if toy.change(frame, version).and_then(|()| toy.seal(frame, version)).is_err() {
            return toy.promises;
        }
    }
}

/// The first thing wrong with the frames on `disk`.
fn wrong(disk: &SimulatedDisk, promises: &[Promise; FRAMES]) -> Option<String> {
    let memory = open(disk);
    let load = |at: usize| memory.words(at..at + 8)[0].load(Relaxed);
    (0..FRAMES).find_map(|frame| {
        let (version, is_sealed) = (load(header(frame)), load(header(frame) + 8) == SEALED);
        if let Some(promised) = promises[frame].sealed
            && !(is_sealed && version == promised)
        {
            return Some(format!("frame {frame} was sealed as {promised}: now {version}, {is_sealed}"));
        }
        let mut words = body(frame).step_by(8).enumerate();
        let is_whole = words.all(|(word, at)| load(at) == word_of_body(version, word));
        (is_sealed && !is_whole).then(|| format!("frame {frame} is sealed as {version} over another body"))
    })
}

/// The cut, of the given number, that shows something wrong, and what.
fn first_wrong(way: Way, cuts: u64) -> Option<(u64, String)> {
    (0..cuts).find_map(|seed| {
        let disk = disk(seed);
        disk.crash_at(disk.calls() + 2 + seed % 97);
        let promises = run(&disk, way, seed);
        let after = disk.survivor(seed);
        wrong(&after, &promises).map(|what| (seed, format!("seed {seed}, {:?}: {what}", disk.crashed())))
    })
}

#[test]
fn sealed_frames_lose_nothing_in_any_cut() {
    let cuts = std::env::var("TERRACE_CRASH_CYCLES").map_or(CUTS, |cuts| cuts.parse().unwrap());
    assert_eq!(first_wrong(Way::Right, cuts), None);
}

#[test]
fn a_seal_without_a_fence_is_caught() {
    let (cut, what) = first_wrong(Way::SkipFence, 100).expect("nothing found");
    println!("cut {cut}: {what}");
}

#[test]
fn a_seal_before_its_body_is_caught() {
    let (cut, what) = first_wrong(Way::SealFirst, 100).expect("nothing found");
    println!("cut {cut}: {what}");
}

#[test]
fn a_body_changed_under_its_seal_is_caught() {
    let (cut, what) = first_wrong(Way::UnsealLate, 100).expect("nothing found");
    println!("cut {cut}: {what}");
}

#[test]
fn a_fence_that_lies_is_caught() {
    let found = (0..100).any(|seed| {
        let disk = disk(seed);
        disk.lie_about_syncs(true);
        disk.crash_at(disk.calls() + 2 + seed);
        let promises = run(&disk, Way::Right, seed);
        wrong(&disk.survivor(seed), &promises).is_some()
    });
    assert!(found);
}

#[test]
fn a_kill_keeps_everything_and_a_power_cut_behind_it_loses_nothing_sealed() {
    for seed in 0..500 {
        let disk = disk(seed);
        disk.crash_at(disk.calls() + 2 + seed % 97);
        let promises = run(&disk, Way::Right, seed);
        let killed = disk.killed();
        assert_eq!(wrong(&killed, &promises), None, "seed {seed}, killed at {:?}", disk.crashed());
        // The next life seals what it finds unsealed, and is cut in turn.
        killed.crash_at(killed.calls() + 2 + seed % 31);
        let promises = run(&killed, Way::Right, !seed);
        assert_eq!(wrong(&killed.survivor(seed), &promises), None, "seed {seed}, {:?}", killed.crashed());
    }
}

/// A seal that is there in memory only, because the process was killed before its fence, must not
/// be taken for durable; and one that is gone in memory only may return.
#[test]
fn an_unseal_that_was_not_fenced_may_be_undone_by_a_power_cut_of_the_next_life() {
    let disk = disk(1);
    let mut toy = Toy { memory: open(&disk), way: Way::Right, promises: [Promise::default(); FRAMES] };
    toy.change(0, 1).unwrap();
    toy.seal(0, 1).unwrap();
    toy.store(header(0) + 8, 0);
    let killed = disk.killed();
    let again = open(&killed);
    let seal = header(0) + 8..header(0) + 16;
    assert_eq!(again.words(seal.clone())[0].load(Relaxed), 0, "it reads as unsealed");
    let returns = |disk: &SimulatedDisk| {
        (0..50).any(|seed| open(&disk.survivor(seed)).words(seal.clone())[0].load(Relaxed) == SEALED)
    };
    assert!(returns(&killed));
    again.persist(seal.clone()).unwrap();
    assert!(!returns(&killed));
}

#[test]
fn a_survivor_has_only_contents_that_were_stored() {
    const LINES: usize = 128;
    for seed in 0..300 {
        let disk = disk(seed);
        let memory = open(&disk);
        disk.crash_at(disk.calls() + 1 + seed % 40);
        let mut next = numbers(seed);
        // All words of a line have one value, which is noted as a whole.
        let mut stored = vec![vec![0]; LINES];
        let mut alive = true;
        let mut value = 0;
        while alive {
            let line = next(LINES as u64) as usize;
            let at = line * LINE..(line + 1) * LINE;
            match next(8) {
                0 => alive = memory.write_back(at).is_ok(),
                1 => alive = memory.fence().is_ok(),
                _ => {
                    value += 1;
                    memory.note(at.clone());
                    memory.words(at).iter().for_each(|word| word.store(value, Relaxed));
                    stored[line].push(value);
                }
            }
        }
        memory.words(0..LINES * LINE).iter().for_each(|word| word.store(u64::MAX, Relaxed));
        for survivor in [disk.survivor(seed), disk.killed().survivor(seed)] {
            let after = open(&survivor);
            for (line, stored) in stored.iter().enumerate() {
                let words = after.words(line * LINE..(line + 1) * LINE);
                let first = words[0].load(Relaxed);
                assert!(stored.contains(&first), "seed {seed}: line {line} has {first}, never stored");
                assert!(words.iter().all(|word| word.load(Relaxed) == first), "seed {seed}: line {line}");
            }
        }
    }
}

/// Numbers by `seed`, each below its limit.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |limit| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % limit
    }
}

/// What a line has had, and from which of these on it may persist.
#[derive(Clone, Default)]
struct History {
    stored: u64,
    least: u64,
}

/// Two threads store, write back and fence; each fence covers what its own thread wrote back, as it
/// was then, and nothing else. The second thread does what the first sends it, and answers.
#[test]
fn what_a_thread_has_fenced_is_there_and_anything_newer_may_be() {
    const LINES: usize = 12;
    let (mut at_least, mut newer, mut lost) = (0, 0, 0);
    for seed in 0..300 {
        let disk = disk(seed);
        let memory = open(&disk);
        let mut next = numbers(seed);
        let mut lines = vec![History::default(); LINES];
        let mut written_back: [Vec<(usize, u64)>; 2] = Default::default();
        std::thread::scope(|scope| {
            let (send, receive) = std::sync::mpsc::channel::<std::ops::Range<usize>>();
            let (done, answer) = std::sync::mpsc::channel();
            let call = |range: std::ops::Range<usize>| match range.is_empty() {
                true => memory.fence().unwrap(),
                false => memory.write_back(range).unwrap(),
            };
            scope.spawn(move || {
                for range in receive {
                    call(range);
                    done.send(()).unwrap();
                }
            });
            for _ in 0..200 {
                let (line, thread) = (next(LINES as u64) as usize, next(2) as usize);
                let at = line * LINE..(line + 1) * LINE;
                let range = match next(5) {
                    0 => {
                        for (line, stored) in written_back[thread].drain(..) {
                            lines[line].least = lines[line].least.max(stored);
                        }
                        0..0
                    }
                    1 => {
                        written_back[thread].push((line, lines[line].stored));
                        at
                    }
                    _ => {
                        lines[line].stored += 1;
                        memory.note(at.clone());
                        memory.words(at).iter().for_each(|word| word.store(lines[line].stored, Relaxed));
                        continue;
                    }
                };
                match thread {
                    0 => call(range),
                    _ => {
                        send.send(range).unwrap();
                        answer.recv().unwrap();
                    }
                }
            }
        });
        for cut in 0..20 {
            let after = open(&disk.survivor(seed << 8 | cut));
            for (line, history) in lines.iter().enumerate() {
                let found = after.words(line * LINE..line * LINE + 8)[0].load(Relaxed);
                assert!(
                    (history.least..=history.stored).contains(&found),
                    "seed {seed}, cut {cut}: line {line} has {found} of {}..={}",
                    history.least,
                    history.stored
                );
                at_least += u64::from(found == history.least);
                newer += u64::from(found > history.least && found < history.stored);
                lost += u64::from(found < history.stored);
            }
        }
    }
    assert!(at_least > 1000 && newer > 1000 && lost > 1000, "{at_least} {newer} {lost}");
}

#[test]
fn the_same_seed_gives_the_same_survivor() {
    let outcome = |seed: u64| {
        let disk = disk(seed);
        disk.crash_at(disk.calls() + 40);
        run(&disk, Way::Right, seed);
        let memory = open(&disk.survivor(seed));
        let words: Vec<u64> = memory.words(0..8192).iter().map(|word| word.load(Relaxed)).collect();
        words
    };
    assert_eq!(outcome(3), outcome(3));
    assert_ne!(outcome(3), outcome(4));
}
