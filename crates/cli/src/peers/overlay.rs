//! Transactions over a store that has single operations and atomic batches: reads see the store below the writes so far,
//! and the writes come out as one batch.
//!
//! The engine keeps such transactions apart from all other writes with a lock of which every plain write takes a shared hold
//! and a transaction the exclusive one. That is one transaction at a time, as with the engines that have one writer.

use crate::failure::Outcome;
use crate::store::{Access, Ending};

/// Keys and values to be set together.
pub type Writes = Vec<(Vec<u8>, Vec<u8>)>;

/// What is below: the newest value of a key.
pub type Below<'a> = dyn Fn(&[u8]) -> Outcome<Option<Vec<u8>>> + 'a;

/// The inside of one transaction.
struct Overlay<'a> {
    below: &'a Below<'a>,
    writes: Writes,
}

/// Runs `body` over `below`; its writes if it wants to commit, in the order they were made.
pub fn run(
    below: &Below<'_>,
    body: &mut dyn FnMut(&mut dyn Access) -> Outcome<Ending>,
) -> Outcome<Option<Writes>> {
    let mut overlay = Overlay { below, writes: Vec::new() };
    Ok(match body(&mut overlay)? {
        Ending::Commit => Some(overlay.writes),
        Ending::Abort => None,
    })
}

impl Access for Overlay<'_> {
    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        match self.writes.iter().rev().find(|(written, _)| written == key) {
            Some((_, value)) => Ok(Some(value.clone())),
            None => (self.below)(key),
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        self.writes.push((key.to_vec(), value.to_vec()));
        Ok(())
    }
}
