//! Requests by stack distance: LRU's misses at every size.

/// Requests by stack distance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distances {
    /// Requests of distance 1, 2 and so on.
    pub(super) counts: Vec<u64>,
    /// First uses of blocks.
    pub(super) first: u64,
}

impl Distances {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.first + self.counts.iter().sum::<u64>()
    }

    /// Misses of an LRU cache of `blocks` blocks.
    pub fn misses(&self, blocks: usize) -> u64 {
        self.first + self.counts.iter().skip(blocks).sum::<u64>()
    }

    /// Misses at each of the increasing `sizes`.
    pub fn curve(&self, sizes: &[usize]) -> Vec<(usize, u64)> {
        let mut misses = self.requests();
        let mut counted = 0;
        let mut curve = Vec::with_capacity(sizes.len());
        for blocks in sizes {
            let upto = (*blocks).clamp(counted, self.counts.len());
            misses -= self.counts[counted..upto].iter().sum::<u64>();
            counted = upto;
            curve.push((*blocks, misses));
        }
        curve
    }
}
