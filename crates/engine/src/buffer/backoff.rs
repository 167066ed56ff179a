//! Waiting for a latch: spin while the holder is likely to be running, yield while it may be waiting for the
//! processor, then sleep, because it is probably doing I/O.

use std::time::Duration;

const SPINS: u32 = 6;
const YIELDS: u32 = 200;
const SLEEP: Duration = Duration::from_micros(20);

/// One wait, growing with each call.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    step: u32,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Whether nothing was waited for yet.
    pub(crate) fn is_first(&self) -> bool {
        self.step == 0
    }

    /// Waits a little, a little longer each time.
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
