//! Block devices, directories of files, and memory regions: everything of the machine that the engine touches.
//!
//! The engine never names a file of the operating system. It is given a [`Directory`], opens [`BlockDevice`]s in
//! it, and places its frames in a [`Region`]. Whatever implements these can stand below it: files with direct I/O
//! and io_uring ([`FileDirectory`]), plain memory ([`MemoryDirectory`]), a disk that loses power and fails at will
//! ([`SimulatedDisk`]), or any of these slowed down ([`ThrottledDevice`]) or counted ([`CountedDevice`]).
//!
//! | folder       | what is in it                                                             |
//! |--------------|---------------------------------------------------------------------------|
//! | `device/`    | the devices and their decorators, behind the trait in `device.rs`          |
//! | `directory/` | where devices come from: names, locks and the durability of names          |
//! | `memory/`    | aligned buffers for direct I/O, address ranges for frames, nodes, and memory that is simulated |
//! | `cache/`     | a block cache: a device that keeps what is worth it of a slow device on a fast one |
//! | `policy/`    | eviction and admission policies of a block cache, over slot numbers        |
//! | `trace/`     | block traces in six formats                                                |
//! | `sim/`       | many caches over one trace at once, and miss-ratio curves                  |
//! | `units.rs`   | sizes and durations as people write them                                   |
#![deny(unsafe_code)]

mod cache;
mod device;
mod directory;
mod memory;
mod planted;
pub mod policy;
pub mod sim;
pub mod trace;
pub mod units;

pub use cache::{
    Bypass, CacheConfig, CacheError, CacheStats, CacheTrust, Cached, RelationStats, Relations, Start,
    WriteMode,
};
pub use device::counted::{CountedDevice, Counters, Counts};
pub use device::faulty::{CallKind, FaultPlan, SimulatedDisk};
pub use device::file::FileDevice;
pub use device::memory::MemoryDevice;
pub use device::throttled::{Clock, Gate, Limits, MachineClock, ThrottledDevice, VirtualClock};
pub use device::uring::UringDevice;
pub use device::{BlockDevice, Read, Write};
pub use directory::decorated::DecoratedDirectory;
pub use directory::file::{FileDirectory, FileOptions};
pub use directory::memory::MemoryDirectory;
pub use directory::{Directory, LockError, OpenMode, Sharing};
pub use memory::aligned::AlignedBuffer;
pub use memory::copy::copy_words;
pub use memory::limit::{AddressLimit, address_limit};
pub use memory::numa::measure::{Speed, measure_node};
pub use memory::numa::migrate::{Migrate, Moved};
pub use memory::numa::nodes::{Node, NodeSet, Performance, check_room, is_numa_balancing, nodes};
pub use memory::numa::preferred::{PreferredNodes, node_of_thread};
pub use memory::prefetch::prefetch;
pub use memory::region::Region;
pub use memory::simulated::device::SimulatedDevice;
pub use memory::simulated::profile::{Direction, Pattern, Profile};
pub use memory::simulated::virtual_time::{OPERATION_NS, PAGE_NS, VirtualTime};
pub use memory::simulated::{Charge, DramCacheCounts, SimulatedMemory, Time};

/// The page of the documentation on the cache, so that its example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/cache.md")]
struct CacheGuide;
