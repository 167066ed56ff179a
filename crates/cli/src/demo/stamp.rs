//! Versioned values: 8 bytes of version, 8 bytes of checksum, then the content.
//!
//! The checksum covers key, version and content. So any reader detects a value of another key, a
//! torn value or a mix of versions. Version 0 is the loaded one.

use terrace_common::values::mix;

/// Bytes before the content.
pub const STAMP_BYTES: usize = 16;

/// The value of `key` at `version`.
pub fn stamp(key: &[u8], version: u64, content: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(STAMP_BYTES + content.len());
    value.extend_from_slice(&version.to_le_bytes());
    value.extend_from_slice(&checksum(key, version, content).to_le_bytes());
    value.extend_from_slice(content);
    value
}

/// Version and content of a value, if it is intact and belongs to `key`.
pub fn open<'a>(key: &[u8], value: &'a [u8]) -> Option<(u64, &'a [u8])> {
    let (version, rest) = value.split_first_chunk()?;
    let (sum, content) = rest.split_first_chunk()?;
    let version = u64::from_le_bytes(*version);
    (u64::from_le_bytes(*sum) == checksum(key, version, content)).then_some((version, content))
}

fn checksum(key: &[u8], version: u64, content: &[u8]) -> u64 {
    let mut state = mix(version ^ (key.len() as u64) << 32 ^ (content.len() as u64) << 1);
    for part in [key, content] {
        let (words, rest) = part.as_chunks::<8>();
        for word in words {
            state = (state ^ u64::from_le_bytes(*word)).wrapping_mul(0x9fb2_1c65_1e98_df25);
            state ^= state >> 32;
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        state = mix(state ^ u64::from_le_bytes(last));
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamped_value_opens_and_any_other_does_not() {
        for length in [0, 1, 8, 15, 16, 1000] {
            let content = vec![7; length];
            let value = stamp(b"key", 5, &content);
            assert_eq!(open(b"key", &value), Some((5, &content[..])));
            assert_eq!(open(b"kez", &value), None);
            for at in 0..value.len() {
                let mut broken = value.clone();
                broken[at] ^= 4;
                assert_eq!(open(b"key", &broken), None, "byte {at}");
                assert_eq!(open(b"key", &value[..at]), None, "cut at {at}");
            }
        }
    }

    #[test]
    fn mixing_two_versions_is_found() {
        let old = stamp(b"k", 1, &[1; 64]);
        let mut new = stamp(b"k", 2, &[2; 64]);
        new[40..].copy_from_slice(&old[40..]);
        assert_eq!(open(b"k", &new), None);
    }
}
