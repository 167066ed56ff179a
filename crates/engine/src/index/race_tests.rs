//! Threads put, remove, get and scan on a few leaves of one tree.
//!
//! Maintenance evicts and writes back pages meanwhile. Each thread owns interleaved keys, so it
//! knows their values; scans must see all keys sorted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::pool_tests::{put, remove, rows, test_pool};
use super::{LeafRows, Seek, Stored, Toward, Tree, get_many};
use crate::pool::{Mode, Pool};

const THREADS: u64 = 4;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }
}

type Own = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// Reads a thread's keys from number `from` on in one batch.
fn many(pool: &Pool, tree: Tree, own: u64, keys: u64, from: u64, expected: &Own) {
    let keys: Vec<_> = (from..keys.min(from + 40)).map(|key| (key * THREADS + own).to_be_bytes()).collect();
    let wanted: Vec<_> = keys.iter().map(|key| (tree, &key[..])).collect();
    let mut answered = 0;
    get_many(pool, &wanted, &mut |index, found| {
        let found = found.unwrap().map(|found| {
            let Stored::Inline(value) = found.value else { panic!("there are no long values") };
            (found.timestamp.0, value)
        });
        assert_eq!(found.as_ref(), expected.get(&keys[index][..]));
        answered += 1;
    });
    assert_eq!(answered, keys.len());
}

fn seek(toward: Toward, at: &[u8]) -> Seek<'_> {
    if toward == Toward::Down { Seek::Before(at) } else { Seek::At(at) }
}

/// Reads some leaves from `key` on.
fn walk(
    pool: &Pool,
    tree: Tree,
    own: u64,
    key: &[u8],
    random: &mut Random,
    expected: &Own,
    leaf: &mut LeafRows,
) {
    let toward = if random.below(2) == 0 { Toward::Down } else { Toward::Up };
    let (mut at, mut leaves) = (key.to_vec(), random.below(6));
    tree.read_leaf(pool, seek(toward, key), leaf).unwrap();
    loop {
        let (lower, upper) = (leaf.lower.as_slice(), leaf.upper.as_deref());
        match toward {
            Toward::Down => assert!(lower < &at[..] && upper.is_none_or(|upper| upper >= &at[..])),
            Toward::Up => assert!(lower <= &at[..] && upper.is_none_or(|upper| upper > &at[..])),
        }
        let mine = |row: usize| u64::from_be_bytes(leaf.key(row).try_into().unwrap()) % THREADS == own;
        for row in 0..leaf.len() {
            assert!(row == 0 || leaf.key(row - 1) < leaf.key(row));
        }
        let found: Vec<_> = (0..leaf.len())
            .filter(|&row| mine(row))
            .map(|row| (leaf.key(row), leaf.timestamp(row).0, leaf.value(row)))
            .collect();
        let expected: Vec<_> = expected
            .range(leaf.lower.clone()..)
            .take_while(|(key, _)| leaf.upper.as_ref().is_none_or(|upper| *key < upper))
            .map(|(key, (timestamp, value))| (&key[..], *timestamp, &value[..]))
            .collect();
        assert_eq!(found, expected);
        let next = match toward {
            Toward::Down => Some(leaf.lower.clone()).filter(|lower| !lower.is_empty()),
            Toward::Up => leaf.upper.clone(),
        };
        let Some(fence) = next.filter(|_| leaves > 0) else { return };
        (at, leaves) = (fence, leaves - 1);
        tree.prefetch_beside(pool, toward, leaf);
        tree.read_beside(pool, seek(toward, &at), toward, leaf).unwrap();
    }
}

/// One thread's work until stopped; returns the expected values of its keys.
fn work(
    pool: &Pool,
    tree: Tree,
    own: u64,
    keys: u64,
    seed: u64,
    clock: &AtomicU64,
    stop: &AtomicBool,
) -> Own {
    let mut random = Random(seed);
    let mut expected = Own::new();
    let mut leaf = LeafRows::new();
    let mut growing = true;
    while !stop.load(Relaxed) {
        // Phases of growth and shrinking cause constant splits and merges.
        if random.below(keys * 2) == 0 {
            growing = !growing;
        }
        let key = (random.below(keys) * THREADS + own).to_be_bytes();
        match random.below(10) {
            0..6 => {
                let now = clock.fetch_add(1, Relaxed);
                if growing || random.below(4) == 0 {
                    let value = vec![now as u8; random.below(300) as usize];
                    put(pool, tree, &key, now, &value);
                    expected.insert(key.to_vec(), (now, value));
                } else {
                    remove(pool, tree, &key, now);
                    expected.remove(&key[..]);
                }
            }
            6..9 => {
                let found = tree.get(pool, &key).unwrap().map(|found| {
                    let Stored::Inline(value) = found.value else { panic!("there are no long values") };
                    (found.timestamp.0, value)
                });
                assert_eq!(found.as_ref(), expected.get(&key[..]), "seed {seed}");
                if random.below(8) == 0 {
                    many(pool, tree, own, keys, random.below(keys), &expected);
                }
            }
            _ => walk(pool, tree, own, &key, &mut random, &expected, &mut leaf),
        }
    }
    expected
}

fn race(frames: u32, keys: u64, seed: u64) {
    println!("seed {seed}");
    let mut test = test_pool(4096, frames, Mode::Background);
    let stop = AtomicBool::new(false);
    let clock = AtomicU64::new(1);
    let round_state = thread::spawn({
        let pool = Arc::clone(&test.pool);
        move || pool.run_maintenance()
    });
    let mut expected = Own::new();
    let (pool, tree) = (&*test.pool, test.tree);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|own| {
                let (clock, stop) = (&clock, &stop);
                scope.spawn(move || work(pool, tree, own, keys, seed * 31 + own + 1, clock, stop))
            })
            .collect();
        thread::sleep(Duration::from_millis(1500));
        stop.store(true, Relaxed);
        for thread in threads {
            expected.extend(thread.join().unwrap());
        }
    });
    test.pool.check().unwrap();
    test.pool.stop_maintenance();
    round_state.join().unwrap();
    let expected: Vec<_> = expected.into_iter().collect();
    for _ in 0..2 {
        test.pages();
        for forward in [true, false] {
            assert!(rows(&test.pool, test.tree, forward) == expected, "seed {seed}");
        }
        test = test.reopen();
    }
    println!("{} changes, {} keys left, {:?}", clock.load(Relaxed), expected.len(), test.pool.stats);
}

#[test]
fn threads_on_a_few_leaves() {
    race(64, 40, 1);
}

#[test]
fn threads_on_more_leaves_than_frames() {
    race(48, 2000, 2);
}
