//! The table of a command.

use terrace_common::failure::Outcome;
use terrace_common::store::{Opener, Settings, Store, with_database};

use crate::args::TableArgs;

/// Opens a table, passes it to `work`, and closes the database even after a failure.
pub fn with_table<T>(
    opener: &dyn Opener,
    settings: &Settings,
    args: &TableArgs,
    work: impl FnOnce(&dyn Store) -> Outcome<T>,
) -> Outcome<T> {
    with_database(opener, settings, |database| {
        let table = database.table(&args.table, settings.create)?;
        work(&*table)
    })
}
