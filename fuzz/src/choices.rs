//! Interprets an input as choices, including numbers that provoke bugs.

/// Takes choices from an input; zeros after its end.
pub(crate) struct Choices<'a>(pub(crate) &'a [u8]);

impl Choices<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// A number below `end`, which must be positive.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let bytes = if end <= 256 { 1 } else { 3 };
        (0..bytes).fold(0, |number, _| number << 8 | usize::from(self.byte())) % end
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len())])
    }

    /// A field value that careless code would trust: zero, all ones, a single bit, a `usual` number
    /// or near one, small, or any.
    pub(crate) fn number(&mut self, usual: &[u64]) -> u64 {
        match self.byte() % 10 {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (self.byte() % 64),
            3 => (1 << (self.byte() % 64)) - 1,
            4..7 => self.pick(usual).unwrap_or(1),
            7 => self.pick(usual).unwrap_or(0).wrapping_add(u64::from(self.byte() % 5)).wrapping_sub(2),
            8 => u64::from(self.byte()),
            _ => self.word(),
        }
    }

    /// Sets two, four or eight aligned bytes to a number, or flips a bit.
    pub(crate) fn poke(&mut self, bytes: &mut [u8], usual: &[u64]) {
        let length = [2, 4, 8, 8][usize::from(self.byte() % 4)];
        if bytes.len() < length {
            return;
        }
        if self.byte().is_multiple_of(8) {
            let at = self.below(bytes.len());
            bytes[at] ^= 1 << (self.byte() % 8);
            return;
        }
        let (at, number) = (self.below(bytes.len() / length) * length, self.number(usual));
        bytes[at..at + length].copy_from_slice(&number.to_le_bytes()[..length]);
    }
}
