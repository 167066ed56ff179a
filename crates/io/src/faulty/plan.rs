//! Planned faults of a simulated disk.

/// The kinds of calls to a disk.
///
/// ```
/// use terrace_io::{CallKind, Directory, OpenMode, SimulatedDisk};
///
/// let disk = SimulatedDisk::new(1);
/// disk.open("pages", OpenMode::CreateNew)?.sync()?;
/// assert_eq!((disk.calls_of(CallKind::Open), disk.calls_of(CallKind::Any)), (1, 2));
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// A read; each of a batch counts.
    Read,
    /// A write; each of a batch counts.
    Write,
    /// A durable write.
    WriteThrough,
    /// A sync of a file.
    Sync,
    /// A change of a file's length.
    SetLen,
    /// Opening or creating a file.
    Open,
    /// Checking whether a file exists.
    Exists,
    /// Removing a file.
    Remove,
    /// Renaming a file.
    Rename,
    /// A sync of the directory.
    SyncDirectory,
    /// Taking a lock.
    Lock,
    /// A write-back of lines of persistent memory.
    WriteBack,
    /// A fence behind write-backs.
    Fence,
    /// All kinds. As the kind of a fault, all but the two of memory, which never fail on a machine.
    Any,
}

impl CallKind {
    /// Every kind of call, without [`CallKind::Any`].
    pub const ALL: [CallKind; 13] = [
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
        CallKind::WriteBack,
        CallKind::Fence,
    ];

    pub(super) fn covers(self, call: CallKind) -> bool {
        let of_memory = matches!(call, CallKind::WriteBack | CallKind::Fence);
        self == call || self == CallKind::Any && !of_memory
    }
}

/// A planned fault: which calls fail, how, and for how long.
///
/// ```
/// use terrace_io::{BlockDevice, CallKind, Directory, FaultPlan, OpenMode, SimulatedDisk};
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
    /// The calls that count and fail.
    pub kind: CallKind,
    /// Which of them fails, counting from 1 at the call of [`super::SimulatedDisk::fail`].
    pub nth: u64,
    /// Whether all later ones fail too.
    pub from_then_on: bool,
    /// The system error number, such as `libc::EIO`. Devices repeat interrupted calls, so callers
    /// see `EINTR` only if it never ends.
    pub error: i32,
    /// Whether a failing transfer first moves part of its bytes.
    pub short: bool,
}

impl FaultPlan {
    /// Fails only the `nth` call of `kind` from now.
    pub fn once(kind: CallKind, nth: u64, error: i32) -> Self {
        Self { kind, nth, from_then_on: false, error, short: false }
    }

    /// Fails the `nth` call of `kind` from now and all later ones.
    pub fn from_then_on(kind: CallKind, nth: u64, error: i32) -> Self {
        Self { from_then_on: true, ..Self::once(kind, nth, error) }
    }

    /// Lets failing calls do part of the transfer first.
    pub fn short(self) -> Self {
        Self { short: true, ..self }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ActivePlan {
    pub(super) plan: FaultPlan,
    seen: u64,
}

impl ActivePlan {
    pub(super) fn new(plan: FaultPlan) -> Self {
        Self { plan, seen: 0 }
    }

    pub(super) fn strikes(&mut self, call: CallKind) -> bool {
        if !self.plan.kind.covers(call) {
            return false;
        }
        self.seen += 1;
        self.seen == self.plan.nth || (self.plan.from_then_on && self.seen > self.plan.nth)
    }
}
