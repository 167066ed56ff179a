//! Keys by number, and values that verify themselves.
//!
//! A key is `user` and twenty decimal digits, so keys sort by number. Loaded record `i` has number
//! `i << 24`. A load is one ascending sweep, and the gaps take 16 million inserts scattered over
//! the whole range. Inserting only at one end would measure a single page.
//!
//! A value is its version (8 bytes, little-endian) and words derived from key number and version.
//! Readers recompute them, which detects values of another key, torn values and mixed versions.
//! Values under 16 bytes have no version and depend on the key alone.

use super::zipf::Scatter;

/// Bytes per key.
pub const KEY_BYTES: usize = 24;

/// Bits of a key number that count within a gap.
const GAP_BITS: u32 = 24;

/// The shortest value with a version.
const VERSIONED_BYTES_MIN: usize = 16;

/// The key with this number.
#[inline]
pub fn key(mut number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"user00000000000000000000";
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    key
}

/// The number of a key, if it has this module's form.
pub fn number(key: &[u8]) -> Option<u64> {
    let (first, rest) = key.strip_prefix(b"user")?.split_first_chunk::<4>()?;
    let ([middle, last], []) = rest.as_chunks::<8>() else { return None };
    let mut high = [b'0'; 8];
    high[4..].copy_from_slice(first);
    let low = eight_digits(*middle)? * 100_000_000 + eight_digits(*last)?;
    eight_digits(high)?.checked_mul(10_000_000_000_000_000)?.checked_add(low)
}

/// Parses eight decimal digits. Sums pairs, then pairs of pairs: scans call this for every entry.
#[inline]
fn eight_digits(digits: [u8; 8]) -> Option<u64> {
    const ALL: u64 = 0x0101_0101_0101_0101;
    let digits = u64::from_le_bytes(digits) ^ (ALL * 0x30);
    // Any byte above nine, or so large that the addition carries out of its lower seven bits.
    if (digits | ((digits & (ALL * 0x7f)) + ALL * (0x80 - 10))) & (ALL * 0x80) != 0 {
        return None;
    }
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

/// The key number of loaded record `record`.
#[inline]
pub fn loaded(record: u64) -> u64 {
    record << GAP_BITS
}

/// The key number of the `count`th insert over all threads, in a gap between loaded records.
#[inline]
pub fn inserted(scatter: &Scatter, records: u64, count: u64) -> u64 {
    let gap = count % ((1 << GAP_BITS) - 1) + 1;
    loaded(scatter.spread(count % records)) | gap
}

/// Fills `value` with the `size` bytes for a key and version.
pub fn fill(number: u64, version: u64, size: usize, value: &mut Vec<u8>) {
    value.clear();
    value.reserve(size);
    let version = if size < VERSIONED_BYTES_MIN { 0 } else { version };
    if size >= VERSIONED_BYTES_MIN {
        value.extend_from_slice(&version.to_le_bytes());
    }
    let mut words = Words::new(number, version);
    while value.len() < size {
        let word = words.next().to_le_bytes();
        value.extend_from_slice(&word[..word.len().min(size - value.len())]);
    }
}

/// Whether `value` is [`fill`]'s output for this key at any version.
pub fn check(number: u64, size: usize, value: &[u8]) -> bool {
    if value.len() != size {
        return false;
    }
    let (version, content) = match value.split_first_chunk() {
        Some((version, content)) if size >= VERSIONED_BYTES_MIN => (u64::from_le_bytes(*version), content),
        _ => (0, value),
    };
    let mut words = Words::new(number, version);
    let (whole, rest) = content.as_chunks::<8>();
    // Values are normally right, so stopping at the first difference gains nothing.
    let differing = whole.iter().fold(0, |bits, chunk| bits | (u64::from_le_bytes(*chunk) ^ words.next()));
    differing == 0 && words.next().to_le_bytes().starts_with(rest)
}

/// Words derived from key and version. A counter without multiplication lets the processor compute
/// several in parallel, so that a scan measures the engine and not this check.
struct Words {
    counter: u64,
}

impl Words {
    fn new(number: u64, version: u64) -> Words {
        Words { counter: mix(number ^ mix(version.wrapping_add(0x9e37_79b9_7f4a_7c15))) }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.counter ^ (self.counter >> 29)
    }
}

/// A bijective scrambling of 64 bits (the finalizer of SplitMix64).
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_numbers() {
        assert_eq!(&key(0), b"user00000000000000000000");
        assert_eq!(&key(u64::MAX), b"user18446744073709551615");
        assert!(key(9) < key(10) && key(loaded(3)) < key(loaded(4)));
        assert_eq!(number(&key(123_456)), Some(123_456));
        for count in
            (0..u64::MAX - (1 << 59)).step_by(1 << 59).chain([u64::MAX, 9_999_999_999, 10_000_000_000])
        {
            assert_eq!(number(&key(count)), Some(count));
        }
        assert_eq!(number(b"user1"), None);
        assert_eq!(number(b"user18446744073709551616"), None, "one more than there are");
        assert_eq!(number(b"user99999999999999999999"), None);
        for index in 4..KEY_BYTES {
            for byte in (0..=u8::MAX).filter(|byte| !byte.is_ascii_digit()) {
                let mut wrong = key(123_456);
                wrong[index] = byte;
                assert_eq!(number(&wrong), None, "{byte} at {index}");
            }
        }
        assert_eq!(number(b"other000000000000000000"), None);
    }

    #[test]
    fn inserts_meet_neither_the_loaded_nor_each_other() {
        let records = 100;
        let scatter = Scatter::new(records);
        let mut seen: std::collections::HashSet<u64> = (0..records).map(loaded).collect();
        assert!((0..10_000).all(|count| seen.insert(inserted(&scatter, records, count))));
    }

    #[test]
    fn values_prove_themselves() {
        let mut value = Vec::new();
        let mut other = Vec::new();
        for size in [0, 1, 7, 8, 15, 16, 17, 100, 1000] {
            fill(7, 3, size, &mut value);
            assert_eq!(value.len(), size);
            assert!(check(7, size, &value));
            assert!(!check(7, size + 1, &value));
            if size > 0 {
                assert!(!check(8, size, &value), "another key, {size} bytes");
            }
            for at in 0..size {
                value[at] ^= 0x10;
                assert!(!check(7, size, &value), "flipped byte {at} of {size}");
                value[at] ^= 0x10;
            }
            fill(7, 4, size, &mut other);
            assert_eq!(value != other, size >= VERSIONED_BYTES_MIN);
        }
        fill(7, 3, 100, &mut value);
        fill(7, 4, 100, &mut other);
        value[50..].copy_from_slice(&other[50..]);
        assert!(!check(7, 100, &value), "half of each version");
    }
}
