//! The built command: its output and exit codes.

use std::process::{Command, Output};

fn terrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace")).args(arguments).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("output is text")
}

#[test]
fn help_and_version_succeed() {
    let help = terrace(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for command in [
        "demo",
        #[cfg(feature = "lab")]
        "bench",
        "load",
        "dump",
        "get",
        "put",
        "delete",
        "scan",
        "stat",
        "verify",
        "compact",
        "devices",
        #[cfg(feature = "mount")]
        "mount",
        "simulate",
        #[cfg(feature = "lab")]
        "reproduce",
    ] {
        assert!(text(&help.stdout).contains(command), "{command}");
    }
    assert!(text(&terrace(&["--version"]).stdout).starts_with("terrace "));
    assert!(!text(&terrace(&["demo", "--help"]).stdout).contains("--victim"));
}

#[test]
fn wrong_command_lines_exit_with_two_and_name_the_flag() {
    for (line, named) in [
        (&["nonsense"][..], "nonsense"),
        (&["stat", "db", "--dram", "64MB"], "MiB"),
        #[cfg(feature = "lab")]
        (&["bench", "ycsb", "--dram", "64MB"], "MiB"),
        #[cfg(feature = "lab")]
        (&["bench", "ycsb", "--workload", "q"], "--workload"),
        (&["get", "db", "key"], "--table"),
        (&["stat"], "DB"),
        (&["demo", "--config", "/no/such.toml"], "/no/such.toml"),
        (&["load", "db", "--table", "t", "--format", "xml", "f"], "--format"),
    ] {
        let output = terrace(line);
        assert_eq!(output.status.code(), Some(2), "{line:?}");
        assert!(output.stdout.is_empty());
        assert!(text(&output.stderr).contains(named), "{line:?}: {}", text(&output.stderr));
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|letter: char| !letter.is_alphanumeric()).any(|found| found == word)
}

#[test]
fn completions_are_scripts_of_their_shell_with_every_command() {
    for (shell, of_shell) in [
        ("bash", "complete -F _terrace"),
        ("zsh", "#compdef terrace"),
        ("fish", "complete -c terrace"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = terrace(&["completions", shell]);
        assert_eq!(script.status.code(), Some(0), "{shell}");
        let script = text(&script.stdout);
        for part in [of_shell, "get", "compact", "dram-nodes", "completions"] {
            assert!(script.contains(part), "{shell}: {part}");
        }
        assert!(!has_word(script, "victim"), "{shell}: hidden flags stay hidden");
    }
    let unknown = terrace(&["completions", "tcsh"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("bash"), "{}", text(&unknown.stderr));
}

#[test]
fn manual_pages_have_every_command() {
    let page = terrace(&["man"]);
    assert_eq!(page.status.code(), Some(0));
    let page = text(&page.stdout);
    assert!(page.contains(".TH terrace 1") && page.contains("terrace\\-get(1)"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("new");
    assert_eq!(terrace(&["man", pages.to_str().unwrap()]).status.code(), Some(0));
    let read = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(read("terrace.1").contains(".TH terrace 1"));
    assert!(read("terrace-get.1").contains("\\-\\-dram\\-nodes"), "{}", read("terrace-get.1"));
    assert!(has_word(&read("terrace-demo.1"), "victims") && !has_word(&read("terrace-demo.1"), "victim"));
    let file = pages.join("terrace.1");
    let failed = terrace(&["man", file.to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("terrace.1"), "{}", text(&failed.stderr));
}

#[test]
fn a_config_file_is_read_and_its_unknown_keys_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("c.toml");
    let folder = directory.path().to_str().unwrap();
    std::fs::write(&file, format!("json = true\nstore = {folder:?}\nthreads = 4\n")).unwrap();
    let output = terrace(&["devices", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["store"][0]["path"], folder);
    std::fs::write(&file, "thread = 4\n").unwrap();
    let output = terrace(&["devices", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("\"thread\""));
}

#[test]
fn devices_prints_one_object_and_no_progress_into_a_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let output = terrace(&["devices", "--json", "--store", directory.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["nodes"][0]["read_gb_s"].as_f64().unwrap() > 0.0);
    let output = terrace(&["devices", "--store", "/no/such/directory"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/no/such/directory"));
}

#[test]
#[cfg(not(feature = "lab"))]
fn commands_of_the_lab_are_absent_and_name_their_feature() {
    let help = terrace(&["--help"]);
    for (line, command) in [
        (&["bench"][..], "bench"),
        (&["bench", "ycsb", "--help"], "bench"),
        (&["bench", "ycsb", "--config", "/no/such.toml"], "bench"),
        (&["reproduce", "S1", "--json"], "reproduce"),
    ] {
        assert!(!text(&help.stdout).contains(command));
        let output = terrace(line);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{line:?}");
        let told = text(&output.stderr);
        assert!(told.contains(&format!("no {command}")) && told.contains("--features lab"), "{told}");
    }
}

#[test]
#[cfg(feature = "lab")]
fn each_claim_is_named_as_it_begins() {
    let output = terrace(&["reproduce", "C3", "--json"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), "terrace: C3 (1 of 1)\n"));
    assert_eq!(text(&terrace(&["reproduce", "list"]).stderr), "");
}

#[test]
fn a_value_that_begins_with_a_hyphen_is_no_flag() {
    for (line, told) in [
        (&["simulate", "t.lis", "--size", "-3"][..], "no size of a cache"),
        (&["simulate", "t.lis", "--size", "-3MiB", "--json"], "\"-3MiB\" is no size of a cache"),
        (&["stat", "db", "--dram", "-3MiB"], "does not begin with a number"),
        (&["stat", "db", "--dram", "-3"], "does not begin with a number"),
        (&["demo", "--threads", "-1"], "-1 is no whole number from 1 to 1024"),
        (&["stat", "db", "--dram", "1.5.2"], "1.5.2 is not a number"),
        // Text may be anything, so a flag after it is still a flag.
        (&["demo", "--store", "--json"], "a value is required for '--store"),
    ] {
        let output = terrace(line);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(told) && !said.contains("use '--"), "{line:?}: {said}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_demo() {
    let output = terrace(&["demo", "--report", "/no/such/directory/x.html"]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{said}");
    assert!(said.contains("writing the report /no/such/directory/x.html failed"), "{said}");
}
