//! Online search for the policy that runs a workload fastest.
//!
//! Simulated annealing as in Spitfire (section 4). A candidate policy holds for an *epoch* and
//! costs `gamma / throughput`. A cheaper one replaces the current policy. One that costs `d` more
//! does so with probability `exp(-d / t)`. The temperature `t` falls by the factor `alpha` per
//! epoch, from 800 to 0.00008. The paper leaves open:
//!
//! * **Unit.** Throughput is relative to the first epoch, so costs are near `gamma`.
//! * **Neighbours.** One probability, or both of a tier, go to another [`LADDER`] step, in random
//!   order.
//! * **Return.** Once a loss of 5 % is rarely accepted, the search continues from the best policy
//!   seen.
//! * **Finals.** Throughput is noisy, so more epochs of the best policies decide.
//! * **Restart.** If the throughput of the held policy shifts ([`Watch`]), a search starts from
//!   there.
//!
//! No clocks or threads; draws come from a seed, so runs repeat.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::migration::Policy;

mod watch;

use watch::Watch;

/// Spitfire, section 6.4; so are the next three.
const ALPHA: f64 = 0.9;
const GAMMA: f64 = 10.0;
const TEMPERATURE_FIRST: f64 = 800.0;
const TEMPERATURE_LAST: f64 = 0.00008;
/// Epochs of annealing: one for the start, and one per candidate.
const ANNEALING_EPOCHS: u32 = 154;
/// Below this temperature the search returns to the best policy seen.
///
/// It then accepts a loss of 5 % once in two hundred times.
const TEMPERATURE_RETURN: f64 = 0.1;
/// Policies that run again at the end of a search.
const FINALISTS: usize = 5;
const FINAL_EPOCHS: usize = 4;

/// The probabilities that a search tries.
const LADDER: [f64; 9] = [0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0];

/// Probabilities that one change covers: one, or both of a tier.
const CHANGES: [(usize, usize); 6] = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (2, 4)];

type Point = [usize; 4];

/// Searches for the best policy by simulated annealing.
///
/// ```
/// use terrace::migration::{Policy, Tuner};
///
/// // A workload that slows down with the share of promoted pages.
/// let run = |policy: Policy| 300_000.0 / (1.0 + policy.dr());
/// let mut tuner = Tuner::new(Policy::EAGER, 42);
/// for _ in 0..Tuner::SEARCH_EPOCHS_MAX {
///     tuner.epoch(run(tuner.policy()));
/// }
/// assert!(tuner.is_holding());
/// assert!(run(tuner.policy()) > 0.97 * 300_000.0);
/// ```
#[derive(Debug)]
pub struct Tuner {
    random: SmallRng,
    point: Point,
    phase: Phase,
    epochs: u64,
    searches: u64,
}

#[derive(Debug)]
enum Phase {
    Annealing(Annealing),
    Finals(Finals),
    Holding(Watch),
}

/// A search in progress. Throughput is relative to its first epoch.
#[derive(Debug, Default)]
struct Annealing {
    unit: f64,
    current: Point,
    cost: f64,
    temperature: f64,
    deck: Vec<((usize, usize), usize)>,
    seen: Vec<(Point, f64, u32)>,
}

#[derive(Debug)]
struct Finals {
    finalists: Vec<(Point, f64)>,
    epoch: usize,
}

impl Tuner {
    /// Maximum epochs of a search. Then a policy holds until the workload shifts.
    pub const SEARCH_EPOCHS_MAX: u32 = ANNEALING_EPOCHS + (FINALISTS * FINAL_EPOCHS) as u32;

    /// Starts a search at `policy`, rounded to the ladder.
    pub fn new(policy: Policy, seed: u64) -> Tuner {
        let point = policy.probabilities().map(|probability| {
            let distance = |step: &usize| (LADDER[*step] - probability).abs();
            (0..LADDER.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
        });
        let phase = Phase::Annealing(Annealing::default());
        Tuner { random: SmallRng::seed_from_u64(seed), point, phase, epochs: 0, searches: 1 }
    }

    /// The policy of the current epoch.
    pub fn policy(&self) -> Policy {
        policy_at(self.point)
    }

    /// Whether the search is over and a policy is held.
    pub fn is_holding(&self) -> bool {
        matches!(self.phase, Phase::Holding(_))
    }

    /// Epochs so far.
    pub fn epochs(&self) -> u64 {
        self.epochs
    }

    /// Searches so far, including the current one.
    pub fn searches(&self) -> u64 {
        self.searches
    }

    /// Ends an epoch of `throughput` operations per second; returns the next policy.
    ///
    /// Ignores epochs without throughput.
    pub fn epoch(&mut self, throughput: f64) -> Policy {
        if throughput.is_finite() && throughput > 0.0 {
            self.epochs += 1;
            let next = match &mut self.phase {
                Phase::Annealing(search) => search.epoch(self.point, throughput, &mut self.random),
                Phase::Finals(finals) => finals.epoch(throughput),
                Phase::Holding(watch) => {
                    if watch.is_shift(throughput) {
                        self.searches += 1;
                        Next::Phase(Phase::Annealing(Annealing::default()), self.point)
                    } else {
                        Next::Point(self.point)
                    }
                }
            };
            self.point = match next {
                Next::Point(point) => point,
                Next::Phase(phase, point) => {
                    self.phase = phase;
                    point
                }
            };
        }
        self.policy()
    }
}

enum Next {
    Point(Point),
    Phase(Phase, Point),
}

impl Annealing {
    fn epoch(&mut self, point: Point, throughput: f64, random: &mut SmallRng) -> Next {
        if self.seen.is_empty() {
            *self = Annealing { unit: throughput, temperature: TEMPERATURE_FIRST, ..Annealing::default() };
            (self.current, self.cost) = (point, cost(1.0));
            self.note(point, 1.0);
        } else {
            let throughput = throughput / self.unit;
            self.note(point, throughput);
            if accepts(cost(throughput) - self.cost, self.temperature, random.random()) {
                (self.current, self.cost) = (point, cost(throughput));
            }
            let was_warm = self.temperature >= TEMPERATURE_RETURN;
            self.temperature *= ALPHA;
            if was_warm && self.temperature < TEMPERATURE_RETURN {
                self.go_back();
            }
        }
        if self.temperature >= TEMPERATURE_LAST {
            return Next::Point(self.candidate(random));
        }
        let finals = Finals::of(std::mem::take(&mut self.seen));
        let first = finals.finalists[0].0;
        Next::Phase(Phase::Finals(finals), first)
    }

    fn candidate(&mut self, random: &mut SmallRng) -> Point {
        loop {
            if self.deck.is_empty() {
                let all =
                    CHANGES.into_iter().flat_map(|which| (0..LADDER.len()).map(move |step| (which, step)));
                self.deck.extend(all);
                self.deck.shuffle(random);
            }
            let ((first, end), step) = self.deck.pop().expect("it has just been filled");
            let mut candidate = self.current;
            candidate[first..end].fill(step);
            if candidate != self.current {
                return candidate;
            }
        }
    }

    fn go_back(&mut self) {
        if let Some(&(point, mean, _)) = self.seen.iter().max_by(|(_, a, _), (_, b, _)| a.total_cmp(b)) {
            (self.current, self.cost) = (point, cost(mean));
        }
        self.deck.clear();
    }

    fn note(&mut self, point: Point, throughput: f64) {
        match self.seen.iter_mut().find(|(seen, ..)| *seen == point) {
            Some((_, mean, count)) => {
                *count += 1;
                *mean += (throughput - *mean) / f64::from(*count);
            }
            None => self.seen.push((point, throughput, 1)),
        }
    }
}

impl Finals {
    /// The best of `seen`, which is not empty.
    fn of(mut seen: Vec<(Point, f64, u32)>) -> Finals {
        seen.sort_by(|(_, a, _), (_, b, _)| b.total_cmp(a));
        seen.truncate(FINALISTS);
        Finals { finalists: seen.into_iter().map(|(point, ..)| (point, 0.0)).collect(), epoch: 0 }
    }

    fn epoch(&mut self, throughput: f64) -> Next {
        let count = self.finalists.len();
        self.finalists[self.epoch % count].1 += throughput;
        self.epoch += 1;
        if self.epoch < count * FINAL_EPOCHS {
            return Next::Point(self.finalists[self.epoch % count].0);
        }
        let best = self.finalists.iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
        // Never empty: a search notes its first epoch.
        let point = best.map_or(self.finalists[0].0, |(point, _)| *point);
        Next::Phase(Phase::Holding(Watch::default()), point)
    }
}

fn policy_at(point: Point) -> Policy {
    let [dr, dw, nr, nw] = point.map(|step| LADDER[step]);
    Policy::new(dr, dw, nr, nw).expect("the ladder is of probabilities")
}

fn cost(throughput: f64) -> f64 {
    GAMMA / throughput
}

/// The Metropolis rule: whether to accept a candidate that costs `more`.
///
/// `draw` is from 0 to 1.
fn accepts(more: f64, temperature: f64, draw: f64) -> bool {
    more <= 0.0 || draw < (-more / temperature).exp()
}

#[cfg(test)]
mod tests;
