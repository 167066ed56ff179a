//! A policy that changes while in use.
//!
//! It rarely changes, so its line stays in every cache. A decision during a change may mix old and
//! new, which is harmless.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::Policy;
use crate::threads::Padded;

/// A [`Policy`] that all threads read and any may replace.
///
/// ```
/// use terrace::migration::{LivePolicy, Policy};
///
/// let live = LivePolicy::new(Policy::EAGER);
/// live.set(Policy::LAZY);
/// assert_eq!(live.get(), Policy::LAZY);
/// ```
#[derive(Debug)]
pub struct LivePolicy(Padded<[AtomicU32; 4]>);

impl LivePolicy {
    /// Starts with `policy`.
    pub fn new(policy: Policy) -> LivePolicy {
        LivePolicy(Padded(policy.millionths.map(AtomicU32::new)))
    }

    /// The current policy. Relaxed: a probability publishes no other data.
    #[inline]
    pub fn get(&self) -> Policy {
        let [dr, dw, nr, nw] = &*self.0;
        Policy { millionths: [dr.load(Relaxed), dw.load(Relaxed), nr.load(Relaxed), nw.load(Relaxed)] }
    }

    /// Replaces the policy.
    pub fn set(&self, policy: Policy) {
        self.0.iter().zip(policy.millionths).for_each(|(word, millionths)| word.store(millionths, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_while_a_policy_changes_is_one_of_both_for_each_probability() {
        let (one, other) = (Policy::LAZY, Policy::HYMEM);
        let live = LivePolicy::new(one);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..20_000).for_each(|turn| live.set(if turn % 2 == 0 { other } else { one })));
            for _ in 0..20_000 {
                for (seen, known) in
                    live.get().millionths.into_iter().zip(one.millionths.into_iter().zip(other.millionths))
                {
                    assert!(seen == known.0 || seen == known.1);
                }
            }
        });
        assert_eq!(live.get(), one);
    }
}
