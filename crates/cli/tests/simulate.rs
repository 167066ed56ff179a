//! `terrace simulate`: the traces it reads, and its output.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn simulate(trace: &Path, flags: &[&str]) -> Output {
    let command = &mut Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.arg("simulate").arg(trace).args(flags).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("output is text")
}

/// The object of a run that succeeds, and its warnings.
#[track_caller]
fn found(trace: &Path, flags: &[&str]) -> (Value, String) {
    let output = simulate(trace, &[&["--json"], flags].concat());
    let said = text(&output.stderr).to_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    (serde_json::from_slice(&output.stdout).expect("an object"), said)
}

/// A trace in a folder.
fn file(folder: &tempfile::TempDir, name: &str, content: impl AsRef<[u8]>) -> std::path::PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("a file");
    path
}

/// Requests, writes and different blocks.
fn counts(found: &Value) -> [u64; 3] {
    ["requests", "writes", "footprint"].map(|key| found[key].as_u64().expect("a number"))
}

const SMALL: &[&str] = &["--size", "1"];

#[test]
fn public_traces_keep_their_writes_and_disks() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("alibaba.csv", "device_id,opcode,offset,length,timestamp\n0,R,0,4096,1\n1,W,0,4096,2\n"),
        ("plain.csv", "0,R,0,4096,1577808000000046\n1,W,0,4096,1577808000000426\n"),
        ("hm.csv", "128166372003061629,hm,0,Read,0,4096,1\n128166372003061629,hm,1,Write,0,4096,1\n"),
        ("t.tencent", "1538323200,0,8,1,1283\n1538323200,0,8,0,1284\n"),
        ("LUN4.systor", "1456135200.0,0.001,W,0,0,4096\n1456135200.1,0.001,R,1,0,4096\n"),
    ] {
        let (found, said) = found(&file(&folder, name, content), SMALL);
        assert_eq!(counts(&found), [2, 1, 2], "{name}");
        assert!(!said.contains("not used"), "{name}: {said}");
    }
}

#[test]
fn columns_that_are_not_used_are_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "t.csv", "lba,size,latency\n0,4096,7\n8,4096,9\n");
    let (found, said) = found(&trace, SMALL);
    assert_eq!(counts(&found), [2, 0, 2]);
    assert_eq!(said.matches("columns that are not used: \"latency\"").count(), 1, "{said}");
    assert!(said.starts_with("terrace: warning: ") && said.contains("all requests count as reads"), "{said}");
}

#[test]
fn columns_are_named_by_the_user() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "t.csv", "0,0,8192,W,0.5\n1,0,8192,R,0.7\n");
    let refused = simulate(&trace, SMALL);
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(said.contains("\"8192\"") && said.contains("--columns") && said.contains("line 1"), "{said}");
    let (found, said) = found(&trace, &["--size=1", "--columns=device,sector,size,op,time_s"]);
    assert_eq!((counts(&found), said.as_str()), ([4, 2, 4], ""));
    let refused = simulate(&file(&folder, "t.lis", "1 1 0 0\n"), &["--size=1", "--columns=block"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--columns is for csv"), "{}", text(&refused.stderr));
}

#[test]
fn traces_of_other_programs_are_read_compressed_too() {
    let folder = tempfile::tempdir().unwrap();
    let log = "fio version 3 iolog\n0 a add\n1 a write 0 4096\n2 b read 0 4096\n";
    assert_eq!(counts(&found(&file(&folder, "t.fio", log), SMALL).0), [2, 1, 2]);
    // Version 1: number, length, segments, command, version, sector, time.
    let command = |command: u8, sector: u8| {
        let head = [7, 0, 0, 0, 0, 16, 0, 0, 1, 0, 0, 0, command, 0, 0, 1, sector];
        let mut record = [0; 32];
        record[..head.len()].copy_from_slice(&head);
        record
    };
    let commands = [command(0x28, 0), command(0x2a, 8)].concat();
    assert_eq!(counts(&found(&file(&folder, "t.vscsi", commands), SMALL).0), [2, 1, 2]);
    // `printf '0,R,0,4096,1\n1,W,0,4096,2\n' | gzip -n`, as a collection names its files.
    let trace = file(&folder, "t.csv.gz", ALIBABA_GZ);
    for flags in [&["--size=1", "--format=alibaba"][..], &["--size=1", "--format=alibaba.gz"]] {
        assert_eq!(counts(&found(&trace, flags).0), [2, 1, 2]);
    }
    let refused = simulate(&file(&folder, "u.csv.gz", &ALIBABA_GZ[..30]), &["--size=1", "--format=alibaba"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("damaged"), "{}", text(&refused.stderr));
}

const ALIBABA_GZ: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x033\xd0\x09\xd21\xd011\xb04\xd31\xe42\xd4\x09\x87q\x8c\xb8\x00\x0e\xe7\x9e3\x1a\x00\x00\x00";

/// 900 blocks that are read in turn twice, and 100 that are read 50 times more.
fn bent() -> String {
    let mut text = "0 1000 0 0\n".repeat(2);
    text.push_str(&"0 100 0 0\n".repeat(50));
    text
}

#[test]
fn sizes_are_blocks_bytes_or_shares() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "t.lis", bent());
    let (found, _) = found(&trace, &["--size=100,512KiB,50%", "--block-size=2KiB"]);
    let sizes: Vec<_> = found["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| {
            let number = |key: &str| result[key].as_u64().unwrap();
            (result["size"].as_str().unwrap(), number("cache_blocks"), number("cache_bytes"))
        })
        .collect();
    assert_eq!(sizes, [("100", 100, 204_800), ("512KiB", 256, 524_288), ("50%", 500, 1_024_000)]);
    for (size, reason) in
        [("1GiB", "larger than the trace's footprint"), ("1KiB", "no blocks"), ("64MB", "MiB")]
    {
        let refused = simulate(&trace, &["--size", size]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(reason), "{size}: {}", text(&refused.stderr));
    }
}

/// Results as policy and size, in order.
fn sizes(found: &Value) -> Vec<&str> {
    found["results"].as_array().unwrap().iter().map(|result| result["size"].as_str().unwrap()).collect()
}

#[test]
fn default_sizes_fit_small_traces() {
    let folder = tempfile::tempdir().unwrap();
    let lines = |blocks: u64| (0..blocks).map(|block| format!("{block}\n")).collect::<String>();
    for (blocks, simulated, told) in [
        (100, &["1%", "5%", "10%", "20%"][..], false),
        (99, &["5%", "10%", "20%"], true),
        (5, &["20%"], true),
        (4, &["1"], true),
        (1, &["1"], true),
    ] {
        let trace = file(&folder, "t.csv", lines(blocks));
        let (found, said) = found(&trace, &["--policy", "lru"]);
        assert_eq!(sizes(&found), simulated, "{blocks}");
        assert_eq!(said.matches("those below one block are skipped").count(), usize::from(told), "{said}");
        assert!(!said.contains("--size"), "{said}");
    }
    // What cannot drop a size names the option.
    let trace = file(&folder, "t.csv", lines(1));
    for flags in [&["--shard", "1/2"][..], &["--size", "1%"]] {
        let output = simulate(&trace, flags);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("--size"), "{}", text(&output.stderr));
    }
    assert!(text(&simulate(&trace, &["--shard", "1/2"]).stderr).contains("too small for the default sizes"));
}

#[test]
fn curves_have_bytes_and_a_knee() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "t.lis", bent());
    let page = folder.path().join("t.html");
    let flags = ["--curve", "--policy=lru,fifo", "--report", page.to_str().unwrap()];
    let (found, _) = found(&trace, &flags);
    for curve in found["curves"].as_array().unwrap() {
        let blocks = curve["points"].as_array().unwrap().iter().map(|point| point[0].as_u64().unwrap());
        let bytes = curve["bytes"].as_array().unwrap().iter().map(|bytes| bytes.as_u64().unwrap());
        assert!(blocks.map(|blocks| blocks * 4096).eq(bytes), "{curve}");
    }
    // LRU misses every read below 100 blocks, and the first 2,100 of 7,000 from there on.
    let knee = &found["curves"][0]["knee"];
    let blocks = knee["cache_blocks"].as_u64().unwrap();
    assert!((100..110).contains(&blocks), "{knee}");
    assert_eq!(knee["cache_bytes"], blocks * 4096);
    assert!((knee["miss_ratio"].as_f64().unwrap() - 0.3).abs() < 1e-9, "{knee}");
    let shown = simulate(&trace, &["--curve"]);
    let shown = text(&shown.stdout);
    let line = shown.lines().find(|line| line.starts_with("knee: ")).expect("a knee");
    assert!(
        line.starts_with(&format!("knee: {blocks} blocks, ")) && line.contains(" KiB, miss ratio 0.3000"),
        "{line}"
    );
    assert!(
        shown.contains("1,000   3.91 MiB") && shown.contains("blocks of 4 KiB, 3.91 MiB together"),
        "{shown}"
    );
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("knee: 404 KiB")
            && page.contains("The knee of each curve")
            && page.contains("cache size, bytes")
    );
    // Each block once: every size misses all.
    let straight = simulate(&file(&folder, "u.lis", "0 1000 0 0\n"), &["--curve"]);
    assert!(text(&straight.stdout).contains("no knee"), "{}", text(&straight.stdout));
}

#[test]
fn sizes_beyond_the_footprint_are_left_out_of_a_list() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "t.lis", "0 1000 0 0\n");
    let (found, said) = found(&trace, &["--size", "10%,64MiB,0.01%,2000,500"]);
    assert_eq!(sizes(&found), ["10%", "500"]);
    let skipped: Vec<_> = said.lines().filter(|line| line.contains("warning: skipped for")).collect();
    let why = ["64MiB, 16384 blocks is larger than", "0.01% has no blocks", "2000 blocks is larger than"];
    assert_eq!(skipped.len(), why.len(), "{said}");
    assert!(why.iter().zip(&skipped).all(|(why, line)| line.contains(why)), "{said}");
    let alone = simulate(&trace, &["--size", "2000"]);
    assert_eq!(alone.status.code(), Some(2));
}

/// A database whose pages have another size gets half of a cache given in bytes, or twice.
#[test]
fn pages_of_an_unknown_size_are_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "t.pgt", "r 1 0 7 -1\nr 2 0 8 -1\nr 3 0 9 -1\n");
    let warns = |flags: &[&str]| found(&trace, flags).1.contains("give their --block-size");
    assert!(warns(&["--size", "16KiB"]));
    assert!(!warns(&["--size", "2"]));
    assert!(!warns(&["--size", "8KiB", "--block-size", "4KiB"]));
}

#[test]
fn default_sizes_fit_a_sample() {
    let folder = tempfile::tempdir().unwrap();
    let lines = |blocks: u64| (0..blocks).map(|block| format!("{block}\n")).collect::<String>();
    let trace = file(&folder, "t.csv", lines(200));
    // 1% is 2 blocks, of which a tenth is none.
    let (found, said) = found(&trace, &["--sample", "0.1"]);
    assert_eq!(sizes(&found), ["5%", "10%", "20%"]);
    assert!(said.contains("those below one block of the sample are skipped"), "{said}");
    assert!(said.contains("estimated roughly: 5%, 10%, 20%;"), "{said}");
    let least = simulate(&file(&folder, "u.csv", lines(20)), &["--sample", "0.1", "--json"]);
    let object: Value = serde_json::from_slice(&least.stdout).expect("an object");
    assert_eq!(sizes(&object), ["5"]);
    let given = simulate(&trace, &["--sample", "0.1", "--size", "1%"]);
    assert_eq!(given.status.code(), Some(2));
}

#[test]
fn a_sample_of_runs_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "t.lis", "0 1000 0 0\n");
    let said = |flags: &[&str]| found(&trace, &[flags, &["--size", "400"]].concat()).1;
    let told = said(&["--sample=0.5", "--policy=lru,tac,sequential+lru"]);
    assert_eq!(
        told,
        "terrace: warning: a sample tears runs of blocks apart, so its errors have no bound for tac, sequential+lru\n"
    );
    assert_eq!(said(&["--sample=0.5", "--policy=lru"]), "");
    assert_eq!(said(&["--policy=tac"]), "");
}

#[test]
fn requests_and_the_blocks_they_access_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "t.lis", "0 3 0 0\n7 1 0 1\n");
    let (found, _) = found(&trace, SMALL);
    assert_eq!((&found["trace_requests"], &found["requests"]), (&2.into(), &4.into()));
    let shown = simulate(&trace, SMALL);
    assert!(text(&shown.stdout).contains(": 2 requests, 4 block accesses, 0 of them writes, for 4 blocks"));
    let single = simulate(&file(&folder, "u.lis", "0 1 0 0\n"), SMALL);
    assert!(text(&single.stdout).contains(": 1 request, 0 of them writes, for 1 block of 4 KiB"));
}

#[test]
fn many_curves_are_shown_by_their_knees() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "t.lis", bent());
    let shown = |policies: &str| {
        let output = simulate(&trace, &["--curve", "--policy", policies]);
        text(&output.stdout).to_owned()
    };
    let many = shown("all");
    let lines = many.lines().count();
    assert!(lines < 40 && many.contains("knee of") && many.contains("--report FILE"), "{many}");
    let one = shown("lru");
    let note = one.lines().find(|line| line.ends_with(" sizes; all with --json")).expect("a note");
    let all = serde_json::from_slice::<Value>(&simulate(&trace, &["--curve", "--json"]).stdout).unwrap();
    let all = all["curves"][0]["points"].as_array().unwrap().len();
    let points = one.lines().filter(|line| line.starts_with("  ") && line.contains("iB ")).count();
    assert_eq!(note, format!("{points} of {all} sizes; all with --json"), "{one}");
}

#[test]
fn a_trace_without_names_says_so_once() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "t.lis", "0 100 0 0\n");
    let output = simulate(&trace, &["--per-query", "--per-relation", "--size=5,10"]);
    let shown = text(&output.stdout);
    for what in ["queries", "relations"] {
        assert_eq!(shown.matches(&format!("the trace names no {what}")).count(), 1, "{shown}");
    }
    assert!(!shown.contains("none"), "{shown}");
}

#[test]
fn a_missing_trace_is_missing_whatever_its_ending() {
    for name in ["missing", "missing.csv", "missing.unknown"] {
        let output = simulate(Path::new(name), SMALL);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(name), "{said}");
        assert!(said.contains("No such file") && !said.contains("ending"), "{said}");
    }
}
