//! Files that the kernel reads and writes by itself, below the mount: those that are never cached.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fuser::{BackingId, InitFlags, KernelConfig};

use crate::cache::FileCache;
use crate::node::{Handle, Node, set_id_bits};
use crate::relations::Log;

/// Which files pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    None,
    /// Logs, which databases write once and hardly read, beside a cache: those that may outlive
    /// their data.
    Logs,
    All,
}

/// Whether files of a mount pass.
#[derive(Debug)]
pub(crate) struct Passthrough {
    which: Passed,
    /// The kernel offers it and did not refuse it so far.
    is_offered: AtomicBool,
}

impl Passthrough {
    pub fn new(which: Passed) -> Passthrough {
        Passthrough { which, is_offered: AtomicBool::new(false) }
    }

    /// Agrees with the kernel when the mount begins.
    pub fn agree(&self, config: &mut KernelConfig) {
        if self.which == Passed::None || config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_err() {
            return;
        }
        // Relaxed, here and below: a late look costs one file its chance, or a refused call.
        // The directory may not be in a stacked file system itself, such as overlayfs.
        self.is_offered.store(config.set_max_stack_depth(1).is_ok(), Relaxed);
    }

    fn wants(&self, node: &Node, cache: Option<&FileCache>) -> bool {
        if !node.is_regular() || !self.is_offered.load(Relaxed) {
            return false;
        }
        // See `Handle::may_join`.
        if node.stat().map_or(true, |stat| set_id_bits(stat.st_mode) != 0) {
            return false;
        }
        match (self.which, cache) {
            (Passed::None, _) => false,
            (Passed::Logs, Some(cache)) => {
                let log = Log::of(&node.state.path());
                cache.leave(&node.state, node, log) == Some(Log::MayOutliveData)
            }
            (Passed::Logs | Passed::All, _) => true,
        }
    }

    /// Finds out whether the kernel passes the file of a new handle; `register` tells the kernel of
    /// the open file below.
    ///
    /// # Errors
    /// As [`Handle::may_join`].
    pub fn enter(
        &self,
        handle: &Handle,
        cache: Option<&FileCache>,
        register: impl FnOnce(&Handle) -> io::Result<BackingId>,
    ) -> io::Result<Option<Arc<BackingId>>> {
        let decide = || {
            if !self.wants(&handle.node, cache) {
                return None;
            }
            let registered = register(handle).inspect_err(|error| {
                // Such as missing rights (`CAP_SYS_ADMIN`), or a file system that is stacked.
                self.is_offered.store(false, Relaxed);
                tracing::info!(%error, "the kernel passes no files; the mount serves them");
            });
            registered.ok()
        };
        let way = handle.node.opens.enter(|| handle.may_join(), decide)?;
        Ok(handle.go(way))
    }
}
