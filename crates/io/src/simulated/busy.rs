//! Busy spans of a channel, in virtual time.
//!
//! Workers run one operation at a time, so one may request a moment that an earlier driven worker
//! has already passed. A single "free from" would make it wait for that whole operation. So a
//! transfer takes idle time from its moment on, in pieces if needed; then that time is one busy
//! span. Spans before every worker's clock are dropped.

use std::collections::BTreeMap;

/// Most spans kept. Beyond it the oldest two merge, and workers that far behind lose the idle time
/// between.
const SPANS_MAX: usize = 1024;

/// Disjoint, non-adjacent spans: end by start, picoseconds.
#[derive(Debug, Default)]
pub(super) struct Busy {
    spans: BTreeMap<u64, u64>,
}

impl Busy {
    /// Takes `hold` of idle time from `from` on; returns the end.
    pub(super) fn take(&mut self, from: u64, hold: u64) -> u64 {
        if hold == 0 {
            return from;
        }
        let (mut start, mut at, mut rest) = (from, from, hold);
        if let Some((&before, &end)) = self.spans.range(..=from).next_back()
            && end >= from
        {
            self.spans.remove(&before);
            (start, at) = (before, end);
        }
        while let Some((&next, &end)) = self.spans.range(at..).next() {
            let idle = next - at;
            if rest < idle {
                break;
            }
            self.spans.remove(&next);
            if rest == idle {
                // It ends where that span begins: merge both.
                self.spans.insert(start, end);
                return next;
            }
            rest -= idle;
            at = end;
        }
        let done = at.saturating_add(rest);
        self.spans.insert(start, done);
        done
    }

    /// Drops spans before `cutoff`, which no request will need.
    pub(super) fn forget_before(&mut self, cutoff: u64) {
        while let Some(first) = self.spans.first_entry()
            && *first.get() <= cutoff
        {
            first.remove();
        }
        while self.spans.len() > SPANS_MAX {
            let (first, _) = self.spans.pop_first().expect("there are more than SPANS_MAX");
            let (_, end) = self.spans.pop_first().expect("there are more than SPANS_MAX");
            self.spans.insert(first, end);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_takes_idle_time_from_its_moment_on() {
        let mut busy = Busy::default();
        assert_eq!(busy.take(100, 10), 110);
        assert_eq!(busy.take(200, 10), 210);
        assert_eq!(busy.take(0, 50), 50, "earlier, where it is idle");
        assert_eq!(busy.take(105, 10), 120, "after the first, which ends at 110");
        assert_eq!(busy.take(190, 30), 230, "around the one in between");
        assert_eq!(busy.take(60, 40), 100, "just up to the next");
        assert_eq!(busy.take(0, 0), 0);
        assert_eq!(busy.spans, BTreeMap::from([(0, 50), (60, 120), (190, 230)]));
        busy.forget_before(120);
        assert_eq!(busy.spans, BTreeMap::from([(190, 230)]));
    }

    /// Against an array with a bit per moment.
    #[test]
    fn busy_time_is_what_was_taken() {
        for seed in 0..50u64 {
            let mut state = seed;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let (mut busy, mut model) = (Busy::default(), vec![false; 10_000]);
            for _ in 0..200 {
                let (from, hold) = (draw(2000), draw(12));
                let mut at = from;
                let mut rest = hold;
                while rest > 0 {
                    rest -= u64::from(!std::mem::replace(&mut model[at as usize], true));
                    at += 1;
                }
                assert_eq!(busy.take(from, hold), at, "seed {seed}");
                let taken: u64 = busy.spans.iter().map(|(start, end)| end - start).sum();
                assert_eq!(taken as usize, model.iter().filter(|taken| **taken).count(), "seed {seed}");
            }
        }
    }

    #[test]
    fn spans_are_bounded() {
        let mut busy = Busy::default();
        for at in 0..5000 {
            busy.take(at * 10, 1);
            busy.forget_before(0);
        }
        assert_eq!(busy.len(), SPANS_MAX);
        assert_eq!(busy.take(49_995, 1), 49_996, "what is recent is as it was");
    }
}
