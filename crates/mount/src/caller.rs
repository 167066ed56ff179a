//! New files belong to the program's user, and count for that user's quota.

use std::io;

use rustix::thread::{CapabilitySets, capabilities, set_capabilities};

/// The user and group of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub uid: u32,
    pub gid: u32,
}

/// While it lives, this thread makes files in the name of another user.
///
/// The thread keeps its capabilities, because the kernel has checked permissions already.
struct Disguise {
    uid: u32,
    gid: u32,
    capabilities: CapabilitySets,
}

/// Sets the user and group for files of this thread, not of the process.
#[allow(unsafe_code)]
fn set_ids(uid: u32, gid: u32) -> io::Result<()> {
    // An invalid id changes nothing, and so asks for the present one.
    const ASK: u32 = u32::MAX;
    // SAFETY: the calls take numbers and change this thread's credentials only.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        (libc::setfsuid(ASK), libc::setfsgid(ASK))
    };
    match now == (uid as i32, gid as i32) {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}

impl Drop for Disguise {
    fn drop(&mut self) {
        // Gives the capabilities back too, but only to root.
        let ended = set_ids(self.uid, self.gid).and_then(|()| Ok(set_capabilities(None, self.capabilities)?));
        if ended.is_err() {
            // The thread would serve other users with the wrong rights.
            std::process::abort();
        }
    }
}

impl Caller {
    /// Makes a file or directory, which belongs to this user.
    ///
    /// # Errors
    /// `EPERM` if this process may not make files of others, and those of `make`.
    pub fn make<T>(self, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let is_root = uid == 0;
        if self.uid == uid && (self.gid == gid || !is_root) {
            return make();
        }
        let capabilities = capabilities(None)?;
        let _disguise = Disguise { uid, gid, capabilities };
        set_ids(self.uid, self.gid)?;
        set_capabilities(None, capabilities)?;
        make()
    }
}
