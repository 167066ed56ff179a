//! What a device may hold after a power cut: any version of a cell since its last sync.

/// A sector, a line of persistent memory, or whatever else persists as a whole.
#[derive(Clone, Debug)]
pub struct Cell<T> {
    /// The durable version first, the present one last.
    versions: Vec<T>,
}

impl<T: Copy> Cell<T> {
    /// A cell with a durable content.
    pub fn new(content: T) -> Self {
        Self { versions: vec![content] }
    }

    /// The present content.
    pub fn get(&self) -> T {
        self.versions[self.versions.len() - 1]
    }

    /// Writes without a sync.
    pub fn set(&mut self, content: T) {
        self.versions.push(content);
    }

    /// Whether the present content is not durable.
    pub fn is_unsynced(&self) -> bool {
        self.versions.len() > 1
    }

    /// Makes the present content durable: a sync, or a write-back and a fence.
    pub fn sync(&mut self) {
        let present = self.get();
        self.versions.clear();
        self.versions.push(present);
    }

    /// Cuts the power. `torn` says how a half-written content looks.
    pub fn cut_power(&mut self, cut: PowerCut, number: u64, torn: Option<fn(T) -> T>) {
        let count = self.versions.len() as u64;
        if count == 1 {
            return;
        }
        let random = mix(cut.0.wrapping_mul(31).wrapping_add(number));
        let chosen = match cut.0 % 4 {
            0 => 0,
            1 => count - 1,
            _ => random % count,
        };
        let mut survivor = self.versions[chosen as usize];
        if let Some(torn) = torn
            && cut.0 % 4 == 3
            && (random >> 32).is_multiple_of(3)
        {
            survivor = torn(self.get());
        }
        self.versions.clear();
        self.versions.push(survivor);
    }
}

/// Which versions survive: by its remainder of 4 the durable ones, the present ones, any, or any
/// and torn ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerCut(pub u64);

/// Mixes bits (the finalizer of MurmurHash3).
pub fn mix(mut bits: u64) -> u64 {
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ bits >> 33
}

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }
}
