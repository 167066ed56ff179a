//! Draws charts as inline SVG. Colours are the page's variables, so charts follow dark mode.

use std::fmt::Write as _;

use super::chart::{Bars, Lines, Series};
use super::markup::escape;
use super::scale::{Scale, short};

/// Width in user units; the page scales it.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 18.0;
const BOTTOM: f64 = 48.0;
/// Height of a legend row above the plot.
const LEGEND_ROW: f64 = 20.0;
/// Space above the plot, without and with labels of vertical marks.
const TOP: f64 = 20.0;
const TOP_WITH_MARKS: f64 = 36.0;
/// Mean character width at the chart's font size.
const CHARACTER: f64 = 6.7;
/// Number of distinct colours; later series repeat them with another dash.
const COLOURS: usize = 6;
/// Dash patterns, one for each round of colours.
const DASHES: [&str; 4] = ["none", "7 4", "2 3", "12 3 2 3"];
/// Points drawn per series; more are indistinguishable and bloat the file.
const POINTS_MAX: usize = 800;

struct Drawing {
    text: String,
    top: f64,
    bottom: f64,
}

impl Drawing {
    /// A drawing with its legend. A single series needs none, because the title names it.
    fn new(title: &str, names: &[&str], room: f64) -> Drawing {
        let names = if names.len() > 1 { names } else { &[] };
        let positions = legend_positions(names);
        let rows = positions.last().map_or(0.0, |(_, row)| row + 1.0);
        let top = room + rows * LEGEND_ROW;
        let height = HEIGHT + top - TOP;
        let mut drawing = Drawing { text: String::new(), top, bottom: height - BOTTOM };
        drawing.add(format_args!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
            escape(title)
        ));
        for (index, (name, (x, row))) in names.iter().zip(positions).enumerate() {
            let (y, colour) = (4.0 + row * LEGEND_ROW, index % COLOURS);
            if index < COLOURS {
                drawing.add(format_args!(
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"var(--s{colour})\"/>"
                ));
            } else {
                let (left, middle, style) = (x - 6.0, y + 6.0, stroke(index));
                drawing.add(format_args!(
                    "<path class=\"curve\" {style} d=\"M{left:.1} {middle:.1}H{:.1}\"/>",
                    x + 14.0
                ));
            }
            drawing.text("name", x + 18.0, y + 10.5, "start", name);
        }
        drawing
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{text}").expect("writing to a string does not fail");
    }

    fn text(&mut self, class: &str, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escape(text);
        self.add(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    fn vertical_axis(&mut self, scale: &Scale, label: &str) {
        for tick in scale.ticks() {
            let y = scale.position(tick);
            self.line("grid", (LEFT, y), (WIDTH - RIGHT, y));
            self.text("tick", LEFT - 8.0, y + 4.0, "end", &short(tick));
        }
        let (x, y, label) = (14.0, (self.top + self.bottom) / 2.0, escape(label));
        self.add(format_args!(
            "<text class=\"name\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\" text-anchor=\"middle\">{label}</text>"
        ));
    }

    fn base(&mut self) {
        self.line("axis", (LEFT, self.bottom), (WIDTH - RIGHT, self.bottom));
    }

    fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Stroke attributes of a series.
fn stroke(index: usize) -> String {
    let (colour, dash) = (index % COLOURS, DASHES[index / COLOURS % DASHES.len()]);
    format!("stroke=\"var(--s{colour})\" stroke-dasharray=\"{dash}\"")
}

/// Position and row of each legend name.
fn legend_positions(names: &[&str]) -> Vec<(f64, f64)> {
    let (mut x, mut row) = (LEFT, 0.0);
    let mut positions = Vec::new();
    for name in names {
        let width = 18.0 + name.chars().count() as f64 * CHARACTER + 22.0;
        if x > LEFT && x + width > WIDTH - RIGHT {
            (x, row) = (LEFT, row + 1.0);
        }
        positions.push((x, row));
        x += width;
    }
    positions
}

pub fn lines(chart: &Lines) -> String {
    let names: Vec<&str> = chart.series.iter().map(|series| series.name.as_str()).collect();
    let room = if chart.marks.is_empty() { TOP } else { TOP_WITH_MARKS };
    let mut drawing = Drawing::new(&chart.title, &names, room);
    let points = || chart.series.iter().flat_map(|series| series.points.iter().copied());
    let xs = points().map(|point| point.0).chain(chart.marks.iter().map(|mark| mark.0));
    let ys = points().map(|point| point.1).chain(chart.limits.iter().map(|limit| limit.0));
    let x = match chart.log_x {
        true => Scale::logarithmic(xs, LEFT, WIDTH - RIGHT),
        false => Scale::linear(xs, false, LEFT, WIDTH - RIGHT),
    };
    let y = match chart.log_y {
        true => Scale::logarithmic(ys, drawing.bottom, drawing.top),
        false => Scale::linear(ys, true, drawing.bottom, drawing.top),
    };

    drawing.vertical_axis(&y, &chart.y);
    for tick in x.ticks() {
        let (position, bottom) = (x.position(tick), drawing.bottom);
        drawing.line("axis", (position, bottom), (position, bottom + 5.0));
        drawing.text("tick", position, bottom + 19.0, "middle", &short(tick));
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let below = drawing.bottom + 40.0;
    drawing.text("name", middle, below, "middle", &chart.x);
    drawing.base();
    for (limit, word) in &chart.limits {
        let position = y.position(*limit);
        drawing.line("limit", (LEFT, position), (WIDTH - RIGHT, position));
        drawing.text("limit-word", WIDTH - RIGHT - 4.0, position - 6.0, "end", word);
    }
    // Labels of nearby marks are stacked.
    let mut taken = [f64::MIN; 2];
    for (mark, word) in &chart.marks {
        let (position, top, bottom) = (x.position(*mark), drawing.top, drawing.bottom);
        drawing.line("mark", (position, top - 30.0), (position, bottom));
        let width = word.chars().count() as f64 * CHARACTER;
        let start = if position + width + 8.0 > WIDTH { position - width - 5.0 } else { position + 5.0 };
        let row = taken.iter().position(|end| *end < start).unwrap_or(0);
        taken[row] = start + width;
        drawing.text("mark-word", start, top - 20.0 + row as f64 * 14.0, "start", word);
    }
    for (index, series) in chart.series.iter().enumerate() {
        let path = path(&thinned(series), &x, &y, chart.steps);
        let style = stroke(index);
        drawing.add(format_args!("<path class=\"curve\" {style} d=\"{path}\"/>"));
    }
    drawing.finish()
}

/// At most [`POINTS_MAX`] finite points of a series, including both ends.
fn thinned(series: &Series) -> Vec<(f64, f64)> {
    let finite: Vec<(f64, f64)> =
        series.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let stride = finite.len().div_ceil(POINTS_MAX).max(1);
    let last = finite.len().saturating_sub(1);
    let kept = finite.iter().enumerate().filter(|(index, _)| index % stride == 0 || *index == last);
    kept.map(|(_, point)| *point).collect()
}

fn path(points: &[(f64, f64)], x: &Scale, y: &Scale, steps: bool) -> String {
    let mut path = String::new();
    for (index, (px, py)) in points.iter().enumerate() {
        let (px, py) = (x.position(*px), y.position(*py));
        let _ = match (index, steps) {
            (0, _) => write!(path, "M{px:.1} {py:.1}"),
            (_, true) => write!(path, "H{px:.1}V{py:.1}"),
            (_, false) => write!(path, "L{px:.1} {py:.1}"),
        };
    }
    path
}

pub fn bars(chart: &Bars) -> String {
    let names: Vec<&str> = chart.series.iter().map(String::as_str).collect();
    let mut drawing = Drawing::new(&chart.title, &names, TOP);
    let values = chart.groups.iter().flat_map(|(_, values)| values.iter().copied());
    let y = Scale::linear(values.chain([0.0]), true, drawing.bottom, drawing.top);
    drawing.vertical_axis(&y, &chart.y);
    let group_width = (WIDTH - RIGHT - LEFT) / chart.groups.len().max(1) as f64;
    let bar_width = (group_width * 0.7 / chart.series.len().max(1) as f64).min(72.0);
    let zero = y.position(0.0);
    for (index, (name, values)) in chart.groups.iter().enumerate() {
        let centre = LEFT + (index as f64 + 0.5) * group_width;
        let first = centre - bar_width * values.len() as f64 / 2.0;
        for (bar, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let (x, top) = (first + bar as f64 * bar_width, y.position(*value));
            let (upper, height) = (top.min(zero), (top - zero).abs());
            let (inner, colour) = ((bar_width - 3.0).max(1.0), bar % COLOURS);
            drawing.add(format_args!(
                "<rect x=\"{x:.1}\" y=\"{upper:.1}\" width=\"{inner:.1}\" height=\"{height:.1}\" rx=\"2\" \
                 fill=\"var(--s{colour})\"/>"
            ));
            let word = short(*value);
            if word.chars().count() as f64 * CHARACTER < bar_width + 8.0 {
                drawing.text("name", x + inner / 2.0, upper - 5.0, "middle", &word);
            }
        }
        let room = (group_width / CHARACTER) as usize;
        let bottom = drawing.bottom;
        drawing.text("name", centre, bottom + 19.0, "middle", &fitted(name, room));
    }
    drawing.base();
    drawing.finish()
}

/// Truncates a name to `room` characters.
fn fitted(name: &str, room: usize) -> String {
    match name.chars().count() > room {
        true => name.chars().take(room.saturating_sub(1)).chain(['\u{2026}']).collect(),
        false => name.to_owned(),
    }
}
