//! Stamps, by which a file is known to be unchanged.
//!
//! A stamp is a file's length and its two times. No program can set the change time, so any change
//! shows, with two exceptions:
//!
//! * The clock of the times ticks. Two changes within a tick, up to 10 ms, have equal stamps. From
//!   Linux 6.13 on, ext4, XFS, Btrfs and tmpfs give a change after a look at the times a finer time
//!   ([`Clockwork::is_fine`]).
//! * A write sets the times when it begins and copies its bytes afterwards. So a file that changed
//!   a moment ago may be in the middle of a change.
//!
//! Therefore a stamp *settles*: the cache takes no bytes of a file before the last change from
//! outside is [`Clockwork::quiet`] old. Changes through the mount are over when they return, so
//! their stamps count at once.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;

/// Names a file for as long as it exists; a later one with the same inode was born later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    pub device: u64,
    pub inode: u64,
    /// Seconds and nanoseconds; zeros where the file system does not say.
    pub born: [i64; 2],
}

/// Equal stamps of a file mean equal content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub bytes: u64,
    /// Seconds and nanoseconds.
    pub modified: [i64; 2],
    pub changed: [i64; 2],
}

impl Stamp {
    pub fn of(stat: &Stat) -> Stamp {
        Stamp {
            bytes: stat.st_size as u64,
            modified: [stat.st_mtime, stat.st_mtime_nsec as i64],
            changed: [stat.st_ctime, stat.st_ctime_nsec as i64],
        }
    }

    fn changed_at(&self) -> Option<SystemTime> {
        let [seconds, nanoseconds] = self.changed;
        let nanoseconds = u32::try_from(nanoseconds).ok()?;
        UNIX_EPOCH.checked_add(Duration::new(u64::try_from(seconds).ok()?, nanoseconds))
    }

    /// Longest time in which a further change may have the same stamp.
    fn tick(&self) -> Duration {
        if self.changed[1] == 0 { TICK_MAX } else { FRACTION_MAX }
    }

    /// Whether the last change is `age` old by the clock `now`. A change in the future is not.
    pub fn is_older(&self, age: Duration, now: SystemTime) -> bool {
        self.changed_at().and_then(|changed| now.duration_since(changed).ok()).is_some_and(|old| old >= age)
    }
}

/// How far the times of a file system are trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clockwork {
    /// Age after which a change from outside is over.
    pub quiet: Duration,
    /// A change after a look at the stamp always shows.
    pub is_fine: bool,
    /// The times are of this machine's clock.
    pub is_local: bool,
}

/// Longest tick of a clock: some file systems count two seconds.
const TICK_MAX: Duration = Duration::from_secs(2);
/// Longest tick where times have parts of a second: 10 ms of Linux, and 10 of exFAT.
const FRACTION_MAX: Duration = Duration::from_millis(50);

impl Clockwork {
    /// Whether a change from outside with this stamp is over, as far as the clock tells.
    ///
    /// A file server has its own clock; there only a stamp that was watched settles.
    pub fn is_settled(&self, stamp: &Stamp, now: SystemTime) -> bool {
        self.quiet.is_zero() || (self.is_local && stamp.is_older(self.quiet, now))
    }

    /// Whether any change after `now` has another stamp, even while nobody looks. The file has had
    /// the stamp for as long as it was `watched`, whatever the clock of its times says.
    pub fn is_distinct(&self, stamp: &Stamp, watched: Duration, now: SystemTime) -> bool {
        // Twice, because two clocks may differ in their pace.
        let is_watched = watched >= 2 * stamp.tick();
        self.is_fine || is_watched || (self.is_local && stamp.is_older(stamp.tick(), now))
    }
}

/// Whether the kernel has at least this version.
pub(crate) fn kernel_is_since(least: (u32, u32)) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    let version = (numbers.next().and_then(Result::ok), numbers.next().and_then(Result::ok));
    matches!(version, (Some(major), Some(minor)) if (major, minor) >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_settles_by_age_and_never_in_the_future() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let clockwork = Clockwork { quiet: Duration::from_secs(10), is_fine: false, is_local: true };
        let at = |seconds: i64| Stamp { changed: [seconds, 0], ..Stamp::default() };
        assert!(clockwork.is_settled(&at(990), now));
        assert!(!clockwork.is_settled(&at(991), now));
        assert!(!clockwork.is_settled(&at(1100), now));
        assert!(!clockwork.is_settled(&at(-5), now));
        let far = Clockwork { is_local: false, ..clockwork };
        assert!(!far.is_settled(&at(1), now));
        let (short, long) = (Duration::from_secs(3), Duration::from_secs(4));
        assert!(clockwork.is_distinct(&at(998), short, now) && !clockwork.is_distinct(&at(999), short, now));
        assert!(far.is_distinct(&at(1000), long, now) && !far.is_distinct(&at(1), short, now));
        let fraction = |nanoseconds| Stamp { changed: [999, nanoseconds], ..Stamp::default() };
        let is_distinct = |stamp| clockwork.is_distinct(&stamp, Duration::ZERO, now);
        assert!(is_distinct(fraction(950_000_000)) && !is_distinct(fraction(950_000_001)));
        let tenth = Duration::from_millis(100);
        assert!(far.is_distinct(&fraction(1), tenth, now) && !far.is_distinct(&fraction(1), tenth / 2, now));
        assert!(Clockwork { is_fine: true, ..far }.is_distinct(&at(1000), Duration::ZERO, now));
    }
}
