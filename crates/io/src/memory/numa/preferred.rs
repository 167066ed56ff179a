//! Preferred nodes for the first touches of one thread, at any address.
//!
//! `Region::bind_to` needs a kernel mapping per range, of which there are some 65,000. If any page
//! may be on any node, the placement belongs to the thread while it populates pages: two system
//! calls, and one to save the previous policy. Addresses with their own placement keep it.

use std::io;
use std::marker::PhantomData;

use super::calls::{self, Mode, ThreadPolicy};
use super::nodes::{NodeSet, explain};

/// The calling thread prefers some nodes while this lives.
///
/// ```
/// use terrace_io::{NodeSet, PreferredNodes, Region};
///
/// let region = Region::reserve_sparse(1 << 30, 4096)?;
/// let nodes: NodeSet = "0".parse().unwrap();
/// let preferred = PreferredNodes::new(&nodes)?;
/// region.populate(&mut [0..8192])?;
/// drop(preferred);
/// assert_eq!(region.misplaced(0..8192, &nodes)?, 0);
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
#[must_use = "the thread has its own nodes again when this is dropped"]
pub struct PreferredNodes {
    before: ThreadPolicy,
    /// Not `Send`: the policy belongs to the creating thread.
    _thread: PhantomData<*const ()>,
}

impl PreferredNodes {
    /// Prefers one node, or interleaves several, for the thread's first touches.
    ///
    /// # Errors
    /// `InvalidInput` for missing nodes; `PermissionDenied` if the process may not choose, as in
    /// many containers. Names the nodes and the reason, and changes nothing.
    pub fn new(nodes: &NodeSet) -> io::Result<PreferredNodes> {
        let explained = |error| explain("taking memory of", nodes, error);
        let before = ThreadPolicy::current().map_err(explained)?;
        let mode = if nodes.len() > 1 { Mode::Interleave } else { Mode::Prefer };
        ThreadPolicy::of(mode, nodes).set().map_err(explained)?;
        Ok(PreferredNodes { before, _thread: PhantomData })
    }
}

impl Drop for PreferredNodes {
    fn drop(&mut self) {
        if let Err(error) = self.before.set() {
            tracing::warn!(%error, "a thread goes on with memory of nodes that it preferred for a moment");
        }
    }
}

/// The node of the current processor, which may change at once.
///
/// ```
/// let node = terrace_io::node_of_thread()?;
/// assert!(terrace_io::nodes().iter().any(|there| there.node == node));
/// # std::io::Result::Ok(())
/// ```
///
/// # Errors
/// The system's error if it does not say.
pub fn node_of_thread() -> io::Result<u32> {
    calls::node_of_thread()
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges come in slices, of one, too")]
mod tests {
    use super::*;
    use crate::memory::region::Region;

    #[test]
    fn a_thread_has_its_own_choice_again_afterwards() {
        let as_text = || format!("{:?}", ThreadPolicy::current().unwrap());
        let nodes = NodeSet::of(&[0]).unwrap();
        let before = as_text();
        let outer = PreferredNodes::new(&nodes).unwrap();
        let chosen = as_text();
        assert_ne!(chosen, before);
        let inner = PreferredNodes::new(&nodes).unwrap();
        let region = Region::reserve_sparse(1 << 20, 4096).unwrap();
        region.populate(&mut [0..8192]).unwrap();
        assert_eq!(region.misplaced(0..8192, &nodes).unwrap(), 0);
        drop(inner);
        assert_eq!(as_text(), chosen);
        drop(outer);
        assert_eq!(as_text(), before);
    }

    #[test]
    fn nodes_that_are_not_there_are_refused_and_nothing_changes() {
        let before = format!("{:?}", ThreadPolicy::current().unwrap());
        let error = PreferredNodes::new(&NodeSet::of(&[1000]).unwrap()).unwrap_err();
        assert!(error.kind() == io::ErrorKind::InvalidInput && error.to_string().contains("1000"), "{error}");
        assert_eq!(format!("{:?}", ThreadPolicy::current().unwrap()), before);
    }
}
