//! Zipf-distributed ranks: rank `k` of `n` has probability proportional to `1 / k^theta`.
//!
//! Sampling rejects from a staircase. The first sixteen steps hold one rank each; later steps are a
//! sixteenth of their first rank long, so a trillion ranks make some 400 steps. Each step bounds
//! the law by its value at the step's first rank. A draw picks a step by that bound's weight
//! (Walker's alias table: one random word, one comparison) and a rank in it uniformly. It keeps the
//! rank with probability law / bound. The law falls by a few percent within a step, so nearly every
//! draw is kept without computing a power. The result is exact for every theta, including 1. A draw
//! took 10 ns, against 71 ns for rand_distr's inversion.
//!
//! The number of ranks may grow between draws, as the "latest" distribution needs. The staircase
//! then extends slightly beyond the ranks, and draws beyond them are repeated, which keeps the law
//! exact.

use rand::Rng;

/// Inverse relative length of a step; bounds how far the law falls within one.
const STEPS_PER_RANK: u64 = 16;

/// 2^64, the denominator of a 64-bit fraction.
const WHOLE: f64 = 18_446_744_073_709_551_616.0;

/// A source of ranks `0..n`; rank 0 is the most frequent.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    theta: f64,
    /// Ranks that the steps cover; at least `items`.
    reach: u64,
    steps: Vec<Step>,
}

/// Consecutive ranks, counted from 1, with their alias-table entry.
#[derive(Clone, Copy, Debug)]
struct Step {
    first: u64,
    width: u64,
    /// The law at the last rank relative to the first, as a 64-bit fraction. Draws below it are
    /// kept.
    floor: u64,
    /// Fractions below it take this step, others take `other`.
    keep: u64,
    other: u32,
}

impl Zipf {
    /// A sampler over `items` ranks.
    ///
    /// # Panics
    ///
    /// If `items` is 0 or theta is outside (0, 2).
    pub fn new(items: u64, theta: f64) -> Zipf {
        assert!(items > 0, "a distribution needs items");
        assert!(theta > 0.0 && theta < 2.0, "theta must lie between 0 and 2");
        Zipf { items, theta, reach: items, steps: staircase(items, theta) }
    }

    /// Changes the number of ranks. Growing by one is nearly always free.
    pub fn resize(&mut self, items: u64) {
        assert!(items > 0, "a distribution needs items");
        self.items = items;
        if items > self.reach || items < self.reach / 2 {
            self.reach = items.saturating_add(items / 8).saturating_add(16);
            self.steps = staircase(self.reach, self.theta);
        }
    }

    /// Draws a rank.
    #[inline]
    pub fn sample(&self, random: &mut impl Rng) -> u64 {
        loop {
            let (index, fraction) = split(random.next_u64(), self.steps.len() as u64);
            let mut step = &self.steps[index as usize];
            if fraction >= step.keep {
                step = &self.steps[step.other as usize];
            }
            if step.width == 1 {
                if step.first <= self.items {
                    return step.first - 1;
                }
                continue;
            }
            let (offset, fraction) = split(random.next_u64(), step.width);
            let rank = step.first + offset;
            if rank <= self.items && (fraction < step.floor || self.keeps(step.first, rank, fraction)) {
                return rank - 1;
            }
        }
    }

    #[cold]
    fn keeps(&self, first: u64, rank: u64, fraction: u64) -> bool {
        (fraction as f64) < (rank as f64 / first as f64).powf(-self.theta) * WHOLE
    }
}

/// A uniform number below `count` and an independent fraction, from one random word.
#[inline]
fn split(word: u64, count: u64) -> (u64, u64) {
    let product = u128::from(word) * u128::from(count);
    ((product >> 64) as u64, product as u64)
}

/// The steps up to `reach` with their alias table.
fn staircase(reach: u64, theta: f64) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut weights = Vec::new();
    let mut first = 1;
    while first <= reach {
        let width = (first / STEPS_PER_RANK).max(1).min(reach - first + 1);
        let last = first + width - 1;
        let floor = ((last as f64 / first as f64).powf(-theta) * WHOLE) as u64;
        steps.push(Step { first, width, floor, keep: u64::MAX, other: steps.len() as u32 });
        weights.push(width as f64 * (first as f64).powf(-theta));
        first += width;
    }
    // Vose's method: steps with a surplus fill up those with less than an even share.
    let share = weights.iter().sum::<f64>() / weights.len() as f64;
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..weights.len()).partition(|index| weights[*index] < share);
    while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
        small.pop();
        steps[poor].keep = (weights[poor] / share * WHOLE) as u64;
        steps[poor].other = rich as u32;
        weights[rich] -= share - weights[poor];
        if weights[rich] < share {
            large.pop();
            small.push(rich);
        }
    }
    steps
}

/// A fixed permutation of `0..n` that spreads the frequent ranks over the table.
///
/// `(rank * step) mod n`, with a step near `n` times the golden ratio and coprime to `n`. Unlike a
/// hash modulo `n` (YCSB's scrambled Zipfian) it is one-to-one.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    items: u64,
    step: u64,
}

impl Scatter {
    /// A permutation of `0..items`, with `items` from 1 to 2^40 - 1.
    pub fn new(items: u64) -> Scatter {
        assert!((1..=1 << 40).contains(&items), "between 1 and 2^40 items can be scattered");
        let mut step = (items as f64 * 0.618_033_988_749_895) as u64 | 1;
        while common_divisor(step, items) != 1 {
            step += 2;
        }
        Scatter { items, step: step % items.max(2) }
    }

    /// The image of `rank`.
    #[inline]
    pub fn spread(&self, rank: u64) -> u64 {
        match rank.checked_mul(self.step) {
            Some(product) => product % self.items,
            None => (u128::from(rank) * u128::from(self.step) % u128::from(self.items)) as u64,
        }
    }
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use rand_distr::Distribution;

    use super::*;

    const DRAWS: u64 = 400_000;

    /// Chi-square distance of two histograms over well-filled bins, and the number of bins.
    fn distance(a: &[u64], b: &[u64]) -> (f64, usize) {
        let mut sum = 0.0;
        let mut bins = 0;
        let (mut left, mut right) = (0.0, 0.0);
        for (x, y) in a.iter().zip(b) {
            left += *x as f64;
            right += *y as f64;
            if left + right >= 40.0 {
                sum += (left - right) * (left - right) / (left + right);
                bins += 1;
                (left, right) = (0.0, 0.0);
            }
        }
        (sum, bins)
    }

    #[test]
    fn agrees_with_rand_distr() {
        for (seed, (items, theta)) in
            [(1, 0.5), (2, 0.99), (10, 1.0), (1000, 0.3), (1000, 0.99), (1000, 1.0), (1000, 1.2), (777, 1.9)]
                .into_iter()
                .enumerate()
        {
            let mut random = SmallRng::seed_from_u64(seed as u64);
            let ours = Zipf::new(items, theta);
            let theirs = rand_distr::Zipf::new(items as f64, theta).unwrap();
            let mut counts = (vec![0; items as usize], vec![0; items as usize]);
            for _ in 0..DRAWS {
                counts.0[ours.sample(&mut random) as usize] += 1;
                counts.1[theirs.sample(&mut random) as usize - 1] += 1;
            }
            let (sum, bins) = distance(&counts.0, &counts.1);
            // Mean `bins`, variance `2 * bins`: six deviations reject any visible bias.
            let limit = bins as f64 + 6.0 * (2.0 * bins as f64).sqrt();
            assert!(sum < limit, "{items} items, theta {theta}: {sum:.1} over {bins} bins, limit {limit:.1}");
        }
    }

    #[test]
    fn agrees_with_the_definition() {
        for theta in [0.2, 0.99, 1.0 - 1e-10, 1.0, 1.0 + 1e-7, 1.7] {
            let items = 50;
            let zipf = Zipf::new(items, theta);
            let mut random = SmallRng::seed_from_u64(5);
            let mut counts = vec![0u64; items as usize];
            (0..DRAWS).for_each(|_| counts[zipf.sample(&mut random) as usize] += 1);
            let weights: Vec<f64> = (1..=items).map(|k| (k as f64).powf(-theta)).collect();
            let total: f64 = weights.iter().sum();
            let sum: f64 = counts
                .iter()
                .zip(&weights)
                .map(|(count, weight)| {
                    let expected = weight / total * DRAWS as f64;
                    (*count as f64 - expected).powi(2) / expected
                })
                .sum();
            assert!(sum < 110.0, "theta {theta}: {sum:.1} over {items} bins");
        }
    }

    #[test]
    fn growing_leaves_the_law_as_it_is() {
        let mut grown = Zipf::new(1, 0.99);
        (1..=1000).for_each(|items| grown.resize(items));
        assert!(grown.reach > 1000);
        let whole = Zipf::new(1000, 0.99);
        let mut random = SmallRng::seed_from_u64(8);
        let mut counts = (vec![0; 1000], vec![0; 1000]);
        for _ in 0..DRAWS {
            counts.0[grown.sample(&mut random) as usize] += 1;
            counts.1[whole.sample(&mut random) as usize] += 1;
        }
        let (sum, bins) = distance(&counts.0, &counts.1);
        assert!(sum < bins as f64 + 6.0 * (2.0 * bins as f64).sqrt(), "{sum:.1} over {bins} bins");
    }

    #[test]
    fn a_huge_range_and_a_growing_one_stay_inside() {
        let mut random = SmallRng::seed_from_u64(3);
        for theta in [1e-6, 0.99, 1.0, 1.999] {
            let zipf = Zipf::new(1 << 40, theta);
            assert!((0..10_000).all(|_| zipf.sample(&mut random) < 1 << 40));
        }
        let mut zipf = Zipf::new(1, 0.99);
        for items in 1..100 {
            zipf.resize(items);
            assert!((0..100).all(|_| zipf.sample(&mut random) < items));
        }
        zipf.resize(3);
        assert!((0..100).all(|_| zipf.sample(&mut random) < 3));
    }

    #[test]
    fn scattering_is_one_to_one_and_parts_neighbours() {
        for items in [1, 2, 3, 6, 10, 1000, 30_030, 65_536] {
            let scatter = Scatter::new(items);
            let mut seen = vec![false; items as usize];
            (0..items).for_each(|rank| seen[scatter.spread(rank) as usize] = true);
            assert!(seen.iter().all(|seen| *seen), "{items}");
        }
        let scatter = Scatter::new(1 << 40);
        assert!(scatter.spread((1 << 40) - 1) < 1 << 40);
        assert!(Scatter::new(1000).spread(1) > 100);
    }

    /// `cargo test --release -p terrace-cli zipf -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement, for an optimised build"]
    fn nanoseconds_a_draw() {
        let mut random = SmallRng::seed_from_u64(1);
        let (zipf, scatter) = (Zipf::new(10_000_000, 0.99), Scatter::new(10_000_000));
        let theirs = rand_distr::Zipf::new(1e7, 0.99).unwrap();
        let mut time = |name: &str, draw: &mut dyn FnMut(&mut SmallRng) -> u64| {
            let began = std::time::Instant::now();
            let sum = (0..5_000_000).fold(0u64, |sum, _| sum.wrapping_add(draw(&mut random)));
            println!("{name}: {:.1} ns (sum {sum})", began.elapsed().as_nanos() as f64 / 5e6);
        };
        time("ours", &mut |random| zipf.sample(random));
        time("ours, scattered", &mut |random| scatter.spread(zipf.sample(random)));
        time("rand_distr", &mut |random| theirs.sample(random) as u64);
    }
}
