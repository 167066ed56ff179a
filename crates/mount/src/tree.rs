//! The directory below, as the mount shows it: state of all requests, and open files.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fuser::{BackingId, FileHandle, INodeNo, OpenFlags};
use parking_lot::RwLock;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};

use crate::cache::FileCache;
use crate::caller::Caller;
use crate::counters::{Counters, count};
use crate::lower::{Bytes, Lower, read_lower};
use crate::node::{Handle, Node, Nodes, flush, set_id_bits};
use crate::observer::{Observer, observe};
use crate::passthrough::Passthrough;
use crate::queries::Queries;
use crate::read_times::ReadTimes;

/// Most bytes of one copy between files; the program asks again for the rest.
const COPY_BYTES_MAX: u64 = 4 << 20;

/// A cache that cannot help. What it has stays for a later mount, and until then files tell whether
/// they changed.
#[derive(Debug)]
pub(crate) struct LeftOut {
    pub times: ReadTimes,
    /// Takes note of failed syncs.
    pub cache: FileCache,
}

/// The directory below and what programs have open of it.
#[derive(Debug)]
pub(crate) struct Tree {
    pub nodes: Nodes,
    pub cache: Option<FileCache>,
    pub left_out: Option<LeftOut>,
    pub counters: Arc<Counters>,
    pub passthrough: Passthrough,
    pub queries: Queries,
    observer: Option<Arc<dyn Observer>>,
    handles: RwLock<HashMap<u64, Arc<Handle>>>,
    directories: RwLock<HashMap<u64, Arc<File>>>,
    next_handle: AtomicU64,
}

/// Where and how a program writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub offset: u64,
    /// At the end of the file instead: the kernel's idea of its length may be old.
    pub appends: bool,
    /// This write alone is a sync, too.
    pub syncs: bool,
    /// The set-user-id and set-group-id bits go.
    pub strips_ids: bool,
}

/// Whether an error of a write that syncs may be that of the sync.
fn may_lose(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENOSPC | libc::EDQUOT))
}

/// Flags that have an effect on the lower file.
///
/// `O_APPEND` has none: each write says whether it appends. `O_CREAT` and `O_TRUNC` are requests of
/// their own.
fn lower_flags(flags: i32) -> OFlags {
    let kept = libc::O_ACCMODE | libc::O_SYNC | libc::O_DSYNC | libc::O_DIRECT | libc::O_NONBLOCK;
    OFlags::from_bits_retain((flags & kept) as u32)
}

impl Tree {
    pub fn new(
        nodes: Nodes,
        cache: Option<FileCache>,
        counters: Arc<Counters>,
        observer: Option<Arc<dyn Observer>>,
        passthrough: Passthrough,
    ) -> Tree {
        Tree {
            nodes,
            cache,
            left_out: None,
            counters,
            passthrough,
            queries: Queries::default(),
            observer,
            handles: RwLock::default(),
            directories: RwLock::default(),
            next_handle: AtomicU64::new(1),
        }
    }

    fn number_handle(&self) -> u64 {
        // Relaxed: only different numbers are asked for.
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    pub fn handle(&self, handle: FileHandle) -> io::Result<Arc<Handle>> {
        let found = self.handles.read().get(&handle.0).cloned();
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    pub fn add_handle(&self, handle: Handle) -> FileHandle {
        let number = self.number_handle();
        self.handles.write().insert(number, Arc::new(handle));
        FileHandle(number)
    }

    pub fn remove_handle(&self, handle: FileHandle) {
        let removed = self.handles.write().remove(&handle.0);
        // Closing may take long, so the lock is free.
        drop(removed);
    }

    pub fn open(&self, caller: Caller, number: INodeNo, flags: OpenFlags) -> io::Result<FileHandle> {
        let node = self.nodes.get(number)?;
        let flags = lower_flags(flags.0);
        let fd = node.open(flags)?;
        Ok(self.add_handle(Handle::new(node, fd, flags, caller.uid)))
    }

    /// What the kernel knows the file of a new handle by, if it reads and writes it by itself.
    pub fn pass(
        &self,
        handle: FileHandle,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> io::Result<Option<Arc<BackingId>>> {
        let opened = self.handle(handle)?;
        let passed = self.passthrough.enter(&opened, self.cache.as_ref(), |handle| register(&handle.file));
        match &passed {
            Ok(passed) => count(&self.counters.opens_passed, u64::from(passed.is_some())),
            Err(_) => self.remove_handle(handle),
        }
        passed
    }

    /// Whether programs of others have the file open for writes that could leave set-id bits.
    pub fn has_writers_of_others(&self, node: &Node) -> io::Result<bool> {
        let stat = node.stat()?;
        let handles = self.handles.read();
        Ok(handles.values().any(|handle| handle.node.number == node.number && handle.could_leave_ids(&stat)))
    }

    /// A handle of a file that was opened below when it was created.
    pub fn add_created(
        &self,
        caller: Caller,
        node: Arc<Node>,
        fd: std::os::fd::OwnedFd,
        flags: i32,
    ) -> FileHandle {
        self.add_handle(Handle::new(node, fd, lower_flags(flags), caller.uid))
    }

    pub fn creation_flags(flags: i32) -> OFlags {
        lower_flags(flags) | OFlags::NOFOLLOW | OFlags::CLOEXEC
    }

    pub fn open_directory(&self, number: INodeNo) -> io::Result<FileHandle> {
        let node = self.nodes.get(number)?;
        let fd = node.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let number = self.number_handle();
        self.directories.write().insert(number, Arc::new(File::from(fd)));
        Ok(FileHandle(number))
    }

    pub fn directory(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        let found = self.directories.read().get(&handle.0).cloned();
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    pub fn close_directory(&self, handle: FileHandle) {
        let removed = self.directories.write().remove(&handle.0);
        drop(removed);
    }

    pub fn read(&self, handle: FileHandle, offset: u64, size: usize) -> io::Result<Bytes> {
        let handle = self.handle(handle)?;
        let node = Arc::clone(&handle.node);
        let begun = Instant::now();
        let read = match &self.cache {
            Some(cache) => cache.read(&node.state, &(handle as Arc<dyn Lower>), offset, size),
            None => read_lower(&*handle, offset, size),
        };
        let bytes = read?;
        let count = bytes.as_slice().len() as u64;
        self.counters.read(count, bytes.is_cached, begun.elapsed());
        self.observe(&node, offset, count, false);
        Ok(bytes)
    }

    /// Writes once; returns the bytes written, perhaps fewer.
    pub fn write(&self, handle: FileHandle, bytes: &[u8], to: Target) -> io::Result<usize> {
        let handle = self.handle(handle)?;
        if to.strips_ids {
            self.strip_ids(&handle.node)?;
        }
        let written = match &self.cache {
            // Only whole blocks of the file are cached, and appended bytes are in none of them.
            _ if to.appends => self.around(&handle.node, || handle.append(bytes)),
            Some(cache) => {
                let state = Arc::clone(&handle.node.state);
                let lower: Arc<dyn Lower> = Arc::clone(&handle) as _;
                cache.write(&state, &lower, to.offset, bytes)
            }
            None => handle.write_at(to.offset, bytes),
        };
        if handle.is_synced() && written.as_ref().is_err_and(may_lose) {
            self.distrust(&handle.node);
        }
        let written = written?;
        if to.syncs && !handle.is_synced() {
            handle.file.sync_all().inspect_err(|_| self.distrust(&handle.node))?;
        }
        count(&self.counters.writes, 1);
        count(&self.counters.write_bytes, written as u64);
        self.observe(&handle.node, to.offset, written as u64, true);
        Ok(written)
    }

    fn observe(&self, node: &Node, offset: u64, bytes: u64, is_write: bool) {
        if let Some(observer) = &self.observer {
            observe(&**observer, &node.state.path(), offset, bytes, is_write);
        }
    }

    /// Blocks of a file whose sync failed are not believed any more: the kernel may show bytes that
    /// the disk does not have.
    fn distrust(&self, node: &Node) {
        let left_out = self.left_out.as_ref().map(|left_out| &left_out.cache);
        if let Some(cache) = self.cache.as_ref().or(left_out).filter(|_| node.is_regular()) {
            cache.distrust(&node.state);
        }
    }

    /// Reports what closing the file would report.
    pub fn flush(&self, handle: FileHandle) -> io::Result<()> {
        let handle = self.handle(handle)?;
        flush(&handle.file).inspect_err(|_| self.distrust(&handle.node))
    }

    /// Syncs the lower file by the program's own descriptor, so that it gets its own errors.
    pub fn sync(&self, handle: FileHandle, data_only: bool) -> io::Result<()> {
        let handle = self.handle(handle)?;
        count(&self.counters.syncs, 1);
        let synced = if data_only { handle.file.sync_data() } else { handle.file.sync_all() };
        synced.inspect_err(|_| self.distrust(&handle.node))
    }

    /// Does `act`, which changes a file's times but not its content.
    pub fn around<T>(&self, node: &Node, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match &self.cache {
            Some(cache) if node.is_regular() => cache.around(&node.state, node, act),
            _ => act(),
        }
    }

    /// Does `act`, which changes the bytes of `range`.
    pub fn change<T>(
        &self,
        node: &Node,
        range: (u64, u64),
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match &self.cache {
            Some(cache) if node.is_regular() => cache.change(&node.state, node, range, act),
            _ => act(),
        }
    }

    /// Removes the set-user-id and set-group-id bits, as a write of another user does.
    pub fn strip_ids(&self, node: &Node) -> io::Result<()> {
        let mode = node.stat()?.st_mode;
        match set_id_bits(mode) {
            0 => Ok(()),
            bits => self.around(node, || self.set_mode(node, mode & !bits)),
        }
    }

    pub fn set_len(&self, node: &Node, handle: Option<FileHandle>, bytes: u64) -> io::Result<()> {
        let truncate = || match handle.map(|handle| self.handle(handle)) {
            Some(Ok(handle)) => handle.file.set_len(bytes),
            _ => File::from(node.open(OFlags::WRONLY | OFlags::NONBLOCK)?).set_len(bytes),
        };
        let before = node.stat()?.st_size as u64;
        if bytes >= before {
            // Blocks of a growing file stay as they are; the last, incomplete one is not cached.
            return self.around(node, truncate);
        }
        self.change(node, (bytes, u64::MAX), truncate)
    }

    pub fn allocate(&self, handle: FileHandle, offset: u64, bytes: u64, mode: i32) -> io::Result<()> {
        let handle = self.handle(handle)?;
        self.strip_ids(&handle.node)?;
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let allocate = || Ok(rustix::fs::fallocate(&handle.file, mode, offset, bytes)?);
        let shifts = FallocateFlags::COLLAPSE_RANGE | FallocateFlags::INSERT_RANGE;
        if (mode - FallocateFlags::KEEP_SIZE).is_empty() {
            return self.around(&handle.node, allocate);
        }
        let end = if mode.intersects(shifts) { u64::MAX } else { offset.saturating_add(bytes) };
        self.change(&handle.node, (offset, end), allocate)
    }

    pub fn copy_range(&self, from: (FileHandle, u64), to: (FileHandle, u64), bytes: u64) -> io::Result<u32> {
        let (source, target) = (self.handle(from.0)?, self.handle(to.0)?);
        self.strip_ids(&target.node)?;
        let bytes = bytes.min(COPY_BYTES_MAX);
        let copy = || {
            let (mut from, mut to) = (from.1, to.1);
            let length = bytes as usize;
            Ok(rustix::fs::copy_file_range(
                &source.file,
                Some(&mut from),
                &target.file,
                Some(&mut to),
                length,
            )?)
        };
        let range = (to.1, to.1.saturating_add(bytes));
        self.change(&target.node, range, copy).map(|copied| copied as u32)
    }

    pub fn seek(&self, handle: FileHandle, offset: i64, whence: i32) -> io::Result<i64> {
        let handle = self.handle(handle)?;
        let position = u64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::ENXIO))?;
        let to = match whence {
            libc::SEEK_DATA => SeekFrom::Data(position),
            libc::SEEK_HOLE => SeekFrom::Hole(position),
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        // All transfers have their own offsets, so nobody uses the one that moves here.
        Ok(rustix::fs::seek(&handle.file, to)? as i64)
    }

    /// The kernel forgets a file.
    pub fn forget(&self, number: INodeNo, times: u64) {
        self.nodes.forget(number, times, |node| self.put_away(node));
    }

    fn put_away(&self, node: &Node) {
        if let Some(cache) = self.cache.as_ref().filter(|_| node.is_regular()) {
            let is_deleted = node.stat().is_ok_and(|stat| stat.st_nlink == 0);
            cache.forget(&node.state, is_deleted);
        }
    }

    /// Puts everything away at the end of the mount.
    pub fn close(&self) {
        self.handles.write().clear();
        self.directories.write().clear();
        for node in self.nodes.forget_all() {
            self.put_away(&node);
        }
    }
}
