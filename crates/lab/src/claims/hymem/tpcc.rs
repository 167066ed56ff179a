//! H2: TPC-C on HyMem's designs, by warehouses (figure 9).
//!
//! One worker, in virtual time ([`Experiment::business`]).

use terrace_common::failure::Outcome;
use terrace_common::report::Scale;

use super::curves::{Figure, SHARE_PERCENT, near, verdict};
use super::setup::{Design, GB, Point};
use crate::claims::claim::{Measured, Setting};
use crate::hierarchy::{Experiment, run_all};
use crate::workload::tpcc;

/// Warehouses of a GB: the paper's right edge, 15 GB, has 120.
const WAREHOUSES_PER_GB: u32 = 8;
/// Transactions that fill the tiers, for each warehouse, and those that are measured.
const FILLING_PER_WAREHOUSE: u64 = 100;
const TRANSACTIONS: u64 = 4000;
const SIZES: [f64; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
const DESIGNS: [Design; 4] = [Design::Ssd, Design::Basic, Design::Direct, Design::ThreeTier];

fn experiment_of(design: Design, data: f64) -> Outcome<Experiment> {
    let point = Point { data, ..Point::USUAL };
    let warehouses = data as u32 * WAREHOUSES_PER_GB;
    Ok(Experiment {
        business: Some(tpcc::Scale::small(warehouses)),
        filling: 0,
        warmup: FILLING_PER_WAREHOUSE * u64::from(warehouses),
        operations: TRANSACTIONS,
        ..point.experiment(design)?
    })
}

/// H2.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let points = |design: Design| {
        let sizes = SIZES.into_iter().filter(move |&data| Point { data, ..Point::USUAL }.runs(design));
        sizes.map(move |data| (design, data))
    };
    let all = || DESIGNS.into_iter().flat_map(points);
    let experiments = all().map(|(design, data)| experiment_of(design, data));
    let found = run_all(&experiments.collect::<Outcome<Vec<Experiment>>>()?)?;
    let rates: Vec<_> = all().zip(found.iter().map(|found| found.ops_per_second)).collect();
    let curves = DESIGNS.map(|design| {
        let own = rates.iter().filter(|((of, _), _)| *of == design);
        (design, own.map(|&((_, data), rate)| (data, rate)).collect())
    });
    Ok(judge(&Figure { curves: curves.into() }))
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
        for design in DESIGNS {
            let experiment = experiment_of(design, 1.0).unwrap();
            let experiment =
                Experiment { business: Some(scale), warmup: 100, operations: 1000, ..experiment };
            let [first, second] = [(); 2].map(|()| experiment.run().unwrap().ops_per_second);
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
