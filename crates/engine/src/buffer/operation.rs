//! What an operation on a tree or a page is, for the decisions whether pages move.
//!
//! A die is cast once for each page and operation, and an operation that starts again, because it read what somebody was changing,
//! casts the same ([`Die`](super::migration::Die)). So each thread counts the operations that it begins; the number is the die's.
//! Who runs attempts until nothing moves under one says when the operation begins ([`begin`]), and when it begins again
//! ([`again`]). Both are a store to a word of the thread's own.

use std::cell::Cell;

use super::migration::Access;

/// What is known of the operation that the calling thread is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    /// Which of the thread's it is.
    pub(super) number: u64,
    /// Times it began again.
    pub(super) restarts: u32,
    /// What it does to the page it is about.
    pub(super) access: Access,
    /// The number of the last that was counted for a policy that changes by itself.
    counted: u64,
}

/// Operations that come together before they are counted.
const COUNTED_MIN: u64 = 64;

thread_local! {
    static NOW: Cell<Operation> =
        const { Cell::new(Operation { number: 0, restarts: 0, access: Access::Read, counted: 0 }) };
}

/// The calling thread begins another operation.
#[inline]
pub(crate) fn begin(access: Access) {
    NOW.with(|now| {
        let before = now.get();
        now.set(Operation { number: before.number.wrapping_add(1), restarts: 0, access, ..before });
    });
}

/// It begins again with the same.
#[inline]
pub(crate) fn again() {
    NOW.with(|now| now.set(Operation { restarts: now.get().restarts.saturating_add(1), ..now.get() }));
}

/// How many the calling thread has begun since this was last asked; none as long as they are few.
pub(super) fn uncounted() -> Option<u64> {
    let now = NOW.get();
    let uncounted = now.number.wrapping_sub(now.counted);
    (uncounted >= COUNTED_MIN).then(|| {
        NOW.set(Operation { counted: now.number, ..now });
        uncounted
    })
}

/// The operation that the calling thread is in.
pub(super) fn current() -> Operation {
    NOW.get()
}
