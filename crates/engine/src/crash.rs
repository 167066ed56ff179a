//! The crash harness: a pool over a simulated disk, worked on by a random script, cut off at any call of the disk,
//! recovered, and compared with a model.
//!
//! The pages are raw: no index, no tables, so that what is tested is log, store, pool and recovery and nothing else.
//! Each page is a few cells of a value each. Transactions write cells, create and free pages. The promises:
//!
//! - every acknowledged transaction is whole; of the others, those that survive are the oldest ones, each whole;
//! - a transaction that did not commit has left nothing;
//! - exactly the pages that should exist do; every place has one owner; a closed loser never comes back.
//!
//! | file         | what is in it                                                     |
//! |--------------|-------------------------------------------------------------------|
//! | `model.rs`   | what should be there                                              |
//! | `raw.rs`     | pages of cells: content, redo, undo                               |
//! | `life.rs`    | one life of a pool: random steps until the power goes             |
//! | `meanwhile.rs` | what other threads would do at the points where they may        |
//! | `cycle.rs`   | lives and crashes in turn, recovery crashed too, and the verdict  |
//! | `cached.rs`  | the page file behind a block cache                                |
//! | `backup.rs`  | backups made meanwhile, cut off, and restored                     |
//! | `tests.rs`   | the tests, and how to replay a failing one                        |
//! | `bugs.rs`    | the planted bugs, each of which must be caught                    |

mod backup;
mod bugs;
mod cached;
mod cycle;
mod life;
mod meanwhile;
mod model;
mod raw;
mod tests;

pub(crate) use meanwhile::{in_flight, play};

use terrace_block::{Directory, OpenMode, SimulatedDisk};

use crate::buffer::{
    Files, Layout, MiddleOptions, Mode, NodeOptions, Pool, PoolOptions, RecordCache, buffers_bytes,
    frame_bytes, frame_cost,
};
use crate::ids::SizeClass;
use crate::replacement::Replacement;
use crate::store::place::PLACE_BYTES;

/// The sizes of one run: small ones, so that everything wraps, fills and is used again.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    page_bytes: usize,
    /// Half of the pages have this size.
    other_page_bytes: Option<usize>,
    frames: u32,
    log_capacity: u64,
    log_buffer: usize,
    store_segments: u64,
    staging_pages: usize,
    replacement: Replacement,
    /// The middle tier, if it is not up to the environment.
    middle: Option<MiddleOptions>,
}

const SEGMENT_PAGES: u64 = 8;
/// Lives that change the number of frames keep it between these.
const FRAMES_MIN: u32 = 12;
const FRAMES_MAX: u32 = 48;

fn class(page_bytes: usize) -> SizeClass {
    SizeClass::of_bytes(page_bytes as u64).expect("one of the sizes there are")
}

impl Sizes {
    fn segment_bytes(&self) -> u64 {
        SEGMENT_PAGES * self.page_bytes_max() as u64
    }

    fn page_bytes_max(&self) -> usize {
        self.page_bytes.max(self.other_page_bytes.unwrap_or(0))
    }

    /// The class of half of the pages, if that is not the database's own.
    fn other_class(&self) -> Option<SizeClass> {
        self.other_page_bytes.map(class)
    }

    /// The budget of `frames` frames, and of a few more for pages of the other class.
    fn frame_bytes(&self, frames: u32) -> u64 {
        let own = frame_bytes(class(self.page_bytes), frames);
        let more = self.other_class().map_or(0, |other| {
            let frames = u64::from(FRAMES_MIN) * frame_cost(other);
            frames + buffers_bytes(class(self.page_bytes_max())) - buffers_bytes(class(self.page_bytes))
        });
        own + more
    }

    fn layout(&self) -> Layout {
        Layout {
            uuid: [7; 16],
            page_bytes: self.page_bytes,
            segment_places: self.segment_bytes() / PLACE_BYTES as u64,
            log_capacity: self.log_capacity,
        }
    }

    /// A middle tier of more than a few frames is memory of a node, which moves, page with page, where pages are mapped.
    fn nodes(&self) -> NodeOptions {
        let is_mapped = crate::Backend::of_environment().unwrap() == crate::Backend::Mapped;
        let moves = is_mapped && self.middle.is_some_and(|middle| middle.frames >= 8);
        NodeOptions { middle: moves.then(|| "0".parse().unwrap()), ..NodeOptions::default() }
    }

    fn options(&self) -> PoolOptions {
        PoolOptions {
            frame_bytes: self.frame_bytes(self.frames),
            frame_bytes_max: self.frame_bytes(FRAMES_MAX),
            frames_floor: FRAMES_MIN / 2,
            log_buffer_bytes: self.log_buffer,
            staging_bytes: self.staging_pages * self.page_bytes_max(),
            batch_bytes: 8 * self.page_bytes_max(),
            batch_least: 2 * self.page_bytes_max(),
            pages_max: 1024,
            record_cache: RecordCache::Auto,
            store_bytes_max: self.store_segments * self.segment_bytes(),
            backend: crate::Backend::of_environment().unwrap(),
            replacement: self.replacement,
            middle: self.middle.or_else(|| crate::middle::options_of_environment(class(self.page_bytes))),
            middle_memory: None,
            nodes: self.nodes(),
            time: terrace_block::Time::wall(),
            mode: Mode::Inline,
            in_memory: false,
        }
    }
}

/// An empty database on a new disk.
fn create(disk: &SimulatedDisk, sizes: &Sizes) {
    let open = |name| disk.open(name, OpenMode::CreateNew).expect("a new disk is empty");
    let files = Files::new(open("pages"), open("log"));
    Pool::create(&files, &sizes.layout()).expect("a new disk has room");
    disk.sync().expect("a new disk works");
}

fn open(disk: &SimulatedDisk) -> std::io::Result<Files> {
    Ok(Files::new(disk.open("pages", OpenMode::Write)?, disk.open("log", OpenMode::Write)?))
}
