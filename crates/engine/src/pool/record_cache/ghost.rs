//! Recently evicted records: four bytes of hash each, in FIFO buckets.
//!
//! A hash covers the record and its image.

/// Hashes per bucket: one cache line.
pub(super) const BUCKET: usize = 16;

/// Buckets by hash, newest entry first. Zero is empty.
#[derive(Debug)]
pub(super) struct Ghost {
    buckets: Box<[[u32; BUCKET]]>,
}

impl Ghost {
    pub(super) fn new(entries: usize) -> Ghost {
        Ghost { buckets: vec![[0; BUCKET]; entries / BUCKET + 1].into_boxed_slice() }
    }

    pub(super) fn entries(&self) -> usize {
        self.buckets.len() * BUCKET
    }

    fn bucket(&mut self, hash: u64) -> (&mut [u32; BUCKET], u32) {
        // The upper half of the product is uniform and needs no division.
        let at = (u128::from(hash) * self.buckets.len() as u128) >> 64;
        (&mut self.buckets[at as usize], hash as u32 | 1)
    }

    pub(super) fn insert(&mut self, hash: u64) {
        let (bucket, tag) = self.bucket(hash);
        bucket.rotate_right(1);
        bucket[0] = tag;
    }

    /// Removes a record; returns how many entered its bucket since.
    pub(super) fn forget(&mut self, hash: u64) -> Option<usize> {
        let (bucket, tag) = self.bucket(hash);
        let at = bucket.iter().position(|&known| known == tag)?;
        bucket[at..].rotate_left(1);
        bucket[BUCKET - 1] = 0;
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_about_as_many_as_it_was_made_for_and_knows_how_long_ago() {
        let mut ghost = Ghost::new(4000);
        let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32) ^ number << 40;
        (1..=10_000).for_each(|number| ghost.insert(hash(number)));
        let known = |ghost: &mut Ghost, range: std::ops::RangeInclusive<u64>| -> Vec<usize> {
            range.filter_map(|number| ghost.forget(hash(number))).collect()
        };
        let late = known(&mut ghost, 9_501..=10_000);
        assert!(late.len() > 480 && late.iter().filter(|&&at| at < BUCKET / 2).count() > 450);
        assert!(known(&mut ghost, 1..=2_000).len() < 100);
        assert_eq!(known(&mut ghost, 9_501..=10_000), [], "what was asked for once is forgotten");
    }
}
