//! Looking for the policy that a workload runs fastest with, while it runs.
//!
//! Spitfire (section 4) does it by simulated annealing, and so does this: a candidate policy holds for an *epoch*, a number of
//! operations; its throughput makes its cost, `gamma / throughput`; a candidate that costs less than the current policy takes its
//! place, one that costs `d` more does so with the probability `exp(-d / t)` (the Metropolis rule), and the temperature
//! `t` falls by the factor `alpha` with each epoch, from 800 to 0.00008. With `alpha` .9, as in the paper, that is 154 epochs.
//!
//! What the paper leaves open, and what is done here:
//!
//! * **The unit of throughput.** With operations a second every cost is next to nothing at any of these temperatures, and the search
//!   would be a walk at random to the last. Here throughput is measured in that of the first epoch of a search, so costs are near
//!   `gamma`, 10, whatever the machine: a loss of 5 % costs .53 more, is accepted nearly always at 800 and never at the last.
//! * **Neighbours.** One of the four probabilities goes to another step of the [`LADDER`], or both of a tier go to the same step, for many
//!   workloads want both of them at 0, or neither. The ladder is finer where probabilities are small, and has 0: never to move a
//!   page is a policy that no small number comes near. These changes are dealt like cards: in an order at random, and none again
//!   before all have been.
//! * **The way back.** While it is hot, a search walks about and leaves behind the best that it saw. It goes on from there once, when the
//!   temperature has fallen so far that a loss of 5 % is hardly accepted any more. There are epochs enough left to deal all cards.
//! * **What was lucky.** Throughput is noisy, and the least of 154 costs is that of a lucky epoch. So the five policies that did best on
//!   average run once more, in turn, four epochs each, and of these epochs alone it is decided which is held.
//! * **An end.** A search takes [`SEARCH_EPOCHS_MAX`] epochs. Then its policy is held.
//! * **A new beginning.** While a policy is held its throughput is watched ([`Watch`]). If it leaves the level that it had, up or down, the
//!   workload has shifted, and the search begins again from the policy that is held.
//!
//! All of it is a state machine without clocks or threads: it is told the throughput of an epoch and says which policy is to hold in the
//! next. Draws are from a seed, so a run can be repeated. An epoch has to be long enough for a policy to show: the first part of it
//! still runs over pages that the one before put where they are, and is best left out of the throughput.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::migration::Policy;

mod watch;

use watch::Watch;

/// Spitfire, section 6.4.
const ALPHA: f64 = 0.9;
/// Spitfire, section 6.4.
const GAMMA: f64 = 10.0;
/// Spitfire, section 6.4.
const TEMPERATURE_FIRST: f64 = 800.0;
/// Spitfire, section 6.4.
const TEMPERATURE_LAST: f64 = 0.00008;
/// Epochs of a search until the temperature is below the last: the one that measures where it begins, and one for each candidate.
const ANNEALING_EPOCHS: u32 = 154;
/// Below it a search goes on from the best that it has seen: a loss of 5 % is accepted once in two hundred times.
const TEMPERATURE_RETURN: f64 = 0.1;
/// Policies that run once more at the end of a search.
const FINALISTS: usize = 5;
/// Epochs that each of them has.
const FINAL_EPOCHS: usize = 4;

/// The values that a probability takes in a search.
const LADDER: [f64; 9] = [0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0];

/// What changes at a time: each of the probabilities, both of DRAM, both of the middle tier.
const CHANGES: [(usize, usize); 6] = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (2, 4)];

/// A place in the space of policies: a step of the ladder for each probability.
type Place = [usize; 4];

/// Looks for the best policy by simulated annealing.
///
/// ```
/// use terrace::migration::{Policy, Tuner};
///
/// // A workload that runs the slower the more pages go up to DRAM.
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
    /// What holds in the epoch that runs.
    place: Place,
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

/// A search under way. Throughput is in that of its first epoch.
#[derive(Debug, Default)]
struct Annealing {
    /// Operations a second of the first epoch, once it has been.
    unit: f64,
    current: Place,
    cost: f64,
    temperature: f64,
    /// Changes that are still to be tried, of which, and to which step.
    deck: Vec<((usize, usize), usize)>,
    /// What each policy that had an epoch did, on average, and in how many.
    seen: Vec<(Place, f64, u32)>,
}

#[derive(Debug)]
struct Finals {
    /// Each with the sum of its throughputs.
    finalists: Vec<(Place, f64)>,
    epoch: usize,
}

impl Tuner {
    /// Epochs of a search at most; afterwards a policy is held until the workload shifts.
    pub const SEARCH_EPOCHS_MAX: u32 = ANNEALING_EPOCHS + (FINALISTS * FINAL_EPOCHS) as u32;

    /// A search that begins from `policy`, each probability of it taken to the next step of the ladder.
    pub fn new(policy: Policy, seed: u64) -> Tuner {
        let place = policy.probabilities().map(|probability| {
            let distance = |step: &usize| (LADDER[*step] - probability).abs();
            (0..LADDER.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
        });
        let phase = Phase::Annealing(Annealing::default());
        Tuner { random: SmallRng::seed_from_u64(seed), place, phase, epochs: 0, searches: 1 }
    }

    /// The policy of the epoch that runs.
    pub fn policy(&self) -> Policy {
        policy_at(self.place)
    }

    /// Whether the search is over and a policy is held.
    pub fn is_holding(&self) -> bool {
        matches!(self.phase, Phase::Holding(_))
    }

    /// Epochs so far.
    pub fn epochs(&self) -> u64 {
        self.epochs
    }

    /// Searches so far, the one under way included: one more than there were shifts.
    pub fn searches(&self) -> u64 {
        self.searches
    }

    /// An epoch is over, in which there were so many operations a second; says which policy holds in the next. An epoch that has no
    /// throughput, because nothing ran, is as if it had not been.
    pub fn epoch(&mut self, throughput: f64) -> Policy {
        if throughput.is_finite() && throughput > 0.0 {
            self.epochs += 1;
            let next = match &mut self.phase {
                Phase::Annealing(search) => search.epoch(self.place, throughput, &mut self.random),
                Phase::Finals(finals) => finals.epoch(throughput),
                Phase::Holding(watch) => {
                    if watch.is_shift(throughput) {
                        self.searches += 1;
                        Next::Phase(Phase::Annealing(Annealing::default()), self.place)
                    } else {
                        Next::Place(self.place)
                    }
                }
            };
            self.place = match next {
                Next::Place(place) => place,
                Next::Phase(phase, place) => {
                    self.phase = phase;
                    place
                }
            };
        }
        self.policy()
    }
}

/// What comes after an epoch.
enum Next {
    /// Another of the same phase.
    Place(Place),
    /// The first of another phase.
    Phase(Phase, Place),
}

impl Annealing {
    fn epoch(&mut self, place: Place, throughput: f64, random: &mut SmallRng) -> Next {
        if self.seen.is_empty() {
            *self = Annealing { unit: throughput, temperature: TEMPERATURE_FIRST, ..Annealing::default() };
            (self.current, self.cost) = (place, cost(1.0));
            self.note(place, 1.0);
        } else {
            let throughput = throughput / self.unit;
            self.note(place, throughput);
            if accepts(cost(throughput) - self.cost, self.temperature, random.random()) {
                (self.current, self.cost) = (place, cost(throughput));
            }
            let was_warm = self.temperature >= TEMPERATURE_RETURN;
            self.temperature *= ALPHA;
            if was_warm && self.temperature < TEMPERATURE_RETURN {
                self.go_back();
            }
        }
        if self.temperature >= TEMPERATURE_LAST {
            return Next::Place(self.candidate(random));
        }
        let finals = Finals::of(std::mem::take(&mut self.seen));
        let first = finals.finalists[0].0;
        Next::Phase(Phase::Finals(finals), first)
    }

    /// What is tried next.
    fn candidate(&mut self, random: &mut SmallRng) -> Place {
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

    /// Goes on from what did best on average.
    fn go_back(&mut self) {
        if let Some(&(place, mean, _)) = self.seen.iter().max_by(|(_, a, _), (_, b, _)| a.total_cmp(b)) {
            (self.current, self.cost) = (place, cost(mean));
        }
        self.deck.clear();
    }

    fn note(&mut self, place: Place, throughput: f64) {
        match self.seen.iter_mut().find(|(seen, ..)| *seen == place) {
            Some((_, mean, count)) => {
                *count += 1;
                *mean += (throughput - *mean) / f64::from(*count);
            }
            None => self.seen.push((place, throughput, 1)),
        }
    }
}

impl Finals {
    /// The best of what was `seen`, which is at least one.
    fn of(mut seen: Vec<(Place, f64, u32)>) -> Finals {
        seen.sort_by(|(_, a, _), (_, b, _)| b.total_cmp(a));
        seen.truncate(FINALISTS);
        Finals { finalists: seen.into_iter().map(|(place, ..)| (place, 0.0)).collect(), epoch: 0 }
    }

    fn epoch(&mut self, throughput: f64) -> Next {
        let count = self.finalists.len();
        self.finalists[self.epoch % count].1 += throughput;
        self.epoch += 1;
        if self.epoch < count * FINAL_EPOCHS {
            return Next::Place(self.finalists[self.epoch % count].0);
        }
        let best = self.finalists.iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
        // There is one: a search notes its first epoch.
        let place = best.map_or(self.finalists[0].0, |(place, _)| *place);
        Next::Phase(Phase::Holding(Watch::default()), place)
    }
}

fn policy_at(place: Place) -> Policy {
    let [dr, dw, nr, nw] = place.map(|step| LADDER[step]);
    Policy::new(dr, dw, nr, nw).expect("the ladder is of probabilities")
}

/// The cost of a throughput, which is in that of the first epoch of the search.
fn cost(throughput: f64) -> f64 {
    GAMMA / throughput
}

/// The Metropolis rule: whether a candidate that costs `more`, or less, takes the place of the current policy; `draw` is from 0 to 1.
fn accepts(more: f64, temperature: f64, draw: f64) -> bool {
    more <= 0.0 || draw < (-more / temperature).exp()
}

#[cfg(test)]
mod tests;
