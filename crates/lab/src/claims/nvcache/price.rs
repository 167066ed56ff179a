//! N8: performance per dollar as Optane memory replaces DRAM, 96 GB in total, on YCSB.
//!
//! Only memory is priced, relative to DRAM alone, at the paper's .38. Every configuration is an
//! engine and a page cache with NVCache between.

use terrace_common::failure::Outcome;
use terrace_common::report::Lines;

use super::others::{READ_ONLY, WRITING, YCSB, Ycsb, mean};
use super::setup::{Dram, Machine, NVCACHE, Nvm};
use crate::claims::claim::{Measured, Setting, Verdict};

const TOTAL_GB: u64 = 96;
/// GB of Optane memory.
const NVM_GB: [u64; 5] = [0, 16, 32, 48, 64];
const LAST: usize = NVM_GB.len() - 1;
/// Price of Optane relative to DRAM, per byte.
const PRICE: f64 = 0.38;

/// Cost of memory with `nvm_gb` of Optane, relative to none.
fn cost(nvm_gb: u64) -> f64 {
    ((TOTAL_GB - nvm_gb) as f64 + PRICE * nvm_gb as f64) / TOTAL_GB as f64
}

/// Throughput relative to no Optane, and cache hit ratio, by GB of Optane.
type Row = [(f64, f64); NVM_GB.len()];

/// Measures figure 8.
pub fn per_dollar(setting: &Setting) -> Outcome<Measured> {
    let machine = Machine::of(setting)?;
    let row = |ycsb: &Ycsb| {
        let memory = |gb: u64| match gb {
            0 => (ycsb.work(), Dram::halved(TOTAL_GB), Nvm::None),
            gb => (ycsb.work(), Dram::halved(TOTAL_GB - gb), Nvm::Cache { policy: NVCACHE, gb }),
        };
        NVM_GB.map(memory).to_vec()
    };
    let found = machine.run(&YCSB.iter().map(row).collect::<Vec<_>>())?;
    let rows = found.iter().map(|found| {
        let hits = |at: usize| found[at].cache().map_or(0.0, |cache| cache.hit_ratio());
        [0, 1, 2, 3, 4].map(|at: usize| (found[at].ops_per_second / found[0].ops_per_second, hits(at)))
    });
    Ok(judge(&rows.collect::<Vec<Row>>(), &machine.told()))
}

/// Gain in performance per dollar over DRAM alone.
fn gain(row: &Row, at: usize) -> f64 {
    row[at].0 / cost(NVM_GB[at]) - 1.0
}

fn judge(rows: &[Row], machine: &str) -> Measured {
    let reading = || rows.iter().enumerate().filter(|(at, _)| *at != WRITING).map(|(_, row)| row);
    let writing = &rows[WRITING];
    let loses = (1..=LAST).all(|at| gain(writing, at) < 0.0);
    let all_gain = reading().all(|row| gain(row, LAST) > 0.0);
    let is_least = reading().all(|row| gain(row, LAST) > gain(writing, LAST));
    let in_the_mean = mean(reading().map(|row| gain(row, LAST) + 1.0));
    let verdict = match (loses && all_gain && rows[READ_ONLY][LAST].0 >= 1.0, is_least && in_the_mean > 1.0) {
        (true, _) => Verdict::Holds,
        (_, true) => Verdict::Sign,
        _ => Verdict::Fails,
    };
    let each = YCSB.iter().zip(rows).map(|(ycsb, row)| {
        let of = |at: usize| format!("{:+.0}", gain(row, at) * 100.0);
        let gains = (1..=LAST).map(of).collect::<Vec<_>>().join(" ");
        let (rate, hits) = row[LAST];
        format!("{} {gains} % (at 64 GB {rate:.2} of the throughput, hits {hits:.2})", ycsb.letter)
    });
    let lines = Lines::new("Performance per dollar, N8", "GB of Optane memory", "against DRAM throughout, %");
    let figure = YCSB.iter().zip(rows).fold(lines, |lines, (ycsb, row)| {
        let points = (0..=LAST).map(|at| (NVM_GB[at] as f64, gain(row, at) * 100.0)).collect();
        lines.line(format!("YCSB-{}", ycsb.letter.to_uppercase()), points)
    });
    let costs = NVM_GB.map(|gb| format!("{:.2}", cost(gb))).join(", ");
    Measured {
        measured: format!(
            "costs {costs}; gain per dollar at 16, 32, 48, 64 GB: {}",
            each.collect::<Vec<_>>().join("; ")
        ),
        verdict,
        note: format!(
            "Costs are of memory alone, at the paper's .38 of DRAM. Holds: A loses at each size, the others gain at 64 GB, and C is there as fast as \
             with DRAM throughout; sign: at 64 GB A is the last of the five, and the others gain in the mean. {machine}"
        ),
        figures: vec![figure],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_the_papers() {
        for (gb, paper) in NVM_GB.into_iter().zip([1.0, 0.9, 0.79, 0.69, 0.59]) {
            assert!((cost(gb) - paper).abs() < 0.006, "{gb}: {}", cost(gb));
        }
    }

    #[test]
    fn who_writes_loses_and_who_reads_gains() {
        let of = |writing: f64, reading: f64, read_only: f64| {
            let row = |last: f64| NVM_GB.map(|gb| (1.0 + (last - 1.0) * gb as f64 / 64.0, 0.5));
            let reading_row = row(reading);
            judge(&[row(writing), reading_row, row(read_only), reading_row, reading_row], "").verdict
        };
        assert_eq!(of(0.5, 0.7, 1.05), Verdict::Holds);
        assert_eq!(of(0.5, 0.7, 0.9), Verdict::Sign);
        assert_eq!(of(0.8, 0.85, 1.05), Verdict::Sign);
        assert_eq!(of(0.8, 0.7, 1.05), Verdict::Fails);
        assert_eq!(of(0.3, 0.4, 0.5), Verdict::Fails);
    }
}
