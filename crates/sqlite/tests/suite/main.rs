//! What the VFS promises to SQLite and to who uses it: one program of all these tests, because each program is linked with the whole of
//! both. `shell`, beside this folder, is about programs that were not built with the VFS, and is started by itself too.

mod checkpoints;
#[path = "../common/mod.rs"]
mod common;
mod errors;
mod hints;
mod kill;
mod modes;
