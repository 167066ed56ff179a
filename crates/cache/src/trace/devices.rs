//! The devices of a trace, numbered in order of appearance.
//!
//! The upper 16 bits of a block number are the device, so that two devices share no block.

use std::collections::HashMap;

use super::parse::{ParseError, Span, malformed};

/// Most devices per trace.
const DEVICES_MAX: usize = 1 << 16;
/// Longest name of a device, in bytes.
const NAME_BYTES_MAX: usize = 1 << 10;
/// Bits of a block number within one device.
const BLOCK_BITS: u32 = 48;

#[derive(Default)]
pub(super) struct Devices {
    numbers: HashMap<Box<[u8]>, u64>,
}

impl Devices {
    pub(super) fn find(&self, name: &[u8]) -> Option<u64> {
        self.numbers.get(name).copied()
    }

    /// The number of a device.
    pub(super) fn number(&mut self, name: &[u8]) -> Result<u64, ParseError> {
        if let Some(number) = self.find(name) {
            return Ok(number);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(malformed(format!("a device's name has more than {NAME_BYTES_MAX} bytes")));
        }
        if self.numbers.len() == DEVICES_MAX {
            return Err(malformed(format!("more than {DEVICES_MAX} devices")));
        }
        let number = self.numbers.len() as u64;
        self.numbers.insert(name.into(), number);
        Ok(number)
    }
}

impl Span {
    /// The same blocks of a device.
    pub(super) fn on(mut self, device: u64) -> Result<Span, ParseError> {
        let block = self.request.block;
        if (block + self.blocks) >> BLOCK_BITS != 0 {
            return Err(malformed(format!("block {block} of a device is not below 2^{BLOCK_BITS}")));
        }
        self.request.block |= device << BLOCK_BITS;
        Ok(self)
    }
}
