//! Durable puts of one thread: log in a file, in shared memory, and in simulated persistent memory.
//!
//! The last line is in virtual time: what the profile charges for lines and fences, beside what it
//! charges an SSD for one block. Run it with `--release`, on a machine that does nothing else.

use std::sync::Arc;
use std::time::Instant;

use terrace::{Db, LogMemory, MemoryDirectory, Mode, Profile, Result, Time, VirtualTime};

const PUTS: u32 = 20_000;

fn put_all(db: &Db) -> Result<()> {
    let table = db.open_or_create_table("t")?;
    (0..PUTS).try_for_each(|number| table.put((number % 1000).to_be_bytes(), [7; 100]))
}

fn measure(name: &str, log_memory: Option<LogMemory>) -> Result<f64> {
    let home = tempfile::tempdir_in(".").expect("the directory can be written");
    let builder = Db::builder().dram(64 << 20);
    let builder = match log_memory {
        Some(memory) => builder.log_memory(memory),
        None => builder,
    };
    let db = builder.open(home.path().join("db"))?;
    put_all(&db)?;
    let begun = Instant::now();
    put_all(&db)?;
    let rate = f64::from(PUTS) / begun.elapsed().as_secs_f64();
    println!("{name:24} {rate:10.0} durable puts per second, {} writes of the log", db.stats().log_flushes);
    db.close()?;
    Ok(rate)
}

fn main() -> Result<()> {
    let file = measure("log in a file", None)?;
    let memory = tempfile::tempdir_in("/dev/shm").expect("the system has shared memory");
    let ring = format!("shm:{}/ring", memory.path().display()).parse().expect("a log memory");
    let shared = measure("log in shared memory", Some(ring))?;
    println!("{:.1} times as many; they survive the process, but no power cut", shared / file);

    let time = Arc::new(VirtualTime::new(1));
    let builder = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(64 << 20);
    let builder = builder.simulated_time(Time::Virtual(Arc::clone(&time))).mode(Mode::Inline);
    let db = builder.log_memory("simulated:optane,8MiB".parse().expect("a log memory")).open("")?;
    put_all(&db)?;
    let before = time.elapsed_ns();
    put_all(&db)?;
    let put_ns = (time.elapsed_ns() - before) / u64::from(PUTS);
    let flash = Profile::named("nvme-flash").expect("a built-in profile");
    let block = flash.time_of(terrace_io::Direction::Write, terrace_io::Pattern::Random, 4096);
    println!("simulated:optane charges {put_ns} ns a put, nvme-flash {} ns a block", block.as_nanos());
    db.close()
}
