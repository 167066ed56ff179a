//! Draws charts as SVG with `plotters`.
//!
//! No text is inside the plot, so none can cover a line: names of lines, marks and limits are in
//! the legend. The style sheet replaces colours for dark mode.

use plotters::chart::{ChartBuilder, LabelAreaPosition};
use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::drawing::DrawingArea;
use plotters::element::{Circle, DashedPathElement, PathElement, Polygon, Rectangle, Text};
use plotters::prelude::{IntoDrawingArea, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TRANSPARENT, TextStyle};

use super::axis::{Axis, short};
use super::chart::{Bars, Lines, Series};
use super::layout::{self, Entry, FONT, GAP, LINE, SYMBOL, UNIT};
use super::markup::{escape, plain};

/// Colours of the series; later ones repeat them with another mark and dashes.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x24, 0x57, 0xc5),
    RGBColor(0xd9, 0x73, 0x0d),
    RGBColor(0x1a, 0x8f, 0x6a),
    RGBColor(0xa1, 0x3d, 0xad),
    RGBColor(0xc0, 0x36, 0x2c),
    RGBColor(0x5c, 0x66, 0x70),
];
/// Length of dashes and of gaps, by round of colours after the first.
const DASHES: [(i32, i32); 3] = [(12 * UNIT, 5 * UNIT), (4 * UNIT, 4 * UNIT), (20 * UNIT, 3 * UNIT)];
/// Colours of marks and limits.
const SIGNS: [RGBColor; 4] = [COLOURS[4], COLOURS[2], COLOURS[3], COLOURS[5]];
const INK: RGBColor = RGBColor(0x1b, 0x1f, 0x24);
const GRID: RGBColor = RGBColor(0xe9, 0xec, 0xf0);

/// Points drawn per series; more are indistinguishable and bloat the file.
const POINTS_MAX: usize = 800;
/// The most points of a series that all have marks.
const MARKED_MAX: usize = 16;
/// Marks of a longer series that needs them.
const SPARSE: usize = 8;

/// Length of a tick at the plot. A label has twice this distance.
const TICK: i32 = 4 * UNIT;
const RADIUS: i32 = 4 * UNIT;
const THIN: u32 = UNIT as u32;
const THICK: u32 = 2 * UNIT as u32;

/// The width of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 860 pixels.
    Broad,
    /// 330 pixels, of a phone.
    Slim,
}

impl Width {
    fn units(self) -> i32 {
        UNIT * if self == Width::Broad { 860 } else { 330 }
    }

    /// Height of the plot.
    fn plot(self) -> i32 {
        UNIT * if self == Width::Broad { 260 } else { 200 }
    }
}

/// A drawing without its outer element.
pub struct Drawing {
    width: i32,
    height: i32,
    inner: String,
}

impl Drawing {
    /// As an element of a page.
    pub fn inline(&self, title: &str) -> String {
        let Drawing { width, height, inner } = self;
        let title = escape(title);
        format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\n{inner}</svg>\n")
    }

    /// As a file with a style sheet.
    pub fn alone(&self, title: &str, style: &str) -> String {
        let Drawing { width, height, inner } = self;
        let (wide, high) = (width / UNIT, height / UNIT);
        let title = escape(title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\" aria-label=\"{title}\" style=\"background: var(--paper)\">\n<style>\n{style}</style>\n{inner}</svg>\n"
        )
    }
}

type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Drawing into a string succeeds.
const INTO_STRING: &str = "a string takes any drawing";

/// Has `draw` draw, and takes the drawing library's outer element off.
fn drawn(width: i32, height: i32, draw: impl FnOnce(&Root<'_>)) -> Drawing {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (width as u32, height as u32)).into_drawing_area();
        draw(&root);
        root.present().expect(INTO_STRING);
    }
    let (_, inner) = text.split_once(">\n").expect("an outer element");
    let inner = inner.trim_end().strip_suffix("</svg>").expect("an outer element");
    Drawing { width, height, inner: inner.to_owned() }
}

fn text_style(horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    font().pos(Pos::new(horizontal, vertical))
}

fn font() -> TextStyle<'static> {
    // The backend divides the size by this number.
    TextStyle::from(("sans-serif", f64::from(FONT) * 1.24).into_font()).color(&INK)
}

fn write(root: &Root<'_>, lines: &[String], x: i32, y: i32, horizontal: HPos) {
    for (line, y) in lines.iter().zip((y..).step_by(LINE as usize)) {
        let style = text_style(horizontal, VPos::Top);
        root.draw(&Text::new(line.clone(), (x, y), style)).expect(INTO_STRING);
    }
}

/// The sign of a legend's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    /// A line of this series, and whether it has marks.
    Line(usize, bool),
    /// A paper's points in the colour of this series.
    Paper(usize),
    /// A bar of this series.
    Bar(usize),
    Mark(RGBColor),
    Limit(RGBColor),
    /// A marked point of this series.
    Point(usize),
}

impl Symbol {
    /// Draws the sign left of a name whose line begins at `(x, y)`.
    fn draw(self, root: &Root<'_>, x: i32, y: i32) {
        let middle = (x + SYMBOL / 2 - GAP / 4, y + FONT / 2);
        let reach = SYMBOL / 2 - GAP / 4;
        let line = |from: (i32, i32), to: (i32, i32), colour: RGBColor, width: u32| {
            root.draw(&PathElement::new(vec![from, to], colour.stroke_width(width))).expect(INTO_STRING);
        };
        let across = |colour, width| line((x, middle.1), (x + 2 * reach, middle.1), colour, width);
        match self {
            Symbol::Line(series, is_marked) => {
                path(root, vec![(x, middle.1), (x + 2 * reach, middle.1)], series);
                if is_marked {
                    mark(series, middle, &mut |polygon| root.draw(&polygon).expect(INTO_STRING));
                }
            }
            Symbol::Paper(series) => {
                root.draw(&Circle::new(middle, RADIUS, hollow(series))).expect(INTO_STRING);
            }
            Symbol::Bar(series) => {
                let corners = [(x, y), (x + FONT, y + FONT)];
                root.draw(&Rectangle::new(corners, colour(series).filled())).expect(INTO_STRING);
            }
            Symbol::Mark(colour) => line((middle.0, y), (middle.0, y + FONT), colour, THIN),
            Symbol::Limit(colour) => across(colour, THIN),
            Symbol::Point(series) => draw_point(root, middle, series),
        }
    }
}

fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// Draws the line of a series.
fn path(root: &Root<'_>, points: Vec<(i32, i32)>, series: usize) {
    let style = colour(series).stroke_width(THICK);
    match (series / COLOURS.len()).checked_sub(1) {
        None => root.draw(&PathElement::new(points, style)).expect(INTO_STRING),
        Some(round) => {
            let (dash, gap) = DASHES[round % DASHES.len()];
            root.draw(&DashedPathElement::new(points, dash, gap, style)).expect(INTO_STRING);
        }
    }
}

fn hollow(series: usize) -> ShapeStyle {
    colour(series).stroke_width(THICK)
}

/// The filled mark of a series; each round of colours has another form.
fn mark(series: usize, (x, y): (i32, i32), draw: &mut dyn FnMut(Polygon<(i32, i32)>)) {
    let corners = [16, 3, 4, 5][series / COLOURS.len() % 4];
    let corner = |number: i32| {
        let angle = std::f64::consts::TAU * f64::from(number) / f64::from(corners);
        let reach = f64::from(RADIUS);
        (x + (reach * angle.sin()).round() as i32, y - (reach * angle.cos()).round() as i32)
    };
    draw(Polygon::new((0..corners).map(corner).collect::<Vec<_>>(), colour(series).filled()));
}

/// Draws a diamond in the colour of a series, larger than its marks.
fn draw_point(root: &Root<'_>, (x, y): (i32, i32), series: usize) {
    let reach = RADIUS + 2 * UNIT;
    let corners = vec![(x, y - reach), (x + reach, y), (x, y + reach), (x - reach, y)];
    root.draw(&Polygon::new(corners, colour(series).filled())).expect(INTO_STRING);
}

/// The number of a series' colour: a paper's points have that of our series of the same name.
fn number_of(chart: &Lines, at: usize) -> usize {
    let series = &chart.series[at];
    let before = chart.series[..at].iter().filter(|series| !series.is_paper).count();
    if series.is_paper { named(chart, &series.name).unwrap_or(before) } else { before }
}

/// The number of our series of this name.
fn named(chart: &Lines, name: &str) -> Option<usize> {
    chart.series.iter().filter(|series| !series.is_paper).position(|series| series.name == name)
}

/// The signs, each with its colour, by label.
fn signs(chart: &Lines) -> Vec<(String, RGBColor)> {
    let marks = chart.marks.iter().map(|(_, word)| word);
    let limits = chart.limits.iter().map(|(_, word)| word);
    let mut signs: Vec<(String, RGBColor)> = Vec::new();
    for word in marks.chain(limits) {
        if !signs.iter().any(|(known, _)| known == word) {
            signs.push((word.clone(), SIGNS[signs.len() % SIGNS.len()]));
        }
    }
    signs
}

/// Names and symbols of the legend. A chart of one line needs none, because the title names it.
fn legend_of(chart: &Lines, signs: &[(String, RGBColor)]) -> Vec<(String, Symbol)> {
    let mut entries: Vec<(String, Symbol)> = Vec::new();
    for (at, series) in chart.series.iter().enumerate() {
        let number = number_of(chart, at);
        entries.push(match series.is_paper {
            true => (format!("{}, paper", series.name), Symbol::Paper(number)),
            false => {
                let is_marked = stride(series.points.len(), number, chart.steps).is_some();
                (series.name.clone(), Symbol::Line(number, is_marked))
            }
        });
    }
    for (word, colour) in signs {
        let symbol = match word {
            word if chart.marks.iter().any(|(_, mark)| mark == word) => Symbol::Mark(*colour),
            _ => Symbol::Limit(*colour),
        };
        entries.push((word.clone(), symbol));
    }
    for point in &chart.points {
        if !entries.iter().any(|(known, _)| *known == point.word) {
            entries.push((point.word.clone(), Symbol::Point(named(chart, &point.series).unwrap_or(0))));
        }
    }
    if entries.len() < 2 { Vec::new() } else { entries }
}

fn draw_legend(root: &Root<'_>, entries: &[Entry], symbols: &[Symbol]) {
    for (Entry { x, y, lines }, symbol) in entries.iter().zip(symbols) {
        // Room for marks above the letters.
        let y = y + GAP / 4;
        symbol.draw(root, x + UNIT, y);
        write(root, lines, x + SYMBOL, y, HPos::Left);
    }
}

/// The texts around a plot.
struct Names {
    legend: Vec<Entry>,
    symbols: Vec<Symbol>,
    y: Vec<String>,
    second: Vec<String>,
    x: Vec<String>,
    /// Bottom of the legend.
    legend_end: i32,
    /// Top of the plot.
    heading_end: i32,
}

impl Names {
    fn of(chart: &Lines, signs: &[(String, RGBColor)], wide: i32) -> Names {
        let (names, symbols): (Vec<String>, Vec<Symbol>) =
            legend_of(chart, signs).into_iter().map(|(name, symbol)| (plain(&name), symbol)).unzip();
        let (legend, legend_height) = layout::legend(&names, wide);
        let name = |text: &str| layout::wrapped(&plain(text), wide);
        let (y, x) = (name(&chart.y), name(&chart.x));
        let second = chart.second_x.as_ref().map_or(Vec::new(), |second| name(&second.name));
        let legend_end = legend_height + GAP;
        let heading_end = legend_end + rows(&y) + rows(&second);
        Names { legend, symbols, y, second, x, legend_end, heading_end }
    }

    fn draw(&self, root: &Root<'_>, wide: i32, plot_end: i32) {
        draw_legend(root, &self.legend, &self.symbols);
        write(root, &self.y, 0, self.legend_end, HPos::Left);
        write(root, &self.second, wide, self.legend_end + rows(&self.y), HPos::Right);
        write(root, &self.x, wide / 2, plot_end, HPos::Center);
    }
}

fn rows(lines: &[String]) -> i32 {
    LINE * lines.len() as i32
}

fn second_label(chart: &Lines, value: f64) -> String {
    chart.second_x.as_ref().map_or(String::new(), |axis| plain(&(axis.label)(value * axis.factor)))
}

/// The axes, and the room left and right of the plot for their labels.
fn axes(chart: &Lines, wide: i32) -> (Axis, Axis, [i32; 2]) {
    let points = || chart.series.iter().flat_map(|series| series.points.iter().copied());
    let marked = || chart.points.iter().map(|point| point.at);
    let limits = chart.limits.iter().map(|limit| limit.0);
    let y = Axis::from_zero(points().chain(marked()).map(|point| point.1).chain(limits));
    let left = y.ticks().iter().map(|tick| layout::width(&short(*tick))).max().unwrap_or(0) + 3 * TICK;
    // Half of the last label may be right of the plot.
    let right = layout::width("100.5 MiB") / 2;
    let second = |value: f64| second_label(chart, value);
    let labels: [&dyn Fn(f64) -> String; 2] = [&short, &second];
    let labels = if chart.second_x.is_some() { &labels[..] } else { &labels[..1] };
    let xs = points().chain(marked()).map(|point| point.0).chain(chart.marks.iter().map(|mark| mark.0));
    let x = Axis::over(chart.scale.clone(), xs, wide - left - right, labels);
    (x, y, [left, right])
}

pub fn lines(chart: &Lines, width: Width) -> Drawing {
    let wide = width.units();
    let signs = signs(chart);
    let names = Names::of(chart, &signs, wide);
    let (x, y, [left, right]) = axes(chart, wide);
    let tick_row = LINE + 2 * TICK;
    let top = if chart.second_x.is_some() { tick_row } else { FONT / 2 };
    let plot_end = names.heading_end + top + width.plot() + tick_row;
    drawn(wide, plot_end + rows(&names.x) + GAP, |root| {
        names.draw(root, wide, plot_end);
        let (_, below) = root.split_vertically(names.heading_end);
        let (area, _) = below.split_vertically(plot_end - names.heading_end);
        let has_second = chart.second_x.is_some();
        let mut plot = ChartBuilder::on(&area)
            .y_label_area_size(left)
            .x_label_area_size(tick_row)
            .margin_top(if has_second { 0 } else { top })
            .top_x_label_area_size(if has_second { top } else { 0 })
            .margin_right(right)
            .build_cartesian_2d(x.clone(), y.clone())
            .expect(INTO_STRING)
            .set_secondary_coord(x.clone(), y.clone());
        plot.configure_mesh()
            .bold_line_style(GRID.stroke_width(THIN))
            .light_line_style(TRANSPARENT)
            .axis_style(colour(5).stroke_width(THIN))
            .label_style(font())
            .set_tick_mark_size(LabelAreaPosition::Bottom, TICK)
            .set_tick_mark_size(LabelAreaPosition::Left, TICK)
            .x_label_formatter(&|value| short(*value))
            .y_label_formatter(&|value| short(*value))
            .draw()
            .expect(INTO_STRING);
        if has_second {
            plot.configure_secondary_axes()
                .axis_style(colour(5).stroke_width(THIN))
                .label_style(font())
                .set_tick_mark_size(LabelAreaPosition::Top, TICK)
                .x_label_formatter(&|value| second_label(chart, *value))
                .draw()
                .expect(INTO_STRING);
        }
        let at = |x: f64, y: f64| plot.backend_coord(&(x, y));
        draw_signs(root, chart, &signs, &at);
        for (index, series) in chart.series.iter().enumerate() {
            let points: Vec<(i32, i32)> = thinned(series, &x).into_iter().map(|(x, y)| at(x, y)).collect();
            draw_series(root, &points, series, number_of(chart, index), chart.steps);
        }
        for point in &chart.points {
            draw_point(root, at(point.at.0, point.at.1), named(chart, &point.series).unwrap_or(0));
        }
    })
}

fn colour_of(signs: &[(String, RGBColor)], word: &str) -> RGBColor {
    signs.iter().find(|(known, _)| known == word).expect("every word has a sign").1
}

fn draw_signs(
    root: &Root<'_>,
    chart: &Lines,
    signs: &[(String, RGBColor)],
    at: &dyn Fn(f64, f64) -> (i32, i32),
) {
    // Positions are cut at the ends of the axes.
    let (low, high) = (f64::MIN, f64::MAX);
    let marks = chart.marks.iter().map(|(x, word)| ((*x, low), (*x, high), word));
    let limits = chart.limits.iter().map(|(y, word)| ((low, *y), (high, *y), word));
    for (from, to, word) in marks.chain(limits) {
        let line = vec![at(from.0, from.1), at(to.0, to.1)];
        let style = colour_of(signs, word).stroke_width(THIN);
        root.draw(&PathElement::new(line, style)).expect(INTO_STRING);
    }
}

/// Draws the points of a series: hollow marks for a paper, else a line with filled marks.
fn draw_series(root: &Root<'_>, points: &[(i32, i32)], series: &Series, number: usize, steps: bool) {
    if series.is_paper {
        for point in points {
            root.draw(&Circle::new(*point, RADIUS + UNIT, hollow(number))).expect(INTO_STRING);
        }
        return;
    }
    let mut line = Vec::with_capacity(2 * points.len());
    for &(x, y) in points {
        match line.last() {
            Some(&(_, before)) if steps => line.extend([(x, before), (x, y)]),
            _ => line.push((x, y)),
        }
    }
    path(root, line, number);
    for &point in stride(points.len(), number, steps).iter().flat_map(|&stride| points.iter().step_by(stride))
    {
        mark(number, point, &mut |polygon| root.draw(&polygon).expect(INTO_STRING));
    }
}

/// The distance, in points, of the marks of a line.
///
/// Short lines have one at each point. Long ones have few, and only where a colour repeats.
fn stride(points: usize, number: usize, steps: bool) -> Option<usize> {
    match points <= MARKED_MAX && !steps {
        true => Some(1),
        false => (number >= COLOURS.len()).then(|| points.div_ceil(SPARSE).max(1)),
    }
}

/// At most [`POINTS_MAX`] points of a series that the axis has, including both ends.
fn thinned(series: &Series, x_axis: &Axis) -> Vec<(f64, f64)> {
    let points = series.points.iter().copied();
    let shown: Vec<(f64, f64)> = points.filter(|(x, y)| x_axis.has(*x) && y.is_finite()).collect();
    let stride = shown.len().div_ceil(POINTS_MAX).max(1);
    let last = shown.len().saturating_sub(1);
    let kept = shown.iter().enumerate().filter(|(index, _)| index % stride == 0 || *index == last);
    kept.map(|(_, point)| *point).collect()
}

pub fn bars(chart: &Bars, width: Width) -> Drawing {
    let wide = width.units();
    let names: Vec<String> = if chart.series.len() > 1 {
        chart.series.iter().map(|name| plain(name)).collect()
    } else {
        Vec::new()
    };
    let (entries, legend_height) = layout::legend(&names, wide);
    let legend_height = legend_height + GAP;
    let symbols: Vec<Symbol> = (0..names.len()).map(Symbol::Bar).collect();
    let unit = layout::wrapped(&plain(&chart.y), wide);
    let values = || chart.groups.iter().flat_map(|(_, values)| values.iter().copied());
    let axis = Axis::from_zero(values());
    let room = values().map(|value| layout::width(&short(value))).max().unwrap_or(0) + GAP;
    let groups: Vec<(Vec<String>, &[f64])> = chart
        .groups
        .iter()
        .map(|(name, values)| (layout::wrapped(&plain(name), wide), values.as_slice()))
        .collect();
    let heading = legend_height + rows(&unit);
    let of_group = |(name, values): &(Vec<String>, &[f64])| rows(name) + LINE * values.len() as i32 + GAP;
    let height = heading + groups.iter().map(of_group).sum::<i32>();
    drawn(wide, height.max(LINE), |root| {
        draw_legend(root, &entries, &symbols);
        write(root, &unit, 0, legend_height, HPos::Left);
        let mut y = heading;
        for (name, values) in groups {
            write(root, &name, 0, y, HPos::Left);
            y += rows(&name);
            for (series, value) in values.iter().enumerate() {
                if value.is_finite() {
                    let ends = [0.0, *value].map(|value| axis.map(&value, (0, wide - room)));
                    let (left, right) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
                    let corners = [(left, y), (right, y + FONT)];
                    root.draw(&Rectangle::new(corners, colour(series).filled())).expect(INTO_STRING);
                    write(root, &[short(*value)], right + GAP / 2, y, HPos::Left);
                }
                y += LINE;
            }
            y += GAP;
        }
    })
}
