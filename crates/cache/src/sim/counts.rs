//! The counts of one cache.

/// Counts of a cache, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests: lookups of one block each.
    pub requests: u64,
    /// Requests that hit.
    pub hits: u64,
    /// Write hits among them.
    pub write_hits: u64,
    /// Misses that write.
    pub write_misses: u64,
    /// Blocks put into the cache.
    pub admissions: u64,
    /// Admissions by writes.
    pub write_admissions: u64,
    /// Blocks evicted for others.
    pub evictions: u64,
    /// Evictions of dirty blocks.
    pub write_backs: u64,
    /// Writes to cache and store, if the cache writes through.
    pub written_through: u64,
    /// Misses that an LRU cache of this size would hit, if direct-mapped.
    pub conflict_misses: u64,
}

impl Counts {
    /// Requests that missed.
    pub fn misses(&self) -> u64 {
        self.requests - self.hits
    }

    /// Misses per request; 0 without requests.
    pub fn miss_ratio(&self) -> f64 {
        match self.requests {
            0 => 0.0,
            requests => self.misses() as f64 / requests as f64,
        }
    }

    /// Blocks written to the cache's device: admissions and write hits.
    pub fn device_writes(&self) -> u64 {
        self.admissions + self.write_hits
    }

    /// Blocks moved between cache and store: admitted reads and write-backs, HeuristicDB's migrated
    /// data (section 6). Admitted writes come from above.
    pub fn moved(&self) -> u64 {
        self.admissions - self.write_admissions + self.write_backs
    }

    pub(super) fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            requests: self.requests - earlier.requests,
            hits: self.hits - earlier.hits,
            write_hits: self.write_hits - earlier.write_hits,
            write_misses: self.write_misses - earlier.write_misses,
            admissions: self.admissions - earlier.admissions,
            write_admissions: self.write_admissions - earlier.write_admissions,
            evictions: self.evictions - earlier.evictions,
            write_backs: self.write_backs - earlier.write_backs,
            written_through: self.written_through - earlier.written_through,
            conflict_misses: self.conflict_misses - earlier.conflict_misses,
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(mut self, more: &Counts) -> Counts {
        self.requests += more.requests;
        self.hits += more.hits;
        self.write_hits += more.write_hits;
        self.write_misses += more.write_misses;
        self.admissions += more.admissions;
        self.write_admissions += more.write_admissions;
        self.evictions += more.evictions;
        self.write_backs += more.write_backs;
        self.written_through += more.written_through;
        self.conflict_misses += more.conflict_misses;
        self
    }
}
