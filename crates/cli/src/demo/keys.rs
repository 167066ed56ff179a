//! The keys of the demo's table.

use std::ops::ControlFlow;

use terrace_common::failure::Outcome;
use terrace_common::store::Store;

/// All keys of a table in order, packed to give random access with little memory.
pub struct Keys {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Keys {
    /// The keys of `store`.
    pub fn of(store: &dyn Store) -> Outcome<Keys> {
        let mut keys = Keys { bytes: Vec::new(), ends: Vec::new() };
        store.scan(b"", &mut |key, _| {
            keys.bytes.extend_from_slice(key);
            keys.ends.push(keys.bytes.len() as u32);
            // A safety limit; the demo loads far less.
            if keys.bytes.len() < u32::MAX as usize / 2 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        keys.bytes.shrink_to_fit();
        keys.ends.shrink_to_fit();
        Ok(keys)
    }

    /// Number of keys.
    pub fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Memory of the list, to subtract from the engine's.
    pub fn size_bytes(&self) -> u64 {
        (self.bytes.len() + self.ends.len() * size_of::<u32>()) as u64
    }

    /// The key with ordinal `ordinal`.
    pub fn get(&self, ordinal: u64) -> &[u8] {
        let index = ordinal as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.bytes[start..self.ends[index] as usize]
    }
}
