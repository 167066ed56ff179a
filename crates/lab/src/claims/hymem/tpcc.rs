//! H2: TPC-C on HyMem's designs, by warehouses (figure 9).
//!
//! Each transaction has another home, as the paper's has one thread. Computation is charged by the
//! rows that a kind of transaction touches ([`rows_of`]).

use std::sync::Arc;

use terrace::{Db, Durability, MemoryDirectory, Mode, RecordCache, TableOptions};
use terrace_common::failure::Outcome;
use terrace_common::report::Scale;
use terrace_io::{OPERATION_NS, PAGE_NS, VirtualTime};

use super::curves::{Figure, SHARE_PERCENT, near, verdict};
use super::setup::{Design, GB, Point};
use crate::claims::claim::{Measured, Setting};
use crate::design::PAGE_BYTES;
use crate::hierarchy::{Experiment, on_new_thread, side_by_side};
use crate::workload::tpcc;
use crate::workload::tpcc::load::load;
use crate::workload::tpcc::tables::Tables;
use crate::workload::tpcc::transactions::{Outcome as Ended, Worker};
use crate::workload::tpcc::{Kind, Mix};

/// Warehouses of a GB: the paper's right edge, 15 GB, has 120.
const WAREHOUSES_PER_GB: u32 = 8;
/// One warehouse has 1 MiB at first, as one of the paper has 125 MB.
const ITEMS: u32 = 1200;
const CUSTOMERS: u32 = 36;
/// Levels of the trees that matter.
const LEVELS: u64 = 3;
/// Transactions that fill the tiers, for each warehouse, and those that are measured.
const FILLING_PER_WAREHOUSE: u64 = 100;
const TRANSACTIONS: u64 = 4000;
/// Budget of a load.
const LOADING_BYTES: u64 = 64 << 20;
const SEED: u64 = 20_180_610;
const SIZES: [f64; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
const DESIGNS: [Design; 4] = [Design::Ssd, Design::Basic, Design::Direct, Design::ThreeTier];

/// Rows that a transaction touches: those of its clause, and ten lines for an order.
fn rows_of(ended: Ended) -> u64 {
    match ended {
        Ended::Committed(Kind::NewOrder) | Ended::RolledBack => 47,
        Ended::Committed(Kind::Payment) => 12,
        Ended::Committed(Kind::OrderStatus) => 14,
        Ended::Committed(Kind::Delivery) | Ended::Skipped => 260,
        Ended::Committed(Kind::StockLevel) => 400,
    }
}

/// The business before a run.
fn loaded(gb: f64) -> Outcome<(tpcc::Scale, MemoryDirectory)> {
    let warehouses = gb as u32 * WAREHOUSES_PER_GB;
    let scale = tpcc::Scale { warehouses, items: ITEMS, customers: CUSTOMERS };
    on_new_thread(|| {
        let directory = MemoryDirectory::new();
        let log = Point::USUAL.experiment(Design::Ssd)?.log.capacity_bytes;
        let db = Db::builder()
            .no_middle()
            .directory(Arc::new(directory.clone()))
            .dram(LOADING_BYTES)
            .log_min(log)
            .log_max(log)
            .page_size(PAGE_BYTES)
            .page_size_max(PAGE_BYTES)
            .record_cache(RecordCache::Off)
            .durability(Durability::Buffered)
            .mode(Mode::Inline)
            .seed(1)
            .open("")?;
        let tables = Tables::open(&db, &TableOptions::new())?;
        load(&tables, scale, SEED, |_| Ok(()))?;
        drop(tables);
        db.close()?;
        Ok((scale, directory))
    })
}

/// Transactions a second in virtual time.
fn rate(experiment: &Experiment, scale: tpcc::Scale, image: &MemoryDirectory) -> Outcome<f64> {
    let time = Arc::new(VirtualTime::new(1));
    time.enter(0);
    let (db, ..) = experiment.open_with_frames(image, &time)?;
    let tables = Tables::existing(&db)?;
    let mut worker = Worker::new(tables, scale, Mix::default(), SEED, 0);
    let mut run = |count: u64| -> Outcome {
        for _ in 0..count {
            worker.move_home();
            time.spend(0, rows_of(worker.step()?) * (OPERATION_NS + LEVELS * PAGE_NS));
        }
        Ok(())
    };
    run(FILLING_PER_WAREHOUSE * u64::from(scale.warehouses))?;
    let began = time.elapsed_ns();
    run(TRANSACTIONS)?;
    Ok(TRANSACTIONS as f64 * 1e9 / (time.elapsed_ns() - began).max(1) as f64)
}

/// H2.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let columns = side_by_side(&SIZES, |&data| {
        let (scale, image) = loaded(data)?;
        let point = Point { data, ..Point::USUAL };
        let rates = DESIGNS.iter().map(|&design| {
            if !point.runs(design) {
                return Ok(None);
            }
            let experiment = point.experiment(design)?;
            on_new_thread(|| rate(&experiment, scale, &image)).map(Some)
        });
        rates.collect::<Outcome<Vec<Option<f64>>>>()
    })?;
    let curves = DESIGNS.iter().enumerate().map(|(row, &design)| {
        let rates = SIZES.iter().zip(&columns);
        (design, rates.filter_map(|(&data, column)| Some((data, column[row]?))).collect())
    });
    Ok(judge(&Figure { curves: curves.collect() }))
}

fn judge(figure: &Figure) -> Measured {
    use Design::{Basic, Direct, Ssd, ThreeTier};
    let beyond = figure.ratio(ThreeTier, Ssd, 15.0);
    let direct_last = [Ssd, Basic, ThreeTier].iter().all(|&design| figure.ratio(design, Direct, 1.0) > 1.0);
    let leads = [Ssd, Basic, Direct].iter().all(|&design| figure.ratio(ThreeTier, design, 9.0) > 1.0);
    let kept = |data: f64| figure.rate(ThreeTier, data) / figure.rate(ThreeTier, 1.0);
    let is_delayed = kept(11.0) > 0.5 * kept(9.0);
    Measured {
        measured: format!(
            "with 120 warehouses (15 GB) three tiers are {beyond:.2} times the SSD buffer manager. They keep {:.0} % of their rate with 8 \
             warehouses at 72, {:.0} % at 88 and {:.0} % at 120. At 72 they are {:.2} times NVM Direct and {:.2} times basic NVM",
            100.0 * kept(9.0),
            100.0 * kept(11.0),
            100.0 * kept(15.0),
            figure.ratio(ThreeTier, Direct, 9.0),
            figure.ratio(ThreeTier, Basic, 9.0),
        ),
        verdict: verdict(
            near(beyond, 2.8) && direct_last && leads && is_delayed,
            beyond > 1.0 && direct_last,
        ),
        note: format!(
            "A GB is {} MiB, a warehouse 1 MiB: 1,200 items and 36 customers a district, where TPC-C has 100,000 and 3,000. One worker, \
             lines and mini pages as in H1. Holds: three tiers lead the SSD by 2.8 times at the right edge, within {SHARE_PERCENT} %, NVM \
             Direct is last at 8 warehouses, three tiers lead at 72, and keep half of that rate at 88; sign: the first, by any factor, \
             and the second.",
            GB >> 20
        ),
        figures: vec![figure.lines("TPC-C by data", "GB of data", Scale::Linear)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::claim::Verdict;

    #[test]
    fn a_small_business_runs_on_each_design() {
        let scale = tpcc::Scale { warehouses: 1, items: 100, customers: 10 };
        let directory = MemoryDirectory::new();
        let db = Db::builder().no_middle().directory(Arc::new(directory.clone())).dram(16 << 20);
        let db = db.page_size(PAGE_BYTES).page_size_max(PAGE_BYTES).mode(Mode::Inline).open("").unwrap();
        let tables = Tables::open(&db, &TableOptions::new()).unwrap();
        load(&tables, scale, SEED, |_| Ok(())).unwrap();
        drop(tables);
        db.close().unwrap();
        let rates = DESIGNS.map(|design| {
            let experiment = Point { data: 1.0, ..Point::USUAL }.experiment(design).unwrap();
            [(); 2].map(|()| on_new_thread(|| rate(&experiment, scale, &directory)).unwrap())
        });
        for (design, [first, second]) in DESIGNS.iter().zip(rates) {
            assert_eq!(first, second, "{design:?}: virtual time repeats");
            assert!(first > 1000.0, "{design:?}: {first}");
        }
    }

    #[test]
    fn the_verdict_follows_the_figure() {
        let figure = |three: [f64; 5], ssd: f64| Figure {
            curves: vec![
                (Design::Ssd, vec![(1.0, 9.0), (9.0, 2.0), (15.0, ssd)]),
                (Design::Basic, vec![(1.0, 9.0), (9.0, 3.0)]),
                (Design::Direct, vec![(1.0, 5.0), (9.0, 4.0)]),
                (Design::ThreeTier, [1.0, 9.0, 11.0, 13.0, 15.0].into_iter().zip(three).collect()),
            ],
        };
        let verdict = |three, ssd| judge(&figure(three, ssd)).verdict;
        assert_eq!(verdict([9.0, 8.0, 6.0, 4.0, 2.8], 1.0), Verdict::Holds);
        assert_eq!(verdict([9.0, 8.0, 3.0, 2.9, 2.8], 1.0), Verdict::Sign, "the drop comes early");
        assert_eq!(verdict([9.0, 8.0, 6.0, 4.0, 1.5], 1.0), Verdict::Sign);
        assert_eq!(verdict([9.0, 8.0, 6.0, 4.0, 0.9], 1.0), Verdict::Fails);
        assert_eq!(verdict([4.0, 8.0, 6.0, 4.0, 2.8], 1.0), Verdict::Fails, "NVM Direct is not last");
    }
}
