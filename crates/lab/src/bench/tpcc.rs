//! `terrace bench tpcc`: loads a TPC-C business, runs its five transactions, and checks it.
//!
//! It runs on Terrace alone: the transactions read ranges of thirteen tables and roll back, which
//! the seam to other engines does not have. The figure is new orders a minute that were committed.
//! With few warehouses threads share rows, and conflicts show what that costs.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace::{Db, MemoryDirectory, MiddleStats};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::latency::{Latencies, Summary};
use terrace_common::memory;
use terrace_common::output::{print, print_json};
use terrace_common::progress::Progress;
use terrace_common::units::{show_count, show_size};

use crate::args::TpccArgs;
use crate::workload::tpcc::check::{Moment, check};
use crate::workload::tpcc::load::load;
use crate::workload::tpcc::rows::{NAMES, Tables};
use crate::workload::tpcc::transactions::{self, Worker};
use crate::workload::tpcc::{Kind, Scale};

/// Default duration.
const SECONDS: Duration = Duration::from_secs(10);

/// What one kind of transaction did.
#[derive(Debug, Default, Serialize)]
struct KindReport {
    committed: u64,
    latency_us: Summary,
}

/// The object of `--json`.
#[derive(Debug, Default, Serialize)]
struct TpccReport {
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
        self.rolled_back += other.rolled_back;
        self.skipped += other.skipped;
        self.transactions += other.transactions;
        self.runs += other.runs;
    }

    fn committed(&self, kind: Kind) -> u64 {
        self.by_kind.get(&kind).map_or(0, Latencies::count)
    }
}

/// Runs the benchmark.
pub fn run(args: &TpccArgs, output: &mut dyn Write) -> Outcome {
    let builder = args.tiers.builder()?.create(!args.loaded && !args.check);
    // A signal during recovery loses nothing: the next open repeats it.
    let db = interrupt::at_once(|| {
        Ok(match &args.store {
            Some(path) => builder.open(path)?,
            None => builder.directory(Arc::new(MemoryDirectory::new())).open("")?,
        })
    })?;
    let measured = measure(&db, args);
    let closed = db.close();
    let report = measured.and_then(|report| Ok(closed.map(|()| report)?))?;
    match args.output.json {
        true => print_json(output, &report),
        false => show(&report, output),
    }
}

fn measure(db: &Db, args: &TpccArgs) -> Outcome<TpccReport> {
    let scale = Scale { warehouses: args.warehouses, items: args.items, customers: args.customers };
    let began = Instant::now();
    let is_new = !args.loaded && !args.check;
    let tables = match is_new {
        true => fresh(db, args, scale)?,
        false => loaded(db, args, scale)?,
    };
    let load_seconds = if is_new { began.elapsed().as_secs_f64() } else { 0.0 };
    let (done, seconds) = match args.check {
        true => (Done::default(), 0.0),
        false => run_threads(db, &tables, scale, args)?,
    };
    let orders = settled(db, &tables, scale, Moment::Running)?;
    let stats = db.stats();
    let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let committed = Kind::ALL.into_iter().map(|kind| done.committed(kind)).sum();
    // A delivery is ten transactions of the engine.
    let engine_transactions = done.transactions;
    Ok(TpccReport {
        warehouses: scale.warehouses,
        items: scale.items,
        customers: scale.customers,
        mix: args.mix.to_string(),
        threads: args.threads,
        seconds,
        new_orders_per_minute: per_second(done.committed(Kind::NewOrder)) * 60.0,
        transactions_per_second: per_second(committed),
        by_kind: done
            .by_kind
            .iter()
            .map(|(kind, latencies)| {
                (kind.name(), KindReport { committed: latencies.count(), latency_us: latencies.summary() })
            })
            .collect(),
        rolled_back: done.rolled_back,
        skipped: done.skipped,
        conflict_share: match done.runs {
            0 => 0.0,
            runs => (runs - engine_transactions) as f64 / runs as f64,
        },
        orders,
        conditions: Moment::Running.conditions(),
        load_seconds,
        rss_bytes: memory::peak_resident_bytes(),
        budget_bytes: stats.budget_bytes,
        middle: stats.middle,
    })
}

/// Loads a business in place of one that is there, and checks it.
fn fresh(db: &Db, args: &TpccArgs, scale: Scale) -> Outcome<Tables> {
    for name in NAMES {
        match db.drop_table(name) {
            Ok(()) | Err(terrace::Error::TableNotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let tables = Tables::open(db, &args.tiers.layout.table_options())?;
    let progress = Progress::new("load", "warehouses", scale.warehouses.into());
    load(db, &tables, scale, args.tiers.seed, |warehouses| {
        progress.set(warehouses.into());
        interrupt::check()
    })?;
    settled(db, &tables, scale, Moment::Loaded)?;
    Ok(tables)
}

/// The tables of an earlier load of the same size.
fn loaded(db: &Db, args: &TpccArgs, scale: Scale) -> Outcome<Tables> {
    let tables = Tables::existing(db)?;
    let last = |found: Option<u32>| found.unwrap_or(0);
    let warehouses = last(tables.warehouse.last()?.map(|(number, _)| number));
    let items = last(tables.item.last()?.map(|(number, _)| number));
    if (warehouses, items) != (scale.warehouses, scale.items) {
        return Err(Failure::Usage(format!(
            "the database has {warehouses} warehouses and {items} items; give --warehouses {warehouses} --items {items}"
        )));
    }
    let customers = last(tables.customer.last()?.map(|((_, _, number), _)| number));
    if customers != args.customers {
        return Err(Failure::Usage(format!(
            "the database has {customers} customers in a district; give --customers {customers}"
        )));
    }
    Ok(tables)
}

/// Checks the consistency conditions and returns the number of orders.
fn settled(db: &Db, tables: &Tables, scale: Scale, moment: Moment) -> Outcome<u64> {
    let broken = check(db, tables, scale, moment)?;
    match broken.is_empty() {
        true => Ok(tables.order.table().len()?),
        false => {
            let told: Vec<_> = broken.iter().map(ToString::to_string).collect();
            Err(Failure::Damaged(told.join("; ")))
        }
    }
}

/// Runs the threads; returns what they did and the seconds they took.
fn run_threads(db: &Db, tables: &Tables, scale: Scale, args: &TpccArgs) -> Outcome<(Done, f64)> {
    let time = args.seconds.unwrap_or(SECONDS);
    let (began, warm) = (Instant::now(), args.warmup);
    let stop = AtomicBool::new(false);
    let work = |thread: u64| -> Outcome<Done> {
        let mut worker = Worker::new(db, tables, scale, args.mix, args.tiers.seed, thread);
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
                done.transactions += worker.engine_transactions(outcome);
                done.runs += worker.runs - runs_before;
                match outcome {
                    transactions::Outcome::RolledBack => done.rolled_back += 1,
                    transactions::Outcome::Skipped => done.skipped += 1,
                    transactions::Outcome::Committed(kind) => {
                        done.by_kind.entry(kind).or_default().record(now.duration_since(at));
                    }
                }
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
    let TpccReport { warehouses, items, customers, mix, threads, .. } = report;
    let (items, customers) = (show_count((*items).into()), show_count((*customers).into()));
    print(
        output,
        format_args!(
            "tpcc, {warehouses} warehouses, {items} items, {customers} customers a district, mix {mix}, {threads} threads\n"
        ),
    )?;
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
                "conflicts end {:.2} % of runs; {} new orders rolled back, {} deliveries skipped a district\n",
                report.conflict_share * 100.0,
                show_count(report.rolled_back),
                show_count(report.skipped)
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
    )
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
