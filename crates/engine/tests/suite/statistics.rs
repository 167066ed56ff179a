//! Statistics: counts have the right reasons, and the Prometheus text follows the format exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use terrace::{Builder, Db, Durability, MemoryDirectory, Mode, Stats};

use super::common;

fn builder() -> Builder {
    common::builder().directory(Arc::new(MemoryDirectory::new())).mode(Mode::Inline).seed(1)
}

/// Twice the budget, written, read and overwritten by one thread.
fn worked() -> Db {
    let db = builder().dram(2 << 20).log_max(4 << 20).open("").unwrap();
    let table = db.create_table("t").unwrap();
    for round in 0..3u32 {
        for number in 0..4000u32 {
            table.put(number.to_be_bytes(), vec![round as u8; 900]).unwrap();
        }
        for number in 0..4000u32 {
            assert!(table.get((number * 7 % 4000).to_be_bytes()).unwrap().is_some());
        }
    }
    db
}

#[test]
fn counts_by_reason_add_up() {
    let db = worked();
    // A page in constant use is written only to cut the log.
    let table = db.open_table("t").unwrap();
    (0..6000u32).for_each(|number| table.put(0u32.to_be_bytes(), vec![number as u8; 900]).unwrap());
    drop(table);
    let stats = db.stats();
    assert!(stats.sweeps.evicted > 1000 && stats.sweeps.evicted == stats.evictions, "{:?}", stats.sweeps);
    assert!(stats.sweeps.used > 0 && stats.sweeps.dirty > 0, "{:?}", stats.sweeps);
    assert_eq!(stats.write_backs.total(), stats.images_written, "{:?}", stats.write_backs);
    assert!(stats.write_backs.frames > 0 && stats.write_backs.checkpoint > 0, "{:?}", stats.write_backs);
    assert_eq!(stats.write_backs.close, 0);
    assert!(stats.stalls.log_space > 0, "{:?}", stats.stalls);
    assert_eq!((stats.stalls.latches, stats.stalls.locks), (0, 0), "there was one thread");
    assert_eq!(stats.bypasses.verify, 0);
    db.verify().unwrap();
    let verified = db.stats();
    assert!(verified.bypasses.verify > 1000, "{:?}", verified.bypasses);
    assert_eq!(verified.bypasses.cleaner, verified.images_moved);
    db.open_table("t").unwrap().put("k", "v").unwrap();
    let handle = db.clone();
    db.close().unwrap();
    assert!(handle.stats().write_backs.close > 0, "{:?}", handle.stats().write_backs);
}

#[test]
fn latencies_are_counted_once_each() {
    let db = worked();
    let stats = db.stats();
    assert_eq!(stats.fault.count, stats.faults);
    assert_eq!(stats.log_write.count, stats.log_flushes);
    // Each put, and the creation of the table.
    assert_eq!(stats.commit.count, 3 * 4000 + 1);
    for latency in [&stats.fault, &stats.log_write, &stats.commit] {
        assert_eq!(latency.count, latency.buckets.iter().map(|bucket| bucket.count).sum::<u64>());
        let quantiles = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
        assert!(
            quantiles.is_sorted() && latency.max_ns > 0 && latency.max_ns <= latency.total_ns,
            "{latency:?}"
        );
    }
    let before = stats.commit.count;
    db.open_table("t").unwrap().put("k", "v").unwrap();
    let mut batch = terrace::WriteBatch::new();
    batch.put(&db.open_table("t").unwrap(), "k", "w");
    db.write(batch, Durability::Buffered).unwrap();
    assert_eq!(db.stats().commit.count, before + 1, "a buffered commit waits for nothing");
}

/// A get from a frame raises no counter and reads no clock.
#[test]
fn a_hit_counts_nothing() {
    let db = builder().dram(8 << 20).open("").unwrap();
    let table = db.create_table("t").unwrap();
    for number in 0..500u32 {
        table.put(number.to_be_bytes(), [1; 100]).unwrap();
    }
    let before = db.stats();
    for number in 0..5000u32 {
        assert!(table.get((number % 500).to_be_bytes()).unwrap().is_some());
    }
    assert_eq!(db.stats(), before);
}

/// Threads contend until each possible kind of wait and retry has happened. The old versions of a
/// round fit into memory.
#[test]
fn what_threads_wait_for_is_counted() {
    let db = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(8 << 20).log_max(512 << 10);
    let db = db.durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let seen = |stats: &Stats| {
        let Stats { retries, stalls, conflicts, .. } = stats;
        retries.changed > 0 && retries.latched > 0 && stalls.latches > 0 && *conflicts > 0
    };
    for _ in 0..2000 {
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (db, table) = (&db, &table);
                scope.spawn(move || {
                    for number in 0..50u32 {
                        db.update(|transaction| {
                            let key = ((number * 3 + thread) % 4).to_be_bytes();
                            let value = transaction.get(table, key)?.unwrap_or_default();
                            transaction.put(table, key, [&value[..value.len().min(500)], b"x"].concat())
                        })
                        .unwrap();
                    }
                });
            }
        });
        if seen(&db.stats()) {
            break;
        }
    }
    let stats = db.stats();
    assert!(seen(&stats), "{:?} {:?} {}", stats.retries, stats.stalls, stats.conflicts);
}

#[test]
fn snapshots_are_given_up_for_memory_or_age() {
    let db = builder().dram(2 << 20).old_version_bytes_max(64 << 10).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let snapshot = db.snapshot();
    for number in 0..2000u32 {
        table.put((number % 100).to_be_bytes(), [1; 500]).unwrap();
    }
    assert!(snapshot.get(&table, "k").is_err());
    let given_up = db.stats().given_up;
    assert_eq!((given_up.age, given_up.memory), (0, 1));
    let db = common::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20);
    let db = db.snapshot_age_max(Duration::ZERO).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let snapshot = db.snapshot();
    while db.stats().given_up.age == 0 {
        std::thread::yield_now();
    }
    assert!(snapshot.get(&table, "k").is_err());
}

/// A sample: its labels, unsorted, and its value.
type Sample = (Vec<(String, String)>, f64);

/// A family in one piece, with help, type and samples, as the format requires.
#[derive(Debug)]
struct Family {
    kind: String,
    samples: Vec<(String, Sample)>,
}

fn is_name(text: &str) -> bool {
    let first = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    text.starts_with(first) && text.chars().all(|letter| first(letter) || letter.is_ascii_digit())
}

/// Parses `{name="value",...}` with escapes; returns the rest of the text.
fn labels(text: &str) -> (Vec<(String, String)>, &str) {
    let Some(mut rest) = text.strip_prefix('{') else { return (Vec::new(), text) };
    let mut found = Vec::new();
    loop {
        let (name, after) = rest.split_once("=\"").expect("a label has a value in quotes");
        assert!(is_name(name), "{name:?}");
        let (mut value, mut letters) = (String::new(), after.char_indices());
        let end = loop {
            match letters.next().expect("a closing quote") {
                (at, '"') => break at + 1,
                (_, '\\') => value.push(match letters.next().expect("what is escaped").1 {
                    'n' => '\n',
                    same @ ('\\' | '"') => same,
                    other => panic!("\\{other} is no escape"),
                }),
                (_, '\n') => panic!("a line ends in a label"),
                (_, other) => value.push(other),
            }
        };
        found.push((name.to_owned(), value));
        match after[end..].split_at(1) {
            (",", more) => rest = more,
            ("}", after) => return (found, after),
            other => panic!("{other:?} follows a label"),
        }
    }
}

fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'));
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut current, mut helped) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(is_name(name) && !help.is_empty() && !families.contains_key(name), "{line}");
            helped = name.to_owned();
        } else if let Some(about) = line.strip_prefix("# TYPE ") {
            let (name, kind) = about.split_once(' ').unwrap();
            assert_eq!(name, helped, "the type follows the help");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            current = name.to_owned();
            families.insert(current.clone(), Family { kind: kind.to_owned(), samples: Vec::new() });
        } else {
            let end = line.find(['{', ' ']).expect("a value");
            let (name, rest) = line.split_at(end);
            let (labels, rest) = labels(rest);
            let value = rest.strip_prefix(' ').expect("one space before the value");
            let family = families.get_mut(&current).expect("samples come after their type");
            let suffixes: &[&str] =
                if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            let of = name.strip_prefix(&current).unwrap_or_else(|| panic!("{name} in the family {current}"));
            assert!(is_name(name) && suffixes.contains(&of), "{line}");
            family.samples.push((of.to_owned(), (labels, value.parse().expect("a number"))));
        }
    }
    families
}

fn check(families: &BTreeMap<String, Family>) {
    for (name, Family { kind, samples }) in families {
        assert!(name.starts_with("terrace_") && !samples.is_empty(), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
        assert_eq!(kind == "histogram", name.ends_with("_seconds"), "{name}");
        assert!(samples.iter().all(|(_, (_, value))| value.is_finite() && *value >= 0.0), "{name}");
        let keys: BTreeSet<_> = samples.iter().map(|(of, (labels, _))| (of, labels)).collect();
        assert_eq!(keys.len(), samples.len(), "{name} has a sample twice");
        if kind != "histogram" {
            continue;
        }
        let value = |of: &str| {
            let found: Vec<f64> =
                samples.iter().filter(|(suffix, _)| suffix == of).map(|(_, (_, value))| *value).collect();
            assert_eq!(found.len(), 1, "{name}{of}");
            found[0]
        };
        let (mut below, mut ends) = (0.0, Vec::new());
        for (_, (labels, count)) in samples.iter().filter(|(of, _)| of == "_bucket") {
            let [(label, end)] = &labels[..] else { panic!("{name}: {labels:?}") };
            assert_eq!(label, "le");
            ends.push(end.parse::<f64>().unwrap());
            assert!(*count >= below, "{name}: a bucket holds those before it");
            below = *count;
        }
        assert!(ends.is_sorted_by(|a, b| a < b) && ends.last() == Some(&f64::INFINITY), "{name}: {ends:?}");
        assert_eq!(below, value("_count"), "{name}");
        assert!(value("_sum") > 0.0 || below == 0.0, "{name}");
    }
}

#[test]
fn the_text_for_prometheus_follows_its_format() {
    let db = worked();
    let odd = "a \"quoted\" \\ name, {with} =\u{e9}";
    db.create_table(odd).unwrap().put("k", "v").unwrap();
    let (stats, tables) = (db.stats(), db.table_stats().unwrap());
    let families = parse(&stats.prometheus(&tables));
    check(&families);
    let value = |name: &str, label: &str| {
        let samples = &families[name].samples;
        let of = |(_, (labels, _)): &&(String, Sample)| labels.first().map_or("", |(_, of)| of) == label;
        samples.iter().find(of).unwrap_or_else(|| panic!("{name} {label}")).1.1
    };
    assert_eq!(value("terrace_table_entries", odd), 1.0);
    assert_eq!(value("terrace_table_entries", "t"), 4000.0);
    assert!(value("terrace_table_pages", "t") >= 1000.0);
    assert_eq!((value("terrace_table_levels", odd), value("terrace_table_levels", "t")), (1.0, 3.0));
    assert_eq!(value("terrace_stalls_total", "log_space"), stats.stalls.log_space as f64);
    assert_eq!(value("terrace_images_written_total", "checkpoint"), stats.write_backs.checkpoint as f64);
    assert_eq!(value("terrace_commits_total", "committed"), stats.commits as f64);
    assert_eq!(value("terrace_budget_bytes", ""), (2 << 20) as f64);
    let without = parse(&stats.prometheus(&[]));
    check(&without);
    let names = |families: &BTreeMap<String, Family>| families.keys().cloned().collect::<BTreeSet<_>>();
    let tables: BTreeSet<_> = names(&families).difference(&names(&without)).cloned().collect();
    let of_tables =
        ["compression", "entries", "entries_exact", "levels", "page_bytes", "pages", "value_page_bytes_max"];
    assert_eq!(tables, of_tables.map(|name| format!("terrace_table_{name}")).into());
}

#[test]
fn a_database_that_has_done_nothing_has_the_same_families() {
    let names = |db: &Db| parse(&db.stats().prometheus(&[])).into_keys().collect::<Vec<_>>();
    assert_eq!(names(&builder().dram(2 << 20).open("").unwrap()), names(&worked()));
}

/// A whole page writes each line of its frame; a change in place and a partial page that goes down
/// write the changed lines.
#[test]
fn lines_of_a_simulated_middle_tier_are_counted_as_they_are_written() {
    let middle = "simulated:dram,256KiB".parse().unwrap();
    let db = builder().dram(1 << 20).middle(middle).policy(".5,.5,1,1".parse().unwrap()).open("").unwrap();
    let table = db.create_table("t").unwrap();
    for round in 0..3u32 {
        for number in 0..3000u32 {
            let key = number.wrapping_mul(2_654_435_761).to_be_bytes();
            table.put(key, round.to_le_bytes().repeat(25)).unwrap();
            assert!(table.get(key).unwrap().is_some());
        }
    }
    let (middle, writes) = (db.stats().middle.unwrap(), db.line_writes().unwrap());
    let by_page = middle.writes.from_dram
        + middle.writes.from_dram_clean
        + middle.writes.from_store
        + middle.writes.created;
    assert!(by_page > 100 && middle.lines_written > 100, "{middle:?}");
    let by_line = middle.lines_written + middle.lines_demoted;
    assert_eq!(writes.total(), by_line + by_page * 4096 / 64);
    assert!(writes.max() > by_page / middle.frames && writes.max() < writes.total(), "{}", writes.max());
    let nothing = db.line_writes().unwrap().since(&writes);
    assert_eq!((nothing.total(), nothing.max()), (0, 0));
    assert!(builder().dram(1 << 20).no_middle().open("").unwrap().line_writes().is_none());
}
