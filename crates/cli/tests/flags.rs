//! The flags of each command are those it needs: `--help` against a table by need.

use std::collections::BTreeSet;
use std::process::{Command, Output};

const OUTPUT: &[&str] = &["json", "config"];
const MEMORY: &[&str] = &["dram", "backend", "dram-nodes"];
const MIDDLE: &[&str] = &["middle"];
const MIGRATION: &[&str] = &["policy", "admission-queue", "clean-victims", "migrate", "lines", "mini-pages"];
const CACHE: &[&str] = &["cache", "cache-admission", "cache-eviction", "cache-write-budget", "cache-trust"];
const LOG_MEMORY: &[&str] = &["log-memory"];
const COMMITS: &[&str] = &["durability"];
const LAYOUT: &[&str] = &["page-size", "value-page-size", "compression", "log-max"];
const MEASURE: &[&str] = &["replacement", "page-table", "swizzle", "record-cache", "seed"];
const TABLE: &[&str] = &["table"];

/// All groups of a database that is measured.
const TIERS: &[&[&str]] = &[MEMORY, MIDDLE, MIGRATION, CACHE, LOG_MEMORY, COMMITS, LAYOUT, MEASURE];

/// A command, the groups of flags it needs, and its own flags.
type Row = (&'static str, &'static [&'static [&'static str]], &'static [&'static str]);

const COMMANDS: &[Row] = &[
    ("get", &[OUTPUT, MEMORY, TABLE], &["raw"]),
    ("scan", &[OUTPUT, MEMORY, TABLE], &["from", "to", "prefix", "limit"]),
    // A dump is many objects, so it has no --json.
    ("dump", &[MEMORY, TABLE], &["format", "config"]),
    ("stat", &[OUTPUT, MEMORY, MIDDLE], &["prometheus"]),
    ("verify", &[OUTPUT, MEMORY], &[]),
    ("backup", &[OUTPUT, MEMORY], &[]),
    ("restore", &[OUTPUT, MEMORY], &[]),
    ("repair", &[OUTPUT, MEMORY, LAYOUT], &[]),
    ("compact", &[OUTPUT, MEMORY, CACHE, LOG_MEMORY], &[]),
    ("delete", &[OUTPUT, MEMORY, TABLE, CACHE, LOG_MEMORY, COMMITS], &[]),
    ("put", &[OUTPUT, MEMORY, TABLE, CACHE, LOG_MEMORY, COMMITS, LAYOUT], &[]),
    (
        "load",
        &[OUTPUT, MEMORY, TABLE, CACHE, LOG_MEMORY, COMMITS, LAYOUT, MIDDLE, MIGRATION],
        &["format", "key"],
    ),
    ("devices", &[OUTPUT], &["store"]),
    #[cfg(feature = "mount")]
    (
        "mount",
        &[CACHE],
        &[
            "cache-always",
            "block-size",
            "trace",
            "threads",
            "metrics",
            "control",
            "no-passthrough",
            "read-only",
            "allow-other",
            "config",
        ],
    ),
    ("completions", &[], &[]),
    ("man", &[], &[]),
];

/// Commands that measure a database, whose own flags vary.
const MEASURING: &[&str] = &[
    "demo",
    #[cfg(feature = "lab")]
    "bench ycsb",
    #[cfg(feature = "lab")]
    "bench get-many",
];

/// Commands without a database of the user.
const WITHOUT_TIERS: &[&str] = &[
    "simulate",
    #[cfg(feature = "lab")]
    "reproduce",
];

/// Benchmarks of pages alone.
#[cfg(feature = "lab")]
const PAGES: &[(&str, &[&str])] = &[("bench pages", &["touch", "seconds", "seed"]), ("bench column", &[])];

fn terrace(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(line.split_whitespace()).output().expect("the command starts")
}

/// The long flags of `--help`, without those that every command has.
fn flags(command: &str) -> BTreeSet<String> {
    let help = terrace(&format!("{command} --help"));
    assert!(help.status.success(), "{command}");
    let help = String::from_utf8(help.stdout).expect("text");
    // A line of a flag begins with `--name` or `-n, --name`.
    let flag = |line: &str| {
        let words = line.split_whitespace().take(2);
        let name = words.filter_map(|word| word.strip_prefix("--")).next()?;
        line.trim_start().starts_with('-').then(|| name.split('=').next().unwrap_or(name).to_owned())
    };
    let flags = help.lines().filter_map(flag);
    flags.filter(|name| !["help", "version"].contains(&name.as_str())).collect()
}

fn set(groups: &[&[&str]]) -> BTreeSet<String> {
    groups.iter().flat_map(|group| group.iter()).map(|name| (*name).to_owned()).collect()
}

#[test]
fn every_command_has_the_flags_it_needs() {
    for (command, groups, own) in COMMANDS {
        assert_eq!(flags(command), set(&[*groups, &[*own]].concat()), "{command}");
    }
    for command in MEASURING {
        let (found, all) = (flags(command), set(&[TIERS, &[OUTPUT]].concat()));
        assert!(found.is_superset(&all), "{command}: {:?}", all.difference(&found));
    }
    for command in WITHOUT_TIERS {
        // Policies of `simulate` are those of caches.
        let of_tiers: Vec<_> = flags(command).intersection(&set(TIERS)).cloned().collect();
        assert!(of_tiers.iter().all(|name| *name == "policy"), "{command}: {of_tiers:?}");
    }
    #[cfg(feature = "lab")]
    for (command, own) in PAGES {
        let common: &[&str] = &["dram", "backend", "page-size", "data", "threads", "rounds", "store"];
        assert_eq!(flags(command), set(&[common, OUTPUT, own]), "{command}");
    }
}

#[test]
fn the_table_has_every_command() {
    let mut known: BTreeSet<&str> = COMMANDS.iter().map(|row| row.0).collect();
    known.extend(MEASURING.iter().chain(WITHOUT_TIERS).map(|name| name.split(' ').next().expect("a word")));
    let help = String::from_utf8(terrace("--help").stdout).expect("text");
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let listed: BTreeSet<&str> =
        listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert_eq!(listed, known);
}

#[test]
fn flags_without_an_effect_are_refused() {
    for (line, flag) in [
        ("get db --table t k --cache simulated:dram,1MiB", "--cache"),
        ("get db --table t k --page-size 8KiB", "--page-size"),
        ("get db --table t k --json --raw", "--raw"),
        ("put db --table= k v", "--table"),
        ("scan db --table t --durability buffered", "--durability"),
        ("verify db --seed 1", "--seed"),
        ("backup db copy --middle simulated:dram,1MiB", "--middle"),
        ("delete db --table t k --log-max 8MiB", "--log-max"),
        ("compact db --compression lz4", "--compression"),
        ("dump db --table t --json", "--json"),
        #[cfg(feature = "lab")]
        ("bench ycsb --rounds 2", "--compare"),
        #[cfg(feature = "lab")]
        ("bench ycsb --unconfined", "--compare"),
        #[cfg(feature = "lab")]
        ("bench column --store x --seed 1", "--seed"),
    ] {
        let output = terrace(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(flag), "{line}: {said}");
    }
}

#[test]
fn one_file_of_settings_serves_commands_with_other_flags() {
    let folder = tempfile::tempdir().unwrap();
    let (db, file) = (folder.path().join("db"), folder.path().join("c.toml"));
    let settings = "dram = \"8MiB\"\npage-size = \"8KiB\"\ncache = \"simulated:dram,1MiB\"\njson = true\n\
                    seed = 7\npolicy = \"lazy\"\ndurability = \"buffered\"\n";
    std::fs::write(&file, settings).unwrap();
    let (db, file) = (db.display(), file.display());
    for line in [
        format!("put {db} --table t k v --config {file}"),
        format!("get {db} --table t k --config {file}"),
        format!("dump {db} --table t --config {file}"),
        format!("verify {db} --config {file}"),
    ] {
        let output = terrace(&line);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
