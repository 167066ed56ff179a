//! Residency of pages, as readers and the system's memory counts see it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::MemoryDirectory;

use super::Frames;
use super::partition::Partition;
use crate::ids::{PageId, SizeClass};
use crate::pool::frame_tests::{BUDGET, options, pool_with};
use crate::pool::page_table::Location;
use crate::pool::{Mode, Pool};
use crate::{Backend, Builder, Db, Error, RecordCache};

const ROWS: u32 = 4000;

type Others = Rc<dyn Fn()>;

thread_local! {
    static LEAVING: RefCell<Option<Others>> = const { RefCell::new(None) };
    static BACKING: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    static REFUSED_ONE_IN: Cell<u32> = const { Cell::new(0) };
    static ASKED: Cell<u32> = const { Cell::new(0) };
    static GROWTHS_REFUSED: Cell<u32> = const { Cell::new(0) };
    static STAYS_ONE_IN: Cell<u32> = const { Cell::new(0) };
    static MOVED: Cell<u32> = const { Cell::new(0) };
}

/// Hook while pages leave, latched, without the lock of the free frames.
pub(crate) fn while_leaving() {
    if let Some(others) = LEAVING.with_borrow(Option::clone) {
        others();
    }
}

/// Hook of the thread that puts memory behind frames.
pub(super) fn while_backing() {
    if let Some(others) = BACKING.take() {
        others();
    }
}

/// Hook after populating: whether the system refuses the rest.
pub(super) fn refuse() -> io::Result<()> {
    let asked = ASKED.get() + 1;
    ASKED.set(asked);
    match REFUSED_ONE_IN.get() {
        one_in if one_in > 0 && asked.is_multiple_of(one_in) => Err(io::ErrorKind::OutOfMemory.into()),
        _ => Ok(()),
    }
}

/// Hook before a partition grows.
pub(super) fn refuse_growth() -> io::Result<()> {
    match GROWTHS_REFUSED.get() {
        0 => Ok(()),
        left => {
            GROWTHS_REFUSED.set(left - 1);
            Err(io::ErrorKind::OutOfMemory.into())
        }
    }
}

/// Has the next `count` partitions not grow.
pub(crate) fn refuse_growths(count: u32) {
    GROWTHS_REFUSED.set(count);
}

/// Hook after migration: makes some of the moved pages stay.
pub(super) fn refuse_moves(there: Vec<bool>) -> Vec<bool> {
    let one_in = STAYS_ONE_IN.get();
    let stays = |_: &bool| {
        MOVED.set(MOVED.get() + 1);
        one_in > 0 && MOVED.get().is_multiple_of(one_in)
    };
    there.into_iter().map(|there| there && !stays(&there)).collect()
}

/// Makes one in `one_in` migrating pages stay; none with 0.
pub(crate) fn have_pages_stay(one_in: u32) {
    STAYS_ONE_IN.set(one_in);
}

fn value(key: u32) -> Vec<u8> {
    vec![key as u8 | 1; 700]
}

/// Reads a table several times as large as memory. `others` runs at points where another thread
/// could. Returns whether all records were found.
fn all_is_read(backend: Backend, others: impl Fn(&Pool) + 'static) -> bool {
    let directory = Arc::new(MemoryDirectory::new());
    let open = || {
        let builder =
            Db::builder().directory(directory.clone()).dram(1 << 20).page_size(4096).mode(Mode::Inline);
        builder.record_cache(RecordCache::Off).backend(backend).seed(1).open("").unwrap()
    };
    let db = open();
    let table = db.create_table("t").unwrap();
    (0..ROWS).for_each(|key| table.put(key.to_be_bytes(), value(key)).unwrap());
    drop(table);
    db.close().unwrap();
    // From here on nothing is dirty, so nothing is written.
    let db = open();
    let table = db.open_table("t").unwrap();
    let others = Rc::new(others);
    let (shared, leaving) = (Arc::downgrade(&db.shared), Rc::clone(&others));
    crate::crash::play(Some(others));
    LEAVING
        .set(Some(Rc::new(move || leaving(&shared.upgrade().expect("pages leave while it is open").pool))));
    let is_there =
        |key: u32| matches!(table.get(key.to_be_bytes()), Ok(Some(found)) if found[..] == value(key)[..]);
    let all = (0..ROWS).map(|key| key * 1009 % ROWS).all(is_there);
    crate::crash::play(None);
    LEAVING.set(None);
    assert!(db.stats().evictions > 100, "{:?}", db.stats());
    all
}

/// Another thread requests pages that have just left.
fn pages_come_back_while_others_leave(backend: Backend) -> bool {
    let (busy, turn) = (Cell::new(false), Cell::new(0));
    all_is_read(backend, move |pool| {
        if busy.replace(true) {
            return;
        }
        turn.set(turn.get() + 7);
        let away = |id: &_| {
            let entry = pool.table.entry(*id);
            entry.is_some_and(|entry| {
                matches!(entry.location(), Location::Store(_)) && !entry.latch().load().is_latched()
            })
        };
        let ids: Vec<_> = pool.page_ids().filter(away).collect();
        for at in 0..8 {
            // A failed request finds the page again later.
            let _ = pool.read(ids[(turn.get() + at * 31) % ids.len()]);
        }
        busy.set(false);
    })
}

#[test]
fn pages_that_come_back_while_others_leave_keep_their_bytes() {
    for backend in Backend::ALL {
        assert!(pages_come_back_while_others_leave(backend), "{backend}");
    }
}

#[test]
fn catches_discard_after_unlatching() {
    use crate::planted::{Bug, plant};
    plant(Some(Bug::DiscardAfterUnlatching));
    let outcome = std::panic::catch_unwind(|| pages_come_back_while_others_leave(Backend::Mapped));
    plant(None);
    crate::crash::play(None);
    LEAVING.set(None);
    assert!(!matches!(outcome, Ok(true)), "was not noticed");
}

fn builder(directory: &Arc<MemoryDirectory>, backend: Backend) -> Builder {
    // Counts cover memory of DRAM, and evictions from it.
    let builder = Db::builder().directory(directory.clone()).dram(1 << 20).page_size(4096).no_middle();
    builder.mode(Mode::Inline).record_cache(RecordCache::Off).backend(backend).seed(1)
}

/// A database several times as large as memory.
fn large(backend: Backend) -> (Arc<MemoryDirectory>, Db) {
    let directory = Arc::new(MemoryDirectory::new());
    let db = builder(&directory, backend).open("").unwrap();
    let table = db.create_table("t").unwrap();
    (0..ROWS).for_each(|key| table.put(key.to_be_bytes(), value(key)).unwrap());
    drop(table);
    db.close().unwrap();
    let db = builder(&directory, backend).open("").unwrap();
    (directory, db)
}

#[test]
fn who_needs_frames_while_pages_leave_evicts_no_second_batch() {
    let (_directory, db) = large(Backend::Mapped);
    let table = db.open_table("t").unwrap();
    let pool = &db.shared.maintenance;
    let goal = u64::from(pool.frames.count(pool.class()) / 4 + 1).min(32);
    let (evictions, most, busy) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Cell::new(false));
    let others = {
        let (most, shared) = (Rc::clone(&most), Arc::downgrade(&db.shared));
        move || {
            let Some(shared) = shared.upgrade() else { return };
            let pool = &shared.pool;
            if busy.replace(true) {
                return;
            }
            let away = |id: &PageId| {
                let entry = pool.table.entry(*id).unwrap();
                matches!(entry.location(), Location::Store(_)) && !entry.latch().load().is_latched()
            };
            pool.page_ids().filter(away).take(2).for_each(|id| _ = pool.read(id).unwrap());
            most.set(most.get().max(pool.replacer.free(pool.class()).lock().list.len() as u64));
            busy.set(false);
        }
    };
    LEAVING.set(Some(Rc::new(others)));
    for key in (0..ROWS).step_by(3) {
        let before = db.stats().evictions;
        assert!(table.get(key.to_be_bytes()).unwrap().is_some());
        evictions.set(evictions.get().max(db.stats().evictions - before));
    }
    LEAVING.set(None);
    assert!(evictions.get() > 2, "nobody asked meanwhile");
    assert!(most.get() <= 1, "{} frames were free beside {goal} that were leaving", most.get());
}

/// Takes frames of `pool` until the next one needs memory first, and has another thread take that.
/// While it gets memory, runs `others` with the frames taken.
fn while_a_chunk_gets_memory(pool: &Pool, others: impl FnOnce(&[u32])) {
    let partition = Partition::from(pool.class());
    let take = || pool.find(partition, PageId::NONE).frame.map(|(frame, _)| frame);
    let taken: Vec<u32> = (0..Frames::chunk(partition)).map(|_| take().unwrap()).collect();
    assert!(pool.replacer.free(partition).lock().list.is_empty());
    let ((begun, has_begun), (go, may_go)) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        let slow = scope.spawn(move || {
            BACKING.set(Some(Box::new(move || {
                begun.send(()).unwrap();
                // Ends too if the test has failed.
                let _ = may_go.recv();
            })));
            take()
        });
        has_begun.recv().unwrap();
        others(&taken);
        drop(go);
        pool.give_frame(slow.join().unwrap().unwrap());
    });
    taken.into_iter().for_each(|frame| pool.give_frame(frame));
}

fn within_a_minute<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = channel();
    std::thread::spawn(move || done.send(work()));
    is_done.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{what} waits for memory"))
}

#[test]
fn frames_are_given_back_and_taken_while_others_get_memory() {
    let (_files, pool) = pool_with(&options(2 * BUDGET));
    let partition = Partition::from(pool.class());
    let take = |what: &str| {
        let pool = Arc::clone(&pool);
        within_a_minute(what, move || pool.find(partition, PageId::NONE).frame.unwrap().0)
    };
    while_a_chunk_gets_memory(&pool, |taken| {
        let pool = Arc::clone(&pool);
        let give = |frame| {
            let pool = Arc::clone(&pool);
            within_a_minute("a frame given back", move || pool.give_frame(frame));
        };
        give(taken[3]);
        assert_eq!(take("a free frame"), taken[3]);
        // A thread that finds none free takes the next one that is given back.
        let waiting = {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || pool.find(partition, PageId::NONE).frame.unwrap().0)
        };
        while pool.replacer.free(partition).lock().waiting == 0 {
            std::thread::yield_now();
        }
        give(taken[5]);
        let found = within_a_minute("a frame that was given back", move || waiting.join().unwrap());
        assert_eq!(found, taken[5]);
    });
}

#[test]
fn a_budget_that_shrinks_takes_frames_that_get_memory_meanwhile() {
    let (_files, pool) = pool_with(&options(2 * BUDGET));
    let partition = Partition::from(pool.class());
    let before = pool.replacer.free(partition).lock().limit;
    let resized = {
        let (mut resized, pool) = (None, &pool);
        while_a_chunk_gets_memory(pool, |_| {
            let other = Arc::clone(pool);
            resized = Some(std::thread::spawn(move || other.resizer().resize(BUDGET * 3 / 2)));
            while pool.replacer.free(partition).lock().limit == before {
                std::thread::yield_now();
            }
        });
        resized.unwrap()
    };
    resized.join().unwrap().unwrap();
    assert!(pool.frames.count(partition) < before);
    assert!(pool.frames.backed(partition) <= pool.frames.count(partition));
    assert_eq!(pool.audit(), [""; 0]);
}

/// Whether the system has memory behind page `id`.
fn has_memory(pool: &Pool, id: PageId) -> bool {
    let address = pool.frames.words(id, 0).as_ptr().addr() as u64;
    let mut entry = [0; 8];
    let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
    pages.read_exact_at(&mut entry, address / 4096 * 8).unwrap();
    // Resident, or swapped out.
    u64::from_ne_bytes(entry) >> 62 != 0
}

/// Only pages in frames have memory.
fn assert_memory_is_where_pages_are(db: &Db, what: &str) {
    let pool = &db.shared.maintenance;
    assert_eq!(pool.audit(), [""; 0], "{what}");
    let end = pool.ids.lock().ends()[0];
    let mut found = 0;
    for id in (1..end).map(|index| PageId::new(SizeClass::SMALLEST, index)) {
        let location = pool.table.entry(id).map(|entry| entry.location());
        let is_in_frame = matches!(location, Some(Location::Frame(_)));
        assert_eq!(has_memory(pool, id), is_in_frame, "{what}: page {id}");
        found += u64::from(is_in_frame);
    }
    assert!(found > 0 && found <= db.stats().frames, "{what}: {found}");
    assert_eq!(db.stats().frame_classes[0].resident_bytes, found * 4096, "{what}");
}

#[test]
fn memory_that_is_refused_is_an_error_and_none_of_it_stays() {
    let (directory, db) = large(Backend::Mapped);
    let mut model: HashMap<u32, Vec<u8>> = (0..ROWS).map(|key| (key, value(key))).collect();
    let table = db.open_table("t").unwrap();
    let (mut random, mut refused) = (SmallRng::seed_from_u64(3), 0);
    for step in 0..3000 {
        let what = format!("step {step}");
        let key = random.random_range(0..ROWS);
        REFUSED_ONE_IN.set(7);
        match random.random_range(0..10) {
            0..5 => match table.get(key.to_be_bytes()) {
                Ok(found) => assert_eq!(found.as_ref(), model.get(&key), "{what}"),
                Err(error) => {
                    assert!(matches!(error, Error::Memory { .. }), "{what}: {error}");
                    refused += 1;
                }
            },
            5 => {
                let keys: Vec<_> = (0..30).map(|_| random.random_range(0..ROWS)).collect();
                match table.get_many(keys.iter().map(|key| key.to_be_bytes()).collect::<Vec<_>>()) {
                    Ok(found) => {
                        assert!(keys.iter().zip(&found).all(|(key, found)| found.as_ref() == model.get(key)));
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::Memory { .. }), "{what}: {error}");
                        refused += 1;
                    }
                }
            }
            6 => match db.shared.maintenance.new_page(SizeClass::SMALLEST, None) {
                Ok(new) => drop(new),
                Err(error) => {
                    assert!(matches!(error, Error::Memory { .. }), "{what}: {error}");
                    refused += 1;
                }
            },
            7 => {
                REFUSED_ONE_IN.set(0);
                table.delete(key.to_be_bytes()).unwrap();
                model.remove(&key);
            }
            _ => {
                REFUSED_ONE_IN.set(0);
                let value = vec![step as u8; random.random_range(1..900)];
                table.put(key.to_be_bytes(), &value).unwrap();
                model.insert(key, value);
            }
        }
        REFUSED_ONE_IN.set(0);
        if step % 300 == 299 {
            assert_memory_is_where_pages_are(&db, &what);
        }
    }
    assert!(refused > 50, "{refused}");
    // Opening the database may meet the same error.
    drop((table, db));
    REFUSED_ONE_IN.set(1);
    let error = builder(&directory, Backend::Mapped).open("").unwrap_err();
    REFUSED_ONE_IN.set(0);
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    let db = builder(&directory, Backend::Mapped).open("").unwrap();
    let table = db.open_table("t").unwrap();
    for key in 0..ROWS {
        assert_eq!(table.get(key.to_be_bytes()).unwrap().as_ref(), model.get(&key), "{key}");
    }
    assert_memory_is_where_pages_are(&db, "opened again");
}
