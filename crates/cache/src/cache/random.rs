//! Random numbers from the system.

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// A unique random number.
///
/// From the system, because forked processes would share a generator in memory.
pub(super) fn draw() -> u64 {
    let mut bytes = [0; 8];
    let drawn = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()));
    assert_eq!(drawn, Ok(bytes.len()), "the system has no random numbers");
    u64::from_le_bytes(bytes) | 1
}
