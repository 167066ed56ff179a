//! Tests of the VFS in one program, because each links the crate and SQLite. `shell` is separate:
//! it tests programs built without the VFS.

mod checkpoints;
#[path = "../common/mod.rs"]
mod common;
mod errors;
mod hints;
mod kill;
mod modes;
