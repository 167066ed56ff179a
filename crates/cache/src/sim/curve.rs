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

/// Least distance of a knee from the chord, as a share of the curve's height. A nearly straight
/// curve has no knee.
const KNEE_SHARE: f64 = 0.05;

impl Curve {
    /// The size behind which more blocks bring little: the point farthest below the chord, which
    /// joins the first point and the last. The smallest, if several are as far.
    ///
    /// This is the knee of Kneedle (Satopaa et al., ICDCS workshops 2011) over sizes in blocks, on
    /// a linear scale. There is none if no point is a twentieth of the curve's height below it.
    pub fn knee(&self) -> Option<CurvePoint> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let height = first.miss_ratio - last.miss_ratio;
        let behind = |point: &CurvePoint| point.cache_blocks as f64 - first.cache_blocks as f64;
        let depth =
            |point: &CurvePoint| first.miss_ratio - height * behind(point) / behind(last) - point.miss_ratio;
        let deepest = self.points.iter().fold(None, |deepest: Option<(f64, &CurvePoint)>, point| {
            let found = depth(point);
            match deepest {
                Some((before, _)) if before >= found => deepest,
                _ => Some((found, point)),
            }
        });
        let (depth, point) = deepest?;
        (height > 0.0 && depth >= KNEE_SHARE * height).then_some(*point)
    }
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

    fn curve(points: &[(usize, f64)]) -> Curve {
        let point = |(cache_blocks, miss_ratio): &(usize, f64)| CurvePoint {
            cache_blocks: *cache_blocks,
            miss_ratio: *miss_ratio,
        };
        Curve { policy: "lru".parse().unwrap(), points: points.iter().map(point).collect() }
    }

    #[test]
    fn the_knee_is_farthest_below_the_chord() {
        let knee = |points: &[(usize, f64)]| curve(points).knee().map(|point| point.cache_blocks);
        // The chord falls by .1 every 10 blocks: depths 0, .2, .45, .35, 0.
        assert_eq!(knee(&[(0, 1.0), (10, 0.7), (20, 0.35), (40, 0.25), (100, 0.0)]), Some(20));
        // The first of equal depths.
        assert_eq!(knee(&[(0, 1.0), (25, 0.5), (50, 0.25), (100, 0.0)]), Some(25));
        // Straight, nearly straight, above the chord, flat, rising, and too short.
        assert_eq!(knee(&[(1, 1.0), (2, 0.5), (3, 0.0)]), None);
        assert_eq!(knee(&[(1, 1.0), (2, 0.46), (3, 0.0)]), None);
        assert_eq!(knee(&[(1, 1.0), (2, 0.44), (3, 0.0)]), Some(2));
        assert_eq!(knee(&[(1, 1.0), (2, 0.9), (3, 0.0)]), None);
        assert_eq!(knee(&[(1, 0.5), (2, 0.5), (3, 0.5)]), None);
        assert_eq!(knee(&[(1, 0.5), (2, 0.1), (3, 0.6)]), None);
        assert_eq!(knee(&[(1, 0.5)]), None);
        assert_eq!(knee(&[]), None);
    }

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
