//! Transactions for stores with single operations and atomic batches. Reads see the store below the
//! transaction's own writes, which commit as one batch.
//!
//! The engine isolates them with a lock: shared for plain writes, exclusive for a transaction. So
//! one transaction runs at a time, as in single-writer engines.

use terrace_common::failure::Outcome;
use terrace_common::store::{Access, Ending};

/// Keys and values to set together.
pub type Writes = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads the newest value of a key from the store.
pub type Below<'a> = dyn Fn(&[u8]) -> Outcome<Option<Vec<u8>>> + 'a;

/// One transaction.
struct Overlay<'a> {
    below: &'a Below<'a>,
    writes: Writes,
}

/// Runs `body` over `below`. Returns its writes in order if it commits.
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
