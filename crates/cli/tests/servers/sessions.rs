//! Sessions: client processes that write and read until they are told to end or the server dies.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::Checked;
use crate::ledger::{Dialect, Ledger, WRITERS, total};
use crate::process::{PATIENCE, last_lines};

const READERS: usize = 2;
/// Ends the answers to a reader's question.
const ANSWERED: &str = "answered";

const RUN: u8 = 0;
/// Sessions end after the transaction they are in.
const END: u8 = 1;
/// From here on, errors of the server are no findings.
const KILL: u8 = 2;

pub type SharedLedger = Arc<Mutex<Ledger>>;

pub fn locked(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    // A panic of another session is the finding, not the poisoned lock.
    ledger.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A client of the server, by pipes.
struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the client starts");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, input, output: BufReader::new(output) }
    }

    /// Sends statements, and reads lines up to `last`. The error is that of the client.
    fn ask(&mut self, statements: &str, last: &str) -> Checked<Vec<String>> {
        // If the client is gone, reading finds out.
        let _ = self.input.write_all(statements.as_bytes()).and_then(|()| self.input.flush());
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            match self.output.read_line(&mut line) {
                Ok(0) | Err(_) => return Err(self.error()),
                Ok(_) if line.trim_end() == last => return Ok(lines),
                Ok(_) => lines.push(line.trim_end().to_owned()),
            }
        }
    }

    fn error(&mut self) -> String {
        let mut text = String::new();
        let _ = self.child.stderr.take().expect("taken once").read_to_string(&mut text);
        format!("the client ended: {}", last_lines(&text, 5))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rows of lines `row`, id, stamp, value.
fn read_rows(lines: &[String]) -> Vec<(u64, u64, u64)> {
    let row = |line: &String| {
        let mut fields = line.strip_prefix("row\t")?.split('\t').map(|field| field.parse().ok());
        Some((fields.next()??, fields.next()??, fields.next()??))
    };
    lines.iter().filter_map(row).collect()
}

/// Why a session ended.
enum End {
    Asked,
    /// An error of client or server: a finding only while nothing is killed.
    Error(String),
    Wrong(String),
}

struct Session {
    client: Client,
    dialect: &'static Dialect,
    ledger: SharedLedger,
    phase: Arc<AtomicU8>,
    random: SmallRng,
}

impl Session {
    fn write(mut self, number: usize) -> End {
        while self.phase.load(Ordering::SeqCst) == RUN {
            let transaction = locked(&self.ledger).begin(number, &mut self.random);
            let lines = match self.client.ask(&transaction.sql(self.dialect), self.dialect.committed) {
                Ok(lines) => lines,
                Err(error) => return End::Error(error),
            };
            locked(&self.ledger).acknowledge(number);
            let rows: Vec<_> = lines.iter().filter(|line| line.starts_with("row\t")).collect();
            if rows.iter().copied().ne(&transaction.answers()) {
                return End::Wrong(format!("session {number}: {transaction:?} answered {rows:?}"));
            }
        }
        End::Asked
    }

    fn read(mut self) -> End {
        while self.phase.load(Ordering::SeqCst) == RUN {
            let seen = if self.random.random_bool(0.7) { self.read_items() } else { self.read_sums() };
            match seen {
                Ok(Ok(())) => {}
                Ok(Err(wrong)) => return End::Wrong(wrong),
                Err(error) => return End::Error(error),
            }
        }
        End::Asked
    }

    /// The outer error is that of the client.
    fn read_items(&mut self) -> Checked<Checked> {
        let items = locked(&self.ledger).some_items(&mut self.random);
        let ids: Vec<_> = items.iter().map(|(id, _)| id.to_string()).collect();
        let condition =
            if ids.is_empty() { "false".to_owned() } else { format!("id IN ({})", ids.join(", ")) };
        let query = format!("SELECT 'row', id, stamp, value FROM items WHERE {condition};\n");
        let lines = self.client.ask(&format!("{query}SELECT '{ANSWERED}';\n"), ANSWERED)?;
        let rows = read_rows(&lines);
        let ledger = locked(&self.ledger);
        let seen = |id| rows.iter().find(|row| row.0 == id).map(|row| (row.1, row.2));
        Ok(items.iter().try_for_each(|&(id, before)| ledger.check_read(id, before, seen(id))))
    }

    /// Sums that every snapshot has, and a part of the index on values.
    fn read_sums(&mut self) -> Checked<Checked> {
        let from = self.random.random_range(0..1_000_000);
        let query = format!(
            "SELECT 'sum', sum(balance) FROM accounts;\n\
             SELECT 'wrong', count(*) FROM items WHERE value BETWEEN {from} AND {} AND \
             value <> (id * 7919 + stamp * 104729) % 1000003;\n",
            from + 10_000
        );
        let lines = self.client.ask(&format!("{query}SELECT '{ANSWERED}';\n"), ANSWERED)?;
        let expected = [format!("sum\t{}", total()), "wrong\t0".to_owned()];
        Ok(match lines == expected {
            true => Ok(()),
            false => Err(format!("a reader expected {expected:?} and saw {lines:?}")),
        })
    }
}

/// All sessions of one life of the server.
pub struct Sessions {
    phase: Arc<AtomicU8>,
    threads: Vec<JoinHandle<End>>,
    clients: Vec<u32>,
}

impl Sessions {
    pub fn start(
        client: impl Fn() -> Command,
        dialect: &'static Dialect,
        ledger: &SharedLedger,
        random: &mut SmallRng,
    ) -> Self {
        let phase = Arc::new(AtomicU8::new(RUN));
        let (mut threads, mut clients) = (Vec::new(), Vec::new());
        for number in 0..WRITERS + READERS {
            let (ledger, phase) = (ledger.clone(), phase.clone());
            let (client, random) = (Client::start(client()), SmallRng::seed_from_u64(random.random()));
            clients.push(client.child.id());
            let session = Session { client, dialect, ledger, phase, random };
            let run = move || if number < WRITERS { session.write(number) } else { session.read() };
            threads.push(thread::spawn(run));
        }
        Self { phase, threads, clients }
    }

    /// Whether a session has ended, which is too early before `expect_kill` and `end`.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// The server or the file system under it is about to be killed.
    pub fn expect_kill(&self) {
        self.phase.store(KILL, Ordering::SeqCst);
    }

    /// Lets every session complete its transaction, and gives what they found.
    pub fn end(mut self) -> Checked {
        let _ = self.phase.compare_exchange(RUN, END, Ordering::SeqCst, Ordering::SeqCst);
        let is_killed = self.phase.load(Ordering::SeqCst) == KILL;
        let since = Instant::now();
        while !self.threads.iter().all(JoinHandle::is_finished) {
            if since.elapsed() > PATIENCE {
                return Err(format!("a session hangs for {PATIENCE:?}"));
            }
            thread::sleep(Duration::from_millis(2));
        }
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(End::Wrong(wrong)) => return Err(wrong),
                Ok(End::Error(error)) if !is_killed => {
                    return Err(format!("nothing was killed, but {error}"));
                }
                Ok(_) => {}
                Err(_) => return Err("a session panicked".to_owned()),
            }
        }
        Ok(())
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.expect_kill();
        for (thread, &client) in self.threads.iter().zip(&self.clients) {
            if !thread.is_finished() {
                crate::process::kill(client);
            }
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
