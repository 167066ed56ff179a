//! S7: the engine finds a policy by itself.

use terrace::migration::{Choice, Policy, Tuner};

use super::super::{Measured, Setting, Verdict};
use super::{experiment, percent};
use crate::failure::Outcome;
use crate::report::Lines;

/// Operations of a point of the figure, at most as many as an epoch.
const POINT_OPERATIONS: u64 = 50_000;
/// Points after the search of which the median is its throughput.
const AFTERWARDS: usize = 5;

/// What a search did.
struct Search {
    /// Throughput after so many operations.
    points: Vec<(f64, f64)>,
    /// Before the engine changed anything.
    first: f64,
    last: f64,
    policy: Policy,
    epochs: u64,
}

fn search(mix: &str) -> Outcome<Search> {
    let mut experiment = experiment(4, 16, 32, mix, 1)?;
    experiment.policy = Choice::Adaptive;
    experiment.begin(|running| {
        let mut found =
            Search { points: Vec::new(), first: 0.0, last: 0.0, policy: Policy::EAGER, epochs: 0 };
        let (mut operations, mut after) = (0, Vec::new());
        while after.len() < AFTERWARDS {
            let point = running.measure(POINT_OPERATIONS)?;
            operations += POINT_OPERATIONS;
            found.points.push((operations as f64 / 1e6, point.ops_per_second));
            let middle = point.middle()?;
            found.policy = middle.policy;
            let tuning = middle.tuning.unwrap_or_default();
            if tuning.is_holding {
                after.push(point.ops_per_second);
            } else {
                after.clear();
            }
            found.epochs = tuning.epochs;
            // A search is bounded; this is for one that is not.
            if operations
                > u64::from(Tuner::SEARCH_EPOCHS_MAX) * 4 * tuning.epoch_operations.max(POINT_OPERATIONS)
            {
                break;
            }
        }
        found.first = found.points[0].1;
        after.sort_by(f64::total_cmp);
        found.last = after.get(AFTERWARDS / 2).copied().unwrap_or(0.0);
        Ok(found)
    })
}

/// Measures both mixes of the figure.
pub fn measure(_: &Setting) -> Outcome<Measured> {
    let (ro, ba) = (search("ro")?, search("ba")?);
    let gain = |search: &Search| search.last / search.first;
    let is_lazy = ro.policy.dr() <= 0.1;
    let verdict = match (gain(&ro), is_lazy) {
        (gain, true) if gain - 1.0 >= 0.7 * 0.52 => Verdict::Holds,
        (gain, _) if gain > 1.0 => Verdict::Sign,
        _ => Verdict::Fails,
    };
    let tell = |name: &str, search: &Search| {
        format!(
            "{name} {}, to D_r, D_w, N_r, N_w = {} in {} epochs",
            percent(gain(search)),
            search.policy,
            search.epochs
        )
    };
    let lines = Lines::new("Adaptive migration", "million operations", "operations/s")
        .line("RO", ro.points.clone())
        .line("BA", ba.points.clone());
    Ok(Measured {
        measured: format!("{}; {}", tell("RO", &ro), tell("BA", &ba)),
        verdict,
        note: "4 MiB of DRAM, 16 of Optane, 32 of data, from D = N = 1 on. Holds: RO gains .7 of the paper's 52 %, with a D_r of .1 or \
               less; sign: it gains."
            .into(),
        figures: vec![lines],
    })
}
