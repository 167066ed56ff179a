//! Maintenance: writes pages back, and bounds the log and the page file.
//!
//! It stands above the pool. The pool asks it for frames, log space and room
//! (`pool/requests.rs`).
//!
//! | file             | contents                                         |
//! |------------------|--------------------------------------------------|
//! | `rounds.rs`      | the background rounds and their thread           |
//! | `seal.rs`        | seals frames of a persistent middle tier         |
//! | `service.rs`     | requests of the pool                             |
//! | `checkpoint.rs`  | the checkpoint, the superblock and the log cut   |
//! | `cleaner.rs`     | empties sparse segments                          |
//! | `left_alone.rs`  | segments that could not be emptied               |
//! | `compact.rs`     | shortens the page file                           |
//! | `flush.rs`       | writes page images                               |
//! | `table_image.rs` | writes images of the page table                  |
//! | `room.rs`        | room in the page file for changes                |
//! | `state.rs`       | the state of the rounds, under one lock          |
//! | `transfer.rs`    | the page file, read and written in pieces        |
//! | `mapping.rs`     | images and dirtiness of chunks and blocks        |
//! | `page_set.rs`    | sets of pages                                    |
//! | `create.rs`      | files of a new database                          |

#[cfg(test)]
mod audit;
mod checkpoint;
mod cleaner;
#[cfg(test)]
mod cleaner_tests;
mod compact;
mod create;
mod flush;
mod left_alone;
mod mapping;
mod page_set;
mod room;
mod rounds;
mod seal;
mod service;
mod state;
mod table_image;
mod transfer;

pub(crate) use compact::compact;
pub(crate) use create::{Layout, create, inspect};
pub(crate) use left_alone::LeftAlone;
pub(crate) use mapping::{Mapping, Part, Parts, first_of, part_of, words_per_page};
pub(crate) use page_set::PageSet;
pub(crate) use rounds::Maintenance;
pub(crate) use state::{BackupHold, RoundState};
pub(crate) use transfer::Staging;
