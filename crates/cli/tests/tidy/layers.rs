//! Check: no import from a lower folder to a higher one.

use std::collections::BTreeMap;

use crate::Finding;
use crate::circles::graph;
use crate::sources::{ModulePath, Sources};

/// Modules of each package, the lowest first.
///
/// An entry covers its file and its folder; the longest entry that fits counts. Entries of one line
/// are of one height and may import each other (`circles` says how far). The root file is above
/// all. A package without a table is of one height.
const LAYERS: &[(&str, &[&[&str]])] = &[
    (
        "engine",
        &[
            &["planted"],
            &["ids", "threads"],
            &["error"],
            &["backend", "compression", "concurrency", "page_table", "replacement"],
            &["pool/tier/migration/policy"],
            &["stats"],
            &["store", "wal"],
            &["cache"],
            // Words and waits of the pool, each on its own.
            &[
                "pool/backoff",
                "pool/latch",
                "pool/line",
                "pool/line_fault",
                "pool/patience",
                "pool/reread",
                "pool/retry",
                "pool/swips",
                "pool/view",
                "pool/wake_up",
            ],
            &["pool/lines", "pool/hash_table"],
            &["pool/page_table", "pool/page_ids", "pool/verify_marks"],
            &["pool/frames"],
            &["pool/replacement/fifo", "pool/replacement/queues"],
            &["pool/cost", "pool/requests", "pool/stats"],
            &["pool/resident"],
            &["pool/replacement"],
            &["pool/tier"],
            &["pool/tiers"],
            &["pool/record_cache"],
            &["pool"],
            &["maintenance"],
            &["recovery", "backup"],
            &["index"],
            &["txn"],
            &["middle", "log_memory", "config"],
            &["pages", "db"],
            &["guide"],
        ],
    ),
    (
        "io",
        &[&["planted", "stats", "units"], &["memory"], &["device"], &["directory", "simulated"], &["faulty"]],
    ),
    (
        "mount",
        &[
            &["planted", "stamp", "extents", "slow_calls", "caller", "links", "opens", "queries"],
            &["lower", "file_state", "map", "relations"],
            &["observer", "space", "read_times"],
            &["slow", "counters"],
            &["cache", "node"],
            &["passthrough"],
            &["tree"],
            &["names", "hints"],
            &["requests"],
            &["mount"],
        ],
    ),
    ("cache", &[&["planted", "units"], &["policy"], &["trace"], &["sim"], &["cache"]]),
];

/// Where a module stands: the entry that covers it, and its height.
fn height<'l>(layers: &'l [&[&str]], module: &ModulePath) -> Option<(usize, &'l str)> {
    let path = module.segments.join("/");
    let covers =
        |entry: &str| path == entry || path.strip_prefix(entry).is_some_and(|rest| rest.starts_with('/'));
    let all =
        (0..).zip(layers).flat_map(|(height, entries)| entries.iter().map(move |entry| (height, *entry)));
    all.filter(|(_, entry)| covers(entry)).max_by_key(|(_, entry)| entry.len())
}

pub fn findings(sources: &Sources) -> Vec<Finding> {
    findings_by(sources, LAYERS)
}

fn findings_by(sources: &Sources, tables: &[(&str, &[&[&str]])]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut heights: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (file, _, module) in sources.product() {
        let Some((_, layers)) = tables.iter().find(|(package, _)| *package == module.package) else {
            continue;
        };
        if module.segments.is_empty() {
            heights.insert(&file.path, (layers.len(), "the root"));
        } else if let Some(found) = height(layers, module) {
            heights.insert(&file.path, found);
        } else {
            let sentence = format!("{} is in no layer of tests/tidy/layers.rs", module.segments.join("/"));
            findings.push(Finding::at(&file.path, 0, sentence));
        }
    }
    for (from, edges) in graph(sources) {
        for (to, reason) in edges {
            let (Some(low), Some(high)) = (heights.get(from.as_str()), heights.get(to.as_str())) else {
                continue;
            };
            if low.0 < high.0 {
                let sentence =
                    format!("{} imports {} of {to}, which is in {} above it", low.1, reason.name, high.1);
                findings.push(Finding::at(&from, reason.line, sentence));
            }
        }
    }
    findings
}

#[test]
fn no_folder_imports_a_higher_one() {
    crate::holds("layers", findings(Sources::repository()));
}

#[test]
fn an_import_of_a_higher_folder_is_noticed() {
    let sources = Sources::seeded(&[
        ("crates/a/src/lib.rs", "mod high;\nmod low;\nmod new;\npub const N: u32 = 1;\n"),
        ("crates/a/src/high.rs", "pub mod part;\nuse crate::low::Low;\n"),
        ("crates/a/src/high/part.rs", "pub struct Part;\n"),
        ("crates/a/src/low.rs", "pub struct Low;\nfn f() {\n    crate::high::part::Part::x(crate::N)\n}\n"),
        ("crates/a/src/new.rs", ""),
    ]);
    let found: Vec<_> =
        findings_by(&sources, &[("a", &[&["low"], &["high"]])]).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "crates/a/src/new.rs: new is in no layer of tests/tidy/layers.rs",
            "crates/a/src/low.rs:3: low imports Part of crates/a/src/high/part.rs, which is in high above it",
            "crates/a/src/low.rs:3: low imports N of crates/a/src/lib.rs, which is in the root above it",
        ]
    );
}
