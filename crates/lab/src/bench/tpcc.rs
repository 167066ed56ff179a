//! `terrace bench tpcc`: loads a TPC-C business, runs its five transactions, and checks it.
//!
//! The figure is new orders a minute that were committed. With few warehouses threads share rows,
//! and conflicts show what that costs. `--engine` names a peer, with the same budget and class of
//! durability; the report tells its isolation and settings.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace::{Concurrency, Db, Key, MemoryDirectory, MiddleStats, Value};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::latency::{Latencies, Summary};
use terrace_common::memory;
use terrace_common::output::{print, print_json, print_settings};
use terrace_common::progress::Progress;
use terrace_common::store::Settings;
use terrace_common::tiers::durability_name;
use terrace_common::units::{counted, show_count, show_size};

use super::ground;
use crate::args::TpccArgs;
use crate::peers::business::{self, Peer};
use crate::peers::{self, BUDGET_DEFAULT};
use crate::workload::tpcc::access::{Direction, Engine, NAMES, Reads, Rows};
use crate::workload::tpcc::check::{Moment, check};
use crate::workload::tpcc::load::load;
use crate::workload::tpcc::rows;
use crate::workload::tpcc::tables::Tables;
use crate::workload::tpcc::transactions::{self, Worker};
use crate::workload::tpcc::{Kind, Scale};

/// Default duration.
const SECONDS: Duration = Duration::from_secs(10);
/// How Terrace isolates transactions that write.
fn isolation(protocol: Concurrency) -> &'static str {
    match protocol {
        Concurrency::Occ => "serializable, optimistic",
        Concurrency::Mvto => "serializable, timestamp ordering",
    }
}

/// What one kind of transaction did.
#[derive(Debug, Default, Serialize)]
struct KindReport {
    committed: u64,
    /// Runs that a conflict ended.
    reruns: u64,
    latency_us: Summary,
}

/// The object of `--json`.
#[derive(Debug, Default, Serialize)]
struct TpccReport {
    engine: String,
    isolation: &'static str,
    durability: &'static str,
    settings: BTreeMap<&'static str, String>,
    warehouses: u32,
    items: u32,
    customers: u32,
    mix: String,
    threads: u16,
    seconds: f64,
    /// Committed new orders, divided by the minutes of the run.
    new_orders_per_minute: f64,
    /// Committed transactions of all kinds a second.
    transactions_per_second: f64,
    by_kind: BTreeMap<&'static str, KindReport>,
    /// New orders rolled back because of an unknown item.
    rolled_back: u64,
    /// Deliveries without a new order in some district.
    skipped: u64,
    /// Runs that a conflict ended, divided by all runs.
    conflict_share: f64,
    /// Terrace's waits in the run, by reason.
    waits: BTreeMap<&'static str, u64>,
    /// Orders in the business at the end.
    orders: u64,
    /// Consistency conditions checked at the end, all of which hold.
    conditions: u8,
    load_seconds: f64,
    rss_bytes: u64,
    budget_bytes: u64,
    middle: Option<MiddleStats>,
}

/// What a thread did in the measurement.
#[derive(Debug, Default)]
struct Done {
    by_kind: BTreeMap<Kind, Latencies>,
    reruns: BTreeMap<Kind, u64>,
    rolled_back: u64,
    skipped: u64,
    /// Transactions, and their runs.
    transactions: u64,
    runs: u64,
}

impl Done {
    fn add(&mut self, other: &Done) {
        for (&kind, latencies) in &other.by_kind {
            self.by_kind.entry(kind).or_default().add(latencies);
        }
        for (&kind, &reruns) in &other.reruns {
            *self.reruns.entry(kind).or_default() += reruns;
        }
        self.rolled_back += other.rolled_back;
        self.skipped += other.skipped;
        self.transactions += other.transactions;
        self.runs += other.runs;
    }

    /// Counts a transaction, by the engine's `transactions` that it consists of and their runs.
    fn count(&mut self, outcome: transactions::Outcome, transactions: u64, runs: u64, time: Duration) {
        self.transactions += transactions;
        self.runs += runs;
        match outcome {
            transactions::Outcome::RolledBack => self.rolled_back += 1,
            transactions::Outcome::Skipped => self.skipped += 1,
            transactions::Outcome::Committed(kind) => {
                self.by_kind.entry(kind).or_default().record(time);
                *self.reruns.entry(kind).or_default() += runs - transactions;
            }
        }
    }

    fn committed(&self, kind: Kind) -> u64 {
        self.by_kind.get(&kind).map_or(0, Latencies::count)
    }
}

/// Runs the benchmark.
pub fn run(args: &TpccArgs, output: &mut dyn Write) -> Outcome {
    if peers::tiers(&args.engine, &args.tiers) != args.tiers {
        return Err(Failure::Usage(format!(
            "--engine {} has no tiers; of the flags for them it takes --dram, --durability and --seed",
            args.engine
        )));
    }
    if is_new(args) {
        ground::take(args.store.as_deref())?;
    }
    let report = match args.engine.as_str() {
        "lmdb" => of_peer::<business::Lmdb>(args),
        "sqlite" => of_peer::<business::Sqlite>(args),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => of_peer::<business::RocksDb>(args),
        _ => of_terrace(args),
    }?;
    match args.output.json {
        true => print_json(output, &report),
        false => show(&report, output),
    }
}

/// Whether the business is loaded first.
fn is_new(args: &TpccArgs) -> bool {
    !args.loaded && !args.check
}

fn scale(args: &TpccArgs) -> Scale {
    Scale { warehouses: args.warehouses, items: args.items, customers: args.customers }
}

fn of_terrace(args: &TpccArgs) -> Outcome<TpccReport> {
    let builder = args.tiers.builder()?.create(is_new(args));
    // A signal during recovery loses nothing: the next open repeats it.
    let db = interrupt::at_once(|| {
        Ok(match &args.store {
            Some(path) => builder.open(path)?,
            None => builder.directory(Arc::new(MemoryDirectory::new())).open("")?,
        })
    })?;
    let measured = in_db(&db, args);
    let closed = db.close();
    measured.and_then(|report| Ok(closed.map(|()| report)?))
}

fn in_db(db: &Db, args: &TpccArgs) -> Outcome<TpccReport> {
    let tables = match is_new(args) {
        true => {
            for name in NAMES {
                match db.drop_table(name) {
                    Ok(()) | Err(terrace::Error::TableNotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Tables::open(db, &args.tiers.layout.table_options())?
        }
        false => Tables::existing(db)?,
    };
    let report = measure(&tables, args, || db.stats().stalls.by_reason().collect())?;
    let stats = db.stats();
    let files = if args.store.is_some() { "as given" } else { "none, all in memory" };
    let settings = BTreeMap::from([
        ("version", format!("terrace {}", env!("CARGO_PKG_VERSION"))),
        ("dram", show_size(stats.budget_bytes)),
        ("files", files.to_owned()),
    ]);
    let budget_bytes = stats.budget_bytes;
    let isolation = isolation(stats.concurrency);
    Ok(TpccReport { isolation, settings, budget_bytes, middle: stats.middle, ..report })
}

fn of_peer<P: Peer>(args: &TpccArgs) -> Outcome<TpccReport> {
    let settings = Settings {
        create: is_new(args),
        threads: args.threads.into(),
        records: scale(args).rows(),
        value_bytes: Scale::ROW_BYTES,
        ..Settings::new(&args.tiers, args.store.clone())
    };
    let peer = interrupt::at_once(|| P::open(&settings))?;
    let measured = measure(&peer, args, BTreeMap::new);
    let (settings, closed) = (peer.settings(), peer.close());
    let report = measured.and_then(|report| closed.map(|()| report))?;
    let budget_bytes = args.tiers.memory.dram.unwrap_or(BUDGET_DEFAULT);
    Ok(TpccReport { isolation: P::ISOLATION, settings, budget_bytes, ..report })
}

/// `waits` returns the engine's waits so far.
fn measure<E: Engine>(
    engine: &E,
    args: &TpccArgs,
    waits: impl Fn() -> BTreeMap<&'static str, u64>,
) -> Outcome<TpccReport> {
    let (scale, began) = (scale(args), Instant::now());
    match is_new(args) {
        true => fresh(engine, args, scale)?,
        false => loaded(engine, args, scale)?,
    }
    let load_seconds = if is_new(args) { began.elapsed().as_secs_f64() } else { 0.0 };
    let before = waits();
    let (done, seconds) = match args.check {
        true => (Done::default(), 0.0),
        false => run_threads(engine, scale, args)?,
    };
    let mut waits = waits();
    waits.iter_mut().for_each(|(reason, count)| *count -= before.get(reason).unwrap_or(&0));
    let orders = settled(engine, scale, Moment::Running)?;
    let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let committed = Kind::ALL.into_iter().map(|kind| done.committed(kind)).sum();
    let kind_report = |(kind, latencies): (&Kind, &Latencies)| {
        let reruns = done.reruns.get(kind).copied().unwrap_or(0);
        (kind.name(), KindReport { committed: latencies.count(), reruns, latency_us: latencies.summary() })
    };
    Ok(TpccReport {
        engine: args.engine.clone(),
        durability: durability_name(args.tiers.commits.durability),
        warehouses: scale.warehouses,
        items: scale.items,
        customers: scale.customers,
        mix: args.mix.to_string(),
        threads: args.threads,
        seconds,
        new_orders_per_minute: per_second(done.committed(Kind::NewOrder)) * 60.0,
        transactions_per_second: per_second(committed),
        by_kind: done.by_kind.iter().map(kind_report).collect(),
        rolled_back: done.rolled_back,
        skipped: done.skipped,
        conflict_share: match done.runs {
            0 => 0.0,
            // A delivery is ten transactions of the engine.
            runs => (runs - done.transactions) as f64 / runs as f64,
        },
        waits,
        orders,
        conditions: Moment::Running.conditions(),
        load_seconds,
        rss_bytes: memory::peak_resident_bytes(),
        ..TpccReport::default()
    })
}

/// Loads a business into empty tables, and checks it.
fn fresh<E: Engine>(engine: &E, args: &TpccArgs, scale: Scale) -> Outcome {
    let progress = Progress::new("load", "warehouses", scale.warehouses.into());
    load(engine, scale, args.tiers.seed, |warehouses| {
        progress.set(warehouses.into());
        interrupt::check()
    })?;
    settled(engine, scale, Moment::Loaded).map(drop)
}

/// Checks that the tables of an earlier load have the same size.
fn loaded<E: Engine>(engine: &E, args: &TpccArgs, scale: Scale) -> Outcome {
    let (warehouses, items, customers) = engine.read(|snapshot| {
        let warehouses = last(snapshot, rows::WAREHOUSE)?.unwrap_or(0);
        let items = last(snapshot, rows::ITEM)?.unwrap_or(0);
        Outcome::Ok((warehouses, items, last(snapshot, rows::CUSTOMER)?.map_or(0, |key| key.2)))
    })?;
    if (warehouses, items) != (scale.warehouses, scale.items) {
        return Err(Failure::Usage(format!(
            "the database has {warehouses} warehouses and {items} items; give --warehouses {warehouses} --items {items}"
        )));
    }
    if customers != args.customers {
        return Err(Failure::Usage(format!(
            "the database has {customers} customers in a district; give --customers {customers}"
        )));
    }
    Ok(())
}

/// The last key of a table.
fn last<K: Key, V: Value>(reads: &mut impl Reads, table: Rows<K, V>) -> Outcome<Option<K>> {
    let last = table.first(reads, &table.span(None, None), Direction::Descending)?;
    Ok(last.map(|(key, _)| key))
}

/// Checks the consistency conditions and returns the number of orders.
fn settled<E: Engine>(engine: &E, scale: Scale, moment: Moment) -> Outcome<u64> {
    let checked = check(engine, scale, moment)?;
    match checked.broken.is_empty() {
        true => Ok(checked.orders),
        false => {
            let told: Vec<_> = checked.broken.iter().map(ToString::to_string).collect();
            Err(Failure::Damaged(told.join("; ")))
        }
    }
}

/// Runs the threads; returns what they did and the seconds they took.
fn run_threads<E: Engine>(engine: &E, scale: Scale, args: &TpccArgs) -> Outcome<(Done, f64)> {
    let time = args.seconds.unwrap_or(SECONDS);
    let (began, warm) = (Instant::now(), args.warmup);
    let stop = AtomicBool::new(false);
    let work = |thread: u64| -> Outcome<Done> {
        let mut worker = Worker::new(engine.clone(), scale, args.mix, args.tiers.seed, thread);
        let share = args.transactions.map(|all| part(all, thread, args.threads.into()));
        let (mut done, mut runs_before, mut steps) = (Done::default(), 0, 0);
        let mut at = Instant::now();
        loop {
            interrupt::check()?;
            let is_over = match share {
                Some(share) => steps >= share,
                None => at.duration_since(began) >= warm + time,
            };
            // Relaxed: the flag guards no other data.
            if is_over || stop.load(Relaxed) {
                break;
            }
            let outcome = worker.step()?;
            if args.acknowledge && outcome == transactions::Outcome::Committed(Kind::NewOrder) {
                let told = |error| Failure::Work(format!("writing standard error failed: {error}"));
                writeln!(io::stderr(), "new order").map_err(told)?;
            }
            let now = Instant::now();
            // With a number of transactions there is no warm-up.
            let counts = share.is_some() || at.duration_since(began) >= warm;
            if counts {
                let (transactions, runs) = (worker.engine_transactions(outcome), worker.runs - runs_before);
                done.count(outcome, transactions, runs, now.duration_since(at));
            }
            runs_before = worker.runs;
            steps += 1;
            at = now;
        }
        Ok(done)
    };
    let done = thread::scope(|scope| {
        let threads: Vec<_> = (0..u64::from(args.threads))
            .map(|thread| {
                let (work, stop) = (&work, &stop);
                scope.spawn(move || {
                    let done = work(thread);
                    if done.is_err() {
                        stop.store(true, Relaxed);
                    }
                    done
                })
            })
            .collect();
        let all: Vec<_> =
            threads.into_iter().map(|thread| thread.join().expect("a worker panicked")).collect();
        let mut sum = Done::default();
        for done in all {
            sum.add(&done?);
        }
        Outcome::Ok(sum)
    })?;
    let warm = if args.transactions.is_some() { Duration::ZERO } else { warm };
    Ok((done, began.elapsed().saturating_sub(warm).as_secs_f64()))
}

/// How many of `all` transactions thread `thread` of `threads` runs.
fn part(all: u64, thread: u64, threads: u64) -> u64 {
    all / threads + u64::from(thread < all % threads)
}

fn show(report: &TpccReport, output: &mut dyn Write) -> Outcome {
    let TpccReport { engine, warehouses, items, customers, mix, threads, .. } = report;
    let TpccReport { isolation, durability, .. } = report;
    let (warehouses, threads) =
        (counted((*warehouses).into(), "warehouse"), counted((*threads).into(), "thread"));
    let (items, customers) = (counted((*items).into(), "item"), counted((*customers).into(), "customer"));
    print(
        output,
        format_args!(
            "tpcc on {engine}, {warehouses}, {items}, {customers} a district, mix {mix}, {threads}\n"
        ),
    )?;
    print(output, format_args!("durability {durability}; isolation {isolation}\n"))?;
    if report.seconds > 0.0 {
        print(
            output,
            format_args!(
                "{} new orders/minute ({} transactions/s in {:.2} s)\n",
                show_count(report.new_orders_per_minute as u64),
                show_count(report.transactions_per_second as u64),
                report.seconds
            ),
        )?;
        print(
            output,
            format_args!(
                "conflicts end {:.2} % of runs; {} rolled back, {} skipped a district\n",
                report.conflict_share * 100.0,
                counted(report.rolled_back, "new order"),
                counted(report.skipped, "delivery")
            ),
        )?;
    }
    for (kind, found) in &report.by_kind {
        let Summary { p50, p99, p999, max, .. } = found.latency_us;
        print(
            output,
            format_args!(
                "{kind:>18}: {:>9}, p50 {p50:.1} us, p99 {p99:.1}, p99.9 {p999:.1}, max {max:.0}\n",
                show_count(found.committed)
            ),
        )?;
    }
    print(
        output,
        format_args!(
            "consistent: {} conditions hold for {} orders; load {:.2} s, memory {} of process, budget {}\n",
            report.conditions,
            show_count(report.orders),
            report.load_seconds,
            show_size(report.rss_bytes),
            show_size(report.budget_bytes)
        ),
    )?;
    print_settings(output, &report.settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_shared_out_evenly() {
        assert_eq!((0..3).map(|thread| part(8, thread, 3)).collect::<Vec<_>>(), [3, 3, 2]);
        assert_eq!(part(0, 0, 1), 0);
    }
}
