//! The commands over an engine in memory.

use clap::Parser;
use serde_json::Value;

use super::*;
use crate::args::Cli;
use crate::store::tests::MemoryDatabase;

/// Runs a command line over `database`: standard output and the outcome.
fn terrace(database: &MemoryDatabase, line: &[&str]) -> (String, Outcome) {
    let cli = Cli::try_parse_from(["terrace"].iter().chain(line)).expect("the line parses");
    let mut output = Vec::new();
    let outcome = dispatch(cli.command, database, &mut output);
    (String::from_utf8(output).expect("output is text"), outcome)
}

fn json(output: &str) -> Value {
    assert_eq!(output.matches('\n').count(), 1, "one object on one line");
    serde_json::from_str(output).expect("output is JSON")
}

#[test]
fn entries_are_put_read_listed_and_removed() {
    let database = MemoryDatabase::default();
    for (key, value) in [("a1", "one"), ("a2", "two\x1b[0m"), ("b1", "three")] {
        assert!(terrace(&database, &["put", "db", "--table", "t", key, value]).1.is_ok());
    }
    assert_eq!(terrace(&database, &["get", "db", "--table", "t", "a2"]).0, "two\\u{1b}[0m\n");
    assert_eq!(terrace(&database, &["get", "db", "--table", "t", "--raw", "a2"]).0, "two\x1b[0m");
    let (output, _) = terrace(&database, &["get", "db", "--table", "t", "a1", "--json"]);
    assert_eq!(json(&output), serde_json::json!({"key": "a1", "value": "one"}));
    assert_eq!(terrace(&database, &["scan", "db", "--table", "t", "--prefix", "a"]).0.lines().count(), 2);
    assert_eq!(
        terrace(&database, &["scan", "db", "--table", "t", "--from", "a2", "--to", "b1"]).0.lines().count(),
        1
    );
    assert_eq!(terrace(&database, &["scan", "db", "--table", "t", "--limit", "0"]).0, "");
    let (output, _) = terrace(&database, &["scan", "db", "--table", "t", "--limit", "2", "--json"]);
    let scanned = json(&output);
    assert_eq!((&scanned["count"], &scanned["entries"][1]["key"]), (&2.into(), &"a2".into()));
    assert!(terrace(&database, &["delete", "db", "--table", "t", "a1"]).1.is_ok());
    for line in [["get", "db", "--table", "t", "a1"], ["delete", "db", "--table", "t", "a1"]] {
        let (output, outcome) = terrace(&database, &line);
        assert_eq!((output.as_str(), outcome.unwrap_err().code()), ("", 1));
    }
    let (output, outcome) = terrace(&database, &["get", "db", "--table", "t", "a1", "--json"]);
    assert_eq!((&json(&output)["value"], outcome.unwrap_err().code()), (&Value::Null, 1));
    assert_eq!(terrace(&database, &["get", "db", "--table", "none", "a"]).1.unwrap_err().code(), 1);
}

#[test]
fn a_dump_is_loaded_back() {
    let database = MemoryDatabase::default();
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("in.csv");
    let rows: String = (0..10_000).map(|row| format!("{row:05},name {row}\n")).collect();
    std::fs::write(&csv, format!("id,name\n{rows}")).unwrap();
    let csv = csv.to_str().unwrap();
    let load = ["load", "db", "--table", "t", "--format", "csv", "--key", "id", csv, "--json"];
    let (output, outcome) = terrace(&database, &load);
    assert!(outcome.is_ok());
    assert_eq!(json(&output)["records"], 10_000);
    let (dump, _) = terrace(&database, &["dump", "db", "--table", "t", "--format", "jsonl"]);
    let file = directory.path().join("dump.jsonl");
    std::fs::write(&file, &dump).unwrap();
    let load = ["load", "db", "--table", "copy", "--format", "jsonl", file.to_str().unwrap()];
    assert!(terrace(&database, &load).1.is_ok());
    assert_eq!(terrace(&database, &["dump", "db", "--table", "copy"]).0, dump);
    assert_eq!(terrace(&database, &["dump", "db", "--table", "t", "--json"]).1.unwrap_err().code(), 2);
}

#[test]
fn a_malformed_line_ends_a_load_but_keeps_what_came_before() {
    let database = MemoryDatabase::default();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("in.jsonl");
    std::fs::write(&file, "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\n").unwrap();
    let load = ["load", "db", "--table", "t", "--format", "jsonl", file.to_str().unwrap()];
    let error = terrace(&database, &load).1.unwrap_err();
    assert!(error.code() == 1 && error.to_string().contains("in.jsonl, line 2"), "{error}");
    assert_eq!(terrace(&database, &["get", "db", "--table", "t", "a"]).0, "1\n");
    let long = format!("{{\"key\":\"{}\",\"value\":\"\"}}\n", "k".repeat(1025));
    std::fs::write(&file, long).unwrap();
    assert!(terrace(&database, &load).1.unwrap_err().to_string().contains("key of 1025 bytes"));
    let missing = ["load", "db", "--table", "t", "--format", "csv", "/no/such/file"];
    assert!(terrace(&database, &missing).1.unwrap_err().to_string().contains("/no/such/file"));
}

#[test]
fn bench_prints_every_key_of_the_interface() {
    let database = MemoryDatabase::default();
    let line = [
        "bench",
        "ycsb",
        "--workload",
        "a",
        "--records",
        "300",
        "--value-size",
        "50",
        "--operations",
        "500",
        "--threads",
        "2",
        "--json",
    ];
    let (output, outcome) = terrace(&database, &line);
    assert!(outcome.is_ok());
    let report = json(&output);
    for key in [
        "engine",
        "workload",
        "records",
        "value_bytes",
        "threads",
        "seconds",
        "operations",
        "ops_per_second",
        "latency_us",
        "errors",
        "aborts",
        "verified",
        "load_seconds",
        "rss_bytes",
        "budget_bytes",
        "tiers",
        "migrations",
        "memory_moves",
        "misplaced_pages",
        "dram_misplaced_pages",
        "inclusivity",
        "middle_line_writes",
        "log_bytes",
        "log_cycles",
        "store_bytes_per_operation",
        "policy",
        "in_place",
        "middle_writes_by_cause",
        "dram_flushes",
        "cost",
        "by_operation",
        "over_time",
        "slowest_second",
        "stalls",
        "void",
    ] {
        assert!(report.get(key).is_some(), "{key}");
    }
    assert_eq!(
        (&report["operations"], &report["errors"], &report["void"]),
        (&500.into(), &0.into(), &Value::Null)
    );
    assert!(report["tiers"]["middle"]["simulated"] == false && report["latency_us"]["p999"].is_number());
    assert!(report["by_operation"]["read"]["latency_us"]["p50"].is_number());
    assert!(terrace(&database, &line[..line.len() - 1]).0.contains("operations/s"));
}

#[test]
fn a_rate_is_reported_and_must_fit_the_workload() {
    let database = MemoryDatabase::default();
    let bench = |rate| {
        let line = "bench ycsb --workload b --records 100 --operations 50 --json --rate";
        let line: Vec<_> = line.split(' ').chain([rate]).collect();
        terrace(&database, &line)
    };
    let (output, outcome) = bench("update=100");
    assert!(outcome.is_ok());
    let report = json(&output);
    assert_eq!((&report["rate"], &report["overdue"]), (&"update=100".into(), &0.into()));
    // One in twenty is an update, so the last of fifty operations is due after 49 / 2000 s.
    assert!(report["seconds"].as_f64() >= Some(0.0245), "{report}");
    assert_eq!(bench("scan=100").1.unwrap_err().code(), 2);
}

#[test]
fn stat_verify_and_devices_print_one_object() {
    let database = MemoryDatabase::default();
    let stat = json(&terrace(&database, &["stat", "db", "--json"]).0);
    assert!(
        ["format", "tables", "pages", "free_pages", "file_bytes", "log_bytes", "last_checkpoint_lsn"]
            .iter()
            .all(|key| stat.get(key).is_some())
    );
    let verified = json(&terrace(&database, &["verify", "db", "--json"]).0);
    assert!(["pages_checked", "entries_checked", "errors"].iter().all(|key| verified.get(key).is_some()));
    let place = tempfile::tempdir().unwrap();
    let devices =
        json(&terrace(&database, &["devices", "--json", "--store", place.path().to_str().unwrap()]).0);
    assert!(
        devices["nodes"][0]["read_latency_ns"].is_number()
            && devices["store"][0]["read_latency_us"].is_number()
    );
    assert!(terrace(&database, &["verify", "db"]).0.starts_with("sound"));
    assert!(terrace(&database, &["stat", "db"]).0.starts_with("format 1"));
}

#[test]
fn many_keys_are_read_and_verified() {
    let database = MemoryDatabase::default();
    let line =
        "bench get-many --store none --records 500 --value-size 60 --keys 8 --round-keys 40 --rounds 3";
    let line: Vec<&str> = line.split_whitespace().collect();
    let (output, outcome) = terrace(&database, &[&line[..], &["--json"]].concat());
    outcome.unwrap();
    let report = json(&output);
    assert_eq!(report["verified"], 2 * 4 * 40, "both ways, and a round before those that count");
    assert!(report["gain"].as_f64().unwrap() > 0.0 && report["disk_gain"].is_null());
    assert!(terrace(&database, &line).0.contains("keys one by one"));
    let (output, outcome) = terrace(&database, &[&line[..], &["--loaded", "--json"]].concat());
    outcome.unwrap();
    assert_eq!(json(&output)["records"], 500);
}

#[test]
fn pages_and_columns_are_measured_and_verified() {
    let (database, place) = (MemoryDatabase::default(), tempfile::tempdir().unwrap());
    let run = |line: &str| {
        let store = place.path().join("bench");
        let line: Vec<&str> = line.split_whitespace().chain(["--store", store.to_str().unwrap()]).collect();
        let (output, outcome) = terrace(&database, &line);
        outcome.unwrap();
        assert_eq!(std::fs::read_dir(&store).unwrap().count(), 0, "the file is gone");
        output
    };
    let pages = "bench pages --data 8MiB --dram 2MiB --rounds 2 --seconds 300ms --touch 50";
    let report = json(&run(&format!("{pages} --json")));
    assert!(report["verified"].as_u64().unwrap() > 0 && report["faults_per_second"].as_f64().unwrap() > 0.0);
    assert!(run(pages).contains("pages read are"));
    let report = json(&run("bench pages --data 1MiB --dram 16MiB --rounds 1 --seconds 100ms --json"));
    assert!(report["verified"].as_u64().unwrap() > 0 && report["raw_reads_per_second"].is_null());
    let column = "bench column --data 8MiB --rounds 1 --page-size 16KiB";
    for (dram, beside) in [("4MiB", "disk"), ("32MiB", "memory")] {
        let report = json(&run(&format!("{column} --dram {dram} --json")));
        assert_eq!((&report["beside"], &report["verified"]), (&beside.into(), &3.into()));
    }
    assert!(run(&format!("{column} --dram 32MiB")).contains("plain array"));
}
