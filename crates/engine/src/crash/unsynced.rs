//! The log's device, which drops every sync while [`Bug::SkipLogSync`] is planted.

use std::io;
use std::sync::Arc;

use terrace_io::{BlockDevice, Decorator, Directory, OpenMode, SimulatedDisk};

use crate::planted::{Bug, planted};

#[derive(Debug)]
struct Unsynced(Arc<dyn BlockDevice>);

impl Decorator for Unsynced {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }

    fn write_through_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens the file `log` of `disk`.
pub(crate) fn open_log(disk: &SimulatedDisk) -> io::Result<Arc<dyn BlockDevice>> {
    let log = disk.open("log", OpenMode::Write)?;
    Ok(if planted(Bug::SkipLogSync) { Arc::new(Unsynced(log)) } else { log })
}
