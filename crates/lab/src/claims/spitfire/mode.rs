//! S1: NVM used by pages (app-direct mode) against memory mode, at equal cost.
//!
//! The paper's machine has 96 GB of DRAM before 512 of Optane. In memory mode a pool of 140 GB lies
//! in Optane behind DRAM; the same price buys 340 GB of Optane for pages used in place. A GB is 128
//! KiB here. Both have the engine's minimum of DRAM frames beside. The SSD is the flash disk that
//! the paper has here. Memory mode is volatile; app-direct frames are sealed and unsealed.

use terrace::migration::{Choice, Policy};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::report::Lines;
use terrace_io::Profile;

use super::inputs::{Input, Inputs, by_input};
use super::setup::{FRAMES_LEAST, PAGE_BYTES, RECORDS_PER_PAGE, experiment};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::hierarchy::{Experiment, Hierarchy, run_all};

const GB: u64 = 128 << 10;
/// GB of memory mode's DRAM and pool, and of the pool in app-direct mode.
const CACHE: u64 = 96;
const MEMORY_MODE: u64 = 140;
const APP_DIRECT: u64 = 340;
/// GB of data.
const SIZES: [u64; 11] = [5, 35, 65, 95, 125, 155, 185, 215, 245, 275, 305];
/// Those for each input of the paper's.
const COARSE: [u64; 5] = [65, 95, 125, 155, 185];
/// The paper's threads, and 38.5 MB of last-level cache, scaled.
const WORKERS: usize = 16;
const LAST_LEVEL_BYTES: u64 = (38_500 << 10) / ((1 << 30) / GB);
const OPERATIONS: u64 = 20_000;
const WARMUP_PER_PAGE: u64 = 8;
const MIXES: [&str; 2] = ["ro", "ba"];
/// Factors by which memory mode leads where the data fit its pool, and app-direct mode beyond, for
/// RO and BA (figure 5).
const PAPER_CACHED: f64 = 1.12;
const PAPER_BEYOND: [f64; 2] = [6.0, 2.28];
/// Required share of the paper's gain.
const SHARE: f64 = 0.7;

/// Throughput by GB of data.
type Curve = Vec<(f64, f64)>;

fn experiment_of(is_memory_mode: bool, mix: &str, data: u64, inputs: Inputs) -> Outcome<Experiment> {
    let named = |name: &str| Profile::named(name).map_err(|error| Failure::Work(error.to_string()));
    let optane =
        named("optane")?.with_cache_bytes(LAST_LEVEL_BYTES / WORKERS as u64).with_counted_lines(true);
    let middle = match is_memory_mode {
        true => (optane.with_dram_cache_bytes(CACHE * GB), MEMORY_MODE * GB),
        false => (optane, APP_DIRECT * GB),
    };
    let in_place = Policy::new(0.0, 0.0, 1.0, 1.0).map(Choice::Fixed).map_err(Failure::Work)?;
    let pages = data * GB / PAGE_BYTES;
    Ok(inputs.of(Experiment {
        hierarchy: Hierarchy {
            dram_bytes: FRAMES_LEAST * PAGE_BYTES,
            middle: Some(middle),
            store: named("nvme-flash")?,
            cache: None,
        },
        migration: in_place.into(),
        records: pages * RECORDS_PER_PAGE,
        filling: 0,
        warmup: WARMUP_PER_PAGE * pages,
        operations: OPERATIONS,
        ..experiment(8, 32, 64, mix, WORKERS)?
    }))
}

/// Memory mode, app-direct mode, and app-direct mode with the long log.
fn curves(mix: &str) -> Outcome<[Curve; 3]> {
    let rows = [(true, Inputs::NONE), (false, Inputs::NONE), (false, Inputs::on(&[Input::Log]))];
    let all =
        rows.iter().flat_map(|&(mode, inputs)| SIZES.map(move |data| experiment_of(mode, mix, data, inputs)));
    let found = run_all(&all.collect::<Outcome<Vec<Experiment>>>()?)?;
    let mut rates = found.iter().map(|found| found.ops_per_second);
    Ok([(); 3].map(|()| SIZES.iter().map(|&data| data as f64).zip(rates.by_ref()).collect()))
}

/// The largest factor by which `a` leads `b`, at sizes that fit memory mode's pool or do not.
fn lead(a: &Curve, b: &Curve, cached: bool) -> f64 {
    let sizes = a.iter().zip(b).filter(|((size, _), _)| (*size <= MEMORY_MODE as f64) == cached);
    sizes.map(|((_, a), (_, b))| a / b).fold(0.0, f64::max)
}

/// Runs the experiment.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let curves = MIXES.iter().map(|mix| curves(mix)).collect::<Outcome<Vec<[Curve; 3]>>>()?;
    let mut measured = judge(&curves);
    let told = by_input(&[Input::Operation, Input::Runs, Input::Log], leads)?;
    measured.note +=
        &format!(" Leads with the paper's inputs, at {} to {} GB. {told}.", COARSE[0], COARSE[4]);
    Ok(measured)
}

/// How memory mode leads where the data fit its pool, and app-direct mode beyond.
fn leads(inputs: Inputs) -> Outcome<String> {
    let lead = |mix: &&str| {
        let all = [true, false].map(|mode| COARSE.map(|data| experiment_of(mode, mix, data, inputs)));
        let found = run_all(&all.into_iter().flatten().collect::<Outcome<Vec<Experiment>>>()?)?;
        let mut rates = found.iter().map(|found| found.ops_per_second);
        let [mode, direct]: [Curve; 2] =
            [(); 2].map(|()| COARSE.iter().map(|&data| data as f64).zip(rates.by_ref()).collect());
        let (cached, beyond) = (lead(&mode, &direct, true), lead(&direct, &mode, false));
        Ok(format!("{} {cached:.2} and {beyond:.2}", mix.to_uppercase()))
    };
    Ok(MIXES.iter().map(lead).collect::<Outcome<Vec<String>>>()?.join(", "))
}

/// `curves` of each mix.
fn judge(curves: &[[Curve; 3]]) -> Measured {
    let (mut holds, mut sign) = (true, true);
    let mut told = Vec::new();
    let mut figures = Vec::new();
    for ((mix, [mode, direct, long]), paper) in MIXES.iter().zip(curves).zip(PAPER_BEYOND) {
        let (cached, beyond) = (lead(mode, direct, true), lead(direct, mode, false));
        holds &= (1.0..=PAPER_CACHED / SHARE).contains(&cached) && beyond >= paper * SHARE;
        sign &= cached >= 1.0 && beyond > 1.0;
        let mix = mix.to_uppercase();
        told.push(format!(
            "{mix}: where the data fit its pool memory mode leads by {cached:.2} times, beyond app-direct mode by {beyond:.2}; with a log that \
             is not cut by {:.2} and {:.2}",
            lead(mode, long, true),
            lead(long, mode, false)
        ));
        let lines =
            Lines::new(format!("Memory mode and app-direct mode, {mix}"), "GB of data", "operations/s");
        let lines = lines.line("memory mode", mode.clone()).line("app-direct", direct.clone());
        figures.push(lines.line("app-direct, long log", long.clone()));
    }
    Measured {
        measured: told.join(". "),
        verdict: match (holds, sign) {
            (true, _) => Verdict::Holds,
            (false, true) => Verdict::Sign,
            _ => Verdict::Fails,
        },
        note: format!(
            "{WORKERS} workers, {MEMORY_MODE} GB behind {CACHE} of DRAM against {APP_DIRECT}, data of {} to {} GB, a GB is 128 KiB. Holds: memory \
             mode leads by at most 1.12 / {SHARE} where its pool holds the data, and app-direct mode beyond by {SHARE} of 6 and 2.28; sign: each \
             leads there. The log has 8 MiB, and its cut writes dirty pages of either pool; the paper writes none of NVM, as here with the \
             log that is not cut. Both pools are used in place, so a hit costs the same where memory mode's DRAM misses. TPC-C is not run.",
            SIZES[0],
            SIZES[SIZES.len() - 1]
        ),
        figures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_figure_holds_and_its_reverse_fails() {
        let curve = |cached: f64, beyond: f64| -> Curve {
            let rate = |size: u64| if size <= MEMORY_MODE { cached } else { beyond };
            SIZES.iter().map(|&size| (size as f64, rate(size))).collect()
        };
        let judged = |cached: f64, ro: f64, ba: f64| {
            let row = |beyond| [curve(cached, 1.0), curve(1.0, beyond), curve(1.0, beyond)];
            judge(&[row(ro), row(ba)]).verdict
        };
        assert_eq!(judged(1.12, 6.0, 2.28), Verdict::Holds);
        assert_eq!(judged(1.12, 3.0, 1.1), Verdict::Sign);
        assert_eq!(judged(3.0, 6.0, 2.28), Verdict::Sign);
        assert_eq!(judged(0.9, 6.0, 2.28), Verdict::Fails);
        assert_eq!(judged(1.12, 0.9, 2.28), Verdict::Fails);
    }
}
