//! The loadable extension in the `sqlite3` shell and in Python.
//!
//! A test without its program reports that and passes, unless `TERRACE_REQUIRE_SHELL` is set, as in
//! `.ci/run`. `TERRACE_KILLS` is the number of kills, 10 by default.

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Seed, random};
use rand::RngExt;

/// The extension, built together with these tests.
fn extension() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let library = program.parent().expect("a directory").join("libterrace_sqlite.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// The first of these programs that runs and can load extensions.
fn program(names: &[&str], probe: &[&str]) -> Option<String> {
    let runs = |name: &&str| {
        let status = Command::new(name).args(probe).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let found = names.iter().find(|name| runs(name)).map(|name| (*name).to_owned());
    if found.is_none() {
        assert!(std::env::var_os("TERRACE_REQUIRE_SHELL").is_none(), "there is none of {names:?}");
        println!("left out: there is none of {names:?}");
    }
    found
}

fn shell() -> Option<String> {
    program(&["sqlite3"], &["-version"])
}

/// Debian's first: others may lack extensions.
fn python() -> Option<String> {
    program(
        &["/usr/bin/python3", "python3"],
        &["-c", "import sqlite3; sqlite3.Connection.enable_load_extension"],
    )
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn uri(&self) -> String {
        let path = self.path().display();
        // A cache that happens to be slower than the database would step aside.
        let counted = "latency_us=100&time=counted";
        format!("file:{path}/x.db?vfs=terrace&block_cache={path}/cache&block_cache_size=8MiB&{counted}")
    }

    /// Commands that open the database with a cache.
    fn opening(&self) -> String {
        format!(".bail on\n.load {}\n.open '{}'\n{PATIENT}", extension().display(), self.uri())
    }

    /// The shell's answer to commands.
    fn ask(&self, shell: &str, commands: &str) -> String {
        let mut child = Command::new(shell)
            .arg(":memory:")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the shell runs");
        child.stdin.take().expect("a pipe").write_all(commands.as_bytes()).expect("it listens");
        let output = child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && errors.is_empty(), "{commands}{errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The shell's answer without the VFS.
    fn ask_plain(&self, shell: &str, commands: &str) -> String {
        self.ask(shell, &format!(".bail on\n.open '{}/x.db'\n{PATIENT}{commands}", self.path().display()))
    }
}

/// Waits for other processes' locks; needed for each database opened.
const PATIENT: &str = ".timeout 10000\n";

const ROWS: &str = "with recursive n(a) as (select 1 union all select a + 1 from n where a < 2000)";

#[test]
fn the_shell_tells_a_policy_of_its_queries() {
    let Some(shell) = shell() else { return };
    let folder = Folder::new();
    let commands = format!(
        ".bail on\n.load {}\n.open '{}&block_cache_policy=heuristicdb'\n\
         create table t(a);\nselect count(*) from t;\npragma terrace_stats;\n",
        extension().display(),
        folder.uri()
    );
    let answer = folder.ask(&shell, &commands);
    // SQLite answers the pragma before its statement begins.
    assert!(answer.contains("\"queries\":2"), "{answer}");
}

#[test]
fn an_unknown_parameter_is_logged_with_the_known_ones() {
    let Some(shell) = shell() else { return };
    let folder = Folder::new();
    let load = format!(".load {}", extension().display());
    let slips: [(&str, &[&str]); 3] = [
        (
            "block_cache_sise=4MiB",
            &[
                r#"unknown parameter "block_cache_sise""#,
                " _size ",
                " _trust ",
                " _write_budget",
                " _latency_us",
            ],
        ),
        ("cache_size=4MiB", &["did you mean block_cache_size?"]),
        // The names of all policies are longer than SQLite's log takes.
        ("block_cache_policy=nosuch", &[r#"no block_cache_policy "nosuch""#, "lists the policies"]),
    ];
    for (slip, parts) in slips {
        let open = format!(".open '{}&{slip}'", folder.uri());
        let output = Command::new(&shell).args([":memory:", ".log stdout", &load, &open]).output();
        let answer = String::from_utf8_lossy(&output.expect("the shell runs").stdout).into_owned();
        assert!(parts.iter().all(|part| answer.contains(part)), "{answer}");
    }
    assert!(!folder.path().join("x.db").exists(), "nothing is made by a mistake");
}

#[test]
fn the_shell_loads_and_reads() {
    let Some(shell) = shell() else { return };
    for mode in ["delete", "wal"] {
        let folder = Folder::new();
        let load = format!(
            "{}pragma journal_mode = {mode};\ncreate table t(id integer primary key, value text);
             insert into t {ROWS} select a, hex(randomblob(200)) from n;\n.output /dev/null\npragma wal_checkpoint(truncate);\n.output\n
             pragma cache_size = 5;\nselect sum(length(value)) from t;\nselect sum(length(value)) from t;
             pragma terrace_stats;\n.vfsname\n",
            folder.opening()
        );
        let answer = folder.ask(&shell, &load);
        let lines: Vec<_> = answer.lines().collect();
        assert_eq!(lines[..3], [mode, "800000", "800000"]);
        let hits = lines[3].split_once("\"hits\":").expect("statistics").1;
        assert!(
            hits.split(',').next().expect("a number").parse::<u64>().expect("a number") > 100,
            "{answer}"
        );
        assert!(lines[4].starts_with("terrace/unix"), "{answer}");
        assert_eq!(
            folder.ask_plain(&shell, "pragma integrity_check;\nselect count(*) from t;\n"),
            "ok\n2000\n"
        );
        let again = format!("{}select sum(length(value)) from t;\npragma terrace_stats;\n", folder.opening());
        let answer = folder.ask(&shell, &again);
        assert!(answer.starts_with("800000\n") && answer.contains("\"start\":\"warm\""), "{mode}: {answer}");
    }
}

/// A process with the cache and one without take turns; each sees the other's changes.
#[test]
fn two_processes_see_each_others_changes() {
    let (Some(shell), Some(python)) = (shell(), python()) else { return };
    for mode in ["delete", "wal"] {
        let folder = Folder::new();
        let schema = format!(
            "pragma journal_mode = {mode};\ncreate table t(id integer primary key, value integer);
             insert into t {ROWS} select a, 0 from n;\n"
        );
        folder.ask_plain(&shell, &schema);
        // Keeps its connection and cache over all changes of the other process.
        let script = format!(
            "import sqlite3, sys
loader = sqlite3.connect(':memory:')
loader.enable_load_extension(True)
loader.load_extension({:?})
db = sqlite3.connect({:?}, uri=True, isolation_level=None)
db.execute('pragma cache_size = 5')
for line in sys.stdin:
    print(db.execute(line).fetchone()[0], flush=True)
",
            extension().with_extension("").display().to_string(),
            folder.uri()
        );
        let mut child = Command::new(&python)
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python runs");
        let mut input = child.stdin.take().expect("a pipe");
        let mut output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let mut ask = |query: &str| {
            use std::io::BufRead;
            writeln!(input, "{query}").expect("it listens");
            let mut line = String::new();
            output.read_line(&mut line).expect("it answers");
            line.trim().to_owned()
        };
        for round in 1..20 {
            let checkpoint = if round % 3 == 0 { "pragma wal_checkpoint(truncate);" } else { "" };
            folder.ask_plain(
                &shell,
                &format!("update t set value = {round} where id % 7 = {round} % 7;\n{checkpoint}\n"),
            );
            let sum = "select sum(value) from t";
            let expected = folder.ask_plain(&shell, &format!("{sum};\n"));
            assert_eq!(ask(sum), expected.trim(), "{mode}, round {round}");
            ask(&format!("update t set value = value + 1 where id = {round} returning id"));
            let expected = ask(sum);
            assert_eq!(
                folder.ask_plain(&shell, &format!("{sum};\n")).trim(),
                expected,
                "{mode}, round {round}"
            );
        }
        // A third process gets the owner's id for this cache, and reads the same rows.
        let both = format!("{}pragma terrace_stats;\nselect sum(value) from t;\n", folder.opening());
        let answer = folder.ask(&shell, &both);
        let (told, sum) = answer.split_once('\n').expect("two lines");
        let reason = format!("/cache is in use by process {}\",\"cache\":null,", child.id());
        assert!(told.starts_with("{\"state\":\"uncached\"") && told.contains(&reason), "{told}");
        assert_eq!(sum.trim(), ask("select sum(value) from t"));
        assert_eq!(ask("pragma integrity_check"), "ok");
        drop(input);
        assert!(child.wait().expect("it ends").success());
    }
}

#[test]
fn a_killed_load_leaves_a_valid_database() {
    let Some(shell) = shell() else { return };
    let kills = std::env::var("TERRACE_KILLS").map_or(10, |kills| kills.parse().expect("a number"));
    for mode in ["delete", "wal"] {
        let seed = Seed(2);
        let (folder, mut random) = (Folder::new(), random(seed.0));
        folder.ask_plain(
            &shell,
            &format!("pragma journal_mode = {mode};\ncreate table t(id integer primary key, value blob);\n"),
        );
        let mut before = 0;
        for kill in 0..kills {
            let mut load = folder.opening()
                + "pragma cache_size = 20;\npragma synchronous = off;\npragma wal_autocheckpoint = 50;\n";
            for _ in 0..400 {
                load += &format!("insert into t {ROWS} select null, randomblob(a % 300) from n limit 100;\n");
                load += "update t set value = randomblob(100) where id % 50 = abs(random()) % 50;\n";
            }
            let mut child = Command::new(&shell)
                .arg(":memory:")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("the shell runs");
            let mut input = child.stdin.take().expect("a pipe");
            let feeder = std::thread::spawn(move || {
                // The kill comes while it reads its input.
                let _ = input.write_all(load.as_bytes());
            });
            std::thread::sleep(Duration::from_millis(random.random_range(10..250)));
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
            feeder.join().expect("it ends, too");
            let check = "pragma integrity_check;\nselect count(*) from t;\n";
            let cached = folder.ask(&shell, &(folder.opening() + check));
            let plain = folder.ask_plain(&shell, check);
            assert_eq!(cached, plain, "{mode}, kill {kill}");
            let count = plain.strip_prefix("ok\n").unwrap_or_else(|| panic!("{mode}, kill {kill}: {plain}"));
            let count: u64 = count.trim().parse().expect("a number");
            assert!(count >= before, "{mode}, kill {kill}: {count} rows of {before}");
            before = count;
            if count > 20_000 {
                folder.ask(&shell, &(folder.opening() + "delete from t;\nvacuum;\n"));
                before = 0;
            }
        }
        assert!(std::fs::metadata(folder.path().join("x.db")).expect("it is there").len() > 0);
    }
}
