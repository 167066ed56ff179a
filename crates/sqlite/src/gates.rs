//! One gate for all files of a database, however often it is opened.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_block::{Gate, MachineClock};

use crate::options::Slowness;

type Gates = HashMap<(PathBuf, Slowness), Weak<Gate>>;

static GATES: Mutex<Option<Gates>> = Mutex::new(None);

/// The gate of the database, journal or write-ahead log at `path`.
pub(crate) fn of(path: &Path, slowness: Slowness) -> Arc<Gate> {
    let mut gates = GATES.lock();
    let gates = gates.get_or_insert_default();
    gates.retain(|_, gate| gate.strong_count() > 0);
    let key = (database_of(path), slowness);
    if let Some(gate) = gates.get(&key).and_then(Weak::upgrade) {
        return gate;
    }
    let gate = Arc::new(Gate::new(slowness.into(), Arc::new(MachineClock::default())));
    gates.insert(key, Arc::downgrade(&gate));
    gate
}

/// The path of the database to which a journal or a log belongs.
fn database_of(path: &Path) -> PathBuf {
    let text = path.to_string_lossy();
    let name = ["-journal", "-wal"].into_iter().find_map(|ending| text.strip_suffix(ending));
    name.map_or_else(|| path.to_owned(), PathBuf::from)
}
