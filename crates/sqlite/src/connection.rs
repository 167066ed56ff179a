//! A database file as one connection sees it: its locks, reads and writes.
//!
//! `database.rs` decides when the cache may be read, at the events reported from here. In between
//! the connection holds the cache, so that reads take no lock. It holds it in rollback mode with
//! the shared lock on the file, in WAL mode with a read mark.

use std::ffi::c_int;
use std::sync::Arc;

use libsqlite3_sys as ffi;
use terrace_io::{AlignedBuffer, BlockDevice};

use crate::below::{Below, CHECKPOINT_LOCK, WalIndex};
use crate::code::{Code, Outcome};
use crate::database::Database;
use crate::file::Handle;
use crate::header::Head;
use crate::in_use::InUse;
use crate::queries::Roots;
use crate::slow::SlowFile;

/// Lock in the log's index of the log's writer.
const WRITE_LOCK: c_int = 0;

/// First of five *read marks* in the log's index; a reader holds one.
const READ_LOCKS: c_int = 3;

/// First and number of read marks that a log restart locks.
const RESTART_LOCKS: (c_int, c_int) = (READ_LOCKS + 1, 4);

/// SQLite's smallest page in bytes; reads of the file head are shorter.
const PAGE_BYTES_MIN: usize = 512;

pub(crate) struct Connection {
    below: Arc<Below>,
    /// `None` after the close.
    database: Option<Arc<Database>>,
    /// Lock on the file, by SQLite's numbers.
    level: c_int,
    /// Bits of the read marks held.
    marks: u8,
    /// A mark was taken, and the cache not yet requested.
    is_new_mark: bool,
    index: Option<WalIndex>,
    /// The cache, while it may be read.
    cache: Option<InUse>,
    /// File head, which SQLite reads after the lock in rollback mode.
    head: Option<Head>,
    /// The latest statement, while it runs.
    query: Option<u32>,
    /// An aligned page, because SQLite's buffers lack the alignment that devices need.
    page: AlignedBuffer,
}

impl Connection {
    pub fn new(below: Below, database: Arc<Database>) -> Self {
        let (below, page) = (Arc::new(below), AlignedBuffer::zeroed(0));
        let level = ffi::SQLITE_LOCK_NONE;
        Connection {
            below,
            database: Some(database),
            level,
            marks: 0,
            is_new_mark: false,
            index: None,
            cache: None,
            head: None,
            query: None,
            page,
        }
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("SQLite uses a closed file no more")
    }

    /// Page number, from 1, if the transfer is one page.
    fn page_of(offset: i64, bytes: usize) -> Option<u32> {
        let (offset, length) = (u64::try_from(offset).ok()?, bytes as u64);
        let is_page = bytes >= PAGE_BYTES_MIN && length.is_power_of_two() && offset.is_multiple_of(length);
        u32::try_from(offset / length.max(1) + 1).ok().filter(|_| is_page)
    }

    fn read_cached(&mut self, cache: &InUse, buffer: &mut [u8], offset: i64) -> Outcome {
        self.fit(buffer.len());
        let page = &mut self.page;
        let read = SlowFile::through(&self.below, 0, ffi::SQLITE_IOERR_READ, || {
            cache.cached.read_at(offset as u64, page)
        });
        match read {
            Ok(()) => {
                buffer.copy_from_slice(page);
                Ok(())
            }
            // Beyond the end: SQLite expects zeros with this error.
            Err(Code(ffi::SQLITE_IOERR_SHORT_READ)) => self.below.read(buffer, offset),
            Err(code) => Err(code),
        }
    }

    fn write_through(&mut self, bytes: &[u8], offset: i64) -> Outcome {
        let Some(InUse { cached, slow, page_bytes }) = self.database().cache_to_write() else {
            return self.below.write(bytes, offset);
        };
        let (start, length, block) = (offset as u64, bytes.len() as u64, page_bytes as u64);
        slow.reaches(start + length);
        if length == block && start.is_multiple_of(block) {
            self.fit(page_bytes);
            self.page.copy_from_slice(bytes);
            let page = &self.page;
            return SlowFile::through(&self.below, 0, ffi::SQLITE_IOERR_WRITE, || {
                cached.write_at(start, page)
            });
        }
        let written = self.below.write(bytes, offset);
        let first = start / block * block;
        cached.free(first, (start + length).next_multiple_of(block) - first);
        written
    }

    /// Resizes the page buffer.
    fn fit(&mut self, bytes: usize) {
        if self.page.len() != bytes {
            self.page = AlignedBuffer::zeroed(bytes);
        }
    }

    fn lock_index(&mut self, offset: c_int, count: c_int, flags: c_int) {
        let is_exclusive = flags & ffi::SQLITE_SHM_EXCLUSIVE != 0;
        let Some(index) = self.index else { return };
        if is_exclusive {
            if offset == WRITE_LOCK {
                self.database().log_write_begins(index);
            }
            if (offset..offset + count).contains(&CHECKPOINT_LOCK) {
                self.database().checkpoint_begins(&self.below, index);
            }
            if (offset, count) == RESTART_LOCKS {
                self.database().restart_begins(index);
            }
        } else if offset >= READ_LOCKS {
            // Only the barrier that follows fixes what SQLite reads from the log and from the file.
            self.marks |= 1 << offset;
            (self.cache, self.is_new_mark) = (None, true);
        }
    }

    /// Called before a lock of the index is released.
    fn unlock_index(&mut self, offset: c_int, count: c_int, flags: c_int) {
        let is_exclusive = flags & ffi::SQLITE_SHM_EXCLUSIVE != 0;
        let Some(index) = self.index else { return };
        if is_exclusive {
            if offset == WRITE_LOCK {
                self.database().log_write_ends(index);
            }
            if (offset..offset + count).contains(&CHECKPOINT_LOCK) {
                self.database().checkpoint_ends(index);
            }
            if (offset, count) == RESTART_LOCKS {
                self.database().restart_ends(index);
            }
        } else if offset >= READ_LOCKS {
            self.marks &= !(1 << offset);
            if self.marks == 0 {
                (self.cache, self.is_new_mark) = (None, false);
            }
        }
    }
}

impl Handle for Connection {
    fn below(&self) -> &Below {
        &self.below
    }

    fn close(&mut self) -> Outcome {
        if self.level != ffi::SQLITE_LOCK_NONE {
            (self.cache, self.head) = (None, None);
            self.database().unlocks(self.level, ffi::SQLITE_LOCK_NONE, self.index);
            self.level = ffi::SQLITE_LOCK_NONE;
        }
        if let Some(database) = self.database.take() {
            Database::leave(database, &self.below);
        }
        self.below.close()
    }

    fn read(&mut self, buffer: &mut [u8], offset: i64) -> Outcome {
        let Some(page) = Self::page_of(offset, buffer.len()) else {
            return match (&self.head, usize::try_from(offset)) {
                (Some(head), Ok(start)) if start + buffer.len() <= head.len() => {
                    buffer.copy_from_slice(&head[start..start + buffer.len()]);
                    Ok(())
                }
                _ => self.below.read(buffer, offset),
            };
        };
        match self.cache.take() {
            Some(cache) if cache.page_bytes == buffer.len() && cache.holds(offset) => {
                let read = self.read_cached(&cache, buffer, offset);
                self.cache = Some(cache);
                read?;
            }
            cache => {
                self.cache = cache;
                self.below.read(buffer, offset)?;
            }
        }
        self.database().saw(page, buffer, false, self.query);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], offset: i64) -> Outcome {
        self.head = None;
        self.database().will_change();
        self.write_through(bytes, offset)?;
        if offset == 0 {
            self.database().wrote_header(bytes);
        }
        if let Some(page) = Self::page_of(offset, bytes.len()) {
            self.database().saw(page, bytes, true, self.query);
        }
        Ok(())
    }

    fn truncate(&mut self, bytes: i64) -> Outcome {
        self.head = None;
        self.database().will_change();
        let (Some(cache), Ok(length)) = (self.database().cache_to_write(), u64::try_from(bytes)) else {
            return self.below.truncate(bytes);
        };
        SlowFile::through(&self.below, 0, ffi::SQLITE_IOERR_TRUNCATE, || cache.cached.set_len(length))
    }

    fn sync(&mut self, flags: c_int) -> Outcome {
        match self.database().cache_to_write() {
            Some(cache) => {
                SlowFile::through(&self.below, flags, ffi::SQLITE_IOERR_FSYNC, || cache.cached.sync())
            }
            None => self.below.sync(flags),
        }
    }

    fn lock(&mut self, level: c_int) -> Outcome {
        self.below.lock(level)?;
        let before = self.level;
        self.level = level.max(before);
        if before == ffi::SQLITE_LOCK_NONE && self.level > before {
            (self.cache, self.head) = self.database().shares(&self.below);
        }
        if before < ffi::SQLITE_LOCK_EXCLUSIVE
            && self.level >= ffi::SQLITE_LOCK_EXCLUSIVE
            && let Some(index) = self.index
        {
            self.database().excludes(&self.below, index);
        }
        Ok(())
    }

    fn unlock(&mut self, level: c_int) -> Outcome {
        if level < self.level {
            if level == ffi::SQLITE_LOCK_NONE {
                (self.cache, self.head) = (None, None);
            }
            self.database().unlocks(self.level, level, self.index);
            self.level = level;
        }
        self.below.unlock(level)
    }

    fn wal_index(&mut self, index: Option<WalIndex>) {
        self.index = index;
        self.head = None;
        if index.is_none() {
            (self.marks, self.is_new_mark) = (0, false);
            self.cache = None;
        }
    }

    fn shm_lock(&mut self, offset: c_int, count: c_int, flags: c_int) -> Outcome {
        if flags & ffi::SQLITE_SHM_UNLOCK != 0 {
            self.unlock_index(offset, count, flags);
            return self.below.shm_lock(offset, count, flags);
        }
        self.below.shm_lock(offset, count, flags)?;
        self.lock_index(offset, count, flags);
        Ok(())
    }

    fn shm_barrier(&mut self) {
        self.below.shm_barrier();
        if let Some(index) = self.index {
            self.database().sees_log(index);
        }
        if let Some(index) = self.index.filter(|_| std::mem::take(&mut self.is_new_mark)) {
            self.cache = self.database().reads_log(&self.below, index);
        }
    }

    fn pragma(&mut self, name: &str, _argument: Option<&str>) -> Option<String> {
        name.eq_ignore_ascii_case("terrace_stats").then(|| self.database().stats())
    }

    fn wants_statements(&self) -> bool {
        self.database().wants_queries()
    }

    fn knows_statement(&self, text: &str) -> bool {
        self.database().knows_query(text)
    }

    fn statement_begins(&mut self, statement: usize, text: &str, roots: Roots) {
        // The address of the file identifies the connection.
        let process = std::ptr::from_ref(&*self.below).addr();
        self.query = Some(self.database().query_begins(process as u64, statement, text, roots));
    }

    fn statement_ends(&mut self, statement: usize) {
        let ended = self.database().query_ends(statement);
        self.query = self.query.filter(|query| ended != Some(*query));
    }
}
