//! `terrace bench tpcc` with real processes, which the test kills.
//!
//! The child says each new order that it has committed. After a kill, at least as many more are
//! there, and the consistency conditions hold.
//!
//! `TERRACE_KILL_CYCLES` is the number of kills, `TERRACE_SEED` the seed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

const SIZE: &str = "--warehouses=2 --items=300 --customers=30 --dram=4MiB --log-max=2MiB";

fn tpcc(store: &Path, more: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(["bench", "tpcc", "--json"]).args(SIZE.split(' ')).args(more.split_whitespace());
    command.arg(format!("--store={}", store.display()));
    command
}

fn report(command: &mut Command) -> Value {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("the variable is a number"))
}

#[test]
fn a_run_counts_new_orders_and_the_database_verifies() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("db");
    let loaded = report(&mut tpcc(&store, "--transactions 200 --threads 2 --middle simulated:cxl-2024,4MiB"));
    assert_eq!(
        (&loaded["warehouses"], &loaded["threads"], &loaded["conditions"]),
        (&2.into(), &2.into(), &11.into())
    );
    assert!(loaded["new_orders_per_minute"].as_f64().unwrap() > 0.0, "{loaded}");
    let new = loaded["by_kind"]["new_order"]["committed"].as_u64().unwrap();
    // 20 districts of 30 orders at first.
    assert_eq!(loaded["orders"].as_u64().unwrap(), 600 + new, "{loaded}");
    let again = report(&mut tpcc(&store, "--transactions 50 --loaded"));
    assert!(again["orders"].as_u64() > loaded["orders"].as_u64(), "{again}");
    let verified = Command::new(env!("CARGO_BIN_EXE_terrace")).arg("verify").arg(&store).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");

    let refused = tpcc(&store, "--loaded --warehouses 3").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("give --warehouses 2"), "{refused:?}");
}

#[test]
fn a_peer_runs_the_same_and_tells_how_it_isolates() {
    let folder = tempfile::tempdir().unwrap();
    let size = ["--warehouses=1", "--items=100", "--customers=10", "--dram=16MiB", "--transactions=100"];
    let rocksdb = cfg!(feature = "rocksdb").then_some("rocksdb");
    for engine in ["lmdb", "sqlite", "terrace"].into_iter().chain(rocksdb) {
        let run = |more: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
            command.args(["bench", "tpcc", "--json", "--threads=2", "--engine", engine]).args(size);
            command.arg("--store").arg(folder.path().join(engine)).args(more);
            command
        };
        let loaded = report(&mut run(&[]));
        assert_eq!((&loaded["engine"], &loaded["durability"]), (&engine.into(), &"sync".into()));
        assert!(loaded["isolation"].as_str().unwrap().starts_with("serializable"), "{loaded}");
        assert!(loaded["settings"]["version"].is_string() && loaded["settings"]["files"] == "as given");
        let new = loaded["by_kind"]["new_order"]["committed"].as_u64().unwrap();
        assert_eq!(loaded["orders"].as_u64().unwrap(), 100 + new, "{loaded}");
        assert_eq!(loaded["waits"].as_object().unwrap().is_empty(), engine != "terrace", "{loaded}");
        let again = report(&mut run(&["--loaded"]));
        assert!(again["orders"].as_u64() > loaded["orders"].as_u64(), "{again}");
        assert_eq!(report(&mut run(&["--check"]))["orders"], again["orders"]);
    }
    let refused = tpcc(&folder.path().join("db"), "--engine lmdb").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has no tiers"), "{refused:?}");
}

#[test]
fn conditions_and_acknowledged_orders_survive_kills() {
    let (cycles, seed) = (number("TERRACE_KILL_CYCLES", 3), number("TERRACE_SEED", 1));
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("db");
    report(&mut tpcc(&store, "--transactions 20"));
    let mut random = SmallRng::seed_from_u64(seed);
    let orders = || report(&mut tpcc(&store, "--check"))["orders"].as_u64().unwrap();
    let mut before = orders();
    for cycle in 0..cycles {
        let line = format!(
            "--loaded --threads 2 --seconds 600 --acknowledge --middle simulated:cxl-2024,4MiB --seed {}",
            seed + cycle
        );
        let mut child = tpcc(&store, &line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok).filter(|line| line == "new order");
        let wanted = random.random_range(1..200);
        let acknowledged = lines.by_ref().take(wanted).count();
        child.kill().unwrap();
        child.wait().unwrap();
        // Those still in the pipe were acknowledged too.
        let acknowledged = (acknowledged + lines.count()) as u64;
        assert!(acknowledged >= wanted as u64, "cycle {cycle}, seed {seed}: the child ended by itself");
        let now = orders();
        assert!(
            now >= before + acknowledged,
            "{now} orders, {before} and {acknowledged}; cycle {cycle}, seed {seed}"
        );
        before = now;
    }
}
