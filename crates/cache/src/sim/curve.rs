//! Miss-ratio curves: a policy at all sizes.
//!
//! LRU's curve is exact at every size, from one pass ([`Distances`](super::Distances)). Others are
//! exact on a grid of sizes, with a cache each. Grid sizes grow by a constant factor.

use crate::policy::Name;

/// Points of a curve with one cache each.
const GRID_POINTS: usize = 24;

/// Points shown of a curve known everywhere.
const EXACT_POINTS: usize = 200;

/// The smallest size is the footprint over this.
const LEAST_PART: usize = 1000;

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Cache size in blocks.
    pub cache_blocks: usize,
    /// Misses per request.
    pub miss_ratio: f64,
}

/// A policy's miss ratios, from a thousandth of the footprint to all of it.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The policy.
    pub policy: Name,
    /// By increasing size.
    pub points: Vec<CurvePoint>,
}

/// Sizes with one cache each.
pub(super) fn grid(footprint: usize) -> Vec<usize> {
    spread(footprint, GRID_POINTS)
}

/// Sizes of a curve known everywhere.
pub(super) fn dense(footprint: usize) -> Vec<usize> {
    spread(footprint, EXACT_POINTS)
}

/// At most `points` sizes by a constant factor, up to the footprint.
fn spread(footprint: usize, points: usize) -> Vec<usize> {
    let least = footprint.div_ceil(LEAST_PART).max(1) as f64;
    let factor = footprint as f64 / least;
    let size = |index: usize| (least * factor.powf(index as f64 / (points - 1) as f64)).round() as usize;
    let mut sizes: Vec<usize> = (0..points).map(|index| size(index).clamp(1, footprint.max(1))).collect();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_rise_and_end_at_the_footprint() {
        for footprint in [1, 2, 30, 5000, 275_171] {
            for sizes in [grid(footprint), dense(footprint)] {
                assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
                assert_eq!(sizes.last(), Some(&footprint));
                assert_eq!(sizes[0], footprint.div_ceil(1000));
            }
        }
    }
}
