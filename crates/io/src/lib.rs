//! Block devices, directories, memory regions and simulated hardware.
//!
//! The engine opens [`BlockDevice`]s in a [`Directory`] and keeps its frames in a [`Region`].
//! Directories: files with direct I/O and io_uring ([`FileDirectory`]), memory
//! ([`MemoryDirectory`]), and a disk with power cuts and faults ([`SimulatedDisk`]). Decorators
//! slow a device down ([`ThrottledDevice`]) or count its calls ([`CountedDevice`]).
//!
//! A directory also opens files as [`PersistentMemory`]: words that outlive the process on tmpfs,
//! and a power cut on DAX. The simulated disk has such memory too, and loses its lines.
//!
//! | folder       | contents                                                      |
//! |--------------|---------------------------------------------------------------|
//! | `device/`    | devices and their decorators; `device.rs` has the trait       |
//! | `directory/` | names, locks and the durability of names                      |
//! | `memory/`    | aligned buffers, address ranges, files as words, NUMA nodes   |
//! | `simulated/` | memory and devices that this machine lacks, by profile        |
//! | `faulty/`    | a disk with power cuts and faults, memory that loses lines    |
//! | `stats.rs`   | statistics, declared once for library, JSON and Prometheus         |
//! | `units.rs`   | sizes and durations in text                                   |
#![deny(unsafe_code)]

mod device;
mod directory;
mod faulty;
mod memory;
mod simulated;
pub mod stats;
pub mod units;

pub use device::counted::{CountedDevice, Counters, Counts};
pub use device::decorator::Decorator;
pub use device::file::FileDevice;
pub use device::memory::MemoryDevice;
pub use device::throttled::{Clock, Gate, Limits, MachineClock, ThrottledDevice, VirtualClock};
pub use device::uring::UringDevice;
pub use device::{BlockDevice, Read, Write, check_read, check_write};
pub use directory::decorated::DecoratedDirectory;
pub use directory::file::{FileDirectory, FileOptions};
pub use directory::memory::MemoryDirectory;
pub use directory::{Directory, LockError, OpenMode, Sharing};
pub use faulty::{CallKind, FaultPlan, SimulatedDisk};
pub use memory::aligned::AlignedBuffer;
pub use memory::copy::{append_words, copy_words};
pub use memory::fork::fork_count;
pub use memory::limit::{AddressLimit, address_limit};
pub use memory::numa::measure::{Speed, measure_node};
pub use memory::numa::migrate::{Migrate, Moved};
pub use memory::numa::nodes::{Node, NodeSet, Performance, check_room, is_numa_balancing, nodes};
pub use memory::numa::preferred::{PreferredNodes, node_of_thread};
pub use memory::persistent::{PersistentKind, PersistentMemory};
pub use memory::prefetch::prefetch;
pub use memory::region::Region;
pub use simulated::device::SimulatedDevice;
pub use simulated::profile::{Direction, Pattern, Profile};
pub use simulated::virtual_time::{OPERATION_NS, PAGE_NS, VirtualTime};
pub use simulated::{Charge, DramCacheCounts, SimulatedMemory, Time};

/// Compiles the example of the package's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadMe;
