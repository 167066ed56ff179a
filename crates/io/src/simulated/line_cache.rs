//! A model of a last-level cache.
//!
//! Sets of eight lines with LRU replacement. As in processors with cache slices, a hash of the line
//! number selects the set, so frames at regular distances spread. A line takes eight bytes, its
//! number.

pub(super) const LINE_BYTES: u64 = 64;
const WAYS: usize = 8;

#[derive(Debug)]
pub(super) struct LineCache {
    /// One more than the number of a line, most recently used first; 0 for none.
    sets: Box<[[u64; WAYS]]>,
}

impl LineCache {
    pub(super) fn new(bytes: u64) -> Self {
        let sets = (bytes / (LINE_BYTES * WAYS as u64)).max(1);
        Self { sets: vec![[0; WAYS]; sets as usize].into() }
    }

    /// Returns whether the line was cached, and caches it.
    pub(super) fn use_line(&mut self, line: u64) -> bool {
        let hash = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The upper half of the product spreads the hash over any number of sets.
        let set = ((u128::from(hash) * self.sets.len() as u128) >> 64) as usize;
        let ways = &mut self.sets[set];
        let known = ways.iter().position(|&way| way == line + 1);
        ways[..=known.unwrap_or(WAYS - 1)].rotate_right(1);
        ways[0] = line + 1;
        known.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_used_lately_are_there() {
        let mut cache = LineCache::new(64 << 10);
        assert!((0..256).all(|line| !cache.use_line(line)));
        let kept = (0..256).filter(|&line| cache.use_line(line)).count();
        assert!(kept > 240, "a quarter of the cache stays but for a few crowded sets: {kept}");
        (1000..100_000).for_each(|line| assert!(!cache.use_line(line)));
        assert!((0..256).all(|line| !cache.use_line(line)), "and goes when others come");
    }

    #[test]
    fn the_line_used_longest_ago_goes_first() {
        let mut cache = LineCache::new(0);
        (0..8).for_each(|line| assert!(!cache.use_line(line)));
        assert!(cache.use_line(0));
        assert!(!cache.use_line(8), "in place of 1");
        assert!(cache.use_line(0) && !cache.use_line(1));
    }
}
