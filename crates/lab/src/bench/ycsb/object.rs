//! The object of `terrace bench ycsb --json`.
//!
//! All engines and tiers share its keys. Without a middle tier its fields are zero, so two and
//! three tiers compare directly. Uncounted values are null.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use terrace::{Cache, MemoryMoves, Middle, MiddleStats};
use terrace_common::failure::Outcome;
use terrace_common::latency::Summary;
use terrace_common::memory;
use terrace_common::store::Counters;

use crate::cost::Cost;
use crate::workload::driver::{Measured, Plan};
use crate::workload::fields::Touch;
use crate::workload::rate::Rate;

/// Bytes per line of the middle tier.
const LINE_BYTES: u64 = 64;

/// One run.
#[derive(Debug, Default, Serialize)]
pub struct BenchReport {
    pub(super) engine: String,
    /// Settings in the engine's own terms.
    pub(super) settings: BTreeMap<&'static str, String>,
    pub(super) workload: String,
    pub(super) distribution: String,
    pub(super) records: u64,
    pub(super) value_bytes: usize,
    /// The value of `--fields`.
    pub(super) fields: Option<String>,
    pub(super) touch: Touch,
    /// Whether reads passed values to a closure.
    pub(super) visit: bool,
    pub(super) threads: u64,
    /// The value of `--rate`; latencies then count from the scheduled time.
    pub(super) rate: Option<String>,
    /// Requests due but not made at the end; only with a rate.
    pub(super) overdue: Option<u64>,
    pub(super) seconds: f64,
    pub(super) operations: u64,
    pub(super) ops_per_second: f64,
    pub(super) latency_us: Summary,
    pub(super) errors: u64,
    pub(super) aborts: u64,
    pub(super) verified: u64,
    pub(super) load_seconds: f64,
    pub(super) rss_bytes: u64,
    pub(super) budget_bytes: u64,
    pub(super) tiers: Tiers,
    pub(super) migrations: Migrations,
    /// Memory moved between the nodes of two tiers, in database pages.
    pub(super) memory_moves: MemoryMoves,
    /// OS pages (4 KiB) placed in the middle tier on nodes other than its own.
    pub(super) misplaced_pages: u64,
    /// Misplaced OS pages of DRAM, if nodes were requested, since the database was opened.
    pub(super) dram_misplaced_pages: u64,
    pub(super) inclusivity: f64,
    pub(super) middle_line_writes: LineWritten,
    pub(super) log_bytes: u64,
    /// How often the log wrapped during the measurement.
    pub(super) log_cycles: Option<f64>,
    /// Page file and log bytes read and written, per operation.
    pub(super) store_bytes_per_operation: f64,
    pub(super) policy: Policy,
    pub(super) in_place: InPlace,
    /// Block cache statistics of the measurement and its current state; null without a cache.
    pub(super) cache: Option<terrace::CacheStats>,
    pub(super) middle_writes_by_cause: MiddleWrites,
    pub(super) dram_flushes: u64,
    /// Total dollars of DRAM, middle tier, block cache and files. Null if the middle tier's kind is
    /// unknown, or if the engine does not report its memory.
    pub(super) cost: Option<f64>,
    /// The terms of `cost`.
    pub(super) prices: Cost,
    pub(super) by_operation: BTreeMap<&'static str, ByOperation>,
    /// Seconds since the start, and operations completed in the second that ended then.
    pub(super) over_time: Vec<(f64, u64)>,
    /// Throughput of the slowest second relative to the median second.
    pub(super) slowest_second: Option<f64>,
    pub(super) stalls: BTreeMap<String, u64>,
    /// File bytes still dirty at the end: of this process's control group, or the machine's
    /// increase. Null without files on a disk.
    pub(super) dirty_bytes: Option<u64>,
    /// CPU share used by other processes during the measurement.
    pub(super) others_cpu: Option<f64>,
    pub(super) void: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Tiers {
    pub(super) dram: Tier,
    pub(super) middle: Tier,
    pub(super) store: Tier,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Tier {
    pub(super) simulated: bool,
    pub(super) capacity_bytes: u64,
    /// Page accesses served here. Null if uncounted: a hit in memory writes nothing.
    pub(super) hits: Option<u64>,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Migrations {
    pub(super) store_to_dram: u64,
    pub(super) store_to_middle: u64,
    pub(super) middle_to_dram: u64,
    pub(super) dram_to_middle: u64,
    pub(super) dram_to_store: u64,
    pub(super) middle_to_store: u64,
}

/// Line writes (64 bytes) to the middle tier during the measurement: the total, and the most for
/// one line. A page promoted into the tier writes all lines of its frame. Null unless the tier is
/// simulated.
#[derive(Debug, Serialize)]
pub(super) struct LineWritten {
    pub(super) total: Option<u64>,
    pub(super) max: Option<u64>,
}

impl Default for LineWritten {
    /// No tier, no writes.
    fn default() -> Self {
        LineWritten { total: Some(0), max: Some(0) }
    }
}

/// Migration probabilities: to DRAM on a read and a write, to the middle tier on a read and a
/// write.
#[derive(Debug, Serialize)]
pub(super) struct Policy {
    pub(super) dr: f64,
    pub(super) dw: f64,
    pub(super) nr: f64,
    pub(super) nw: f64,
}

impl Default for Policy {
    /// With two tiers every accessed page goes to DRAM.
    fn default() -> Self {
        Policy { dr: 1.0, dw: 1.0, nr: 0.0, nw: 0.0 }
    }
}

#[derive(Debug, Default, Serialize)]
pub(super) struct InPlace {
    pub(super) reads: u64,
    pub(super) writes: u64,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct MiddleWrites {
    in_place: u64,
    from_dram: u64,
    from_store: u64,
    log: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ByOperation {
    pub(super) operations: u64,
    pub(super) latency_us: Summary,
}

/// The environment of a measurement.
pub(super) struct Surroundings {
    pub(super) engine: String,
    pub(super) settings: BTreeMap<&'static str, String>,
    /// Kind of the middle tier, if the flags name it.
    pub(super) middle: Option<Middle>,
    /// The block cache.
    pub(super) cache: Option<Cache>,
    pub(super) is_on_disk: bool,
    pub(super) load: Duration,
    pub(super) dirty_bytes: Option<u64>,
    pub(super) others_cpu: Option<f64>,
}

impl BenchReport {
    pub(super) fn new(
        plan: &Plan,
        rate: Option<&Rate>,
        around: Surroundings,
        measured: &Measured,
    ) -> Outcome<BenchReport> {
        let counters = &measured.counters;
        let (dram, store) =
            (counters.budget_bytes, counters.store_capacity_bytes + counters.log_capacity_bytes);
        let middle = counters.middle.as_ref().map_or(0, |middle| middle.capacity_bytes);
        let kind = around.middle.as_ref().map(Middle::kind);
        let prices = Cost::of(dram, kind, middle, store, around.is_on_disk)?;
        let prices = match (&around.cache, &counters.cache) {
            (Some(cache), Some(found)) => prices.with_cache(cache.kind(), found.capacity_bytes)?,
            _ => prices,
        };
        let rate = rate.map(Rate::to_string);
        Ok(BenchReport {
            rate,
            cost: prices.dollars().filter(|_| dram > 0),
            prices,
            ..report(plan, around, measured)
        })
    }
}

fn report(plan: &Plan, around: Surroundings, measured: &Measured) -> BenchReport {
    let counters: &Counters = &measured.counters;
    let store_bytes = counters.store_read_bytes + counters.store_written_bytes + counters.log_bytes;
    let void = match (measured.wrong, measured.errors) {
        (0, 0) => None,
        (0, errors) => Some(format!("{errors} operations failed")),
        (wrong, _) => Some(format!("{wrong} values read back were wrong or missing")),
    };
    BenchReport {
        engine: around.engine,
        settings: around.settings,
        workload: plan.mix.to_string(),
        distribution: plan.distribution.to_string(),
        records: plan.records,
        value_bytes: plan.value_bytes,
        fields: plan.fields.map(|fields| fields.to_string()),
        touch: plan.touch,
        visit: plan.visit,
        threads: plan.threads,
        overdue: plan.rate.map(|_| measured.overdue),
        seconds: measured.seconds,
        operations: measured.operations,
        ops_per_second: measured.operations as f64 / measured.seconds.max(1e-9),
        latency_us: measured.latencies.summary(),
        errors: measured.errors,
        aborts: counters.aborts.max(measured.reruns),
        verified: measured.verified,
        load_seconds: around.load.as_secs_f64(),
        rss_bytes: memory::peak_resident_bytes(),
        budget_bytes: counters.budget_bytes,
        tiers: tiers(counters),
        migrations: migrations(counters),
        memory_moves: counters.middle.as_ref().map(|middle| middle.memory_moves).unwrap_or_default(),
        misplaced_pages: counters.middle.as_ref().map_or(0, |middle| middle.misplaced_pages),
        dram_misplaced_pages: counters.dram_misplaced_pages,
        inclusivity: counters.middle.as_ref().map_or(0.0, MiddleStats::inclusivity),
        middle_line_writes: line_writes(measured),
        cache: counters.cache.clone(),
        policy: counters.middle.as_ref().map(|middle| middle.policy.into()).unwrap_or_default(),
        in_place: counters.middle.as_ref().map_or(InPlace::default(), |middle| InPlace {
            reads: middle.reads_in_place,
            writes: middle.writes_in_place,
        }),
        middle_writes_by_cause: counters.middle.as_ref().map(middle_writes).unwrap_or_default(),
        dram_flushes: counters.dram_to_store,
        log_bytes: counters.log_bytes,
        log_cycles: counters.log_position.map(|position| position.cycles()),
        store_bytes_per_operation: store_bytes as f64 / measured.operations.max(1) as f64,
        by_operation: measured
            .by_kind
            .iter()
            .map(|(kind, found)| {
                (kind.name(), ByOperation { operations: found.count(), latency_us: found.summary() })
            })
            .collect(),
        over_time: measured.over_time.clone(),
        slowest_second: measured.slowest_tick(plan.tick),
        stalls: counters.stalls.iter().cloned().collect(),
        dirty_bytes: around.dirty_bytes,
        others_cpu: around.others_cpu,
        void,
        ..BenchReport::default()
    }
}

fn tiers(counters: &Counters) -> Tiers {
    Tiers {
        dram: Tier { capacity_bytes: counters.dram_capacity_bytes, hits: None, ..Tier::default() },
        middle: counters.middle.as_ref().map(middle_tier).unwrap_or_default(),
        store: Tier {
            simulated: false,
            capacity_bytes: counters.store_capacity_bytes,
            hits: Some(counters.store_hits),
            read_bytes: counters.store_read_bytes,
            written_bytes: counters.store_written_bytes,
        },
    }
}

fn middle_writes(middle: &MiddleStats) -> MiddleWrites {
    let terrace::MiddleWrites { in_place, from_dram, from_dram_clean, from_store, created, .. } =
        middle.writes;
    MiddleWrites {
        in_place,
        from_dram: from_dram + from_dram_clean,
        from_store: from_store + created,
        log: 0,
    }
}

fn line_writes(measured: &Measured) -> LineWritten {
    match (&measured.counters.middle, &measured.line_writes) {
        (None, _) => LineWritten::default(),
        (Some(_), None) => LineWritten { total: None, max: None },
        (Some(_), Some(writes)) => LineWritten { total: Some(writes.total()), max: Some(writes.max()) },
    }
}

/// Middle-tier counts. Bytes read are whole pages; accesses in place count as hits. Bytes written
/// are whole pages and changed lines.
fn middle_tier(middle: &MiddleStats) -> Tier {
    let moved = &middle.migrations;
    let looks = middle.reads_in_place + middle.writes_in_place + moved.middle_to_dram;
    Tier {
        simulated: middle.simulated,
        capacity_bytes: middle.capacity_bytes,
        // The first access after a read from the store counts for the store.
        hits: Some(looks.saturating_sub(moved.store_to_middle)),
        read_bytes: middle.read_bytes,
        written_bytes: middle.written_bytes + middle.lines_written * LINE_BYTES,
    }
}

/// Pages migrated between tiers. DRAM pages leaving for the store count when written, as with two
/// tiers.
fn migrations(counters: &Counters) -> Migrations {
    let two = Migrations {
        store_to_dram: counters.store_to_dram,
        dram_to_store: counters.dram_to_store,
        ..Migrations::default()
    };
    counters.middle.as_ref().map_or(two, |middle| Migrations {
        store_to_dram: counters.store_to_dram,
        dram_to_store: counters.dram_to_store,
        store_to_middle: middle.migrations.store_to_middle,
        middle_to_dram: middle.migrations.middle_to_dram,
        dram_to_middle: middle.migrations.dram_to_middle,
        middle_to_store: middle.middle_flushes,
    })
}

impl From<terrace::migration::Policy> for Policy {
    fn from(policy: terrace::migration::Policy) -> Policy {
        Policy { dr: policy.dr(), dw: policy.dw(), nr: policy.nr(), nw: policy.nw() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::driver::Length;
    use crate::workload::ycsb::Distribution;

    #[test]
    fn an_engine_that_does_not_say_how_much_memory_it_takes_has_no_cost() {
        let plan = Plan {
            mix: "c".parse().unwrap(),
            distribution: Distribution::Uniform,
            records: 1,
            value_bytes: 1,
            fields: None,
            touch: Touch::All,
            visit: false,
            threads: 1,
            rate: None,
            length: Length::Operations(1),
            warmup: Duration::ZERO,
            seed: 1,
            tick: Duration::from_secs(1),
        };
        let cost = |budget_bytes| {
            let around = Surroundings {
                engine: "one".into(),
                settings: BTreeMap::new(),
                middle: None,
                cache: None,
                is_on_disk: false,
                load: Duration::ZERO,
                dirty_bytes: None,
                others_cpu: None,
            };
            let counters =
                Counters { budget_bytes, store_capacity_bytes: 1_000_000_000, ..Counters::default() };
            let measured = Measured { counters, ..Measured::default() };
            BenchReport::new(&plan, None, around, &measured).unwrap().cost
        };
        assert_eq!((cost(0), cost(1_000_000_000)), (None, Some(20.0)));
    }
}
