//! Closing a database while other handles work.
//!
//! Once the lock is released, nothing may be written: the files may belong to another process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use terrace::{Db, Durability, Error, SimulatedDisk, WriteBatch};
use terrace_io::{BlockDevice, Directory, LockError, OpenMode, Sharing, Write};

use super::common;

/// Duration of a write, so that one is under way most of the time.
const WRITE: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct Watch {
    locked: AtomicBool,
    writes: AtomicU64,
    late: AtomicU64,
}

impl Watch {
    fn write(&self, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.writes.fetch_add(1, SeqCst);
        std::thread::sleep(WRITE);
        let written = write();
        if !self.locked.load(SeqCst) {
            self.late.fetch_add(1, SeqCst);
        }
        written
    }
}

#[derive(Debug)]
struct Watched {
    disk: SimulatedDisk,
    watch: Arc<Watch>,
}

#[derive(Debug)]
struct WatchedDevice {
    device: Arc<dyn BlockDevice>,
    watch: Arc<Watch>,
}

struct Held {
    watch: Arc<Watch>,
    _lock: Box<dyn Send + Sync>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.watch.locked.store(false, SeqCst);
    }
}

impl Directory for Watched {
    fn name(&self) -> String {
        self.disk.name()
    }

    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Arc<dyn BlockDevice>> {
        let device = self.disk.open(file, mode)?;
        Ok(Arc::new(WatchedDevice { device, watch: Arc::clone(&self.watch) }))
    }

    fn exists(&self, file: &str) -> io::Result<bool> {
        self.disk.exists(file)
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        self.disk.remove(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn lock(&self, file: &str) -> Result<Box<dyn Send + Sync>, LockError> {
        let lock = self.disk.lock(file)?;
        self.watch.locked.store(true, SeqCst);
        Ok(Box::new(Held { watch: Arc::clone(&self.watch), _lock: lock }))
    }

    fn lock_existing(&self, file: &str, sharing: Sharing) -> Result<Box<dyn Send + Sync>, LockError> {
        self.disk.lock_existing(file, sharing)
    }

    fn lock_owner(&self, file: &str) -> Option<u32> {
        self.disk.lock_owner(file)
    }
}

impl BlockDevice for WatchedDevice {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn len(&self) -> u64 {
        self.device.len()
    }

    fn alignment(&self) -> usize {
        self.device.alignment()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.watch.write(|| self.device.write_at(offset, bytes))
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> io::Result<()> {
        self.watch.write(|| self.device.write_batch(writes))
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.watch.write(|| self.device.write_through_at(offset, bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.device.set_len(bytes)
    }
}

#[test]
fn nothing_is_written_after_the_lock_is_given_back() {
    for round in 0..15 {
        let watch = Arc::new(Watch::default());
        let directory = Watched { disk: SimulatedDisk::new(round), watch: Arc::clone(&watch) };
        let builder =
            common::builder().directory(Arc::new(directory)).dram(1 << 20).log_max(256 << 10).seed(1);
        let db = builder.open("").unwrap();
        let table = db.create_table("t").unwrap();
        let opened = watch.writes.load(SeqCst);
        std::thread::scope(|scope| {
            let writer = |thread: u32| {
                let (db, table) = (db.clone(), table.clone());
                let durability = if thread == 0 { Durability::Sync } else { Durability::Buffered };
                scope.spawn(move || {
                    for number in 0u32.. {
                        let mut batch = WriteBatch::new();
                        for part in 0..8u32 {
                            let key = [thread, number * 8 + part].map(u32::to_be_bytes).concat();
                            batch.put(&table, key, [7; 500]);
                        }
                        match db.write(batch, durability) {
                            Ok(()) => {}
                            Err(Error::Poisoned { .. }) => return,
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            };
            let writers = [0, 1].map(writer);
            // Amid the writes, at another one in each round.
            while watch.writes.load(SeqCst) < opened + 10 + round
                && !writers.iter().any(|one| one.is_finished())
            {
                std::thread::yield_now();
            }
            db.close().unwrap();
            assert!(!watch.locked.load(SeqCst), "closed, and the lock is held");
        });
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(
            watch.late.load(SeqCst),
            0,
            "writes that ended after the lock was given back, round {round}"
        );
    }
}

mod of_a_thread {
    use std::cell::RefCell;

    use terrace::{Durability, MemoryDirectory, SimulatedDisk, Table, Transaction};

    use super::*;

    thread_local! {
        static KEPT: RefCell<Option<(Option<Transaction>, Table, Db)>> = const { RefCell::new(None) };
    }

    /// A thread-local holds a database to the end of its thread, after the engine's own
    /// thread-locals are gone.
    ///
    /// Dropping it writes everything out. A panic there would end the process.
    fn ends_with_its_database(page_size: u64, long: usize, leave: fn(&Db, &Table) -> Option<Transaction>) {
        let directory = Arc::new(MemoryDirectory::new());
        let open = || {
            let builder = common::builder().directory(directory.clone()).dram(8 << 20).page_size(page_size);
            builder.durability(Durability::Buffered).no_middle().open("").unwrap()
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                KEPT.with_borrow(|kept| assert!(kept.is_none()));
                let db = open();
                let table = db.create_table("t").unwrap();
                (0..2000u32).for_each(|key| table.put(key.to_be_bytes(), [7; 300]).unwrap());
                table.put("long", vec![8; long]).unwrap();
                assert_eq!(table.iter().count(), 2001);
                let left = leave(&db, &table);
                KEPT.set(Some((left, table, db)));
            });
            // The scope itself does not wait for what the thread drops.
            thread.join().unwrap();
        });
        let db = open();
        let table = db.open_table("t").unwrap();
        assert_eq!(table.len().unwrap(), 2001);
        assert_eq!(table.get("long").unwrap().unwrap().len(), long);
        assert_eq!(db.stats().changes_redone, 0, "it was closed cleanly");
        assert!(db.verify().unwrap().is_ok());
    }

    #[test]
    fn a_database_in_a_threads_own_memory_is_closed_when_the_thread_ends() {
        for (page_size, long) in [(4096, 100_000), (65536, 900_000)] {
            ends_with_its_database(page_size, long, |_, _| None);
        }
    }

    #[test]
    fn so_it_is_with_a_transaction_that_has_written_long_values() {
        ends_with_its_database(4096, 100_000, |db, table| {
            let transaction = db.begin();
            transaction.put(table, "never committed", vec![9; 50_000]).unwrap();
            transaction.range::<&str>(table, ..).next().unwrap().unwrap();
            Some(transaction)
        });
    }

    /// Work after all else that the thread has kept is gone.
    #[test]
    fn a_thread_works_to_its_end() {
        struct Last(Option<Db>);
        impl Drop for Last {
            fn drop(&mut self) {
                let db = self.0.take().unwrap();
                let table = db.open_table("t").unwrap();
                table.put("long", vec![8; 60_000]).unwrap();
                assert_eq!(table.get("long").unwrap().unwrap().len(), 60_000);
                assert_eq!(table.iter().count(), 2001);
                let mut runs = 0;
                db.update(|transaction| {
                    runs += 1;
                    let read = transaction.get(&table, 1u32.to_be_bytes())?;
                    if runs < 3 {
                        table.put(1u32.to_be_bytes(), [runs; 300])?;
                    }
                    transaction.put(&table, 2u32.to_be_bytes(), read.unwrap())
                })
                .unwrap();
            }
        }
        thread_local! {
            static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
        }
        let disk = SimulatedDisk::new(7);
        let db =
            common::optimistic().directory(Arc::new(disk)).dram(1 << 20).page_size(4096).open("").unwrap();
        let table = db.create_table("t").unwrap();
        (0..2000u32).for_each(|key| table.put(key.to_be_bytes(), [7; 300]).unwrap());
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                LAST.with_borrow(|last| assert!(last.is_none()));
                // Its thread-local memory is created now, and so is dropped first.
                assert_eq!(table.iter().count(), 2000);
                table.put(0u32.to_be_bytes(), [8; 300]).unwrap();
                LAST.set(Some(Last(Some(db.clone()))));
            });
            thread.join().unwrap();
        });
        assert_eq!(table.get(2u32.to_be_bytes()).unwrap().unwrap(), [2; 300]);
    }
}
