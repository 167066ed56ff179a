//! U4 and U5 on PostgreSQL, and what N6 shares with them: a server on a mount that records.
//!
//! | file | contents |
//! |---|---|
//! | `processes.rs` | children that end with the work |
//! | `server.rs` | the server, the mount, sessions |
//! | `marks.rs` | recordings with queries |
//! | `tpch.rs` | TPC-H: load, plans, streams |

mod marks;
mod processes;
mod server;
mod tpch;

pub use marks::{Uses, open, queries_of};
pub use server::{NO_QUERY, PAGE_BYTES, Server, has_sessions};
pub use tpch::{end_to_end, query_by_query};

use super::claim::{Measured, Verdict};

/// How ids of claims end that need the server.
const SUFFIX: &str = "-postgresql";

/// What the claim needs and is not here, if it is one of PostgreSQL's.
pub fn lack(id: &str) -> Option<String> {
    let missing = if id.ends_with(SUFFIX) { server::missing() } else { Vec::new() };
    (!missing.is_empty()).then(|| format!("needs {}", missing.join(", ")))
}

/// The result without a measurement.
pub fn not_here(lack: &str) -> Measured {
    let note = format!("PostgreSQL on a mount {lack}");
    Measured { measured: String::new(), verdict: Verdict::NotHere, note, figures: vec![] }
}
