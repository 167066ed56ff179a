//! A restart with a middle tier that stays, against one without: how long the open takes, and how
//! soon reads are as fast as before.
//!
//! ```text
//!   warm_restart FOLDER TIER MEBIBYTES
//! ```
//!
//! FOLDER gets a database and TIER, a file in `/dev/shm`, a tier of MEBIBYTES. The program starts
//! itself as a child that fills the database and ends without closing it. Then it opens the
//! database twice, with the tier and without its content, and reads from one thread.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use terrace::{Backend, Db, Durability};

const VALUE_BYTES: usize = 1000;

fn open(folder: &Path, tier: &Path, mebibytes: u64) -> terrace::Result<Db> {
    let middle = format!("shm:{},{mebibytes}MiB", tier.display()).parse().map_err(terrace::Error::Config)?;
    let builder = Db::builder().dram(64 << 20).backend(Backend::Frames).durability(Durability::Buffered);
    builder.middle(middle).policy("0,0,1,1".parse().map_err(terrace::Error::Config)?).open(folder)
}

/// Records that fill nine tenths of the tier.
fn records(mebibytes: u64) -> u64 {
    (mebibytes << 20) / 10 * 9 / (VALUE_BYTES as u64 * 3 / 2)
}

/// Fills the database, reads until frames are sealed, and ends at once.
fn fill(folder: &Path, tier: &Path, mebibytes: u64) -> terrace::Result<()> {
    let db = open(folder, tier, mebibytes)?;
    let table = db.create_table("t")?;
    for key in 0..records(mebibytes) {
        table.put(mixed(key).to_be_bytes(), [key as u8; VALUE_BYTES])?;
    }
    println!("before: {:.0} reads per second", reads(&db, mebibytes, Duration::from_secs(2))?);
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let middle = db.stats().middle.expect("there is a tier");
        let sealed = middle.persistent.expect("it stays").sealed;
        if sealed * 100 >= middle.used * 98 {
            println!("{sealed} of {} frames are sealed", middle.used);
            std::process::abort();
        }
    }
}

fn mixed(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Reads per second of uniform keys for a while.
fn reads(db: &Db, mebibytes: u64, time: Duration) -> terrace::Result<f64> {
    let (table, count) = (db.open_table("t")?, records(mebibytes));
    let (begun, mut done) = (Instant::now(), 0u64);
    while begun.elapsed() < time {
        for _ in 0..64 {
            done += 1;
            let key = mixed(done.wrapping_mul(2_654_435_761) % count);
            assert!(table.get(key.to_be_bytes())?.is_some(), "each key is there");
        }
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

fn restart(what: &str, folder: &Path, tier: &Path, mebibytes: u64) -> terrace::Result<()> {
    let begun = Instant::now();
    let db = open(folder, tier, mebibytes)?;
    let open_ms = begun.elapsed().as_secs_f64() * 1e3;
    let stats = db.stats().middle.and_then(|middle| middle.persistent).unwrap_or_default();
    let (adopted, adoption_ms) = (stats.adopted, stats.adoption_us / 1000);
    println!("{what}: open {open_ms:.0} ms, of it {adoption_ms} ms for {adopted} frames adopted");
    for half in 1..=4 {
        let rate = reads(&db, mebibytes, Duration::from_millis(500))?;
        println!("{what}: {rate:.0} reads per second up to {} ms", half * 500);
    }
    db.close()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, tier, mebibytes, child @ ..] = &arguments[..] else {
        return Err("give a folder, a file in /dev/shm and a number of mebibytes".into());
    };
    let (folder, tier, mebibytes) = (Path::new(folder), Path::new(tier), mebibytes.parse()?);
    if !child.is_empty() {
        return Ok(fill(folder, tier, mebibytes)?);
    }
    let mut program = Command::new(std::env::current_exe()?);
    program.args(&arguments).arg("fill").status()?;
    restart("warm", folder, tier, mebibytes)?;
    std::fs::remove_file(tier)?;
    restart("cold", folder, tier, mebibytes)?;
    std::fs::remove_file(tier)?;
    Ok(())
}
