//! The buffer pool: pages in frames over a store and a log.
//!
//! | file            | what is in it                                                        |
//! |-----------------|----------------------------------------------------------------------|
//! | `view.rs`       | reading bytes that may be changing                                   |
//! | `latch.rs`      | the state word: latch, mark, dirty, claim, version                   |
//! | `table.rs`      | the page table                                                       |
//! | `stripe.rs`     | frames by size and tier, and their numbers                           |
//! | `frames.rs`     | the frames and their headers                                         |
//! | `residency.rs`  | where the bytes of pages are: at addresses of frames, or of ids       |
//! | `residency/`    | one of these each                                                    |
//! | `page_ids.rs`   | which page ids are free                                              |
//! | `pool.rs`       | faults, and who may wait for what                                    |
//! | `batch.rs`      | several misses of one thread, read together                          |
//! | `guard.rs`      | optimistic and exclusive guards                                      |
//! | `pin.rs`        | pages that are held for long, and changed without a log              |
//! | `middle.rs`     | the middle tier: what is decided by its policy                       |
//! | `migrate.rs`    | pages on their way between DRAM and the middle tier                  |
//! | `due.rs`        | pages that come up together, where memory moves with them            |
//! | `charge.rs`     | what accesses to it cost where its memory is simulated               |
//! | `wear.rs`       | how often each of its lines was written, where its memory is simulated |
//! | `adapt.rs`      | what lets its policy change by itself                                |
//! | `operation.rs`  | what counts as one operation, for that policy                        |
//! | `sweep.rs`      | replacement: finding frames                                          |
//! | `evict.rs`      | replacement: pages that leave their frames                           |
//! | `queues.rs`     | replacement: which pages go first                                    |
//! | `fifo.rs`       | replacement as in the CXL paper, to compare with                     |
//! | `records.rs`    | hot records of pages that are away                                   |
//! | `records/`      | its parts                                                            |
//! | `recall.rs`     | what the pool does with them                                         |
//! | `reserve.rs`    | frames for pages about to exist, reserved before the first is taken  |
//! | `resize.rs`     | more frames, or fewer, and how many of each size                     |
//! | `balance.rs`    | which size gains most by more of them                                |
//! | `change.rs`     | logged changes, new pages, freed pages                               |
//! | `patience.rs`   | how long a thread waits for what others must do first                |
//! | `room.rs`       | waiting for log space, and for room in the page file                 |
//! | `upkeep.rs`     | the background work and its thread                                   |
//! | `write_back.rs` | images on their way to the store                                     |
//! | `transfer.rs`   | how much of them is moved at a time                                  |
//! | `checkpoint.rs` | chunks, directory, superblock, the cut of the log                    |
//! | `cleaner.rs`    | emptying sparse segments                                             |
//! | `compact.rs`    | making the page file shorter                                         |
//! | `mapping.rs`    | what is known of chunks and directory blocks                         |
//! | `migration.rs`  | which tier a page goes to                                             |
//! | `migration/`    | its parts                                                            |
//! | `tuner.rs`      | looking for the best policy while it runs                             |
//! | `tuner/`        | its parts                                                            |
//! | `census.rs`     | which pages a verification has met, and which were changed meanwhile  |
//! | `inspect.rs`    | what a pool takes, and whether its images are whole                  |
//! | `backup.rs`     | copying a database that is used, and reading the copy back            |
//! | `backup/`       | its parts                                                            |
//! | `salvage.rs`    | making a pool of what is whole in a damaged database                 |
//! | `create.rs`     | the files a pool lives on, and how they begin                        |
//! | `recovery.rs`   | from superblock and log to a pool that is as it was                  |
//! | `recovery/`     | its steps: analysis, assembly, redo, undo                            |

mod adapt;
#[cfg(test)]
mod audit;
pub(crate) mod backoff;
pub(crate) mod backup;
mod balance;
mod batch;
pub(crate) mod census;
mod change;
mod charge;
mod checkpoint;
#[cfg(test)]
mod class_tests;
mod cleaner;
#[cfg(test)]
mod cleaner_tests;
mod compact;
mod create;
mod due;
mod evict;
mod fifo;
#[cfg(test)]
mod frame_tests;
mod frames;
mod guard;
mod inspect;
pub(crate) mod latch;
mod mapping;
mod middle;
mod migrate;
pub mod migration;
#[cfg(test)]
mod node_tests;
pub(crate) mod operation;
mod page_ids;
mod patience;
mod pin;
mod pool;
mod queues;
mod read_buffer;
mod recall;
pub(crate) mod records;
mod recovery;
#[cfg(test)]
pub(crate) mod replacement_tests;
mod reread;
mod reserve;
mod residency;
mod resize;
mod room;
pub(crate) mod salvage;
mod stats;
mod stripe;
mod sweep;
mod table;
#[cfg(test)]
mod tier_tests;
mod transfer;
mod tuner;
mod upkeep;
pub(crate) mod view;
mod wear;
mod write_back;

pub(crate) use batch::{BATCH_PAGES_MAX, BATCHES_MAX, Purpose};
pub(crate) use change::{Edit, Grant, NewPage};
pub(crate) use create::{Files, Layout, PoolOptions};
pub(crate) use guard::ReadGuard;
#[cfg(test)]
pub(crate) use guard::WriteGuard;
#[cfg(test)]
pub(crate) use mapping::words_per_page;
pub(crate) use middle::MiddleOptions;
pub(crate) use page_ids::id_count_below;
pub(crate) use pin::{PINS_MAX, Pin};
pub use pool::Mode;
pub(crate) use pool::{Pool, Stop};
pub(crate) use records::BYTES_PER_FRAME as RECORD_BYTES_PER_FRAME;
pub use records::RecordCache;
pub(crate) use recovery::{Recovered, Redo, Undo};
pub(crate) use residency::{NodeOptions, table_bytes_per_page};
pub(crate) use stripe::FRAMES_MAX;
pub(crate) use table::PAGES_MAX;
pub(crate) use table::indexes_max;

use crate::ids::SizeClass;
use crate::store::image::packer_bytes;

/// Bytes beside a frame, for the budget: its header, and its share of what replacement remembers.
const FRAME_HEADER_BYTES: u64 = frames::HEADER_BYTES + queues::GHOST_BYTES;
/// Bytes of DRAM beside a frame of the middle tier.
pub(crate) const MIDDLE_FRAME_BYTES_BESIDE: u64 = FRAME_HEADER_BYTES;
/// Buffers that readers have for images, by the budget. Pages above 64 KiB are read through the buffers of batches.
const READ_BUFFERS: usize = 8;
/// Pages in them: an image in each, and the page in it.
const READ_BUFFER_PAGES: u64 = 2 * READ_BUFFERS as u64;
/// Frames that a class for values alone has at least, if it is in use: a thread has one of them in hands at a time, and who waits
/// for one holds none.
pub(crate) const VALUE_FRAMES_MIN: u32 = 4;

/// Bytes of a frame for a page of `class`, with what is beside it.
pub(crate) fn frame_cost(class: SizeClass) -> u64 {
    class.page_bytes() as u64 + FRAME_HEADER_BYTES
}

/// What a pool is given that is to have `frames` frames for pages of `class`, and none for others.
#[cfg(test)]
pub(crate) fn frame_bytes(class: SizeClass, frames: u32) -> u64 {
    buffers_bytes(class) + u64::from(frames) * frame_cost(class)
}

/// Bytes of the buffers that are as long as the longest pages in use, which are those of `class`.
pub(crate) fn buffers_bytes(class: SizeClass) -> u64 {
    let read = class.min(SizeClass::LARGEST_NODE);
    READ_BUFFER_PAGES * read.page_bytes() as u64 + packer_bytes(class.page_bytes()) as u64
}
