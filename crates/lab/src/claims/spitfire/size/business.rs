//! S12's TPC-C (figure 15d).
//!
//! The sizes are the paper's 20 to 140 GB. With TPC-C the paper has DRAM-store fastest up to 65 GB
//! and middle-store fastest after 80; of the policies of three tiers lazy is as fast as any.

use terrace_common::report::Lines;

use super::curve::{Curve, at, chart};
use crate::claims::claim::Verdict;

/// MiB of data, as many warehouses: 20, 35, ... 110, 140 GB of the paper's.
pub(super) const SIZES: [f64; 8] = [8.0, 14.0, 20.0, 26.0, 32.0, 38.0, 44.0, 56.0];
/// DRAM-store is the fastest up to the first, and middle-store beyond the second: 65 and 80 GB.
const DRAM_LEADS: f64 = 26.0;
const MIDDLE_LEADS: f64 = 32.0;
/// A rate that counts as equal.
const NEAR: f64 = 0.98;
const DRAM_STORE: &str = "DRAM-store";
const MIDDLE_STORE: &str = "middle-store";

pub(super) struct Business {
    pub(super) dram: Curve,
    pub(super) middle: Curve,
    pub(super) lazy: Curve,
    pub(super) eager: Curve,
    pub(super) hymem: Curve,
}

impl Business {
    fn all(&self) -> [(&'static str, &Curve); 5] {
        [
            (DRAM_STORE, &self.dram),
            (MIDDLE_STORE, &self.middle),
            ("three tiers, lazy", &self.lazy),
            ("three tiers, eager", &self.eager),
            ("three tiers, HyMem", &self.hymem),
        ]
    }

    fn sizes(&self) -> impl Iterator<Item = f64> + '_ {
        self.dram.iter().map(|(size, _)| *size)
    }

    fn fastest(&self, data: f64) -> &'static str {
        let rate = |curve: &Curve| at(curve, data);
        let best = self.all().into_iter().max_by(|a, b| rate(a.1).total_cmp(&rate(b.1)));
        best.map_or(DRAM_STORE, |(name, _)| name)
    }

    /// Whether lazy is as fast as the other policies of three tiers.
    fn lazy_leads(&self, data: f64) -> bool {
        at(&self.lazy, data) >= NEAR * at(&self.eager, data).max(at(&self.hymem, data))
    }

    pub(super) fn judge(&self) -> Verdict {
        let leads = |name, is_meant: fn(f64) -> bool| {
            self.sizes().filter(|&data| is_meant(data)).all(|data| self.fastest(data) == name)
        };
        let ends = [SIZES[0], SIZES[SIZES.len() - 1]].map(|data| self.fastest(data));
        let holds = leads(DRAM_STORE, |data| data <= DRAM_LEADS)
            && leads(MIDDLE_STORE, |data| data > MIDDLE_LEADS)
            && self.sizes().all(|data| self.lazy_leads(data));
        match (holds, ends == [DRAM_STORE, MIDDLE_STORE]) {
            (true, _) => Verdict::Holds,
            (false, true) => Verdict::Sign,
            _ => Verdict::Fails,
        }
    }

    pub(super) fn tell(&self) -> String {
        let fastest = self.sizes().map(|data| format!("{data} {}", self.fastest(data)));
        let middle = |data: f64| at(&self.middle, data);
        let best = |data: f64| at(&self.lazy, data).max(at(&self.eager, data)).max(at(&self.hymem, data));
        let (first, last) = (SIZES[0], SIZES[SIZES.len() - 1]);
        format!(
            "TPC-C ({}), fastest by MiB: {}. Middle-store is {:.2} of DRAM-store at {first} and {:.2} times the best of three tiers at {last}; lazy \
             is as fast as eager and HyMem at {} of {} sizes",
            self.judge().name(),
            fastest.collect::<Vec<_>>().join(", "),
            middle(first) / at(&self.dram, first),
            middle(last) / best(last),
            self.sizes().filter(|&data| self.lazy_leads(data)).count(),
            self.sizes().count(),
        )
    }

    pub(super) fn figure(&self) -> Lines {
        let lines = chart("TPC-C");
        self.all().into_iter().fold(lines, |lines, (name, curve)| lines.line(name, curve.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_order_holds_and_others_do_not() {
        let business = |dram_to: f64, lazy: f64| {
            let curve = |rate: &dyn Fn(f64) -> f64| SIZES.iter().map(|&data| (data, rate(data))).collect();
            Business {
                dram: curve(&|data| if data <= dram_to { 9.0 } else { 1.0 }),
                middle: curve(&|_| 6.0),
                lazy: curve(&|_| lazy),
                eager: curve(&|_| 4.0),
                hymem: curve(&|_| 3.0),
            }
        };
        assert_eq!(business(DRAM_LEADS, 5.0).judge(), Verdict::Holds);
        assert_eq!(business(20.0, 5.0).judge(), Verdict::Sign, "DRAM-store falls early");
        assert_eq!(business(DRAM_LEADS, 3.5).judge(), Verdict::Sign, "lazy behind eager");
        assert_eq!(business(0.0, 5.0).judge(), Verdict::Fails);
        assert_eq!(business(DRAM_LEADS, 7.0).judge(), Verdict::Fails, "three tiers lead at the end");
        assert!(business(DRAM_LEADS, 5.0).tell().contains("8 DRAM-store"));
    }
}
