//! `terrace demo`: the main job on real input, in under two minutes.
//!
//! 1. Load the files of this machine, several times more than the memory allowed.
//! 2. Start a process that serves a mixed workload on it, and kill it in the middle, [`KILLS`] times over; after each
//!    kill recover, and compare every record with the ledger of what was acknowledged.
//! 3. Verify every page and entry.
//! 4. Serve again and measure; then once more with other sizes of memory, to show what memory buys.
//! 5. Write the report.
//!
//! The process that is killed is this program again, started with a hidden flag ([`victim`]). It announces its
//! commits on its standard output, which the parent reads into the ledger; when the parent dies first, the broken
//! pipe ends the child.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{print, print_json, with_database};
use crate::args::{DemoArgs, TierArgs};
use crate::demo::corpus::Corpus;
use crate::demo::ledger::{Audit, Ledger};
use crate::demo::serve::{self, Keys, Served};
use crate::demo::stamp;
use crate::demo::summary::{Kill, Size, Summary, Track};
use crate::failure::{Failure, Outcome};
use crate::memory;
use crate::progress::Progress;
use crate::store::{Durability, Opener, Settings, Store};

/// The table the records go to.
const TABLE: &str = "files";
/// Memory allowed when `--dram` says nothing: an eighth of the data.
const DRAM_BYTES: u64 = 16 << 20;
/// Times the serving process is killed.
const KILLS: u64 = 3;
/// How long each lives once it serves.
const LIFE: Duration = Duration::from_secs(4);
/// How long a process may take until it serves.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the last, undisturbed service is measured.
const SERVE: Duration = Duration::from_secs(8);
/// How long each size of memory is measured.
const COMPARE: Duration = Duration::from_secs(3);
/// Sizes of memory compared, as multiples of the one given.
const MULTIPLES: [u64; 3] = [1, 4, 16];
/// How often throughput and memory are looked at.
const TICK: Duration = Duration::from_millis(250);
/// Bytes written at once by the load.
const BATCH_BYTES: usize = 256 << 10;

/// Runs the demo.
pub fn run(args: &DemoArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    let demo = Demo::new(args, opener)?;
    let mut summary = demo.play(args, output)?;
    summary.report = args.report.display().to_string();
    summary.html().write(&args.report)?;
    match args.output.json {
        true => print_json(output, &summary)?,
        false => print(output, format_args!("\n{}", summary.text()))?,
    }
    summary.verdict()
}

/// The process that gets killed: opens the database, serves, and announces what it does until it ends.
pub fn victim(args: &DemoArgs, opener: &dyn Opener) -> Outcome {
    let settings = Settings {
        dram_bytes: Some(args.tiers.dram.unwrap_or(DRAM_BYTES)),
        ..args.tiers.settings(args.store.clone())
    };
    let round = std::env::var(ROUND).ok().and_then(|round| round.parse().ok()).unwrap_or(1);
    with_database(opener, &settings, |database| {
        let table = database.table(TABLE, false)?;
        let keys = Keys::of(&*table)?;
        let plan = serve::Plan::new(args.threads.into(), args.tiers.seed, round);
        let serving = serve::serve(&*table, &keys, &plan, &AtomicBool::new(false), &|announcement| {
            // One write for each line, so that a kill cuts at most the last one.
            io::stdout().write_all(format!("{announcement}\n").as_bytes()).map_err(Failure::output)
        });
        serving.map(|_| ())
    })
}

/// Tells the victim which life it has, so that its versions differ from those before.
const ROUND: &str = "TERRACE_DEMO_ROUND";

struct Demo<'a> {
    opener: &'a dyn Opener,
    settings: Settings,
    corpus: Corpus,
    began: Instant,
    /// Removes the database at the end, unless its place was given.
    _place: Place,
}

impl<'a> Demo<'a> {
    fn new(args: &DemoArgs, opener: &'a dyn Opener) -> Outcome<Demo<'a>> {
        let place = Place::make(args.store.as_deref())?;
        let dram = args.tiers.dram.unwrap_or(DRAM_BYTES);
        Ok(Demo {
            opener,
            corpus: Corpus::find(args.data.as_deref(), args.data_size, args.tiers.seed)?,
            settings: Settings { dram_bytes: Some(dram), ..args.tiers.settings(Some(place.path.clone())) },
            began: Instant::now(),
            _place: place,
        })
    }

    fn play(&self, args: &DemoArgs, output: &mut dyn Write) -> Outcome<Summary> {
        let mut say =
            |text: String| if args.output.json { Ok(()) } else { print(output, format_args!("{text}\n")) };
        let mut summary =
            Summary { source: self.corpus.source(), real: self.corpus.is_real(), ..Summary::default() };
        summary.budget_bytes = self.settings.dram_bytes.unwrap_or(DRAM_BYTES);
        say(format!("loading {}", summary.source))?;
        let keys = self.load(args.data_size, &mut summary)?;
        say(summary.load_line())?;
        let mut ledger = Ledger::default();
        for round in 1..=KILLS {
            let kill = self.kill(args, &keys, &mut ledger, round, &mut summary.track)?;
            say(kill.line(round))?;
            summary.kills.push(kill);
        }
        summary.account(&ledger);
        say("verifying every page and entry".to_owned())?;
        let settings = Settings { read_only: true, ..self.settings.clone() };
        summary.verification = with_database(self.opener, &settings, |database| database.verify())?;
        say("serving undisturbed, then with more memory".to_owned())?;
        self.measure(args, &keys, &mut summary)?;
        self.compare(args, &keys, &mut summary)?;
        summary.seconds = self.now();
        Ok(summary)
    }

    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn load(&self, bytes: u64, summary: &mut Summary) -> Outcome<Keys> {
        let settings = Settings { create: true, ..self.settings.clone() };
        with_database(self.opener, &settings, |database| {
            let table = database.table(TABLE, true)?;
            let began = Instant::now();
            let loaded = load(&*table, &self.corpus, bytes, &mut |records| {
                summary.track.add(self.now(), records, memory::resident_bytes(None));
            })?;
            summary.load_seconds = began.elapsed().as_secs_f64();
            (summary.records, summary.data_bytes) = loaded;
            let keys = Keys::of(&*table)?;
            summary.records = keys.len();
            summary.keys_bytes = keys.size_bytes();
            Ok(keys)
        })
    }

    /// Lets a process serve, kills it, recovers, and compares what is there with what was acknowledged.
    fn kill(
        &self,
        args: &DemoArgs,
        keys: &Keys,
        ledger: &mut Ledger,
        round: u64,
        track: &mut Track,
    ) -> Outcome<Kill> {
        let committed = ledger.committed;
        self.live(args, ledger, round, track)?;
        let mut kill = Kill {
            at_seconds: self.now(),
            operations: ledger.operations(),
            committed: ledger.committed - committed,
            ..Kill::default()
        };
        let began = Instant::now();
        let database = self.opener.open(&self.settings)?;
        kill.recovery_seconds = began.elapsed().as_secs_f64();
        kill.recovered_at_seconds = self.now();
        track.add(self.now(), 0, memory::resident_bytes(None));
        let table = database.table(TABLE, false)?;
        let audit: Audit = ledger.audit(&*table, keys)?;
        (kill.in_flight_applied, kill.in_flight_undone) = (audit.in_flight_applied, audit.in_flight_undone);
        (kill.faults, kill.descriptions) = (audit.faults, audit.descriptions);
        drop(table);
        database.close()?;
        Ok(kill)
    }

    /// The life of one victim, its announcements entered into the ledger.
    fn live(&self, args: &DemoArgs, ledger: &mut Ledger, round: u64, track: &mut Track) -> Outcome {
        let mut child = Victim(self.start(args, round)?);
        let id = child.0.id();
        let pipe = child.0.stdout.take().ok_or_else(|| Failure::Work("the child has no pipe".to_owned()))?;
        ledger.forget_progress();
        let account = Mutex::new(ledger);
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let followed = follow(BufReader::new(pipe), &account);
                ended.store(true, Ordering::SeqCst);
                followed
            });
            let operations = || lock(&account).operations();
            let started = Instant::now();
            while operations() == 0 && !ended.load(Ordering::SeqCst) && started.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(10));
                track.remember(memory::resident_bytes(Some(id)));
            }
            track.idle_until(self.now());
            let serving = Instant::now();
            let mut before = operations();
            while serving.elapsed() < LIFE && !ended.load(Ordering::SeqCst) {
                thread::sleep(TICK);
                let now = operations();
                track.add(self.now(), now - before, memory::resident_bytes(Some(id)));
                before = now;
            }
            let early = ended.load(Ordering::SeqCst);
            child.kill()?;
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            match early {
                true => {
                    Err(Failure::Work("the serving process ended before it was killed, see above".to_owned()))
                }
                false if lock(&account).operations() == 0 => Err(Failure::Work(format!(
                    "the serving process did nothing for {} s",
                    PATIENCE.as_secs()
                ))),
                false => Ok(()),
            }
        })
    }

    fn start(&self, args: &DemoArgs, round: u64) -> Outcome<Child> {
        let failed =
            |error: io::Error| Failure::Work(format!("starting the process to be killed failed: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["demo", "--victim", "--store"]).args(&self.settings.store);
        // What it acknowledges has to be durable, whatever the rest of the demo asks for.
        let durability = Durability::Sync;
        let tiers = TierArgs { dram: self.settings.dram_bytes, durability, ..args.tiers.clone() };
        command.args(tiers.flags()).arg(format!("--threads={}", args.threads));
        command.env(ROUND, round.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().map_err(failed)
    }

    fn measure(&self, args: &DemoArgs, keys: &Keys, summary: &mut Summary) -> Outcome {
        let plan = serve::Plan::new(args.threads.into(), self.settings.seed, KILLS + 1);
        with_database(self.opener, &self.settings, |database| {
            let table = database.table(TABLE, false)?;
            let track = &mut summary.track;
            track.idle_until(self.now());
            let served = serve_for(SERVE, &*table, keys, &plan, &mut |done| {
                track.add(self.now(), done, memory::resident_bytes(None));
            })?;
            summary.served(&served, SERVE.as_secs_f64());
            Ok(())
        })
    }

    fn compare(&self, args: &DemoArgs, keys: &Keys, summary: &mut Summary) -> Outcome {
        for multiple in MULTIPLES {
            let dram = summary.budget_bytes * multiple;
            let settings = Settings { dram_bytes: Some(dram), ..self.settings.clone() };
            let mut plan = serve::Plan::new(args.threads.into(), self.settings.seed, KILLS + 2);
            plan.read_percent = 100;
            with_database(self.opener, &settings, |database| {
                let table = database.table(TABLE, false)?;
                // The first run fetches what fits; the second one shows what that is worth.
                serve_for(COMPARE / 2, &*table, keys, &plan, &mut |_| {})?;
                let served = serve_for(COMPARE, &*table, keys, &plan, &mut |_| {})?;
                let reads_per_second = served.reads.count() as f64 / COMPARE.as_secs_f64();
                summary.wrong += served.wrong;
                summary.sizes.push(Size {
                    dram_bytes: dram,
                    reads_per_second,
                    latency_us: served.reads.summary(),
                });
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Loads a corpus, stamped; tells `watch` now and then how many records came since. Gives records and bytes.
fn load(store: &dyn Store, corpus: &Corpus, bytes: u64, watch: &mut dyn FnMut(u64)) -> Outcome<(u64, u64)> {
    let progress = Progress::bytes("load", bytes);
    let (mut records, mut total, mut told) = (0, 0, Instant::now());
    let (mut batch, mut batch_bytes, mut since) = (Vec::new(), 0, 0);
    let mut corpus = corpus.records(bytes).peekable();
    while let Some((key, content)) = corpus.next() {
        let value = stamp::stamp(&key, 0, &content);
        batch_bytes += key.len() + value.len();
        batch.push((key, value));
        if batch_bytes >= BATCH_BYTES || corpus.peek().is_none() {
            store.write(&batch)?;
            records += batch.len() as u64;
            since += batch.len() as u64;
            total += batch_bytes as u64;
            progress.set(total);
            batch.clear();
            batch_bytes = 0;
        }
        if told.elapsed() >= TICK {
            watch(since);
            (since, told) = (0, Instant::now());
        }
    }
    watch(since);
    Ok((records, total))
}

/// Serves for a while without a ledger; tells `watch` every tick how many operations came since.
fn serve_for(
    time: Duration,
    store: &dyn Store,
    keys: &Keys,
    plan: &serve::Plan,
    watch: &mut dyn FnMut(u64),
) -> Outcome<Served> {
    let stop = AtomicBool::new(false);
    let account = Mutex::new(Ledger::default());
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            serve::serve(store, keys, plan, &stop, &|announcement| {
                if matches!(announcement, crate::demo::ledger::Announcement::Done(..)) {
                    lock(&account).enter(announcement.clone()).map_err(Failure::Work)?;
                }
                Ok(())
            })
        });
        let (began, mut before) = (Instant::now(), 0);
        while began.elapsed() < time && !serving.is_finished() {
            thread::sleep(TICK.min(time.saturating_sub(began.elapsed())));
            let now = lock(&account).operations();
            watch(now - before);
            before = now;
        }
        stop.store(true, Ordering::SeqCst);
        serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Enters the lines of a pipe into the ledger until its writer is gone.
fn follow(mut pipe: impl BufRead, ledger: &Mutex<&mut Ledger>) -> Outcome {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = pipe.read_until(b'\n', &mut line);
        if read.map_err(|error| Failure::Work(format!("reading the child's pipe failed: {error}")))? == 0 {
            return Ok(());
        }
        lock(ledger).line(&line).map_err(Failure::Work)?;
    }
}

/// A lock whose holder panicked is taken all the same: the panic is passed on by whoever joins that thread.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The process to be killed; killed also when the demo fails.
struct Victim(Child);

impl Victim {
    fn kill(&mut self) -> Outcome {
        let failed = |error: io::Error| Failure::Work(format!("killing the serving process failed: {error}"));
        self.0.kill().map_err(failed)?;
        self.0.wait().map_err(failed)?;
        Ok(())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may be dead already, which is what is wanted.
        let _ = self.kill();
    }
}

/// The database's directory, removed at the end when it was made here.
struct Place {
    path: PathBuf,
    temporary: bool,
}

impl Place {
    fn make(given: Option<&Path>) -> Outcome<Place> {
        if let Some(path) = given {
            let occupied = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
            if occupied || path.is_file() {
                return Err(Failure::Usage(format!(
                    "--store {} is not empty; name a new directory for the demo",
                    crate::escape::path(path)
                )));
            }
            return Ok(Place { path: path.to_owned(), temporary: false });
        }
        let path = std::env::temp_dir().join(format!("terrace-demo-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| Failure::file("making the directory", &path, error))?;
        Ok(Place { path, temporary: true })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.temporary {
            // The system empties this place sooner or later anyway.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::MemoryStore;

    #[test]
    fn a_corpus_is_loaded_served_and_followed() {
        let store = MemoryStore::default();
        let mut told = 0;
        let (records, bytes) =
            load(&store, &Corpus::Generated(1), 1 << 20, &mut |since| told += since).unwrap();
        assert!(records > 1000 && bytes > 1 << 20 && told <= records);
        let keys = Keys::of(&store).unwrap();
        assert_eq!(keys.len(), records);
        let mut operations = 0;
        let plan = serve::Plan::new(2, 1, 1);
        let served =
            serve_for(Duration::from_millis(200), &store, &keys, &plan, &mut |since| operations += since)
                .unwrap();
        assert!(served.wrong == 0 && served.verified > 0 && operations > 0);
        let mut ledger = Ledger::default();
        follow(&b"begin 0 1 1\ncommit 0\nbegin 0 2 1\ncomm"[..], &Mutex::new(&mut ledger)).unwrap();
        assert_eq!(ledger.committed, 1);
        assert!(follow(&b"nonsense\n"[..], &Mutex::new(&mut ledger)).is_err());
    }

    #[test]
    fn a_place_that_is_taken_is_refused_and_a_made_one_removed() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Place::make(Some(directory.path())).is_ok());
        fs::write(directory.path().join("x"), "x").unwrap();
        assert_eq!(Place::make(Some(directory.path())).err().map(|error| error.code()), Some(2));
        let made = Place::make(None).unwrap().path.clone();
        assert!(!made.exists());
    }
}
