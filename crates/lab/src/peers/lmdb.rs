//! LMDB: a copy-on-write B-tree in mapped memory, with one writer and snapshot readers. We call its
//! C interface: no safe wrapper keeps and renews a read transaction and cursor per thread, as LMDB
//! recommends.
//!
//! `sync` is the default: each commit syncs data and meta page. `buffered` is `MDB_NOSYNC`, a
//! weaker promise than the others': a power cut may damage the file. As documented, `MDB_WRITEMAP`
//! is set for data that fit memory, `MDB_NORDAHEAD` for larger data. Batches use `MDB_APPEND` while
//! keys ascend beyond all others, the recommended way to load. LMDB has only the kernel's cache, so
//! there is none to size.
//!
//! # What makes the calls sound
//!
//! The environment outlives its tables, which hold it by `Arc`, and its readers, which it closes
//! first. One thread at a time uses a read transaction: it is in that thread's cell, and
//! `MDB_NOTLS` lets any thread end it. One thread begins, uses and ends a write transaction within
//! one call. Values are copied or visited before their transaction ends. Nobody else opens the
//! directory.

#![allow(unsafe_code)]

pub(super) mod business;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use lmdb_master_sys as ffi;
use terrace::Durability;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::store::{self, Access, Counters, Ending, Opener, Settings, Store, Visit};
use thread_local::ThreadLocal;

use super::folder::{Folder, budget};

const NAME: &str = "lmdb";

/// Minimum mapped address space; it costs nothing until used.
const MAP_BYTES_MIN: u64 = 64 << 30;

/// Limit of open named tables.
const TABLES_MAX: u32 = 8;

/// Permissions of the files.
const FILE_MODE: u32 = 0o600;

/// The LMDB engine.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, settings: &Settings) -> Outcome<Box<dyn store::Database>> {
        Ok(Box::new(Database::open(settings)?))
    }
}

impl Database {
    fn open(settings: &Settings) -> Outcome<Database> {
        let folder = Folder::of(settings)?;
        let data_bytes = settings.data_bytes();
        let fits = data_bytes <= budget(settings);
        let mut flags = ffi::MDB_NOTLS | ffi::MDB_NOMEMINIT;
        let mut names = vec!["MDB_NOTLS", "MDB_NOMEMINIT"];
        if settings.tiers.commits.durability == Durability::Buffered {
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
        let environment = Environment::open(&folder, map_bytes as usize, readers, flags)?;
        Ok(Database { environment: Arc::new(environment), flags: names.join(" | "), map_bytes })
    }
}

/// Converts a return code.
fn check(code: i32) -> Outcome {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: mdb_strerror accepts any number and returns a static or thread-local C string.
    let text = unsafe { CStr::from_ptr(ffi::mdb_strerror(code)) };
    Err(Failure::Work(format!("{NAME}: {}", text.to_string_lossy())))
}

fn value_of(bytes: &[u8]) -> ffi::MDB_val {
    // LMDB takes mutable pointers to keys and values but does not write through them.
    ffi::MDB_val { mv_size: bytes.len(), mv_data: bytes.as_ptr().cast_mut().cast() }
}

const NOTHING: ffi::MDB_val = ffi::MDB_val { mv_size: 0, mv_data: ptr::null_mut() };

/// The bytes that LMDB returned.
///
/// # Safety
///
/// LMDB filled `value` in a transaction that lasts for `'a` and does not write meanwhile.
unsafe fn bytes_of<'a>(value: &ffi::MDB_val) -> &'a [u8] {
    if value.mv_size == 0 {
        return &[];
    }
    // SAFETY: by the caller's promise the bytes stay mapped and unchanged for 'a.
    unsafe { std::slice::from_raw_parts(value.mv_data.cast(), value.mv_size) }
}

struct Environment {
    raw: *mut ffi::MDB_env,
    /// Read transactions per thread and table. Resetting them between uses releases their
    /// snapshots.
    readers: ThreadLocal<RefCell<Vec<Reader>>>,
    /// Serialises mdb_dbi_open, which is not thread-safe.
    opening: Mutex<()>,
    folder: Folder,
}

// SAFETY: all threads may use an LMDB environment; each reader belongs to one thread.
unsafe impl Send for Environment {}
// SAFETY: as above.
unsafe impl Sync for Environment {}

/// A read transaction with a cursor; reset between uses.
struct Reader {
    transaction: *mut ffi::MDB_txn,
    cursor: *mut ffi::MDB_cursor,
    table: ffi::MDB_dbi,
}

// SAFETY: with MDB_NOTLS a read transaction and its cursor may move between threads, if only one
// uses them at a time.
unsafe impl Send for Reader {}

impl Environment {
    fn open(folder: &Folder, map_bytes: usize, readers: u32, flags: u32) -> Outcome<Environment> {
        let path = CString::new(folder.path.as_os_str().as_bytes())
            .map_err(|_| Failure::Usage("a path cannot contain a zero byte".to_owned()))?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a valid pointer for the result.
        check(unsafe { ffi::mdb_env_create(&mut raw) })?;
        // From here on Drop closes it, even if opening fails, as LMDB requires.
        let environment =
            Environment { raw, readers: ThreadLocal::new(), opening: Mutex::new(()), folder: folder.clone() };
        // SAFETY: the environment was created and is not open; the path is a C string.
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
    fn read<T, E: From<Failure>>(
        &self,
        table: ffi::MDB_dbi,
        work: impl FnOnce(&Reader) -> Result<T, E>,
    ) -> Result<T, E> {
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
        // SAFETY: the environment is open and the table was opened in it; the reader's Drop ends
        // what was made.
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
        // SAFETY: no transaction is left: readers were ended, and writers borrow the environment.
        unsafe { ffi::mdb_env_close(self.raw) };
    }
}

impl Reader {
    /// Passes the value of `key` to `read`, if it is there.
    fn get_with<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Outcome<Option<R>> {
        // SAFETY: a reader is handed out renewed, to its thread alone.
        unsafe { get_with(self.transaction, self.table, key, read) }
    }

    /// Passes the entries from `from` on and up to `to` to `visit`, until it breaks.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        ascends: bool,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        // SAFETY: as above.
        unsafe { scan(self.transaction, self.table, from, to, ascends, visit) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: cursor and transaction belong to this reader alone; null means never created.
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

/// Releases a reader's snapshot when its use ends, even by a panic.
struct Reset(*mut ffi::MDB_txn);

impl Drop for Reset {
    fn drop(&mut self) {
        // SAFETY: the owning reader stays borrowed for longer than this value lives.
        unsafe { ffi::mdb_txn_reset(self.0) };
    }
}

/// A write transaction; dropping it without a commit aborts.
struct Writer<'a> {
    raw: *mut ffi::MDB_txn,
    _environment: &'a Environment,
}

impl Writer<'_> {
    fn get(&self, table: ffi::MDB_dbi, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        // SAFETY: the transaction is live, and nothing is written before the value is copied.
        unsafe { get(self.raw, table, key) }
    }

    /// Passes the value of `key` to `read`, if it is there.
    fn get_with<R>(
        &self,
        table: ffi::MDB_dbi,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> R,
    ) -> Outcome<Option<R>> {
        // SAFETY: the transaction is live. Writes need `&mut self`, so none happens meanwhile.
        unsafe { get_with(self.raw, table, key, read) }
    }

    /// Passes the entries from `from` on and up to `to` to `visit`, until it breaks.
    fn scan(
        &self,
        table: ffi::MDB_dbi,
        from: &[u8],
        to: &[u8],
        ascends: bool,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        // SAFETY: as above.
        unsafe { scan(self.raw, table, from, to, ascends, visit) }
    }

    fn put(&mut self, table: ffi::MDB_dbi, key: &[u8], value: &[u8]) -> Outcome {
        check(self.put_as(table, key, value, 0))
    }

    /// Sets keys. Ascending keys beyond all others fill pages, which single puts leave half empty.
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
        // SAFETY: the transaction is live; key and value outlive the call.
        unsafe { ffi::mdb_put(self.raw, table, &mut key, &mut value, flags) }
    }

    fn delete(&mut self, table: ffi::MDB_dbi, key: &[u8]) -> Outcome<bool> {
        let mut key = value_of(key);
        // SAFETY: the transaction is live and the key outlives the call; a table without duplicates
        // needs no value.
        match unsafe { ffi::mdb_del(self.raw, table, &mut key, ptr::null_mut()) } {
            ffi::MDB_NOTFOUND => Ok(false),
            code => check(code).map(|()| true),
        }
    }

    fn commit(self) -> Outcome {
        let raw = self.raw;
        std::mem::forget(self);
        // SAFETY: the transaction is live; the call ends it whatever the result.
        check(unsafe { ffi::mdb_txn_commit(raw) })
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // SAFETY: the transaction is live, since a commit forgets the writer.
        unsafe { ffi::mdb_txn_abort(self.raw) };
    }
}

/// A copy of the value of `key`.
///
/// # Safety
///
/// That of [`get_with`].
unsafe fn get(transaction: *mut ffi::MDB_txn, table: ffi::MDB_dbi, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
    // SAFETY: by the caller's promise.
    unsafe { get_with(transaction, table, key, <[u8]>::to_vec) }
}

/// Passes the value of `key` to `read`.
///
/// # Safety
///
/// `transaction` is live, nobody else uses it during the call, and `read` does not write to it.
unsafe fn get_with<R>(
    transaction: *mut ffi::MDB_txn,
    table: ffi::MDB_dbi,
    key: &[u8],
    read: impl FnOnce(&[u8]) -> R,
) -> Outcome<Option<R>> {
    let (mut key, mut value) = (value_of(key), NOTHING);
    // SAFETY: by the caller's promise; the key outlives the call.
    match unsafe { ffi::mdb_get(transaction, table, &mut key, &mut value) } {
        ffi::MDB_NOTFOUND => Ok(None),
        code => {
            check(code)?;
            // SAFETY: LMDB filled `value`; `read` returns before any other use of the transaction.
            Ok(Some(read(unsafe { bytes_of(&value) })))
        }
    }
}

/// Passes the entries from `from` on and up to `to`, or back from `to`, to `visit`.
///
/// # Safety
///
/// That of [`get_with`], for `visit`.
unsafe fn scan(
    transaction: *mut ffi::MDB_txn,
    table: ffi::MDB_dbi,
    from: &[u8],
    to: &[u8],
    ascends: bool,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Outcome {
    let mut cursor = Cursor(ptr::null_mut());
    // SAFETY: by the caller's promise; the cursor is closed before this returns.
    check(unsafe { ffi::mdb_cursor_open(transaction, table, &mut cursor.0) })?;
    let go = |near: &[u8], step| {
        let (mut key, mut value) = (value_of(near), NOTHING);
        // SAFETY: the cursor is live; `near` outlives the call, which reads it at most.
        match unsafe { ffi::mdb_cursor_get(cursor.0, &mut key, &mut value, step) } {
            ffi::MDB_NOTFOUND => Ok(None),
            // SAFETY: LMDB filled both, and nothing is written before `visit` returns.
            code => check(code).map(|()| Some(unsafe { (bytes_of(&key), bytes_of(&value)) })),
        }
    };
    let (mut entry, step) = match ascends {
        true => (go(from, ffi::MDB_SET_RANGE)?, ffi::MDB_NEXT),
        false => {
            let is_behind = go(to, ffi::MDB_SET_RANGE)?.is_some();
            (go(to, if is_behind { ffi::MDB_PREV } else { ffi::MDB_LAST })?, ffi::MDB_PREV)
        }
    };
    while let Some((key, value)) = entry {
        if !(from..to).contains(&key) || visit(key, value).is_break() {
            break;
        }
        entry = go(to, step)?;
    }
    Ok(())
}

/// A cursor, closed on drop.
struct Cursor(*mut ffi::MDB_cursor);

impl Drop for Cursor {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the cursor was opened in a transaction that is live.
            unsafe { ffi::mdb_cursor_close(self.0) };
        }
    }
}

struct Database {
    environment: Arc<Environment>,
    flags: String,
    map_bytes: u64,
}

impl Database {
    fn sync(&self) -> Outcome {
        // SAFETY: the environment is open; the call syncs whatever the flags are.
        check(unsafe { ffi::mdb_env_sync(self.environment.raw, 1) })
    }

    /// The handle of a table, if it exists or may be created.
    fn handle(&self, name: &str, create: bool) -> Outcome<Option<ffi::MDB_dbi>> {
        let name = CString::new(name)
            .map_err(|_| Failure::Usage("a table name cannot contain a zero byte".to_owned()))?;
        let _alone = self.environment.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = self.environment.begin()?;
        let mut table = 0;
        let flags = if create { ffi::MDB_CREATE } else { 0 };
        // SAFETY: the transaction is live, the name is a C string, and no other thread opens a
        // table meanwhile.
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
        // Emptied, not removed: removal would close a handle that a table of this name may still
        // use. SAFETY: the transaction is live and the table open.
        check(unsafe { ffi::mdb_drop(transaction.raw, table, 0) })?;
        transaction.commit()
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let mut version = [0; 3];
        let [major, minor, patch] = &mut version;
        // SAFETY: three valid pointers to three numbers.
        unsafe { ffi::mdb_version(major, minor, patch) };
        BTreeMap::from([
            ("version", format!("LMDB {}.{}.{}", version[0], version[1], version[2])),
            ("flags", self.flags.clone()),
            ("load", "MDB_APPEND".to_owned()),
            ("map_size", terrace_common::units::show_size(self.map_bytes)),
            ("cache", "the kernel's page cache".to_owned()),
            ("readers", "one for each thread, reset and renewed".to_owned()),
            ("files", self.environment.folder.kind.to_owned()),
        ])
    }

    fn close(self: Box<Self>) -> Outcome {
        self.sync()
    }
}

struct Table {
    environment: Arc<Environment>,
    table: ffi::MDB_dbi,
}

impl Store for Table {
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        // SAFETY: the reader's transaction is live within `read`, and belongs to this thread.
        self.environment.read(self.table, |reader| unsafe { get(reader.transaction, self.table, key) })
    }

    fn get_with(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        self.environment.read(self.table, |reader| Ok(reader.get_with(key, read)?.is_some()))
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
            // SAFETY: transaction and cursor are live and belong to this thread; the cursor was
            // opened in that transaction.
            check(unsafe { ffi::mdb_cursor_renew(reader.transaction, reader.cursor) })?;
            let mut step = match from {
                // LMDB has no empty keys.
                [] => ffi::MDB_FIRST,
                _ => ffi::MDB_SET_RANGE,
            };
            loop {
                // SAFETY: the cursor is live; `from` outlives the call that reads it.
                match unsafe { ffi::mdb_cursor_get(reader.cursor, &mut key, &mut value, step) } {
                    ffi::MDB_NOTFOUND => return Ok(()),
                    code => check(code)?,
                }
                // SAFETY: LMDB filled both in a read-only transaction that lasts for the visit.
                let (key, value) = unsafe { (bytes_of(&key), bytes_of(&value)) };
                if visit(key, value).is_break() {
                    return Ok(());
                }
                step = ffi::MDB_NEXT;
            }
        })
    }

    fn counters(&self) -> Counters {
        // Only an outside limit on the kernel's cache enforces the budget.
        self.environment.folder.counters(0)
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
