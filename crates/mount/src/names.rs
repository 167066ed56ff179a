//! Requests on names and attributes.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fuser::{FileAttr, FileHandle, INodeNo, RenameFlags, TimeOrNow};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags};
use rustix::process::{Gid, Uid};

use crate::caller::Caller;
use crate::node::{Node, attributes, kind_of, set_id_bits};
use crate::tree::Tree;

/// Changed attributes; `None` stays.
#[derive(Debug)]
pub(crate) struct NewAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub bytes: Option<u64>,
    pub accessed: Option<TimeOrNow>,
    pub modified: Option<TimeOrNow>,
}

const TRUSTED: &[u8] = b"trusted.";
const DEFAULT_ACL: &str = "system.posix_acl_default";
/// Longest value of an attribute that Linux allows.
const XATTR_BYTES_MAX: usize = 64 << 10;

fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => {
                Timespec { tv_sec: since.as_secs() as i64, tv_nsec: i64::from(since.subsec_nanos()) as _ }
            }
            Err(before) => {
                let before = before.duration();
                let nanoseconds = i64::from(before.subsec_nanos());
                let borrow = i64::from(nanoseconds > 0);
                let tv_nsec = (borrow * 1_000_000_000 - nanoseconds) as _;
                Timespec { tv_sec: -(before.as_secs() as i64) - borrow, tv_nsec }
            }
        },
    }
}

impl Tree {
    pub fn look_up(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let parent = self.nodes.get(parent)?;
        let (node, stat) = self.nodes.look_up(&parent, name)?;
        if node.state.links.found(&parent.state.links, name, || node.names_with(&parent, name)) {
            self.note_name(&node);
        }
        Ok(attributes(&stat, node.number))
    }

    /// The mode of a new file; an access list of the directory replaces the umask.
    fn masked(parent: &Node, mode: u32, umask: u32) -> Mode {
        let has_list = rustix::fs::getxattr_query(parent.path(), DEFAULT_ACL).is_ok_and(|bytes| bytes > 0);
        Mode::from_raw_mode(if has_list { mode } else { mode & !umask } & 0o7777)
    }

    pub fn make_node(
        &self,
        caller: Caller,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask, device): (u32, u32, u32),
    ) -> io::Result<FileAttr> {
        let parent = self.nodes.get(parent)?;
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let device =
            rustix::fs::makedev((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00));
        let mode = Self::masked(&parent, mode, umask);
        caller.make(|| Ok(rustix::fs::mknodat(&parent.fd, name, kind, mode, device)?))?;
        self.look_up(INodeNo(parent.number), name)
    }

    pub fn make_directory(
        &self,
        caller: Caller,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask): (u32, u32),
    ) -> io::Result<FileAttr> {
        let parent = self.nodes.get(parent)?;
        let mode = Self::masked(&parent, mode, umask);
        caller.make(|| Ok(rustix::fs::mkdirat(&parent.fd, name, mode)?))?;
        self.look_up(INodeNo(parent.number), name)
    }

    pub fn make_symlink(
        &self,
        caller: Caller,
        parent: INodeNo,
        name: &OsStr,
        target: &std::path::Path,
    ) -> io::Result<FileAttr> {
        let parent = self.nodes.get(parent)?;
        caller.make(|| Ok(rustix::fs::symlinkat(target, &parent.fd, name)?))?;
        self.look_up(INodeNo(parent.number), name)
    }

    pub fn create(
        &self,
        caller: Caller,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask, flags): (u32, u32, i32),
    ) -> io::Result<(FileAttr, FileHandle)> {
        let parent = self.nodes.get(parent)?;
        let lower = Self::creation_flags(flags);
        let mode = Self::masked(&parent, mode, umask);
        let flags_new = lower | OFlags::CREATE | OFlags::EXCL;
        let made = caller.make(|| Ok(rustix::fs::openat(&parent.fd, name, flags_new, mode)?));
        let is_there = made.as_ref().is_err_and(|made| made.raw_os_error() == Some(libc::EEXIST));
        if is_there && flags & libc::O_EXCL == 0 {
            // Somebody made it past the mount. The kernel looks again, and checks permissions then.
            return Err(error(libc::ESTALE));
        }
        let fd: OwnedFd = made?;
        let (node, stat) = self.nodes.look_up(&parent, name)?;
        let opened = rustix::fs::fstat(&fd)?;
        if (opened.st_dev, opened.st_ino) != (stat.st_dev, stat.st_ino) {
            // Another file took the name meanwhile, past the mount.
            self.forget(INodeNo(node.number), 1);
            return Err(error(libc::ESTALE));
        }
        if let Some(cache) = &self.cache {
            cache.created(&node.state, &*node);
        }
        let attributes = node.attributes()?;
        Ok((attributes, self.add_created(caller, node, fd, flags)))
    }

    pub fn unlink(&self, parent: INodeNo, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        let parent = self.nodes.get(parent)?;
        let remove = || Ok(rustix::fs::unlinkat(&parent.fd, name, flags)?);
        let Some(node) = self.nodes.find(&parent, name) else { return remove() };
        self.around(&node, remove)?;
        if node.state.links.removed(&parent.state.links, name) {
            self.note_name(&node);
        }
        Ok(())
    }

    pub fn rename(
        &self,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> io::Result<()> {
        let (from, to) = (self.nodes.get(parent)?, self.nodes.get(new_parent)?);
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let rename = || match flags.is_empty() {
            true => Ok(rustix::fs::renameat(&from.fd, name, &to.fd, new_name)?),
            false => Ok(rustix::fs::renameat_with(&from.fd, name, &to.fd, new_name, flags)?),
        };
        let replaced = self.nodes.find(&to, new_name);
        let rename = || match &replaced {
            Some(replaced) => self.around(replaced, rename),
            None => rename(),
        };
        let moved = self.nodes.find(&from, name);
        match &moved {
            Some(moved) => self.around(moved, rename)?,
            None => rename()?,
        }
        let (old, new) = ((&from.state.links, name), (&to.state.links, new_name));
        let is_exchange = flags.contains(rustix::fs::RenameFlags::EXCHANGE);
        if let Some(replaced) = &replaced {
            let links = &replaced.state.links;
            if is_exchange {
                links.renamed(Some(new), old);
            }
            if is_exchange || links.removed(new.0, new.1) {
                self.note_name(replaced);
            }
        }
        if let Some(moved) = &moved {
            moved.state.links.renamed(Some(old), new);
            self.note_name(moved);
        }
        Ok(())
    }

    /// A file of the mount has another name now.
    fn note_name(&self, node: &Node) {
        match &self.cache {
            Some(cache) if node.is_regular() => cache.renamed(&node.state),
            Some(cache) => cache.directory_renamed(),
            None => {}
        }
    }

    pub fn link(&self, number: INodeNo, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let (node, parent) = (self.nodes.get(number)?, self.nodes.get(parent)?);
        self.around(&node, || {
            Ok(rustix::fs::linkat(CWD, node.path(), &parent.fd, name, AtFlags::SYMLINK_FOLLOW)?)
        })?;
        self.look_up(INodeNo(parent.number), name)
    }

    pub fn read_link(&self, number: INodeNo) -> io::Result<Vec<u8>> {
        let node = self.nodes.get(number)?;
        Ok(rustix::fs::readlinkat(&node.fd, "", Vec::new())?.into_bytes())
    }

    pub fn set_mode(&self, node: &Node, mode: u32) -> io::Result<()> {
        let mode = mode & 0o7777;
        let change =
            || Ok(rustix::fs::chmodat(CWD, node.path(), Mode::from_raw_mode(mode), AtFlags::empty())?);
        if set_id_bits(mode) == 0 || !node.is_regular() {
            return change();
        }
        node.opens.hold(|is_passed| match is_passed && self.has_writers_of_others(node)? {
            true => Err(error(libc::ETXTBSY)),
            false => change(),
        })
    }

    pub fn set_attributes(
        &self,
        caller: Caller,
        number: INodeNo,
        handle: Option<FileHandle>,
        new: &NewAttributes,
    ) -> io::Result<FileAttr> {
        let node = self.nodes.get(number)?;
        if let Some(mode) = new.mode {
            self.around(&node, || self.set_mode(&node, mode))?;
        }
        if new.uid.is_some() || new.gid.is_some() {
            let (uid, gid) = (new.uid.map(Uid::from_raw), new.gid.map(Gid::from_raw));
            let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
            self.around(&node, || Ok(rustix::fs::chownat(&node.fd, "", uid, gid, flags)?))?;
        }
        if let Some(bytes) = new.bytes {
            if caller.uid != 0 {
                self.strip_ids(&node)?;
            }
            self.set_len(&node, handle, bytes)?;
        }
        if new.accessed.is_some() || new.modified.is_some() {
            let times =
                Timestamps { last_access: timespec(new.accessed), last_modification: timespec(new.modified) };
            let is_link = kind_of(node.stat()?.st_mode) == fuser::FileType::Symlink;
            self.around(&node, || match is_link {
                true => Ok(rustix::fs::utimensat(&node.fd, "", &times, AtFlags::EMPTY_PATH)?),
                false => Ok(rustix::fs::utimensat(CWD, node.path(), &times, AtFlags::empty())?),
            })?;
        }
        node.attributes()
    }

    /// The path for extended attributes; a symbolic link has none by its descriptor.
    fn xattr_path(&self, number: INodeNo) -> io::Result<(Arc<Node>, String)> {
        let node = self.nodes.get(number)?;
        if kind_of(node.stat()?.st_mode) == fuser::FileType::Symlink {
            return Err(error(libc::EOPNOTSUPP));
        }
        let path = node.path();
        Ok((node, path))
    }

    pub fn set_xattr(&self, number: INodeNo, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()> {
        let (node, path) = self.xattr_path(number)?;
        let flags = XattrFlags::from_bits_retain(flags as u32);
        self.around(&node, || Ok(rustix::fs::setxattr(path, name, value, flags)?))
    }

    pub fn get_xattr(&self, number: INodeNo, name: &OsStr) -> io::Result<Vec<u8>> {
        let (_node, path) = self.xattr_path(number)?;
        let mut value = vec![0; XATTR_BYTES_MAX];
        let length = rustix::fs::getxattr(path, name, &mut value[..])?;
        value.truncate(length);
        Ok(value)
    }

    /// Names, each with a zero behind it. Those that only root may see are for root.
    pub fn list_xattrs(&self, caller: Caller, number: INodeNo) -> io::Result<Vec<u8>> {
        let (_node, path) = self.xattr_path(number)?;
        let mut names = vec![0u8; XATTR_BYTES_MAX];
        let length = rustix::fs::listxattr(path, &mut names[..])?;
        names.truncate(length);
        if caller.uid == 0 {
            return Ok(names);
        }
        let shown = names.split_inclusive(|&byte| byte == 0).filter(|name| !name.starts_with(TRUSTED));
        Ok(shown.flatten().copied().collect())
    }

    pub fn remove_xattr(&self, number: INodeNo, name: &OsStr) -> io::Result<()> {
        let (node, path) = self.xattr_path(number)?;
        self.around(&node, || Ok(rustix::fs::removexattr(path, name)?))
    }
}
