//! Tiers on NUMA nodes: the kernel finds every page on its node.
//!
//! With one node both tiers are on it: the same system calls run and move nothing. Tests that need
//! two nodes are ignored here and run in a guest (`.ci/run numa`).

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use terrace_io::{MemoryDirectory, Migrate, NodeSet, Region};

use super::Mode;
use super::frames::residency_tests::have_pages_stay;
use super::partition::is_middle;
use crate::migration::Choice;
use crate::stats::{MemoryMoves, MiddleStats};
use crate::{Backend, Builder, Db, Error, RecordCache, Table};

const ROWS: u32 = 5000;

fn value(key: u32, round: u32) -> Vec<u8> {
    let mut value = vec![(key % 251) as u8; 1000];
    value[..8].copy_from_slice(&[key.to_be_bytes(), round.to_be_bytes()].concat());
    value
}

fn set(list: &str) -> NodeSet {
    list.parse().unwrap()
}

/// A budget of 2 MiB over 4 MiB on `far`. The data has some 7 MiB.
fn builder(backend: Backend, far: &str) -> Builder {
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).page_size(4096);
    let builder = builder.backend(backend).middle(format!("numa:{far},4MiB").parse().unwrap());
    builder.policy(Choice::Eager).mode(Mode::Inline).record_cache(RecordCache::Off).seed(1)
}

/// The expected rows of a table.
struct Model {
    table: Table,
    rounds: Vec<u32>,
    random: SmallRng,
}

impl Model {
    fn fill(db: &Db) -> Model {
        let table = db.create_table("t").unwrap();
        (0..ROWS).for_each(|key| table.put(key.to_be_bytes(), value(key, 0)).unwrap());
        Model { table, rounds: vec![0; ROWS as usize], random: SmallRng::seed_from_u64(5) }
    }

    /// Reads and changes rows. Half of the steps use a part that fits both tiers.
    fn work(&mut self, steps: u32) {
        for step in 0..steps {
            let most = if self.random.random_bool(0.5) { ROWS / 4 } else { ROWS };
            let key = self.random.random_range(0..most);
            let round = &mut self.rounds[key as usize];
            if self.random.random_bool(0.3) {
                *round += 1;
                self.table.put(key.to_be_bytes(), value(key, *round)).unwrap();
            } else {
                let found = self.table.get(key.to_be_bytes()).unwrap();
                assert_eq!(found.as_deref(), Some(&value(key, *round)[..]), "row {key} at step {step}");
            }
        }
    }

    fn check(&self) {
        for key in 0..ROWS {
            let found = self.table.get(key.to_be_bytes()).unwrap();
            assert_eq!(found.as_deref(), Some(&value(key, self.rounds[key as usize])[..]), "row {key}");
        }
    }
}

fn middle(db: &Db) -> MiddleStats {
    db.stats().middle.unwrap()
}

/// Counts wrongly placed and all system pages, by tier. The kernel reports the nodes.
fn elsewhere(db: &Db, near: &NodeSet, far: &NodeSet) -> ([u64; 2], [u64; 2]) {
    let pool = &db.shared.maintenance;
    let (mut wrong, mut all) = ([0; 2], [0; 2]);
    let mut count = |id, frame: u32| {
        let (tier, nodes) = (usize::from(is_middle(frame)), if is_middle(frame) { far } else { near });
        let found = pool.frames.nodes_of(id, frame);
        assert_eq!(found.len() * 4096, id.page_bytes(), "page {id} in frame {frame:x} has memory");
        all[tier] += found.len() as u64;
        wrong[tier] += found.into_iter().filter(|&node| !nodes.contains(node)).count() as u64;
    };
    for id in pool.page_ids() {
        if let Some(frame) = pool.table.entry(id).unwrap().location().frame() {
            count(id, frame);
            pool.frames.header(frame).middle_copy().into_iter().for_each(|below| count(id, below));
        }
    }
    (wrong, all)
}

fn assert_all_are_there(db: &Db, near: &str, far: &str, what: &str) {
    let (wrong, all) = elsewhere(db, &set(near), &set(far));
    assert_eq!(wrong, [0, 0], "{what}: of {all:?} pages, in DRAM on {near} and below on {far}");
    assert!(all[0] > 100 && all[1] > 100, "{what}: {all:?}");
    assert_eq!(db.shared.maintenance.audit(), [""; 0], "{what}");
}

/// Promotes, demotes and evicts pages, and checks their nodes after each round.
fn pages_are_where_they_are_said_to_be(near: &str, far: &str, ways: &[(Backend, Option<Migrate>)]) {
    for &(backend, way) in ways {
        let what = format!("{backend}, {way:?}");
        let builder = builder(backend, far).dram_nodes(set(near));
        let db = way.map_or(builder.clone(), |way| builder.migrate(way)).open("").unwrap();
        let mut model = Model::fill(&db);
        assert_all_are_there(&db, near, far, &what);
        let before = middle(&db);
        for round in 0..2 {
            model.work(1000);
            assert_all_are_there(&db, near, far, &format!("{what}, round {round}"));
        }
        // Now pages leave the middle tier only for the store.
        db.set_policy("0,0,1,0".parse().unwrap());
        model.work(1000);
        assert_all_are_there(&db, near, far, &format!("{what}, evicted"));
        let since = middle(&db).since(&before);
        let moved = since.migrations;
        assert!(moved.middle_to_dram > 300 && moved.dram_to_middle > 100, "{what}: {since:?}");
        assert!(moved.middle_to_store > 30 && moved.store_to_middle > 100, "{what}: {since:?}");
        let moves = since.memory_moves;
        assert_eq!((since.misplaced_pages, db.stats().misplaced_pages), (0, 0), "{what}");
        assert_eq!((moves.busy, moves.full), (0, 0), "{what}: {moves:?}");
        match backend {
            Backend::Frames => assert_eq!((moves.pages, moves.calls), (0, 0), "pages are copied"),
            Backend::Mapped => assert_eq!(moves.pages, moved.middle_to_dram + moved.dram_to_middle, "{what}"),
        }
        if backend == Backend::Mapped && way == Some(Migrate::Batch) {
            assert!(moves.calls_per_page() < 1.0 / 32.0, "{moves:?}");
        }
        model.check();
    }
}

/// How pages move: copies between frames, or the system in three ways.
const WAYS: [(Backend, Option<Migrate>); 4] = [
    (Backend::Mapped, Some(Migrate::Batch)),
    (Backend::Frames, None),
    (Backend::Mapped, Some(Migrate::Mbind)),
    (Backend::Mapped, Some(Migrate::Copy)),
];

#[test]
fn pages_of_tiers_on_one_node_are_there() {
    pages_are_where_they_are_said_to_be("0", "0", &WAYS);
}

#[test]
#[ignore = "needs a second node"]
fn pages_of_tiers_on_two_nodes_are_on_the_ones_that_the_engine_says() {
    pages_are_where_they_are_said_to_be("0", "1", &WAYS);
    // Nodes swapped, so that no page is right by default.
    pages_are_where_they_are_said_to_be("1", "0", &WAYS[..1]);
}

/// Some pages of every batch fail to move. They stay in their tier, and nothing is lost.
#[test]
fn pages_that_do_not_move_stay_in_their_tier() {
    for way in Migrate::ALL {
        let db = builder(Backend::Mapped, "0").migrate(way).open("").unwrap();
        let mut model = Model::fill(&db);
        let before = middle(&db);
        for one_in in [7, 2, 1, 3] {
            have_pages_stay(one_in);
            model.work(2000);
            have_pages_stay(0);
            assert_all_are_there(&db, "0", "0", &format!("{way}, one in {one_in}"));
        }
        let since = middle(&db).since(&before);
        let moves = since.memory_moves;
        assert!(moves.busy > 500 && moves.pages > 500 && moves.full == 0, "{way}: {moves:?}");
        assert_eq!(moves.pages, since.migrations.middle_to_dram + since.migrations.dram_to_middle, "{way}");
        model.check();
    }
}

#[test]
#[ignore = "needs a second node"]
fn frames_in_dram_are_on_the_nodes_that_were_asked_for_in_turn() {
    for backend in Backend::ALL {
        let builder =
            Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(8 << 20).backend(backend);
        let builder = builder.dram_max(16 << 20).mode(Mode::Inline).record_cache(RecordCache::Off).seed(1);
        let db = builder.dram_nodes(set("0-1")).open("").unwrap();
        let mut model = Model::fill(&db);
        for mebibytes in [8, 16, 12u64] {
            db.set_dram(mebibytes << 20).unwrap();
            model.work(500);
            let on = |node: &str| elsewhere(&db, &set(node), &set("0"));
            let ([not_near, _], [all, _]) = on("0");
            let ([not_far, _], _) = on("1");
            assert_eq!(not_near + not_far, all, "{backend}: on one of the two");
            // Frames are in huge pages, each on one node.
            let uneven = not_near.abs_diff(not_far);
            assert!(all > 1100 && uneven <= 512 + all / 5, "{backend}: {not_near} and {not_far} of {all}");
        }
        assert_eq!(db.stats().misplaced_pages, 0);
    }
}

#[test]
fn nodes_that_are_not_there_are_refused_at_open() {
    for backend in Backend::ALL {
        let error = builder(backend, "1000").open("").unwrap_err();
        assert!(matches!(error, Error::Config(_)) && error.to_string().contains("node 1000"), "{error}");
        let error = builder(backend, "0").dram_nodes(set("0,1000")).open("").unwrap_err();
        assert!(matches!(error, Error::Config(_)) && error.to_string().contains("node 1000"), "{error}");
        let much = format!("numa:0,{}GiB", 1 << 20);
        let error = builder(backend, "0").middle(much.parse().unwrap()).open("").unwrap_err();
        assert!(matches!(error, Error::Memory { .. } | Error::Config(_)), "{error}");
    }
}

/// Fills node 1 by preferred allocation, then by migration.
fn full_node() -> [Region; 2] {
    const BYTES: usize = 208 << 20;
    let preferred = Region::reserve(BYTES).unwrap();
    preferred.bind_to(0..BYTES, &set("1")).unwrap();
    preferred.commit(0..BYTES).unwrap();
    const MORE: usize = 32 << 20;
    let moved = Region::reserve_sparse(MORE, 4096).unwrap();
    let mut pages: Vec<_> = (0..MORE).step_by(4096).map(|page| page..page + 4096).collect();
    moved.populate(&mut pages).unwrap();
    let found = moved.migrate(&mut pages, 1, Migrate::Batch).unwrap();
    assert!(found.full > 0, "{found:?}");
    [preferred, moved]
}

/// The far node becomes full while the database is open. Pages without room there stay in DRAM or
/// go to the store. Misplaced ones are counted, and later moves use the node again. A database page
/// is four system pages, so the last move is torn and taken back.
#[test]
#[ignore = "needs a second node"]
fn a_node_that_becomes_full_is_counted_and_loses_nothing() {
    // The middle tier is unused so far, so its memory is still to come.
    let builder = builder(Backend::Mapped, "1").page_size(16 << 10).dram(4 << 20);
    let db = builder.policy("1,1,0,0".parse().unwrap()).open("").unwrap();
    let mut model = Model::fill(&db);
    let filler = full_node();
    let before = middle(&db);
    // Demote to the middle tier, and load past it.
    db.set_policy("1,1,0,1".parse().unwrap());
    // How much memory the kernel still finds on the full node differs from run to run.
    let mut since = before.clone();
    for _ in 0..20 {
        model.work(1500);
        since = middle(&db).since(&before);
        if since.memory_moves.full > 50 {
            break;
        }
    }
    let MemoryMoves { busy, full, .. } = since.memory_moves;
    assert!(full > 50, "{since:?}");
    assert!(since.down_refused >= busy + full, "{since:?}");
    assert_eq!(elsewhere(&db, &set("0"), &set("1")).0, [0, 0], "none moved in vain, and none in part");
    // Load into the middle tier; the system uses another node.
    db.set_policy("0,0,1,0".parse().unwrap());
    model.work(1500);
    let (wrong, _) = elsewhere(&db, &set("0"), &set("1"));
    let misplaced = middle(&db).since(&before).misplaced_pages;
    assert!(wrong[1] > 100 && misplaced >= wrong[1], "{wrong:?}, {misplaced} counted");
    assert_eq!(wrong[0], 0);
    drop(filler);
    db.set_policy("1,1,1,1".parse().unwrap());
    let again = middle(&db);
    model.work(1500);
    let since = middle(&db).since(&again);
    assert_eq!((since.memory_moves.full, since.misplaced_pages), (0, 0), "{since:?}");
    assert!(since.memory_moves.pages > 0, "{since:?}");
    assert_eq!(db.shared.maintenance.audit(), [""; 0]);
    model.check();
}

/// Readers of zeros must fail validation, though the page stays.
#[test]
fn a_page_that_stays_is_at_another_version_where_its_bytes_were_away() {
    for way in Migrate::ALL {
        let builder = builder(Backend::Mapped, "0").migrate(way).policy("0,0,1,1".parse().unwrap());
        let db = builder.open("").unwrap();
        let table = db.create_table("t").unwrap();
        (0..1500u32).for_each(|key| table.put(key.to_be_bytes(), value(key, 0)).unwrap());
        let pool = &db.shared.maintenance;
        let versions = || -> Vec<_> {
            let version = |id| pool.table.entry(id).unwrap().latch().load().version();
            pool.page_ids().map(|id| (id, version(id))).collect()
        };
        db.set_policy("1,1,1,1".parse().unwrap());
        let before = versions();
        have_pages_stay(1);
        for key in 0..1500u32 {
            assert_eq!(
                table.get(key.to_be_bytes()).unwrap().as_deref(),
                Some(&value(key, 0)[..]),
                "row {key}"
            );
        }
        have_pages_stay(0);
        let moves = middle(&db).memory_moves;
        assert!(moves.busy > 300 && moves.pages == 0, "{way}: {moves:?}");
        // All pages are in memory, so nothing else changes a version.
        let changed = before.iter().zip(versions()).filter(|(before, now)| **before != *now).count();
        assert_eq!(changed > 300, way == Migrate::Copy, "{way}: {changed} of {}", before.len());
        assert_eq!(pool.audit(), [""; 0], "{way}");
    }
}
