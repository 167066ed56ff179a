//! Asynchronous reads: immediate hits, later misses, errors, and an end in every case.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use terrace::{Db, Durability, Error, Lookup, MemoryDirectory, Mode, SimulatedDisk, Table, WriteBatch};
use terrace_io::{CallKind, Directory, FaultPlan};

use super::common;

const ENTRIES: u32 = 4000;

struct Unpark(Thread, AtomicUsize);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, SeqCst);
        self.0.unpark();
    }
}

fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current(), AtomicUsize::new(0))));
    let mut context = Context::from_waker(&waker);
    loop {
        match Pin::new(&mut future).poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(60)),
        }
    }
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 900]
}

/// A table much larger than the memory.
fn filled(directory: Arc<dyn Directory>, mode: Mode) -> (Db, Table) {
    let builder = common::builder().directory(directory).dram(1 << 20).page_size(4096).log_max(1 << 20);
    let db = builder.mode(mode).open("").unwrap();
    let table = db.create_table("t").unwrap();
    for first in (0..ENTRIES).step_by(100) {
        let mut batch = WriteBatch::new();
        (first..first + 100).for_each(|number| {
            batch.put(&table, number.to_be_bytes(), value(number));
        });
        db.write(batch, Durability::Buffered).unwrap();
    }
    db.checkpoint().unwrap();
    (db, table)
}

fn memory() -> Arc<dyn Directory> {
    Arc::new(MemoryDirectory::new())
}

#[test]
fn hits_are_answered_at_once_and_misses_by_a_future() {
    let (db, table) = filled(memory(), Mode::Background);
    table.put("large", vec![7; 100_000]).unwrap();
    let before = db.stats().batched_pages;
    for start in 0..40u32 {
        let numbers: Vec<u32> = (0..100).map(|step| (start * 7 + step * 39) % (ENTRIES + 50)).collect();
        let lookups: Vec<Lookup> =
            numbers.iter().map(|number| table.get_async(number.to_be_bytes())).collect();
        for (number, lookup) in numbers.into_iter().zip(lookups) {
            let answer = match lookup.now() {
                Ok(answer) => answer,
                Err(lookup) => block_on(lookup),
            };
            assert_eq!(answer.unwrap(), (number < ENTRIES).then(|| value(number)), "key {number}");
        }
    }
    let read = db.stats().batched_pages - before;
    assert!(read > 500, "{read} pages were read for futures");
    assert_eq!(block_on(table.get_async("large")).unwrap(), Some(vec![7; 100_000]));
    table.get(1u32.to_be_bytes()).unwrap();
    assert_eq!(table.get_async(1u32.to_be_bytes()).now().unwrap().unwrap(), Some(value(1)));
    assert_eq!(db.stats().lookups_waiting, 0);
}

#[test]
fn without_threads_the_caller_reads() {
    let (_db, table) = filled(memory(), Mode::Inline);
    for number in (0..ENTRIES).step_by(13) {
        let answer = table.get_async(number.to_be_bytes()).now().expect("read in place");
        assert_eq!(answer.unwrap(), Some(value(number)));
    }
}

/// A future dropped at any time leaves nothing behind.
#[test]
fn dropped_futures_are_forgotten() {
    let (db, table) = filled(memory(), Mode::Background);
    let noop = || Context::from_waker(Waker::noop());
    for number in 0..ENTRIES {
        let mut lookup = table.get_async((number * 1231 % ENTRIES).to_be_bytes());
        if number % 3 == 0 {
            let _ = Pin::new(&mut lookup).poll(&mut noop());
        }
    }
    assert_eq!(block_on(table.get_async(77u32.to_be_bytes())).unwrap(), Some(value(77)));
    drop(table);
    db.close().unwrap();
}

#[test]
fn a_failed_read_is_an_error_of_its_future() {
    let disk = SimulatedDisk::new(1);
    let (db, table) = filled(Arc::new(disk.clone()), Mode::Background);
    disk.fail(FaultPlan::from_then_on(CallKind::Read, 1, 5));
    let lookups: Vec<Lookup> = (0..500u32).map(|step| table.get_async((step * 8).to_be_bytes())).collect();
    let failed = lookups
        .into_iter()
        .filter_map(|lookup| block_on(lookup).err())
        .map(|error| assert!(matches!(error, Error::Io { operation: "read", .. }), "{error}"))
        .count();
    assert!(failed > 300, "{failed} reads failed");
    disk.mend();
    for number in (0..ENTRIES).step_by(101) {
        assert_eq!(block_on(table.get_async(number.to_be_bytes())).unwrap(), Some(value(number)));
    }
    assert_eq!(db.verify().unwrap().errors, []);
}

#[test]
fn closing_answers_what_waits() {
    for round in 0..20u32 {
        let (db, table) = filled(memory(), Mode::Background);
        let mut lookups: Vec<Lookup> =
            (0..2000u32).map(|step| table.get_async((step * 2 + round % 2).to_be_bytes())).collect();
        if round % 2 == 0 {
            db.close().unwrap();
        } else {
            // The last handles, table included: futures do not keep the database open.
            drop((db, table));
        }
        if round % 4 == 0 {
            lookups.truncate(500);
        }
        for lookup in lookups {
            match block_on(lookup) {
                Ok(value) => assert!(value.is_some()),
                Err(error) => assert!(matches!(error, Error::Poisoned { .. }), "{error}"),
            }
        }
    }
}

/// A waker may do anything, even drop the last handle.
#[test]
fn a_waker_may_close_the_database() {
    struct Closer(parking_lot::Mutex<Option<(Db, Table)>>, Thread);
    impl Wake for Closer {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().take());
            self.1.unpark();
        }
    }
    for round in 0..10u32 {
        let (db, table) = filled(memory(), Mode::Background);
        let mut lookup = (0..ENTRIES)
            .map(|step| table.get_async(((step * 41 + round) % ENTRIES).to_be_bytes()))
            .find_map(|lookup| lookup.now().err())
            .expect("one that is not in memory");
        let handles = parking_lot::Mutex::new(Some((db, table)));
        let waker = Waker::from(Arc::new(Closer(handles, std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let answer = loop {
            match Pin::new(&mut lookup).poll(&mut context) {
                Poll::Ready(answer) => break answer,
                Poll::Pending => std::thread::park_timeout(Duration::from_secs(60)),
            }
        };
        assert!(matches!(answer, Ok(Some(_)) | Err(Error::Poisoned { .. })), "{answer:?}");
    }
}

#[test]
fn a_dropped_table_is_an_error() {
    let (db, table) = filled(memory(), Mode::Background);
    let lookups: Vec<Lookup> = (0..1000u32).map(|step| table.get_async((step * 4).to_be_bytes())).collect();
    db.drop_table("t").unwrap();
    for lookup in lookups {
        let answer = block_on(lookup);
        assert!(matches!(answer, Ok(Some(_)) | Err(Error::TableNotFound(_))), "{answer:?}");
    }
    assert!(matches!(block_on(table.get_async("x")), Err(Error::TableNotFound(_))));
}
