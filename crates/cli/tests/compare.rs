//! The built command compares engines: one process and one object per engine, no files left.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn terrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace")).args(arguments).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("output is text")
}

const SMALL: [&str; 10] = [
    "bench",
    "ycsb",
    "--records=300",
    "--value-size=100",
    "--operations=400",
    "--threads=2",
    "--durability=buffered",
    "--unconfined",
    "--rounds=2",
    "--seed=3",
];

fn compare(engines: &str, more: &[&str]) -> Output {
    let compare = format!("--compare={engines}");
    let output = terrace(&[&SMALL[..], &[compare.as_str()], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    output
}

#[test]
fn a_comparison_in_memory_has_one_object_for_each_engine() {
    let output = compare("terrace,redb,fjall,lmdb,sqlite,btreemap", &["--workload=f", "--json"]);
    assert_eq!(text(&output.stdout).matches('\n').count(), 1, "one object on one line");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let runs = found["runs"].as_array().expect("runs");
    let names: Vec<_> = runs.iter().map(|run| run["engine"].as_str().expect("a name")).collect();
    assert_eq!(names, ["terrace", "redb", "fjall", "lmdb", "sqlite", "btreemap"]);
    for run in runs {
        assert_eq!(
            (&run["operations"], &run["errors"], &run["exit_code"]),
            (&400.into(), &0.into(), &0.into())
        );
        assert!(run["verified"].as_u64() >= Some(400), "{run}");
        assert_eq!(run["rounds"].as_array().map(Vec::len), Some(2));
        assert!(run["terrace_ratio"].as_f64() > Some(0.0), "{run}");
        assert!(run["settings"].as_object().is_some_and(|settings| settings.contains_key("files")), "{run}");
        assert!(run["latency_us"]["p99"].is_number() && run.get("void").is_some());
    }
    assert_eq!(found["confined_to_bytes"], Value::Null);
}

/// A flag or the environment chooses it.
#[test]
fn a_report_names_the_page_table_that_was_used() {
    for (flags, variable, named) in [
        (&[][..], None, "array"),
        (&["--page-table=hash"], None, "hash"),
        (&[], Some("hash,swizzle"), "hash, swizzled"),
        (&["--page-table=array"], Some("hash,swizzle"), "array"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command.args(&SMALL[..7]).args(["--workload=c", "--json"]).args(flags);
        command.env_remove("TERRACE_PAGE_TABLE");
        command.envs(variable.map(|text| ("TERRACE_PAGE_TABLE", text)));
        let output = command.output().expect("the command starts");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(found["settings"]["page_table"], named, "{found}");
    }
}

/// Otherwise the comparison would use another cache than requested.
#[test]
fn the_cache_of_a_comparison_and_of_equal_costs_is_the_one_asked_for() {
    let cache = [
        "--workload=c",
        "--json",
        "--cache=simulated:dram,16MiB",
        "--cache-admission=obp",
        "--cache-eviction=lfru",
    ];
    let output = compare("terrace", &[&cache[..], &["--dram=16MiB"]].concat());
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let asked = |run: &Value| assert_eq!(run["cache"]["policy"], "obp+lfru", "{run}");
    asked(&found["runs"][0]);
    let equal = ["--equal-cost=three-tiers", "--dram=24MiB", "--middle=simulated:optane,32MiB"];
    let output = terrace(&[&SMALL[..7], &cache, &equal].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let runs = found["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 3);
    runs.iter().for_each(asked);
}

#[test]
fn databases_of_a_comparison_are_removed_and_nothing_else_is() {
    let folder = tempfile::tempdir().expect("a directory");
    fs::write(folder.path().join("kept"), "mine").expect("written");
    let store = format!("--store={}", folder.path().display());
    let output = compare("terrace,lmdb", &["--workload=e", "--dram=32MiB", &store]);
    let shown = text(&output.stdout);
    assert!(
        ["terrace / this", "lmdb", "MDB_NOSYNC", "not confined"].iter().all(|part| shown.contains(part)),
        "{shown}"
    );
    let left: Vec<_> =
        fs::read_dir(folder.path()).expect("read").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["kept"]);
}

#[test]
fn one_engine_is_measured_in_a_directory_that_stays() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("db");
    let store = format!("--store={}", path.display());
    for _ in 0..2 {
        let output = terrace(&[&SMALL[..7], &["--workload=a", "--engine=redb", "--json", &store]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let run: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&run["engine"], &run["operations"]), (&"redb".into(), &400.into()));
        assert_eq!(run["void"], Value::Null);
    }
    assert!(path.join("data.redb").is_file());
}

#[test]
fn unknown_engines_are_refused_with_the_names_there_are() {
    for flag in ["--compare=terrace,oracle", "--engine=oracle"] {
        let output = terrace(&["bench", "ycsb", flag]);
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output.stderr);
        let names = ["oracle", "terrace", "redb", "fjall", "lmdb", "sqlite", "btreemap"];
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
    }
    let tiers = terrace(&["bench", "ycsb", "--engine=redb", "--middle=simulated:optane,1MiB"]);
    assert_eq!(tiers.status.code(), Some(2));
    assert!(text(&tiers.stderr).contains("--engine redb has no tiers"), "{}", text(&tiers.stderr));
    let both = terrace(&["bench", "ycsb", "--engine=redb", "--compare=redb"]);
    assert_eq!(both.status.code(), Some(2));
    let without_files = terrace(&["bench", "ycsb", "--compare=terrace,btreemap", "--store=nowhere"]);
    assert_eq!(without_files.status.code(), Some(2));
    assert!(!Path::new("nowhere").exists());
}
