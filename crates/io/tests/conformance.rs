//! The contract of directories and devices, checked on all of them.

use std::sync::Arc;
use std::time::Duration;

use terrace_io::{
    BlockDevice, CountedDevice, Counters, DecoratedDirectory, Directory, FileDirectory, FileOptions, Limits,
    MemoryDirectory, OpenMode, Profile, SimulatedDevice, SimulatedDisk, ThrottledDevice, Time, VirtualClock,
    VirtualTime,
};

mod promises;

/// Runs `check` on an empty directory of each kind.
fn on_every_directory(check: impl Fn(&dyn Directory)) {
    let folder = tempfile::tempdir().unwrap();
    let files = |name: &str, direct, uring| -> Arc<dyn Directory> {
        let options = FileOptions { direct, uring };
        Arc::new(FileDirectory::create_with(&folder.path().join(name), options).unwrap())
    };
    let counters = Arc::new(Counters::default());
    let clock = Arc::new(VirtualClock::default());
    let limits = Limits { latency: Duration::from_millis(1), ..Limits::default() };
    let memory = || Arc::new(MemoryDirectory::new());
    let directories: [(&str, Arc<dyn Directory>); 9] = [
        ("files", files("files", true, false)),
        ("files, io_uring", files("uring", true, true)),
        ("files, page cache", files("cached", false, false)),
        ("files, page cache, io_uring", files("cached-uring", false, true)),
        ("memory", memory()),
        ("simulated", Arc::new(SimulatedDisk::new(1))),
        (
            "throttled",
            Arc::new(DecoratedDirectory::new(memory(), move |_, device| {
                Arc::new(ThrottledDevice::new(device, limits, clock.clone()))
            })),
        ),
        (
            "counted",
            Arc::new(DecoratedDirectory::new(memory(), move |_, device| {
                Arc::new(CountedDevice::new(device, counters.clone()))
            })),
        ),
        (
            "of a profile",
            Arc::new(DecoratedDirectory::new(memory(), move |_, device| {
                let time = Time::Virtual(Arc::new(VirtualTime::new(1)));
                Arc::new(SimulatedDevice::new(device, Profile::named("nvme-flash").unwrap(), time))
            })),
        ),
    ];
    for (name, directory) in directories {
        println!("{name}");
        check(&*directory);
    }
}

/// Runs `check` on a device of each kind, 1 MiB of zeros.
fn on_every_device(check: impl Fn(&dyn BlockDevice)) {
    on_every_directory(|directory| {
        let device = directory.open("pages", OpenMode::CreateNew).unwrap();
        device.set_len(1 << 20).unwrap();
        check(&*device);
    });
}
