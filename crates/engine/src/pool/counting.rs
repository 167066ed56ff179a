//! Verify marks of a pool during a verification.

use std::sync::Arc;

use super::buffer_pool::Pool;
use super::verify_marks::VerifyMarks;
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct Counting<'p> {
    pool: &'p Pool,
    pub(crate) verify_marks: Arc<VerifyMarks>,
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.pool.verify_marks.end();
    }
}

impl<'p> Counting<'p> {
    /// Begins verify marks, until dropped. One at a time, with no commit under way and no page
    /// being freed.
    pub(crate) fn of(pool: &'p Pool) -> Result<Counting<'p>> {
        let ends = pool.ids.lock().ends();
        Ok(Counting { pool, verify_marks: pool.verify_marks.begin(ends)? })
    }
}
