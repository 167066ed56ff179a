//! Data of a chart, independent of drawing.

/// The share at which a cumulative distribution ends.
const SHARE_MAX: f64 = 0.999;

/// A named sequence of points.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Points by ascending first coordinate. Non-finite points are skipped.
    pub points: Vec<(f64, f64)>,
    /// Whether the points are a paper's: hollow marks in the colour of our series of this name.
    pub is_paper: bool,
}

impl Series {
    /// A series of points.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, is_paper: false }
    }
}

/// How values are spread over an axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scale {
    /// In proportion.
    #[default]
    Linear,
    /// By their logarithm. Values below or at zero are left out.
    Logarithmic,
    /// By their inverse hyperbolic sine, which is logarithmic but for the least and has a zero.
    /// The ticks are at these values.
    Symmetric(Vec<f64>),
}

/// A second horizontal axis over the same values in another unit.
#[derive(Clone, Debug)]
pub struct SecondAxis {
    /// Label, with its unit.
    pub name: String,
    /// Multiplies a value of the first axis.
    pub factor: f64,
    /// The text of a multiplied value.
    pub label: fn(f64) -> String,
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
    /// How the horizontal axis is spread.
    pub scale: Scale,
    /// The horizontal axis in another unit, above the lines.
    pub second_x: Option<SecondAxis>,
    /// Whether a value holds until the next point, as counts and cumulative shares do.
    pub steps: bool,
    /// The lines.
    pub series: Vec<Series>,
    /// Vertical marks with a label: "killed", "recovered".
    pub marks: Vec<(f64, String)>,
    /// Horizontal limits with a label: "budget".
    pub limits: Vec<(f64, String)>,
    /// Marked points, such as the knee of a curve.
    pub points: Vec<Point>,
}

/// A marked point of a line.
#[derive(Clone, Debug, Default)]
pub struct Point {
    /// The name of the line, whose colour it has.
    pub series: String,
    /// Its coordinates.
    pub at: (f64, f64),
    /// Its label in the legend; points of one label share an entry.
    pub word: String,
}

impl Lines {
    /// A chart with linear axes.
    pub fn new(title: impl Into<String>, x: impl Into<String>, y: impl Into<String>) -> Lines {
        Lines { title: title.into(), x: x.into(), y: y.into(), ..Lines::default() }
    }

    /// A cumulative distribution: times on a logarithmic axis, percent of operations upwards.
    pub fn cdf(title: impl Into<String>, x: impl Into<String>) -> Lines {
        Lines { scale: Scale::Logarithmic, steps: true, ..Lines::new(title, x, "operations, %") }
    }

    /// Adds a line.
    pub fn line(mut self, name: impl Into<String>, points: Vec<(f64, f64)>) -> Lines {
        self.series.push(Series::new(name, points));
        self
    }

    /// Adds the points of a paper, which belong to our line of this name.
    pub fn paper(mut self, name: impl Into<String>, points: Vec<(f64, f64)>) -> Lines {
        self.series.push(Series { is_paper: true, ..Series::new(name, points) });
        self
    }

    /// Adds a cumulative distribution, shares from 0 to 1.
    ///
    /// The slowest thousandth is left out, because its flat line would take most of the width.
    pub fn shares(self, name: impl Into<String>, curve: &[(f64, f64)]) -> Lines {
        let shown = curve.partition_point(|(_, share)| *share < SHARE_MAX) + 1;
        let points = curve.iter().take(shown).map(|(x, share)| (*x, share * 100.0)).collect();
        self.line(name, points)
    }

    /// Adds a vertical mark.
    pub fn mark(mut self, x: f64, word: impl Into<String>) -> Lines {
        self.marks.push((x, word.into()));
        self
    }

    /// Marks a point of the line of this name.
    pub fn point(mut self, series: impl Into<String>, at: (f64, f64), word: impl Into<String>) -> Lines {
        self.points.push(Point { series: series.into(), at, word: word.into() });
        self
    }

    /// Adds a horizontal limit.
    pub fn limit(mut self, y: f64, word: impl Into<String>) -> Lines {
        self.limits.push((y, word.into()));
        self
    }
}

/// A chart of horizontal bars in groups: each group has one bar per series.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// Title.
    pub title: String,
    /// Label of the values, with its unit.
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
