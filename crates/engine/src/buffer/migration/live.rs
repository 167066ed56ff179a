//! A policy that changes while it is used.
//!
//! Read by every access to a page of the middle tier, and written once in many thousands of operations, so the line stays in
//! every processor's cache. The four probabilities are four words: who decides while they change may see the old one of one
//! tier and the new one of another, which is a policy as good as any for one page.

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
    /// One that begins with `policy`.
    pub fn new(policy: Policy) -> LivePolicy {
        LivePolicy(Padded(policy.millionths.map(AtomicU32::new)))
    }

    /// What holds now. Relaxed: nothing else is published with a probability.
    #[inline]
    pub fn get(&self) -> Policy {
        let [dr, dw, nr, nw] = &*self.0;
        Policy { millionths: [dr.load(Relaxed), dw.load(Relaxed), nr.load(Relaxed), nw.load(Relaxed)] }
    }

    /// Lets `policy` hold from now on.
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
