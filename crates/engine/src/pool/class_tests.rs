//! Files with pages of all size classes, some of them hostile.
//!
//! Recovery, checkpoint, backup, restore and salvage, on disk only: no page enters a frame.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::{BlockDevice, Directory, MemoryDirectory, OpenMode};

use super::page_ids::ids_below;
use super::{BufferSizes, Mode, Pool, PoolOptions, RecordCache, TierOptions};
use crate::backup::{Archive, PackedFile, StagedImage, Visitor, copy_buffer};
use crate::error::{Error, Result};
use crate::ids::{ByClass, Lsn, PageId, SizeClass, Timestamp};
use crate::index::NodeRedo;
use crate::maintenance::Maintenance;
use crate::recovery::Undo;
use crate::recovery::salvage::{Means, Remains, Salvaged};
use crate::store::files::Files;
use crate::store::image::{self, Packer};
use crate::store::mapping_word::{Extent, MappingWord, blocks_of};
use crate::store::page::{self, HEADER_BYTES, Kind};
use crate::store::space::Geometry as SpaceGeometry;
use crate::store::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::wal::{
    ALLOCATES, ChunkEntry, FIRST_LSN, Geometry, LogHeader, MappingEntry, RecordBuilder, Wal, change_kind,
};
use std::sync::Arc;

const UUID: [u8; 16] = [3; 16];
/// Two of the longest images.
const SEGMENT_BLOCKS: u64 = 1024;
/// For files with node pages only.
const SHORT_SEGMENT_BLOCKS: u64 = 64;
const LOG_BYTES: u64 = 4 << 20;
/// Two 4 KiB chunks or more in classes 0 and 1. No pages in classes 3, 6 and 8.
const ENDS: ByClass<u64> = [1100, 520, 40, 1, 12, 4, 1, 3, 1, 3];
/// A few pages of sizes that nodes can have.
const FEW: ByClass<u64> = [3, 2, 1, 1, 2, 1, 1, 1, 1, 1];

type Pages = BTreeMap<PageId, Vec<u8>>;

fn files() -> Files {
    let directory = MemoryDirectory::new();
    let open = |name| directory.open(name, OpenMode::CreateNew).unwrap();
    Files::new(open("pages"), open("log"))
}

/// Room for pages of every class.
fn options() -> PoolOptions {
    PoolOptions {
        frame_bytes: 32 << 20,
        frame_bytes_max: 32 << 20,
        frames_floor: 24,
        buffers: BufferSizes { log: 2 << 20, staging: 4 << 20, batches: 8 << 20, batch_least: 4 << 20 },
        pages_max: 1 << 14,
        hash: crate::config::hash_of_environment(),
        store_bytes_max: 256 << 20,
        record_cache: RecordCache::Off,
        backend: crate::Backend::of_environment().unwrap(),
        replacement: Default::default(),
        tiers: TierOptions::default(),
        mode: Mode::Inline,
        in_memory: false,
        hints: true,
    }
}

/// A page that compresses to about a third. Every other page is compressed.
fn content(id: PageId) -> Vec<u8> {
    let mut content = vec![0; id.class().unwrap().page_bytes()];
    let noise = content.len() / 3;
    SmallRng::seed_from_u64(id.0).fill(&mut content[HEADER_BYTES..noise]);
    page::set_kind(&mut content, Kind::OverflowData);
    page::set_page_id(&mut content, id);
    page::set_lsn(&mut content, Lsn(1));
    content
}

/// Writes the image of `content` to `out`; returns checksum and length.
fn pack(content: &[u8], out: &mut [u8]) -> (u32, usize) {
    let bytes = if page::page_id(content).index().is_multiple_of(2) {
        let mut packer = Packer::default();
        packer.page(content.len()).copy_from_slice(content);
        packer.pack(out)
    } else {
        out[..content.len()].copy_from_slice(content);
        content.len()
    };
    (page::seal(&mut out[..bytes]), bytes)
}

/// A database with the pages of `ids`, and their contents.
fn database(own: SizeClass, segment_blocks: u64, ids: impl Iterator<Item = PageId>) -> (Files, Pages) {
    let files = files();
    let geometry = SpaceGeometry { segment_blocks };
    let mut packed = PackedFile::new(files.pages.clone(), geometry, own.page_bytes()).unwrap();
    let mut staging = copy_buffer(SizeClass::LARGEST.page_bytes()).unwrap();
    let (mut pages, mut ends) = (Pages::new(), [1; SizeClass::COUNT]);
    for id in ids {
        let content = content(id);
        let (checksum, bytes) = pack(&content, &mut staging);
        let staged = StagedImage { id, checksum, blocks: blocks_of(bytes), at: 0 };
        packed.put(&[staged], &staging).unwrap();
        pages.insert(id, content);
        ends[id.class_index()] = ends[id.class_index()].max(id.index() + 1);
    }
    let log = Geometry::new(LOG_BYTES).unwrap();
    Wal::create(&*files.log, &LogHeader { database: UUID, timeline: 1, largest: log }, log).unwrap();
    let superblock = Superblock {
        uuid: UUID,
        timeline: 1,
        sequence: 1,
        page_bytes: own.page_bytes() as u32,
        segment_blocks: segment_blocks as u32,
        log_capacity: log.capacity(),
        epoch: 1,
        epoch_start: FIRST_LSN,
        cut: FIRST_LSN,
        log_end: FIRST_LSN,
        highest_timestamp: Timestamp::NONE,
        page_ids_end: ends,
        segments: 0,
        life: 0,
        ring: None,
        directory: Default::default(),
    };
    packed.finish(superblock).unwrap();
    (files, pages)
}

fn try_recover(files: &Files) -> Result<Arc<Maintenance>> {
    let recovered = crate::recovery::recover(files, &options(), &NodeRedo)?;
    recovered.maintenance.recovery_done();
    Ok(recovered.maintenance)
}

fn recover(files: &Files) -> Arc<Maintenance> {
    let pool = try_recover(files).unwrap();
    assert_eq!(pool.audit(), [""; 0]);
    pool
}

/// The page whose image is at `mapped`.
fn read(device: &dyn BlockDevice, id: PageId, mapped: MappingWord) -> Vec<u8> {
    let extent = mapped.extent().unwrap();
    let mut bytes = copy_buffer(extent.bytes()).unwrap();
    device.read_at(extent.offset(), &mut bytes).unwrap();
    page::verify_image(&bytes, id, mapped).unwrap();
    let mut spare = vec![0; id.class().unwrap().page_bytes()];
    without_checksum(image::unpack(&bytes, id.page_bytes(), &mut spare).unwrap())
}

fn without_checksum(page: &[u8]) -> Vec<u8> {
    let mut page = page.to_vec();
    page[..4].fill(0);
    page
}

/// All pages of `pool`, read from their images.
fn all_of(pool: &Maintenance) -> Pages {
    let exist = pool.page_ids().filter(|&id| pool.exists(id));
    exist.map(|id| (id, read(&*pool.device, id, pool.durable_state(id)))).collect()
}

/// Logs `record` and makes it durable.
fn log(pool: &Pool, mut record: RecordBuilder) {
    let appended = pool.wal().append(&mut record, None).unwrap();
    pool.wal().flush_to(appended.end).unwrap();
}

fn system() -> RecordBuilder {
    RecordBuilder::pages(Timestamp::NONE, Lsn::NONE)
}

fn id(class: usize, index: u64) -> PageId {
    PageId::new(SizeClass::from_index(class).unwrap(), index)
}

/// Collects intact pages and fails at damage.
#[derive(Default)]
struct Collected(Pages);

impl Visitor for Collected {
    fn image(&mut self, id: PageId, page: &[u8]) -> Result<(), String> {
        self.0.insert(id, without_checksum(page));
        Ok(())
    }

    fn damage(&mut self, error: Error) -> Result<()> {
        Err(error)
    }
}

#[test]
fn pages_of_all_classes_are_recovered_and_their_ids_are_used_again() {
    for own in [SizeClass::SMALLEST, id(2, 1).class().unwrap(), SizeClass::LARGEST_NODE] {
        let (files, mut pages) = database(own, SEGMENT_BLOCKS, ids_below(ENDS));
        let pool = recover(&files);
        assert!(all_of(&pool) == pages);
        // Pages of most classes are freed and three images move. Only the log knows.
        let freed = [id(0, 7), id(0, 1099), id(1, 519), id(2, 3), id(4, 11), id(5, 3), id(9, 2)];
        let mut record = system();
        for id in freed {
            record.change(id, change_kind::FREE, 0, &[]);
            pages.remove(&id);
        }
        log(&pool, record);
        let moved =
            pool.space.allocate_or_grow(&[1, 16, 128], 0, crate::store::space::Stream::Moved).unwrap();
        let mut record = RecordBuilder::mapping();
        for (id, extent) in [(id(0, 9), moved[0]), (id(4, 5), moved[1]), (id(7, 2), moved[2])] {
            let mut image = copy_buffer(extent.bytes()).unwrap();
            image.copy_from_slice(&pages[&id]);
            let check = page::seal(&mut image);
            pool.device.write_at(extent.offset(), &image).unwrap();
            record.mapping_entry(MappingEntry { page: id, extent, image_lsn: Lsn(1), check });
        }
        log(&pool, record);
        drop(pool);
        let pool = recover(&files);
        assert!(all_of(&pool) == pages);
        assert_eq!(pool.durable_state(id(4, 5)).extent(), Some(moved[1]));
        assert_eq!(pool.durable_state(id(7, 2)).extent(), Some(moved[2]));
        // Writes the recovered state: chunks and directory of each class.
        pool.checkpoint_now(true).unwrap();
        assert!(pool.wal().cut() > FIRST_LSN);
        assert_eq!(pool.audit(), [""; 0]);
        drop(pool);
        let pool = recover(&files);
        assert!(all_of(&pool) == pages);
        let ends = pool.ids.lock().ends();
        assert_eq!(ends, ENDS);
        let mut taken = BTreeSet::new();
        for class in SizeClass::all() {
            for _ in freed.iter().filter(|id| id.class() == Some(class)) {
                taken.extend(pool.ids.lock().take(class, pool.table.indexes_max(class)));
            }
        }
        assert_eq!(taken, BTreeSet::from(freed));
    }
}

#[test]
fn a_backup_holds_the_pages_of_all_classes() {
    let (source, pages) = database(id(1, 0).class().unwrap(), SEGMENT_BLOCKS, ids_below(ENDS));
    let pool = recover(&source);
    let target = files();
    let mut backup = crate::backup::Backup::begin(&pool, target.clone()).unwrap();
    let copied = loop {
        if let Some(copied) = backup.step().unwrap() {
            break copied;
        }
    };
    assert_eq!(copied.images, pages.len() as u64);
    drop(backup);
    let archive = Archive::open(target).unwrap();
    let mut found = Collected::default();
    let checked = archive.check(&mut found).unwrap();
    assert!(found.0 == pages);
    let restored = files();
    assert_eq!(archive.restore(&restored, 5, &mut Collected::default()).unwrap(), checked);
    assert!(all_of(&recover(&restored)) == pages);
}

struct NoUndo;

impl Undo for NoUndo {
    fn undo(&self, _: &Pool, _: Timestamp, _: Lsn, _: Lsn, _: &[u8]) -> Result<Lsn> {
        unreachable!("there are no losers")
    }
}

fn salvage(remains: &Remains) -> Salvaged {
    let means = Means {
        check: |_| Ok(()),
        redo: &NodeRedo,
        undo: &NoUndo,
        scratch: &|| Ok(files()),
        options: &|_, _| Ok(options()),
    };
    Salvaged::of(remains, &means).unwrap()
}

#[test]
fn pages_of_all_classes_are_salvaged_with_and_without_superblock() {
    for own in SizeClass::all().filter(|class| !class.is_for_values()) {
        let (files, pages) = database(own, SEGMENT_BLOCKS, ids_below(ENDS));
        drop(recover(&files));
        let remains = Remains { pages: files.pages.clone(), log: Some(files.log.clone()) };
        let salvaged = salvage(&remains);
        assert!(salvaged.consistent && salvaged.lost.is_empty() && salvaged.found.is_empty(), "{own:?}");
        assert!(all_of(&salvaged.maintenance) == pages);
        // Lose the chunks of two classes. The images name their pages themselves.
        let pool = recover(&files);
        let lost = [4, 9];
        let chunk_of = |class| {
            pool.round_state.lock().mapping.chunks().get(id(class, 0)).unwrap().image.extent().unwrap()
        };
        let chunks = lost.map(chunk_of);
        drop(pool);
        for chunk in chunks {
            files.pages.write_at(chunk.offset(), &copy_buffer(chunk.bytes()).unwrap()).unwrap();
        }
        let salvaged = salvage(&remains);
        let found = lost.into_iter().flat_map(|class| (1..ENDS[class]).map(move |index| id(class, index)));
        assert_eq!(salvaged.found, found.collect(), "{:?}", salvaged.notes);
        assert!(!salvaged.consistent && all_of(&salvaged.maintenance) == pages);
        // Lose both superblocks too.
        files.pages.write_at(0, &copy_buffer(SUPERBLOCK_BYTES as usize).unwrap()).unwrap();
        let salvaged = salvage(&remains);
        assert_eq!(salvaged.maintenance.class(), own);
        assert_eq!(salvaged.found, pages.keys().copied().collect());
        assert!(!salvaged.consistent && all_of(&salvaged.maintenance) == pages);
        assert_eq!(salvaged.maintenance.existing().unwrap(), pages.keys().copied().collect::<Vec<_>>());
    }
}

/// Damage loses only the damaged page, whatever its size. Its id is not reused.
#[test]
fn damaged_pages_of_any_class_are_lost_alone() {
    let (files, mut pages) = database(SizeClass::SMALLEST, SEGMENT_BLOCKS, ids_below(ENDS));
    let pool = recover(&files);
    let victims = [id(0, 500), id(2, 8), id(4, 11), id(9, 2)];
    for id in victims {
        let extent = pool.durable_state(id).extent().unwrap();
        let mut image = copy_buffer(extent.bytes()).unwrap();
        files.pages.read_at(extent.offset(), &mut image).unwrap();
        *image.last_mut().unwrap() ^= 1;
        files.pages.write_at(extent.offset(), &image).unwrap();
        pages.remove(&id);
    }
    drop(pool);
    let salvaged = salvage(&Remains { pages: files.pages, log: Some(files.log) });
    assert_eq!(salvaged.lost.iter().map(|lost| lost.page).collect::<Vec<_>>(), victims);
    assert!(all_of(&salvaged.maintenance) == pages);
    for (class, next) in [(4, 12), (9, 3)] {
        let new = salvaged.maintenance.ids.lock().take(SizeClass::from_index(class).unwrap(), 100);
        assert_eq!(new, Some(id(class, next)), "not that of the lost page");
    }
}

/// Logs `record`, recovers, and returns the error.
fn refused(record: RecordBuilder) -> Option<Error> {
    let (files, _) = database(SizeClass::SMALLEST, SHORT_SEGMENT_BLOCKS, ids_below(FEW));
    log(&recover(&files), record);
    try_recover(&files).err()
}

/// Ids of impossible classes and indexes.
fn impossible() -> Vec<PageId> {
    let classes = [10, 11, 127, 255].map(|class| PageId(class << 56 | 1));
    let beyond = SizeClass::all().map(|class| PageId::new(class, options().pages_max >> class.index()));
    let highest = SizeClass::all().map(|class| PageId::new(class, (1 << 56) - 1));
    classes.into_iter().chain(beyond).chain(highest).chain([PageId(u64::MAX)]).collect()
}

#[test]
fn ids_that_no_page_can_have_are_refused_wherever_the_log_has_them() {
    let extent = Extent { first: 8, blocks: 1 };
    for page in impossible() {
        let mut free = system();
        free.change(page, change_kind::FREE, 0, &[]);
        let mut allocation = system();
        allocation.change(page, change_kind::IMAGE, ALLOCATES, &[24, 0, 0, 0, 0, 16, 0, 0]);
        let mut mapping = RecordBuilder::mapping();
        mapping.mapping_entry(MappingEntry { page, extent, image_lsn: Lsn(1), check: 0 });
        let mut chunk = RecordBuilder::chunk();
        chunk.chunk_entry(ChunkEntry { chunk: page, extent, current_lsn: Lsn(1), check: 0 });
        for record in [free, allocation, mapping, chunk] {
            let error = refused(record);
            assert!(matches!(error, Some(Error::Corrupt { .. })), "{page:?}: {error:?}");
        }
    }
    let mut free = system();
    free.change(id(4, 1), change_kind::FREE, 0, &[]).change(id(1, 1), change_kind::FREE, 0, &[]);
    assert!(refused(free).is_none(), "these there are");
}

/// A page above 64 KiB outside a value is damage.
#[test]
fn no_page_that_is_too_large_for_it_is_a_node() {
    let kinds = [Kind::Leaf, Kind::Inner, Kind::OverflowIndex, Kind::OverflowData];
    for (kind, class) in kinds.into_iter().flat_map(|kind| [4, 5, 9].map(|class| (kind, class))) {
        let page = id(class, 1);
        let mut content = content(page);
        page::set_kind(&mut content, kind);
        let checksum = page::seal(&mut content);
        let extent = Extent { first: 8, blocks: blocks_of(content.len()) };
        let found = page::verify_image(&content, page, MappingWord::at(extent, checksum));
        let may_be = class == 4 || kind == Kind::OverflowData;
        assert_eq!(found.is_ok(), may_be, "{kind:?} of class {class}: {found:?}");
        if class == 9 {
            // Too long for the log's buffer.
            continue;
        }
        let mut record = system();
        record.change_with(page, change_kind::IMAGE, ALLOCATES, |out| {
            page::compact(&content, HEADER_BYTES..content.len(), out);
        });
        let (files, _) =
            database(SizeClass::SMALLEST, SEGMENT_BLOCKS, ids_below(FEW).filter(|&there| there != page));
        log(&recover(&files), record);
        let error = try_recover(&files).err();
        assert_eq!(error.is_none(), may_be, "{kind:?} of class {class}: {error:?}");
        assert!(error.is_none_or(|error| matches!(error, Error::Corrupt { .. })));
    }
}

/// Changes of pages that never existed are skipped, whatever their ids.
#[test]
fn changes_of_pages_that_cannot_be_are_passed_over() {
    for page in impossible() {
        let mut record = system();
        record.change_bytes(page, 100, &[1; 8]);
        assert!(refused(record).is_none(), "{page:?}");
    }
}

/// In the log or in the page table.
#[test]
fn classes_that_segments_have_no_room_for_are_refused() {
    let (whole, pages) = database(SizeClass::SMALLEST, 8, ids_below([3, 2, 1, 5, 1, 1, 1, 1, 1, 1]));
    assert!(all_of(&recover(&whole)) == pages);
    let (files, _) = database(SizeClass::SMALLEST, 8, ids_below([3, 2, 1, 1, 1, 1, 1, 1, 1, 1]));
    let pool = recover(&files);
    let mut record = system();
    record.change(id(4, 1), change_kind::FREE, 0, &[]);
    log(&pool, record);
    drop(pool);
    assert!(matches!(try_recover(&files), Err(Error::Corrupt { .. })));
    let (files, _) = database(SizeClass::SMALLEST, 8, ids_below(FEW));
    assert!(matches!(try_recover(&files), Err(Error::Corrupt { .. })));
}

/// A mapping word may name more blocks than its page has. The database has such long pages, too.
#[test]
fn an_image_longer_than_its_page_is_refused() {
    let (files, _) = database(SizeClass::LARGEST_NODE, SEGMENT_BLOCKS, ids_below(ENDS));
    let pool = recover(&files);
    let first = pool.durable_state(id(9, 1)).extent().unwrap().first;
    drop(pool);
    let entry = |page, blocks| {
        let mut record = RecordBuilder::mapping();
        let extent = Extent { first, blocks };
        record.mapping_entry(MappingEntry { page, extent, image_lsn: Lsn(1), check: 0 });
        record
    };
    // Longer than the page, or not a multiple of its image unit.
    for (id, blocks) in [(id(1, 1), 3), (id(4, 1), 32), (id(5, 1), 64), (id(5, 1), 16), (id(9, 1), 1)] {
        let (files, _) = database(SizeClass::LARGEST_NODE, SEGMENT_BLOCKS, ids_below(ENDS));
        log(&recover(&files), entry(id, blocks));
        let error = try_recover(&files).err();
        let says = |what: &str| what.contains("blocks that no image");
        assert!(
            matches!(&error, Some(Error::Corrupt { what, .. }) if says(what)),
            "{id} {blocks}: {error:?}"
        );
    }
}

#[test]
fn footprint_and_verify_marks_count_pages_of_all_classes() {
    let (files, pages) = database(SizeClass::SMALLEST, SEGMENT_BLOCKS, ids_below(ENDS));
    let pool = recover(&files);
    assert_eq!(crate::pool::inspect::Footprint::of(&pool).live_pages, pages.len() as u64);
    assert_eq!(pool.page_ids_used(), pages.len() as u64);
    let counting = super::counting::Counting::of(&pool).unwrap();
    for id in pool.page_ids() {
        assert_eq!(counting.verify_marks.meet(id), super::verify_marks::Known::Unmet);
    }
    assert!(pool.page_ids().all(|id| counting.verify_marks.known(id) == super::verify_marks::Known::Met));
}
