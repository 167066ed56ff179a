//! The built command under process limits: each gives a clear error and loses no file.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the command in a shell with `limits` set.
fn limited(limits: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new("sh")
        .args(["-c", &format!("{limits}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_terrace")])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell starts");
    // A failed load stops reading its input, which is no error here.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("the command ends")
}

fn succeeds(arguments: &[&str], input: &str) {
    let output = limited("true", arguments, input);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The error message under a limit.
fn complaint(limits: &str, arguments: &[&str], input: &str) -> String {
    let output = limited(limits, arguments, input);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // No exit code would mean death by a signal.
    assert_eq!(output.status.code(), Some(1), "{arguments:?} under {limits}: {said}");
    said
}

fn records(numbers: std::ops::Range<u32>) -> String {
    let line = |number: u32| format!("{{\"key\": \"{number:08}\", \"value\": \"{}\"}}\n", "x".repeat(2000));
    numbers.map(line).collect()
}

#[test]
fn a_limit_on_the_size_of_files_is_a_full_disk_for_every_command() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path of text").to_owned();
    let [db, backup, other] = ["db", "backup", "other"].map(path);
    let load = |db: &str| -> Vec<String> {
        let flags = ["--table", "t", "--format", "jsonl", "--dram", "8MiB", "--log-max", "1MiB", "-"];
        ["load", db].iter().chain(&flags).map(|word| (*word).to_owned()).collect()
    };
    fn words(line: &[String]) -> Vec<&str> {
        line.iter().map(String::as_str).collect()
    }
    succeeds(&words(&load(&db)), &records(0..3000));
    succeeds(&["backup", &db, &backup], "");
    // 4,096 units of 512 bytes: the log fits, and a third of the pages.
    let limit = "ulimit -f 4096";
    for line in [
        &words(&load(&other))[..],
        &["backup", &db, &other],
        &["restore", &backup, &other],
        &["repair", &db, &other, "--dram", "8MiB"],
    ] {
        let said = complaint(limit, line, &records(0..3000));
        let named =
            said.contains("disk full") && said.contains("ulimit -f") && said.contains("File too large");
        assert!(named, "{line:?}: {said}");
        match line[0] {
            "load" => std::fs::remove_dir_all(&other).expect("what was loaded goes"),
            _ => assert!(!Path::new(&other).exists(), "{line:?} leaves nothing"),
        }
    }
    // An existing database stays intact and grows again without the limit.
    let said = complaint(limit, &words(&load(&db)), &records(3000..6000));
    assert!(said.contains("disk full"), "{said}");
    succeeds(&["verify", &db], "");
    succeeds(&words(&load(&db)), &records(3000..4000));
    succeeds(&["verify", &db], "");
}

#[test]
fn a_limit_on_addresses_is_named_with_one_that_suffices() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let db = directory.path().join("db").to_str().expect("a path of text").to_owned();
    let put = ["put", &db, "--table", "t", "a", "1", "--dram", "8MiB"];
    let said = complaint("ulimit -v 4000000", &put, "");
    assert!(said.contains("ulimit -v") && !said.contains("lower the budget"), "{said}");
    let enough = said.split("limit to ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
    let output = limited(&format!("ulimit -v {enough}"), &put, "");
    assert_eq!(output.status.code(), Some(0), "{enough}: {}", String::from_utf8_lossy(&output.stderr));
    // Without a limit the budget itself is too large.
    let said = complaint("true", &[&put[..7], &["99999GiB"]].concat(), "");
    assert!(
        said.contains("--dram 99999GiB: ")
            && said.contains("97.7 TiB of memory for the DRAM tier")
            && said.contains("lower the budget"),
        "{said}"
    );
}
