//! Whether the kernel itself or the mount reads and writes an open file.
//!
//! The kernel passes a file for all programs that have it open, or for none. So the first open
//! decides, and the decision stays until nobody has the file open.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// How a file's handles are served.
#[derive(Debug)]
pub(crate) enum Way<T> {
    /// By the kernel.
    Passed(Arc<T>),
    /// By the mount.
    Served { _held: Arc<()> },
}

impl<T> Way<T> {
    pub fn passed(&self) -> Option<Arc<T>> {
        match self {
            Way::Passed(passed) => Some(Arc::clone(passed)),
            Way::Served { .. } => None,
        }
    }
}

/// The way of the handles that a file has now. Each holds its own.
#[derive(Debug)]
pub(crate) struct Opens<T>(Mutex<(Weak<T>, Weak<()>)>);

impl<T> Default for Opens<T> {
    fn default() -> Self {
        Opens(Mutex::default())
    }
}

impl<T> Opens<T> {
    /// The way of a further handle. `decide` is called if there is no other one.
    pub fn enter(&self, decide: impl FnOnce() -> Option<T>) -> Way<T> {
        let mut ways = self.0.lock();
        if let Some(passed) = ways.0.upgrade() {
            return Way::Passed(passed);
        }
        if let Some(served) = ways.1.upgrade() {
            return Way::Served { _held: served };
        }
        match decide().map(Arc::new) {
            Some(passed) => {
                ways.0 = Arc::downgrade(&passed);
                Way::Passed(passed)
            }
            None => {
                let served = Arc::new(());
                ways.1 = Arc::downgrade(&served);
                Way::Served { _held: served }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Opens;

    #[test]
    fn the_first_handle_decides_until_the_last_one_closes() {
        let opens = Opens::<u8>::default();
        let (first, second) = (opens.enter(|| Some(1)), opens.enter(|| None));
        assert_eq!(second.passed().as_deref(), Some(&1));
        drop(first);
        assert_eq!(opens.enter(|| None).passed().as_deref(), Some(&1));
        drop(second);
        let served = opens.enter(|| None);
        assert_eq!(served.passed(), None);
        assert_eq!(opens.enter(|| Some(2)).passed(), None);
        drop(served);
        assert_eq!(opens.enter(|| Some(3)).passed().as_deref(), Some(&3));
    }
}
