//! The benchmarks over an in-memory engine.

use clap::Parser;
use serde_json::Value;
use terrace_common::testing::MemoryDatabase;

use super::*;
use crate::args::Line;

/// Runs a command line over `database`; returns standard output and the outcome.
fn terrace(database: &MemoryDatabase, line: &[&str]) -> (String, Outcome) {
    let Line::Bench(command) = Line::try_parse_from(["terrace"].iter().chain(line)).expect("the line parses");
    let mut output = Vec::new();
    let outcome = run(command, database, &mut output);
    (String::from_utf8(output).expect("output is text"), outcome)
}

fn json(output: &str) -> Value {
    assert_eq!(output.matches('\n').count(), 1, "one object on one line");
    serde_json::from_str(output).expect("output is JSON")
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
fn one_field_is_touched_and_the_output_says_how() {
    let line = "bench ycsb --records 300 --operations 900 --fields 5x30 --touch one";
    let line: Vec<&str> = line.split(' ').collect();
    let engines: [(&dyn Opener, &str); 2] = [
        (&MemoryDatabase::default(), "whole values are read and written"),
        (&terrace_common::engine::Engine, "own calls"),
    ];
    for (engine, way) in engines {
        let bench = |more: &[&str]| {
            let line = ["terrace"].iter().chain(&line).chain(more);
            let Line::Bench(command) = Line::try_parse_from(line).expect("the line parses");
            let mut output = Vec::new();
            run(command, engine, &mut output).unwrap();
            String::from_utf8(output).expect("output is text")
        };
        let report = json(&bench(&["--json"]));
        assert_eq!((&report["fields"], &report["touch"]), (&"5x30".into(), &"one".into()));
        assert_eq!((&report["value_bytes"], &report["settings"]["one_field"]), (&150.into(), &way.into()));
        assert!(report["verified"].as_u64().unwrap() > 300);
        let told = bench(&[]);
        assert!(told.contains("150 B (5x30, one field touched)") && told.contains(way), "{told}");
    }
}

#[test]
fn a_business_in_memory_says_so() {
    let line = "bench tpcc --warehouses 1 --items 100 --customers 30 --transactions 20 --dram 16MiB";
    let line: Vec<&str> = line.split_whitespace().collect();
    let (told, outcome) = terrace(&MemoryDatabase::default(), &line);
    outcome.unwrap();
    assert!(told.contains("\nsettings: dram 16 MiB, files none, all in memory, "), "{told}");
    assert!(
        told.contains("1 warehouse, 100 items, 30 customers a district") && told.contains(", 1 thread\n")
    );
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
    let (database, folder) = (MemoryDatabase::default(), tempfile::tempdir().unwrap());
    let run = |line: &str| {
        let store = folder.path().join("bench");
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
