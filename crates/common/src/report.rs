//! HTML reports: a title and sections of paragraphs, figures, tables and charts.
//!
//! The file is self-contained: inline styles and SVG, no script, font or external address. It
//! follows the reader's light or dark setting and prints well. All text is escaped here. Calls
//! append in reading order.
//!
//! | module | contents |
//! |---|---|
//! | `chart` | data of a chart: series, bars, axes |
//! | `markup` | escaping |
//! | `axis` | ticks and positions of values |
//! | `layout` | widths and lines of texts |
//! | `svg` | drawing |
//! | `style.css` | the style sheet |

mod axis;
pub mod chart;
mod layout;
mod markup;
mod svg;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::failure::{Failure, Outcome};
pub use chart::{Bars, Lines, Point, Scale, SecondAxis};
use markup::escape;
use svg::{Drawing, Width};

const STYLE: &str = include_str!("report/style.css");

/// A report under construction.
pub struct Report {
    title: String,
    lead: String,
    body: String,
    contents: Vec<String>,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It held.
    Good,
    /// It did not hold.
    Bad,
    /// Undecided.
    Open,
}

/// One number in large print.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The number with its unit.
    pub value: String,
    /// What the number counts.
    pub label: String,
    /// A comparison, or empty.
    pub note: String,
}

impl Figure {
    /// A figure with its label and a note.
    pub fn new(value: impl Into<String>, label: impl Into<String>, note: impl Into<String>) -> Figure {
        Figure { value: value.into(), label: label.into(), note: note.into() }
    }
}

/// A table; columns after the first are right-aligned if all cells start like numbers.
#[derive(Clone, Debug, Default)]
pub struct Table {
    caption: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    pub fn new(caption: &str, header: &[&str]) -> Table {
        Table {
            caption: caption.to_owned(),
            header: header.iter().map(|cell| (*cell).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, one cell per column.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) -> &mut Table {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.header.len(), "a row has a cell for each column of {:?}", self.caption);
        self.rows.push(cells);
        self
    }

    fn is_number(&self, column: usize) -> bool {
        let numeric = |row: &Vec<String>| {
            let first = row[column].trim_start_matches(['-', '+', '<']).chars().next();
            first.is_none_or(|c| c.is_ascii_digit() || c == '\u{2013}')
        };
        column > 0 && self.rows.iter().all(numeric)
    }
}

impl Report {
    /// An empty report; `lead` is the sentence under the title.
    pub fn new(title: &str, lead: &str) -> Report {
        Report { title: title.to_owned(), lead: lead.to_owned(), body: String::new(), contents: Vec::new() }
    }

    /// Begins a section.
    pub fn section(&mut self, heading: &str) -> &mut Report {
        self.contents.push(heading.to_owned());
        let number = self.contents.len();
        self.put(format_args!("<h2 id=\"s{number}\">{}</h2>\n", escape(heading)))
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) -> &mut Report {
        self.put(format_args!("<p>{}</p>\n", escape(text)))
    }

    /// Adds a line with the outcome of a check.
    pub fn verdict(&mut self, verdict: Verdict, text: &str) -> &mut Report {
        let (class, sign) = match verdict {
            Verdict::Good => ("good", "\u{2713}"),
            Verdict::Bad => ("bad", "\u{2717}"),
            Verdict::Open => ("open", "?"),
        };
        let sign = format!("<span class=\"sign\" aria-hidden=\"true\">{sign}</span>");
        self.put(format_args!("<p class=\"verdict {class}\">{sign}<span>{}</span></p>\n", escape(text)))
    }

    /// Adds a row of large figures.
    pub fn figures(&mut self, figures: &[Figure]) -> &mut Report {
        self.put(format_args!("<div class=\"figures\">\n"));
        for Figure { value, label, note } in figures {
            let (value, label, note) = (escape(value), escape(label), escape(note));
            self.put(format_args!(
                "<div class=\"figure\"><div class=\"label\">{label}</div><div class=\"value\">{value}</div>\
                 <div class=\"note\">{note}</div></div>\n"
            ));
        }
        self.put(format_args!("</div>\n"))
    }

    /// Adds a table.
    pub fn table(&mut self, table: &Table) -> &mut Report {
        let class = |column| if table.is_number(column) { " class=\"number\"" } else { "" };
        self.put(format_args!("<div class=\"wide\"><table>\n"));
        if !table.caption.is_empty() {
            self.put(format_args!("<caption>{}</caption>\n", escape(&table.caption)));
        }
        self.put(format_args!("<thead><tr>"));
        for (column, cell) in table.header.iter().enumerate() {
            self.put(format_args!("<th scope=\"col\"{}>{}</th>", class(column), escape(cell)));
        }
        self.put(format_args!("</tr></thead>\n<tbody>\n"));
        for row in &table.rows {
            self.put(format_args!("<tr>"));
            for (column, cell) in row.iter().enumerate() {
                self.put(format_args!("<td{}>{}</td>", class(column), escape(cell)));
            }
            self.put(format_args!("</tr>\n"));
        }
        self.put(format_args!("</tbody></table></div>\n"))
    }

    /// Adds a line chart.
    pub fn lines(&mut self, lines: &Lines) -> &mut Report {
        self.chart(&lines.title, |width| svg::lines(lines, width))
    }

    /// Adds a bar chart.
    pub fn bars(&mut self, bars: &Bars) -> &mut Report {
        self.chart(&bars.title, |width| svg::bars(bars, width))
    }

    /// Adds a chart for wide screens and one for narrow screens, of which a reader sees one.
    fn chart(&mut self, title: &str, draw: impl Fn(Width) -> Drawing) -> &mut Report {
        let [broad, slim] = [Width::Broad, Width::Slim].map(|width| draw(width).inline(title));
        let title = escape(title);
        self.put(format_args!(
            "<figure><figcaption>{title}</figcaption>\n<div class=\"broad\">{broad}</div>\n\
             <div class=\"slim\">{slim}</div></figure>\n"
        ))
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) -> &mut Report {
        self.body.write_fmt(text).expect("writing to a string does not fail");
        self
    }

    /// Renders the file.
    pub fn render(&self) -> String {
        let title = escape(&self.title);
        let mut page =
            String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n");
        page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n");
        page.push_str("<meta name=\"color-scheme\" content=\"light dark\"/>\n");
        let _ = writeln!(page, "<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>");
        let _ = writeln!(
            page,
            "<body>\n<header><h1>{title}</h1>\n<p class=\"lead\">{}</p></header>",
            escape(&self.lead)
        );
        if self.contents.len() > 2 {
            page.push_str("<nav aria-label=\"Contents\">");
            for (index, heading) in self.contents.iter().enumerate() {
                let _ = write!(page, "<a href=\"#s{}\">{}</a>", index + 1, escape(heading));
            }
            page.push_str("</nav>\n");
        }
        let _ = write!(
            page,
            "<main>\n{}</main>\n<footer>Made by terrace {}.</footer>\n</body>\n</html>\n",
            self.body,
            env!("CARGO_PKG_VERSION")
        );
        page
    }

    /// Writes the file atomically.
    pub fn write(&self, path: &Path) -> Outcome {
        write_whole(path, &self.render())
    }
}

/// Checks that a report can be written to `path`, before work that takes its time.
///
/// # Errors
/// As of [`Report::write`].
pub fn check(path: &Path) -> Outcome {
    let failed = |error: io::Error| Failure::file("writing the report", path, error);
    if path.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let unfinished = unfinished(path);
    fs::write(&unfinished, "").and_then(|()| fs::remove_file(&unfinished)).map_err(failed)
}

/// Writes a line chart to its own file, atomically.
pub fn write_figure(lines: &Lines, path: &Path) -> Outcome {
    write_whole(path, &svg::lines(lines, Width::Broad).alone(&lines.title, STYLE))
}

fn write_whole(path: &Path, text: &str) -> Outcome {
    let unfinished = unfinished(path);
    fs::write(&unfinished, text).map_err(|error| Failure::file("writing the report", path, error))?;
    fs::rename(&unfinished, path).map_err(|error| Failure::file("writing the report", path, error))
}

/// The file of a report that is being written.
fn unfinished(path: &Path) -> PathBuf {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".part");
    unfinished.into()
}

#[cfg(test)]
mod chart_tests;
#[cfg(test)]
mod tests;
