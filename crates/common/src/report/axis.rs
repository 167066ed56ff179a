//! Spreads values over an axis. The drawing library chooses round ticks.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{IntoLogRange, LogCoord};

use super::chart::Scale;
use super::layout::{self, GAP};

/// The most ticks of an axis.
const TICKS_MAX: usize = 9;

/// An axis with its ticks.
#[derive(Clone, Debug)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// A vertical axis over the values and zero, with round ends.
    pub fn from_zero(values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = extent(values.chain([0.0]));
        let high = if high > low { high } else { low + 1.0 };
        let ticks = linear_ticks(low, high, TICKS_MAX - 2);
        let step = ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(high - low, f64::min);
        // Whole steps, within what a division of floats is off.
        let (first, last) = ((low / step + 1e-9).floor() as i64, (high / step - 1e-9).ceil() as i64);
        let ticks: Vec<f64> = (first..=last).map(|number| number as f64 * step).collect();
        Axis { scale: Scale::Linear, low: ticks[0], high: ticks[ticks.len() - 1], ticks }
    }

    /// A horizontal axis over the values, `length` long, whose labels do not meet.
    pub fn over(
        scale: Scale,
        values: impl Iterator<Item = f64>,
        length: i32,
        labels: &[&dyn Fn(f64) -> String],
    ) -> Axis {
        let given = match &scale {
            Scale::Symmetric(ticks) => ticks.as_slice(),
            Scale::Linear | Scale::Logarithmic => &[],
        };
        let (low, high) = extent(values.chain(given.iter().copied()).filter(|value| scale.has(*value)));
        let (low, high) = match scale == Scale::Logarithmic {
            _ if high > low => (low, high),
            true => (low, low * 10.0),
            false => (low, low + 1.0),
        };
        let mut axis = Axis { low, high, ticks: Vec::new(), scale };
        for most in (1..=TICKS_MAX).rev() {
            axis.ticks = axis.ticks_of(most);
            if labels.iter().all(|label| axis.has_room(length, label)) {
                break;
            }
        }
        axis
    }

    /// At most about this number of ticks.
    fn ticks_of(&self, most: usize) -> Vec<f64> {
        let Axis { low, high, .. } = *self;
        match &self.scale {
            Scale::Linear => linear_ticks(low, high, most),
            Scale::Symmetric(ticks) => {
                let stride = ticks.len().div_ceil(most).max(1);
                ticks.iter().rev().step_by(stride).rev().copied().collect()
            }
            Scale::Logarithmic => {
                let axis = LogCoord::from((low..high).log_scale());
                let ticks = axis.key_points(most);
                let inside: Vec<f64> = ticks.into_iter().filter(|tick| (low..=high).contains(tick)).collect();
                match inside.len() < most.min(2) {
                    true => linear_ticks(low, high, most),
                    false => inside,
                }
            }
        }
    }

    /// Whether the labels of the ticks differ and do not meet.
    fn has_room(&self, length: i32, label: &dyn Fn(f64) -> String) -> bool {
        let labels: Vec<(i32, String)> =
            self.ticks.iter().map(|tick| (self.map(tick, (0, length)), label(*tick))).collect();
        labels.windows(2).all(|pair| {
            let [(left, before), (right, after)] = pair else { return true };
            let half = |text: &str| layout::width(text) / 2;
            before != after && left + half(before) + GAP <= right - half(after)
        })
    }

    /// The ticks.
    pub fn ticks(&self) -> &[f64] {
        &self.ticks
    }

    /// Whether the axis has a position for the value.
    pub fn has(&self, value: f64) -> bool {
        self.scale.has(value)
    }
}

impl Scale {
    fn has(&self, value: f64) -> bool {
        value.is_finite() && (*self != Scale::Logarithmic || value > 0.0)
    }

    /// The value in a unit that is drawn in proportion.
    fn spread(&self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Logarithmic => value.ln(),
            Scale::Symmetric(ticks) => {
                let positive = ticks.iter().copied().filter(|tick| *tick > 0.0);
                let least = positive.fold(f64::INFINITY, f64::min);
                (value / least).asinh()
            }
        }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let [low, high, value] =
            [self.low, self.high, value.clamp(self.low, self.high)].map(|value| self.scale.spread(value));
        let share = (value - low) / (high - low);
        start + (share * f64::from(end - start)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

fn linear_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    RangedCoordf64::from(low..high).key_points(most)
}

/// The least and greatest finite value, or 0 and 1 if there is none.
fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let limits = values.filter(|value| value.is_finite()).fold(None, |limits: Option<(f64, f64)>, v| {
        limits.map_or(Some((v, v)), |(l, h)| Some((l.min(v), h.max(v))))
    });
    limits.unwrap_or((0.0, 1.0))
}

/// A short form of a number: 1500000 is `1.5M`, 0.25 is `0.25`.
pub fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        a if a >= 1e9 => (value / 1e9, "G"),
        a if a >= 1e6 => (value / 1e6, "M"),
        a if a >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        ..1e-9 | 100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        a => (2 - a.log10().floor() as i32).clamp(0, 9) as usize,
    };
    let text = format!("{scaled:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{}{suffix}", if text == "-0" { "0" } else { text })
}

#[cfg(test)]
mod tests {
    use super::super::layout::UNIT;
    use super::*;

    #[test]
    fn ticks_are_round_and_few_and_their_labels_do_not_meet() {
        for span in [1e-6, 0.3, 1.0, 7.0, 99.0, 12_345.0, 8e12] {
            let axis = Axis::from_zero([0.0, span].into_iter());
            let ticks = axis.ticks();
            assert!((3..=11).contains(&ticks.len()), "{span}: {ticks:?}");
            assert_eq!(axis.map(&ticks[0], (0, 100)), 0, "{span}: {ticks:?}");
            assert_eq!(axis.map(ticks.last().unwrap(), (0, 100)), 100, "{span}: {ticks:?}");
        }
        let values = || [3.0, 20_000.0].into_iter();
        let broad = Axis::over(Scale::Logarithmic, values(), 700 * UNIT, &[&short]);
        assert_eq!(broad.ticks(), [10.0, 100.0, 1000.0, 10_000.0]);
        let slim = Axis::over(Scale::Linear, values(), 120 * UNIT, &[&short]);
        assert!((1..5).contains(&slim.ticks().len()) && slim.has_room(120 * UNIT, &short), "{slim:?}");
    }

    #[test]
    fn a_symmetric_axis_has_its_values_and_a_zero() {
        let values = vec![0.0, 0.01, 0.1, 1.0];
        let scale = Scale::Symmetric(values.clone());
        let axis = Axis::over(scale, values.iter().copied(), 700 * UNIT, &[&short]);
        assert_eq!(axis.ticks(), values);
        let at: Vec<i32> = values.iter().map(|value| axis.map(value, (0, 10_000))).collect();
        // The inverse hyperbolic sines of 0, 1, 10 and 100, over the last.
        assert_eq!(at, [0, 1663, 5659, 10_000]);
    }

    #[test]
    fn empty_and_constant_data_have_an_axis() {
        for values in [vec![], vec![0.0], vec![5.0, 5.0], vec![f64::NAN, f64::INFINITY]] {
            for axis in [
                Axis::from_zero(values.iter().copied()),
                Axis::over(Scale::Linear, values.iter().copied(), 100 * UNIT, &[&short]),
                Axis::over(Scale::Logarithmic, values.iter().copied(), 100 * UNIT, &[&short]),
                Axis::over(Scale::Symmetric(vec![0.0, 1.0]), values.iter().copied(), 100 * UNIT, &[&short]),
            ] {
                assert!((0..=9).contains(&axis.map(&1.0, (0, 9))) && !axis.ticks().is_empty(), "{axis:?}");
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.25, 1.0, 12.5, 1500.0, 15_000.0, 1.5e6, 2e9, -0.001, 100.0].map(short);
        assert_eq!(shown, ["0", "0.25", "1", "12.5", "1.5k", "15k", "1.5M", "2G", "-0.001", "100"]);
    }
}
