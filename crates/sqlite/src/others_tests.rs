//! No stale reads when connections of the default VFS change the database.
//!
//! SQLite treats two connections of one process like two processes: they lock each other out and
//! share only the file. So one thread can run all interleavings, by seed.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Folder, Model, SCHEMA, Seed, change, check_integrity, content, journal_mode, random, stat};
use rand::RngExt;
use rusqlite::{Connection, ErrorCode};

const STEPS: usize = 200;

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// A reader in a long transaction, and the rows that it must see.
struct Snapshot {
    db: Connection,
    sees: Option<Model>,
}

fn interleave(folder: &Folder, modes: &[&str], seed: u64) {
    let seed = Seed(seed);
    let mut random = random(seed.0);
    let mut model = Model::new();
    let setup = folder.plain();
    journal_mode(&setup, modes[0]);
    setup.execute_batch(SCHEMA).expect("tables");
    drop(setup);
    let open = |random: &mut rand::rngs::SmallRng| {
        let db = if random.random_bool(0.6) { folder.cached() } else { folder.plain() };
        db.busy_timeout(std::time::Duration::ZERO).expect("a timeout");
        let pages = random.random_range(5..40);
        db.execute_batch(&format!("pragma wal_autocheckpoint = {pages}")).expect("a pragma");
        db
    };
    let mut connections: Vec<Connection> = (0..4).map(|_| open(&mut random)).collect();
    let mut snapshots: Vec<Snapshot> = (0..2).map(|_| Snapshot { db: folder.cached(), sees: None }).collect();
    for step in 0..STEPS {
        let number = random.random_range(0..connections.len());
        let what = random.random_range(0..100);
        let outcome = match what {
            0..45 => change(&mut connections[number], &mut model, &mut random),
            45..70 => content(&connections[number])
                .map(|rows| assert_eq!(rows, model, "step {step}, connection {number}")),
            70..74 => {
                let how = ["passive", "full", "restart", "truncate"][random.random_range(0..4)];
                connections[number].query_row(&format!("pragma wal_checkpoint({how})"), [], |_| Ok(()))
            }
            74..76 => connections[number].execute_batch("vacuum"),
            76..78 if modes.len() > 1 => {
                let mode = modes[random.random_range(0..modes.len())];
                connections[number].query_row(&format!("pragma journal_mode = {mode}"), [], |_| Ok(()))
            }
            78..82 => {
                connections.remove(number);
                connections.push(open(&mut random));
                Ok(())
            }
            82..84 => {
                // Close all, which deletes the log, and open others.
                connections.clear();
                snapshots.clear();
                connections.extend((0..4).map(|_| open(&mut random)));
                snapshots.extend((0..2).map(|_| Snapshot { db: folder.cached(), sees: None }));
                Ok(())
            }
            _ => {
                let which = random.random_range(0..snapshots.len());
                let Snapshot { db, sees } = &mut snapshots[which];
                look(db, sees, &model, &mut random, step)
            }
        };
        if let Err(error) = outcome {
            assert!(is_busy(&error), "step {step}, action {what}: {error}");
        }
    }
    drop((connections, snapshots));
    let plain = folder.plain();
    check_integrity(&plain);
    assert_eq!(content(&plain).expect("rows"), model);
}

/// Begins a snapshot, reads it again, or ends it.
fn look(
    db: &Connection,
    sees: &mut Option<Model>,
    model: &Model,
    random: &mut rand::rngs::SmallRng,
    step: usize,
) -> rusqlite::Result<()> {
    match sees {
        None => {
            db.execute_batch("begin")?;
            match content(db) {
                Ok(rows) => {
                    assert_eq!(rows, *model, "step {step}: a new snapshot");
                    *sees = Some(rows);
                    Ok(())
                }
                Err(error) => {
                    db.execute_batch("rollback")?;
                    Err(error)
                }
            }
        }
        Some(seen) if random.random_bool(0.7) => {
            assert_eq!(content(db)?, *seen, "step {step}: a snapshot");
            Ok(())
        }
        Some(_) => {
            *sees = None;
            db.execute_batch("commit")
        }
    }
}

#[test]
fn in_rollback_mode() {
    for seed in 0..12 {
        interleave(&Folder::new(), &["delete"], seed);
    }
}

#[test]
fn in_wal_mode() {
    for seed in 100..116 {
        interleave(&Folder::new(), &["wal"], seed);
    }
}

#[test]
fn between_the_modes() {
    for seed in 200..212 {
        interleave(&Folder::new(), &["wal", "delete", "persist"], seed);
    }
}

#[test]
fn while_the_cache_was_closed() {
    for mode in ["delete", "wal"] {
        for seed in 0..20 {
            let seed = Seed(seed);
            let (folder, mut random, mut model) = (Folder::new(), random(seed.0), Model::new());
            let mut db = folder.cached();
            journal_mode(&db, mode);
            db.execute_batch(SCHEMA).expect("tables");
            for round in 0..8 {
                change(&mut db, &mut model, &mut random).expect("a change");
                assert_eq!(content(&db).expect("rows"), model, "{mode}, round {round}");
                drop(db);
                if random.random_bool(0.5) {
                    // Immediately: within one tick of the kernel's clock.
                    change(&mut folder.plain(), &mut model, &mut random).expect("a change");
                }
                db = folder.cached();
                assert_eq!(content(&db).expect("rows"), model, "{mode}, round {round}: opened again");
            }
        }
    }
}

/// Restores only the blocks file from a copy; the origin file must reject it.
#[test]
fn an_older_copy_of_the_blocks_is_not_believed() {
    for mode in ["delete", "wal"] {
        let (folder, mut random, mut model) = (Folder::new(), random(3), Model::new());
        let mut change_and_read = |folder: &Folder| {
            let mut db = folder.cached();
            journal_mode(&db, mode);
            db.execute_batch(SCHEMA).expect("tables");
            for _ in 0..20 {
                change(&mut db, &mut model, &mut random).expect("a change");
            }
            assert_eq!(content(&db).expect("rows"), model);
            model.clone()
        };
        change_and_read(&folder);
        change_and_read(&folder);
        let blocks = folder.path().join("cache/blocks");
        let older = std::fs::read(&blocks).expect("the blocks");
        let model = change_and_read(&folder);
        std::fs::write(&blocks, older).expect("the blocks");
        let db = folder.cached();
        assert_eq!(content(&db).expect("rows"), model, "{mode}");
        assert_eq!(stat(&db, "kept"), 0.0, "{mode}");
        check_integrity(&db);
    }
}

/// An idle connection keeps the cache but no lock, so others may delete the log.
#[test]
fn what_is_known_of_a_log_goes_with_the_last_lock() {
    let (folder, mut random, mut model) = (Folder::new(), random(6), Model::new());
    let mut plain = folder.plain();
    journal_mode(&plain, "wal");
    plain.execute_batch(SCHEMA).expect("tables");
    for round in 0..5 {
        change(&mut plain, &mut model, &mut random).expect("a change");
        drop(plain);
        let idle = Connection::open(folder.uri("")).expect("it opens");
        let reader = folder.cached();
        assert_eq!(content(&reader).expect("rows"), model, "round {round}");
        drop(reader);
        plain = folder.plain();
        change(&mut plain, &mut model, &mut random).expect("a change");
        drop(plain);
        assert_eq!(content(&idle).expect("rows"), model, "round {round}: the log was away");
        drop(idle);
        plain = folder.plain();
    }
}

#[test]
fn who_comes_second_has_no_cache_and_is_noticed() {
    for mode in ["delete", "wal"] {
        let folder = Folder::new();
        let mut one = folder.cached();
        journal_mode(&one, mode);
        one.execute_batch(SCHEMA).expect("tables");
        let (mut random, mut model) = (random(1), Model::new());
        change(&mut one, &mut model, &mut random).expect("a change");
        assert_eq!(content(&one).expect("rows"), model);
        // Other options make it another cache in the directory, as from another process.
        let mut two = folder.cached_with("&block_cache_policy=lru");
        let stats: String = two.query_row("pragma terrace_stats", [], |row| row.get(0)).expect("an answer");
        assert!(stats.ends_with(r#","cache":null}"#), "{stats}");
        for step in 0..50 {
            change(&mut two, &mut model, &mut random).expect("a change");
            if step % 3 == 0 && mode == "wal" {
                two.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(())).expect("a checkpoint");
            }
            assert_eq!(content(&one).expect("rows"), model, "{mode}, step {step}");
        }
        assert!(stat(&one, "emptied") > 0.0, "{mode}");
    }
}

/// Commits changes to pages already logged, then does nothing more, as if killed.
fn commit_and_idle() {
    let folder = Folder::new();
    let db = folder.cached_with("");
    journal_mode(&db, "wal");
    db.execute_batch("pragma synchronous = normal; pragma cache_size = 5; pragma wal_autocheckpoint = 0")
        .expect("pragmas");
    db.execute_batch(
        "create table u(id integer primary key, value blob);
        begin;
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 200)
            insert into u select i, randomblob(1000) from n;
        update u set value = zeroblob(1000);
        commit",
    )
    .expect("a transaction");
    let left = Folder::new();
    for name in ["x.db", "x.db-wal"] {
        std::fs::copy(folder.path().join(name), left.path().join(name)).expect("a copy");
    }
    let rows = left
        .plain()
        .query_row("select count(*) from u where value = zeroblob(1000)", [], |row| row.get::<_, i64>(0));
    assert_eq!(rows.ok(), Some(200), "what was committed is gone");
}

#[test]
fn what_was_committed_is_in_the_log_when_the_commit_returns() {
    commit_and_idle();
}

/// The tests above must catch each planted bug.
mod planted {
    use super::*;
    use crate::planted::{Bug, plant};

    const SEEDS_MAX: u64 = 100;

    fn is_caught(bug: Bug, modes: &[&str]) {
        for seed in 0..SEEDS_MAX {
            let folder = Folder::new();
            plant(Some(bug));
            let outcome =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| interleave(&folder, modes, seed)));
            plant(None);
            if outcome.is_err() {
                println!("{bug:?} is caught with seed {seed}");
                return;
            }
        }
        panic!("{bug:?} is not noticed in {SEEDS_MAX} runs");
    }

    #[test]
    fn catches_trust_the_head() {
        is_caught(Bug::TrustTheHead, &["delete"]);
    }

    #[test]
    fn catches_forget_checkpoints() {
        is_caught(Bug::ForgetCheckpoints, &["wal"]);
    }

    #[test]
    fn catches_forget_generations() {
        is_caught(Bug::ForgetGenerations, &["wal"]);
    }

    #[test]
    fn catches_keep_the_log() {
        plant(Some(Bug::KeepTheLog));
        let outcome = std::panic::catch_unwind(what_is_known_of_a_log_goes_with_the_last_lock);
        plant(None);
        assert!(outcome.is_err());
    }

    #[test]
    fn catches_trust_the_origin() {
        plant(Some(Bug::TrustTheOrigin));
        let outcome = std::panic::catch_unwind(while_the_cache_was_closed);
        plant(None);
        assert!(outcome.is_err());
    }

    #[test]
    fn catches_forget_the_session() {
        plant(Some(Bug::ForgetTheSession));
        let outcome = std::panic::catch_unwind(an_older_copy_of_the_blocks_is_not_believed);
        plant(None);
        assert!(outcome.is_err());
    }

    #[test]
    fn catches_hold_every_head() {
        plant(Some(Bug::HoldEveryHead));
        let outcome = std::panic::catch_unwind(commit_and_idle);
        plant(None);
        assert!(outcome.is_err());
    }

    #[test]
    fn catches_write_past_the_cache() {
        is_caught(Bug::WritePastTheCache, &["delete"]);
    }

    #[test]
    fn catches_keep_old_frames() {
        is_caught(Bug::KeepOldFrames, &["wal"]);
    }

    #[test]
    fn catches_keep_uncommitted_frames() {
        is_caught(Bug::KeepUncommittedFrames, &["wal"]);
    }
}
