//! Paths for databases, ways to open them, and repeatable random numbers.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};

/// A seed, printed when its test fails.
pub struct Seed(pub u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}

pub fn random(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}

/// A directory for a database and its cache.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        terrace_sqlite::register(false).expect("SQLite takes the VFS");
        Folder(tempfile::tempdir().expect("a temporary directory"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn database(&self) -> PathBuf {
        self.path().join("x.db")
    }

    /// URI of the database with our VFS, a cache, and more parameters.
    pub fn uri(&self, more: &str) -> String {
        let path = self.path().display();
        format!("file:{path}/x.db?vfs=terrace&block_cache={path}/cache&block_cache_size=4MiB{more}")
    }

    pub fn cached(&self) -> Connection {
        self.cached_with("")
    }

    pub fn cached_with(&self, more: &str) -> Connection {
        small(Connection::open(self.uri(more)).expect("it opens"))
    }

    /// Opens through the system's VFS, like a program without the cache.
    pub fn plain(&self) -> Connection {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        small(Connection::open_with_flags_and_vfs(self.database(), flags, "unix").expect("it opens"))
    }
}

/// Minimises SQLite's own page cache.
fn small(db: Connection) -> Connection {
    db.execute_batch("pragma cache_size = 10").expect("a pragma");
    db
}

/// Parameters of a database that is slower than its cache, in counted time.
///
/// Otherwise the cache steps aside if its reads happen to take longer.
pub const SLOW_DISK: &str = "&latency_us=100&time=counted";

/// Expected rows.
pub type Model = BTreeMap<i64, Vec<u8>>;

pub const SCHEMA: &str = "create table if not exists t(id integer primary key, value blob);
    create index if not exists by_value on t(substr(value, 1, 12));";

/// Changes table and model at random in one transaction, and commits or rolls back.
pub fn change(db: &mut Connection, model: &mut Model, random: &mut SmallRng) -> rusqlite::Result<()> {
    let mut after = model.clone();
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for _ in 0..random.random_range(1..20) {
        let id = random.random_range(0..200);
        if random.random_bool(0.3) {
            transaction.execute("delete from t where id = ?", [id])?;
            after.remove(&id);
            continue;
        }
        // Some need overflow pages.
        let length = if random.random_bool(0.1) {
            random.random_range(5000..20_000)
        } else {
            random.random_range(0..600)
        };
        let value: Vec<u8> = (0..length).map(|_| random.random()).collect();
        transaction.execute("insert or replace into t values (?, ?)", params![id, value])?;
        after.insert(id, value);
    }
    if random.random_bool(0.8) {
        transaction.commit()?;
        *model = after;
    } else {
        transaction.rollback()?;
    }
    Ok(())
}

/// Rows of the table.
pub fn content(db: &Connection) -> rusqlite::Result<Model> {
    let mut statement = db.prepare("select id, value from t")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

pub fn check_integrity(db: &Connection) {
    let verdict: String =
        db.query_row("pragma integrity_check", [], |row| row.get(0)).expect("the check can be made");
    assert_eq!(verdict, "ok");
}

pub fn journal_mode(db: &Connection, mode: &str) {
    let got: String = db
        .query_row(&format!("pragma journal_mode = {mode}"), [], |row| row.get(0))
        .expect("the mode can be set");
    assert_eq!(got, mode);
}

/// Answer to `PRAGMA terrace_stats`.
pub fn stats(db: &Connection) -> String {
    db.query_row("pragma terrace_stats", [], |row| row.get(0)).expect("the VFS answers")
}

/// A number in that answer.
pub fn stat(db: &Connection, name: &str) -> f64 {
    let stats = stats(db);
    let rest = stats.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {stats}")).1;
    let end = rest.find([',', '}']).expect("an object");
    rest[..end].parse().expect("a number")
}
