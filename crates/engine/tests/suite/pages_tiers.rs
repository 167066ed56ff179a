//! Pages of other structures over DRAM, a middle tier and the file.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace::migration::Choice;
use terrace::pages::{PageAllocator, PageRef, PagesBuilder};
use terrace::{Backend, Error, MemoryDirectory, MiddleStats, Migrate, Mode, Time, VirtualTime};

use super::pages::{BUDGET, Model, SIZES, accounted};

fn builder(middle: &str, policy: &str) -> PagesBuilder {
    let builder = PageAllocator::builder().dram(BUDGET).directory(Arc::new(MemoryDirectory::new()));
    builder.middle(middle.parse().unwrap()).policy(policy.parse().unwrap()).mode(Mode::Inline)
}

fn open(middle: &str, policy: &str) -> PageAllocator {
    builder(middle, policy).page_sizes(&[4096]).open("pages").unwrap()
}

fn middle(pages: &PageAllocator) -> MiddleStats {
    pages.stats().middle.unwrap()
}

/// Number of pages with their numbers in all words.
fn make(pages: &PageAllocator, count: u64) -> Vec<PageRef> {
    make_of(pages, 4096, count)
}

fn make_of(pages: &PageAllocator, bytes: u64, count: u64) -> Vec<PageRef> {
    let one = |number| {
        let mut new = pages.allocate(bytes).unwrap();
        new.words_mut().iter().for_each(|word| word.store(number, Relaxed));
        new.keep()
    };
    (0..count).map(one).collect()
}

#[test]
fn pages_are_what_was_written_to_them_in_whichever_tier() {
    let mut seed = 0;
    for backend in Backend::ALL {
        for mode in [Mode::Inline, Mode::Background] {
            for policy in ["0,0,1,1", "1,1,1,1", ".5,.5,.5,.5"] {
                println!("seed {seed}, {backend} {mode:?} {policy}");
                let builder = builder("simulated:dram,512KiB", policy).backend(backend).mode(mode);
                let pages = builder.page_sizes(&SIZES).open("pages").unwrap();
                let (mut random, mut model) = (SmallRng::seed_from_u64(seed), Model::default());
                for _ in 0..6000 {
                    model.step(&pages, &mut random);
                }
                model.check(&pages);
                let stats = pages.stats();
                let in_tier = stats.middle.clone().unwrap();
                let moves = &in_tier.migrations;
                assert!(accounted(&stats) <= BUDGET, "{stats:?}");
                assert!(in_tier.other_sizes == 0 && moves.store_to_middle > 0, "{stats:?}");
                assert_within(&in_tier);
                println!("{moves:?}, {} copies dropped", in_tier.copies_dropped);
                if policy != "1,1,1,1" {
                    assert!(moves.middle_to_store > 0, "{stats:?}");
                    assert!(in_tier.reads_in_place > 0 && in_tier.writes_in_place > 0, "{stats:?}");
                }
                if policy == "0,0,1,1" {
                    assert_eq!(moves.middle_to_dram, 0, "{stats:?}");
                } else {
                    let to_dram = moves.middle_to_dram;
                    let for_writes = moves.middle_to_dram_for_writes;
                    assert!(for_writes > 0 && to_dram > for_writes, "{stats:?}");
                    assert!(moves.dram_to_middle > 0, "{stats:?}");
                }
                let bytes: u64 = model.pages.keys().map(|name| name.page_bytes() as u64).sum();
                assert!(bytes > 2 * (BUDGET + in_tier.capacity_bytes), "{bytes} bytes fit");
                seed += 1;
            }
        }
    }
}

/// Frames of all sizes together are no more than the tier has bytes for.
fn assert_within(middle: &MiddleStats) {
    let bytes: u64 = middle.classes.iter().map(|class| class.frames * class.frame_bytes).sum();
    assert!(bytes <= middle.capacity_bytes, "{middle:?}");
    assert!(middle.classes.iter().all(|class| class.used <= class.frames && class.frames > 0), "{middle:?}");
}

#[test]
fn pages_of_all_ten_sizes_are_what_was_written_to_them() {
    let sizes: Vec<u64> = (0..10).map(|shift| 4096 << shift).collect();
    let (dram, tier) = (48 << 20, 8 << 20);
    let mut seed = 100;
    for backend in Backend::ALL {
        for mode in [Mode::Inline, Mode::Background] {
            println!("seed {seed}, {backend} {mode:?}");
            let builder =
                builder("simulated:dram,8MiB", ".5,.5,.5,.5").backend(backend).mode(mode).dram(dram);
            let pages = builder.page_sizes(&sizes).open("pages").unwrap();
            let (mut random, mut model) = (SmallRng::seed_from_u64(seed), Model::of(&sizes));
            let bytes = |model: &Model| model.pages.keys().map(|name| name.page_bytes() as u64).sum::<u64>();
            while bytes(&model) < 2 * (dram + tier) {
                model.step(&pages, &mut random);
            }
            (0..2000).for_each(|_| model.step(&pages, &mut random));
            model.check(&pages);
            let stats = pages.stats();
            let in_tier = stats.middle.clone().unwrap();
            assert!(accounted(&stats) <= dram && in_tier.other_sizes == 0, "{stats:?}");
            assert_eq!(in_tier.classes.len(), 10, "{in_tier:?}");
            assert_within(&in_tier);
            assert!(in_tier.classes.iter().all(|class| class.taken > 0), "{in_tier:?}");
            assert!(in_tier.migrations.middle_to_dram > 0 && in_tier.migrations.dram_to_middle > 0);
            seed += 1;
        }
    }
}

/// One size fills the tier while the other is idle, then the other.
#[test]
fn the_tier_follows_the_size_that_is_used() {
    for mode in [Mode::Inline, Mode::Background] {
        let builder = builder("simulated:dram,2MiB", "0,0,1,1").mode(mode).page_sizes(&[4096, 64 << 10]);
        let pages = builder.dram(8 << 20).open("pages").unwrap();
        // Neither fits DRAM and the tier, whichever has frames for it.
        let (small, large) = (make_of(&pages, 4096, 4000), make_of(&pages, 64 << 10, 200));
        let frames = || middle(&pages).classes.iter().map(|class| class.frames).collect::<Vec<_>>();
        let mut random = SmallRng::seed_from_u64(3);
        // Until the size has more than the even share of 256 or 16 frames.
        let mut read = |names: &[PageRef], is_there: &dyn Fn(&[u64]) -> bool| {
            // The thread of its own moves frames in its rounds, however many reads fit in between.
            let end = Instant::now() + Duration::from_secs(60);
            while Instant::now() < end {
                let number = random.random_range(0..names.len());
                assert_eq!(pages.read(names[number]).unwrap().words()[0].load(Relaxed), number as u64);
                if is_there(&frames()) {
                    return;
                }
            }
            panic!("seed 3, {mode:?}: {:?}", pages.stats());
        };
        read(&large, &|frames| frames[1] > 20);
        read(&small, &|frames| frames[0] > 300);
        assert_within(&middle(&pages));
        // Guards in large frames, which are among the first.
        let in_place = || middle(&pages).reads_in_place;
        let held = large.iter().zip(0..).filter_map(|(&name, number)| {
            let before = in_place();
            let guard = pages.read(name).unwrap();
            (in_place() > before).then_some((number, guard.words().as_ptr(), guard))
        });
        let held: Vec<_> = held.take(2).collect();
        read(&large, &|frames| frames[1] > 20);
        let few = frames()[0];
        read(&small, &|frames| frames[0] > few);
        for (number, address, guard) in held {
            assert_eq!(guard.words().as_ptr(), address);
            assert!(guard.words().iter().all(|word| word.load(Relaxed) == number), "{mode:?}");
        }
        assert_within(&middle(&pages));
    }
}

#[test]
fn readers_and_writers_have_probabilities_of_their_own() {
    for (policy, for_reads, for_writes) in [("1,0,1,1", true, false), ("0,1,1,1", false, true)] {
        let pages = open("simulated:dram,8MiB", policy);
        // With D_w of 1 new pages are made in DRAM: most are demoted.
        let names = make(&pages, 1000);
        for &name in &names {
            drop(pages.read(name).unwrap());
            drop(pages.write(name).unwrap());
        }
        let moves = middle(&pages).migrations;
        let reads = moves.middle_to_dram - moves.middle_to_dram_for_writes;
        assert_eq!((reads > 0, moves.middle_to_dram_for_writes > 0), (for_reads, for_writes), "{moves:?}");
    }
}

#[test]
fn a_guard_in_the_middle_tier_keeps_its_page_there() {
    for backend in Backend::ALL {
        let pages = builder("simulated:dram,256KiB", ".5,.5,1,1").backend(backend);
        let pages = pages.page_sizes(&[4096]).open("pages").unwrap();
        let names = make(&pages, 3000);
        let guards: Vec<_> = names[..20].iter().map(|&name| pages.read(name).unwrap()).collect();
        let addresses: Vec<_> = guards.iter().map(|guard| guard.words().as_ptr()).collect();
        for &name in &names {
            drop(pages.read(name).unwrap());
        }
        for ((number, guard), address) in (0..).zip(&guards).zip(addresses) {
            assert_eq!(guard.words().as_ptr(), address);
            assert!(guard.words().iter().all(|word| word.load(Relaxed) == number));
            assert_eq!(pages.page_of(&guard.words()[7]), Some(names[number as usize]));
        }
        assert!(middle(&pages).reads_in_place > 0 && middle(&pages).migrations.middle_to_dram > 0);
    }
}

/// Threads evict each other's pages from a tier with fewer frames than threads.
#[test]
fn a_tier_of_one_frame_serves_many_threads() {
    for (mode, policy) in [(Mode::Background, "0,0,1,1"), (Mode::Inline, ".5,.5,1,1")] {
        let pages = builder("simulated:dram,4096B", policy).mode(mode).page_sizes(&[4096]);
        let pages = pages.open("pages").unwrap();
        let names = make(&pages, 1000);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (pages, names) = (&pages, &names);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(thread);
                    for _ in 0..2000 {
                        let number = random.random_range(0..names.len());
                        let guard = pages.read(names[number]).unwrap();
                        assert!(guard.words().iter().all(|word| word.load(Relaxed) == number as u64));
                    }
                });
            }
        });
        let stats = middle(&pages);
        assert_eq!(stats.frames, 1);
        assert!(stats.migrations.store_to_middle > 0 && stats.reads_in_place > 0, "{mode:?}: {stats:?}");
    }
}

#[test]
fn prefetched_pages_go_to_the_tier_of_the_policy() {
    for (policy, to_middle) in [("0,0,1,1", true), ("0,0,0,0", false)] {
        let pages = open("simulated:dram,1MiB", policy);
        let names = make(&pages, 3000);
        let before = middle(&pages).migrations.store_to_middle;
        assert!(pages.prefetch(&names[..32]).unwrap() > 0);
        assert_eq!(middle(&pages).migrations.store_to_middle > before, to_middle, "{policy}");
        for (number, &name) in (0..).zip(&names[..32]) {
            assert_eq!(pages.read(name).unwrap().words()[0].load(Relaxed), number);
        }
    }
}

#[test]
fn guards_in_a_simulated_tier_take_its_time() {
    let time = Arc::new(VirtualTime::new(1));
    let builder = builder("simulated:optane,8MiB", "0,0,1,1").page_sizes(&[4096]);
    let pages = builder.simulated_time(Time::Virtual(Arc::clone(&time))).open("pages").unwrap();
    let name = make(&pages, 1)[0];
    let before = time.elapsed_ns();
    drop(pages.read(name).unwrap());
    assert!(time.elapsed_ns() > before);
    assert_eq!(middle(&pages).reads_in_place, 1);
}

#[test]
fn tiers_that_cannot_be_say_why() {
    let refused = |builder: PagesBuilder| match builder.open("pages") {
        Err(Error::Config(what)) => what,
        other => panic!("{other:?}"),
    };
    for kind in ["shm:/dev/shm/terrace-no-such-tier", "pmem:/terrace-no-such-tier"] {
        let what = refused(builder(&format!("{kind},8MiB"), "0,0,1,1").page_sizes(&[4096]));
        assert!(what.contains("outlives the process"), "{what}");
    }
    let large = builder("simulated:dram,512KiB", "0,0,1,1").dram(64 << 20).page_sizes(&[4096, 512 << 10]);
    let what = refused(large);
    assert!(what.contains("a page of each size; give it 528384"), "{what}");
    // Pages of the tables of pages are smaller, but are not there.
    let values = |tier| builder(tier, "0,0,1,1").dram(64 << 20).page_sizes(&[128 << 10]);
    let what = refused(values("simulated:dram,131071B"));
    assert!(what.contains("a page of each size; give it 131072"), "{what}");
    let values = values("simulated:dram,128KiB").open("pages").unwrap();
    assert_eq!((middle(&values).frames, middle(&values).classes[0].page_bytes), (1, 128 << 10));
    drop(values);
    let what = refused(builder("simulated:dram,4095B", "0,0,1,1").page_sizes(&[4096]));
    assert!(what.contains("a page of each size"), "{what}");
    // 64 MiB of headers.
    let what = refused(builder("simulated:dram,4GiB", "0,0,1,1").page_sizes(&[4096]));
    assert!(what.contains("give it about"), "{what}");
    let what = refused(builder("simulated:dram,8MiB", "0,0,1,1").page_sizes(&[4096]).migrate(Migrate::Mbind));
    assert!(what.contains("memory moves with mapped pages"), "{what}");
    let none = PageAllocator::builder().dram(BUDGET).page_sizes(&[4096]).migrate(Migrate::Mbind);
    assert!(refused(none).contains("no middle tier"));
}

#[test]
fn memory_of_a_node_holds_pages() {
    for (backend, bytes) in
        Backend::ALL.into_iter().flat_map(|backend| [(backend, 4096), (backend, 32 << 10)])
    {
        let tier = format!("numa:0,{}KiB", bytes / 4);
        let pages = builder(&tier, ".5,.5,1,1").backend(backend).page_sizes(&[4096, bytes]).dram(bytes * 512);
        let pages = pages.open("pages").unwrap();
        let names = make_of(&pages, bytes, 1600);
        for round in 0..4 {
            for (number, &name) in (0..).zip(&names).step_by(3 + round) {
                assert_eq!(pages.read(name).unwrap().words()[500].load(Relaxed), number);
            }
        }
        let (stats, moves) = (middle(&pages), middle(&pages).migrations);
        assert!(stats.reads_in_place > 0 && moves.dram_to_middle > 0, "{stats:?}");
        assert!(moves.middle_to_dram > 0, "{stats:?}");
        assert_eq!(stats.memory_moves.pages > 0, backend == Backend::Mapped, "{stats:?}");
    }
}

/// Hits in DRAM are operations, too: a policy is judged by all.
#[test]
fn an_adaptive_policy_counts_guards_of_pages_in_dram() {
    let time = Time::Virtual(Arc::new(VirtualTime::new(1)));
    let builder = builder("simulated:dram,1MiB", "0,0,0,0").policy(Choice::Adaptive).simulated_time(time);
    let pages = builder.page_sizes(&[4096]).open("pages").unwrap();
    let names = make(&pages, 2000);
    for &other in names[1..].iter().step_by(20) {
        (0..5000).for_each(|_| drop(pages.read(names[0]).unwrap()));
        drop(pages.read(other).unwrap());
    }
    // Without the 500,000 guards of one page there would be none.
    let tuning = middle(&pages).tuning.unwrap();
    assert!(tuning.epochs > 0, "{tuning:?}");
}
