//! The files and directories that the kernel knows, and the open files of programs.
//!
//! A node keeps its file by an `O_PATH` descriptor, so names may change underneath. Its number is
//! the file's inode, which therefore no other file gets meanwhile.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{BackingId, FileAttr, FileType, INodeNo};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, StatxFlags};
use rustix::io::ReadWriteFlags;
use terrace_io::AlignedBuffer;

use crate::file_state::FileState;
use crate::links::Links;
use crate::lower::{ALIGNMENT, Lower};
use crate::opens::{Opens, Way};
use crate::stamp::{FileId, Stamp};

/// The kernel's number of the root.
pub(crate) const ROOT: u64 = 1;
/// The kernel's number of a file whose inode is that of [`ROOT`].
const SECOND_ROOT: u64 = u64::MAX - 1;

/// A file or directory that the kernel knows.
#[derive(Debug)]
pub(crate) struct Node {
    pub fd: OwnedFd,
    pub number: u64,
    pub state: Arc<FileState>,
    pub opens: Opens<BackingId>,
    is_regular: bool,
}

/// Seconds and nanoseconds, if the file system knows.
fn birth_time(fd: &OwnedFd) -> io::Result<Option<[i64; 2]>> {
    let statx = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
    let is_known = statx.stx_mask & StatxFlags::BTIME.bits() != 0;
    Ok(is_known.then(|| [statx.stx_btime.tv_sec, i64::from(statx.stx_btime.tv_nsec)]))
}

impl Node {
    fn of(fd: OwnedFd, number: u64, stat: &Stat, links: Arc<Links>) -> io::Result<Node> {
        let is_regular = kind_of(stat.st_mode) == FileType::RegularFile;
        let mut id = FileId { device: stat.st_dev, inode: stat.st_ino, born: [0; 2] };
        if is_regular && let Some(born) = birth_time(&fd)? {
            id.born = born;
        }
        Ok(Node { fd, number, state: FileState::new(id, links), opens: Opens::default(), is_regular })
    }

    pub fn has_birth_time(&self) -> io::Result<bool> {
        Ok(birth_time(&self.fd)?.is_some())
    }

    pub fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.fd)?)
    }

    pub fn attributes(&self) -> io::Result<FileAttr> {
        Ok(attributes(&self.stat()?, self.number))
    }

    pub fn is_regular(&self) -> bool {
        self.is_regular
    }

    /// A path to the file itself, for calls that take no `O_PATH` descriptor.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// How many names it has, if this one is its.
    pub fn names_with(&self, parent: &Node, name: &OsStr) -> Option<usize> {
        let stat = rustix::fs::statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_it = (stat.st_dev, stat.st_ino) == (self.state.id.device, self.state.id.inode);
        // A directory has one, but counts those below.
        is_it.then_some(if self.is_regular { stat.st_nlink as usize } else { 1 })
    }

    pub fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(CWD, self.path(), flags | OFlags::CLOEXEC, Mode::empty())?)
    }
}

/// The bits of a mode that a write of another user removes.
pub(crate) fn set_id_bits(mode: u32) -> u32 {
    let group = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    mode & (libc::S_ISUID | group)
}

/// For the stamp only.
impl Lower for Node {
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(Stamp::of(&self.stat()?))
    }

    fn read_at(&self, _offset: u64, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A file that a program has open: its own open file below, so that it gets its own errors.
#[derive(Debug)]
pub(crate) struct Handle {
    pub node: Arc<Node>,
    pub file: File,
    /// The user that opened it.
    user: u32,
    writes: bool,
    is_direct: bool,
    is_synced: bool,
    /// Whether the kernel or the mount reads and writes it, as soon as that is decided.
    way: OnceLock<Way<BackingId>>,
}

impl Handle {
    pub fn new(node: Arc<Node>, fd: OwnedFd, flags: OFlags, user: u32) -> Handle {
        let is_synced = flags.intersects(OFlags::SYNC | OFlags::DSYNC);
        let is_direct = flags.contains(OFlags::DIRECT);
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        Handle { node, file: File::from(fd), user, writes, is_direct, is_synced, way: OnceLock::new() }
    }

    /// Whether writes by the kernel could leave set-id bits that they should remove: it writes with
    /// the rights of the mount, and the owner may keep the bits.
    pub fn could_leave_ids(&self, stat: &Stat) -> bool {
        self.writes && self.user != 0 && self.user != stat.st_uid
    }

    /// # Errors
    /// `ETXTBSY` if another user wants to write to a program with set-id bits that is passed.
    pub fn may_join(&self) -> io::Result<()> {
        let stat = self.node.stat()?;
        match set_id_bits(stat.st_mode) != 0 && self.could_leave_ids(&stat) {
            true => Err(io::Error::from_raw_os_error(libc::ETXTBSY)),
            false => Ok(()),
        }
    }

    /// Notes the way, and returns what the kernel knows the file by, if it passes it.
    pub fn go(&self, way: Way<BackingId>) -> Option<Arc<BackingId>> {
        self.way.get_or_init(|| way).passed()
    }

    /// Whether each write is a sync, too.
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Reads a direct file at any alignment.
    fn read_direct(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let before = (offset % ALIGNMENT as u64) as usize;
        let mut wide = AlignedBuffer::zeroed((before + buffer.len()).next_multiple_of(ALIGNMENT));
        let read = read_full(&self.file, offset - before as u64, &mut wide)?;
        let count = read.saturating_sub(before).min(buffer.len());
        buffer[..count].copy_from_slice(&wide[before..before + count]);
        Ok(count)
    }
}

impl Lower for Handle {
    fn stamp(&self) -> io::Result<Stamp> {
        self.node.stamp()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let is_aligned =
            (offset | buffer.len() as u64 | buffer.as_ptr().addr() as u64).is_multiple_of(ALIGNMENT as u64);
        if self.is_direct && !is_aligned {
            return self.read_direct(offset, buffer);
        }
        read_full(&self.file, offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        if self.is_direct && !bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            // The program aligned its own memory; the kernel judges offset and length.
            let mut aligned = AlignedBuffer::zeroed(bytes.len().next_multiple_of(ALIGNMENT));
            aligned[..bytes.len()].copy_from_slice(bytes);
            return retry(|| self.file.write_at(&aligned[..bytes.len()], offset));
        }
        retry(|| self.file.write_at(bytes, offset))
    }
}

impl Handle {
    /// Writes at the end of the file, wherever that is by now.
    pub fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut copy = AlignedBuffer::zeroed(bytes.len().next_multiple_of(ALIGNMENT));
        copy[..bytes.len()].copy_from_slice(bytes);
        let parts = [io::IoSlice::new(&copy[..bytes.len()])];
        retry(|| Ok(rustix::io::pwritev2(&self.file, &parts, 0, ReadWriteFlags::APPEND)?))
    }
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Least alignment of direct reads.
const SECTOR: usize = 512;

fn read_full(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match retry(|| file.read_at(&mut buffer[done..], offset + done as u64)) {
            Ok(0) => break,
            Ok(count) => {
                done += count;
                // The end of a file for direct reads, which begin at multiples.
                if !done.is_multiple_of(SECTOR) && done < buffer.len() {
                    break;
                }
            }
            // Fewer bytes would mean the end of the file.
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[derive(Debug)]
struct Entry {
    node: Arc<Node>,
    lookups: u64,
}

#[derive(Debug, Default)]
struct Table {
    by_number: HashMap<u64, Entry>,
    /// Of device and inode.
    numbers: HashMap<(u64, u64), u64>,
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    root: Arc<Node>,
    device: u64,
    table: Mutex<Table>,
}

impl Nodes {
    pub fn new(root: OwnedFd) -> io::Result<Nodes> {
        let stat = rustix::fs::fstat(&root)?;
        let root = Arc::new(Node::of(root, ROOT, &stat, Arc::default())?);
        let mut table = Table::default();
        table.numbers.insert((stat.st_dev, stat.st_ino), ROOT);
        table.by_number.insert(ROOT, Entry { node: Arc::clone(&root), lookups: 1 });
        Ok(Nodes { root, device: stat.st_dev, table: Mutex::new(table) })
    }

    pub fn root(&self) -> &Arc<Node> {
        &self.root
    }

    pub fn get(&self, number: INodeNo) -> io::Result<Arc<Node>> {
        let table = self.table.lock();
        let entry = table.by_number.get(&number.0);
        entry.map(|entry| Arc::clone(&entry.node)).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// The node of a name, which the kernel then knows once more.
    ///
    /// # Errors
    /// `EXDEV` if another file system is mounted there.
    pub fn look_up(&self, parent: &Node, name: &OsStr) -> io::Result<(Arc<Node>, Stat)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&parent.fd, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if stat.st_dev != self.device {
            // It has other inodes, perhaps other clocks, and forbids other things.
            return Err(io::Error::from_raw_os_error(libc::EXDEV));
        }
        let mut table = self.table.lock();
        let key = (stat.st_dev, stat.st_ino);
        if let Some(number) = table.numbers.get(&key).copied()
            && let Some(entry) = table.by_number.get_mut(&number)
        {
            entry.lookups += 1;
            return Ok((Arc::clone(&entry.node), stat));
        }
        let number = if stat.st_ino == ROOT { SECOND_ROOT } else { stat.st_ino };
        let node = Arc::new(Node::of(fd, number, &stat, Links::new(&parent.state.links, name))?);
        table.numbers.insert(key, number);
        table.by_number.insert(number, Entry { node: Arc::clone(&node), lookups: 1 });
        Ok((node, stat))
    }

    /// The node of a name if the kernel knows it.
    pub fn find(&self, parent: &Node, name: &OsStr) -> Option<Arc<Node>> {
        let stat = rustix::fs::statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let table = self.table.lock();
        let number = table.numbers.get(&(stat.st_dev, stat.st_ino))?;
        table.by_number.get(number).map(|entry| Arc::clone(&entry.node))
    }

    /// The kernel forgets a node `times` times; `put_away` is called if it is gone.
    ///
    /// Until `put_away` is done, nobody can look the file up again and begin another state of it.
    pub fn forget(&self, number: INodeNo, times: u64, put_away: impl FnOnce(&Node)) {
        let mut table = self.table.lock();
        let Some(entry) = table.by_number.get_mut(&number.0).filter(|_| number.0 != ROOT) else { return };
        entry.lookups = entry.lookups.saturating_sub(times);
        if entry.lookups == 0
            && let Some(Entry { node, .. }) = table.by_number.remove(&number.0)
        {
            table.numbers.remove(&(node.state.id.device, node.state.id.inode));
            put_away(&node);
        }
    }

    /// Forgets all nodes and returns them.
    pub fn forget_all(&self) -> Vec<Arc<Node>> {
        let mut table = self.table.lock();
        table.numbers.clear();
        table.by_number.drain().map(|(_, entry)| entry.node).collect()
    }
}

pub(crate) fn kind_of(mode: u32) -> FileType {
    kind(rustix::fs::FileType::from_raw_mode(mode))
}

pub(crate) fn kind(kind: rustix::fs::FileType) -> FileType {
    match kind {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::Symlink => FileType::Symlink,
        rustix::fs::FileType::Fifo => FileType::NamedPipe,
        rustix::fs::FileType::Socket => FileType::Socket,
        rustix::fs::FileType::CharacterDevice => FileType::CharDevice,
        rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn time_of(seconds: i64, nanoseconds: u64) -> SystemTime {
    let nanoseconds = Duration::from_nanos(nanoseconds);
    match u64::try_from(seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanoseconds,
        Err(_) => UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()) + nanoseconds,
    }
}

/// The kernel's encoding of device numbers in FUSE.
fn device_of(number: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

pub(crate) fn attributes(stat: &Stat, number: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time_of(stat.st_atime, stat.st_atime_nsec),
        mtime: time_of(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time_of(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: kind_of(stat.st_mode),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: device_of(stat.st_rdev),
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

/// Reports what closing the file would report, such as a late error of a file server.
#[allow(unsafe_code)]
pub(crate) fn flush(file: impl AsFd) -> io::Result<()> {
    let copy = file.as_fd().try_clone_to_owned()?;
    // SAFETY: the copy is ours and gives up its descriptor, so nobody else closes or uses it.
    match unsafe { libc::close(copy.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
