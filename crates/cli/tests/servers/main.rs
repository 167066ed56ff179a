//! PostgreSQL and MariaDB, unmodified, on `terrace mount`, with kills.
//!
//! A ledger in this process notes what each session wrote and which commits were acknowledged. In
//! turn, the mount, the server or both are killed with signal 9. After each restart, the ledger and
//! the server's own checks must agree with the database: every acknowledged commit is there, every
//! other is whole or absent, and money that accounts transfer to each other keeps its sum.
//!
//! Between kills the server and the mount also restart cleanly, and an older copy of the database
//! is put back below, with the same names, sizes and times. Then the database must be in exactly
//! that older state: a block of the cache from the later one would be an error of the mount.
//!
//! The tests need root, `/dev/fuse` and Debian's packages `postgresql` and `mariadb-server`, hence
//! they are ignored by default; `.ci/run servers` runs them.
//!
//! `TERRACE_KILL_CYCLES` is the number of kills, `TERRACE_SEED` the seed. `TERRACE_NO_MOUNT=1` runs
//! the servers in a plain directory. `TERRACE_MOUNT_CACHE` is the size of the cache and
//! `TERRACE_MOUNT_FLAGS` has more flags of the command. `TERRACE_KEEP=1` leaves the files.

mod cycles;
mod ledger;
mod mariadb;
mod mounted;
mod postgres;
mod process;
mod sessions;

use std::path::Path;

/// A finding is a text for people.
type Checked<T = ()> = Result<T, String>;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str, default: u64) -> u64 {
    variable(name).map_or(default, |text| text.parse().expect("the variable is a number"))
}

fn text_of(path: &Path) -> String {
    path.to_str().expect("a path of text").to_owned()
}

#[test]
#[ignore = "needs root, /dev/fuse and PostgreSQL"]
fn postgres_survives_kills() {
    cycles::survives_kills::<postgres::Postgres>();
}

#[test]
#[ignore = "needs root, /dev/fuse and MariaDB"]
fn mariadb_survives_kills() {
    cycles::survives_kills::<mariadb::Mariadb>();
}

#[test]
#[ignore = "needs root and PostgreSQL"]
fn a_lost_page_is_found() {
    postgres::lost_page_is_found();
}
