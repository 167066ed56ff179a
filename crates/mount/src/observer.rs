//! What programs read and write, for those that record it.

use std::fmt::Debug;
use std::path::Path;

use crate::relations::position_of;

/// A read or write of a program.
///
/// ```
/// use terrace_mount::Observed;
///
/// let read = Observed { relation: "base/5/16384", offset: 8192, bytes: 8192, is_write: false };
/// assert_eq!(read.offset / 8192, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed<'a> {
    /// The table, index or other file, by its name relative to the mount without its segment.
    pub relation: &'a str,
    /// Where it begins in the relation, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub bytes: u64,
    /// A write instead of a read.
    pub is_write: bool,
}

/// Sees what programs ask for. It is called by many threads, after each request.
pub trait Observer: Send + Sync + Debug {
    /// A program has read or written.
    fn note(&self, observed: &Observed<'_>);
}

/// Tells `observer` of a request on the file `path`.
pub(crate) fn observe(observer: &dyn Observer, path: &Path, offset: u64, bytes: u64, is_write: bool) {
    let (relation, before) = position_of(path);
    let offset = before.saturating_add(offset);
    observer.note(&Observed { relation: &relation, offset, bytes, is_write });
}
