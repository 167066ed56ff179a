//! Results of `simulate`: the `--json` object, and text and HTML made from it.
//!
//! | module  | contents                      |
//! |---------|-------------------------------|
//! | `found` | the object                    |
//! | `table` | the text                      |
//! | `html`  | the report                    |
//! | `merge` | merges the objects of shards  |
//!
//! Text and report use only the object, so merged shards look like a single run.

mod found;
mod html;
mod merge;
mod table;

pub use found::Found;
pub use html::report;
pub use merge::merge;
pub use table::table;
