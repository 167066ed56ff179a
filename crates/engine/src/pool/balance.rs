//! Moves frames to the class that misses most for lack of them.
//!
//! A ghost hit is a fault that more frames would have avoided. Ghost hits per remembered page
//! measure the gain per byte: hits of larger pages save more, in larger frames. This is the
//! gradient of Cliffhanger (Cidon et al., NSDI 2016).
//!
//! A step (`resize.rs`) moves [`STEP_SHARE`](super::budget::STEP_SHARE) of the budget from the
//! class with the least gain to that with the most. Against oscillation, the gains must differ by
//! the factor [`GAIN_MIN`], and frames worth a step must have been taken since the last decision. A
//! starving class, whose frames waiting threads hold, gets a step regardless.
//!
//! The thread that makes a step may hold frames, so it never waits for frames in use.

use crate::ids::SizeClass;

/// Upper limit of a step's bytes, so that no thread waits long.
pub(super) const STEP_BYTES_MAX: u64 = 4 << 20;
/// Least ratio of taker's to giver's gain.
pub(super) const GAIN_MIN: u64 = 2;
/// Ghost hits that a step requires.
pub(super) const HITS_MIN: u64 = 16;
/// Ghost hits at which all are halved, to follow the load.
pub(super) const HITS_MAX: u64 = 256;
/// Rounds without progress before a step is given up.
pub(super) const PATIENCE: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) class: SizeClass,
    pub(super) hits: u64,
    /// Pages in the ghost.
    pub(super) known: u64,
    /// Bytes above the floor.
    pub(super) above: u64,
}

/// The giver and taker of a step, which is at least a page of the taker.
pub(super) fn decide(standings: &[Standing], step: u64) -> Option<(SizeClass, SizeClass)> {
    let less = |one: &Standing, other: &Standing| (one.hits * other.known).cmp(&(other.hits * one.known));
    let taker = standings.iter().max_by(|one, other| less(one, other))?;
    let step = step.max(taker.class.page_bytes() as u64);
    let may_give = |one: &&Standing| one.class != taker.class && one.above >= step;
    let giver = standings.iter().filter(may_give).min_by(|one, other| less(one, other))?;
    // One more: no hits so far may be chance.
    let gains = taker.hits * giver.known > GAIN_MIN * (giver.hits + 1) * taker.known;
    (gains && taker.hits >= HITS_MIN).then_some((giver.class, taker.class))
}

/// The class with the most above its floor, at least `step`.
pub(super) fn richest(standings: &[Standing], taker: SizeClass, step: u64) -> Option<SizeClass> {
    let may_give = |one: &&Standing| one.class != taker && one.above >= step;
    standings.iter().filter(may_give).max_by_key(|one| one.above).map(|one| one.class)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(index: usize, hits: u64, known: u64) -> Standing {
        let class = SizeClass::from_index(index).unwrap();
        Standing { class, hits, known, above: 1 << 20 }
    }

    fn decided(standings: &[Standing]) -> Option<(usize, usize)> {
        decide(standings, 1 << 16).map(|(giver, taker)| (giver.index(), taker.index()))
    }

    #[test]
    fn who_misses_most_for_each_page_remembered_gets_from_who_misses_least() {
        assert_eq!(decided(&[standing(0, 100, 1000), standing(2, 20, 50)]), Some((0, 2)));
        assert_eq!(decided(&[standing(0, 100, 100), standing(2, 20, 50)]), Some((2, 0)));
        assert_eq!(decided(&[standing(0, 5, 90), standing(1, 40, 90), standing(4, 0, 90)]), Some((4, 1)));
        let poor = Standing { above: 0, ..standing(4, 0, 90) };
        assert_eq!(decided(&[standing(0, 5, 90), standing(1, 40, 90), poor]), Some((0, 1)));
        assert_eq!(decided(&[standing(1, 40, 90), poor]), None, "the floor stays");
        let large = standing(9, 40, 90);
        assert_eq!(decided(&[standing(0, 0, 90), large]), None, "a page of the taker is a step at least");
    }

    #[test]
    fn nothing_moves_where_all_gain_about_alike_or_little_is_known() {
        assert_eq!(decided(&[standing(0, 100, 1000), standing(2, 8, 50)]), None);
        assert_eq!(decided(&[standing(0, 100, 1000), standing(2, 195, 1000)]), None);
        assert_eq!(decided(&[standing(0, 0, 1000), standing(2, HITS_MIN - 1, 50)]), None);
        assert_eq!(decided(&[standing(0, 0, 1000), standing(2, HITS_MIN, 50)]), Some((0, 2)));
        assert_eq!(decided(&[standing(0, 0, 1000), standing(2, 0, 50)]), None);
        assert_eq!(decided(&[]), None);
    }
}
