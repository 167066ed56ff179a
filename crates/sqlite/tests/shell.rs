//! The loadable extension in programs that were not built with it: the `sqlite3` shell and Python.
//!
//! Where there is no such program the tests say so and pass, unless `TERRACE_REQUIRE_SHELL` is set, as `.ci/run` does.
//! `TERRACE_KILLS` says how often a load is killed, 10 times if it is not set.

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Seed, random};
use rand::RngExt;

/// The extension, which is built together with these tests.
fn extension() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let library = program.parent().expect("a directory").join("libterrace_sqlite.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// The program at one of these places, if it runs and can load extensions.
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

/// Debian's own first: others may lack extensions.
fn python() -> Option<String> {
    program(
        &["/usr/bin/python3", "python3"],
        &["-c", "import sqlite3; sqlite3.Connection.enable_load_extension"],
    )
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn uri(&self) -> String {
        let path = self.path().display();
        format!("file:{path}/x.db?vfs=terrace&block_cache={path}/cache&block_cache_size=8MiB")
    }

    /// The commands that open the database with a cache.
    fn opening(&self) -> String {
        format!(".bail on\n.load {}\n.open '{}'\n{PATIENT}", extension().display(), self.uri())
    }

    /// What the shell answers to commands.
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

    /// What it answers when it knows of no cache.
    fn ask_plain(&self, shell: &str, commands: &str) -> String {
        self.ask(shell, &format!(".bail on\n.open '{}/x.db'\n{PATIENT}{commands}", self.path().display()))
    }
}

/// Another process that opens the database may have it locked for a moment. To be said of each database that is opened.
const PATIENT: &str = ".timeout 10000\n";

const ROWS: &str = "with recursive n(a) as (select 1 union all select a + 1 from n where a < 2000)";

#[test]
fn the_shell_tells_a_policy_of_its_queries() {
    let Some(shell) = shell() else { return };
    let place = Place::new();
    let commands = format!(
        ".bail on\n.load {}\n.open '{}&block_cache_policy=heuristicdb'\n\
         create table t(a);\nselect count(*) from t;\npragma terrace_stats;\n",
        extension().display(),
        place.uri()
    );
    let answer = place.ask(&shell, &commands);
    // The pragma is answered before it begins.
    assert!(answer.contains("\"queries\":2"), "{answer}");
}

#[test]
fn the_shell_loads_and_reads() {
    let Some(shell) = shell() else { return };
    for mode in ["delete", "wal"] {
        let place = Place::new();
        let load = format!(
            "{}pragma journal_mode = {mode};\ncreate table t(id integer primary key, value text);
             insert into t {ROWS} select a, hex(randomblob(200)) from n;\n.output /dev/null\npragma wal_checkpoint(truncate);\n.output\n
             pragma cache_size = 5;\nselect sum(length(value)) from t;\nselect sum(length(value)) from t;
             pragma terrace_stats;\n.vfsname\n",
            place.opening()
        );
        let answer = place.ask(&shell, &load);
        let lines: Vec<_> = answer.lines().collect();
        assert_eq!(lines[..3], [mode, "800000", "800000"]);
        let hits = lines[3].split_once("\"hits\":").expect("statistics").1;
        assert!(
            hits.split(',').next().expect("a number").parse::<u64>().expect("a number") > 100,
            "{answer}"
        );
        assert!(lines[4].starts_with("terrace/unix"), "{answer}");
        assert_eq!(
            place.ask_plain(&shell, "pragma integrity_check;\nselect count(*) from t;\n"),
            "ok\n2000\n"
        );
        let again = format!("{}select sum(length(value)) from t;\npragma terrace_stats;\n", place.opening());
        let answer = place.ask(&shell, &again);
        assert!(answer.starts_with("800000\n") && answer.contains("\"start\":\"warm\""), "{mode}: {answer}");
    }
}

/// One process with the cache, another without, in turns: each sees what the other did.
#[test]
fn two_processes_see_each_others_changes() {
    let (Some(shell), Some(python)) = (shell(), python()) else { return };
    for mode in ["delete", "wal"] {
        let place = Place::new();
        let schema = format!(
            "pragma journal_mode = {mode};\ncreate table t(id integer primary key, value integer);
             insert into t {ROWS} select a, 0 from n;\n"
        );
        place.ask_plain(&shell, &schema);
        // Keeps its connection, and with it the cache, over all changes of the other.
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
            place.uri()
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
            place.ask_plain(
                &shell,
                &format!("update t set value = {round} where id % 7 = {round} % 7;\n{checkpoint}\n"),
            );
            let sum = "select sum(value) from t";
            let expected = place.ask_plain(&shell, &format!("{sum};\n"));
            assert_eq!(ask(sum), expected.trim(), "{mode}, round {round}");
            ask(&format!("update t set value = value + 1 where id = {round} returning id"));
            let expected = ask(sum);
            assert_eq!(
                place.ask_plain(&shell, &format!("{sum};\n")).trim(),
                expected,
                "{mode}, round {round}"
            );
        }
        // A third one that asks for the same cache is told whose it is, and reads the same.
        let both = format!("{}pragma terrace_stats;\nselect sum(value) from t;\n", place.opening());
        let answer = place.ask(&shell, &both);
        assert_eq!(answer, format!("{{\"cache\":null}}\n{}\n", ask("select sum(value) from t")));
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
        let (place, mut random) = (Place::new(), random(seed.0));
        place.ask_plain(
            &shell,
            &format!("pragma journal_mode = {mode};\ncreate table t(id integer primary key, value blob);\n"),
        );
        let mut before = 0;
        for kill in 0..kills {
            let mut load = place.opening()
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
                // It is killed while it listens.
                let _ = input.write_all(load.as_bytes());
            });
            std::thread::sleep(Duration::from_millis(random.random_range(10..250)));
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
            feeder.join().expect("it ends, too");
            let check = "pragma integrity_check;\nselect count(*) from t;\n";
            let cached = place.ask(&shell, &(place.opening() + check));
            let plain = place.ask_plain(&shell, check);
            assert_eq!(cached, plain, "{mode}, kill {kill}");
            let count = plain.strip_prefix("ok\n").unwrap_or_else(|| panic!("{mode}, kill {kill}: {plain}"));
            let count: u64 = count.trim().parse().expect("a number");
            assert!(count >= before, "{mode}, kill {kill}: {count} rows of {before}");
            before = count;
            if count > 20_000 {
                place.ask(&shell, &(place.opening() + "delete from t;\nvacuum;\n"));
                before = 0;
            }
        }
        assert!(std::fs::metadata(place.path().join("x.db")).expect("it is there").len() > 0);
    }
}
