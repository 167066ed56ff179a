//! Frames of one size in one tier, and their numbers.
//!
//! ```text
//!   31..28   27              26..0
//!   class    1 = middle      index among the frames of the class in the tier
//! ```
//!
//! The frames of each class in each tier are a *stripe*: they have addresses of their own, a list of those that hold nothing, and
//! queues of replacement. The upper five bits of a frame's number say which stripe it is of, so that its address is a shift
//! and an addition whatever tier it is in: a reader does not branch on the tier to find bytes.

use crate::ids::SizeClass;

/// Where in a frame's number the stripe begins, and where the class.
const STRIPE_SHIFT: u32 = 27;
const CLASS_SHIFT: u32 = STRIPE_SHIFT + 1;
/// Set in the numbers of frames of the middle tier.
const MIDDLE: u32 = 1 << STRIPE_SHIFT;
/// Indexes of frames are below this: 512 GiB of the smallest pages.
pub(crate) const FRAMES_MAX: u32 = 1 << STRIPE_SHIFT;
/// Stripes there are.
pub(super) const STRIPES: usize = 2 * SizeClass::COUNT;

/// Something for each stripe, by its number.
pub(super) type ByStripe<T> = [T; STRIPES];

/// Which memory a frame is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    Dram,
    Middle,
}

/// The frames of one size in one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stripe {
    pub(super) class: SizeClass,
    pub(super) tier: Tier,
}

impl From<SizeClass> for Stripe {
    fn from(class: SizeClass) -> Stripe {
        Stripe { class, tier: Tier::Dram }
    }
}

impl Stripe {
    /// The frames for pages of `class` in the middle tier.
    pub(super) fn middle(class: SizeClass) -> Stripe {
        Stripe { class, tier: Tier::Middle }
    }

    /// All of them, those in DRAM first: who looks for dirty pages meets one that goes down at one of its frames.
    pub(super) fn all() -> impl DoubleEndedIterator<Item = Stripe> {
        let in_tier = |tier| SizeClass::all().map(move |class| Stripe { class, tier });
        in_tier(Tier::Dram).chain(in_tier(Tier::Middle))
    }

    /// Its number.
    pub(super) fn index(self) -> usize {
        2 * self.class.index() + usize::from(self.tier == Tier::Middle)
    }

    /// The stripe with this number.
    pub(super) fn from_index(index: usize) -> Option<Stripe> {
        let tier = if index.is_multiple_of(2) { Tier::Dram } else { Tier::Middle };
        SizeClass::from_index(index / 2).map(|class| Stripe { class, tier })
    }

    /// The number of its frame with this index.
    pub(super) fn frame(self, index: u32) -> u32 {
        debug_assert!(index < FRAMES_MAX);
        (self.index() as u32) << STRIPE_SHIFT | index
    }
}

/// How large the page is that `frame` holds.
pub(super) fn class_of(frame: u32) -> SizeClass {
    SizeClass::from_index(class_index_of(frame)).expect("frames are of classes there are")
}

/// The number of that class.
#[inline(always)]
pub(super) fn class_index_of(frame: u32) -> usize {
    (frame >> CLASS_SHIFT) as usize
}

/// The number of the stripe that `frame` is of.
#[inline(always)]
pub(super) fn stripe_index_of(frame: u32) -> usize {
    (frame >> STRIPE_SHIFT) as usize
}

/// The stripe that `frame` is of.
pub(super) fn stripe_of(frame: u32) -> Stripe {
    Stripe::from_index(stripe_index_of(frame)).expect("frames are of stripes there are")
}

/// Which of its stripe `frame` is.
#[inline(always)]
pub(super) fn index_of(frame: u32) -> u32 {
    frame & (FRAMES_MAX - 1)
}

/// Whether `frame` is one of the middle tier.
#[inline(always)]
pub(super) fn is_middle(frame: u32) -> bool {
    frame & MIDDLE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_frames_say_which_stripe_they_are_of() {
        assert_eq!(Stripe::all().count(), STRIPES);
        for stripe in Stripe::all() {
            assert_eq!(Stripe::from_index(stripe.index()), Some(stripe));
            for index in [0, 1, FRAMES_MAX - 1] {
                let frame = stripe.frame(index);
                assert_eq!(
                    (stripe_of(frame), class_of(frame), index_of(frame)),
                    (stripe, stripe.class, index)
                );
                assert_eq!(is_middle(frame), stripe.tier == Tier::Middle);
            }
        }
        assert_eq!(Stripe::from_index(STRIPES), None);
    }
}
