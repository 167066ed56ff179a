use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use terrace_block::MemoryDirectory;

use crate::buffer::table::Location;
use crate::buffer::{Mode, Pool};
use crate::{Backend, Db, RecordCache};

const ROWS: u32 = 4000;

fn value(key: u32) -> Vec<u8> {
    vec![key as u8 | 1; 700]
}

/// Reads a table several times as large as memory; `others` is what another thread does at points where it may. Whether all
/// was there.
fn all_is_read(backend: Backend, others: impl Fn(&Pool) + 'static) -> bool {
    let directory = Arc::new(MemoryDirectory::new());
    let open = || {
        let builder =
            Db::builder().directory(directory.clone()).dram(1 << 20).page_size(4096).mode(Mode::Inline);
        builder.record_cache(RecordCache::Off).backend(backend).seed(1).open("").unwrap()
    };
    let db = open();
    let table = db.create_table("t").unwrap();
    (0..ROWS).for_each(|key| table.put(key.to_be_bytes(), value(key)).unwrap());
    drop(table);
    db.close().unwrap();
    // From here on nothing is dirty, so that nothing is written.
    let db = open();
    let table = db.open_table("t").unwrap();
    crate::crash::play(Some(Rc::new(others)));
    let is_there =
        |key: u32| matches!(table.get(key.to_be_bytes()), Ok(Some(found)) if found[..] == value(key)[..]);
    let all = (0..ROWS).map(|key| key * 1009 % ROWS).all(is_there);
    crate::crash::play(None);
    assert!(db.stats().evictions > 100, "{:?}", db.stats());
    all
}

/// Another thread asks for pages that have just left.
fn pages_come_back_while_others_leave(backend: Backend) -> bool {
    let (busy, turn) = (Cell::new(false), Cell::new(0));
    all_is_read(backend, move |pool| {
        if busy.replace(true) {
            return;
        }
        turn.set(turn.get() + 7);
        let away = |id: &_| {
            let entry = pool.table.entry(*id);
            entry.is_some_and(|entry| matches!(entry.location(), Location::Store(_)))
        };
        let ids: Vec<_> = pool.page_ids().filter(away).collect();
        for at in 0..8 {
            // Whoever asks in vain meets it again.
            let _ = pool.read(ids[(turn.get() + at * 31) % ids.len()]);
        }
        busy.set(false);
    })
}

#[test]
fn pages_that_come_back_while_others_leave_keep_their_bytes() {
    for backend in Backend::ALL {
        assert!(pages_come_back_while_others_leave(backend), "{backend}");
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn catches_discard_after_unlatching() {
    use crate::planted::{Bug, plant};
    plant(Some(Bug::DiscardAfterUnlatching));
    let outcome = std::panic::catch_unwind(|| pages_come_back_while_others_leave(Backend::Mapped));
    plant(None);
    crate::crash::play(None);
    assert!(!matches!(outcome, Ok(true)), "was not noticed");
}
