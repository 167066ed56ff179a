//! `terrace bench restart` with real processes, which it kills.

use std::process::Command;

use serde_json::Value;

#[test]
fn lives_are_killed_and_each_restart_has_its_curve() {
    let folder = tempfile::tempdir().unwrap();
    let (store, cache) = (folder.path().join("db"), folder.path().join("cache"));
    let line = "bench restart --records 3000 --dram 4MiB --seconds 1s --tick 100ms --threads 1 --json";
    let run = |warmth: &std::path::Path| {
        Command::new(env!("CARGO_BIN_EXE_terrace"))
            .args(line.split(' '))
            .arg(format!("--store={}", store.display()))
            .arg(format!("--cache=file:{},8MiB", cache.display()))
            .arg(format!("--warmth={}", warmth.display()))
            .output()
            .unwrap()
    };
    let done = run(&cache);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&report["end"], &report["records"]), (&"killed".into(), &3000.into()));
    for kind in ["warm", "cold"] {
        let [restart] = &report[kind].as_array().unwrap()[..] else { panic!("{report}") };
        let (open, curve) = (restart["open_seconds"].as_f64().unwrap(), restart["curve"].as_array().unwrap());
        assert!(restart["rate_before"].as_f64().unwrap() > 0.0, "{report}");
        assert!(curve.len() >= 2 && curve[0][0].as_f64().unwrap() > open, "{report}");
    }
    // A file that is not there cannot make a restart cold.
    let failed = run(&folder.path().join("none"));
    assert!(!failed.status.success());
    assert!(String::from_utf8_lossy(&failed.stderr).contains("removing the warm pages"), "{failed:?}");
}
