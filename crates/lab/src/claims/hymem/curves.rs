//! H1 and H6 to H9: throughput of the designs, by data, latency, DRAM, size and updates.

use terrace_common::failure::Outcome;
use terrace_common::report::{Lines, Scale};

use super::setup::{Design, Point, run};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::Found;

/// Required percentage of the paper's ratios, either way.
pub(super) const SHARE_PERCENT: u32 = 70;
const SHARE: f64 = SHARE_PERCENT as f64 / 100.0;

/// Operations a second by the value on the horizontal axis.
type Curve = Vec<(f64, f64)>;

/// A figure: a curve for each design.
pub(super) struct Figure {
    pub(super) curves: Vec<(Design, Curve)>,
}

impl Figure {
    fn measure(designs: &[Design], at: &[f64], point: impl Fn(f64) -> Point) -> Outcome<Figure> {
        let points: Vec<Point> = at.iter().map(|&x| point(x)).collect();
        let rows = run(designs, &points)?;
        let curve = |row: Vec<Option<Found>>| -> Curve {
            let rates = at.iter().zip(row);
            rates.filter_map(|(&x, found)| Some((x, found?.ops_per_second))).collect()
        };
        Ok(Figure { curves: designs.iter().copied().zip(rows.into_iter().map(curve)).collect() })
    }

    fn curve(&self, design: Design) -> &Curve {
        let found = self.curves.iter().find(|(known, _)| *known == design);
        found.map(|(_, curve)| curve).expect("the figure has this design")
    }

    pub(super) fn rate(&self, design: Design, x: f64) -> f64 {
        let found = self.curve(design).iter().find(|&&(at, _)| at == x);
        found.map_or(f64::NAN, |&(_, rate)| rate)
    }

    /// How many times the rate of `b` that of `a` is.
    pub(super) fn ratio(&self, a: Design, b: Design, x: f64) -> f64 {
        self.rate(a, x) / self.rate(b, x)
    }

    /// Nanoseconds of an operation by which `a` is ahead of `b`: it falls back to `b` with as many
    /// more, as there is one worker.
    fn lead_ns(&self, a: Design, b: Design, x: f64) -> f64 {
        1e9 / self.rate(b, x) - 1e9 / self.rate(a, x)
    }

    /// How many times the rate at `b` that at `a` is, of each of [`THREE`].
    fn factors(&self, a: f64, b: f64) -> [f64; THREE.len()] {
        THREE.map(|design| self.rate(design, a) / self.rate(design, b))
    }

    /// Whether basic NVM is below both other designs of [`THREE`] everywhere.
    fn is_basic_lowest(&self) -> bool {
        let [basic, others @ ..] = THREE;
        let is_below = |x| others.iter().all(|&other| self.ratio(basic, other, x) < 1.0);
        self.curve(basic).iter().all(|&(x, _)| is_below(x))
    }

    /// From where on `a` is above `b`, on a straight line between the points; infinite if never.
    fn crossing(&self, a: Design, b: Design) -> f64 {
        let lead = |x: f64| self.ratio(a, b, x) - 1.0;
        let at: Vec<f64> = self.curve(a).iter().map(|&(x, _)| x).collect();
        let Some(first) = at.iter().rposition(|&x| lead(x) <= 0.0).map_or(Some(0), |below| Some(below + 1))
        else {
            return f64::INFINITY;
        };
        match (first, at.get(first)) {
            (_, None) => f64::INFINITY,
            (0, Some(&x)) => x,
            (_, Some(&x)) => {
                let (before, below, above) = (at[first - 1], lead(at[first - 1]), lead(x));
                before + (x - before) * -below / (above - below)
            }
        }
    }

    pub(super) fn lines(&self, title: &str, x: &str, scale: Scale) -> Lines {
        let lines = Lines { scale, ..Lines::new(title, x, "operations/s") };
        self.curves.iter().fold(lines, |lines, (design, curve)| lines.line(design.name(), curve.clone()))
    }
}

pub(super) fn near(ratio: f64, paper: f64) -> bool {
    (SHARE..=1.0 / SHARE).contains(&(ratio / paper))
}

pub(super) fn verdict(holds: bool, sign: bool) -> Verdict {
    match (holds, sign) {
        (true, true) => Verdict::Holds,
        (false, true) => Verdict::Sign,
        _ => Verdict::Fails,
    }
}

const ALL: [Design; 4] = [Design::Ssd, Design::Basic, Design::Direct, Design::ThreeTier];
const THREE: [Design; 3] = [Design::Basic, Design::Direct, Design::ThreeTier];

const COMMON: &str = "A GB is 8 MiB, values are ten fields of 100 bytes and one of them is touched, zipf 1, one worker. Pages are 95 % \
                      full, the paper's 66 %. DRAM costs the same in each design: what a page table costs is beyond this model";

/// The note of a claim: what decides, then the common part.
fn note(decides: &str) -> String {
    format!("{decides} {COMMON}.")
}

/// H1.
pub fn no_cliffs(_: &Setting) -> Outcome<Measured> {
    let sizes = [1.0, 3.0, 5.0, 7.0, 9.0, 10.0, 11.0, 13.0, 15.0];
    let figure = Figure::measure(&ALL, &sizes, |data| Point { data, ..Point::USUAL })?;
    Ok(judge_no_cliffs(&figure))
}

fn judge_no_cliffs(figure: &Figure) -> Measured {
    use Design::{Basic, Direct, Ssd, ThreeTier};
    let beyond = figure.ratio(ThreeTier, Ssd, 15.0);
    let direct_last = [Ssd, Basic, ThreeTier].iter().all(|&design| figure.ratio(design, Direct, 1.0) > 1.0);
    let (direct, basic) = (figure.ratio(ThreeTier, Direct, 10.0), figure.ratio(Direct, Basic, 10.0));
    let order = direct_last && direct > 1.0 && basic > 1.0;
    Measured {
        measured: format!(
            "with 15 GB three tiers are {beyond:.2} times the SSD buffer manager. With 10 GB they are {direct:.2} times NVM Direct, which is \
             {basic:.2} times basic NVM. With 1 GB they are {:.2} times NVM Direct",
            figure.ratio(ThreeTier, Direct, 1.0)
        ),
        verdict: verdict(order && near(beyond, 4.3), direct_last && beyond > 1.0),
        note: note(
            "Holds: NVM Direct is last at 1 GB, three tiers lead NVM Direct at 10 GB and that basic NVM, and three tiers are about 4.3 \
             times the SSD at 15 GB; sign: NVM Direct is last at 1 GB, and three tiers lead the SSD at 15.",
        ),
        figures: vec![figure.lines("YCSB-RO by data", "GB of data", Scale::Linear)],
    }
}

/// H6.
pub fn latency(_: &Setting) -> Outcome<Measured> {
    let latencies = [165.0, 300.0, 500.0, 800.0, 1200.0, 1800.0];
    let figure = Figure::measure(&THREE, &latencies, |latency_ns| Point { latency_ns, ..Point::USUAL })?;
    Ok(judge_latency(&figure))
}

fn judge_latency(figure: &Figure) -> Measured {
    use Design::{Basic, Direct, ThreeTier};
    let crossing = figure.crossing(ThreeTier, Direct);
    let [basic, direct, three] = figure.factors(165.0, 1800.0);
    let below = figure.curve(Basic).iter().all(|&(x, _)| figure.ratio(Basic, Direct, x) < 1.0);
    let flatter = three < direct && basic < direct;
    Measured {
        measured: format!(
            "three tiers lead NVM Direct from {crossing:.0} ns on, by {:.0} ns an operation at 300. From 165 to 1800 ns NVM Direct loses a factor of {direct:.2}, basic NVM {basic:.2} \
             and three tiers {three:.2}; basic NVM is {:.2} and {:.2} of NVM Direct",
            figure.lead_ns(ThreeTier, Direct, 300.0),
            figure.ratio(Basic, Direct, 165.0),
            figure.ratio(Basic, Direct, 1800.0)
        ),
        verdict: verdict(near(crossing, 300.0) && below && flatter, crossing.is_finite() && three < direct),
        note: note(
            "Holds: three tiers lead NVM Direct from about 300 ns on, basic NVM stays below it, and both buffer managers lose less; sign: \
             three tiers lose less and lead at last.",
        ),
        figures: vec![figure.lines("YCSB-RO by latency of NVM", "ns of latency", Scale::Linear)],
    }
}

/// H7.
pub fn share_of_dram(_: &Setting) -> Outcome<Measured> {
    let shares = [0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0];
    let figure = Figure::measure(&THREE, &shares, |share| Point { dram: 10.0 * share, ..Point::USUAL })?;
    Ok(judge_share(&figure))
}

fn judge_share(figure: &Figure) -> Measured {
    use Design::{Basic, Direct, ThreeTier};
    let (three, basic) = (figure.crossing(ThreeTier, Direct), figure.crossing(Basic, Direct));
    Measured {
        measured: format!(
            "three tiers lead NVM Direct from {:.0} % of DRAM on, basic NVM from {:.0} % (infinite: never). Three tiers lead by {:.0} ns \
             an operation at 5 %, {:.0} at 10",
            three * 100.0,
            basic * 100.0,
            figure.lead_ns(ThreeTier, Direct, 0.05),
            figure.lead_ns(ThreeTier, Direct, 0.1)
        ),
        verdict: verdict(near(three, 0.07) && near(basic, 0.8), three < basic),
        note: note("Holds: from about 7 and 80 % on; sign: three tiers need less DRAM than basic NVM."),
        figures: vec![figure.lines("YCSB-RO by DRAM", "DRAM over data", Scale::Linear)],
    }
}

/// H8.
pub fn large_data(_: &Setting) -> Outcome<Measured> {
    let sizes = [10.0, 20.0, 40.0, 80.0];
    let figure =
        Figure::measure(&THREE, &sizes, |data| Point { dram: data / 5.0, nvm: data, data, ..Point::USUAL })?;
    Ok(judge_large(&figure))
}

fn judge_large(figure: &Figure) -> Measured {
    let ([basic, direct, three], lowest) = (figure.factors(10.0, 80.0), figure.is_basic_lowest());
    Measured {
        measured: format!(
            "from 10 to 80 GB NVM Direct loses a factor of {direct:.2}, three tiers {three:.2}, basic NVM {basic:.2}; basic NVM is {}lowest",
            if lowest { "" } else { "not " }
        ),
        verdict: verdict(near(direct, 2.0) && three < direct && lowest, direct > 1.0 && three < direct),
        note: note(
            "Holds: NVM Direct loses about half, three tiers less, and basic NVM is lowest; sign: three tiers lose less than NVM Direct. The \
             last-level cache does not grow with the data.",
        ),
        figures: vec![figure.lines(
            "YCSB-RO by size",
            "GB of data and NVM, five times the DRAM",
            Scale::Linear,
        )],
    }
}

/// H9.
pub fn updates(_: &Setting) -> Outcome<Measured> {
    let shares = [0.0, 20.0, 40.0, 60.0, 80.0, 100.0];
    let point = |updates: f64| Point { updates: updates as u8, ..Point::USUAL };
    let figure = Figure::measure(&THREE, &shares, point)?;
    let run = point(100.0).experiment(Design::Basic)?;
    let pages = run.begin(|running| {
        let before = running.stats();
        let found = running.measure(run.operations)?;
        let after = running.stats();
        let each = |images: u64| images as f64 / run.operations as f64;
        let written = each(after.images_written - before.images_written);
        Ok([found.misses, written, each(after.images_moved - before.images_moved)])
    })?;
    Ok(judge_updates(&figure, pages))
}

/// `pages` that basic NVM reads, writes and moves in its file for an update.
fn judge_updates(figure: &Figure, [read, written, moved]: [f64; 3]) -> Measured {
    let ([basic, direct, three], above) = (figure.factors(100.0, 0.0), figure.is_basic_lowest());
    Measured {
        measured: format!(
            "with updates alone basic NVM has {basic:.2} of its lookups' rate, NVM Direct {direct:.2} and three tiers {three:.2}; both are {}above \
             basic NVM everywhere. For an update basic NVM reads {read:.2} pages, writes {written:.2} and moves {moved:.2} in its file",
            if above { "" } else { "not " }
        ),
        verdict: verdict(
            near(basic, 0.5) && near(three, direct) && above,
            basic < 1.0 && three < 1.0 && above,
        ),
        note: note(
            "Holds: basic NVM falls to about half, the others by a similar factor, and both stay above it; sign: all fall, and both stay \
             above.",
        ),
        figures: vec![figure.lines("YCSB-R/W by updates", "percent of updates", Scale::Linear)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(at: &[f64], rows: &[(Design, &[f64])]) -> Figure {
        let curve = |rates: &[f64]| at.iter().copied().zip(rates.iter().copied()).collect();
        Figure { curves: rows.iter().map(|(design, rates)| (*design, curve(rates))).collect() }
    }

    #[test]
    fn curves_cross_between_two_points() {
        let at = |three: [f64; 3]| {
            figure(&[0.0, 10.0, 20.0], &[(Design::ThreeTier, &three), (Design::Direct, &[10.0, 10.0, 10.0])])
                .crossing(Design::ThreeTier, Design::Direct)
        };
        assert_eq!(at([5.0, 15.0, 20.0]), 5.0);
        assert_eq!(at([11.0, 12.0, 13.0]), 0.0);
        assert_eq!(at([11.0, 5.0, 15.0]), 15.0, "the last time");
        assert_eq!(at([11.0, 12.0, 9.0]), f64::INFINITY);
    }

    #[test]
    fn the_papers_figure_8_holds_and_its_reverse_fails() {
        let judged = |three_15: f64, three_10: f64, direct_1: f64| {
            let figure = figure(
                &[1.0, 10.0, 15.0],
                &[
                    (Design::Ssd, &[3.0, 0.2, 0.1]),
                    (Design::Basic, &[3.0, 0.5]),
                    (Design::Direct, &[direct_1, 1.0]),
                    (Design::ThreeTier, &[3.1, three_10, three_15]),
                ],
            );
            judge_no_cliffs(&figure).verdict
        };
        assert_eq!(judged(0.43, 1.5, 1.2), Verdict::Holds);
        assert_eq!(judged(0.2, 1.5, 1.2), Verdict::Sign);
        assert_eq!(judged(0.43, 0.9, 1.2), Verdict::Sign, "below NVM Direct at 10 GB");
        assert_eq!(judged(0.09, 1.5, 1.2), Verdict::Fails);
        assert_eq!(judged(0.43, 1.5, 5.0), Verdict::Fails, "NVM Direct is not last in DRAM");
    }

    #[test]
    fn the_papers_figures_12_and_13_hold() {
        let latency = |three: [f64; 3]| {
            let rows: [(Design, &[f64]); 3] = [
                (Design::Basic, &[0.8, 0.7, 0.3]),
                (Design::Direct, &[2.0, 1.6, 0.4]),
                (Design::ThreeTier, &three),
            ];
            judge_latency(&figure(&[165.0, 300.0, 1800.0], &rows)).verdict
        };
        assert_eq!(latency([1.9, 1.62, 1.0]), Verdict::Holds);
        assert_eq!(latency([1.0, 0.9, 0.8]), Verdict::Sign, "late");
        assert_eq!(latency([1.9, 1.0, 0.3]), Verdict::Fails);
        let share = |basic: [f64; 4]| {
            let rows: [(Design, &[f64]); 3] = [
                (Design::Basic, &basic),
                (Design::Direct, &[1.0; 4]),
                (Design::ThreeTier, &[0.9, 1.1, 2.0, 2.0]),
            ];
            judge_share(&figure(&[0.05, 0.1, 0.7, 0.9], &rows)).verdict
        };
        assert_eq!(share([0.2, 0.3, 0.9, 1.1]), Verdict::Holds);
        assert_eq!(share([0.2, 1.3, 1.4, 1.5]), Verdict::Sign, "basic NVM soon");
        assert_eq!(share([1.2, 1.3, 1.4, 1.5]), Verdict::Fails, "basic NVM at once");
    }

    #[test]
    fn the_papers_figures_14_and_15_hold() {
        let large = |direct: f64, three: f64| {
            let rows: [(Design, &[f64]); 3] = [
                (Design::Basic, &[0.3, 0.3]),
                (Design::Direct, &[2.0, direct]),
                (Design::ThreeTier, &[2.4, three]),
            ];
            judge_large(&figure(&[10.0, 80.0], &rows)).verdict
        };
        assert_eq!(large(1.0, 1.6), Verdict::Holds);
        assert_eq!(large(1.8, 2.3), Verdict::Sign, "NVM Direct loses little");
        assert_eq!(large(1.0, 1.0), Verdict::Fails, "three tiers lose more");
        let updates = |basic: f64, three: f64| {
            let rows: [(Design, &[f64]); 3] = [
                (Design::Basic, &[0.8, basic]),
                (Design::Direct, &[1.5, 1.0]),
                (Design::ThreeTier, &[2.0, three]),
            ];
            judge_updates(&figure(&[0.0, 100.0], &rows), [0.3; 3]).verdict
        };
        assert_eq!(updates(0.4, 1.3), Verdict::Holds);
        assert_eq!(updates(0.7, 1.3), Verdict::Sign, "basic NVM falls little");
        assert_eq!(updates(0.4, 0.3), Verdict::Fails, "three tiers below basic NVM");
    }
}
