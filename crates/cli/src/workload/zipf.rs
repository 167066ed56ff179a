//! Ranks by Zipf's law: rank `k` of `n` comes with probability proportional to `1 / k^theta`.
//!
//! Sampled by rejection-inversion (W. Hörmann, G. Derflinger: "Rejection-inversion to generate variates from monotone
//! discrete distributions", ACM TOMACS 6(3), 1996): invert the integral of the continuous hat function, round, and
//! accept nearly always. No table and no loop over `n` is needed, so setting up is free and the number of items may
//! grow between draws, which the "latest" distribution needs. YCSB's own method (Gray et al., SIGMOD 1994) is
//! biased at the second rank, sums `n` terms first and does not work for theta of 1 and above.
//!
//! The integral is `H(x) = (x^(1-theta) - 1) / (1 - theta)`, and `ln x` for theta of 1. Near 1 the quotient cancels, so
//! within [`NEAR_ONE`] of it the logarithm is used: the distribution changes by less than the seventh digit there.

use rand::{Rng, RngExt};

/// How close to 1 theta counts as 1.
const NEAR_ONE: f64 = 1e-9;

/// A source of ranks `0..n`, rank 0 the most frequent.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    theta: f64,
    /// `1 - theta`, or 0 where the logarithm is used.
    q: f64,
    /// `1 / q`.
    inverse_q: f64,
    /// H(1.5) - h(1), the upper end of what is inverted.
    high: f64,
    /// H(n + 0.5), the lower end of what is inverted less `high`.
    low: f64,
    /// Ranks this close below their rounding point are accepted without a further look.
    shortcut: f64,
}

impl Zipf {
    /// A sampler over `items` ranks.
    ///
    /// # Panics
    ///
    /// When `items` is 0 or theta is not in (0, 2).
    pub fn new(items: u64, theta: f64) -> Zipf {
        assert!(items > 0, "a distribution needs items");
        assert!(theta > 0.0 && theta < 2.0, "theta must lie between 0 and 2");
        let q = if (1.0 - theta).abs() < NEAR_ONE { 0.0 } else { 1.0 - theta };
        let mut zipf = Zipf { items, theta, q, inverse_q: 1.0 / q, high: 0.0, low: 0.0, shortcut: 0.0 };
        zipf.high = zipf.integral(1.5) - 1.0;
        zipf.low = zipf.integral(items as f64 + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// Changes the number of ranks; costs one power.
    pub fn resize(&mut self, items: u64) {
        assert!(items > 0, "a distribution needs items");
        if items != self.items {
            self.items = items;
            self.low = self.integral(items as f64 + 0.5);
        }
    }

    /// Draws a rank.
    #[inline]
    pub fn sample(&self, random: &mut impl Rng) -> u64 {
        loop {
            let u = self.low + random.random::<f64>() * (self.high - self.low);
            let x = self.inverse(u);
            // Rounding may leave the range by one at either end.
            let rank = ((x + 0.5) as u64).clamp(1, self.items);
            let k = rank as f64;
            if k - x <= self.shortcut || u >= self.integral(k + 0.5) - self.density(k) {
                return rank - 1;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    #[inline]
    fn integral(&self, x: f64) -> f64 {
        match self.q {
            0.0 => x.ln(),
            q => ((q * x.ln()).exp() - 1.0) * self.inverse_q,
        }
    }

    #[inline]
    fn inverse(&self, y: f64) -> f64 {
        match self.q {
            0.0 => y.exp(),
            // For theta above 1 rounding could make the base negative at the far end.
            q => ((1.0 + q * y).max(f64::MIN_POSITIVE).ln() * self.inverse_q).exp(),
        }
    }
}

/// A fixed one-to-one scattering of `0..n`, so that the most frequent ranks are not neighbours in the table.
///
/// `(rank * step) mod n` with a step near `n` times the golden ratio that shares no factor with `n`. Unlike a hash
/// modulo `n` (YCSB's scrambled Zipfian), it leaves no item out and joins no two.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    items: u64,
    step: u64,
}

impl Scatter {
    /// A scattering of `0..items`, which must be at least 1 and below 2^40.
    pub fn new(items: u64) -> Scatter {
        assert!((1..=1 << 40).contains(&items), "between 1 and 2^40 items can be scattered");
        let mut step = (items as f64 * 0.618_033_988_749_895) as u64 | 1;
        while common_divisor(step, items) != 1 {
            step += 2;
        }
        Scatter { items, step: step % items.max(2) }
    }

    /// Where `rank` goes.
    #[inline]
    pub fn place(&self, rank: u64) -> u64 {
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

    /// Chi-square distance of two sets of counts, over bins that hold enough, with the number of bins.
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
            // Mean `bins`, variance twice that: six deviations allow for no visible bias.
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
        assert_eq!(zipf.low, Zipf::new(99, 0.99).low);
    }

    #[test]
    fn scattering_is_one_to_one_and_parts_neighbours() {
        for items in [1, 2, 3, 6, 10, 1000, 30_030, 65_536] {
            let scatter = Scatter::new(items);
            let mut seen = vec![false; items as usize];
            (0..items).for_each(|rank| seen[scatter.place(rank) as usize] = true);
            assert!(seen.iter().all(|seen| *seen), "{items}");
        }
        let scatter = Scatter::new(1 << 40);
        assert!(scatter.place((1 << 40) - 1) < 1 << 40);
        assert!(Scatter::new(1000).place(1) > 100);
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
        time("ours, scattered", &mut |random| scatter.place(zipf.sample(random)));
        time("rand_distr", &mut |random| theirs.sample(random) as u64);
    }
}
