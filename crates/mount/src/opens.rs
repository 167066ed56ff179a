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
    /// Does `act`, which learns whether the kernel passes the file, while no handle begins.
    pub fn hold<R>(&self, act: impl FnOnce(bool) -> R) -> R {
        let ways = self.0.lock();
        act(ways.0.upgrade().is_some())
    }

    /// The way of a further handle: that of the others, if `may_join` those that the kernel passes.
    /// The first one `decide`s.
    pub fn enter<E>(
        &self,
        may_join: impl FnOnce() -> Result<(), E>,
        decide: impl FnOnce() -> Option<T>,
    ) -> Result<Way<T>, E> {
        let mut ways = self.0.lock();
        if let Some(passed) = ways.0.upgrade() {
            return may_join().map(|()| Way::Passed(passed));
        }
        if let Some(served) = ways.1.upgrade() {
            return Ok(Way::Served { _held: served });
        }
        Ok(match decide().map(Arc::new) {
            Some(passed) => {
                ways.0 = Arc::downgrade(&passed);
                Way::Passed(passed)
            }
            None => {
                let served = Arc::new(());
                ways.1 = Arc::downgrade(&served);
                Way::Served { _held: served }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Opens;

    #[test]
    fn the_first_handle_decides_until_the_last_one_closes() {
        let opens = Opens::<u8>::default();
        let enter = |decision| opens.enter(|| Ok::<_, ()>(()), || decision).expect("it may join");
        let (first, second) = (enter(Some(1)), enter(None));
        assert_eq!(second.passed().as_deref(), Some(&1));
        drop(first);
        assert_eq!(enter(None).passed().as_deref(), Some(&1));
        assert!(opens.hold(|is_passed| is_passed) && opens.enter(|| Err(5), || None).is_err());
        drop(second);
        assert!(!opens.hold(|is_passed| is_passed));
        let served = enter(None);
        assert_eq!(served.passed(), None);
        assert_eq!(enter(Some(2)).passed(), None);
        drop(served);
        assert_eq!(enter(Some(3)).passed().as_deref(), Some(&3));
    }
}
