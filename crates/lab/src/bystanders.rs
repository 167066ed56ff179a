//! CPU use of other processes during a measurement.
//!
//! The kernel counts the time of all CPUs (`/proc/stat`) and of each process. The busy time minus
//! our own is that of others, including time a hypervisor gave to another guest. Kernel threads are
//! not others, because they write back our pages. In a container that hides them they do count.
//! With 100 clock ticks a second, under half a second gives no answer.

use std::fs;

/// The share above which a measurement is void.
pub const SHARE_MAX: f64 = 0.05;

/// Total ticks below which there is no answer.
const TICKS_MIN: u64 = 50;

/// The kernel-thread flag in `/proc/PID/stat`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Counts at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    all: u64,
    busy: u64,
    own: u64,
    kernel: u64,
}

impl Watch {
    /// Reads the counts.
    pub fn start() -> Watch {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let (all, busy) = processors(&stat).unwrap_or_default();
        let own = fs::read_to_string("/proc/self/stat").ok().and_then(|text| process(&text));
        Watch { all, busy, own: own.map_or(0, |found| found.ticks), kernel: kernel_ticks() }
    }

    /// The CPU share of others since the start, if known.
    pub fn share(&self) -> Option<f64> {
        self.share_until(&Watch::start())
    }

    fn share_until(&self, now: &Watch) -> Option<f64> {
        let all = now.all.checked_sub(self.all).filter(|all| *all >= TICKS_MIN)?;
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let ours = since(now.own, self.own) + since(now.kernel, self.kernel);
        Some(since(now.busy, self.busy).saturating_sub(ours) as f64 / all as f64)
    }
}

/// Total ticks of all CPUs, and busy ticks including stolen ones.
fn processors(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|tick| tick.parse().ok()).collect();
    // Guest time follows, but user time already includes it.
    let [user, nice, system, idle, wait, interrupts, soft, stolen] = *ticks.first_chunk()?;
    let busy = user + nice + system + stolen;
    Some((busy + idle + wait + interrupts + soft, busy))
}

struct Process {
    flags: u64,
    ticks: u64,
}

/// Parses a process's `stat` file.
fn process(stat: &str) -> Option<Process> {
    // The name is in parentheses and may itself contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    // After the name: state, five numbers, flags; user and system time are five fields further.
    let flags = fields.nth(6)?.parse().ok()?;
    let user: u64 = fields.nth(4)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Process { flags, ticks: user + system })
}

fn kernel_ticks() -> u64 {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    entries
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| process(&fs::read_to_string(entry.path().join("stat")).ok()?))
        .filter(|process| process.flags & KERNEL_THREAD != 0)
        .map(|process| process.ticks)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_read() {
        let stat = "cpu  100 10 50 800 20 3 7 10 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(processors(stat), Some((1000, 170)));
        let line = "42 (a) b) S 1 42 42 0 -1 2097152 1 2 3 4 30 12 0 0 20 0 1 0 100 0 0";
        let found = process(line).unwrap();
        assert_eq!((found.flags & KERNEL_THREAD, found.ticks), (KERNEL_THREAD, 42));
        assert!(processors("intr 5").is_none() && process("nothing").is_none());
    }

    #[test]
    fn others_are_what_is_left_of_the_busy_time() {
        let before = Watch { all: 1000, busy: 500, own: 100, kernel: 50 };
        let after = Watch { all: 2000, busy: 1300, own: 700, kernel: 100 };
        assert_eq!(before.share_until(&after), Some(0.15));
        assert_eq!(before.share_until(&Watch { all: 1049, ..after }), None);
        assert_eq!(after.share_until(&before), None);
    }

    #[test]
    fn this_process_is_found() {
        let began = Watch::start();
        let mut sum = 0u64;
        while Watch::start().own < began.own + 3 {
            sum = std::hint::black_box((0..1_000_000u64).fold(sum, u64::wrapping_add));
        }
        assert!(began.all > 0 && began.busy > 0);
    }
}
