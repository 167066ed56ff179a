//! The commands over an in-memory engine.

use clap::Parser;
use serde_json::Value;

use terrace_common::testing::MemoryDatabase;

use super::*;
use crate::args::Cli;

/// Runs a command line over `database`; returns standard output and the outcome.
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
    let folder = tempfile::tempdir().unwrap();
    let devices =
        json(&terrace(&database, &["devices", "--json", "--store", folder.path().to_str().unwrap()]).0);
    assert!(
        devices["nodes"][0]["read_latency_ns"].is_number()
            && devices["store"][0]["read_latency_us"].is_number()
    );
    assert!(terrace(&database, &["verify", "db"]).0.starts_with("sound"));
    assert!(terrace(&database, &["stat", "db"]).0.starts_with("format 1"));
}
