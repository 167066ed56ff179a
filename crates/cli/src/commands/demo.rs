//! `terrace demo`: the main job on real input, in under two minutes.
//!
//! 1. Load files of this machine, several times the memory budget.
//! 2. Serve a mixed workload in a child process and kill it, [`KILLS`] times. Recover after each
//!    kill and compare every record with the ledger of acknowledged commits.
//! 3. Verify every page and entry.
//! 4. Serve again and measure, then repeat with other memory sizes.
//! 5. Write the report.
//!
//! The child is this program with a hidden flag ([`victim`]). It announces commits on standard
//! output, which the parent reads into the ledger. If the parent dies first, the broken pipe ends
//! the child.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use terrace::Durability;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt::{self, Leftover};
use terrace_common::memory;
use terrace_common::output::{print, print_json};
use terrace_common::progress::Progress;
use terrace_common::report;
use terrace_common::store::{Opener, Settings, Store, with_database};
use terrace_common::tiers::{CommitArgs, TierArgs};

use crate::args::DemoArgs;
use crate::demo::corpus::Corpus;
use crate::demo::keys::Keys;
use crate::demo::ledger::{Audit, Ledger};
use crate::demo::serve::{self, Served};
use crate::demo::stamp;
use crate::demo::summary::{Kill, Size, Summary, Track};
use crate::signals;

/// The demo's table.
const TABLE: &str = "files";
/// Default for `--dram`: an eighth of the data.
const DRAM_BYTES: u64 = 16 << 20;
/// Number of kills.
const KILLS: u64 = 3;
/// Time a child serves before its kill.
const LIFE: Duration = Duration::from_secs(4);
/// Time limit for a child to start serving.
const PATIENCE: Duration = Duration::from_secs(60);
/// Duration of the undisturbed measurement.
const SERVE: Duration = Duration::from_secs(8);
/// Duration of the measurement per memory size.
const COMPARE: Duration = Duration::from_secs(3);
/// Memory sizes to compare, as multiples of the budget.
const MULTIPLES: [u64; 3] = [1, 4, 16];
/// Sampling interval of throughput and memory.
const TICK: Duration = Duration::from_millis(250);
/// Batch size of the load.
const BATCH_BYTES: usize = 256 << 10;

/// Runs the demo.
pub fn run(args: &DemoArgs, opener: &dyn Opener, output: &mut dyn Write) -> Outcome {
    report::check(&args.report)?;
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

/// The child process: opens the database, serves and announces commits until killed.
pub fn victim(args: &DemoArgs, opener: &dyn Opener) -> Outcome {
    let settings = Settings::new(&tiers(args), args.store.clone());
    let round = std::env::var(ROUND).ok().and_then(|round| round.parse().ok()).unwrap_or(1);
    with_database(opener, &settings, |database| {
        let table = database.table(TABLE, false)?;
        let keys = Keys::of(&*table)?;
        let plan = serve::Plan::new(args.threads.into(), args.tiers.seed, round);
        let serving = serve::serve(&*table, &keys, &plan, &AtomicBool::new(false), &|announcement| {
            // One write per line, so that a kill truncates only the last line.
            io::stdout().write_all(format!("{announcement}\n").as_bytes()).map_err(Failure::output)
        });
        serving.map(|_| ())
    })
}

fn tiers(args: &DemoArgs) -> TierArgs {
    let mut tiers = args.tiers.clone();
    tiers.memory.dram.get_or_insert(DRAM_BYTES);
    tiers
}

/// The child's round, which makes its versions unique.
const ROUND: &str = "TERRACE_DEMO_ROUND";

struct Demo<'a> {
    opener: &'a dyn Opener,
    settings: Settings,
    corpus: Corpus,
    began: Instant,
    /// Removes a temporary database at the end.
    _folder: Folder,
}

impl<'a> Demo<'a> {
    fn new(args: &DemoArgs, opener: &'a dyn Opener) -> Outcome<Demo<'a>> {
        let corpus = Corpus::find(args.data.as_deref(), args.data_size, args.tiers.seed)?;
        let folder = Folder::make(args.store.as_deref())?;
        Ok(Demo {
            opener,
            corpus,
            settings: Settings::new(&tiers(args), Some(folder.path.clone())),
            began: Instant::now(),
            _folder: folder,
        })
    }

    fn play(&self, args: &DemoArgs, output: &mut dyn Write) -> Outcome<Summary> {
        let mut say =
            |text: String| if args.output.json { Ok(()) } else { print(output, format_args!("{text}\n")) };
        let mut summary =
            Summary { source: self.corpus.source(), real: self.corpus.is_real(), ..Summary::default() };
        summary.budget_bytes = self.settings.tiers.memory.dram.unwrap_or(DRAM_BYTES);
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
        summary.verification =
            interrupt::at_once(|| with_database(self.opener, &settings, |database| database.verify()))?;
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
            summary.track.loaded();
            (summary.records, summary.data_bytes) = loaded;
            let keys = Keys::of(&*table)?;
            summary.records = keys.len();
            summary.keys_bytes = keys.size_bytes();
            Ok(keys)
        })
    }

    /// One kill: serves in a child, kills it, recovers and audits the records.
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
        let database = interrupt::at_once(|| self.opener.open(&self.settings))?;
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

    /// Runs one child and enters its announcements into the ledger.
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
            let ended = || ended.load(Ordering::SeqCst) || interrupt::check().is_err();
            let started = Instant::now();
            while operations() == 0 && !ended() && started.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(10));
                track.note_memory(memory::resident_bytes(Some(id)));
            }
            track.idle_until(self.now());
            let serving = Instant::now();
            let mut before = operations();
            while serving.elapsed() < LIFE && !ended() {
                thread::sleep(TICK);
                let now = operations();
                track.add(self.now(), now - before, memory::resident_bytes(Some(id)));
                before = now;
            }
            let early = ended();
            let status = child.kill()?;
            let followed = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // Ctrl-C ends the child too, perhaps within a line or before this process knows.
            interrupt::check()?;
            if let Some(signal) = signals::ended_by(status) {
                return Err(Failure::Interrupted(signal));
            }
            followed?;
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
            |error: io::Error| Failure::Work(format!("starting the serving process failed: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["demo", "--victim", "--store"]).args(&self.settings.store);
        // Acknowledged commits must be durable, whatever durability the rest of the demo uses.
        let commits = CommitArgs { durability: Durability::Sync };
        let tiers = TierArgs { commits, ..tiers(args) };
        command.args(tiers.flags()).arg(format!("--threads={}", args.threads));
        command.env(ROUND, round.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().map_err(failed)
    }

    fn measure(&self, args: &DemoArgs, keys: &Keys, summary: &mut Summary) -> Outcome {
        let plan = serve::Plan::new(args.threads.into(), self.settings.tiers.seed, KILLS + 1);
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
            let mut settings = self.settings.clone();
            settings.tiers.memory.dram = Some(dram);
            let mut plan = serve::Plan::new(args.threads.into(), self.settings.tiers.seed, KILLS + 2);
            plan.read_percent = 100;
            with_database(self.opener, &settings, |database| {
                let table = database.table(TABLE, false)?;
                // The first run warms the memory, the second measures it.
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

/// Loads a stamped corpus and returns records and bytes; `watch` gets the records since its last
/// call.
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
            interrupt::check()?;
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

/// Serves without a ledger; `watch` gets the operations of each tick.
fn serve_for(
    time: Duration,
    store: &dyn Store,
    keys: &Keys,
    plan: &serve::Plan,
    watch: &mut dyn FnMut(u64),
) -> Outcome<Served> {
    let began = Instant::now();
    let pause = || Some(time.saturating_sub(began.elapsed()).min(TICK)).filter(|pause| !pause.is_zero());
    serve_while(&pause, store, keys, plan, watch)
}

/// Serves until `pause` is over: it gives the time until the next call of `watch`.
fn serve_while(
    pause: &dyn Fn() -> Option<Duration>,
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
        let mut before = 0;
        while let Some(pause) = pause()
            && !serving.is_finished()
            && interrupt::check().is_ok()
        {
            thread::sleep(pause);
            let now = lock(&account).operations();
            watch(now - before);
            before = now;
        }
        stop.store(true, Ordering::SeqCst);
        let served = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        interrupt::check().map(|()| served)
    })
}

/// Enters lines from a pipe into the ledger until its writer exits.
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

/// Ignores poisoning: joining the panicked thread passes its panic on.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The child process, killed on drop.
struct Victim(Child);

impl Victim {
    /// Kills it, unless it has ended by itself, and says how it ended.
    fn kill(&mut self) -> Outcome<ExitStatus> {
        let failed = |error: io::Error| Failure::Work(format!("killing the serving process failed: {error}"));
        self.0.kill().map_err(failed)?;
        self.0.wait().map_err(failed)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may already be dead.
        let _ = self.kill();
    }
}

/// The database's directory; a temporary one is removed on drop.
struct Folder {
    path: PathBuf,
    temporary: Option<(Leftover, File)>,
}

/// Name of a temporary directory, before the number of its process.
const FOLDER: &str = "terrace-demo-";

impl Folder {
    fn make(given: Option<&Path>) -> Outcome<Folder> {
        if let Some(path) = given {
            let occupied = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
            if occupied || path.is_file() {
                return Err(Failure::Usage(format!(
                    "--store {} is not empty; name a new directory for the demo",
                    terrace_common::escape::path(path)
                )));
            }
            return Ok(Folder { path: path.to_owned(), temporary: None });
        }
        let temporary = std::env::temp_dir();
        let path = temporary.join(format!("{FOLDER}{}", std::process::id()));
        let failed = |error: io::Error| Failure::file("making the directory", &path, error);
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let leftover = Leftover::tree(&path);
        let held = File::open(&path).map_err(failed)?;
        held.lock().map_err(failed)?;
        remove_abandoned(&temporary, held.metadata().map_err(failed)?.uid());
        Ok(Folder { path, temporary: Some((leftover, held)) })
    }
}

/// Removes this user's directories of demos that were killed.
///
/// A demo holds a lock on its directory while it lives, also in another container. One that has
/// just begun may not have it yet, so its process must be gone too.
fn remove_abandoned(temporary: &Path, user: u32) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(FOLDER)?.parse::<u32>().ok());
        let is_gone = |process: u32| !Path::new(&format!("/proc/{process}")).exists();
        let is_ours = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user);
        if process.is_some_and(is_gone)
            && is_ours
            && let Ok(folder) = File::open(entry.path())
            && folder.try_lock().is_ok()
        {
            // What cannot be removed stays for the system to clean.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary.is_some() {
            // The system cleans temporary directories eventually.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use terrace_common::testing::MemoryStore;

    use super::*;

    #[test]
    fn a_corpus_is_loaded_served_and_followed() {
        let store = MemoryStore::default();
        let mut told = 0;
        let (records, bytes) =
            load(&store, &Corpus::Generated(1), 1 << 20, &mut |since| told += since).unwrap();
        assert!(records > 1000 && bytes > 1 << 20 && told <= records);
        let keys = Keys::of(&store).unwrap();
        assert_eq!(keys.len(), records);
        let operations = Cell::new(0);
        let plan = serve::Plan::new(2, 1, 1);
        let pause = || (operations.get() < 100).then_some(Duration::from_millis(1));
        let watch = &mut |since: u64| operations.set(operations.get() + since);
        let served = serve_while(&pause, &store, &keys, &plan, watch).unwrap();
        assert!(served.wrong == 0 && served.verified > 0);
        let mut ledger = Ledger::default();
        follow(&b"begin 0 1 1\ncommit 0\nbegin 0 2 1\ncomm"[..], &Mutex::new(&mut ledger)).unwrap();
        assert_eq!(ledger.committed, 1);
        assert!(follow(&b"nonsense\n"[..], &Mutex::new(&mut ledger)).is_err());
    }

    #[test]
    fn folders_of_killed_demos_are_removed_and_no_others() {
        let temporary = tempfile::tempdir().unwrap();
        let user = fs::metadata(temporary.path()).unwrap().uid();
        // No process has a number that large.
        let names =
            ["terrace-demo-4294967295", "terrace-demo-4294967294", "terrace-demo-x", "other-4294967295"];
        let living = format!("{FOLDER}{}", std::process::id());
        for name in names.into_iter().chain([&*living]) {
            fs::create_dir(temporary.path().join(name)).unwrap();
            fs::write(temporary.path().join(name).join("pages"), "x").unwrap();
        }
        let held = File::open(temporary.path().join(names[1])).unwrap();
        held.lock().unwrap();
        let left = || {
            let found = fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<String> = found.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        let all = left();
        remove_abandoned(temporary.path(), user + 1);
        assert_eq!(left(), all, "those of other users stay");
        remove_abandoned(temporary.path(), user);
        let kept: Vec<String> = all.into_iter().filter(|name| name != names[0]).collect();
        assert_eq!(left(), kept);
        drop(held);
        remove_abandoned(temporary.path(), user);
        assert!(!left().contains(&names[1].to_owned()));
    }

    #[test]
    fn a_folder_that_is_taken_is_refused_and_a_made_one_removed() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Folder::make(Some(directory.path())).is_ok());
        fs::write(directory.path().join("x"), "x").unwrap();
        assert_eq!(Folder::make(Some(directory.path())).err().map(|error| error.code()), Some(2));
        let made = Folder::make(None).unwrap().path.clone();
        assert!(!made.exists());
    }
}
