//! Each field of the statistics is in JSON and in the text for Prometheus, with the same value.

use std::sync::Arc;

use serde_json::Value;
use terrace::migration::Choice;
use terrace::{Db, MemoryDirectory, Middle, MiddleKind, Profile, Stats};

/// A database with a block cache and a middle tier that fill all optional fields, but for those of
/// persistent frames in memory mode, and of memory mode else.
fn worked(is_memory_mode: bool) -> Db {
    let persistent = Profile::named("optane").unwrap();
    let profile = if is_memory_mode { persistent.with_dram_cache_bytes(1 << 20) } else { persistent };
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(4 << 20);
    let builder = builder.middle(Middle::new(MiddleKind::Simulated(profile), 8 << 20));
    let builder = builder.policy(Choice::Adaptive).cache_directory(Arc::new(MemoryDirectory::new()));
    let db = builder.cache("file:cache,16MiB".parse().unwrap()).open("").unwrap();
    let table = db.create_table("t").unwrap();
    for number in 0..9000u32 {
        table.put(number.to_be_bytes(), vec![1; 900]).unwrap();
    }
    db
}

/// The numbers of all fields, as Prometheus has them: a text is 1, and an absent one 0.
///
/// Labels are no samples, and a distribution counts by its sum.
fn fields(value: &Value, labels: &[&str], found: &mut Vec<f64>) {
    match value {
        Value::Null => found.push(0.0),
        Value::Bool(is_so) => found.push(f64::from(u8::from(*is_so))),
        Value::Number(number) => found.push(number.as_f64().unwrap()),
        Value::String(_) => found.push(1.0),
        Value::Array(rows) => rows.iter().for_each(|row| fields(row, labels, found)),
        Value::Object(distribution) if distribution.contains_key("buckets") => {
            found.push(distribution["total_ns"].as_f64().unwrap() / 1e9);
        }
        Value::Object(object) => {
            // Of rows the first field is their label.
            let is_label = |key: &str| labels.contains(&key);
            let is_row = object.contains_key("gained") || object.contains_key("entries_exact");
            let shown = object.iter().filter(|(key, _)| !is_row || !is_label(key));
            shown.for_each(|(_, value)| fields(value, labels, found));
        }
    }
}

/// The numbers of all samples; of a distribution only the sum.
fn samples(text: &str) -> Vec<f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.filter(|line| !line.contains("_seconds_bucket") && !line.contains("_seconds_count"));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
}

fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// The samples without those of families that are made of several fields.
fn text_of_fields(stats: &Stats, tables: &[terrace::TableStats]) -> String {
    let text = stats.prometheus(tables);
    let lines = text.lines().filter(|line| !line.starts_with("terrace_log_used_bytes "));
    lines.map(|line| format!("{line}\n")).collect()
}

fn check_each_field(is_memory_mode: bool) {
    let db = worked(is_memory_mode);
    let (stats, tables) = (db.stats(), db.table_stats().unwrap());
    let middle = stats.middle.as_ref().unwrap();
    assert_eq!((middle.dram_cache.is_some(), middle.persistent.is_some()), (is_memory_mode, !is_memory_mode));
    assert!(middle.tuning.is_some() && stats.cache.is_some());
    let text = text_of_fields(&stats, &tables);
    assert!(!text.contains("# HELP  "), "a field without a family");
    let mut told = Vec::new();
    let mut json = serde_json::to_value(&stats).unwrap();
    // What the tier is not has no series.
    let absent = if is_memory_mode { "persistent" } else { "dram_cache" };
    assert!(json["middle"].as_object_mut().unwrap().remove(absent).is_some_and(|value| value.is_null()));
    fields(&json, &["page_bytes"], &mut told);
    // A cache leaves out of JSON what it has not written back; Prometheus wants all series.
    told.extend([0.0; 3]);
    fields(&serde_json::to_value(&tables).unwrap(), &["name"], &mut told);
    assert!(told.len() > 150, "{}", told.len());
    assert_eq!(sorted(told), sorted(samples(&text)));
}

#[test]
fn json_and_prometheus_have_each_field() {
    [true, false].into_iter().for_each(check_each_field);
}
