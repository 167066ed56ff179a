//! The decision where a page goes, and its die.
//!
//! ```text
//!             N_r                     D_r, D_w
//!    store ---------> middle tier -----------------> DRAM
//!      |                 ^   |  \__ used in place      |
//!      |     1 - N_r     |   |                         |
//!      +-----------------|---|-----------------------> +
//!      ^                 |   |          N_w            |
//!      |                 +---|-------------------------+
//!      +---------------------+                         |
//!      +-----------------------------------------------+
//!                              1 - N_w
//! ```

use super::{CleanVictims, ONE, Policy};

/// The kind of access to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A read, by `D_r`.
    Read,
    /// A write, by `D_w`.
    Write,
}

/// Why a page may have to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Intent {
    /// Load of its image from the store.
    Load(Access),
    /// Creation, treated like a load (CXL paper, section III-F).
    Create,
    /// Access to a page whose fastest copy is in the middle tier.
    Touch(Access),
    /// Its copy in DRAM must go.
    Evict {
        /// Whether no slower copy is current.
        dirty: bool,
        /// Whether a middle copy exists, current or not.
        middle_copy: bool,
    },
}

/// Where a page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// From the store, or new, to DRAM.
    ToDram,
    /// From the store, or new, to the middle tier.
    ToMiddle,
    /// From the store to the middle tier, then at once to DRAM.
    ToMiddleThenDram,
    /// Stays in the middle tier for this access.
    InPlace,
    /// From the middle tier to DRAM.
    MiddleToDram,
    /// From DRAM to the middle tier, reusing a copy there.
    DramToMiddle,
    /// From DRAM to the store.
    DramToStore,
    /// Out of DRAM without a write: a slower copy is current.
    Drop,
}

/// A number that decides about one page in one operation.
///
/// ```
/// use terrace::migration::{Access, Die, Intent, Path, Policy, path, CleanVictims};
///
/// let policy = Policy::new(0.5, 0.5, 0.5, 0.5).unwrap();
/// let decide = |operation| {
///     let die = Die::cast(operation, 42);
///     path(policy, CleanVictims::Drop, Intent::Touch(Access::Read), die, None)
/// };
/// assert_eq!(decide(7), decide(7)); // A restarted operation decides as before.
/// assert!((0..100).any(|operation| decide(operation) == Path::InPlace));
/// assert!((0..100).any(|operation| decide(operation) == Path::MiddleToDram));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Die(u64);

impl Die {
    /// The die of `page` in an operation.
    ///
    /// The finalizer of SplitMix64 makes it random. Operation numbers must be unique only for a
    /// while.
    #[inline]
    pub fn cast(operation: u64, page: u64) -> Die {
        Die(mix(mix(operation).wrapping_add(page)))
    }

    fn falls(half: u64, millionths: u32) -> bool {
        // The product is below ONE: 1 means always, 0 never.
        (half * u64::from(ONE)) >> 32 < u64::from(millionths)
    }

    fn dram(self, millionths: u32) -> bool {
        Die::falls(self.0 & 0xffff_ffff, millionths)
    }

    /// For `N_r` and `N_w`.
    ///
    /// Independent of the half for DRAM, so one cast serves both steps of a load.
    fn middle(self, millionths: u32) -> bool {
        Die::falls(self.0 >> 32, millionths)
    }
}

fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Where a page goes.
///
/// `queue` is the answer of the admission queue, if the policy has one
/// ([`super::Choice::has_queue`]). It replaces `N_w` and is needed only if [`asks_queue`] says so.
///
/// * A load into the middle tier also casts for DRAM, as its first access.
/// * A new page that would be promoted at once is created in DRAM.
/// * A page with a middle copy goes there: `N_w` and `clean` are about admission.
/// * Any other clean page follows `clean`.
///
/// ```
/// use terrace::migration::{CleanVictims, Die, Intent, Path, Policy, path};
///
/// let clean = Intent::Evict { dirty: false, middle_copy: false };
/// let die = Die::cast(1, 1);
/// assert_eq!(path(Policy::EAGER, CleanVictims::Drop, clean, die, None), Path::Drop);
/// assert_eq!(path(Policy::EAGER, CleanVictims::Offer, clean, die, None), Path::DramToMiddle);
/// ```
#[inline]
pub fn path(policy: Policy, clean: CleanVictims, intent: Intent, die: Die, queue: Option<bool>) -> Path {
    let [dr, dw, nr, nw] = policy.millionths;
    let to_dram = |access| match access {
        Access::Read => die.dram(dr),
        Access::Write => die.dram(dw),
    };
    let is_admitted = || queue.unwrap_or_else(|| die.middle(nw));
    match intent {
        Intent::Touch(access) if to_dram(access) => Path::MiddleToDram,
        Intent::Touch(_) => Path::InPlace,
        Intent::Load(_) | Intent::Create if !die.middle(nr) => Path::ToDram,
        Intent::Load(access) if to_dram(access) => Path::ToMiddleThenDram,
        Intent::Create if to_dram(Access::Write) => Path::ToDram,
        Intent::Load(_) | Intent::Create => Path::ToMiddle,
        Intent::Evict { middle_copy: true, .. } => Path::DramToMiddle,
        Intent::Evict { dirty: true, .. } if is_admitted() => Path::DramToMiddle,
        Intent::Evict { dirty: true, .. } => Path::DramToStore,
        Intent::Evict { dirty: false, .. } => match clean {
            CleanVictims::Always => Path::DramToMiddle,
            CleanVictims::Offer if is_admitted() => Path::DramToMiddle,
            CleanVictims::Offer | CleanVictims::Drop => Path::Drop,
        },
    }
}

/// Whether [`path`] would use the answer of an admission queue.
///
/// Asking adds the page to the queue, and may displace another.
pub fn asks_queue(clean: CleanVictims, intent: Intent) -> bool {
    match intent {
        Intent::Evict { dirty, middle_copy } => !middle_copy && (dirty || clean == CleanVictims::Offer),
        Intent::Load(_) | Intent::Create | Intent::Touch(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DROP: CleanVictims = CleanVictims::Drop;

    fn touch(policy: Policy, operation: u64, page: u64, access: Access) -> bool {
        path(policy, DROP, Intent::Touch(access), Die::cast(operation, page), None) == Path::MiddleToDram
    }

    /// Tolerance of a share of `count`: five standard deviations, plus ten events.
    fn slack(probability: f64, count: u64) -> f64 {
        5.0 * (probability * (1.0 - probability) / count as f64).sqrt() + 10.0 / count as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

        /// Spitfire, section 3.5: n reads promote with probability 1 - (1 - D_r)^n.
        ///
        /// The load is the first read.
        #[test]
        fn reads_bring_a_page_to_dram_with_the_probability_of_the_paper(
            dr in 0.0..=1.0f64, reads in 1u32..60, seed in any::<u64>(),
        ) {
            const PAGES: u64 = 20_000;
            let policy = Policy::new(dr, 0.0, 1.0, 1.0).unwrap();
            let mut there = 0;
            for page in 0..PAGES {
                let die = |read: u32| Die::cast(seed.wrapping_add(u64::from(read) * PAGES + page), page);
                let first = path(policy, DROP, Intent::Load(Access::Read), die(0), None);
                let later = |read| path(policy, DROP, Intent::Touch(Access::Read), die(read), None);
                let is_there = first == Path::ToMiddleThenDram || (1..reads).any(|read| later(read) == Path::MiddleToDram);
                there += u64::from(is_there);
            }
            let expected = 1.0 - (1.0 - policy.dr()).powi(reads as i32);
            let share = there as f64 / PAGES as f64;
            prop_assert!((share - expected).abs() <= slack(expected, PAGES), "{share} for {expected}");
        }

        #[test]
        fn both_decisions_of_a_load_are_independent(dr in 0.0..=1.0f64, nr in 0.0..=1.0f64, seed in any::<u64>()) {
            const PAGES: u64 = 50_000;
            let policy = Policy::new(dr, 0.0, nr, 0.0).unwrap();
            let mut counts = [0u64; 3];
            for page in 0..PAGES {
                match path(policy, DROP, Intent::Load(Access::Read), Die::cast(seed, page), None) {
                    Path::ToDram => counts[0] += 1,
                    Path::ToMiddle => counts[1] += 1,
                    Path::ToMiddleThenDram => counts[2] += 1,
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            for (count, expected) in counts.into_iter().zip([1.0 - nr, nr * (1.0 - dr), nr * dr]) {
                let share = count as f64 / PAGES as f64;
                prop_assert!((share - expected).abs() <= slack(expected, PAGES), "{counts:?}");
            }
        }
    }

    #[test]
    fn a_probability_of_one_is_always_and_of_zero_never() {
        for die in [Die(0), Die(u64::MAX), Die(1 << 32), Die(0xffff_ffff)] {
            assert!(die.dram(ONE) && die.middle(ONE) && !die.dram(0) && !die.middle(0), "{die:?}");
        }
    }

    #[test]
    fn reads_and_writes_have_thresholds_of_their_own() {
        let reads_only = Policy::new(1.0, 0.0, 0.0, 0.0).unwrap();
        let writes_only = Policy::new(0.0, 1.0, 0.0, 0.0).unwrap();
        for page in 0..100 {
            assert!(touch(reads_only, 5, page, Access::Read) && !touch(reads_only, 5, page, Access::Write));
            assert!(touch(writes_only, 5, page, Access::Write) && !touch(writes_only, 5, page, Access::Read));
        }
    }

    #[test]
    fn an_operation_that_starts_again_decides_as_before() {
        let policy = Policy::new(0.3, 0.3, 0.3, 0.3).unwrap();
        for page in 0..1000 {
            assert_eq!(touch(policy, 9, page, Access::Read), touch(policy, 9, page, Access::Read));
        }
        let both = (0..10_000)
            .filter(|&page| touch(policy, 9, page, Access::Read) && touch(policy, 10, page, Access::Read));
        let share = both.count() as f64 / 10_000.0;
        assert!((share - 0.09).abs() <= slack(0.09, 10_000), "{share}");
    }

    #[test]
    fn new_pages_are_placed_like_loaded_ones_but_never_copied() {
        let create = |dw, nr| {
            path(Policy::new(0.0, dw, nr, 0.0).unwrap(), DROP, Intent::Create, Die::cast(3, 3), None)
        };
        assert_eq!(create(0.0, 0.0), Path::ToDram);
        assert_eq!(create(0.0, 1.0), Path::ToMiddle);
        assert_eq!(create(1.0, 1.0), Path::ToDram);
    }

    #[test]
    fn every_victim_has_its_path() {
        let evict = |nw, clean, dirty, middle_copy, queue| {
            let policy = Policy::new(0.0, 0.0, 0.0, nw).unwrap();
            path(policy, clean, Intent::Evict { dirty, middle_copy }, Die::cast(8, 8), queue)
        };
        for nw in [0.0, 1.0] {
            let admitted = |other| if nw == 1.0 { Path::DramToMiddle } else { other };
            for clean in CleanVictims::ALL {
                assert_eq!(evict(nw, clean, true, true, None), Path::DramToMiddle);
                assert_eq!(evict(nw, clean, false, true, None), Path::DramToMiddle);
                assert_eq!(evict(nw, clean, true, false, None), admitted(Path::DramToStore));
            }
            assert_eq!(evict(nw, CleanVictims::Drop, false, false, None), Path::Drop);
            assert_eq!(evict(nw, CleanVictims::Offer, false, false, None), admitted(Path::Drop));
            assert_eq!(evict(nw, CleanVictims::Always, false, false, None), Path::DramToMiddle);
            assert_eq!(evict(nw, CleanVictims::Offer, false, false, Some(true)), Path::DramToMiddle);
            assert_eq!(evict(nw, CleanVictims::Offer, true, false, Some(false)), Path::DramToStore);
        }
    }

    #[test]
    fn the_queue_is_asked_where_its_answer_counts() {
        let die = Die::cast(4, 4);
        let accesses = [Access::Read, Access::Write];
        let evictions = [(true, true), (true, false), (false, true), (false, false)];
        let intents = [Intent::Create]
            .into_iter()
            .chain(accesses.map(Intent::Load))
            .chain(accesses.map(Intent::Touch))
            .chain(evictions.map(|(dirty, middle_copy)| Intent::Evict { dirty, middle_copy }));
        for intent in intents {
            for clean in CleanVictims::ALL {
                let with = |answer| path(Policy::HYMEM, clean, intent, die, Some(answer));
                assert_eq!(asks_queue(clean, intent), with(true) != with(false), "{intent:?} {clean:?}");
            }
        }
    }
}
