//! Tiers on NUMA nodes where the system refuses.
//!
//! Calls may be forbidden, at open or later, and pages shared with another process do not move.
//! Tests that need a second node are ignored by default, and run in a guest (`.ci/run numa`). Tests
//! of the pool (`pool/node_tests.rs`) ask the kernel where pages are.
#![allow(unsafe_code)]

use std::sync::Arc;

use terrace::migration::Choice;
use terrace::{Backend, Builder, Db, Error, MemoryDirectory, MiddleStats, Migrate, Mode, RecordCache, Table};

const ROWS: u32 = 4800;

fn value(key: u32, round: u32) -> Vec<u8> {
    let mut value = vec![(key % 251) as u8; 1000];
    value[..8].copy_from_slice(&[key.to_be_bytes(), round.to_be_bytes()].concat());
    value
}

/// A budget of 2 MiB over a middle tier of 4 on `node`, for some 6.5 of data. All work is in the
/// calling thread.
fn builder(backend: Backend, node: u32) -> Builder {
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).page_size(4096);
    let builder = builder.backend(backend).middle(format!("numa:{node},4MiB").parse().unwrap());
    builder.policy(Choice::Eager).mode(Mode::Inline).record_cache(RecordCache::Off).seed(1)
}

fn fill(db: &Db) -> Table {
    let table = db.create_table("t").unwrap();
    (0..ROWS).for_each(|key| table.put(key.to_be_bytes(), value(key, 0)).unwrap());
    table
}

/// Reads rows of every page, the first ones repeatedly, and rewrites them.
fn read_and_write(table: &Table, round: u32) {
    for key in (0..ROWS).step_by(3).flat_map(|key| [key * 7 % ROWS, key % 600]) {
        let found = table.get(key.to_be_bytes()).unwrap().unwrap();
        assert!(found[..] == value(key, round)[..] || found[..] == value(key, round + 1)[..], "row {key}");
        table.put(key.to_be_bytes(), value(key, round + 1)).unwrap();
    }
    for key in (0..ROWS).step_by(3) {
        assert_eq!(table.get(key.to_be_bytes()).unwrap().as_deref(), Some(&value(key, round + 1)[..]));
    }
}

fn middle(db: &Db) -> MiddleStats {
    db.stats().middle.unwrap()
}

/// The `migrate` settings valid with this back end.
fn ways(backend: Backend) -> Vec<Option<Migrate>> {
    match backend {
        Backend::Mapped => Migrate::ALL.map(Some).into(),
        Backend::Frames => vec![None],
    }
}

/// Makes the calling thread's NUMA calls fail with EPERM, as in containers.
fn refuse_calls() {
    refuse_calls_with(libc::EPERM);
}

/// Makes the calling thread's NUMA calls fail with `error`.
fn refuse_calls_with(error: i32) {
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // Load the number of the call. One of the three goes to the error, any other to the end.
    let mut filter = [
        instruction(0x20, 0, 0, 0),
        instruction(0x15, 3, 0, libc::SYS_mbind as u32),
        instruction(0x15, 2, 0, libc::SYS_set_mempolicy as u32),
        instruction(0x15, 1, 0, libc::SYS_move_pages as u32),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel reads the program, which outlives the call. It applies to this thread only
    // and refuses three calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn a_refusal_to_bind_memory_is_told_at_open() {
    std::thread::spawn(|| {
        refuse_calls();
        for backend in Backend::ALL {
            for way in ways(backend) {
                let error = builder(backend, 0);
                let error = way.map_or(error.clone(), |way| error.migrate(way)).open("").unwrap_err();
                assert!(matches!(error, Error::Config(_)), "{backend}, {way:?}: {error}");
                assert!(error.to_string().contains("CAP_SYS_NICE"), "{backend}, {way:?}: {error}");
            }
            let without =
                Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).backend(backend);
            let error = without.clone().dram_nodes("0".parse().unwrap()).open("").unwrap_err();
            assert!(error.to_string().contains("CAP_SYS_NICE"), "{backend}: {error}");
            drop(without.open("").unwrap());
        }
    })
    .join()
    .unwrap();
}

/// Without NUMA in the kernel, or with hidden calls, the error names that and not the budget.
#[test]
fn a_kernel_without_calls_for_nodes_is_told_at_open() {
    std::thread::spawn(|| {
        refuse_calls_with(libc::ENOSYS);
        for backend in Backend::ALL {
            for way in ways(backend) {
                let error = builder(backend, 0);
                let error = way.map_or(error.clone(), |way| error.migrate(way)).open("").unwrap_err();
                assert!(matches!(error, Error::Config(_)), "{backend}, {way:?}: {error}");
                assert!(error.to_string().contains("CONFIG_NUMA"), "{backend}, {way:?}: {error}");
            }
        }
    })
    .join()
    .unwrap();
}

/// Calls allowed at open are refused later: pages stay or go to the store, and are counted.
#[test]
fn who_may_not_any_more_goes_on_with_what_there_is() {
    for way in Migrate::ALL {
        std::thread::spawn(move || {
            let db = builder(Backend::Mapped, 0).migrate(way).open("").unwrap();
            let table = fill(&db);
            let before = middle(&db);
            read_and_write(&table, 0);
            let since = middle(&db).since(&before);
            assert!(since.memory_moves.pages > 100 && since.memory_moves.busy == 0, "{way}: {since:?}");
            refuse_calls();
            let before = middle(&db);
            read_and_write(&table, 1);
            let since = middle(&db).since(&before);
            assert!(since.memory_moves.pages == 0 && since.memory_moves.busy > 100, "{way}: {since:?}");
            assert_eq!(since.migrations.middle_to_dram + since.migrations.dram_to_middle, 0, "{way}");
        })
        .join()
        .unwrap();
    }
}

/// Pages shared by two processes do not move.
#[test]
#[ignore = "needs a second node"]
fn pages_that_another_process_has_stay_and_lose_nothing() {
    for way in Migrate::ALL {
        let db = builder(Backend::Mapped, 1).migrate(way).open("").unwrap();
        let table = fill(&db);
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
        let before = middle(&db);
        read_and_write(&table, 0);
        let since = middle(&db).since(&before);
        match way {
            // Memory given back and allocated again belongs to this process alone.
            Migrate::Copy => {
                assert!(since.memory_moves.busy == 0 && since.memory_moves.pages > 100, "{since:?}")
            }
            Migrate::Batch | Migrate::Mbind => assert!(since.memory_moves.busy > 30, "{way}: {since:?}"),
        }
        // SAFETY: ends and awaits the child created above.
        unsafe {
            assert_eq!(libc::kill(child, libc::SIGKILL), 0);
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
        }
        let before = middle(&db);
        read_and_write(&table, 1);
        let since = middle(&db).since(&before);
        assert!(since.memory_moves.busy == 0 && since.memory_moves.pages > 100, "{way}: {since:?}");
    }
}
