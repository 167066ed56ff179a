//! Pages for your own data structures, which can grow beyond memory.
//!
//! ```
//! use terrace::pages::PageAllocator;
//!
//! let folder = tempfile::tempdir().unwrap();
//! let pages = PageAllocator::builder()
//!     .dram(16 << 20)
//!     .page_sizes(&[4 << 10, 64 << 10])
//!     .open(folder.path().join("pages"))?;
//! let mut segment = pages.allocate(64 << 10)?;
//! segment.write(0, b"kept while there is memory, else in the file");
//! let segment = segment.keep(); // a handle, to be kept in memory
//! let mut start = [0; 4];
//! pages.read(segment)?.copy_to(0, &mut start);
//! assert_eq!(&start, b"kept");
//! pages.free(segment)?;
//! # Ok::<(), terrace::Error>(())
//! ```
//!
//! [`PageAllocator`] hands out pages under one budget. Guards fix a page in memory (Riekenbrauck et
//! al., "A Three-Tier Buffer Manager Integrating CXL Device Memory for Database Systems", section
//! III): [`SharedGuard`], [`ExclusiveGuard`] and [`AllocationGuard`]. [`Column`], an array of
//! numbers, is an example.
//!
//! Nothing is logged or recovered, and the file is removed with the allocator. If guards hold all
//! frames, a request fails with [`crate::Error::OutOfFrames`]. Guards block without a timeout, so
//! take several in one fixed order.

mod ahead;
mod allocator;
mod builder;
mod column;
mod file;
mod guard;
mod shared;
mod value;
mod words;

pub use allocator::{PageAllocator, PagesStats};
pub use builder::PagesBuilder;
pub use column::Column;
pub use guard::{AllocationGuard, ExclusiveGuard, SharedGuard};
pub use shared::PageRef;
pub use value::{Aggregate, Value};
