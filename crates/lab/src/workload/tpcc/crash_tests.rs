//! Power cuts under TPC-C: the conditions hold, and acknowledged new orders are there.
//!
//! `TERRACE_TPCC_CUTS` is the number of cuts, `TERRACE_SEED` the seed.

use std::sync::Arc;

use terrace::{Db, Durability, Middle, Mode, Profile, SimulatedDisk, TableOptions};

use terrace_common::failure::Outcome as Done;

use super::access::Engine;
use super::check::{Moment, check};
use super::load::load;
use super::rows::{self, DistrictId, OrderId, WarehouseId};
use super::tables::Tables;
use super::transactions::{Outcome, Worker};
use super::{Kind, Mix, Scale};
use crate::hierarchy::{on_new_thread, side_by_side};

const SCALE: Scale = Scale { warehouses: 1, items: 40, customers: 10 };
const TRANSACTIONS: u64 = 60;

/// The tiers below DRAM.
#[derive(Clone, Copy, Debug)]
enum Tiers {
    Store,
    Middle,
    Persistent,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("the variable is a number"))
}

fn open(disk: &SimulatedDisk, tiers: Tiers) -> terrace::Result<Db> {
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(2 << 20).mode(Mode::Inline).seed(1);
    let builder = builder.durability(Durability::Sync);
    let optane = || Profile::named("optane").expect("the profile is built in");
    let middle = |profile| Middle::new(terrace::MiddleKind::Simulated(profile), 256 << 10);
    match tiers {
        Tiers::Store => builder.no_middle(),
        Tiers::Middle => builder.middle(middle(optane().with_persistent(false))),
        Tiers::Persistent => builder.middle(middle(optane().with_persistent(true))),
    }
    .open("")
}

/// Number of the last order of each district that was acknowledged.
type Ledger = Vec<((WarehouseId, DistrictId), OrderId)>;

fn last_orders(tables: &Tables) -> Done<Ledger> {
    let mut ledger = Ledger::new();
    tables.read(|snapshot| {
        let span = rows::DISTRICT.span(None, None);
        rows::DISTRICT.each(snapshot, &span, |key, row| ledger.push((key, row.next_order - 1)))
    })?;
    Ok(ledger)
}

/// Loads and runs until the end, or the power fails. Returns the calls of the load and of all.
fn run(disk: &SimulatedDisk, tiers: Tiers, seed: u64, ledger: &mut Ledger) -> Result<(u64, u64), String> {
    let told = |error: &dyn std::fmt::Debug| format!("{error:?}");
    let db = open(disk, tiers).map_err(|error| told(&error))?;
    let tables = Tables::open(&db, &TableOptions::new()).map_err(|error| told(&error))?;
    load(&tables, SCALE, seed, |_| Ok(())).map_err(|error| told(&error))?;
    let loaded = disk.calls();
    let mut worker = Worker::new(tables.clone(), SCALE, Mix::default(), seed, 0);
    for _ in 0..TRANSACTIONS {
        let outcome = worker.step().map_err(|error| told(&error))?;
        if outcome == Outcome::Committed(Kind::NewOrder) {
            *ledger = last_orders(&tables).map_err(|error| told(&error))?;
        }
    }
    Ok((loaded, disk.calls()))
}

/// Cuts the power at `call` and checks what survives.
fn cut(call: u64, tiers: Tiers, seed: u64) {
    let (disk, mut ledger) = (SimulatedDisk::new(seed), Ledger::new());
    disk.crash_at(call);
    let ended = run(&disk, tiers, seed, &mut ledger);
    assert!(ended.is_err() && disk.crashed().is_some(), "the power fails at call {call}, seed {seed}");
    let db = open(&disk.survivor(seed ^ call), tiers).unwrap();
    let tables = Tables::existing(&db).unwrap();
    let checked = check(&tables, SCALE, Moment::Running).unwrap();
    assert_eq!(checked.broken, [], "call {call}, seed {seed}, {tiers:?}");
    let found = last_orders(&tables).unwrap();
    for (&(district, last), (same, now)) in ledger.iter().zip(found) {
        assert_eq!(district, same);
        assert!(now >= last, "order {last} of {district:?} is lost: call {call}, seed {seed}, {tiers:?}");
    }
}

#[test]
fn conditions_and_acknowledged_orders_survive_power_cuts_on_all_tiers() {
    let (cuts, seed) = (number("TERRACE_TPCC_CUTS", 6), number("TERRACE_SEED", 1));
    for tiers in [Tiers::Store, Tiers::Middle, Tiers::Persistent] {
        let mut ledger = Ledger::new();
        let disk = SimulatedDisk::new(seed);
        let (loaded, end) = on_new_thread(|| run(&disk, tiers, seed, &mut ledger)).unwrap();
        assert!(end > loaded + cuts, "the run makes calls");
        let calls: Vec<u64> =
            (0..cuts).map(|cut| loaded + 1 + (end - loaded - 1) * (2 * cut + 1) / (2 * cuts)).collect();
        side_by_side(&calls, |&call| {
            on_new_thread(|| cut(call, tiers, seed));
            Ok(())
        })
        .unwrap();
    }
}
