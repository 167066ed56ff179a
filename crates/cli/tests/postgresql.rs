//! Claims on a PostgreSQL server: a small run, an end by a signal, and a server that cannot start.
//! Left out where the list of claims says that something is missing, unless
//! `TERRACE_REQUIRE_POSTGRESQL` is set.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A command whose temporary files are in `folder`.
fn terrace(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.arg("reproduce").args(arguments).env("TMPDIR", folder);
    command.args(["--postgresql-scale", "0.08", "--json"]);
    command
}

fn json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

/// A folder that the server's user may pass; none if a server cannot run here.
fn scene() -> Option<tempfile::TempDir> {
    let open = Permissions::from_mode(0o755);
    let scene = tempfile::Builder::new().permissions(open).tempdir().expect("a folder");
    let list = json(&terrace(scene.path(), &["list"]).output().expect("the command starts"));
    let claims = list["claims"].as_array().expect("claims");
    let note =
        claims.iter().find(|claim| claim["id"] == "U4-postgresql").expect("the claim")["note"].as_str();
    let note = note.expect("text");
    if note != "can be measured" {
        assert!(std::env::var_os("TERRACE_REQUIRE_POSTGRESQL").is_none(), "{note}");
        eprintln!("left out: a claim on PostgreSQL {note}");
        return None;
    }
    Some(scene)
}

/// Nothing of the run is there any more.
fn assert_clean(folder: &Path) {
    let name = folder.to_str().expect("text");
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0, "files are left");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    assert!(!mounts.contains(name), "a mount is left");
    let processes = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let left = lines.map(|line| String::from_utf8_lossy(&line).into_owned()).find(|line| line.contains(name));
    assert_eq!(left, None, "a process is left");
}

#[test]
fn a_small_run_has_a_verdict_and_leaves_nothing() {
    let Some(scene) = scene() else { return };
    let found = json(&terrace(scene.path(), &["N6-postgresql"]).output().expect("the command starts"));
    let claim = &found["claims"][0];
    assert_ne!(claim["verdict"], "not-here", "{claim}");
    let measured = claim["measured"].as_str().expect("text");
    // The table is larger than shared buffers, so the mount has seen requests.
    let has_mixes = ["100 % reads", "80 % reads", "50 % reads"].iter().all(|mix| measured.contains(mix));
    assert!(has_mixes && !measured.contains(" 0.0 page requests"), "{measured}");
    assert_clean(scene.path());
}

/// By then, PostgreSQL has planned all queries of TPC-H and run those of the first recording.
#[test]
fn a_signal_in_the_second_recording_ends_server_and_mount() {
    let Some(scene) = scene() else { return };
    let mut child =
        terrace(scene.path(), &["U5-postgresql"]).stdout(Stdio::null()).spawn().expect("it starts");
    let is_recorded = || {
        let folders = fs::read_dir(scene.path()).expect("a folder").flatten();
        folders.into_iter().any(|folder| folder.path().join("22.pgt").exists())
    };
    while !is_recorded() {
        assert!(child.try_wait().expect("our child").is_none(), "it ended too early");
        thread::sleep(Duration::from_millis(2));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_clean(scene.path());
}

#[test]
fn a_server_that_does_not_start_is_an_error_with_its_log() {
    let Some(scene) = scene() else { return };
    // A socket's path has at most 107 bytes.
    let folder = scene.path().join("long".repeat(25));
    fs::create_dir(&folder).expect("a folder");
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("a folder");
    let output = terrace(&folder, &["N6-postgresql"]).output().expect("the command starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{errors}");
    assert!(errors.contains("does not start; its log ends:") && errors.contains("is too long"), "{errors}");
    assert_clean(&folder);
}
