//! The current operation of each thread, for migration decisions.
//!
//! A die is cast once per page and operation number ([`Die`](super::migration::Die)). A restart
//! casts the same one. Begin and restart cost one thread-local store each.

use std::cell::Cell;

use super::migration::Access;

#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Operation {
    pub(in crate::pool) number: u64,
    pub(in crate::pool) restarts: u32,
    pub(in crate::pool) access: Access,
    /// The last number counted for an adaptive policy.
    counted: u64,
}

/// Minimum operations counted together.
const COUNTED_MIN: u64 = 64;

thread_local! {
    static NOW: Cell<Operation> =
        const { Cell::new(Operation { number: 0, restarts: 0, access: Access::Read, counted: 0 }) };
}

#[inline]
pub(crate) fn begin(access: Access) {
    NOW.with(|now| {
        let before = now.get();
        now.set(Operation { number: before.number.wrapping_add(1), restarts: 0, access, ..before });
    });
}

#[inline]
pub(crate) fn again() {
    NOW.with(|now| now.set(Operation { restarts: now.get().restarts.saturating_add(1), ..now.get() }));
}

/// Uncounted operations of the thread; none while they are few.
pub(in crate::pool) fn uncounted() -> Option<u64> {
    let now = NOW.get();
    let uncounted = now.number.wrapping_sub(now.counted);
    (uncounted >= COUNTED_MIN).then(|| {
        NOW.set(Operation { counted: now.number, ..now });
        uncounted
    })
}

pub(in crate::pool) fn current() -> Operation {
    NOW.get()
}
