//! Moves frames to the class that misses most for lack of them.
//!
//! A ghost hit is a fault that more frames would have avoided. Ghost hits per remembered page
//! measure the gain per byte: hits of larger pages save more, in larger frames. This is the
//! gradient of Cliffhanger (Cidon et al., NSDI 2016).
//!
//! A step (`resize.rs`) moves [`STEP_SHARE`](super::budget::STEP_SHARE) of the budget from the
//! class with the least gain to that with the most. A class that no others can serve is passed
//! over. Against oscillation, the gains must differ by the factor [`GAIN_MIN`], and frames worth a
//! step must have been taken since the last decision. A starving class, whose frames waiting
//! threads hold, gets a step regardless.
//!
//! The thread that makes a step may hold frames, so it never waits for frames in use. A pinned page
//! keeps its frame and those before it. So pages that would leave in vain stay, too.

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
/// Gains are compared as integers: a ghost knows fewer pages.
const PRECISION: u64 = 1 << 32;

#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) class: SizeClass,
    pub(super) hits: u64,
    /// Pages in the ghost.
    pub(super) known: u64,
    /// Bytes above the floor that no page in use keeps.
    pub(super) above: u64,
}

/// The givers of a step, and its taker: of the classes that others can serve, that with the most
/// gain.
///
/// A step has at least the bytes of one of the taker's pages.
pub(super) fn decide(standings: &[Standing], step: u64) -> Option<(Vec<SizeClass>, SizeClass)> {
    let mut by_gain: Vec<&Standing> = standings.iter().collect();
    by_gain.sort_by_key(|one| one.hits * PRECISION / one.known.max(1));
    let takers = by_gain.iter().rev().filter(|taker| taker.hits >= HITS_MIN);
    takers.copied().find_map(|taker| Some((givers(&by_gain, taker, step)?, taker.class)))
}

/// The class with the least gain that has a whole step, or else several, from the least gain on.
fn givers(by_gain: &[&Standing], taker: &Standing, step: u64) -> Option<Vec<SizeClass>> {
    let step = step.max(taker.class.page_bytes() as u64);
    // One more: no hits so far may be chance.
    let gains = |one: &Standing| taker.hits * one.known > GAIN_MIN * (one.hits + 1) * taker.known;
    let may_give = |one: &&&Standing| one.class != taker.class && one.above > 0 && gains(one);
    let mut willing = by_gain.iter().filter(may_give);
    if let Some(alone) = willing.clone().find(|one| one.above >= step) {
        return Some(vec![alone.class]);
    }
    let (mut givers, mut bytes) = (Vec::new(), 0);
    while bytes < step {
        let giver = willing.next()?;
        givers.push(giver.class);
        bytes += giver.above;
    }
    Some(givers)
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
        let (givers, taker) = decide(standings, 1 << 16)?;
        assert_eq!(givers.len(), 1, "{givers:?}");
        Some((givers[0].index(), taker.index()))
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
    fn a_class_that_no_other_can_serve_does_not_keep_another_from_a_step() {
        // A page of two megabytes, and no others have as much.
        let starved = standing(9, 100, 90);
        assert_eq!(decided(&[standing(0, 0, 90), standing(1, 40, 90)]), Some((0, 1)));
        let small = |index, hits| Standing { above: 1 << 18, ..standing(index, hits, 90) };
        assert_eq!(decided(&[small(0, 0), small(1, 40), starved]), Some((0, 1)));
        // Its own frames are no help to a class that gains less.
        assert_eq!(decided(&[Standing { above: 0, ..small(0, 0) }, small(1, 40), starved]), None);
    }

    #[test]
    fn several_classes_give_where_none_has_a_whole_step() {
        let small = |index, hits| Standing { above: 48 << 10, ..standing(index, hits, 90) };
        let of = |standings: &[Standing]| {
            let (givers, taker) = decide(standings, 1 << 16)?;
            Some((givers.iter().map(|class| class.index()).collect::<Vec<_>>(), taker.index()))
        };
        assert_eq!(of(&[small(0, 3), small(1, 0), small(2, 40)]), Some((vec![1, 0], 2)));
        assert_eq!(of(&[small(0, 30), small(1, 0), small(2, 40)]), None, "one gains about as much");
        assert_eq!(of(&[small(0, 3), small(1, 0), small(2, 40), standing(3, 4, 90)]), Some((vec![3], 2)));
        let unknown = Standing { known: 0, ..small(1, 0) };
        assert_eq!(of(&[small(0, 3), unknown, small(2, 40), small(3, 0)]), Some((vec![3, 0], 2)));
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
