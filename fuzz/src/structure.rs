//! Databases and backups with wrong field values and recomputed checksums. Fields are in
//! superblocks, the page table, nodes, long values, the catalog, the garbage tree and log records.
//!
//! Random byte changes, as in the other targets, mostly hit values and rarely make one page
//! another's child.

use std::sync::{Arc, OnceLock};

use terrace::{Backup, Compression, Db, Durability, Mode, TableOptions};
use terrace_io::MemoryDirectory;

use crate::choices::Choices;
use crate::files::{BACKUP, DATABASE, Files, Image, u16_at};
use crate::model::{defaults, use_twice};

const LEAF: u8 = 1;
const INNER: u8 = 2;
const INDEX: u8 = 3;
const SLOT_BYTES: usize = 16 << 10;

fn builder(directory: Arc<MemoryDirectory>) -> terrace::Builder {
    let builder =
        defaults().dram(8 << 20).page_size(4096).page_size_max(16 << 10).log_max(1 << 20).mode(Mode::Inline);
    builder.seed(1).durability(Durability::Buffered).directory(directory)
}

/// A database with three-level trees, two page sizes, long values on one or several pages, and
/// garbage.
fn filled(directory: Arc<MemoryDirectory>) -> Db {
    let db = builder(directory).open("").expect("a new database opens");
    let small = db.create_table("small").expect("a table");
    // Keys that differ at their ends make long separators, so few pages make a high tree.
    for number in 0..400u32 {
        let key = [&[b'k'; 700][..], &number.to_be_bytes()].concat();
        small.put(&key, [number as u8; 90]).expect("put");
    }
    let options = TableOptions::new().page_size(16 << 10).compression(Compression::Lz4);
    let large = db.create_table_with("large", &options).expect("a table");
    for number in 0..300u32 {
        large.put(number.to_be_bytes(), vec![number as u8; 300]).expect("put");
    }
    for number in 0..12usize {
        let key = format!("long {number}");
        small.put(&key, vec![number as u8; 5_000 + number * 9_000]).expect("put");
        large.put(&key, vec![number as u8; 70_000]).expect("put");
    }
    db.checkpoint().expect("a checkpoint");
    db
}

/// Files of a closed database, of a killed one with garbage and redo records, and of a backup.
fn bases() -> &'static [Files; 3] {
    static BASES: OnceLock<[Files; 3]> = OnceLock::new();
    BASES.get_or_init(|| {
        let directory = Arc::new(MemoryDirectory::new());
        filled(directory.clone()).close().expect("closes");
        let closed = Files::of(&directory, DATABASE);
        let directory = Arc::new(MemoryDirectory::new());
        let db = filled(directory.clone());
        let small = db.open_table("small").expect("a table");
        // The snapshot keeps its versions as garbage.
        let snapshot = db.snapshot();
        small.delete("long 7").expect("delete");
        small.put("long 8", "short").expect("put");
        db.create_table("gone").expect("a table").put("k", vec![1; 20_000]).expect("put");
        db.drop_table("gone").expect("a table is dropped");
        let transaction = db.begin();
        for number in 0..30u32 {
            transaction.put(&small, number.to_be_bytes(), vec![1; 60]).expect("put");
        }
        transaction.commit().expect("nobody to conflict with");
        db.flush().expect("the log is written");
        let killed = Files::of(&directory, DATABASE);
        let to = MemoryDirectory::new();
        db.backup_to(&to).expect("a backup");
        drop(snapshot);
        [closed, killed, Files::of(&to, BACKUP)]
    })
}

/// Sets fields of a database to other numbers. The first byte selects closed or killed.
pub fn databases(input: &[u8]) {
    let mut choices = Choices(input);
    let mut files = bases()[usize::from(choices.byte() & 1)].clone();
    mutate(&mut files, &mut choices);
    let directory = files.directory(DATABASE);
    use_twice(|| builder(directory.clone()).create(false).open(""));
}

/// Sets fields of a backup to other numbers. Restoring must refuse an invalid backup.
pub fn backups(input: &[u8]) {
    let mut files = bases()[2].clone();
    mutate(&mut files, &mut Choices(input));
    let Ok(backup) = Backup::open_in(&*files.directory(BACKUP)) else { return };
    let (checked, directory) = (backup.check(), Arc::new(MemoryDirectory::new()));
    if backup.restore_to(&*directory).is_err() {
        return;
    }
    assert!(!checked.is_ok_and(|report| !report.is_ok()), "a damaged backup was restored");
    use_twice(|| builder(directory.clone()).create(false).open(""));
}

fn mutate(files: &mut Files, choices: &mut Choices<'_>) {
    let [blocks, chunks, pages] = files.images();
    let mut ids: Vec<u64> = pages.iter().map(|page| page.id).collect();
    ids.extend([1, 2, 3]);
    let of_kind =
        |kind: u8| -> Vec<Image> { pages.iter().filter(|page| page.kind == kind).copied().collect() };
    for _ in 0..1 + choices.below(3) {
        match choices.below(16) {
            0 => {
                // Both slots alike, or the other slot would win.
                let rest = choices.0;
                for slot in [0, SLOT_BYTES] {
                    choices.0 = rest;
                    choices.poke(&mut files.pages[slot + 40..slot + 300], &ids);
                }
            }
            1 => poke_image(files, choices, &blocks, 4..80, &ids),
            2 => poke_image(files, choices, &chunks, 4..24, &ids),
            3 => mapping_word(files, choices, &chunks, &ids),
            4 => {
                let roots: Vec<Image> = pages.iter().filter(|page| page.id <= 2).copied().collect();
                entry(files, choices, &roots, &ids);
            }
            5..8 => child(files, choices, &of_kind(INNER), &ids),
            8 => poke_image(files, choices, &of_kind(INNER), 4..120, &ids),
            9 => poke_image(files, choices, &of_kind(LEAF), 4..120, &ids),
            10 | 11 => entry(files, choices, &of_kind(LEAF), &ids),
            12 => poke_image(files, choices, &of_kind(INDEX), 24..104, &ids),
            13 => poke_image(files, choices, &pages, 4..40, &ids),
            _ => record(files, choices, &ids),
        }
    }
    files.mend_pages();
}

/// A field of one of these images.
fn poke_image(
    files: &mut Files,
    choices: &mut Choices<'_>,
    images: &[Image],
    within: std::ops::Range<usize>,
    ids: &[u64],
) {
    let Some(image) = choices.pick(images) else { return };
    let end = within.end.min(image.length);
    choices.poke(&mut files.pages[image.start + within.start..image.start + end], ids);
}

/// Redirects a page's image: to another page's, to none, or to any number.
fn mapping_word(files: &mut Files, choices: &mut Choices<'_>, chunks: &[Image], ids: &[u64]) {
    let Some(chunk) = choices.pick(chunks) else { return };
    let words: Vec<usize> = (chunk.start + 24..chunk.start + chunk.length - 7)
        .step_by(8)
        .filter(|&at| files.pages[at..at + 8] != [0; 8])
        .collect();
    let (Some(from), Some(to)) = (choices.pick(&words), choices.pick(&words)) else { return };
    let word = match choices.below(4) {
        0 => [0; 8],
        1 => (1u64 << 63).to_le_bytes(),
        2 => choices.number(ids).to_le_bytes(),
        _ => files.pages[from..from + 8].try_into().expect("eight bytes"),
    };
    files.pages[to..to + 8].copy_from_slice(&word);
}

/// Offsets of a node's entries, found through its slots at `slots_at`.
fn entries(files: &Files, node: Image, slots_at: usize) -> Vec<usize> {
    let count = usize::from(u16_at(&files.pages, node.start + 24));
    let slots = (0..count).map(|slot| slots_at + slot * 8).take_while(|at| at + 8 <= node.length);
    let blocks = slots.map(|at| usize::from(u16_at(&files.pages, node.start + at + 2)) * 8);
    blocks.filter(|at| at + 48 <= node.length).map(|at| node.start + at).collect()
}

/// A child of an inner node.
fn child(files: &mut Files, choices: &mut Choices<'_>, nodes: &[Image], ids: &[u64]) {
    let Some(node) = choices.pick(nodes) else { return };
    let mut blocks = entries(files, node, 48);
    blocks.push(node.start + 40);
    let Some(at) = choices.pick(&blocks) else { return };
    let id = if choices.byte().is_multiple_of(4) { node.id } else { choices.number(ids) };
    files.pages[at..at + 8].copy_from_slice(&id.to_le_bytes());
}

/// The start of a leaf entry: timestamp, length, flags, or the value's start if the key is short.
fn entry(files: &mut Files, choices: &mut Choices<'_>, leaves: &[Image], ids: &[u64]) {
    let Some(leaf) = choices.pick(leaves) else { return };
    let blocks = entries(files, leaf, 40);
    let Some(at) = choices.pick(&blocks) else { return };
    choices.poke(&mut files.pages[at..at + 48], ids);
}

/// A field of a log record, with its checksum recomputed.
fn record(files: &mut Files, choices: &mut Choices<'_>, ids: &[u64]) {
    let records = files.records();
    let Some((at, length)) = choices.pick(&records) else { return };
    let end = if choices.byte().is_multiple_of(2) { length.min(80) } else { length };
    choices.poke(&mut files.log[at + 16..at + end], ids);
    files.seal_record(at, length);
}
