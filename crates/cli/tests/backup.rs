//! The commands `backup`, `restore` and `repair` on real files.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn terrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace")).args(arguments).output().expect("the command runs")
}

/// Runs a command that must exit with `code`; returns standard output and standard error.
fn ends_with(code: i32, arguments: &[&str]) -> (String, String) {
    let output = terrace(arguments);
    let text = |bytes| String::from_utf8(bytes).expect("output is text");
    let (said, complained) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complained}");
    (said, complained)
}

fn json(text: &str) -> serde_json::Value {
    assert_eq!(text.lines().count(), 1, "one object: {text}");
    serde_json::from_str(text).expect("one JSON object")
}

/// A directory and paths in it.
fn folders<const N: usize>(names: [&str; N]) -> (tempfile::TempDir, [String; N]) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let paths = names.map(|name| directory.path().join(name).to_str().expect("a path of text").to_owned());
    (directory, paths)
}

fn fill(db: &str) {
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "a value to be found again")] {
        ends_with(0, &["put", db, "--table", "t", key, value]);
    }
}

#[test]
fn a_backup_is_verified_and_restored() {
    let (_directory, [db, backup, restored]) = folders(["db", "backup", "restored"]);
    fill(&db);
    let copied = json(&ends_with(0, &["backup", &db, &backup, "--json"]).0);
    assert!(copied["pages"].as_u64() >= Some(3) && copied["page_file_bytes"].is_u64(), "{copied}");
    ends_with(0, &["put", &db, "--table", "t", "a", "changed later"]);
    let found = json(&ends_with(0, &["verify", &backup, "--json"]).0);
    assert_eq!((&found["pages_checked"], &found["errors"]), (&copied["pages"], &serde_json::json!([])));
    let told = json(&ends_with(0, &["restore", &backup, &restored, "--json"]).0);
    assert_eq!((&told["pages"], &told["errors"]), (&copied["pages"], &serde_json::json!([])));
    assert_eq!(told["entries_checked"], 3);
    assert_eq!(ends_with(0, &["get", &restored, "--table", "t", "a"]).0, "1\n");
    ends_with(0, &["put", &restored, "--table", "t", "d", "4"]);
    assert!(ends_with(0, &["verify", &restored]).0.contains("4 entries"));
    // Without --json the output is text.
    let (_other, [words, again]) = folders(["words", "again"]);
    assert!(ends_with(0, &["backup", &db, &words]).0.contains("pages"));
    assert!(ends_with(0, &["restore", &words, &again]).0.contains("3 entries"));
}

#[test]
fn what_is_no_backup_or_is_in_the_way_is_refused_by_name() {
    let (directory, [db, backup, nothing]) = folders(["db", "backup", "nothing"]);
    fill(&db);
    ends_with(0, &["backup", &db, &backup]);
    let before = fs::read(Path::new(&db).join("pages.terrace")).expect("a page file");
    for line in [["backup", &db, &backup], ["backup", &db, &db], ["restore", &backup, &db]] {
        let (_, complaint) = ends_with(1, &line);
        assert!(complaint.contains("not empty"), "{line:?}: {complaint}");
    }
    assert_eq!(fs::read(Path::new(&db).join("pages.terrace")).expect("a page file"), before);
    for (line, named) in [
        (["restore", &nothing, &db], "no such directory"),
        (["restore", &db, &nothing], "holds no backup"),
        (["backup", &nothing, &db], nothing.as_str()),
    ] {
        let (_, complaint) = ends_with(1, &line);
        assert!(complaint.contains(named), "{line:?}: {complaint}");
    }
    assert!(!Path::new(&nothing).exists(), "a refusal makes nothing");
    let (_, complaint) = ends_with(1, &["get", &backup, "--table", "t", "a"]);
    assert!(complaint.contains("terrace restore"), "{complaint}");
    let (_, complaint) = ends_with(1, &["put", &backup, "--table", "t", "a", "1"]);
    assert!(complaint.contains("terrace restore"), "{complaint}");
    // As after a kill.
    let half = directory.path().join("half");
    fs::create_dir(&half).expect("a directory");
    fs::write(half.join("pages.partial"), "cut off").expect("written");
    for command in ["verify", "restore"] {
        let mut line = vec![command, half.to_str().expect("text")];
        if command == "restore" {
            line.push(&nothing);
        }
        let (_, complaint) = ends_with(1, &line);
        assert!(complaint.contains("never finished"), "{complaint}");
    }
}

/// The unfinished remains of a restore, repair or backup: no command accepts them.
#[test]
fn what_was_never_finished_is_refused_by_name_and_stays() {
    for (what, files) in [
        ("restore", &["pages.restoring", "log.restoring"][..]),
        ("restore", &["pages.restoring", "log.terrace"]),
        ("restore", &["log.restoring"]),
        ("repair", &["pages.salvage", "log.salvage"]),
        ("repair", &["pages.repaired", "log.repaired", "pages.salvage", "log.salvage"]),
        ("repair", &["pages.repaired", "log.terrace"]),
        ("backup", &["pages.partial", "log.partial"]),
        ("backup", &["pages.partial", "log.backup"]),
    ] {
        let (_directory, [half, other]) = folders(["half", "other"]);
        fs::create_dir(&half).expect("a directory");
        let files: Vec<_> = files.iter().map(|file| Path::new(&half).join(file)).collect();
        files.iter().for_each(|file| fs::write(file, "cut off").expect("written"));
        for line in [
            &["put", &half, "--table", "t", "a", "1"][..],
            &["get", &half, "--table", "t", "a"],
            &["stat", &half],
            &["backup", &half, &other],
        ] {
            let (_, complaint) = ends_with(1, line);
            let named = complaint.contains("never finished") && complaint.contains(what);
            assert!(named && complaint.contains("again"), "{line:?}: {complaint}");
        }
        assert!(files.iter().all(|file| fs::read(file).is_ok_and(|bytes| bytes == b"cut off")), "{what}");
        assert!(!Path::new(&half).join("pages.terrace").exists());
    }
}

#[test]
fn a_damaged_backup_is_refused_with_its_own_exit_code() {
    let (_directory, [db, backup, restored]) = folders(["db", "backup", "restored"]);
    fill(&db);
    ends_with(0, &["backup", &db, &backup]);
    let file = Path::new(&backup).join("pages.backup");
    let mut bytes = fs::read(&file).expect("the backup's page file");
    let needle = b"a value to be found again";
    let at =
        bytes.windows(needle.len()).position(|window| window == needle).expect("the value is in the backup");
    bytes[at] ^= 1;
    fs::write(&file, bytes).expect("damaged");
    let (said, _) = ends_with(3, &["verify", &backup, "--json"]);
    let damage = &json(&said)["errors"][0];
    assert!(
        damage["page"].is_u64() && damage["file"].as_str().is_some_and(|file| file.contains("pages.backup")),
        "{said}"
    );
    let (_, complaint) = ends_with(3, &["restore", &backup, &restored]);
    assert!(complaint.contains("pages.backup") && complaint.contains("page"), "{complaint}");
    assert!(!Path::new(&restored).exists(), "nothing is left");
}

#[test]
fn a_damaged_database_is_repaired_into_a_new_one() {
    let (directory, [db, whole, rest]) = folders(["db", "whole", "rest"]);
    let csv = directory.path().join("in.csv");
    let rows: String = (0..3000).map(|row| format!("{row:05},value {row} of some length\n")).collect();
    fs::write(&csv, format!("id,what\n{rows}")).expect("written");
    ends_with(0, &["load", &db, "--table", "t", "--format", "csv", csv.to_str().expect("text")]);
    let told = json(&ends_with(0, &["repair", &db, &whole, "--json"]).0);
    assert_eq!(
        (&told["entries"], &told["consistent"], &told["lost_pages"]),
        (&3000.into(), &true.into(), &serde_json::json!([]))
    );
    assert_eq!(
        ends_with(0, &["dump", &whole, "--table", "t"]).0,
        ends_with(0, &["dump", &db, "--table", "t"]).0
    );

    let file = Path::new(&db).join("pages.terrace");
    let mut bytes = fs::read(&file).expect("the page file");
    let needle = b"value 1500 of some length";
    let hits: Vec<usize> =
        (0..bytes.len() - needle.len()).filter(|&at| bytes[at..].starts_with(needle)).collect();
    assert!(!hits.is_empty(), "the value is in the page file of a closed database");
    for at in hits {
        bytes[at] ^= 1;
    }
    fs::write(&file, &bytes).expect("damaged");
    let (said, complaint) = ends_with(3, &["repair", &db, &rest, "--json"]);
    let told = json(&said);
    assert!(told["lost_pages"][0]["page"].is_u64(), "{told}");
    let range = &told["tables"][0]["lost_ranges"][0];
    assert!(range["from"].as_str() <= Some("01500") && range["to"].as_str() > Some("01500"), "{told}");
    assert!((2900..3000).contains(&told["entries"].as_u64().expect("a number")), "{told}");
    assert!(complaint.contains("others may be lost"), "{complaint}");
    assert_eq!(fs::read(&file).expect("still there"), bytes, "the source is not written to");
    ends_with(0, &["verify", &rest]);
    assert_eq!(
        ends_with(0, &["get", &rest, "--table", "t", "00007"]).0.trim(),
        ends_with(0, &["get", &db, "--table", "t", "00007"]).0.trim()
    );
    let (_other, [words]) = folders(["words"]);
    let (said, _) = ends_with(3, &["repair", &db, &words]);
    assert!(said.contains("lost: table t, keys from") && said.contains("lost: page"), "{said}");
}
