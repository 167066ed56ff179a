//! N6 on PostgreSQL: pgbench's accounts, recorded on a mount and replayed in virtual time.
//!
//! Three mixes stand for table 2's kinds: reads, a fifth of updates, and half updates of random
//! accounts, as uniform as wtperf's. Shared buffers, page cache and cache have table 2's share of
//! the data, as far as the server's minimum allows. A run before the counted one fills the cache.
//!
//! `replay.rs` has N6's devices. As in N6, a transaction computes for [`Machine::operation_ns`] and
//! for each page that it touches. Beside it are figures with the processor time that a transaction
//! takes in PostgreSQL here. A written page that is cached is overwritten there, whereas WiredTiger
//! would free it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use terrace_common::failure::{Failure, Outcome};
use terrace_io::{PAGE_NS, Profile};

use super::cache::{CACHE_GB, KINDS, Large, Workload, bars, large_verdict};
use super::replay::{FastCache, Replayed, Requests, replay};
use super::setup::{ADMIT_ALL, Machine, NVCACHE};
use crate::claims::claim::{Measured, Setting, Verdict};
use crate::claims::postgresql::{
    NO_QUERY, PAGE_BYTES, Server, Uses, has_sessions, lack, not_here, open, queries_of,
};

/// Accounts: 2,000 pages with their index, about as many as a workload of N6 has.
const ACCOUNTS: f64 = 100_000.0;
/// Transactions of a run, after as many that are not counted.
const TRANSACTIONS: f64 = 32_000.0;
/// Sessions of pgbench, whose requests interleave.
const SESSIONS: u64 = 16;
/// Least shared buffers for them, bytes.
const BUFFERS_LEAST: u64 = 1 << 20;
const LOADING_BUFFERS: u64 = 64 << 20;
/// Names of runs in the recording.
const WARMUP: &str = "warm-up";
const COUNTED: &str = "counted";
/// Longest wait for the end of pgbench's sessions.
const PATIENCE: Duration = Duration::from_secs(10);

const READ: &str = "\\set id random(1, :accounts)\nSELECT abalance FROM pgbench_accounts WHERE aid = :id;\n";
const UPDATE: &str =
    "\\set id random(1, :accounts)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :id;\n";

/// Percent of reads in the mixes of [`KINDS`].
const READS: [u32; 3] = [100, 80, 50];

/// Pages that a transaction touches: root and leaf of the index, and the row's.
const PAGES_TOUCHED: u64 = 3;

/// The paper's ratio with a fifth of writes; with mostly writes it has 1.
const PAPER_MIXED: f64 = 1.12;
/// How far above the paper's the ratios with writes may be.
const ABOVE_MOST: f64 = 1.5;

/// What a mix's counted run did.
struct Mix {
    /// Page requests of a transaction.
    requests: f64,
    /// Processor time of a transaction.
    processor: Duration,
    row: Large,
    /// Throughput relative to no cache, with that processor time.
    ratio: f64,
}

/// Measures N6 with pgbench.
pub fn large(setting: &Setting) -> Outcome<Measured> {
    if let Some(lack) = lack("N6-postgresql") {
        return Ok(not_here(&lack));
    }
    let machine = Machine::of(setting)?;
    let scale = setting.postgresql_scale.unwrap_or(1.0);
    let server = Server::create()?;
    let bench = Bench::load(&server, scale)?;
    let mixes = KINDS.iter().zip(READS).map(|(workload, reads)| bench.run(*workload, reads, &machine));
    let mixes = mixes.collect::<Outcome<Vec<Mix>>>()?;
    let about = format!(
        "PostgreSQL {}, {} KiB of pages of pgbench's accounts, {} transactions of {SESSIONS} sessions a mix",
        server.version,
        bench.bytes >> 10,
        bench.transactions
    );
    Ok(judge(&mixes, &machine, &about))
}

/// A database of accounts.
struct Bench<'s> {
    server: &'s Server,
    accounts: u64,
    /// Of a run, in all sessions.
    transactions: u64,
    /// Of the accounts with their index.
    bytes: u64,
}

impl Bench<'_> {
    fn load(server: &Server, scale: f64) -> Outcome<Bench<'_>> {
        let accounts = (ACCOUNTS * scale).ceil() as u64;
        let transactions = ((TRANSACTIONS * scale) as u64 / SESSIONS).max(1) * SESSIONS;
        server.start(false, LOADING_BUFFERS)?;
        for (name, script) in [("read.sql", READ), ("update.sql", UPDATE)] {
            fs::write(server.path(name), script).map_err(failed)?;
        }
        let mut session = server.session()?;
        // As `pgbench -i` makes it, but of any size. The room in pages is for new versions of rows.
        session.ask(&format!(
            "create table pgbench_accounts (aid int not null, bid int, abalance int, filler char(84)) with \
             (fillfactor = 90);
             insert into pgbench_accounts select number, 1, 0, '' from generate_series(1, {accounts}) as number;
             alter table pgbench_accounts add primary key (aid);
             vacuum (freeze, analyze) pgbench_accounts;
             checkpoint;"
        ))?;
        let answer = session.ask("select pg_total_relation_size('pgbench_accounts');")?;
        let bytes = answer.first().and_then(|size| size.parse().ok());
        let bytes = bytes.ok_or_else(|| failed("the table has no size"))?;
        drop(session);
        server.end();
        Ok(Bench { server, accounts, transactions, bytes })
    }

    /// Records a mix with this many reads in a hundred, and replays it.
    fn run(&self, workload: Workload, reads: u32, machine: &Machine) -> Outcome<Mix> {
        let share = |gb: u64| self.bytes * gb / workload.data_gb;
        let buffers = share(workload.dram.engine_gb).max(BUFFERS_LEAST);
        let (requests, processor) = self.record(reads, buffers)?;
        let dram = Profile::named("dram").map_err(failed)?;
        let disk = machine.disk_bytes(share(workload.dram.page_cache_gb), dram, 0);
        let replayed = |policy: Option<&'static str>, computing: u64| {
            let (memory, bytes) = (machine.optane.clone(), share(CACHE_GB));
            let cache = policy.map(|policy| FastCache { policy, memory, bytes, dram_bytes: buffers });
            // Computation of a transaction is spread over its requests.
            let computing = computing * self.transactions / requests.counted().max(1) as u64;
            replay(&requests, workload.threads, computing, &disk, cache.as_ref())
        };
        let computing = machine.operation_ns + PAGES_TOUCHED * PAGE_NS;
        let none = replayed(None, computing)?;
        let [ours, admit_all] = [replayed(Some(NVCACHE), computing)?, replayed(Some(ADMIT_ALL), computing)?];
        let here = processor.as_nanos() as u64;
        let [none_here, ours_here] = [replayed(None, here)?, replayed(Some(NVCACHE), here)?];
        let gain = |none: &Replayed, cached: &Replayed| none.duration.div_duration_f64(cached.duration);
        let cache = &ours.cache;
        let row = Large {
            ratio: gain(&none, &ours),
            hit_ratio: cache.hit_ratio(),
            removed: (cache.invalidations + cache.evictions) as f64 / cache.admissions.max(1) as f64,
            admitted: (cache.admissions * cache.block_bytes) as f64 / requests.written_bytes().max(1) as f64,
            admit_all: gain(&none, &admit_all),
        };
        let ratio = gain(&none_here, &ours_here);
        let requests = requests.counted() as f64 / self.transactions as f64;
        Ok(Mix { requests, processor, row, ratio })
    }

    /// Requests of a mix, and the processor time of a transaction.
    fn record(&self, reads: u32, buffers: u64) -> Outcome<(Requests, Duration)> {
        let trace = self.server.path(&format!("{reads}.pgt"));
        self.server.record(&trace, &[WARMUP, COUNTED])?;
        let postmaster = self.server.start(true, buffers)?;
        self.server.mark(WARMUP)?;
        self.pgbench(reads, 1)?;
        self.server.mark(COUNTED)?;
        let before = processor(postmaster)?;
        self.pgbench(reads, 2)?;
        let processor = processor(postmaster)? - before;
        self.server.mark(NO_QUERY)?;
        // The server, then the mount, which writes the rest of the recording.
        self.server.end();
        self.server.end();
        let requests = Requests::of(queries_of(open(&trace)?, &Uses::new())?, PAGE_BYTES, COUNTED)?;
        Ok((requests, processor / self.transactions as u32))
    }

    fn pgbench(&self, reads: u32, seed: u64) -> Outcome {
        let mut pgbench = self.server.client("pgbench");
        pgbench.args(["-n", "-M", "prepared", "-j", "2", "-D", &format!("accounts={}", self.accounts)]);
        pgbench.args(["-c", &SESSIONS.to_string(), "-t", &(self.transactions / SESSIONS).to_string()]);
        pgbench.arg(format!("--random-seed={seed}"));
        for (name, weight) in [("read.sql", reads), ("update.sql", 100 - reads)] {
            if weight > 0 {
                pgbench.arg("-f").arg(format!("{}@{weight}", self.server.path(name).display()));
            }
        }
        self.server.run(pgbench.arg("postgres"))
    }
}

/// Processor time of the sessions that have ended. The server counts a session when it notices that
/// the process has ended.
fn processor(postmaster: u32) -> Outcome<Duration> {
    let since = Instant::now();
    while has_sessions(postmaster) {
        if since.elapsed() > PATIENCE {
            return Err(failed("sessions of the server do not end"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let stat = fs::read_to_string(format!("/proc/{postmaster}/stat")).map_err(failed)?;
    let ticks = ended_ticks(&stat).ok_or_else(|| failed("/proc/PID/stat has no times"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Clock ticks of ended children, in user and kernel mode, in `/proc/PID/stat`.
fn ended_ticks(stat: &str) -> Option<u64> {
    // The name in parentheses may have blanks. The state is the third field, the times are the 16th
    // and 17th.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(13);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// N6's verdict, which does not hold if mixes with writes gain far more than in the paper.
fn verdict(rows: &[Large]) -> Verdict {
    let is_near = rows[1].ratio <= ABOVE_MOST * PAPER_MIXED && rows[2].ratio <= ABOVE_MOST;
    match large_verdict(&rows[..1], &rows[1], &rows[2..]) {
        Verdict::Holds if !is_near => Verdict::Sign,
        found => found,
    }
}

fn judge(mixes: &[Mix], machine: &Machine, about: &str) -> Measured {
    let each = mixes.iter().zip(READS).map(|(mix, reads)| {
        format!(
            "{}, {:.1} page requests a transaction, with PostgreSQL's {} us of computation {:.2}",
            mix.row.told(&format!("{reads} % reads")),
            mix.requests,
            mix.processor.as_micros(),
            mix.ratio
        )
    });
    let rows: Vec<Large> = mixes.iter().map(|mix| mix.row).collect();
    let figure: Vec<Vec<f64>> = rows.iter().map(|row| vec![row.ratio, row.admit_all]).collect();
    Measured {
        measured: each.collect::<Vec<_>>().join("; "),
        verdict: verdict(&rows),
        note: format!(
            "{about}. Counted: reads and writes of pages beyond shared buffers, replayed over N6's devices by {}, {} and {} workers. \
             Not counted: the log, which is free in N6, and which session made a request. PostgreSQL overwrites a page where it is, \
             so none of the cached blocks is freed. N6's disk moves 16 KiB for a page of 8, too. The verdict is by N6's computation. \
             Holds: by N6's rule, and with writes at most {ABOVE_MOST} times the paper's ratios; sign: by that rule alone. {}",
            KINDS[0].threads,
            KINDS[1].threads,
            KINDS[2].threads,
            machine.told()
        ),
        figures: vec![bars("Large data on PostgreSQL, N6", &KINDS, &["NVCache", "admit-all"], &figure)],
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Work(format!("pgbench on a mount: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_by_gains_that_are_not_far_above_the_papers() {
        let machine = Machine::of(&Setting::default()).unwrap();
        let of = |ratios: [f64; 3]| {
            let mixes = ratios.map(|ratio| {
                let row = Large { ratio, hit_ratio: 0.9, removed: 0.0, admitted: 0.1, admit_all: 1.0 };
                Mix { requests: 1.5, processor: Duration::from_micros(100), row, ratio: 1.1 }
            });
            judge(&mixes, &machine, "about")
        };
        for (ratios, verdict) in [
            ([3.1, 1.1, 0.98], Verdict::Holds),
            ([3.1, 1.6, 1.4], Verdict::Holds),
            ([3.1, 1.7, 1.4], Verdict::Sign),
            ([3.1, 1.6, 1.6], Verdict::Sign),
            ([2.0, 1.1, 0.98], Verdict::Sign),
            ([3.1, 0.9, 0.98], Verdict::Fails),
            ([3.1, 1.1, 0.9], Verdict::Fails),
        ] {
            assert_eq!(of(ratios).verdict, verdict, "{ratios:?}");
        }
        let told = of([3.1, 1.1, 0.98]);
        assert!(told.measured.starts_with("100 % reads 3.10 times"), "{}", told.measured);
        assert!(told.note.contains("by 16, 100 and 20 workers"), "{}", told.note);
    }

    #[test]
    fn times_of_ended_children_are_found() {
        let stat = "17 (a b) S 1 17 17 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5 6 7";
        assert_eq!(ended_ticks(stat), Some(70));
        assert_eq!(ended_ticks("17"), None);
    }
}
