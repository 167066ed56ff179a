//! Progress of long work: a bar if standard error is a terminal, else nothing.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar, drawn only on a terminal. Dropping it removes it.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar for `total` steps.
    pub fn new(title: &str, total: u64) -> Progress {
        Progress::styled(
            title,
            Some(total),
            "{msg:>14} {bar:32} {percent:>3}% {human_pos} {per_sec} eta {eta}",
        )
    }

    /// A bar for `total` bytes.
    pub fn bytes(title: &str, total: u64) -> Progress {
        let style = "{msg:>14} {bar:32} {percent:>3}% {binary_bytes} {binary_bytes_per_sec} eta {eta}";
        Progress::styled(title, Some(total), style)
    }

    /// A spinner for work of unknown length.
    pub fn endless(title: &str) -> Progress {
        Progress::styled(title, None, "{msg:>14} {spinner} {human_pos} {elapsed}")
    }

    fn styled(title: &str, total: Option<u64>, style: &str) -> Progress {
        let target = match io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr_with_hz(10),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(total, target);
        bar.set_style(ProgressStyle::with_template(style).expect("the templates are constants"));
        bar.set_message(title.to_owned());
        Progress(bar)
    }

    /// Sets the progress.
    pub fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Advances by `steps`.
    pub fn add(&self, steps: u64) {
        self.0.inc(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_is_valid_and_counting_is_harmless() {
        for progress in [Progress::new("a", 10), Progress::bytes("b", 0), Progress::endless("c")] {
            progress.set(3);
            progress.add(100);
            assert_eq!(progress.0.position(), 103);
        }
    }
}
