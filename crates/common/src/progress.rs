//! Progress of long work: a bar if standard error is a terminal, else nothing.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::units::show_count;

/// A progress bar, drawn only on a terminal. Dropping it removes it.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar for `total` things, named by `unit` in the plural.
    pub fn new(title: &str, unit: &'static str, total: u64) -> Progress {
        let style = "{msg:>11} {bar:16} {percent:>3}% {counted} eta {eta}";
        Progress::drawn(Progress::styled(title, Some(total), style, unit))
    }

    /// A bar for `total` bytes.
    pub fn bytes(title: &str, total: u64) -> Progress {
        let style = "{msg:>11} {bar:16} {percent:>3}% {binary_bytes}  {binary_bytes_per_sec} eta {eta}";
        Progress::drawn(Progress::styled(title, Some(total), style, ""))
    }

    /// A bar for `total` time, advanced in milliseconds.
    pub fn time(title: &str, total: Duration) -> Progress {
        let style = "{msg:>11} {bar:16} {percent:>3}% eta {eta}";
        Progress::drawn(Progress::styled(title, Some(total.as_millis() as u64), style, ""))
    }

    /// A spinner for an unknown number of things, named by `unit` in the plural.
    pub fn counting(title: &str, unit: &'static str) -> Progress {
        Progress::drawn(Progress::styled(title, None, "{msg:>11} {spinner} {counted}  {elapsed}", unit))
    }

    /// A spinner for work of unknown length.
    pub fn endless(title: &str) -> Progress {
        Progress::drawn(Progress::styled(title, None, "{msg:>11} {spinner} {elapsed}", ""))
    }

    fn styled(title: &str, total: Option<u64>, style: &str, unit: &'static str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template(style).expect("the templates are constants");
        let style = style.with_key("counted", move |state: &ProgressState, out: &mut dyn Write| {
            // A failed write to a string in memory cannot happen.
            let _ = out.write_str(&counted(state.pos(), state.per_sec(), unit));
        });
        bar.set_style(style);
        bar.set_message(title.to_owned());
        bar
    }

    fn drawn(bar: ProgressBar) -> Progress {
        if io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
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

/// A number of things and their rate per second, in whole numbers.
fn counted(done: u64, per_second: f64, unit: &str) -> String {
    format!("{} {unit}  {} {unit}/s", show_count(done), show_count(per_second.round() as u64))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    /// A terminal that keeps the text written.
    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<String>>);

    impl TermLike for Kept {
        fn width(&self) -> u16 {
            200
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What a terminal shows of `progress` after `done` steps.
    fn shown(progress: Progress, done: u64) -> String {
        let kept = Kept::default();
        progress.0.set_draw_target(ProgressDrawTarget::term_like(Box::new(kept.clone())));
        progress.set(done);
        progress.0.force_draw();
        kept.0.lock().unwrap().clone()
    }

    #[test]
    fn counts_are_whole_numbers_with_their_unit() {
        assert_eq!(counted(2_000, 999.8824, "records"), "2,000 records  1,000 records/s");
        assert_eq!(counted(1_234_567, 0.4, "entries"), "1,234,567 entries  0 entries/s");
    }

    #[test]
    fn every_bar_shows_what_it_counts() {
        let shows = |progress: Progress, text: &str| {
            let all = shown(progress, 2048);
            assert!(all.contains(text), "{text}: {all}");
            all
        };
        let records = shows(Progress::new("load", "records", 4096), " 50% 2,048 records  ");
        assert!(records.contains(" records/s eta "), "{records}");
        shows(Progress::counting("dump", "entries"), " 2,048 entries  ");
        shows(Progress::bytes("load", 4096), " 50% 2.00 KiB  ");
        shows(Progress::time("run", Duration::from_millis(4096)), " 50% eta ");
        let endless = shows(Progress::endless("verify"), "verify");
        assert!(!endless.contains("2,048") && !endless.contains("2048"), "{endless}");
    }
}
