//! Pages for structures other than the tables: an in-memory structure keeps its segments in pages of this buffer pool, and
//! grows beyond memory.
//!
//! ```
//! use terrace::pages::PageAllocator;
//!
//! let place = tempfile::tempdir().unwrap();
//! let pages = PageAllocator::builder().dram(16 << 20).page_sizes(&[4 << 10, 64 << 10]).open(place.path().join("pages"))?;
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
//! [`PageAllocator`] hands out pages of a few sizes, all of which share one budget, and each of which is in memory or in
//! a file beside. A structure uses the buffer manager as its allocator, and reads and writes pages under guards, as Riekenbrauck
//! et al. have it for Hyrise over vmcache ("A Three-Tier Buffer Manager Integrating CXL Device Memory for Database
//! Systems", section III): [`SharedGuard`], of which a page may have up to 200, [`ExclusiveGuard`], which is alone, and
//! [`AllocationGuard`], which is the exclusive guard of a new page and gives it back unless it is kept. While there is a guard of a page, the page stays in memory, at the same place. A guard borrows the
//! allocator, so none outlives it.
//!
//! [`Column`] is an array of numbers in such pages, and an example of how a structure in memory takes its segments to
//! disk: its code uses nothing but this module.
//!
//! **The pages live as long as the allocator.** Nothing is logged, nothing recovered: the file is a place to put things, it is
//! removed when the allocator goes, and what a process that was killed left of one is replaced by the next that opens it. What is
//! to survive belongs in tables ([`crate::Db`]).
//!
//! **Guards and memory.** Who holds guards while he asks for more holds frames while he waits for frames. When all frames are under
//! guards, he gets [`crate::Error::OutOfFrames`] after some seconds. Each page size has at least 24 frames, or 4
//! if it is above 64 KiB.
//!
//! **Guards and order.** A thread waits for a guard as long as that takes. One that holds several at a time keeps to an order of its
//! own, as with any lock; one that asks for an exclusive guard of a page of which it has a guard waits for itself. A page can have 200
//! shared guards. One more waits two seconds for another to go, and then fails with [`crate::Error::TooManyGuards`].
//!
//! | file           | what is in it                                     |
//! |----------------|---------------------------------------------------|
//! | `builder.rs`   | settings, and how the budget is divided           |
//! | `file.rs`      | the file, from its making to its removal          |
//! | `words.rs`     | which pages there are, and who holds guards        |
//! | `allocator.rs` | pages: new ones, guards of them, their end         |
//! | `guard.rs`     | guards                                            |
//! | `column.rs`    | the column                                        |
//! | `ahead.rs`     | reading ahead of its scans                        |
//! | `value.rs`     | what may be in a column, and sums over it         |

mod ahead;
mod allocator;
mod builder;
mod column;
mod file;
mod guard;
mod value;
mod words;

pub use allocator::{PageAllocator, PageRef, PagesStats};
pub use builder::PagesBuilder;
pub use column::Column;
pub use guard::{AllocationGuard, ExclusiveGuard, SharedGuard};
pub use value::{Aggregate, Value};
