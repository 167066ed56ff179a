//! Data of a chart, independent of drawing.

/// A named sequence of points.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Points by ascending first coordinate. Non-finite points are skipped.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A series of points.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points }
    }
}

/// A line chart over a common axis. [`Lines::cdf`] makes a cumulative distribution.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// Title.
    pub title: String,
    /// Label of the horizontal axis, with its unit.
    pub x: String,
    /// Label of the vertical axis, with its unit.
    pub y: String,
    /// Whether the horizontal axis is logarithmic.
    pub log_x: bool,
    /// Whether the vertical axis is logarithmic.
    pub log_y: bool,
    /// Whether a value holds until the next point, as counts and cumulative shares do.
    pub steps: bool,
    /// The lines.
    pub series: Vec<Series>,
    /// Vertical marks with a label: "killed", "recovered".
    pub marks: Vec<(f64, String)>,
    /// Horizontal limits with a label: "budget".
    pub limits: Vec<(f64, String)>,
}

impl Lines {
    /// A chart with linear axes.
    pub fn new(title: impl Into<String>, x: impl Into<String>, y: impl Into<String>) -> Lines {
        Lines { title: title.into(), x: x.into(), y: y.into(), ..Lines::default() }
    }

    /// A cumulative distribution: times on a logarithmic axis, percent of operations upwards.
    pub fn cdf(title: impl Into<String>, x: impl Into<String>) -> Lines {
        Lines { log_x: true, steps: true, ..Lines::new(title, x, "operations, %") }
    }

    /// Adds a line.
    pub fn line(mut self, name: impl Into<String>, points: Vec<(f64, f64)>) -> Lines {
        self.series.push(Series::new(name, points));
        self
    }

    /// Adds a cumulative distribution, shares from 0 to 1.
    pub fn shares(self, name: impl Into<String>, curve: &[(f64, f64)]) -> Lines {
        let points = curve.iter().map(|(x, share)| (*x, share * 100.0)).collect();
        self.line(name, points)
    }

    /// Adds a vertical mark.
    pub fn mark(mut self, x: f64, word: impl Into<String>) -> Lines {
        self.marks.push((x, word.into()));
        self
    }

    /// Adds a horizontal limit.
    pub fn limit(mut self, y: f64, word: impl Into<String>) -> Lines {
        self.limits.push((y, word.into()));
        self
    }
}

/// A bar chart in groups: each group has one bar per series.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// Title.
    pub title: String,
    /// Label of the vertical axis, with its unit.
    pub y: String,
    /// Names of the series; the legend appears if there are several.
    pub series: Vec<String>,
    /// Each group's name and its values, one per series.
    pub groups: Vec<(String, Vec<f64>)>,
}

impl Bars {
    /// A chart without bars.
    pub fn new(title: impl Into<String>, y: impl Into<String>, series: &[&str]) -> Bars {
        let series = series.iter().map(|name| (*name).to_owned()).collect();
        Bars { title: title.into(), y: y.into(), series, groups: Vec::new() }
    }

    /// Adds a group of bars.
    pub fn group(mut self, name: impl Into<String>, values: Vec<f64>) -> Bars {
        self.groups.push((name.into(), values));
        self
    }
}
