//! Mutates a block cache's file and guard. Opening and reading must never panic. With untouched
//! checksums the cache must serve the slow device's data.

use std::sync::{Arc, OnceLock};

use terrace_cache::{CacheConfig, Cached, WriteMode};
use terrace_io::{AlignedBuffer, BlockDevice, MemoryDevice};

use crate::choices::Choices;
use crate::edit;

const BLOCKS: u64 = 40;
const BLOCK: usize = 4096;
const PAGE: usize = 4096;
const MODES: [WriteMode; 2] = [WriteMode::Through, WriteMode::Back];

/// The slow device, the cache's file and the guard, with the last writes.
#[derive(Clone)]
struct Left {
    slow: Vec<u8>,
    fast: Vec<u8>,
    guard: Vec<u8>,
    /// Acceptable contents of each block.
    contents: Vec<Vec<u8>>,
}

fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = AlignedBuffer::zeroed(device.len() as usize);
    device.read_at(0, &mut bytes).expect("memory can be read");
    bytes.to_vec()
}

fn device_of(name: &str, bytes: &[u8]) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(name, bytes.len() as u64));
    let mut buffer = AlignedBuffer::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    device.write_at(0, &buffer).expect("memory can be written");
    device
}

fn config(guard: Arc<MemoryDevice>, mode: WriteMode) -> CacheConfig {
    CacheConfig::new(24).mode(mode).guard(guard).power_cycle(Some([1; 16]))
}

/// The state after a close, or with pending write-backs.
fn left(mode: WriteMode) -> Left {
    let new = |name, bytes| Arc::new(MemoryDevice::new(name, bytes));
    let (slow, fast, guard) = (new("slow", BLOCKS * BLOCK as u64), new("fast", 0), new("guard", 0));
    let cached = Cached::open(slow.clone(), fast.clone(), config(guard.clone(), mode)).expect("it opens");
    let mut page = AlignedBuffer::zeroed(BLOCK);
    let mut contents = vec![vec![0_u8]; BLOCKS as usize];
    for step in 1..30_u8 {
        let block = u64::from(step) * 7 % BLOCKS;
        page.fill(step);
        cached.write_at(block * BLOCK as u64, &page).expect("a write");
        contents[block as usize].push(step);
        cached.read_at((block + 3) % BLOCKS * BLOCK as u64, &mut page).expect("a read");
        if step % 4 == 0 {
            cached.sync().expect("a sync");
        }
    }
    if mode == WriteMode::Through {
        cached.close().expect("a close");
        contents.iter_mut().for_each(|versions| drop(versions.drain(..versions.len() - 1)));
    }
    Left { slow: bytes_of(&slow), fast: bytes_of(&fast), guard: bytes_of(&guard), contents }
}

fn crc(bytes: &[u8]) -> [u8; 4] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// Recomputes the checksums of superblocks, marks, journal and guard.
fn mend(left: &mut Left) {
    for page in left.fast.chunks_exact_mut(PAGE).take(2) {
        let sum = crc(&page[..508]);
        page[508..512].copy_from_slice(&sum);
    }
    for page in left.fast.chunks_exact_mut(PAGE).skip(2).filter(|page| page.iter().any(|&byte| byte != 0)) {
        let sum = crc(&page[4..]);
        page[..4].copy_from_slice(&sum);
    }
    for page in left.guard.chunks_exact_mut(PAGE) {
        let sum = crc(&page[..508]);
        page[508..512].copy_from_slice(&sum);
    }
}

/// The unmodified state of either kind.
fn lives(which: usize) -> Left {
    static LEFT: OnceLock<[Left; 2]> = OnceLock::new();
    LEFT.get_or_init(|| MODES.map(left))[which].clone()
}

/// Sets fields of a cache to other numbers and recomputes checksums. The first byte selects the
/// state.
pub fn cache_fields(input: &[u8]) {
    let mut choices = Choices(input);
    let which = usize::from(choices.byte() & 1);
    let mut left = lives(which);
    let slots = left.fast.len() - 24 * BLOCK;
    let usual = [0, 1, 23, 24, 25, BLOCKS - 1, BLOCKS, 4096, left.slow.len() as u64, left.fast.len() as u64];
    for _ in 0..1 + choices.below(4) {
        let in_use = |page: &usize| left.fast[page * PAGE..][..PAGE].iter().any(|&byte| byte != 0);
        let pages: Vec<usize> = (0..slots / PAGE).filter(in_use).collect();
        match choices.below(4) {
            0 => choices.poke(&mut left.guard[..256], &usual),
            1 => choices.poke(&mut left.fast[..256], &usual),
            _ => {
                let Some(page) = choices.pick(&pages) else { return };
                let end = if choices.byte().is_multiple_of(2) { 128 } else { PAGE };
                choices.poke(&mut left.fast[page * PAGE..][4..end], &usual);
            }
        }
    }
    mend(&mut left);
    judge(&left, which, true);
}

/// Mutates a cache's file. The first byte selects the state, the part to change, and whether to
/// recompute checksums.
pub fn caches(input: &[u8]) {
    let Some((&how, edits)) = input.split_first() else { return };
    let which = usize::from(how >> 1 & 1);
    let mut left = lives(which);
    let slots = left.fast.len() - 24 * BLOCK;
    match how >> 2 & 3 {
        0 => edit(&mut left.fast, edits),
        1 => edit(&mut left.guard, edits),
        2 => edit(&mut left.fast[..2 * PAGE], edits),
        _ => edit(&mut left.fast[2 * PAGE..slots], edits),
    }
    let is_mended = how & 1 == 0;
    if is_mended {
        mend(&mut left);
    }
    judge(&left, which, is_mended);
}

/// Opens a cache and reads through it. Without recomputed checksums it must serve the slow device's
/// data.
fn judge(left: &Left, which: usize, is_mended: bool) {
    let (slow, fast) = (device_of("slow", &left.slow), device_of("fast", &left.fast));
    // An error is acceptable.
    let opened = Cached::open(slow.clone(), fast, config(device_of("guard", &left.guard), MODES[which]));
    let Ok(cached) = opened else { return };
    let (mut served, mut truth) = (AlignedBuffer::zeroed(BLOCK), AlignedBuffer::zeroed(BLOCK));
    for block in (0..BLOCKS).chain(0..BLOCKS) {
        let read = cached.read_at(block * BLOCK as u64, &mut served);
        slow.read_at(block * BLOCK as u64, &mut truth).expect("memory can be read");
        if !is_mended {
            read.expect("the slow device can be read");
            assert!(served[..] == truth[..], "block {block} is not the slow device's");
            let first = served[0];
            assert!(served.iter().all(|&byte| byte == first), "block {block} is of two versions");
            assert!(left.contents[block as usize].contains(&first), "block {block} is of version {first}");
        }
    }
    let _ = cached.close();
}
