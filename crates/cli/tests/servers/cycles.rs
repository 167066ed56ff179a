//! Cycles of work, kill, restart and check, for any server.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::ledger::{Dialect, EVERYTHING, Found, Ledger};
use crate::mounted::{Mounted, PutBack, copy};
use crate::process;
use crate::sessions::{Sessions, SharedLedger, locked};
use crate::{Checked, number};

/// A database server whose files are in `Mounted::data`.
pub trait Server: Sized {
    const USER: &'static str;
    const DIALECT: &'static Dialect;

    /// Makes an empty database in the data folder, without starting the server.
    fn create(mounted: &Mounted) -> Checked<Self>;
    /// Makes and fills the tables.
    fn load(&self) -> Checked;
    /// Starts the server and waits until it answers. `variant` chooses settings.
    fn start(&mut self, mounted: &Mounted, variant: u64) -> Checked;
    /// Stops it in order.
    fn stop(&mut self) -> Checked;
    /// Kills it with all its processes.
    fn kill(&mut self);
    /// The end of its log.
    fn said(&self) -> String;
    /// A client that reads statements and prints fields between tabs; it ends at the first error.
    fn client(&self) -> Command;
    /// The server's own checks, while it runs.
    fn check(&self) -> Checked;
    /// Checks of the files in `data` while no server runs, after an orderly stop.
    fn check_stopped(&self, data: &Path) -> Checked;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Mount,
    Server,
    Both,
}

const VICTIMS: [Victim; 3] = [Victim::Mount, Victim::Server, Victim::Both];

pub struct Run<S> {
    pub server: S,
    pub mounted: Mounted,
    pub ledger: SharedLedger,
    pub random: SmallRng,
    cycles: u64,
    put_backs: usize,
    done: String,
}

pub fn survives_kills<S: Server>() {
    let (cycles, seed) = (number("TERRACE_KILL_CYCLES", 20), number("TERRACE_SEED", rand::random()));
    println!("TERRACE_SEED={seed} TERRACE_KILL_CYCLES={cycles}");
    let mut run = Run::<S>::new(seed, Mounted::is_plain()).unwrap_or_else(|wrong| panic!("{wrong}"));
    for cycle in 0..cycles {
        let since = Instant::now();
        let result = run.cycle();
        println!("cycle {cycle}: {}; {:.1} s", run.done, since.elapsed().as_secs_f64());
        if let Err(wrong) = result {
            let (done, summary) = (&run.done, locked(&run.ledger).summary());
            let (server, mount) = (run.server.said(), run.mounted.log());
            panic!("{wrong}\nseed {seed}, cycle {cycle} of {cycles}: {done}\n{summary}\n{server}\n{mount}");
        }
    }
    let acknowledged = locked(&run.ledger).acknowledged;
    println!("{cycles} kills, {} older copies put back, {acknowledged} commits", run.put_backs);
    assert!(acknowledged >= 10 * cycles, "{acknowledged} commits are too few for {cycles} cycles");
}

impl<S> Drop for Run<S> {
    fn drop(&mut self) {
        // A process that waits for a hanging mount does not die before the mount.
        self.mounted.kill();
    }
}

impl<S: Server> Run<S> {
    /// A new database with its first rows, with the server running.
    pub fn new(seed: u64, is_plain: bool) -> Checked<Self> {
        assert!(rustix::process::geteuid().is_root(), "the test needs root");
        let mut mounted = Mounted::new(S::USER, is_plain);
        mounted.start()?;
        let server = S::create(&mounted)?;
        let ledger = SharedLedger::new(Ledger::new().into());
        let random = SmallRng::seed_from_u64(seed);
        let mut run = Self { server, mounted, ledger, random, cycles: 0, put_backs: 0, done: String::new() };
        run.server.start(&run.mounted, 0)?;
        run.server.load()?;
        run.check()?;
        Ok(run)
    }

    /// Work until a kill, restart, checks, and a restart of another kind now and then. Begins and
    /// ends with a running server.
    fn cycle(&mut self) -> Checked {
        self.done.clear();
        let victim = VICTIMS[(self.cycles % 3) as usize];
        self.work_until_killed(victim)?;
        self.start()?;
        self.check()?;
        match self.cycles % 4 {
            1 => self.restart_in_order()?,
            3 => self.put_back_older_copy()?,
            _ => {}
        }
        self.cycles += 1;
        Ok(())
    }

    fn note(&mut self, text: &str) {
        if !self.done.is_empty() {
            self.done += ", ";
        }
        self.done += text;
    }

    pub fn ask(&self, statements: &str) -> Checked<String> {
        process::run(&mut self.server.client(), statements)
    }

    /// Starts the mount and the server after a kill.
    pub fn start(&mut self) -> Checked {
        self.mounted.start()?;
        self.server.start(&self.mounted, self.cycles)
    }

    fn sessions(&mut self) -> Sessions {
        Sessions::start(|| self.server.client(), S::DIALECT, &self.ledger, &mut self.random)
    }

    /// Lets sessions work for a while. That one of them ends is a finding.
    fn work(&mut self, sessions: &Sessions, time: Duration) -> Checked {
        let since = Instant::now();
        while since.elapsed() < time {
            if sessions.has_ended() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.mounted.check_running()
    }

    fn work_until_killed(&mut self, victim: Victim) -> Checked {
        let before = locked(&self.ledger).acknowledged;
        let sessions = self.sessions();
        let time = Duration::from_millis(self.random.random_range(100..2000));
        self.work(&sessions, time)?;
        if sessions.has_ended() {
            return sessions.end();
        }
        sessions.expect_kill();
        match victim {
            Victim::Server => {}
            Victim::Mount => {
                self.mounted.kill();
                // The server meets a dead file system for a while, and must be killed after all.
                thread::sleep(Duration::from_millis(self.random.random_range(0..400)));
            }
            Victim::Both => self.mounted.kill(),
        }
        self.server.kill();
        sessions.end()?;
        let commits = locked(&self.ledger).acknowledged - before;
        self.note(&format!("{victim:?} killed after {} ms, {commits} commits", time.as_millis()));
        Ok(())
    }

    /// Work that ends without a kill.
    pub fn work_in_order(&mut self, time: Duration) -> Checked {
        let sessions = self.sessions();
        self.work(&sessions, time)?;
        sessions.end()
    }

    /// The database agrees with the ledger and with itself.
    pub fn check(&mut self) -> Checked {
        let found = Found::read(&self.ask(EVERYTHING)?)?;
        locked(&self.ledger).check(&found)?;
        self.server.check()
    }

    /// Server and mount end in order and start again, with a warm cache.
    fn restart_in_order(&mut self) -> Checked {
        self.server.stop()?;
        self.server.check_stopped(&self.mounted.data())?;
        self.mounted.check_same()?;
        let by_signal = self.random.random();
        self.mounted.end(by_signal)?;
        self.server.check_stopped(&self.mounted.lower_data())?;
        self.mounted.start()?;
        // Before the server reads, which would fill the kernel's cache.
        self.mounted.check_same()?;
        self.start_server()?;
        self.check()?;
        let how = if by_signal { "signal" } else { "umount" };
        self.note(&format!("remounted after {how}"));
        Ok(())
    }

    fn start_server(&mut self) -> Checked {
        self.server.start(&self.mounted, self.cycles)
    }

    fn stop_or_kill_server(&mut self) -> Checked<&'static str> {
        if self.random.random() {
            self.server.kill();
            return Ok("killed");
        }
        self.server.stop().map(|()| "stopped")
    }

    /// Saves the database, works on, and puts the saved files back below. They keep names, sizes
    /// and modification times. The mount is down or up, the server is down.
    fn put_back_older_copy(&mut self) -> Checked {
        let way = PutBack::ALL[self.put_backs / 2 % PutBack::ALL.len()];
        let is_down = self.put_backs.is_multiple_of(2);
        let (aside, data) = (self.mounted.path("aside"), self.mounted.lower_data());
        let first = self.stop_or_kill_server()?;
        copy(&data, &aside)?;
        let saved = locked(&self.ledger).saved();
        self.start_server()?;
        let time = Duration::from_millis(self.random.random_range(200..800));
        self.work_in_order(time)?;
        self.check()?;
        let second = self.stop_or_kill_server()?;
        let is_killed = self.random.random();
        match (is_down, is_killed) {
            (true, true) => self.mounted.kill(),
            (true, false) => self.mounted.end(true)?,
            _ => {}
        }
        let mount = match (is_down, is_killed) {
            (false, _) => "up",
            (true, true) => "killed",
            (true, false) => "ended",
        };
        self.note(&format!("put back {way:?}, mount {mount}, server {first} before and {second} after"));
        way.run(&aside, &data)?;
        locked(&self.ledger).put_back(saved);
        if is_down {
            self.mounted.start()?;
        }
        self.start_server()?;
        self.check().map_err(|wrong| format!("after an older copy was put back: {wrong}"))?;
        self.put_backs += 1;
        Ok(())
    }
}
