//! Batched reads: number of batches, damage among many pages, and leaks.

use std::collections::BTreeMap;

use terrace_io::AlignedBuffer;

use super::pool_tests::{TestPool, test_pool};
use super::{Stored, Tree, get_many};
use crate::error::{Error, Result};
use crate::pool::Mode;
use crate::store::page;

const PAGE_BYTES: usize = 4096;
const KEYS: u64 = 3000;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn value(number: u64) -> Vec<u8> {
    vec![number as u8; 300 + number as usize % 500]
}

/// A tree of three levels over `frames` frames, with nothing in memory.
fn cold(frames: u32) -> TestPool {
    let test = test_pool(PAGE_BYTES, frames, Mode::Inline);
    for number in 0..KEYS {
        test.put(&key(number), number + 1, &value(number));
    }
    test.pool.checkpoint_now(true).unwrap();
    test.reopen()
}

fn ask(test: &TestPool, numbers: &[u64]) -> Vec<Result<Option<Vec<u8>>>> {
    let keys: Vec<_> = numbers.iter().map(|&number| key(number)).collect();
    let wanted: Vec<(Tree, &[u8])> = keys.iter().map(|key| (test.tree, &key[..])).collect();
    let mut answers: Vec<_> = numbers.iter().map(|_| None).collect();
    get_many(&test.pool, &wanted, &mut |index, found| {
        let value = found.map(|found| {
            found.map(|found| match found.value {
                Stored::Inline(value) => value,
                Stored::Overflow(_) => panic!("there are no long values"),
            })
        });
        assert!(answers[index].replace(value).is_none(), "key {index} is answered twice");
    });
    answers.into_iter().map(|answer| answer.expect("every key is answered")).collect()
}

fn counted(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn a_batch_of_reads_for_each_level() {
    let test = cold(400);
    // Keys of different leaves, some absent, one repeated.
    let mut numbers: Vec<u64> = (0..7).map(|step| step * 400).collect();
    numbers.extend([KEYS + 5, 800]);
    let stats = &test.pool.stats;
    let answers = ask(&test, &numbers);
    for (number, answer) in numbers.iter().zip(answers) {
        assert_eq!(answer.unwrap(), (*number < KEYS).then(|| value(*number)), "key {number}");
    }
    let (batches, pages) = (counted(&stats.batches), counted(&stats.batched_pages));
    assert!((2..=4).contains(&batches) && pages >= 10, "{batches} batches of {pages} pages");
    let reads = counted(&stats.store_reads);
    ask(&test, &numbers).into_iter().for_each(|answer| assert!(answer.is_ok()));
    assert_eq!(counted(&stats.store_reads), reads, "everything is in memory now");
    assert_eq!(test.pool.audit(), Vec::<String>::new());
}

#[test]
fn what_a_batch_brought_in_is_marked_by_the_second_look() {
    let test = cold(400);
    ask(&test, &[0, 1000, 2000]);
    let marked =
        |test: &TestPool| test.pool.page_ids().filter(|&id| test.pool.is_marked(id) == Some(true)).count();
    let once = marked(&test);
    ask(&test, &[0, 1000, 2000]);
    assert!(marked(&test) >= once + 3, "{once} pages were marked by the first look");
}

/// Few frames, and more keys than frames.
#[test]
fn a_tiny_budget_answers_all_the_same() {
    for frames in [8, 12, 24, 60] {
        let test = cold(frames);
        let numbers: Vec<u64> = (0..KEYS).step_by(7).collect();
        for (number, answer) in numbers.iter().zip(ask(&test, &numbers)) {
            assert_eq!(answer.unwrap(), Some(value(*number)), "{frames} frames, key {number}");
        }
        assert_eq!(test.pool.audit(), Vec::<String>::new(), "{frames} frames");
    }
}

/// Damages one leaf after another: its keys get the error, others their values, and no latch or
/// frame leaks.
#[test]
fn damage_concerns_the_keys_of_its_page_only() {
    let mut test = cold(400);
    let numbers: Vec<u64> = (0..KEYS).step_by(60).collect();
    let (mut buffer, mut damaged) = (AlignedBuffer::zeroed(PAGE_BYTES), BTreeMap::new());
    for block_at in 0..test.files.pages.len() / PAGE_BYTES as u64 {
        let device = &test.files.pages;
        device.read_at(block_at * PAGE_BYTES as u64, &mut buffer).unwrap();
        let is_leaf = buffer[super::node::KIND] == super::node::LEAF && page::checksum(&buffer).1;
        if !is_leaf || block_at % 5 != 0 {
            continue;
        }
        let id = page::page_id(&buffer);
        buffer[PAGE_BYTES - 1] ^= 1;
        device.write_at(block_at * PAGE_BYTES as u64, &buffer).unwrap();
        damaged.insert(id.0, block_at);
    }
    for round in 0..2 {
        let (mut wrong, mut right) = (0, 0);
        for (number, answer) in numbers.iter().zip(ask(&test, &numbers)) {
            let alone = test.tree.get(&test.pool, &key(*number));
            assert_eq!(alone.is_err(), answer.is_err(), "key {number} read by itself");
            match answer {
                Ok(found) => {
                    right += 1;
                    assert_eq!(found, Some(value(*number)), "key {number}");
                }
                Err(Error::Corrupt { page: Some(page), .. }) => {
                    wrong += 1;
                    assert!(damaged.contains_key(&page), "page {page} is as it was");
                }
                Err(error) => panic!("key {number}: {error}"),
            }
        }
        assert!(wrong > 2 && right > 10, "{wrong} wrong, {right} right");
        assert_eq!(test.pool.audit(), Vec::<String>::new());
        for id in test.pool.page_ids() {
            assert!(!test.pool.is_latched(id), "page {id} is still latched");
        }
        if round == 0 {
            test = test.reopen();
        }
    }
}
