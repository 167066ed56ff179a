//! The built command over real databases: data round-trips, and errors have exit codes.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn terrace(arguments: &[&str]) -> Output {
    feed(arguments, b"")
}

fn feed(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = command(arguments).spawn().expect("the command starts");
    let _ = child.stdin.take().expect("piped").write_all(input);
    child.wait_with_output().expect("the command ends")
}

/// Runs a command that must succeed; returns its standard output.
fn succeed(arguments: &[&str]) -> Vec<u8> {
    let output = terrace(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    output.stdout
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("output is text")
}

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).expect("one JSON object")
}

/// A directory and a database path in it.
fn folder() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("db").to_str().expect("a path of text").to_owned();
    (directory, path)
}

#[test]
fn a_way_to_move_memory_is_refused_where_none_moves() {
    let (_directory, db) = folder();
    let tiers = [
        (&["--middle", "simulated:dram,1MiB", "--backend", "mapped"][..], "simulated:dram"),
        (&["--middle", "numa:0,1MiB", "--backend", "frames"], "frames"),
    ];
    for (tiers, why) in tiers {
        let line = [&["load", &db, "--table", "t", "--format", "jsonl", "-", "--migrate", "copy"][..], tiers]
            .concat();
        let refused = terrace(&line);
        assert_eq!(refused.status.code(), Some(2), "{line:?}");
        let said = text(&refused.stderr);
        assert!(said.contains("migrate is copy") && said.contains(why), "{said}");
        assert!(!Path::new(&db).exists(), "nothing was made");
    }
}

#[test]
fn a_middle_tier_says_which_pages_do_not_go_there() {
    let (_directory, db) = folder();
    let large = ["--dram", "24MiB", "--value-page-size", "64KiB"];
    let value = "v".repeat(100_000);
    succeed(&[&["put", &db, "--table", "t", "k", &value][..], &large].concat());
    let stat = |middle: &str, flags: &[&str]| {
        let line = [&["stat", &db, "--middle", middle], flags].concat();
        succeed(&[&line[..], &large[..2]].concat())
    };
    let stat_json = json(&stat("simulated:dram,8MiB", &["--json"]));
    let middle = &stat_json["middle"];
    assert_eq!(middle["other_page_bytes"].as_array().unwrap().len(), 0, "{middle}");
    let sizes = middle["classes"].as_array().unwrap().iter().map(|class| &class["page_bytes"]);
    assert!(
        sizes.clone().any(|bytes| *bytes == 65536) && sizes.clone().any(|bytes| *bytes == 4096),
        "{middle}"
    );
    // Sixteen frames of 4 KiB leave no room for a page of each size.
    let said = stat("simulated:dram,64KiB", &[]);
    let said = text(&said);
    assert!(said.contains("64 KiB do not go to the middle tier"), "{said}");
    let (_directory, plain) = folder();
    succeed(&["put", &plain, "--table", "t", "k", "v"]);
    let said = succeed(&["stat", &plain, "--middle", "simulated:dram,8MiB"]);
    assert!(text(&said).contains("frames for pages of 4 KiB\n") && !text(&said).contains("do not go"));
}

#[test]
fn entries_are_put_read_removed_and_scanned() {
    let (_directory, db) = folder();
    for (key, value) in [("a", "1"), ("b", "2"), ("ba", "3"), ("c", "4")] {
        succeed(&["put", &db, "--table", "t", key, value]);
    }
    assert_eq!(text(&succeed(&["get", &db, "--table", "t", "ba"])), "3\n");
    assert_eq!(succeed(&["get", &db, "--table", "t", "--raw", "c"]), b"4");
    succeed(&["delete", &db, "--table", "t", "b"]);
    let gone = terrace(&["get", &db, "--table", "t", "b"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains('b'));
    let scanned = succeed(&["scan", &db, "--table", "t", "--from", "a", "--to", "c"]);
    assert!(text(&scanned).contains("ba") && !text(&scanned).contains('4'), "{}", text(&scanned));
    let missing = terrace(&["get", &db, "--table", "nowhere", "a"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("nowhere"));
}

#[test]
fn a_compressed_table_takes_less_room_and_stays_what_it_is() {
    let rows: String = (0..8000).map(|row| format!("{row:05},the same words in every row\n")).collect();
    let bytes = |compression: &str| {
        let (_directory, db) = folder();
        let flags = ["--page-size", "16KiB", "--compression", compression];
        let load = ["load", &db, "--table", "t", "--format", "csv", "--json", "-"];
        let loaded = feed(&[&load[..], &flags].concat(), format!("id,what\n{rows}").as_bytes());
        assert_eq!(loaded.status.code(), Some(0), "{}", text(&loaded.stderr));
        // Page sizes in the flags of later commands do not matter.
        assert_eq!(text(&succeed(&["get", &db, "--table", "t", "07777"])).lines().count(), 1);
        let stat = json(&succeed(&["stat", &db, "--json"]));
        assert_eq!((&stat["tables"][0]["compression"], &stat["format"]), (&compression.into(), &6.into()));
        assert_eq!(json(&succeed(&["verify", &db, "--json"]))["errors"].as_array().map(Vec::len), Some(0));
        let number = |key: &str| stat[key].as_u64().expect("a number");
        number("file_bytes") - number("free_pages") * 16384
    };
    let (plain, compressed) = (bytes("none"), bytes("lz4"));
    assert!(compressed * 3 < plain * 2, "{plain} bytes, compressed {compressed}");

    let (_directory, db) = folder();
    let refused = terrace(&["put", &db, "--table", "t", "--compression", "lz4", "a", "1"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("16 KiB"), "{}", text(&refused.stderr));
}

#[test]
fn tables_of_one_database_have_pages_of_several_sizes() {
    let rows: String = (0..3000).map(|row| format!("{row:05},what row {row} says\n")).collect();
    let (_directory, db) = folder();
    for (table, size) in [("large", Some("32KiB")), ("small", None)] {
        let load = ["load", &db, "--table", table, "--format", "csv", "-"];
        let flags = size.map_or(Vec::new(), |size| vec!["--page-size", size]);
        // The first command creates the database with the given page size.
        let made = feed(&["put", &db, "--table", "first", "k", "-"], b"v");
        assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
        let loaded = feed(&[&load[..], &flags].concat(), format!("id,what\n{rows}").as_bytes());
        assert_eq!(loaded.status.code(), Some(0), "{}", text(&loaded.stderr));
        assert_eq!(text(&succeed(&["get", &db, "--table", table, "02777"])).lines().count(), 1);
    }
    let stat = json(&succeed(&["stat", &db, "--json"]));
    let tables = stat["tables"].as_array().expect("a list").iter();
    let sizes: Vec<_> = tables.map(|table| table["page_bytes"].as_u64().expect("a number")).collect();
    assert_eq!(sizes, [4096, 32768, 4096], "{stat}");
    assert!(text(&succeed(&["stat", &db])).contains("pages of 32"), "{stat}");
    assert_eq!(json(&succeed(&["verify", &db, "--json"]))["errors"].as_array().map(Vec::len), Some(0));
    let refused = terrace(&["put", &db, "--table", "t", "--page-size", "5KiB", "a", "1"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn long_values_have_pages_of_the_size_that_is_given() {
    let (_directory, db) = folder();
    let flags = ["--dram", "64MiB", "--value-page-size", "256KiB"];
    let value = vec![b'v'; 200_000];
    let put = ["put", &db, "--table", "t", "k", "-"];
    let made = feed(&[&put[..], &flags].concat(), &value);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    assert_eq!(succeed(&["get", &db, "--table", "t", "k", "--dram", "64MiB"]).trim_ascii_end(), value);
    let stat = json(&succeed(&["stat", &db, "--dram", "64MiB", "--json"]));
    let table = &stat["tables"][0];
    assert_eq!((&table["page_bytes"], &table["value_page_bytes_max"]), (&4096.into(), &(256 << 10).into()));
    assert!(
        text(&succeed(&["stat", &db, "--dram", "64MiB"])).contains("values in pages up to 256"),
        "{stat}"
    );
    let refused = terrace(&["put", &db, "--table", "t", "--value-page-size", "4MiB", "a", "1"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn no_database_is_made_among_other_files() {
    let (directory, db) = folder();
    fs::create_dir(&db).unwrap();
    fs::write(Path::new(&db).join("main.rs"), "fn main() {}").unwrap();
    let refused = terrace(&["put", &db, "--table", "t", "k", "v"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("has files, but no database"), "{}", text(&refused.stderr));
    assert_eq!(fs::read_dir(&db).unwrap().count(), 1);
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let empty = empty.to_str().unwrap();
    succeed(&["put", empty, "--table", "t", "k", "v"]);
    succeed(&["put", empty, "--table", "t", "k", "w"]);
    let missing = terrace(&["get", empty, "--table", "tt", "k"]);
    assert!(text(&missing.stderr).contains("no table named \"tt\"; `terrace stat` lists the tables"));
    let load = ["load", empty, "--table", "t", "--format", "jsonl", "-"];
    let half = feed(&load, b"{\"key\": \"a\", \"value\": \"b\"}\nno json\n");
    assert!(text(&half.stderr).contains("loaded before it: 1 record\n"), "{}", text(&half.stderr));
}

#[test]
fn a_dump_loads_again_to_the_same() {
    let (directory, db) = folder();
    let csv = directory.path().join("in.csv");
    let rows: String =
        (0..5000).map(|row| format!("{:05},\"value {row}, quoted\"\n", row * 7 % 5000)).collect();
    fs::write(&csv, format!("id,what\n{rows}")).expect("written");
    let loaded = succeed(&["load", &db, "--table", "t", "--format", "csv", "--json", csv.to_str().unwrap()]);
    assert_eq!(json(&loaded)["records"], 5000);
    // A value longer than a page, and one that is not text.
    let long = "x".repeat(300_000);
    let put = feed(&["put", &db, "--table", "t", "long", "-"], long.as_bytes());
    assert_eq!(put.status.code(), Some(0), "{}", text(&put.stderr));
    let put = feed(&["put", &db, "--table", "t", "bytes", "-"], &[0xff, 0, 0xfe]);
    assert_eq!(put.status.code(), Some(0), "{}", text(&put.stderr));

    let dump = succeed(&["dump", &db, "--table", "t"]);
    assert_eq!(text(&dump).lines().count(), 5002);
    let other = directory.path().join("other").to_str().unwrap().to_owned();
    let again = feed(&["load", &other, "--table", "t", "--format", "jsonl", "-"], &dump);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert!(succeed(&["dump", &other, "--table", "t"]) == dump, "the second dump differs");

    let stat = json(&succeed(&["stat", &db, "--json"]));
    assert_eq!((&stat["tables"][0]["name"], &stat["tables"][0]["entries"]), (&"t".into(), &5002.into()));
    let verify = json(&succeed(&["verify", &db, "--json"]));
    assert_eq!(verify["errors"].as_array().map(Vec::len), Some(0));
    assert!(verify["entries_checked"].as_u64() >= Some(5002), "{verify}");
}

#[test]
fn compaction_shrinks_the_file_and_keeps_what_is_in_it() {
    let (_directory, db) = folder();
    let rows: String = (0..20_000).map(|row| format!("{row:05},{}\n", "v".repeat(200))).collect();
    let csv = format!("id,what\n{rows}");
    let load = feed(&["load", &db, "--table", "t", "--format", "csv", "-"], csv.as_bytes());
    assert_eq!(load.status.code(), Some(0), "{}", text(&load.stderr));
    let done = json(&succeed(&["compact", &db, "--json"]));
    let length = fs::metadata(Path::new(&db).join("pages.terrace")).expect("the page file").len();
    assert_eq!(done["file_bytes_after"].as_u64(), Some(length), "{done}");
    assert!(done["file_bytes_before"].as_u64() > Some(length), "{done}");
    assert!(done["pages_moved"].is_u64(), "{done}");
    assert!(text(&succeed(&["compact", &db])).starts_with("page file "));
    let verify = json(&succeed(&["verify", &db, "--json"]));
    assert_eq!(verify["errors"].as_array().map(Vec::len), Some(0));
    assert_eq!(text(&succeed(&["dump", &db, "--table", "t"])).lines().count(), 20_000);
    let missing = terrace(&["compact", "no such database"]);
    assert_eq!(missing.status.code(), Some(1), "{}", text(&missing.stderr));
}

#[test]
fn a_flipped_byte_is_damage() {
    let (_directory, db) = folder();
    succeed(&["put", &db, "--table", "t", "key", "a value to be found again"]);
    let file = Path::new(&db).join("pages.terrace");
    let mut bytes = fs::read(&file).expect("the page file");
    let needle = b"a value to be found again";
    let mut hits = 0;
    for at in 0..bytes.len() - needle.len() {
        if bytes[at..].starts_with(needle) {
            bytes[at + 3] ^= 0x10;
            hits += 1;
        }
    }
    assert!(hits > 0, "the value is in the page file of a closed database");
    fs::write(&file, bytes).expect("damaged");

    let verify = terrace(&["verify", &db, "--json"]);
    assert_eq!(verify.status.code(), Some(3), "{}", text(&verify.stderr));
    let found = json(&verify.stdout);
    let damage = &found["errors"][0];
    assert!(damage["file"].as_str().is_some_and(|file| file.contains("pages.terrace")), "{found}");
    assert!(damage["page"].is_u64(), "{found}");
    let get = terrace(&["get", &db, "--table", "t", "key"]);
    assert_eq!(get.status.code(), Some(3));
    assert!(
        text(&get.stderr).contains("pages.terrace") && text(&get.stderr).contains("page"),
        "{}",
        text(&get.stderr)
    );
}

#[test]
fn a_busy_database_names_its_owner_and_a_killed_one_is_free() {
    let (_directory, db) = folder();
    succeed(&["put", &db, "--table", "t", "key", "value"]);
    // The owner waits on standard input with the database open.
    let hold = || {
        let mut owner =
            command(&["load", &db, "--table", "t", "--format", "jsonl", "-"]).spawn().expect("starts");
        let mut input = owner.stdin.take().expect("piped");
        // The process may have exited already, see below.
        let _ = input.write_all(b"{\"key\": \"other\", \"value\": \"1\"}\n");
        (owner, input)
    };
    let (mut owner, mut input) = hold();
    let began = Instant::now();
    let refused = loop {
        let output = terrace(&["put", &db, "--table", "t", "key", "value"]);
        if output.status.code() != Some(0) {
            break output;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the owner never opened the database");
        // The other command had the database open at that moment, and the owner was refused.
        if owner.try_wait().expect("asked").is_some() {
            (owner, input) = hold();
        }
        thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(said.contains(&format!("process {}", owner.id())), "{said}");
    owner.kill().expect("killed");
    owner.wait().expect("ended");
    drop(input);
    assert_eq!(text(&succeed(&["get", &db, "--table", "t", "key"])), "value\n");
    succeed(&["verify", &db]);
}

#[test]
fn a_path_that_is_no_database_is_said_and_left_alone() {
    let (directory, db) = folder();
    for line in [
        &["get", &db, "--table", "t", "k"][..],
        &["verify", &db],
        &["stat", &db],
        &["dump", &db, "--table", "t"],
    ] {
        let output = terrace(line);
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        assert!(text(&output.stderr).contains(&db), "{line:?}: {}", text(&output.stderr));
    }
    assert!(!Path::new(&db).exists(), "looking creates nothing");

    let file = directory.path().join("file");
    fs::write(&file, "not a directory").expect("written");
    let output = terrace(&["stat", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("file"), "{}", text(&output.stderr));

    let foreign = directory.path().join("foreign");
    fs::create_dir(&foreign).expect("created");
    fs::write(foreign.join("pages.terrace"), vec![7; 1 << 20]).expect("written");
    fs::write(foreign.join("log.terrace"), vec![7; 1 << 20]).expect("written");
    let output = terrace(&["stat", foreign.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("not a Terrace database"), "{}", text(&output.stderr));
    assert_eq!(fs::read(foreign.join("pages.terrace")).expect("still there"), vec![7; 1 << 20]);
}

#[test]
#[cfg(feature = "lab")]
fn a_workload_verifies_its_values_and_prints_one_object() {
    let (_directory, db) = folder();
    let line = "bench ycsb --workload a --records 2000 --value-size 100 --operations 4000 --threads 2 --dram 4MiB --json";
    let arguments: Vec<&str> = line.split(' ').chain(["--store", &db]).collect();
    let found = json(&succeed(&arguments));
    assert_eq!((&found["operations"], &found["errors"]), (&4000.into(), &0.into()));
    for reason in ["frames", "log_space", "latches", "gate"] {
        assert!(found["stalls"][reason].is_u64(), "{reason}: {found}");
    }
    assert!(found["verified"].as_u64() > Some(1000), "{found}");
}

#[test]
#[cfg(feature = "lab")]
fn a_measurement_goes_on_until_the_log_was_filled_as_often_as_asked_for() {
    let line = "bench ycsb --workload a --records 200 --value-size 1000 --dram 16MiB --log-max 1MiB \
                --durability buffered --rate update=1000 --seconds 100ms --json --log-cycles";
    let line: Vec<_> = line.split_whitespace().collect();
    let found = json(&succeed(&[&line[..], &["1"]].concat()));
    // A hundred updates do not fill the log. After ten times the duration it gives up.
    let (cycles, seconds) = (found["log_cycles"].as_f64().unwrap(), found["seconds"].as_f64().unwrap());
    assert!(cycles >= 1.0 || seconds >= 1.0, "{found}");
    let refused = terrace(&[&line[..], &["1", "--engine", "btreemap"]].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

#[test]
fn stat_has_everything_that_is_counted_as_text_for_prometheus() {
    let (_directory, db) = folder();
    succeed(&["put", &db, "--table", "t \"1\"", "a", "1"]);
    let output = succeed(&["stat", &db, "--prometheus"]);
    let said = text(&output);
    assert!(said.starts_with("# HELP terrace_format ") && said.ends_with('\n'), "{said}");
    assert!(said.contains("\nterrace_table_entries{table=\"t \\\"1\\\"\"} 1\n"), "{said}");
    assert!(said.contains("\n# TYPE terrace_fault_seconds histogram\n"), "{said}");
    let both = terrace(&["stat", &db, "--prometheus", "--json"]);
    assert_eq!(both.status.code(), Some(2), "{}", text(&both.stderr));
    let stat = json(&succeed(&["stat", &db, "--json"]));
    assert_eq!((&stat["tables"][0]["entries"], &stat["prometheus"]), (&1.into(), &serde_json::Value::Null));
}

#[test]
fn two_databases_have_two_identities_and_their_files_are_not_mixed() {
    let (_one, one) = folder();
    let (_other, other) = folder();
    succeed(&["put", &one, "--table", "t", "a", "1"]);
    succeed(&["put", &other, "--table", "t", "a", "2"]);
    let identity =
        |db: &str| fs::read(Path::new(db).join("pages.terrace")).expect("a page file")[16..32].to_vec();
    assert_ne!(identity(&one), identity(&other));
    fs::copy(Path::new(&one).join("log.terrace"), Path::new(&other).join("log.terrace")).expect("a copy");
    let refused = terrace(&["scan", &other, "--table", "t"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("another database"), "{}", text(&refused.stderr));
}

#[test]
fn a_file_is_loaded_and_loaded_again_with_little_memory_and_a_small_log() {
    let (directory, db) = folder();
    let file = directory.path().join("records.jsonl");
    let value = "x".repeat(256);
    let line = |number: u32| format!("{{\"key\":\"{number:09}\",\"value\":\"{value}\"}}\n");
    fs::write(&file, (0..9000).map(line).collect::<String>()).expect("a file to load");
    let file = file.to_str().expect("a path of text");
    for _ in 0..2 {
        succeed(&[
            "load",
            &db,
            "--table",
            "t",
            "--format",
            "jsonl",
            file,
            "--dram",
            "4MiB",
            "--log-max",
            "1MiB",
        ]);
    }
    let stat = json(&succeed(&["stat", &db, "--json"]));
    assert_eq!(stat["tables"][0]["entries"], 9000);
}

/// The files of a database in the middle of a load, as a kill leaves them. How much of the log is
/// in use does not depend on threads.
fn killed_while_loading(db: &str, dram: u64) {
    let writing = tempfile::tempdir().expect("a temporary directory");
    let builder = terrace::Db::builder().mode(terrace::Mode::Inline).dram(dram).log_max(64 << 20);
    let owner = builder.durability(terrace::Durability::Buffered).open(writing.path()).expect("opens");
    let table = owner.create_table("t").expect("created");
    for row in 0..24_000_u64 {
        let key = row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        table.put(format!("{key:020}"), "v".repeat(1000)).expect("put");
    }
    fs::create_dir(db).expect("created");
    for name in ["pages.terrace", "log.terrace"] {
        fs::copy(writing.path().join(name), Path::new(db).join(name)).expect("copied");
    }
}

/// With its original memory, recovery in memory may run out. With more memory, nothing changes on
/// disk, and recovery still has the same log to read.
#[test]
fn a_killed_database_is_looked_at_with_the_memory_it_had_and_with_more() {
    let (_directory, db) = folder();
    killed_while_loading(&db, 8 << 20);
    let stats = || json(&succeed(&["stat", &db, "--dram", "128MiB", "--json"]));
    let (one, two) = (stats(), stats());
    assert!(one["log_bytes"].as_u64() > Some(1 << 20), "{one}");
    assert_eq!(one["log_bytes"], two["log_bytes"]);
    assert!(one["tables"][0]["entries"].as_u64() > Some(10_000), "{one}");
    let stat = succeed(&["stat", &db, "--dram", "128MiB"]);
    assert!(text(&stat).contains("by a count that a crash left incomplete"), "{}", text(&stat));
    let opened = terrace::Db::builder().read_only(true).dram(8 << 20).open(&db);
    assert!(matches!(opened, Err(terrace::Error::NeedsRecovery { .. })), "{:?}", opened.err());
    let verify = terrace(&["verify", &db, "--json", "--dram", "8MiB"]);
    let told: Vec<_> = text(&verify.stderr).lines().map(str::to_owned).collect();
    // The attempt in memory leaves no line of its own.
    assert!(matches!(&told[..], [told] if told.contains("warning: too little --dram")), "{told:?}");
    assert_eq!(verify.status.code(), Some(0));
    let verify = json(&verify.stdout);
    assert!(verify["errors"] == serde_json::json!([]), "{verify}");
    assert!(verify["entries_checked"].as_u64() > Some(10_000), "{verify}");
    // This open recovered the database.
    assert!(stats()["log_bytes"].as_u64() < one["log_bytes"].as_u64());
}

/// One file without the other is damage: each proves that the other existed.
#[test]
fn half_a_database_is_damage_and_verify_says_so_in_its_object() {
    let (_directory, db) = folder();
    succeed(&["put", &db, "--table", "t", "key", "value"]);
    let (pages, log) = (Path::new(&db).join("pages.terrace"), Path::new(&db).join("log.terrace"));
    let whole = fs::read(&pages).expect("the page file");
    let verified = |what: &str, named: &str| {
        let verify = terrace(&["verify", &db, "--json"]);
        assert_eq!(verify.status.code(), Some(3), "{what}: {}", text(&verify.stderr));
        let found = json(&verify.stdout);
        assert_eq!(found["errors"].as_array().map(Vec::len), Some(1), "{what}: {found}");
        assert!(
            found["errors"][0]["file"].as_str().is_some_and(|file| file.contains(named)),
            "{what}: {found}"
        );
        let told = terrace(&["verify", &db]);
        assert!(told.status.code() == Some(3) && text(&told.stdout).contains(named), "{what}");
        let get = terrace(&["get", &db, "--table", "t", "key"]);
        assert!(get.status.code() == Some(3) && get.stdout.is_empty(), "{what}: {}", text(&get.stderr));
    };
    for length in [8192, 0] {
        fs::write(&pages, &whole[..length]).expect("cut");
        verified(&format!("a page file of {length} bytes"), "pages.terrace");
    }
    let mut flipped = whole.clone();
    flipped[..32768].iter_mut().skip(100).step_by(512).for_each(|byte| *byte ^= 1);
    fs::write(&pages, &flipped).expect("damaged");
    verified("both superblocks", "pages.terrace");
    // A crash can also leave one copy damaged: the other counts, and a finding reports it.
    let mut flipped = whole.clone();
    flipped[..8192].iter_mut().skip(100).step_by(512).for_each(|byte| *byte ^= 1);
    fs::write(&pages, &flipped).expect("damaged");
    let verify = terrace(&["verify", &db]);
    assert_eq!(verify.status.code(), Some(0), "{}", text(&verify.stderr));
    assert!(text(&verify.stderr).contains("one of the two superblocks"), "{}", text(&verify.stderr));
    fs::write(&pages, &whole).expect("whole again");
    let kept = fs::read(&log).expect("the log");
    fs::write(&log, [7; 8192]).expect("overwritten");
    verified("a log that is none", "log.terrace");
    fs::remove_file(&log).expect("removed");
    verified("no log", "log.terrace");
    fs::write(&log, kept).expect("whole again");
    let whole = terrace(&["verify", &db]);
    assert!(whole.status.code() == Some(0) && whole.stderr.is_empty(), "{}", text(&whole.stderr));
}

/// Readers get the same advice as writers.
#[test]
fn a_log_alone_is_said_to_lack_its_pages() {
    let (_directory, db) = folder();
    succeed(&["put", &db, "--table", "t", "key", "value"]);
    fs::remove_file(Path::new(&db).join("pages.terrace")).expect("removed");
    for line in [&["get", &db, "--table", "t", "key"][..], &["put", &db, "--table", "t", "key", "value"]] {
        let told = terrace(line);
        let said = text(&told.stderr);
        assert!(said.contains("log.terrace but no pages.terrace; restore a backup"), "{line:?}: {said}");
        assert_eq!(told.status.code(), Some(1), "{line:?}: {said}");
    }
}

#[test]
fn a_file_that_is_no_cache_is_said_and_left_alone() {
    let (directory, db) = folder();
    let file = directory.path().join("cache");
    let cache = format!("file:{},16MiB", file.display());
    fs::write(&file, [7; 20_000]).expect("something foreign");
    let put = terrace(&["put", &db, "--table", "t", "a", "1", "--cache", &cache]);
    let said = text(&put.stderr);
    assert_eq!(put.status.code(), Some(2), "{said}");
    assert!(said.contains("not a cache") && said.contains(&*file.to_string_lossy()), "{said}");
    assert_eq!(fs::read(&file).expect("it is left as it is"), [7; 20_000]);
}

#[test]
#[cfg(feature = "lab")]
fn a_cache_tells_what_it_did() {
    let (directory, db) = folder();
    let cache = format!("file:{},16MiB", directory.path().join("cache").display());
    let line = "bench ycsb --workload c --distribution uniform --records 6000 --value-size 1000 --operations 6000 \
                --dram 2MiB --log-max 1MiB --durability buffered --cache-eviction lru --store";
    let bench: Vec<&str> = line.split_whitespace().chain([&*db, "--cache", &cache]).collect();
    let shown = succeed(&bench);
    assert!(text(&shown).contains("\ncache lru: "), "{}", text(&shown));
    let found = json(&succeed(&[&bench[..], &["--json"]].concat()));
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let (hits, misses) = (number(&found["cache"]["hits"]), number(&found["cache"]["misses"]));
    let below = number(&found["cache"]["below"]);
    // Bytes served by the cache were not read from the store.
    let store = &found["tiers"]["store"];
    assert!(hits > 100, "{found}");
    assert!(number(&store["hits"]) <= misses + below + 100, "{store} {}", found["cache"]);
    assert!(number(&store["read_bytes"]) <= (misses + below + 500) * 4096, "{store} {}", found["cache"]);
}
