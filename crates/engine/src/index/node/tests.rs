//! Single pages: limits, garbage, damage, overflow pages.

use super::op::{LEAF_PATCH, NodeOp};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;

use super::layout::{
    INNER, LEAF, Node, OVERFLOW, PAGE_BYTES_MAX, PAGE_BYTES_MIN, SLOT, fence_limit, slots_at,
};
use super::op::{self, redo};
use super::overflow::{self, Reference};
use super::{check, edit, inner, leaf, split};
use crate::ids::MAX_KEY_BYTES;
use crate::ids::{PageId, Timestamp};
use crate::index::get::{Held, copy_in};
use crate::index::part::Part;
use crate::pool::lines::{LineSet, Noting};
use crate::pool::view::{Racy, View};

const ID: PageId = PageId(7);

fn page_sizes() -> impl Iterator<Item = usize> {
    [4096, 8192, 16 << 10, 32 << 10, 64 << 10].into_iter()
}

fn long_key(first: u8) -> Vec<u8> {
    vec![first; MAX_KEY_BYTES]
}

#[test]
fn header_and_three_slots_of_a_leaf_are_one_line() {
    assert_eq!(slots_at(LEAF) + 3 * SLOT, 64);
}

#[test]
fn three_values_of_1000_bytes_fit_a_small_page() {
    let mut page = vec![0; 4096];
    leaf::init(&mut page, ID, &1000u64.to_be_bytes(), Some(&2000u64.to_be_bytes()));
    for number in 1000..1003u64 {
        let put = leaf::put(&mut page, &number.to_be_bytes(), Timestamp(1), 0, &[1; 1000]).unwrap();
        assert_eq!(put, leaf::Put::Inserted);
    }
}

#[test]
fn the_largest_record_fits_between_the_longest_fences() {
    for page_bytes in page_sizes() {
        for (count, lower, upper) in
            [(if page_bytes == 4096 { 1 } else { 2 }, long_key(1), Some(long_key(9))), (2, vec![], None)]
        {
            let mut page = vec![0; page_bytes];
            leaf::init(&mut page, ID, &lower, upper.as_deref());
            for first in 2..2 + count {
                let key = if upper.is_some() { long_key(first) } else { vec![first] };
                let value = vec![3; leaf::max_inline_value(page_bytes, key.len())];
                let put = leaf::put(&mut page, &key, Timestamp(1), 0, &value).unwrap();
                assert_eq!(put, leaf::Put::Inserted, "{page_bytes}");
            }
            check::check(&page).unwrap();
        }
        assert!(leaf::max_inline_value(page_bytes, MAX_KEY_BYTES) >= Reference::BYTES);
    }
}

#[test]
fn three_longest_separators_fit_between_the_longest_fences() {
    for page_bytes in page_sizes() {
        let mut page = vec![0; page_bytes];
        inner::init(&mut page, 1, ID, &long_key(1), Some(&long_key(9)), PageId(100));
        for first in 2..5 {
            assert!(inner::has_room(&page[..], MAX_KEY_BYTES));
            assert!(inner::insert(&mut page, &long_key(first), PageId(100 + u64::from(first))).unwrap());
        }
        check::check(&page).unwrap();
        let node = Node::new(&page[..]);
        assert_eq!(node.child_at(node.child_index(&long_key(1))), PageId(100));
        assert_eq!(node.child_at(node.child_index(&long_key(3))), PageId(103));
        assert_eq!(node.child_at(node.child_index(b"\x08")), PageId(104));
        assert!(fence_limit(INNER, page_bytes) >= 464);
    }
}

#[test]
fn a_leaf_of_one_record_is_split_for_a_second_one() {
    for (old, new) in [(3, 5), (5, 3)] {
        let mut page = vec![0; 4096];
        leaf::init(&mut page, ID, &long_key(1), Some(&long_key(9)));
        let value = vec![1; leaf::max_inline_value(4096, MAX_KEY_BYTES)];
        leaf::put(&mut page, &long_key(old), Timestamp(1), 0, &value).unwrap();
        assert!(!leaf::has_room(&page[..], &long_key(new), value.len()));
        let mut right = vec![0; 4096];
        let separator = split::split(&page, &long_key(new), value.len(), PageId(8), &mut right).unwrap();
        split::truncate(&mut page, &separator).unwrap();
        let side = if Node::new(&page[..]).contains(&long_key(new)) { &mut page } else { &mut right };
        let put = leaf::put(side, &long_key(new), Timestamp(2), 0, &value).unwrap();
        assert_eq!(put, leaf::Put::Inserted);
    }
}

#[test]
fn operations_that_do_not_suit_a_page_are_refused() {
    let mut page = vec![0; 4096];
    leaf::init(&mut page, ID, b"b", Some(b"d"));
    for key in [&b"a"[..], b"d", b"", &long_key(b'e')] {
        assert!(leaf::put(&mut page, key, Timestamp(1), 0, b"").is_err());
        assert!(leaf::remove(&mut page, key).is_err());
        assert!(split::truncate(&mut page, key).is_err());
    }
    assert!(split::truncate(&mut page, b"b").is_err(), "nothing would be left");
    assert!(leaf::put(&mut page, b"c", Timestamp(1), 2, b"").is_err(), "unknown flag");
    assert!(leaf::put(&mut page, b"c", Timestamp(1), OVERFLOW, b"short").is_err());
    assert!(leaf::put(&mut page, b"c", Timestamp(1), 0, &[0; 2000]).is_err());
    assert!(inner::insert(&mut page, b"c", PageId(9)).is_err());
    assert!(!leaf::remove(&mut page, b"c").unwrap());
    assert!(redo(op::LEAF_REMOVE, b"c", &mut page).is_err());
    assert!(redo(99, b"", &mut page).is_err());
    check::check(&page).unwrap();
}

#[test]
fn overflow_pages_say_what_was_written() {
    for page_bytes in page_sizes() {
        let (data, index) = overflow::pages_of(page_bytes, 1 << 30);
        assert_eq!(data, (1u64 << 30).div_ceil(page_bytes as u64 - 32));
        assert_eq!(index, data.div_ceil((page_bytes as u64 - 40) / 8));
        assert_eq!(overflow::pages_of(page_bytes, 1), (1, 0));
        assert_eq!(overflow::pages_of(page_bytes, page_bytes as u64), (2, 1));

        let bytes: Vec<u8> = (0..overflow::data_capacity(page_bytes)).map(|byte| byte as u8).collect();
        let mut page = vec![0xee; page_bytes];
        for length in [bytes.len(), 5, 0] {
            overflow::init_data(&mut page, ID, false, &bytes[..length]);
            let mut read = Vec::new();
            assert_eq!(overflow::append_data(&page[..], &(0..usize::MAX), &mut read), Some(length));
            assert_eq!(read, bytes[..length]);
            for part in [0..length, length / 3..length / 2, length..length, length / 2..length + 9] {
                read.clear();
                assert_eq!(overflow::append_data(&page[..], &part, &mut read), Some(length));
                assert_eq!(read, bytes[part.start..part.end.min(length)]);
            }
            assert_eq!(split::gap(&page), 32 + length..page_bytes);
            check::check(&page).unwrap();
        }
        let ids: Vec<PageId> = (1..=overflow::index_capacity(page_bytes) as u64).map(PageId).collect();
        overflow::init_index(&mut page, ID, true, PageId(3), &ids);
        let mut read = Vec::new();
        assert_eq!(overflow::append_index(&page[..], &mut read), Some(PageId(3)));
        assert_eq!(read, ids);
        assert_eq!(overflow::append_data(&page[..], &(0..1), &mut Vec::new()), None);
        check::check(&page).unwrap();
    }
    let reference = Reference { total_length: 1 << 30, head: ID };
    assert_eq!(Reference::decode(&reference.encode()), Some(reference));
    assert_eq!(Reference::decode(&[0; 15]), None);
}

/// The bars are those of the design: 5.8 lines by a simulation of this layout.
#[test]
fn a_field_of_a_value_is_read_from_few_lines() {
    const PAGE: usize = 16 << 10;
    let mut page = vec![0; PAGE];
    leaf::init(&mut page, ID, b"user5000", Some(b"user5001"));
    let key = |number: u32| format!("user5000{:011}", number.wrapping_mul(0x9e37_79b9));
    for number in 0..10u32 {
        let value: Vec<u8> = (0..1000u32).map(|at| (at ^ number) as u8).collect();
        let put = leaf::put(&mut page, key(number).as_bytes(), Timestamp(1), 0, &value).unwrap();
        assert_eq!(put, leaf::Put::Inserted);
    }
    let words = words(&page);
    let touched = |number: u32, range: Range<usize>| {
        let (lines, mut part) = (LineSet::default(), Vec::new());
        let node = Node::new(Noting::new(Racy::new(&words), &lines));
        let key = key(number);
        let copied =
            copy_in(&node, key.as_bytes(), Part::new(&range), &mut part, || Ok(())).unwrap().unwrap();
        let expected: Vec<u8> = range.clone().map(|at| (at as u32 ^ number) as u8).collect();
        match copied.held {
            Held::Inline => assert_eq!(part, expected),
            held => assert!(held == Held::Outside(1000) && range.end > 1000 && part.is_empty()),
        }
        lines.count()
    };
    let fields = (0..10).flat_map(|number| (0..10).map(move |field| (number, field * 100)));
    let fields: Vec<u32> = fields.map(|(number, at)| touched(number, at..at + 100)).collect();
    let average = fields.iter().sum::<u32>() as f64 / fields.len() as f64;
    assert!(average <= 7.0 && fields.iter().all(|&lines| lines <= 8), "{average}: {fields:?}");
    assert!((0..10).all(|number| (17..=21).contains(&touched(number, 0..1000))), "all of the value");
    assert!((0..10).all(|number| touched(number, 0..1001) <= 5), "none of it");
}

#[test]
fn a_root_that_takes_its_child_in_keeps_what_suffixes_share() {
    let mut child = vec![0; 4096];
    leaf::init(&mut child, PageId(8), b"", None);
    for key in [&b"common-1"[..], b"common-2"] {
        leaf::put(&mut child, key, Timestamp(1), 0, b"value").unwrap();
    }
    let mut root = vec![0; 4096];
    inner::init(&mut root, 1, ID, b"", None, PageId(8));
    split::shrink_root(&mut root, &child).unwrap();
    check::check(&root).unwrap();
    let node = Node::new(&root[..]);
    assert_eq!((node.shared(), node.lower_bound(b"common-2")), (7, (1, true)));
    assert_eq!((node.lower_bound(b"commo").0, node.lower_bound(b"d").0), (0, 2));
}

fn words(page: &[u8]) -> Vec<AtomicU64> {
    page.chunks_exact(8).map(|word| AtomicU64::new(u64::from_ne_bytes(word.try_into().unwrap()))).collect()
}

fn read_all(view: impl View, key: &[u8]) {
    let node = Node::new(view);
    let mut bytes = Vec::new();
    let _ = (
        node.lower_bound(key),
        node.contains(key),
        node.fences(),
        node.child_at(node.child_index(key)),
        node.free_bytes(),
    );
    let _ =
        (leaf::has_room(view, key, 100), inner::has_room(view, key.len()), node.is_first(), node.is_last());
    let _ = (
        overflow::append_data(view, &(0..usize::MAX), &mut bytes),
        overflow::append_index(view, &mut Vec::new()),
    );
    for index in (0..node.count() + 2).step_by(1 + node.count() / 50) {
        bytes.clear();
        node.append_key(index, &mut bytes);
        assert!(bytes.len() <= 2 * MAX_KEY_BYTES);
        let entry = node.entry(index);
        node.append_value(&entry, &mut bytes);
        let _ = node.child_at(index);
    }
}

/// Calls everything that changes pages; the result may be anything, but no panic.
fn change_all(page: &[u8], key: &[u8], kind: u8, payload: &[u8]) {
    let mut other = page.to_vec();
    let _ = (split::gap(page), split::is_underfull(page), split::can_merge(page, page, key));
    let _ = split::split(page, key, 100, PageId(8), &mut other);
    let _ = split::merge(&mut page.to_vec(), page, key);
    let _ = split::shrink_root(&mut page.to_vec(), page);
    let _ = edit::compact(&mut page.to_vec(), None);
    let mut left = page.to_vec();
    let _ = split::grow_root(&mut page.to_vec(), key, 100, (PageId(8), &mut left), (PageId(9), &mut other));
    let mut page = page.to_vec();
    let _ = redo(kind, payload, &mut page);
    let _ = redo(op::LEAF_PUT, payload, &mut page);
    let _ = leaf::put(&mut page, key, Timestamp(1), 0, &[1; 60]);
    let _ = leaf::remove(&mut page, key);
    let _ = inner::insert(&mut page, key, PageId(3));
    let _ = inner::remove(&mut page, key);
    let _ = split::truncate(&mut page, key);
}

fn sample(kind: u8, page_bytes: usize, keys: &[Vec<u8>]) -> Vec<u8> {
    let mut page = vec![0; page_bytes];
    if kind == INNER {
        inner::init(&mut page, 1, ID, b"", Some(b"\xff\xff"), PageId(5));
    } else {
        leaf::init(&mut page, ID, b"", Some(b"\xff\xff"));
    }
    for key in keys {
        let _ = leaf::put(&mut page, key, Timestamp(1), 0, key);
        let _ = inner::insert(&mut page, key, PageId(6));
    }
    page
}

fn small_keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn garbage_is_read_and_changed_without_a_panic(
        start in prop::collection::vec(any::<u8>(), 64),
        seed in any::<u64>(),
        kind in 0..6u8,
        small in any::<bool>(),
        sane_header in any::<bool>(),
        key in prop::collection::vec(any::<u8>(), 0..40),
        change in 14..24u8,
        payload in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let page_bytes = if small { PAGE_BYTES_MIN } else { PAGE_BYTES_MAX };
        let mut state = seed | 1;
        let mut page: Vec<u8> = (0..page_bytes).map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        }).collect();
        page[..64].copy_from_slice(&start);
        page[super::layout::KIND] = kind;
        if sane_header {
            // A plausible header lets calls reach what lies behind it.
            let heap = page_bytes / 4 / 8;
            let numbers = [usize::from(start[24]), heap, usize::from(start[25]), usize::from(start[26]) % 4];
            for (index, number) in numbers.into_iter().enumerate() {
                edit::put_u16(&mut page, super::layout::COUNT + index * 2, number);
            }
        }
        read_all(&page[..], &key);
        read_all(Racy::new(&words(&page)), &key);
        let _ = check::check(&page);
        change_all(&page, &key, change, &payload);
    }

    #[test]
    fn damage_is_found_or_harmless(
        kind in LEAF..=INNER,
        keys in small_keys(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8, any::<bool>()), 1..4),
        key in prop::collection::vec(any::<u8>(), 0..40),
        change in 16..21u8,
        payload in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut page = sample(kind, 4096, &keys);
        prop_assert_eq!(check::check(&page), Ok(()));
        change_all(&page, &key, change, &payload);
        for (at, flip, in_header) in flips {
            let end = if in_header { slots_at(kind) + keys.len() * SLOT } else { page.len() };
            page[at.index(end)] ^= flip;
        }
        read_all(&page[..], &key);
        read_all(Racy::new(&words(&page)), &key);
        change_all(&page, &key, change, &payload);
        if check::check(&page).is_ok() && page[super::layout::KIND] == kind {
            let node = Node::new(&page[..]);
            let all: Vec<_> = (0..node.count()).map(|index| node.key(index)).collect();
            prop_assert!(all.is_sorted());
            for (index, key) in all.iter().enumerate() {
                prop_assert_eq!(node.lower_bound(key), (index, true));
                prop_assert!(node.contains(key));
            }
            edit::compact(&mut page, None).unwrap();
            prop_assert_eq!(check::check(&page), Ok(()));
            for key in all {
                let removed = if kind == LEAF { leaf::remove(&mut page, &key) } else { inner::remove(&mut page, &key) };
                prop_assert!(removed.unwrap());
            }
            prop_assert_eq!(check::check(&page), Ok(()));
        }
    }

    /// Keys with common prefixes, with and without fences: in a page and in a frame, a search
    /// equals a linear scan.
    #[test]
    fn a_search_finds_what_looking_at_every_key_finds(
        start in prop::collection::vec(0..2u8, 0..12),
        tails in prop::collection::vec(prop::collection::vec(0..3u8, 0..9), 1..400),
        probes in prop::collection::vec((prop::collection::vec(0..3u8, 0..12), any::<bool>()), 1..60),
        large in any::<bool>(),
        kind in LEAF..=INNER,
        ends in 0..4u8,
    ) {
        let mut page = vec![0; if large { PAGE_BYTES_MAX } else { PAGE_BYTES_MIN }];
        let (lower, upper) = (if ends & 1 == 0 { &b""[..] } else { &start }, [&start[..], b"\x04"].concat());
        let upper = (ends & 2 == 0).then_some(&upper[..]);
        if kind == INNER {
            inner::init(&mut page, 1, ID, lower, upper, PageId(5));
        } else {
            leaf::init(&mut page, ID, lower, upper);
        }
        let mut keys = std::collections::BTreeSet::new();
        for tail in tails {
            let key = [&start[..], &tail].concat();
            let room = if kind == INNER {
                !key.is_empty() && !keys.contains(&key) && inner::insert(&mut page, &key, PageId(6)).unwrap()
            } else {
                leaf::put(&mut page, &key, Timestamp(1), 0, b"").unwrap() != leaf::Put::DoesNotFit
            };
            if room {
                keys.insert(key);
            }
        }
        prop_assert_eq!(check::check(&page), Ok(()));
        let words = words(&page);
        let (plain, racy) = (Node::new(&page[..]), Node::new(Racy::new(&words)));
        let keys: Vec<_> = keys.into_iter().collect();
        prop_assert_eq!(plain.count(), keys.len());
        let inside = |key: &Vec<u8>| lower <= &key[..] && upper.is_none_or(|upper| &key[..] < upper);
        let probes = probes.into_iter().map(|(tail, alike)| if alike { [&start[..], &tail].concat() } else { tail });
        for key in probes.chain(keys.iter().cloned()).filter(inside) {
            let rank = keys.partition_point(|other| *other < key);
            let expected = (rank, keys.get(rank) == Some(&key));
            prop_assert_eq!(plain.lower_bound(&key), expected, "{:?}", key);
            prop_assert_eq!(racy.lower_bound(&key), expected, "{:?}", key);
        }
    }
}

#[test]
fn the_difference_of_two_values_is_the_shortest_run_of_words() {
    let old: Vec<u8> = (0..100).collect();
    let difference = |changed: &[usize]| {
        let mut new = old.clone();
        changed.iter().for_each(|&at| new[at] ^= 1);
        leaf::difference(&old, &new).map(|(at, bytes)| {
            assert_eq!(bytes, &new[at..at + bytes.len()]);
            (at, bytes.len())
        })
    };
    // The end is a word boundary from behind: 4, 12, 20, ...
    assert_eq!(difference(&[]), Some((96, 4)));
    assert_eq!(difference(&[0]), Some((0, 4)));
    assert_eq!(difference(&[50, 61]), Some((48, 20)));
    assert_eq!(difference(&[99]), Some((96, 4)));
    assert_eq!(difference(&[0, 99]), None, "all of it differs");
    assert_eq!(leaf::difference(&old, &old[1..]), None, "the lengths differ");
    assert_eq!(leaf::difference(b"", b""), None);
    assert_eq!(leaf::difference(b"a", b"b"), None);
}

#[test]
fn a_part_outside_its_value_is_damage_and_changes_nothing() {
    let mut page = vec![0; 4096];
    leaf::init(&mut page, PageId(9), &[], None);
    leaf::put(&mut page, b"key", Timestamp(1), 0, b"0123456789").unwrap();
    let reference = [0; Reference::BYTES];
    leaf::put(&mut page, b"long", Timestamp(1), OVERFLOW, &reference).unwrap();
    let before = page.clone();
    for (key, at, bytes) in
        [(&b"key"[..], 8, &b"abc"[..]), (b"key", usize::MAX, b"a"), (b"other", 0, b""), (b"long", 0, b"a")]
    {
        assert!(leaf::patch(&mut page, key, Timestamp(2), at, bytes).is_err());
        assert_eq!(page, before);
    }
    leaf::patch(&mut page, b"key", Timestamp(2), 7, b"abc").unwrap();
    let node = Node::new(&page[..]);
    let entry = leaf::find(&node, b"key").unwrap();
    assert_eq!((entry.timestamp, &page[entry.value_at..][..10]), (Timestamp(2), &b"0123456abc"[..]));
    assert_eq!(NodeOp::decode(LEAF_PATCH, &[1; 15]), None, "shorter than its header");
}
