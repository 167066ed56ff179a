//! Which calls of a simulated disk go wrong.

/// What a call asks of the disk.
///
/// ```
/// use terrace_block::{CallKind, Directory, OpenMode, SimulatedDisk};
///
/// let disk = SimulatedDisk::new(1);
/// disk.open("pages", OpenMode::CreateNew)?.sync()?;
/// assert_eq!((disk.calls_of(CallKind::Open), disk.calls_of(CallKind::Any)), (1, 2));
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// A read, each one of a batch.
    Read,
    /// A write, each one of a batch.
    Write,
    /// A durable write.
    WriteThrough,
    /// A sync of a file.
    Sync,
    /// A change of a file's length.
    SetLen,
    /// Opening or creating a file.
    Open,
    /// Asking whether a file exists.
    Exists,
    /// Removing a file.
    Remove,
    /// Renaming a file.
    Rename,
    /// A sync of the directory.
    SyncDirectory,
    /// Taking a lock.
    Lock,
    /// All of them.
    Any,
}

impl CallKind {
    /// Every kind of call, without [`CallKind::Any`].
    pub const ALL: [CallKind; 11] = [
        CallKind::Read,
        CallKind::Write,
        CallKind::WriteThrough,
        CallKind::Sync,
        CallKind::SetLen,
        CallKind::Open,
        CallKind::Exists,
        CallKind::Remove,
        CallKind::Rename,
        CallKind::SyncDirectory,
        CallKind::Lock,
    ];

    /// Whether a call of kind `call` is meant by this.
    pub(super) fn covers(self, call: CallKind) -> bool {
        self == CallKind::Any || self == call
    }
}

/// A fault to come: which call fails, with what, and for how long.
///
/// ```
/// use terrace_block::{BlockDevice, CallKind, Directory, FaultPlan, OpenMode, SimulatedDisk};
///
/// let disk = SimulatedDisk::new(1);
/// let device = disk.open("pages", OpenMode::CreateNew)?;
/// disk.fail(FaultPlan::once(CallKind::Sync, 2, libc::EIO));
/// assert!(device.sync().is_ok());
/// assert_eq!(device.sync().unwrap_err().raw_os_error(), Some(libc::EIO));
/// assert!(device.sync().is_ok());
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// Which calls are counted, and fail.
    pub kind: CallKind,
    /// The how-manieth of them fails, counting from 1 at the call of [`super::SimulatedDisk::fail`].
    pub nth: u64,
    /// Whether all later ones fail too.
    pub from_then_on: bool,
    /// The error number of the system, such as `libc::EIO`. `EINTR` is not seen by callers unless it never ends, since
    /// devices repeat interrupted calls.
    pub error: i32,
    /// Whether a failing write first moves part of its bytes, and a failing read fills part of its buffer.
    pub short: bool,
}

impl FaultPlan {
    /// Fails the `nth` call of `kind` from now, and no other.
    pub fn once(kind: CallKind, nth: u64, error: i32) -> Self {
        Self { kind, nth, from_then_on: false, error, short: false }
    }

    /// Fails the `nth` call of `kind` from now and all that follow.
    pub fn from_then_on(kind: CallKind, nth: u64, error: i32) -> Self {
        Self { from_then_on: true, ..Self::once(kind, nth, error) }
    }

    /// The same, with part of the transfer done before it fails.
    pub fn short(self) -> Self {
        Self { short: true, ..self }
    }
}

/// A plan and how many of its calls it has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActivePlan {
    pub(super) plan: FaultPlan,
    seen: u64,
}

impl ActivePlan {
    pub(super) fn new(plan: FaultPlan) -> Self {
        Self { plan, seen: 0 }
    }

    /// Counts a call and tells whether it fails.
    pub(super) fn strikes(&mut self, call: CallKind) -> bool {
        if !self.plan.kind.covers(call) {
            return false;
        }
        self.seen += 1;
        self.seen == self.plan.nth || (self.plan.from_then_on && self.seen > self.plan.nth)
    }
}
