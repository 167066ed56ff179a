//! Waiting for a latch.
//!
//! Spins while the holder probably runs, yields while it may lack a processor, then sleeps: it
//! probably does I/O.

use std::time::Duration;

const SPINS: u32 = 6;
const YIELDS: u32 = 200;
const SLEEP: Duration = Duration::from_micros(20);

/// One wait, in growing steps.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    step: u32,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn is_first(&self) -> bool {
        self.step == 0
    }

    /// Waits one step.
    pub(crate) fn wait(&mut self) {
        if self.step < SPINS {
            for _ in 0..1 << self.step {
                std::hint::spin_loop();
            }
        } else if self.step < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
        self.step = self.step.saturating_add(1);
    }
}
