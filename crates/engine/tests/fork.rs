//! A fork while a database is open: the child must not touch what belongs to its parent.
//!
//! The only test of its binary, so that no other thread holds a lock at the fork.
#![allow(unsafe_code)]

use terrace::{Db, Error, LogMemory};

#[test]
fn a_forked_child_cannot_write_and_takes_nothing_with_it() {
    fork_while_open(None);
    // A child does not even have the memory of its parent's log.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    fork_while_open(Some(format!("shm:{}/ring,256KiB", memory.path().display()).parse().unwrap()));
}

fn fork_while_open(log_memory: Option<LogMemory>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let open = || match log_memory.clone() {
        Some(memory) => Db::builder().dram(2 << 20).log_memory(memory).open(&path),
        None => Db::builder().dram(2 << 20).open(&path),
    };
    let db = open().unwrap();
    let table = db.create_table("t").unwrap();
    table.put("before", "it").unwrap();

    // SAFETY: the child uses only its own copies, and exits without running destructors.
    match unsafe { libc::fork() } {
        0 => {
            let read = table.get("before").unwrap();
            let refused = table.put("child", "it").unwrap_err().to_string();
            let busy = matches!(open(), Err(Error::Busy { .. }));
            drop((table, db));
            let good = read.as_deref() == Some(b"it") && refused.contains("forked") && busy;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if good { 0 } else { 1 }) };
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child just created; `status` outlives the call.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child found something wrong");
        }
    }
    match open() {
        Err(Error::Busy { owner_process, .. }) => assert_eq!(owner_process, Some(std::process::id())),
        other => panic!("the parent's lock is gone: {other:?}"),
    }
    table.put("after", "it").unwrap();
    drop((table, db));
    let db = open().unwrap();
    let table = db.open_table("t").unwrap();
    assert_eq!(table.len().unwrap(), 2);
    assert_eq!(db.verify().unwrap().errors, []);
    drop((table, db));
    a_child_has_no_middle_tier();
}

/// A shared mapping would show the child what its parent puts into frames later.
fn a_child_has_no_middle_tier() {
    let (folder, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let middle = format!("shm:{},8MiB", shared.path().join("tier").display());
    let builder = Db::builder().dram(2 << 20).page_size(4096).backend(terrace::Backend::Frames);
    let builder = builder.middle(middle.parse().unwrap()).policy("0,0,1,1".parse().unwrap());
    let db = builder.open(folder.path().join("db")).unwrap();
    let table = db.create_table("t").unwrap();
    (0..2000u32).for_each(|key| table.put(key.to_be_bytes(), [7; 600]).unwrap());
    // SAFETY: as above.
    match unsafe { libc::fork() } {
        0 => {
            let refused =
                |outcome: Option<Error>| outcome.is_some_and(|error| error.to_string().contains("forked"));
            let reads = (0..2000u32).all(|key| refused(table.get(key.to_be_bytes()).err()));
            let writes = (0..200u32).all(|key| refused(table.put(key.to_be_bytes(), "child").err()));
            drop((table, db));
            // SAFETY: as above.
            unsafe { libc::_exit(if reads && writes { 0 } else { 1 }) };
        }
        child => {
            let mut status = 0;
            // SAFETY: as above.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child found something wrong");
        }
    }
    assert_eq!(table.len().unwrap(), 2000);
    assert_eq!(db.verify().unwrap().errors, []);
}
