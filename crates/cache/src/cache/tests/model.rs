//! One thread: reads match writes, and the cache matches the simulator.

use super::*;
use crate::policy::NAMES;
use terrace_io::{Read, Write};

const BLOCKS: u64 = 300;

fn write_disjoint(cached: &Cached, model: &mut [u8], random: &mut Random, byte: u8) {
    let sectors = model.len() as u64 / 512;
    let mut starts: Vec<_> = (0..5).map(|_| random.below(sectors / 8)).collect();
    starts.dedup();
    starts.sort_unstable();
    starts.dedup();
    let bytes = filled(4096, byte);
    let writes: Vec<_> = starts.iter().rev().map(|start| Write::new(start * 4096, &bytes)).collect();
    cached.write_batch(&writes).unwrap();
    for start in starts {
        model[start as usize * 4096..][..4096].copy_from_slice(&bytes);
    }
}

fn read_several(cached: &Cached, model: &[u8], ranges: &[(u64, usize)], of: &str) {
    let mut buffers: Vec<_> = ranges.iter().map(|(_, length)| filled(*length, 1)).collect();
    let mut reads: Vec<_> =
        ranges.iter().zip(&mut buffers).map(|((offset, _), buffer)| Read::new(*offset, buffer)).collect();
    cached.read_batch(&mut reads);
    for Read { offset, buffer, result } in &reads {
        assert!(result.is_ok());
        assert!(buffer[..] == model[*offset as usize..][..buffer.len()], "{of}");
    }
}

/// Compares random reads, writes, batches, lengths and frees with an array.
fn walk(policy: &str, mode: WriteMode, block_bytes: usize, seed: u64) {
    let config = timeless(40).policy(policy).unwrap().mode(mode).block_bytes(block_bytes);
    let (cached, slow) = in_memory(BLOCKS, config);
    let mut model = vec![0_u8; BLOCKS as usize * BLOCK];
    let mut random = Random(seed);
    for step in 0..3000 {
        let sectors = model.len() as u64 / 512;
        let range = |random: &mut Random| {
            let (unit, length_max) = if random.below(4) == 0 { (512, 40) } else { (4096, 4) };
            let units = sectors * 512 / unit;
            let start = random.skewed(units);
            let length = (1 + random.below(length_max)).min(units - start);
            (start * unit, (length * unit) as usize)
        };
        match random.below(21) {
            20 => {
                let (from, length) = range(&mut random);
                let to = random.below(sectors - length as u64 / 512 + 1) * 512;
                let mut bytes = filled(length, 0xee);
                cached.read_past(from, &mut bytes).unwrap();
                assert!(bytes[..] == model[from as usize..][..length], "{policy} {seed} {step}");
                cached.write_past(to, &bytes).unwrap();
                model[to as usize..][..length].copy_from_slice(&bytes);
                // Where both overlap, only the rest may still be at the old location.
                cached.relocate(from, to, &bytes);
            }
            0 => {
                let length = (BLOCKS / 2 * 4096 + random.below(BLOCKS / 2 * 8) * 512) as usize;
                cached.set_len(length as u64).unwrap();
                model.resize(length, 0);
            }
            1 => {
                let (offset, length) = range(&mut random);
                cached.free(offset, length as u64);
            }
            2 => cached.sync().unwrap(),
            3..=5 => {
                let (offset, length) = range(&mut random);
                let bytes = filled(length, step as u8);
                cached.write_at(offset, &bytes).unwrap();
                model[offset as usize..][..length].copy_from_slice(&bytes);
            }
            6 => write_disjoint(&cached, &mut model, &mut random, step as u8),
            7 => {
                let ranges: Vec<_> = (0..4).map(|_| range(&mut random)).collect();
                read_several(&cached, &model, &ranges, &format!("{policy} {seed} {step}"));
            }
            _ => {
                let (offset, length) = range(&mut random);
                let bytes = read(&cached, offset, length);
                let expected = &model[offset as usize..][..length];
                assert!(bytes[..] == *expected, "{policy} {mode:?} seed {seed} step {step} at {offset}");
            }
        }
    }
    assert_eq!(slow.len(), model.len() as u64);
    assert!(read(&*slow, 0, model.len())[..] == model[..], "the slow device alone is complete");
    let stats = cached.stats();
    assert!(stats.resident_blocks() <= stats.capacity_blocks(), "{stats:?}");
    assert_eq!(stats.errors, 0);
    cached.close().unwrap();
}

#[test]
fn what_is_read_is_what_was_written_under_every_policy() {
    for (seed, name) in (1..).zip(NAMES.iter().filter(|name| **name != "belady")) {
        for mode in [WriteMode::Through, WriteMode::Around] {
            walk(name, mode, BLOCK, seed);
        }
    }
}

#[test]
fn what_is_read_is_what_was_written_in_blocks_of_every_size() {
    for block_bytes in [4096, 8192, 65_536, 1 << 20] {
        for seed in 1..4 {
            walk("probability:0.7+lru", WriteMode::Through, block_bytes, seed);
        }
    }
}

/// Drives a policy as the module's documentation says, with slots from the lowest.
#[test]
fn a_single_thread_has_the_hits_that_the_simulator_counts() {
    use crate::policy::conformance::Cache;
    use crate::policy::{Access, HashedTable, Name, Settings};
    for name in ["sieve", "lru", "w-tinylfu", "s3-fifo", "arc", "obp+lru", "small-bypass:50+obp+lfru"] {
        let (cached, _) = in_memory(BLOCKS, timeless(40).policy(name).unwrap());
        let policy = name.parse::<Name>().unwrap().boxed::<HashedTable>(&Settings::new(40));
        let mut model = Cache::new(policy, 40);
        let mut random = Random(5);
        let mut hits = 0;
        for step in 0..20_000 {
            let block = random.skewed(BLOCKS);
            hits += u64::from(model.access(Access::read(block)));
            read(&cached, block * BLOCK as u64, BLOCK);
            let stats = cached.stats();
            assert_eq!(stats.hits + stats.below, hits, "{name}, step {step}");
        }
        assert!(hits > 1000, "{name}: {hits}");
    }
}

#[test]
fn the_default_takes_at_most_32_bytes_of_memory_a_block() {
    // SIEVE has a link and a mark for each slot.
    let (cached, _) = in_memory(BLOCKS, timeless(1000));
    let sieve_bytes = 8 + 1;
    assert!(cached.stats().index_bytes + 1000 * sieve_bytes <= 32_000);
}
