//! The settings of migration, as a user gives them and as the middle tier follows them.

use super::{AdmissionQueue, Choice, CleanVictims, Die, Intent, LivePolicy, Path, asks_queue, path};

/// Which pages move between tiers.
///
/// A field that is not set has the default of the policy's paper.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
/// use terrace::migration::{Choice, CleanVictims, Migration};
///
/// let migration = Migration { clean_victims: Some(CleanVictims::Offer), ..Choice::Lazy.into() };
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20);
/// let db = builder.middle("simulated:dram,8MiB".parse()?).migration(migration).open("")?;
/// assert_eq!(db.policy(), Some(Choice::Lazy.policy()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Migration {
    /// The policy. Default: [`Choice::Adaptive`].
    pub policy: Option<Choice>,
    /// Where clean pages evicted from DRAM go. Default: [`Choice::clean_victims`] of the policy.
    pub clean_victims: Option<CleanVictims>,
    /// Length of the admission queue, pages; it replaces `N_w`. Default: half of the middle tier's
    /// frames with [`Choice::HyMem`], else no queue.
    pub admission_queue: Option<u64>,
}

impl Migration {
    /// The policy, or its default.
    pub fn choice(&self) -> Choice {
        self.policy.unwrap_or_default()
    }

    /// Takes `policy` unless one is set.
    pub(crate) fn or_policy(self, policy: Choice) -> Migration {
        Migration { policy: self.policy.or(Some(policy)), ..self }
    }

    /// Pages in the admission queue of a tier with `frames` frames; `None` without a queue.
    pub(crate) fn queue_pages(&self, frames: u32) -> Option<usize> {
        // HyMem's queue has half as many entries as there are frames (Spitfire, section 6.5).
        let default = || self.choice().has_queue().then(|| u64::from(frames / 2).max(1));
        self.admission_queue.or_else(default).map(|pages| pages as usize)
    }
}

impl From<Choice> for Migration {
    fn from(policy: Choice) -> Migration {
        Migration { policy: Some(policy), ..Migration::default() }
    }
}

/// [`Migration`] with its defaults resolved, and a policy that may change.
#[derive(Debug)]
pub(crate) struct LiveMigration {
    pub(crate) policy: LivePolicy,
    clean_victims: CleanVictims,
    queue: Option<AdmissionQueue>,
}

impl LiveMigration {
    /// For a tier with `frames` frames.
    pub(crate) fn new(settings: &Migration, frames: u32) -> LiveMigration {
        let choice = settings.choice();
        LiveMigration {
            policy: LivePolicy::new(choice.policy()),
            clean_victims: settings.clean_victims.unwrap_or(choice.clean_victims()),
            queue: settings.queue_pages(frames).map(AdmissionQueue::new),
        }
    }

    /// Where a page goes that does not leave DRAM.
    #[inline]
    pub(crate) fn path_of_access(&self, intent: Intent, die: Die) -> Path {
        path(self.policy.get(), self.clean_victims, intent, die, None)
    }

    /// Where `page` goes, which leaves DRAM.
    pub(crate) fn path_of_victim(&self, page: u64, intent: Intent, die: Die) -> Path {
        let queue = self.queue.as_ref().filter(|_| asks_queue(self.clean_victims, intent));
        path(self.policy.get(), self.clean_victims, intent, die, queue.map(|queue| queue.admits(page)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Policy;
    use super::*;

    #[test]
    fn settings_that_are_not_given_are_those_of_the_policy() {
        let live = |settings: Migration| LiveMigration::new(&settings, 10);
        let none = live(Migration::default());
        assert_eq!((none.policy.get(), none.clean_victims), (Policy::EAGER, CleanVictims::Drop));
        assert!(none.queue.is_none());
        let hymem = live(Choice::HyMem.into());
        assert_eq!((hymem.policy.get(), hymem.clean_victims), (Policy::HYMEM, CleanVictims::Offer));
        assert!(hymem.queue.is_some());
        let given = Migration { clean_victims: Some(CleanVictims::Always), ..Choice::HyMem.into() };
        assert_eq!(live(given).clean_victims, CleanVictims::Always);
        assert_eq!(given.or_policy(Choice::Lazy), given);
        assert_eq!(Migration::default().or_policy(Choice::Lazy).choice(), Choice::Lazy);
    }

    #[test]
    fn a_queue_has_the_given_length_or_half_the_frames_with_hymem() {
        let pages = |policy: Choice, given, frames| {
            Migration { admission_queue: given, ..policy.into() }.queue_pages(frames)
        };
        assert_eq!(pages(Choice::HyMem, None, 64), Some(32));
        assert_eq!(pages(Choice::HyMem, None, 1), Some(1));
        assert_eq!(pages(Choice::HyMem, Some(7), 64), Some(7));
        assert_eq!(pages(Choice::Lazy, Some(7), 64), Some(7));
        assert_eq!(pages(Choice::Lazy, None, 64), None);
    }
}
