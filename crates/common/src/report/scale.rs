//! Maps values to positions on an axis with round ticks, linear or logarithmic.

/// An axis from `low` to `high`, drawn from `start` to `end`.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    logarithmic: bool,
}

impl Scale {
    /// A linear axis over `values` with round ends; `from_zero` starts it at 0 unless values are
    /// negative.
    pub fn linear(values: impl Iterator<Item = f64>, from_zero: bool, start: f64, end: f64) -> Scale {
        let (mut low, mut high) = extent(values);
        if from_zero {
            low = low.min(0.0);
        }
        if high <= low {
            high = low + 1.0;
        }
        if from_zero {
            let step = step(high - low);
            (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        }
        Scale { low, high, start, end, logarithmic: false }
    }

    /// A logarithmic axis over the positive `values`.
    pub fn logarithmic(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Scale {
        let (low, high) = extent(values.filter(|value| *value > 0.0));
        let low = 10f64.powf(low.max(1e-9).log10().floor());
        let high = 10f64.powf(high.max(low).log10().ceil()).max(low * 10.0);
        Scale { low, high, start, end, logarithmic: true }
    }

    /// The position of a value, clamped to the axis.
    pub fn position(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let share = match self.logarithmic {
            true => (value / self.low).log10() / (self.high / self.low).log10(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.start + share * (self.end - self.start)
    }

    /// The tick values.
    pub fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = (self.high / self.low).log10().round() as i32;
            let stride = decades / 9 + 1;
            return (0..=decades).step_by(stride as usize).map(|n| self.low * 10f64.powi(n)).collect();
        }
        let step = step(self.high - self.low);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }
}

/// The least and greatest finite value, or 0 and 1 if there is none.
fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let limits = values.filter(|value| value.is_finite()).fold(None, |limits: Option<(f64, f64)>, v| {
        limits.map_or(Some((v, v)), |(l, h)| Some((l.min(v), h.max(v))))
    });
    limits.unwrap_or((0.0, 1.0))
}

/// A round distance that divides `span` into four to eight parts.
fn step(span: f64) -> f64 {
    let rough = span / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    match rough / power {
        r if r < 1.5 => power,
        r if r < 3.5 => 2.0 * power,
        r if r < 7.5 => 5.0 * power,
        _ => 10.0 * power,
    }
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
        a if a == 0.0 || a >= 100.0 => 0,
        a if a >= 10.0 => 1,
        a if a >= 1.0 => 2,
        a => (2 - a.log10().floor() as i32).clamp(0, 9) as usize,
    };
    let text = format!("{scaled:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for span in [1e-6, 0.3, 1.0, 7.0, 99.0, 12_345.0, 8e12] {
            let scale = Scale::linear([0.0, span].into_iter(), true, 0.0, 100.0);
            let ticks = scale.ticks();
            assert!((4..=11).contains(&ticks.len()), "{span}: {ticks:?}");
            assert_eq!(scale.position(ticks[0]), 0.0);
            assert!((scale.position(*ticks.last().unwrap()) - 100.0).abs() < 1e-6);
        }
        let ticks = Scale::logarithmic([3.0, 20_000.0].into_iter(), 0.0, 1.0).ticks();
        assert_eq!(ticks.len(), 6);
    }

    #[test]
    fn empty_and_constant_data_have_an_axis() {
        for values in [vec![], vec![0.0], vec![5.0, 5.0], vec![f64::NAN, f64::INFINITY]] {
            for scale in [
                Scale::linear(values.iter().copied(), true, 0.0, 1.0),
                Scale::linear(values.iter().copied(), false, 0.0, 1.0),
                Scale::logarithmic(values.iter().copied(), 0.0, 1.0),
            ] {
                assert!(scale.position(1.0).is_finite() && !scale.ticks().is_empty());
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.25, 1.0, 12.5, 1500.0, 15_000.0, 1.5e6, 2e9, -0.001, 100.0].map(short);
        assert_eq!(shown, ["0", "0.25", "1", "12.5", "1.5k", "15k", "1.5M", "2G", "-0.001", "100"]);
    }
}
