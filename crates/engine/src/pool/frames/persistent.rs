//! Middle frames in memory that outlives the process.
//!
//! A frame counts at recovery only while it is *sealed*: its header names page, LSN and the body's
//! checksum (`persistent/layout.rs`). Rules 9 and 10 of docs/durability.md:
//!
//! - The seal goes, durably, before the frame's first word changes, and before it lets its page go
//!   ([`PersistentFrames::unseal`]).
//! - It comes when body and log records are durable, under the page's latch
//!   ([`PersistentFrames::seal`]).
//! - A sealed frame is never older than its page's image in force. Where an image comes into force,
//!   [`PersistentFrames::unseal_older`] unseals an older copy.
//!
//! Sealing never moves recLSN, so a database without this memory lacks no data.
//!
//! | file        | contents                                    |
//! |-------------|---------------------------------------------|
//! | `seals.rs`  | seals while the database is open            |
//! | `attach.rs` | the file at open, and the frames that count |
//! | `layout.rs` | bytes of the file                           |

mod attach;
mod layout;
mod seals;

pub(crate) use attach::{Adopted, Attached, PersistentSource};
pub(in crate::pool) use seals::Sealing;
pub(crate) use seals::{BYTES_BESIDE, Dropped, PersistentFrames};
