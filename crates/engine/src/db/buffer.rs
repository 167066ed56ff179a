//! Buffers for reads that return no value of their own.

use std::cell::Cell;

use crate::error::Result;

/// Longest buffer that a thread keeps: it is outside the budget.
const KEPT_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Calls `read` with the value that `copy` puts into a buffer of this thread, if it says so.
///
/// `read` may call this again; the inner call then takes a new buffer.
pub(super) fn with_value<R>(
    copy: impl FnOnce(&mut Vec<u8>) -> Result<bool>,
    read: impl FnOnce(&[u8]) -> R,
) -> Result<Option<R>> {
    // The thread-local of an ending thread may be gone.
    let mut value = SPARE.try_with(Cell::take).unwrap_or_default();
    let answer = copy(&mut value).map(|found| found.then(|| read(&value)));
    if value.capacity() <= KEPT_BYTES_MAX {
        let _ = SPARE.try_with(|spare| spare.set(value));
    }
    answer
}

/// Empties `value` unless `copy` has put a value into it.
pub(super) fn or_empty(value: &mut Vec<u8>, copy: impl FnOnce(&mut Vec<u8>) -> Result<bool>) -> Result<bool> {
    let found = copy(value);
    if !matches!(found, Ok(true)) {
        value.clear();
    }
    found
}
