//! The interface of workloads to the driver.

use terrace::Db;
use terrace_common::failure::Outcome;
use terrace_io::VirtualTime;

/// The operations of all workers.
pub(super) trait Work {
    /// Runs the next operation of `worker`, and charges `time` with its computation.
    fn step(&mut self, worker: usize, time: &VirtualTime) -> Outcome;

    /// Reads all initial data in order.
    fn read_all(&self) -> Outcome;

    /// Reads `rows` records from key `number` on, each with `row_ns` of computation, and charges
    /// `time`.
    ///
    /// # Errors
    /// If there are fewer.
    fn scan(&mut self, worker: usize, time: &VirtualTime, number: u64, rows: u64, row_ns: u64) -> Outcome;

    /// From here on, updates write the bytes of the load.
    ///
    /// # Errors
    /// If there are no records.
    fn rewrite(&mut self) -> Outcome;

    /// Goes on in `db`, a copy of the database.
    fn reopen(&mut self, db: &Db) -> Outcome;
}
