//! The decision where a page goes, and the die it hangs on.
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

/// What is done to the bytes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// They are read: `D_r` counts.
    Read,
    /// They are changed: `D_w` counts.
    Write,
}

/// Why a page may have to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Intent {
    /// Its image is read from the store, for this.
    Load(Access),
    /// It is a new page, which is nowhere yet. As in the CXL paper (section III-F) it is placed like one that is loaded, and it is
    /// about to be written.
    Create,
    /// Its fastest copy is in the middle tier, and is to be used for this.
    Touch(Access),
    /// Its copy in DRAM must go.
    Evict {
        /// Whether no slower copy is as new.
        dirty: bool,
        /// Whether there is a copy in the middle tier too, as new or not.
        middle_copy: bool,
    },
}

/// Where a page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// From the store, or new, to DRAM, past the middle tier.
    ToDram,
    /// From the store, or new, to the middle tier, and used there.
    ToMiddle,
    /// From the store to the middle tier, and at once to DRAM.
    ToMiddleThenDram,
    /// Nowhere: read or written in the middle tier.
    InPlace,
    /// From the middle tier to DRAM.
    MiddleToDram,
    /// From DRAM to the middle tier, to the copy there if there is one.
    DramToMiddle,
    /// From DRAM to the store.
    DramToStore,
    /// Out of DRAM, without being written anywhere: a slower copy is as new.
    Drop,
}

/// A number that decides what happens to one page in one operation.
///
/// ```
/// use terrace::migration::{Access, Die, Intent, Path, Policy, path, CleanVictims};
///
/// let policy = Policy::new(0.5, 0.5, 0.5, 0.5).unwrap();
/// let decide = |operation| {
///     let die = Die::cast(operation, 42);
///     path(policy, CleanVictims::Drop, Intent::Touch(Access::Read), die, None)
/// };
/// // An operation that starts again decides again as it did before, others for themselves.
/// assert_eq!(decide(7), decide(7));
/// assert!((0..100).any(|operation| decide(operation) == Path::InPlace));
/// assert!((0..100).any(|operation| decide(operation) == Path::MiddleToDram));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Die(u64);

impl Die {
    /// The die of `page` in an operation that drew the number `operation` when it began. Numbers may be drawn in any way
    /// that does not give one twice soon, counting included: the hash is what makes them random (the finalizer of SplitMix64).
    #[inline]
    pub fn cast(operation: u64, page: u64) -> Die {
        Die(mix(mix(operation).wrapping_add(page)))
    }

    /// Whether an event of this probability, in millionths, happens, by the half of the die that is for one of the tiers.
    fn falls(half: u64, millionths: u32) -> bool {
        // Below ONE whatever the half is, and never below 0: so 1 means always and 0 never.
        (half * u64::from(ONE)) >> 32 < u64::from(millionths)
    }

    /// For `D_r` and `D_w`.
    fn dram(self, millionths: u32) -> bool {
        Die::falls(self.0 & 0xffff_ffff, millionths)
    }

    /// For `N_r` and `N_w`: independent of what falls for DRAM, so that one cast is enough for a load that goes on to DRAM.
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

/// Where a page goes. `queue` is the answer of the admission queue, where the policy has one ([`super::Choice::has_queue`]); it
/// counts in place of `N_w`, and need only be asked when [`asks_queue`] says so.
///
/// * A load into the middle tier casts for DRAM in the same operation, as the first access to it.
/// * A new page that would go on to DRAM at once is made there: there is nothing yet that the middle tier could keep a copy of.
/// * A page that has a copy in the middle tier goes to that copy, dirty or clean, whatever `N_w` and `clean` are. Both are about
///   admission, and this page has its place there. If the copy is as new, nothing is copied.
/// * A clean page without such a copy is dropped, or considered for the middle tier like a dirty one, as `clean` says.
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

/// Whether [`path`] would look at the answer of an admission queue. A page that is asked for is remembered, so who asks in vain
/// makes the queue forget another.
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

    /// How far a share of `count` may be from its probability: five standard deviations, and ten where there are next to none.
    fn slack(probability: f64, count: u64) -> f64 {
        5.0 * (probability * (1.0 - probability) / count as f64).sqrt() + 10.0 / count as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

        /// Spitfire, section 3.5: a page that is read n times is in DRAM with a probability of 1 - (1 - D_r)^n. The load is the
        /// first of the reads.
        #[test]
        fn reads_bring_a_page_to_dram_with_the_probability_of_the_paper(
            dr in 0.0..=1.0f64, reads in 1u32..60, seed in any::<u64>(),
        ) {
            const PAGES: u64 = 20_000;
            let policy = Policy::new(dr, 0.0, 1.0, 1.0).unwrap();
            let mut there = 0;
            for page in 0..PAGES {
                // Every page is read by operations of its own, in turn with the others.
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

        /// One cast decides about both tiers, and one decision says nothing about the other.
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
        // And the decision of one operation is no hint for the next.
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
                // A page that has a place in the middle tier keeps it, however new the copy there is.
                assert_eq!(evict(nw, clean, true, true, None), Path::DramToMiddle);
                assert_eq!(evict(nw, clean, false, true, None), Path::DramToMiddle);
                assert_eq!(evict(nw, clean, true, false, None), admitted(Path::DramToStore));
            }
            assert_eq!(evict(nw, CleanVictims::Drop, false, false, None), Path::Drop);
            assert_eq!(evict(nw, CleanVictims::Offer, false, false, None), admitted(Path::Drop));
            assert_eq!(evict(nw, CleanVictims::Always, false, false, None), Path::DramToMiddle);
            // The queue's answer is in place of the probability.
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
