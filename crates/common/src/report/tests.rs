//! The report is well-formed, escapes its input and refers to nothing external.

use super::*;

const HOSTILE: &str = "</style><script>alert('\"&')</script>\u{0}\u{1b}";

/// A report with every element.
fn sample() -> Report {
    let mut report = Report::new(
        "Terrace demo",
        "A database of 128 MiB served from 16 MiB of memory, killed and recovered.",
    );
    report.section("What happened").figures(&[
        Figure::new("131,072", "records loaded", "from 9,412 files"),
        Figure::new("8.0\u{d7}", "data to memory", "128 MiB over 16 MiB"),
        Figure::new("0", "commits lost", "of 41,337 acknowledged"),
        Figure::new("24.1 MiB", "process memory", "budget 16 MiB + 32 MiB"),
    ]);
    report.paragraph(
        "The process was killed in the middle of its work; what it had acknowledged was all there again.",
    );
    report.verdict(Verdict::Good, "Every acknowledged commit is there, no half transaction is.");
    report.verdict(Verdict::Bad, "The process took more memory than it was allowed.");
    report.verdict(Verdict::Open, "The disk's own cache could not be cut off.");
    let wave = |phase: f64| {
        (0..200).map(move |i| (i as f64 / 10.0, 42_000.0 + 9_000.0 * (i as f64 / 9.0 + phase).sin()))
    };
    report.section("Throughput").lines(
        &Lines::new("Operations a second", "seconds", "operations/s")
            .line("reads", wave(0.0).collect())
            .line("updates", wave(2.0).map(|(x, y)| (x, y / 3.0)).collect())
            .mark(9.0, "killed")
            .mark(11.5, "recovered"),
    );
    report.lines(
        &Lines::new("Process memory", "seconds", "MiB")
            .line("resident", (0..40).map(|i| (f64::from(i), 24.0 + f64::from(i % 3))).collect())
            .limit(48.0, "budget + 32 MiB"),
    );
    let curve = |middle: f64| -> Vec<(f64, f64)> {
        (1..400).map(|i| (middle * f64::from(i) / 100.0, 1.0 - (-f64::from(i) / 80.0).exp())).collect()
    };
    report.section("Latency").lines(
        &Lines::cdf("Share of operations that took at most so long", "microseconds")
            .shares("read", &curve(8.0))
            .shares("update", &curve(140.0)),
    );
    report.section("Memory sizes").bars(
        &Bars::new("Reads a second by memory", "reads/s", &["uniform", "zipfian 0.99"])
            .group("16 MiB", vec![21_000.0, 58_000.0])
            .group("32 MiB", vec![30_500.0, 94_000.0])
            .group("all in memory", vec![1_120_000.0, 1_310_000.0]),
    );
    let mut table = Table::new("Latency, microseconds", &["operation", "p50", "p99", "max"]);
    table.row(["read", "8.1", "95.0", "1,204"]).row(["update", "141", "390", "2,410"]);
    report.table(&table);
    report
}

/// Checks that tags nest and attributes are quoted; returns the text outside tags.
fn well_formed(page: &str) -> String {
    let mut open: Vec<&str> = Vec::new();
    let mut text = String::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a doctype comes first");
    while let Some(start) = rest.find('<') {
        text.push_str(&rest[..start]);
        assert!(!rest[..start].contains('>'), "a bare > in {:?}", &rest[..start]);
        let end = rest.find('>').expect("every tag ends");
        let tag = &rest[start + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes pair in {tag:?}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "tags nest"),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split_whitespace().next().unwrap()),
        }
        rest = &rest[end + 1..];
        if open.last() == Some(&"style") {
            rest = &rest[rest.find("</style>").expect("the style ends")..];
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    text + rest
}

#[test]
fn a_full_report_is_well_formed_and_whole_in_itself() {
    let page = sample().render();
    let text = well_formed(&page);
    assert!(text.contains("commits lost") && text.contains("operations/s") && text.contains("recovered"));
    for outside in ["http:", "https:", "src=", "@import", "url(", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn hostile_text_stays_text() {
    let mut report = Report::new(HOSTILE, HOSTILE);
    report.section(HOSTILE).paragraph(HOSTILE).verdict(Verdict::Bad, HOSTILE);
    report.figures(&[Figure::new(HOSTILE, HOSTILE, HOSTILE)]);
    report.lines(
        &Lines::cdf(HOSTILE, HOSTILE)
            .line(HOSTILE, vec![])
            .paper(HOSTILE, vec![(1.0, 1.0)])
            .point(HOSTILE, (1.0, 1.0), HOSTILE)
            .mark(1.0, HOSTILE)
            .limit(1.0, HOSTILE),
    );
    report.bars(&Bars::new(HOSTILE, HOSTILE, &[HOSTILE]).group(HOSTILE, vec![1.0]));
    let mut table = Table::new(HOSTILE, &[HOSTILE]);
    report.table(table.row([HOSTILE]));
    let page = report.render();
    well_formed(&page);
    assert!(!page.contains("<script") && !page.contains('\u{0}') && !page.contains('\u{1b}'));
}

#[test]
fn charts_without_data_or_with_nonsense_are_drawn() {
    let mut report = Report::new("t", "");
    report.lines(&Lines::new("none", "x", "y"));
    report.lines(&Lines::cdf("bad", "x").line("a", vec![(f64::NAN, 1.0), (-1.0, f64::INFINITY), (0.0, 0.0)]));
    report.bars(&Bars::new("none", "y", &[])).bars(&Bars::new("bad", "y", &["a"]).group("g", vec![f64::NAN]));
    let page = report.render();
    well_formed(&page);
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn numbers_are_aligned_and_names_are_not() {
    let mut table = Table::new("", &["what", "count", "mixed"]);
    table.row(["a", "1,000", "x"]).row(["b", "-2", "3"]);
    assert_eq!([0, 1, 2].map(|column| table.is_number(column)), [false, true, false]);
}

#[test]
fn the_file_is_written_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.html");
    sample().write(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), sample().render());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    let error = sample().write(Path::new("/no/such/directory/r.html")).unwrap_err();
    assert!(error.to_string().contains("/no/such/directory/r.html"));
    if let Some(kept) = std::env::var_os("TERRACE_SAMPLE_REPORT") {
        sample().write(Path::new(&kept)).unwrap();
    }
}

#[test]
fn a_file_that_cannot_be_written_is_found_before() {
    let folder = tempfile::tempdir().unwrap();
    check(&folder.path().join("new.html")).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    for path in [folder.path().join("no/such.html"), folder.path().to_owned()] {
        let told = check(&path).unwrap_err().to_string();
        assert!(told.contains("writing the report"), "{told}");
    }
}
