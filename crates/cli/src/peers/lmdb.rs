//! LMDB: a copy-on-write B-tree in mapped memory, one writer, readers of snapshots. Its C interface is called directly, since
//! no safe wrapper keeps a thread's read transaction and cursor and renews them, which is how LMDB is meant to be read.
//!
//! `sync` is its default: data and meta page synced by each commit. `buffered` is `MDB_NOSYNC`, which promises less than the
//! others: after a power cut the file may be damaged, not only old. Its documentation has `MDB_WRITEMAP` faster for data that fit
//! into memory and slower for others, and `MDB_NORDAHEAD` faster for others: so that is how they are set, by the size of the
//! data. A batch is put with `MDB_APPEND` as far as its keys come behind all others, which is how LMDB wants to be loaded. There is
//! no cache to size: LMDB has the kernel's.
//!
//! # What makes the calls sound
//!
//! The environment outlives everything that hangs on it: tables hold it by `Arc`, and readers live inside it and are closed
//! first. A read transaction is used by one thread at a time, for it lies in that thread's cell and `MDB_NOTLS` lets any thread
//! end it. A write transaction is begun, used and ended by one thread within one call. Values are copied, or shown to a visitor,
//! before the transaction they belong to ends. Nobody else opens the directory.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use lmdb_master_sys as ffi;
use thread_local::ThreadLocal;

use super::{Place, budget};
use crate::failure::{Failure, Outcome};
use crate::store::{self, Access, Counters, Durability, Ending, Opener, Settings, Store, Visit};

const NAME: &str = "lmdb";

/// Address space that is mapped at least. It costs nothing until it is used.
const MAP_BYTES_MIN: u64 = 64 << 30;

/// Named tables that may be open.
const TABLES_MAX: u32 = 8;

/// Permissions of the files.
const FILE_MODE: u32 = 0o600;

/// Opens LMDB environments.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn store::Database>> {
        let place = Place::of(settings)?;
        let data_bytes = settings.data_bytes();
        let fits = data_bytes <= budget(settings);
        let mut flags = ffi::MDB_NOTLS | ffi::MDB_NOMEMINIT;
        let mut names = vec!["MDB_NOTLS", "MDB_NOMEMINIT"];
        if settings.durability == Durability::Buffered {
            flags |= ffi::MDB_NOSYNC;
            names.push("MDB_NOSYNC");
            if fits {
                flags |= ffi::MDB_WRITEMAP;
                names.push("MDB_WRITEMAP");
            }
        }
        if !fits {
            flags |= ffi::MDB_NORDAHEAD;
            names.push("MDB_NORDAHEAD");
        }
        let map_bytes = data_bytes.saturating_mul(4).max(MAP_BYTES_MIN);
        let readers = u32::try_from(settings.threads).unwrap_or(u32::MAX).saturating_add(16);
        let environment = Environment::open(&place, map_bytes as usize, readers, flags)?;
        Ok(Box::new(Database { environment: Arc::new(environment), flags: names.join(" | "), map_bytes }))
    }
}

/// The result of a call as an outcome.
fn check(code: i32) -> Outcome {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: mdb_strerror takes any number and gives a static or thread-local string that ends with a zero.
    let text = unsafe { CStr::from_ptr(ffi::mdb_strerror(code)) };
    Err(Failure::Work(format!("{NAME}: {}", text.to_string_lossy())))
}

fn value_of(bytes: &[u8]) -> ffi::MDB_val {
    // LMDB takes keys and values by pointers that are not const, and does not write through them.
    ffi::MDB_val { mv_size: bytes.len(), mv_data: bytes.as_ptr().cast_mut().cast() }
}

const NOTHING: ffi::MDB_val = ffi::MDB_val { mv_size: 0, mv_data: ptr::null_mut() };

/// The bytes that LMDB pointed out.
///
/// # Safety
///
/// `value` was filled by LMDB, in a transaction that lasts for `'a` and writes nothing meanwhile.
unsafe fn bytes_of<'a>(value: &ffi::MDB_val) -> &'a [u8] {
    if value.mv_size == 0 {
        return &[];
    }
    // SAFETY: by the caller's promise the bytes stay mapped and unchanged for 'a.
    unsafe { std::slice::from_raw_parts(value.mv_data.cast(), value.mv_size) }
}

struct Environment {
    raw: *mut ffi::MDB_env,
    /// The read transactions, one for each thread and table: reset between uses, which lets go of their snapshots.
    readers: ThreadLocal<RefCell<Vec<Reader>>>,
    /// mdb_dbi_open must not run twice at the same time.
    opening: Mutex<()>,
    place: Place,
}

// SAFETY: LMDB's environment may be used by all threads; the readers are each thread's own.
unsafe impl Send for Environment {}
// SAFETY: as above.
unsafe impl Sync for Environment {}

/// A read transaction with a cursor, between uses reset.
struct Reader {
    transaction: *mut ffi::MDB_txn,
    cursor: *mut ffi::MDB_cursor,
    table: ffi::MDB_dbi,
}

// SAFETY: with MDB_NOTLS a read transaction and its cursor may go from thread to thread, used by one at a time.
unsafe impl Send for Reader {}

impl Environment {
    fn open(place: &Place, map_bytes: usize, readers: u32, flags: u32) -> Outcome<Environment> {
        let path = CString::new(place.path.as_os_str().as_bytes())
            .map_err(|_| Failure::Usage("a path cannot have a zero byte in it".to_owned()))?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a place for the result.
        check(unsafe { ffi::mdb_env_create(&mut raw) })?;
        // From here on it is closed by Drop, also when opening fails, as LMDB asks.
        let environment =
            Environment { raw, readers: ThreadLocal::new(), opening: Mutex::new(()), place: place.clone() };
        // SAFETY: the environment was created and is not open; the path ends with a zero.
        unsafe {
            check(ffi::mdb_env_set_mapsize(raw, map_bytes))?;
            check(ffi::mdb_env_set_maxdbs(raw, TABLES_MAX))?;
            check(ffi::mdb_env_set_maxreaders(raw, readers))?;
            check(ffi::mdb_env_open(raw, path.as_ptr(), flags, FILE_MODE))?;
        }
        Ok(environment)
    }

    fn begin(&self) -> Outcome<Writer<'_>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the environment is open; the transaction has no parent.
        check(unsafe { ffi::mdb_txn_begin(self.raw, ptr::null_mut(), 0, &mut raw) })?;
        Ok(Writer { raw, _environment: self })
    }

    /// Runs `work` with this thread's reader of `table`, at the newest snapshot.
    fn read<T>(&self, table: ffi::MDB_dbi, work: impl FnOnce(&Reader) -> Outcome<T>) -> Outcome<T> {
        let mut readers = self.readers.get_or_default().borrow_mut();
        let reader = match readers.iter().position(|reader| reader.table == table) {
            Some(at) => {
                // SAFETY: the transaction was reset when its last use ended.
                check(unsafe { ffi::mdb_txn_renew(readers[at].transaction) })?;
                &readers[at]
            }
            None => {
                readers.push(self.new_reader(table)?);
                readers.last().expect("one was pushed")
            }
        };
        let _reset = Reset(reader.transaction);
        work(reader)
    }

    fn new_reader(&self, table: ffi::MDB_dbi) -> Outcome<Reader> {
        let mut reader = Reader { transaction: ptr::null_mut(), cursor: ptr::null_mut(), table };
        // SAFETY: the environment is open, the table was opened in it; what was made is ended by the reader's Drop.
        unsafe {
            check(ffi::mdb_txn_begin(self.raw, ptr::null_mut(), ffi::MDB_RDONLY, &mut reader.transaction))?;
            check(ffi::mdb_cursor_open(reader.transaction, table, &mut reader.cursor))?;
        }
        Ok(reader)
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        self.readers.clear();
        // SAFETY: no transaction is left: readers were ended, writers borrow the environment.
        unsafe { ffi::mdb_env_close(self.raw) };
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: the cursor belongs to the transaction, both are this reader's alone; either may not have come to be.
        unsafe {
            if !self.cursor.is_null() {
                ffi::mdb_cursor_close(self.cursor);
            }
            if !self.transaction.is_null() {
                ffi::mdb_txn_abort(self.transaction);
            }
        }
    }
}

/// Lets go of a reader's snapshot when its use ends, by a panic too.
struct Reset(*mut ffi::MDB_txn);

impl Drop for Reset {
    fn drop(&mut self) {
        // SAFETY: the reader it belongs to is borrowed for longer than this.
        unsafe { ffi::mdb_txn_reset(self.0) };
    }
}

/// A write transaction; dropped without a commit it is aborted.
struct Writer<'a> {
    raw: *mut ffi::MDB_txn,
    _environment: &'a Environment,
}

impl Writer<'_> {
    fn get(&self, table: ffi::MDB_dbi, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        // SAFETY: the transaction is live, and nothing is written before the value is copied.
        unsafe { get(self.raw, table, key) }
    }

    fn put(&mut self, table: ffi::MDB_dbi, key: &[u8], value: &[u8]) -> Outcome {
        check(self.put_as(table, key, value, 0))
    }

    /// Sets keys that may well come in order and behind all others, which fills pages where single puts leave them half
    /// empty.
    fn put_all(&mut self, table: ffi::MDB_dbi, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        let mut flags = ffi::MDB_APPEND;
        for (key, value) in entries {
            match self.put_as(table, key, value, flags) {
                ffi::MDB_KEYEXIST if flags != 0 => {
                    flags = 0;
                    self.put(table, key, value)?;
                }
                code => check(code)?,
            }
        }
        Ok(())
    }

    fn put_as(&mut self, table: ffi::MDB_dbi, key: &[u8], value: &[u8], flags: u32) -> i32 {
        let (mut key, mut value) = (value_of(key), value_of(value));
        // SAFETY: the transaction is live, key and value outlive the call.
        unsafe { ffi::mdb_put(self.raw, table, &mut key, &mut value, flags) }
    }

    fn delete(&mut self, table: ffi::MDB_dbi, key: &[u8]) -> Outcome<bool> {
        let mut key = value_of(key);
        // SAFETY: the transaction is live, the key outlives the call; a table without duplicates takes no value.
        match unsafe { ffi::mdb_del(self.raw, table, &mut key, ptr::null_mut()) } {
            ffi::MDB_NOTFOUND => Ok(false),
            code => check(code).map(|()| true),
        }
    }

    fn commit(self) -> Outcome {
        let raw = self.raw;
        std::mem::forget(self);
        // SAFETY: the transaction is live, and ends here whatever comes out.
        check(unsafe { ffi::mdb_txn_commit(raw) })
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // SAFETY: the transaction is live: a commit forgets the writer.
        unsafe { ffi::mdb_txn_abort(self.raw) };
    }
}

/// The value of `key`, copied.
///
/// # Safety
///
/// `transaction` is live and nobody else uses it during the call.
unsafe fn get(transaction: *mut ffi::MDB_txn, table: ffi::MDB_dbi, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
    let (mut key, mut value) = (value_of(key), NOTHING);
    // SAFETY: as the caller promises; the key outlives the call.
    match unsafe { ffi::mdb_get(transaction, table, &mut key, &mut value) } {
        ffi::MDB_NOTFOUND => Ok(None),
        code => {
            check(code)?;
            // SAFETY: LMDB filled `value`, and the copy is made before anything else happens in the transaction.
            Ok(Some(unsafe { bytes_of(&value) }.to_vec()))
        }
    }
}

struct Database {
    environment: Arc<Environment>,
    flags: String,
    map_bytes: u64,
}

impl Database {
    /// The handle of a table, if there is one or it may be created.
    fn handle(&self, name: &str, create: bool) -> Outcome<Option<ffi::MDB_dbi>> {
        let name = CString::new(name)
            .map_err(|_| Failure::Usage("a table's name has a zero byte in it".to_owned()))?;
        let _alone = self.environment.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = self.environment.begin()?;
        let mut table = 0;
        let flags = if create { ffi::MDB_CREATE } else { 0 };
        // SAFETY: the transaction is live, the name ends with a zero, no other thread opens a table meanwhile.
        match unsafe { ffi::mdb_dbi_open(transaction.raw, name.as_ptr(), flags, &mut table) } {
            ffi::MDB_NOTFOUND => Ok(None),
            code => {
                check(code)?;
                transaction.commit().map(|()| Some(table))
            }
        }
    }
}

impl store::Database for Database {
    fn table(&self, name: &str, create: bool) -> Outcome<Box<dyn Store>> {
        let found = self.handle(name, create)?;
        let table = found.ok_or_else(|| Failure::Work(format!("{NAME}: there is no table {name:?}")))?;
        Ok(Box::new(Table { environment: self.environment.clone(), table }))
    }

    fn drop_table(&self, name: &str) -> Outcome {
        let Some(table) = self.handle(name, false)? else { return Ok(()) };
        let transaction = self.environment.begin()?;
        // Emptied, not removed: removing would close a handle that a table of this name may still use.
        // SAFETY: the transaction is live and the table open.
        check(unsafe { ffi::mdb_drop(transaction.raw, table, 0) })?;
        transaction.commit()
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let mut version = [0; 3];
        let [major, minor, patch] = &mut version;
        // SAFETY: three places for three numbers.
        unsafe { ffi::mdb_version(major, minor, patch) };
        BTreeMap::from([
            ("version", format!("LMDB {}.{}.{}", version[0], version[1], version[2])),
            ("flags", self.flags.clone()),
            ("load", "MDB_APPEND".to_owned()),
            ("map_size", crate::units::show_size(self.map_bytes)),
            ("cache", "the kernel's page cache".to_owned()),
            ("readers", "one for each thread, reset and renewed".to_owned()),
            ("files", self.environment.place.kind.to_owned()),
        ])
    }

    fn close(self: Box<Self>) -> Outcome {
        // SAFETY: the environment is open; the call waits for the disk whatever the flags say.
        check(unsafe { ffi::mdb_env_sync(self.environment.raw, 1) })
    }
}

struct Table {
    environment: Arc<Environment>,
    table: ffi::MDB_dbi,
}

impl Store for Table {
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        // SAFETY: the reader's transaction is live within `read`, and this thread's.
        self.environment.read(self.table, |reader| unsafe { get(reader.transaction, self.table, key) })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        let mut writer = self.environment.begin()?;
        writer.put(self.table, key, value)?;
        writer.commit()
    }

    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        let mut writer = self.environment.begin()?;
        let was = writer.delete(self.table, key)?;
        writer.commit()?;
        Ok(was)
    }

    fn write(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
        let mut writer = self.environment.begin()?;
        writer.put_all(self.table, entries)?;
        writer.commit()
    }

    fn transact(&self, body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>) -> Outcome<u64> {
        let mut inside = Inside { writer: self.environment.begin()?, table: self.table };
        if body(&mut inside)? == Ending::Commit {
            inside.writer.commit()?;
        }
        Ok(0)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Outcome {
        self.environment.read(self.table, |reader| {
            let (mut key, mut value) = (value_of(from), NOTHING);
            // SAFETY: transaction and cursor are live and this thread's; the cursor was opened in that transaction.
            check(unsafe { ffi::mdb_cursor_renew(reader.transaction, reader.cursor) })?;
            let mut step = match from {
                // LMDB knows no empty keys.
                [] => ffi::MDB_FIRST,
                _ => ffi::MDB_SET_RANGE,
            };
            loop {
                // SAFETY: the cursor is live; `from` outlives the call that reads it.
                match unsafe { ffi::mdb_cursor_get(reader.cursor, &mut key, &mut value, step) } {
                    ffi::MDB_NOTFOUND => return Ok(()),
                    code => check(code)?,
                }
                // SAFETY: LMDB filled both, in a transaction that only reads and that lasts for the visit.
                let (key, value) = unsafe { (bytes_of(&key), bytes_of(&value)) };
                if visit(key, value).is_break() {
                    return Ok(());
                }
                step = ffi::MDB_NEXT;
            }
        })
    }

    fn counters(&self) -> Counters {
        // The budget is what the kernel's cache is held to from outside, if anything.
        self.environment.place.counters(0)
    }
}

struct Inside<'a> {
    writer: Writer<'a>,
    table: ffi::MDB_dbi,
}

impl Access for Inside<'_> {
    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        self.writer.get(self.table, key)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        self.writer.put(self.table, key, value)
    }
}
