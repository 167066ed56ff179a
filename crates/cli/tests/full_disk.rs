//! A file system that really fills up: 64 MiB, mounted by `.ci/run` and named in
//! `TERRACE_SMALL_DISK`.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const VALUE_BYTES: usize = 2000;

fn run(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    // A failed load stops reading its input, which is no error here.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("the command ends")
}

/// JSON lines of records with these numbers.
fn records(numbers: std::ops::Range<u32>) -> String {
    let line = |number: u32| {
        let fill = char::from(b'a' + (number % 26) as u8).to_string().repeat(VALUE_BYTES);
        format!("{{\"key\": \"{number:08}\", \"value\": \"{fill}\"}}\n")
    };
    numbers.map(line).collect()
}

#[test]
#[ignore = "needs a small file system of its own, named by TERRACE_SMALL_DISK"]
fn a_full_disk_is_said_and_passes_when_there_is_space() {
    let disk =
        PathBuf::from(std::env::var("TERRACE_SMALL_DISK").expect("TERRACE_SMALL_DISK names a directory"));
    let ballast = disk.join("ballast");
    fs::write(&ballast, vec![0xaa; 12 << 20]).expect("there is room for the ballast");
    let path = disk.join("db");
    let folder = path.to_str().expect("a path of text");
    let load = |numbers: std::ops::Range<u32>| {
        let flags = ["--dram", "8MiB", "--log-max", "4MiB"];
        let line = [&["load", folder, "--table", "t", "--format", "jsonl"][..], &flags, &["-"]].concat();
        run(&line, &records(numbers))
    };

    let some = load(0..1000);
    assert_eq!(some.status.code(), Some(0), "{}", String::from_utf8_lossy(&some.stderr));
    let full = load(1000..60_000);
    let said = String::from_utf8_lossy(&full.stderr).into_owned();
    assert_eq!(full.status.code(), Some(1), "{said}");
    assert!(said.contains("disk full") && said.contains("free some space"), "{said}");

    let verify = run(&["verify", folder], "");
    assert_eq!(verify.status.code(), Some(0), "{}", String::from_utf8_lossy(&verify.stderr));
    let value = run(&["get", folder, "--table", "t", "--raw", "00000999"], "");
    assert_eq!(value.stdout.len(), VALUE_BYTES, "{}", String::from_utf8_lossy(&value.stderr));

    fs::remove_file(&ballast).expect("the ballast goes");
    let more = load(60_000..62_000);
    assert_eq!(more.status.code(), Some(0), "{}", String::from_utf8_lossy(&more.stderr));
    let verify = run(&["verify", folder], "");
    assert_eq!(verify.status.code(), Some(0), "{}", String::from_utf8_lossy(&verify.stderr));
}
