//! Drawn charts: positions of values, marks, and texts that do not meet.

use roxmltree::{Document, Node};

use super::*;
use crate::units::show_size;

const WIDTHS: [Width; 2] = [Width::Broad, Width::Slim];

/// The drawing as a file.
fn svg(drawing: &Drawing) -> String {
    drawing.alone("title", "")
}

fn number(node: Node<'_, '_>, attribute: &str) -> f64 {
    let text = node.attribute(attribute).unwrap_or_else(|| panic!("{attribute} of {node:?}"));
    text.parse().unwrap_or_else(|_| panic!("{attribute}={text}"))
}

fn all<'a>(document: &'a Document<'a>, tag: &str) -> Vec<Node<'a, 'a>> {
    document.descendants().filter(|node| node.has_tag_name(tag)).collect()
}

/// Text and box (left, top, right, bottom) of a text element.
fn text_box(node: Node<'_, '_>) -> (String, [f64; 4]) {
    let text = node.text().expect("a text").trim().to_owned();
    let size = number(node, "font-size");
    let (x, y, width) = (number(node, "x"), number(node, "y"), text.chars().count() as f64 * 0.6 * size);
    let left = match node.attribute("text-anchor") {
        Some("start") => x,
        Some("middle") => x - width / 2.0,
        Some("end") => x - width,
        other => panic!("anchor {other:?}"),
    };
    let top = match node.attribute("dy") {
        Some("0.76em") => y,
        Some("0.5ex") => y - size / 2.0,
        Some("-0.5ex") => y - size,
        other => panic!("dy {other:?}"),
    };
    assert!(node.attribute("transform").is_none(), "{text} is turned");
    (text, [left, top, left + width, top + size])
}

/// Asserts that no two texts meet and that all are inside the drawing; returns their number.
fn assert_texts_apart(drawing: &Drawing, what: &str) -> usize {
    let text = svg(drawing);
    let document = Document::parse(&text).expect("well-formed");
    let [_, _, width, height] = view_box(&document);
    let boxes: Vec<_> = all(&document, "text").into_iter().map(text_box).collect();
    for (at, (text, one)) in boxes.iter().enumerate() {
        let is_inside = one[0] >= 0.0 && one[1] >= 0.0 && one[2] <= width && one[3] <= height;
        assert!(is_inside, "{what}: {text:?} at {one:?} leaves {width} by {height}");
        for (other, two) in &boxes[at + 1..] {
            let apart = one[2] <= two[0] || two[2] <= one[0] || one[3] <= two[1] || two[3] <= one[1];
            assert!(apart, "{what}: {text:?} at {one:?} and {other:?} at {two:?}");
        }
    }
    let circles =
        all(&document, "circle").into_iter().map(|circle| (number(circle, "cx"), number(circle, "cy")));
    let marks =
        document.descendants().filter_map(|node| node.attribute("fill")).filter(|fill| *fill != "none");
    let colours: std::collections::BTreeSet<&str> = marks.collect();
    let polygons = colours.into_iter().flat_map(|colour| filled(&document, colour));
    for (x, y) in circles.chain(polygons) {
        let radius = 4.0 * f64::from(layout::UNIT);
        for (text, [left, top, right, bottom]) in &boxes {
            let apart =
                x + radius <= *left || *right <= x - radius || y + radius <= *top || *bottom <= y - radius;
            assert!(apart, "{what}: a mark at {x}, {y} covers {text:?}");
        }
    }
    boxes.len()
}

fn view_box(document: &Document<'_>) -> [f64; 4] {
    let numbers = document.root_element().attribute("viewBox").expect("a view box").split(' ');
    let numbers: Vec<f64> = numbers.map(|number| number.parse().expect("a number")).collect();
    numbers.try_into().expect("four numbers")
}

fn texts(document: &Document<'_>) -> String {
    let texts: Vec<&str> =
        all(document, "text").iter().filter_map(|node| node.text()).map(str::trim).collect();
    texts.join(" | ")
}

/// Text of a tick below the plot, by its middle.
fn tick(document: &Document<'_>, label: &str) -> f64 {
    let is_it = |node: &Node<'_, '_>| {
        node.text().is_some_and(|text| text.trim() == label)
            && node.attribute("text-anchor") == Some("middle")
    };
    let node = all(document, "text")
        .into_iter()
        .find(is_it)
        .unwrap_or_else(|| panic!("no tick {label}: {}", texts(document)));
    number(node, "x")
}

/// The middles of the filled marks of a colour.
fn filled(document: &Document<'_>, colour: &str) -> Vec<(f64, f64)> {
    let mut middles: Vec<(f64, f64)> = Vec::new();
    for polygon in all(document, "polygon") {
        if polygon.attribute("fill") != Some(colour) {
            continue;
        }
        let points = polygon.attribute("points").expect("points").split_whitespace();
        let points: Vec<(f64, f64)> = points
            .map(|pair| pair.split_once(',').expect("a pair"))
            .map(|(x, y)| (x.parse().expect("x"), y.parse().expect("y")))
            .collect();
        let middle = |of: fn(&(f64, f64)) -> f64| {
            let (low, high) = points
                .iter()
                .map(of)
                .fold((f64::MAX, f64::MIN), |(low, high), at| (low.min(at), high.max(at)));
            (low + high) / 2.0
        };
        middles.push((middle(|point| point.0), middle(|point| point.1)));
    }
    middles
}

/// Two sweeps over the migration probability, with a paper's points.
fn sweep() -> Lines {
    let values = vec![0.0, 0.01, 0.1, 1.0];
    let points = |rates: [f64; 4]| values.iter().copied().zip(rates).collect();
    Lines { scale: Scale::Symmetric(values.clone()), ..Lines::new("Lazy migration", "D", "of eager") }
        .line("RO 1", points([0.8, 1.6, 1.2, 1.0]))
        .line("BA 1", points([0.7, 1.3, 1.1, 1.0]))
        .paper("BA 1", vec![(0.01, 1.22), (1.0, 1.0)])
}

#[test]
fn values_are_at_their_positions_on_a_symmetric_axis() {
    for width in WIDTHS {
        let text = svg(&svg::lines(&sweep(), width));
        let document = Document::parse(&text).expect("well-formed");
        let ticks = ["0", "0.01", "0.1", "1"].map(|label| tick(&document, label));
        let length = ticks[3] - ticks[0];
        for (tick, value) in ticks.iter().zip([0.0f64, 1.0, 10.0, 100.0]) {
            let share = value.asinh() / 100f64.asinh();
            assert!(
                (tick - ticks[0] - share * length).abs() <= 2.0,
                "{width:?}: {value} at {tick}, {ticks:?}"
            );
        }
        // The first filled mark of a colour is that of the legend.
        let marks = &filled(&document, "#2457C5")[1..];
        assert_eq!(marks.len(), 4, "{width:?}");
        for (mark, tick) in marks.iter().zip(ticks) {
            assert!((mark.0 - tick).abs() <= 2.0, "{width:?}: {mark:?} is not over {tick}");
        }
        // 0.8 is lowest; 1.6 is twice as high above zero, which is at the plot's base.
        let base = all(&document, "text")
            .into_iter()
            .filter(|node| node.attribute("text-anchor") == Some("end"))
            .find(|node| node.text().is_some_and(|text| text.trim() == "0"))
            .map(|node| number(node, "y"))
            .expect("a zero");
        let heights: Vec<f64> = marks.iter().map(|mark| base - mark.1).collect();
        assert!((heights[1] - 2.0 * heights[0]).abs() <= 6.0, "{width:?}: {heights:?}");
    }
}

#[test]
fn a_papers_points_are_hollow_marks_in_the_colour_of_our_line() {
    for width in WIDTHS {
        let text = svg(&svg::lines(&sweep(), width));
        let document = Document::parse(&text).expect("well-formed");
        let circles = all(&document, "circle");
        // One is in the legend.
        assert_eq!(circles.len(), 3, "{width:?}");
        for circle in &circles {
            assert_eq!(circle.attribute("fill"), Some("none"));
            assert_eq!(circle.attribute("stroke"), Some("#D9730D"), "of the second line");
        }
        let at: Vec<f64> = circles[1..].iter().map(|circle| number(*circle, "cx")).collect();
        for (x, label) in at.iter().zip(["0.01", "1"]) {
            assert!((x - tick(&document, label)).abs() <= 2.0, "{width:?}: {label} at {x}");
        }
        assert!(text.contains("BA 1, paper"));
        // The line ends in a filled mark where the paper's last point is.
        let ours = filled(&document, "#D9730D");
        let paper = (number(circles[2], "cx"), number(circles[2], "cy"));
        let last = ours.last().expect("marks");
        assert!((last.0 - paper.0).abs() <= 2.0 && (last.1 - paper.1).abs() <= 2.0, "{last:?}, {paper:?}");
    }
}

/// A miss-ratio curve with a byte axis and a knee.
fn curve() -> Lines {
    let label: fn(f64) -> String = |bytes| show_size(bytes as u64);
    let second = SecondAxis { name: "cache size".to_owned(), factor: 4096.0, label };
    let lines = Lines::new("Miss ratio", "cache size, blocks", "miss ratio");
    let points = (0..200).map(|at| (1.05f64.powi(at) * 16.0, 1.0 / (1.0 + f64::from(at) / 9.0)));
    Lines { scale: Scale::Logarithmic, second_x: Some(second), ..lines }
        .line("sieve", points.collect())
        .line("lru", vec![(16.0, 0.9), (90_000.0, 0.2)])
        .point("lru", (10_000.0, 0.4), "knee")
}

#[test]
fn a_second_axis_names_the_same_positions_in_bytes() {
    for width in WIDTHS {
        let text = svg(&svg::lines(&curve(), width));
        let document = Document::parse(&text).expect("well-formed");
        let (blocks, bytes) = (tick(&document, "10k"), tick(&document, &show_size(4096 * 10_000)));
        assert!((blocks - bytes).abs() <= 2.0, "{width:?}: {blocks} and {bytes}");
        // Two are in the legend: of the line, and of the point, which is drawn last.
        let marks = filled(&document, "#D9730D");
        assert_eq!(marks.len(), 5, "{width:?}");
        assert!((marks[4].0 - blocks).abs() <= 2.0, "{width:?}: {marks:?}");
    }
}

#[test]
fn no_two_texts_of_a_chart_meet() {
    let names =
        ["obp-lifetime+heuristicdb-eager", "lru", "w-tinylfu", "a name with blanks that is quite long"];
    let many = (0..24).fold(Lines::new("t", "seconds", "operations/s"), |lines, at| {
        let name = format!("{} {at}", names[at % names.len()]);
        lines.line(name, (0..50).map(|x| (f64::from(x), f64::from(x) * 1e5)).collect())
    });
    let crowded = (0..9).fold(Lines::cdf("t", "microseconds"), |lines, at| {
        let at = f64::from(at);
        lines
            .mark(10.0 + at / 10.0, "killed")
            .mark(10.05 + at / 10.0, "recovered")
            .limit(at, format!("limit {at}"))
    });
    let crowded = crowded.shares("read", &[(0.9, 0.0), (1e6, 1.0)]);
    let close = Lines::new("t", "x", "y").line("a", vec![(1_000_000.0, 1.0), (1_000_003.0, 1e-7)]);
    let negative = Lines::new("t", "x", "y").line("a", vec![(-1.5, -1e6), (1e9, 3e-4)]);
    let charts = [many, crowded, sweep(), curve(), close, negative, Lines::new("none", "x", "y")];
    for (at, chart) in charts.iter().enumerate() {
        for width in WIDTHS {
            let texts = assert_texts_apart(&svg::lines(chart, width), &format!("chart {at}, {width:?}"));
            assert!(texts > 3, "chart {at} has ticks and names");
        }
    }
    let bars = names.iter().fold(Bars::new("t", "reads/s", &["uniform", "zipfian 0.99"]), |bars, name| {
        bars.group(*name, vec![1_310_000.0, 0.001]).group(name.to_uppercase(), vec![-3.0, f64::NAN])
    });
    for width in WIDTHS {
        assert!(assert_texts_apart(&svg::bars(&bars, width), "bars") > 16);
    }
}

#[test]
fn bars_are_as_long_as_their_values() {
    let bars = Bars::new("t", "reads/s", &["reads"]).group("a", vec![100.0]).group("b", vec![25.0]);
    for width in WIDTHS {
        let text = svg(&svg::bars(&bars, width));
        let document = Document::parse(&text).expect("well-formed");
        let lengths: Vec<f64> = all(&document, "rect").into_iter().map(|bar| number(bar, "width")).collect();
        assert!(lengths.len() == 2 && (lengths[0] - 4.0 * lengths[1]).abs() <= 4.0, "{lengths:?}");
    }
}

#[test]
fn long_series_are_thinned_but_keep_their_ends() {
    let long = Lines::new("t", "x", "y").line("a", (0..100_000).map(|i| (f64::from(i), 1.0)).collect());
    let text = svg(&svg::lines(&long, Width::Broad));
    assert!(text.len() < 30_000, "{}", text.len());
    let document = Document::parse(&text).expect("well-formed");
    let line = |node: &Node<'_, '_>| node.attribute("stroke") == Some("#2457C5");
    let points = all(&document, "polyline").into_iter().find(line).and_then(|node| node.attribute("points"));
    let first = |pair: &str| pair.split_once(',').expect("a pair").0.parse::<f64>().expect("a number");
    let points = points.expect("a line");
    let (begin, end) = (points.split_whitespace().next(), points.split_whitespace().last());
    assert_eq!(first(begin.expect("points")), tick(&document, "0"));
    // The axis ends with the data, one short of this tick's neighbour.
    assert!(first(end.expect("points")) > tick(&document, "80k"));
}

#[test]
fn a_distribution_ends_before_its_longest_waits() {
    let curve: Vec<(f64, f64)> = (1..=10_000).map(|i| (f64::from(i), f64::from(i) / 1e4)).collect();
    let lines = Lines::cdf("t", "microseconds").shares("read", &curve).shares("none", &[]);
    assert_eq!(lines.series[0].points.last(), Some(&(9990.0, 99.9)));
    assert_eq!(lines.series[0].points.len(), 9990);
    assert!(lines.series[1].points.is_empty());
}

#[test]
fn every_colour_has_another_in_dark_mode() {
    let marked = (0..7).fold(curve().mark(20.0, "killed").limit(0.5, "budget"), |lines, at| {
        lines.line(format!("{at}"), vec![(20.0, 0.1), (30.0, 0.2)]).paper(format!("{at}"), vec![(25.0, 0.3)])
    });
    let text =
        svg(&svg::lines(&marked, Width::Broad)) + &svg(&svg::bars(&Bars::new("t", "y", &["a"]), WIDTHS[0]));
    let dark = STYLE.split_once("prefers-color-scheme: dark").expect("a dark theme").1;
    let dark = dark.split("\n}").next().expect("an end");
    let mut seen = 0;
    for attribute in ["fill", "stroke"] {
        for piece in text.split(&format!(" {attribute}=\"#")).skip(1) {
            let colour = piece.split('"').next().expect("a colour");
            assert!(
                dark.contains(&format!("svg [{attribute}=\"#{colour}\"] {{ {attribute}: var(--")),
                "{colour}"
            );
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
    for variable in ["--s0:", "--s5:", "--ink:", "--grid:"] {
        assert!(dark.contains(variable), "{variable}");
    }
}

/// A page of 375 pixels has 16 at each side, and a figure a border and 9.6 pixels inside.
const PHONE: f64 = 375.0 - 2.0 * (16.0 + 1.0 + 9.6);

#[test]
fn a_report_fits_a_phone() {
    let mut report = Report::new("t", "");
    let mut table = Table::new("", &["a", "b"]);
    table.row(["x".repeat(99), "1".to_owned()]);
    report.lines(&sweep()).bars(&Bars::new("t", "y", &["a"]).group("g", vec![1.0])).table(&table);
    let page = report.render();
    assert!(page.contains("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"));
    let document =
        Document::parse(page.strip_prefix("<!DOCTYPE html>").expect("a page")).expect("well-formed");
    let drawings = all(&document, "svg");
    assert_eq!(drawings.len(), 4, "a broad and a slim one of each");
    for drawing in &drawings {
        assert!(drawing.attribute("width").is_none(), "the style sheet says 100 %");
        let is_slim = drawing.parent().and_then(|parent| parent.attribute("class")) == Some("slim");
        let width = drawing.attribute("viewBox").and_then(|view| view.split(' ').nth(2)).expect("a width");
        let scale = PHONE / width.parse::<f64>().expect("a number");
        for text in drawing.descendants().filter(|node| node.has_tag_name("text") && is_slim) {
            let pixels = number(text, "font-size") * scale;
            assert!((11.0..14.0).contains(&pixels), "letters of {pixels} pixels");
        }
    }
    for table in all(&document, "table") {
        assert_eq!(table.parent().and_then(|parent| parent.attribute("class")), Some("wide"));
    }
    let rule = |selector: &str| {
        let rest = STYLE.split_once(selector).unwrap_or_else(|| panic!("no {selector}")).1;
        rest.split('}').next().expect("a rule")
    };
    assert!(rule("\nsvg {").contains("width: 100%") && rule("\nsvg {").contains("height: auto"));
    assert!(rule("\n.wide {").contains("overflow-x: auto"));
    assert!(rule("\nbody {").contains("overflow-wrap: anywhere"));
    let phone = STYLE.split_once("@media (max-width: 44rem) {").expect("rules for phones").1;
    let phone = phone.split("\n}").next().expect("an end");
    assert!(phone.contains(".broad { display: none; }") && phone.contains(".slim { display: block; }"));
    assert!(phone.contains("figure { padding: .6rem; }") && !phone.contains("width: 44rem"));
}

#[test]
fn a_figure_is_a_file_of_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("S3.svg");
    write_figure(&sweep(), &path).expect("it can be written");
    let text = fs::read_to_string(&path).expect("it is there");
    let document = Document::parse(&text).expect("well-formed");
    let root = document.root_element();
    assert_eq!(root.tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
    let [_, _, width, height] = view_box(&document);
    let unit = f64::from(layout::UNIT);
    assert_eq!(
        (number(root, "width"), number(root, "height")),
        ((width / unit).floor(), (height / unit).floor())
    );
    assert!(root.first_element_child().is_some_and(|node| node.has_tag_name("style")));
    // A viewer without the style sheet has the colours of light mode.
    assert!(document.descendants().any(|node| node.attribute("stroke") == Some("#2457C5")));
}

#[test]
fn lines_of_one_colour_differ_by_their_dashes() {
    let line = |at: u32| (0..=20).map(|x| (f64::from(x), f64::from(at + x))).collect();
    let chart = |lines: u32| {
        let all =
            (0..lines).fold(Lines::new("t", "x", "y"), |chart, at| chart.line(format!("l{at}"), line(at)));
        svg(&svg::lines(&all, Width::Broad)).matches("stroke=\"#2457C5\"").count()
    };
    // A line and its sign in the legend; the seventh line has the colour of the first.
    assert_eq!(chart(6), 2);
    let dashed = chart(7);
    assert!(dashed > 20, "{dashed}");
    assert!(chart(13) - dashed > dashed, "the dashes of the third round are shorter");
}
