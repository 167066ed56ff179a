//! The kernel's requests, passed to [`Tree`].
//!
//! Names and attributes expire at once, and files are opened for direct I/O, or passed to the lower
//! file system by the kernel. So the kernel keeps nothing that could be outdated, except pages that
//! programs map, and for a moment the attributes of passed files.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, RawDir, SeekFrom};

use crate::caller::Caller;
use crate::names::NewAttributes;
use crate::node::kind;
use crate::slow_calls::SlowCalls;
use crate::stamp::kernel_is_since;
use crate::tree::{Target, Tree};

const EXPIRES_AT_ONCE: Duration = Duration::ZERO;
/// How long attributes of passed files last, whose length PostgreSQL asks for thousands of times a
/// second. The kernel ends it sooner when programs of the mount change the file by calls.
const OF_PASSED: Duration = Duration::from_millis(10);
/// Older kernels do not see that a request for attributes began before such a change.
const LASTING_SINCE: (u32, u32) = (6, 13);
/// The kernel's limit of asynchronous requests under way; its default is 12.
const BACKGROUND_MAX: u16 = 512;
const DIRECTORY_BYTES: usize = 32 << 10;

/// A mounted [`Tree`].
pub(crate) struct Requests {
    pub tree: Arc<Tree>,
    pub slow_calls: SlowCalls,
    lasting: Duration,
}

const WANTED: [InitFlags; 9] = [
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_BIG_WRITES,
];

fn of(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

fn done(reply: ReplyEmpty, outcome: io::Result<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

fn entry(reply: ReplyEntry, outcome: io::Result<FileAttr>) {
    match outcome {
        Ok(attributes) => reply.entry(&EXPIRES_AT_ONCE, &attributes, Generation(0)),
        Err(error) => reply.error(error.into()),
    }
}

fn attribute(reply: ReplyAttr, outcome: io::Result<FileAttr>) {
    match outcome {
        Ok(attributes) => reply.attr(&EXPIRES_AT_ONCE, &attributes),
        Err(error) => reply.error(error.into()),
    }
}

fn written(reply: ReplyWrite, outcome: io::Result<u32>) {
    match outcome {
        Ok(bytes) => reply.written(bytes),
        Err(error) => reply.error(error.into()),
    }
}

/// The kernel asks for the length with size 0.
fn xattr(reply: ReplyXattr, size: u32, outcome: io::Result<Vec<u8>>) {
    match outcome {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(error.into()),
    }
}

impl Requests {
    pub fn new(tree: Arc<Tree>, slow_calls: SlowCalls) -> Requests {
        let lasting = if kernel_is_since(LASTING_SINCE) { OF_PASSED } else { EXPIRES_AT_ONCE };
        Requests { tree, slow_calls, lasting }
    }

    fn list(&self, handle: FileHandle, offset: u64, reply: &mut ReplyDirectory) -> io::Result<()> {
        let directory = self.tree.directory(handle)?;
        rustix::fs::seek(&*directory, SeekFrom::Start(offset))?;
        let mut buffer = [MaybeUninit::uninit(); DIRECTORY_BYTES];
        let mut entries = RawDir::new(&*directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = std::os::unix::ffi::OsStrExt::from_bytes(entry.file_name().to_bytes());
            let (next, kind) = (entry.next_entry_cookie(), kind(entry.file_type()));
            if reply.add::<&OsStr>(INodeNo(entry.ino()), next, kind, name) {
                break;
            }
        }
        Ok(())
    }
}

impl Filesystem for Requests {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            // An older kernel does without.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_max_write(1 << 20);
        self.tree.passthrough.agree(config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(reply, self.tree.look_up(parent, name));
    }

    fn forget(&self, _request: &Request, number: INodeNo, times: u64) {
        self.tree.forget(number, times);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.tree.nodes.get(number).and_then(|node| {
            let is_passed = node.opens.hold(|is_passed| is_passed);
            Ok((node.attributes()?, is_passed))
        });
        match found {
            Ok((attributes, true)) => reply.attr(&self.lasting, &attributes),
            Ok((attributes, false)) => reply.attr(&EXPIRES_AT_ONCE, &attributes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_flags: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let new = NewAttributes { mode, uid, gid, bytes: size, accessed, modified };
        attribute(reply, self.tree.set_attributes(of(request), number, handle, &new));
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        match self.tree.read_link(number) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error.into()),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        entry(reply, self.tree.make_node(of(request), parent, name, (mode, umask, device)));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        entry(reply, self.tree.make_directory(of(request), parent, name, (mode, umask)));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.tree.unlink(parent, name, AtFlags::empty()));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.tree.unlink(parent, name, AtFlags::REMOVEDIR));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        entry(reply, self.tree.make_symlink(of(request), parent, name, target));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        done(reply, self.tree.rename((parent, name), (new_parent, new_name), flags));
    }

    fn link(&self, _request: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(reply, self.tree.link(number, parent, name));
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.tree.open(of(request), number, flags).and_then(|handle| {
            let passed = self.tree.pass(handle, |file| reply.open_backing(file))?;
            Ok((handle, passed))
        });
        match opened {
            Ok((handle, Some(passed))) => reply.opened_passthrough(handle, FopenFlags::empty(), &passed),
            Ok((handle, None)) => reply.opened(handle, open_flags()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let created = self.tree.create(of(request), parent, name, (mode, umask, flags));
        let created = created.and_then(|(attributes, handle)| {
            let passed = self.tree.pass(handle, |file| reply.open_backing(file))?;
            Ok((attributes, handle, passed))
        });
        let (time, generation) = (&EXPIRES_AT_ONCE, Generation(0));
        match created {
            Ok((attributes, handle, Some(passed))) => {
                let flags = FopenFlags::empty();
                reply.created_passthrough(time, &attributes, generation, handle, flags, &passed);
            }
            Ok((attributes, handle, None)) => {
                reply.created(time, &attributes, generation, handle, open_flags());
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.tree.read(handle, offset, size as usize) {
            Ok(bytes) => reply.data(bytes.as_slice()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let strips_ids = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // Pages of a mapping go back to where they came from.
        let is_page = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let appends = flags.0 & libc::O_APPEND != 0 && !is_page;
        let syncs = flags.0 & libc::O_DSYNC != 0 && !is_page;
        let target = Target { offset, appends, syncs, strips_ids };
        written(reply, self.tree.write(handle, bytes, target).map(|bytes| bytes as u32));
    }

    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        done(reply, self.tree.flush(handle));
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.tree.remove_handle(handle);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let tree = Arc::clone(&self.tree);
        self.slow_calls.run(move || done(reply, tree.sync(handle, data_only)));
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.tree.open_directory(number) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.list(handle, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.tree.close_directory(handle);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let tree = Arc::clone(&self.tree);
        self.slow_calls.run(move || {
            done(reply, tree.directory(handle).and_then(|directory| directory.sync_all()));
        });
    }

    fn statfs(&self, _request: &Request, number: INodeNo, reply: ReplyStatfs) {
        let found = self.tree.nodes.get(number).and_then(|node| Ok(rustix::fs::fstatvfs(&node.fd)?));
        match found {
            Ok(stat) => reply.statfs(
                stat.f_blocks,
                stat.f_bfree,
                stat.f_bavail,
                stat.f_files,
                stat.f_ffree,
                stat.f_bsize as u32,
                stat.f_namemax as u32,
                stat.f_frsize as u32,
            ),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        done(reply, self.tree.set_xattr(number, name, value, flags));
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        xattr(reply, size, self.tree.get_xattr(number, name));
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        xattr(reply, size, self.tree.list_xattrs(of(request), number));
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.tree.remove_xattr(number, name));
    }

    fn fallocate(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        done(reply, self.tree.allocate(handle, offset, length, mode));
    }

    fn lseek(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.tree.seek(handle, offset, whence) {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(error.into()),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _number_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        _number_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        written(reply, self.tree.copy_range((handle_in, offset_in), (handle_out, offset_out), length));
    }
}
