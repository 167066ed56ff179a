//! Files that the kernel reads and writes by itself, below the mount: those that are never cached.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fuser::{BackingId, InitFlags, KernelConfig};

use crate::cache::FileCache;
use crate::node::{Handle, Node};
use crate::relations::is_log;

/// Which files pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    None,
    /// Logs, which databases write once and hardly read.
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
        match self.which {
            Passed::None => false,
            // Cached blocks could become outdated unseen.
            Passed::Logs => {
                is_log(&node.state.path()) && cache.is_none_or(|cache| cache.has_none_of(&node.state, node))
            }
            Passed::All => true,
        }
    }

    /// Finds out whether the kernel passes the file of a new handle; `register` tells the kernel of
    /// the open file below.
    pub fn enter(
        &self,
        handle: &Handle,
        cache: Option<&FileCache>,
        register: impl FnOnce(&Handle) -> io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        let way = handle.node.opens.enter(|| {
            if !self.wants(&handle.node, cache) {
                return None;
            }
            let registered = register(handle).inspect_err(|error| {
                // Such as missing rights (`CAP_SYS_ADMIN`), or a file system that is stacked.
                self.is_offered.store(false, Relaxed);
                tracing::info!(%error, "the kernel passes no files; the mount serves them");
            });
            registered.ok()
        });
        handle.go(way)
    }
}
