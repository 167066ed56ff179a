//! Throughput by data size.

use terrace_common::report::Lines;

/// Throughput by MiB of data.
pub(super) type Curve = Vec<(f64, f64)>;

pub(super) fn at(curve: &[(f64, f64)], data: f64) -> f64 {
    curve.iter().find(|(size, _)| *size == data).map_or(0.0, |(_, rate)| *rate)
}

pub(super) fn chart(mix: &str) -> Lines {
    Lines::new(format!("Hierarchies of equal cost, {mix}"), "MiB of data", "operations/s")
}
