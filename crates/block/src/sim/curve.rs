//! Miss-ratio curves: how a policy does at all sizes.
//!
//! The curve of LRU is exact at every size, from one pass ([`Distances`]); that of another policy is exact at the sizes of
//! a grid, each of which is a cache of its own. Sizes of the grid grow by a constant factor, so that they lie
//! evenly on a logarithmic axis.

use crate::policy::Name;

/// Points of a curve whose every point is a cache of its own.
const GRID_POINTS: usize = 24;

/// Points shown of a curve that is known at every size.
const EXACT_POINTS: usize = 200;

/// The least size of a curve is this part of the footprint.
const LEAST_PART: usize = 1000;

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// The size of the cache in blocks.
    pub cache_blocks: usize,
    /// Misses for each request.
    pub miss_ratio: f64,
}

/// The miss ratios of a policy, from a thousandth of the footprint to all of it.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The policy.
    pub policy: Name,
    /// In the order of their sizes.
    pub points: Vec<CurvePoint>,
}

/// Sizes for a curve with a cache for each point.
pub(super) fn grid(footprint: usize) -> Vec<usize> {
    spread(footprint, GRID_POINTS)
}

/// Sizes for a curve that is known everywhere.
pub(super) fn dense(footprint: usize) -> Vec<usize> {
    spread(footprint, EXACT_POINTS)
}

/// At most `points` different sizes by a constant factor, the footprint the last.
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
