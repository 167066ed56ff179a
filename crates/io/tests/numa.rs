//! Memory on nodes, in a guest whose second node has 192 MiB and no processors.
//!
//! `.ci/run numa` starts that guest. Error cases run on every machine; tests that need the guest
//! are ignored, and fail elsewhere. A successful call proves no placement: the tests ask the kernel
//! about each page.
#![allow(unsafe_code)]
#![allow(clippy::single_range_in_vec_init, reason = "ranges come in slices, of one, too")]

use std::io::ErrorKind;
use std::sync::atomic::Ordering::Relaxed;

use terrace_io::{
    Directory, FileDirectory, Migrate, Moved, NodeSet, OpenMode, Performance, PersistentKind,
    PersistentMemory, PreferredNodes, Region, check_room, measure_node, nodes,
};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn set(list: &str) -> NodeSet {
    list.parse().unwrap()
}

/// Up to `count` non-adjacent pages of a region.
fn scattered(count: usize) -> Vec<std::ops::Range<usize>> {
    (0..count).map(|page| page * 2 * PAGE..page * 2 * PAGE + PAGE).collect()
}

/// A region of pages on `node`, each with a distinct number in it.
fn filled(pages: &[std::ops::Range<usize>], node: u32) -> Region {
    let bytes = pages.last().unwrap().end;
    let region = Region::reserve_sparse(bytes, PAGE).unwrap();
    region.bind_to(0..bytes, &NodeSet::of(&[node]).unwrap()).unwrap();
    region.populate(&mut pages.to_vec()).unwrap();
    for page in pages {
        region
            .words(page.clone())
            .iter()
            .zip(page.start..)
            .for_each(|(word, n)| word.store(n as u64, Relaxed));
    }
    region
}

fn is_intact(region: &Region, pages: &[std::ops::Range<usize>]) -> bool {
    pages.iter().all(|page| {
        region.words(page.clone()).iter().zip(page.start..).all(|(word, n)| word.load(Relaxed) == n as u64)
    })
}

/// Counts `pages` on `node`, as the kernel reports.
fn on(region: &Region, pages: &[std::ops::Range<usize>], node: u32) -> usize {
    let offsets = Vec::from_iter(pages.iter().map(|page| page.start));
    region.nodes_of(&offsets).unwrap().into_iter().filter(|found| *found == Some(node)).count()
}

/// Makes the calling thread's NUMA calls fail with EPERM, as containers do.
fn refuse_calls() {
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // Load the number of the call; if it is one of the three, go to the error, else to the end.
    let mut filter = [
        instruction(0x20, 0, 0, 0),
        instruction(0x15, 3, 0, libc::SYS_mbind as u32),
        instruction(0x15, 2, 0, libc::SYS_set_mempolicy as u32),
        instruction(0x15, 1, 0, libc::SYS_move_pages as u32),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel reads the program, which lives until the call returns. It applies to this
    // thread alone, and refuses three calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn a_refusal_to_bind_memory_is_told_and_loses_nothing() {
    let pages = scattered(10);
    let region = filled(&pages, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            refuse_calls();
            let refused = |error: std::io::Error| {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
                error.to_string()
            };
            assert!(refused(region.bind_to(0..PAGE, &set("0")).unwrap_err()).contains("CAP_SYS_NICE"));
            refused(region.nodes_of(&[0]).unwrap_err());
            refused(region.bind_anywhere(&mut [0..PAGE]).unwrap_err());
            assert!(refused(PreferredNodes::new(&set("0")).unwrap_err()).contains("CAP_SYS_NICE"));
            for how in Migrate::ALL {
                assert!(refused(region.migrate(&mut pages.clone(), 0, how).unwrap_err()).contains("node 0"));
            }
        });
    });
    assert!(is_intact(&region, &pages));
}

/// A new file on tmpfs of 16 MiB.
fn shared(folder: &std::path::Path, file: &str) -> std::sync::Arc<PersistentMemory> {
    let directory = FileDirectory::open(folder).unwrap();
    directory.open_memory(file, 16 << 20, OpenMode::CreateNew).unwrap()
}

#[test]
#[ignore = "needs a second node"]
fn a_shared_file_gets_its_space_on_the_nodes_that_its_opener_prefers() {
    let folder = tempfile::tempdir().unwrap();
    let preferred = PreferredNodes::new(&set("1")).unwrap();
    let memory = shared(folder.path(), "frames");
    drop(preferred);
    assert_eq!(memory.kind(), PersistentKind::Shm);
    let region = Region::reserve(16 * MIB).unwrap();
    memory.map_over(&region, 0..16 * MIB, 0).unwrap();
    region.commit(0..16 * MIB).unwrap();
    assert_eq!(region.misplaced(0..16 * MIB, &set("1")).unwrap(), 0);
    assert_eq!(region.misplaced(0..16 * MIB, &set("0")).unwrap(), 16 * MIB / PAGE);
}

#[test]
#[ignore = "needs a second node"]
fn a_shared_file_that_is_elsewhere_moves_and_keeps_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let memory = shared(folder.path(), "frames");
    let words = memory.words(0..16 * MIB);
    words.iter().zip(0..).for_each(|(word, n)| word.store(n, Relaxed));
    for node in ["1", "0", "1"] {
        assert_eq!(memory.bind_to(&set(node)).unwrap(), 0, "all have moved to {node}");
        let region = Region::reserve(16 * MIB).unwrap();
        memory.map_over(&region, 0..16 * MIB, 0).unwrap();
        region.commit(0..16 * MIB).unwrap();
        assert_eq!(region.misplaced(0..16 * MIB, &set(node)).unwrap(), 0);
        let words = region.words(0..16 * MIB);
        assert!(words.iter().zip(0..).all(|(word, n)| word.load(Relaxed) == n));
    }
}

#[test]
#[ignore = "needs a second node"]
fn the_second_node_is_found_with_what_the_firmware_says() {
    let nodes = nodes();
    let [near, far] = &nodes[..] else { panic!("{nodes:?}") };
    assert_eq!((near.cpus.as_slice(), far.cpus.as_slice()), (&[0][..], &[][..]));
    assert_eq!((near.distances.as_slice(), far.distances.as_slice()), (&[10, 20][..], &[20, 10][..]));
    assert!(far.bytes > 150 << 20 && far.bytes <= 192 << 20, "{far:?}");
    let said =
        Performance { read_latency_ns: 300, write_latency_ns: 300, read_mib_s: 30720, write_mib_s: 30720 };
    assert_eq!(far.performance, Some(said));
    let tier = |node: &terrace_io::Node| node.memory_tier.expect("this kernel has tiers");
    assert!(tier(far) > tier(near), "the slower memory has the higher number");
}

#[test]
#[ignore = "needs a second node"]
fn memory_comes_from_where_it_is_wanted() {
    for (list, nodes) in [("0", &[0][..]), ("1", &[1]), ("0-1", &[0, 1])] {
        let region = Region::reserve(16 * MIB).unwrap();
        region.bind_to(0..16 * MIB, &set(list)).unwrap();
        region.commit(0..16 * MIB).unwrap();
        assert_eq!(region.misplaced(0..16 * MIB, &set(list)).unwrap(), 0, "{list}");
        let pages: Vec<_> = (0..16 * MIB).step_by(PAGE).map(|page| page..page + PAGE).collect();
        for &node in nodes {
            assert_eq!(on(&region, &pages, node), pages.len() / nodes.len(), "{list}: node {node}");
        }
        // After release, new touches use the same node.
        region.release(0..4 * MIB).unwrap();
        region.commit(0..4 * MIB).unwrap();
        assert_eq!(region.misplaced(0..16 * MIB, &set(list)).unwrap(), 0, "{list}");
    }
}

/// Several preferred nodes within one mapping.
#[test]
#[ignore = "needs a second node"]
fn pages_come_from_the_nodes_that_the_thread_prefers() {
    // With several nodes the kernel chooses by the address.
    let pages = Vec::from_iter((0..300).map(|page| page * PAGE..(page + 1) * PAGE));
    let region = Region::reserve_sparse(pages.last().unwrap().end, PAGE).unwrap();
    for (list, at) in [("1", 0), ("0", 1), ("0-1", 2)] {
        let third = Vec::from_iter(pages.iter().skip(at).step_by(3).cloned());
        let preferred = PreferredNodes::new(&set(list)).unwrap();
        region.populate(&mut third.clone()).unwrap();
        drop(preferred);
        let far = on(&region, &third, 1);
        assert_eq!(far, [100, 0, 50][at], "{list}");
        assert_eq!(on(&region, &third, 0), 100 - far, "{list}");
    }
    // Nothing of the preference is left.
    let other = Region::reserve_sparse(MIB, PAGE).unwrap();
    other.populate(&mut [0..MIB]).unwrap();
    assert_eq!(other.misplaced(0..MIB, &set("0")).unwrap(), 0);
}

#[test]
#[ignore = "needs a second node"]
fn pages_move_there_and_back_in_each_way() {
    for how in Migrate::ALL {
        let mut pages = scattered(2000);
        let region = filled(&pages, 0);
        assert_eq!(on(&region, &pages, 0), 2000);
        // Pages without memory.
        let absent = region.len() - PAGE..region.len();
        region.discard(&mut [absent.clone()]).unwrap();
        for node in [1, 0, 1] {
            let moved = region.migrate(&mut pages, node, how).unwrap();
            assert_eq!(
                (moved.there, moved.absent, moved.full, moved.refused),
                (1999, 1, 0, 0),
                "{how}: {moved:?}"
            );
            assert_eq!(on(&region, &pages, node), 1999, "{how}");
            assert!(is_intact(&region, &pages[..1999]), "{how}");
            if how == Migrate::Batch {
                assert!(moved.calls * 32 < moved.there, "{moved:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs a second node"]
fn pages_that_are_there_already_do_not_keep_others_from_moving() {
    let pages = scattered(1000);
    let region = filled(&pages, 0);
    let every_third = Vec::from_iter(pages.iter().step_by(3).cloned());
    region.migrate(&mut every_third.clone(), 1, Migrate::Batch).unwrap();
    assert_eq!(on(&region, &pages, 1), every_third.len());
    for how in Migrate::ALL {
        let moved = region.migrate(&mut pages.clone(), 1, how).unwrap();
        assert_eq!((moved.there, moved.refused), (1000, 0), "{how}");
        assert!(is_intact(&region, &pages), "{how}");
        region.migrate(&mut every_third.clone(), 0, Migrate::Batch).unwrap();
        assert_eq!(on(&region, &pages, 0), every_third.len());
    }
}

/// Pages shared by two processes do not move for one of them.
#[test]
#[ignore = "needs a second node"]
fn pages_that_another_process_has_refuse_to_move() {
    let pages = scattered(100);
    let region = filled(&pages, 0);
    // SAFETY: the child calls only functions that are safe after a fork, and ends by a signal.
    let child = unsafe {
        match libc::fork() {
            0 => loop {
                libc::pause();
            },
            child => child,
        }
    };
    assert!(child > 0);
    // Written pages are this process's own again.
    for page in &pages[..40] {
        region.words(page.clone())[0].store(page.start as u64, Relaxed);
    }
    let moved = region.migrate(&mut pages.clone(), 1, Migrate::Batch).unwrap();
    assert_eq!((moved.there, moved.refused, moved.full), (40, 60, 0), "{moved:?}");
    assert_eq!((on(&region, &pages, 1), on(&region, &pages, 0)), (40, 60));
    let moved = region.migrate(&mut pages.clone(), 0, Migrate::Mbind).unwrap();
    assert_eq!((moved.there, moved.refused), (100, 0));
    // SAFETY: kills and awaits the child above.
    unsafe {
        assert_eq!(libc::kill(child, libc::SIGKILL), 0);
        assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
    }
    let moved = region.migrate(&mut pages.clone(), 1, Migrate::Batch).unwrap();
    assert_eq!((moved.there, moved.refused), (100, 0), "and move when nobody else has them: {moved:?}");
    assert!(is_intact(&region, &pages));
}

#[test]
#[ignore = "needs a second node"]
fn a_full_node_is_refused_before_and_counted_after() {
    let error = check_room(&set("1"), 200 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("node 1"), "{error}");
    check_room(&set("1"), 64 << 20).unwrap();
    // Asking anyway gets memory, some of it elsewhere, without a crash.
    let bytes = 208 * MIB;
    let region = Region::reserve(bytes).unwrap();
    region.bind_to(0..bytes, &set("1")).unwrap();
    region.commit(0..bytes).unwrap();
    let elsewhere = region.misplaced(0..bytes, &set("1")).unwrap();
    assert!((1..bytes / PAGE / 2).contains(&elsewhere), "{elsewhere} pages elsewhere");
    // Pages that would move to a full node stay, in each way.
    let pages = scattered(6000);
    let other = filled(&pages, 0);
    for how in Migrate::ALL {
        let moved = other.migrate(&mut pages.clone(), 1, how).unwrap();
        let Moved { there, full, refused, .. } = moved;
        assert_eq!((there, there + full + refused), (on(&other, &pages, 1), 6000), "{how}: {moved:?}");
        assert!(full + refused > 3000, "{how}: {moved:?}");
        assert!(is_intact(&other, &pages), "{how}");
    }
    // Releasing the other memory makes room again.
    drop(region);
    let moved = other.migrate(&mut pages.clone(), 1, Migrate::Batch).unwrap();
    assert_eq!((moved.there, moved.full, moved.refused), (6000, 0, 0), "{moved:?}");
}

#[test]
#[ignore = "needs a second node"]
fn nodes_that_are_not_there_are_refused() {
    let region = Region::reserve(MIB).unwrap();
    region.commit(0..MIB).unwrap();
    for list in ["2", "1000"] {
        assert_eq!(check_room(&set(list), 1).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(region.bind_to(0..MIB, &set(list)).unwrap_err().kind(), ErrorKind::InvalidInput);
        for how in Migrate::ALL {
            let node = list.parse().unwrap();
            assert_eq!(
                region.migrate(&mut [0..PAGE], node, how).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
        }
    }
}

#[test]
#[ignore = "needs a second node"]
fn both_nodes_can_be_measured() {
    for node in [0, 1] {
        let speed = measure_node(node).unwrap();
        assert!(
            speed.read_latency_ns > 0.1 && speed.read_gb_s > 0.001 && speed.write_gb_s > 0.001,
            "{speed:?}"
        );
    }
}
