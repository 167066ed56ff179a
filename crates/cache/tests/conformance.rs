//! The contract of directories and devices, for the block cache.

use std::sync::Arc;

use terrace_cache::{CacheConfig, Cached, WriteMode};
use terrace_io::{
    BlockDevice, DecoratedDirectory, Directory, MemoryDevice, MemoryDirectory, OpenMode, VirtualClock,
};

mod promises;

/// A cache of a few blocks before `slow`.
fn cached(slow: Arc<dyn BlockDevice>, mode: WriteMode) -> Arc<dyn BlockDevice> {
    let (fast, guard) = (Arc::new(MemoryDevice::new("fast", 0)), Arc::new(MemoryDevice::new("guard", 0)));
    let config = CacheConfig::new(60).mode(mode).guard(guard).clock(Arc::new(VirtualClock::default()));
    Arc::new(Cached::open(slow, fast, config).unwrap())
}

/// Runs `check` on an empty directory of cached devices.
fn on_every_directory(check: impl Fn(&dyn Directory)) {
    let memory = Arc::new(MemoryDirectory::new());
    check(&DecoratedDirectory::new(memory, |_, device| cached(device, WriteMode::Through)));
}

/// Runs `check` on a cache of each mode, 1 MiB of zeros.
fn on_every_device(check: impl Fn(&dyn BlockDevice)) {
    on_every_directory(|directory| {
        let device = directory.open("pages", OpenMode::CreateNew).unwrap();
        device.set_len(1 << 20).unwrap();
        check(&*device);
    });
    for mode in [WriteMode::Around, WriteMode::Back] {
        println!("cached, {mode:?}");
        check(&*cached(Arc::new(MemoryDevice::new("memory:slow", 1 << 20)), mode));
    }
}
