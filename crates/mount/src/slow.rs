//! The files of the lower directory as one slow device of the cache.
//!
//! The device has no file itself. Whoever calls the cache lends it the open file that a program
//! uses, for this one call ([`through`]), because the cache reads and writes in the caller's
//! thread. The caller knows the file's relation, too, so a hit looks it up in no shared table.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use terrace_cache::Relations;
use terrace_cache::policy::Relation;
use terrace_io::BlockDevice;

use crate::lower::{ALIGNMENT, Lower};
use crate::planted::{MountBug, planted};
use crate::relations::Part;

thread_local! {
    static LENT: RefCell<Option<Lent>> = const { RefCell::new(None) };
}

struct Lent {
    /// None: writes do nothing, since the file has them already.
    lower: Option<Arc<dyn Lower>>,
    /// File offset minus address.
    shift: u64,
    /// The relation of the file, and position in it minus address.
    relation: Option<(Relation, u64)>,
    /// The block looked up last.
    latest: Option<u64>,
    used: Used,
}

/// What the cache did with the file.
#[derive(Debug, Default)]
pub(crate) struct Used {
    /// Result of the last write, if there was one.
    pub written: Option<io::Result<usize>>,
    /// Whether bytes were read.
    pub was_read: bool,
    /// Whether a block was missing at first: this thread read it, or waited for one that did.
    pub was_missed: bool,
}

/// Runs `act` with `lower`, of a file that is `part` of a relation, as this thread's file. Its
/// `offset` is at `address`.
pub(crate) fn through<T>(
    lower: Option<&Arc<dyn Lower>>,
    part: Option<Part>,
    (offset, address): (u64, u64),
    act: impl FnOnce() -> T,
) -> (T, Used) {
    /// Takes the file back, even if `act` panics.
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            LENT.take();
        }
    }
    let relation = part.map(|part| (part.relation, part.position(offset, address).wrapping_sub(address)));
    let shift = offset.wrapping_sub(address);
    LENT.set(Some(Lent { lower: lower.cloned(), shift, relation, latest: None, used: Used::default() }));
    let back = Back;
    let outcome = act();
    let used = LENT.with_borrow_mut(|lent| lent.as_mut().map(|lent| std::mem::take(&mut lent.used)));
    drop(back);
    (outcome, used.unwrap_or_default())
}

/// The relations of blocks of the lent file.
#[derive(Debug)]
pub(crate) struct LentRelations {
    pub block_bytes: u64,
}

impl Relations for LentRelations {
    fn relation(&self, block: u64) -> Option<(Relation, u64)> {
        LENT.with_borrow_mut(|lent| {
            let lent = lent.as_mut()?;
            // A hit is one look-up. A second one comes after the first found nothing.
            lent.used.was_missed |= lent.latest.replace(block) == Some(block);
            let (relation, shift) = lent.relation?;
            let address = block.saturating_mul(self.block_bytes);
            Some((relation, address.wrapping_add(shift) / self.block_bytes))
        })
    }
}

/// The device; its length is the whole address space.
#[derive(Debug)]
pub(crate) struct SlowFiles {
    name: String,
    bytes: u64,
}

impl SlowFiles {
    pub fn new(name: String, bytes: u64) -> Self {
        Self { name, bytes }
    }
}

fn nothing_lent() -> io::Error {
    io::Error::other("the cache read a file that nobody lent it")
}

impl BlockDevice for SlowFiles {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.bytes
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let lent = LENT.with_borrow_mut(|lent| {
            let lent = lent.as_mut()?;
            lent.used.was_read = true;
            Some((lent.lower.clone()?, lent.shift))
        });
        let (lower, shift) = lent.ok_or_else(nothing_lent)?;
        match lower.read_at(offset.wrapping_add(shift), buffer)? {
            read if read == buffer.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let lent = LENT.with_borrow(|lent| lent.as_ref().map(|lent| (lent.lower.clone(), lent.shift)));
        let Some((Some(lower), shift)) = lent else {
            return lent.map_or_else(|| Err(nothing_lent()), |_| Ok(()));
        };
        let written = lower.write_at(offset.wrapping_add(shift), bytes);
        let outcome = match &written {
            Ok(count) if *count == bytes.len() => Ok(()),
            _ if planted(MountBug::KeepFailedWrite) => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => Err(error.kind().into()),
        };
        LENT.with_borrow_mut(|lent| {
            if let Some(lent) = lent {
                lent.used.written = Some(written);
            }
        });
        outcome
    }

    /// Programs sync their files; the marks that need it are of no use here (see `cache.rs`).
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::relations::RelationTable;

    #[test]
    fn blocks_have_the_relation_of_the_lent_file() {
        let (table, relations) = (RelationTable::new(4096), LentRelations { block_bytes: 4096 });
        let part = |path: &str| table.take(Path::new(path), 0, Vec::new).0;
        let (segment, log) = (part("base/5/7.1"), part("pg_wal/1"));
        assert_eq!(relations.relation(7), None);
        let at = |part, offset, address, block| {
            through(None, part, (offset, address), || relations.relation(block)).0
        };
        let (address, offset) = (8 << 20, 1 << 20);
        let second = (address >> 12) + 2;
        assert_eq!(at(Some(segment), offset, address, second), Some((Relation(0), (1025 << 8) + 2)));
        assert_eq!(at(Some(log), offset, address, second), Some((Relation(1), second)));
        assert_eq!(at(None, offset, address, second), None);
        assert_eq!(relations.relation(second), None);
        // Nothing overflows, whatever the addresses are.
        for (offset, address, block) in [(u64::MAX, 0, u64::MAX), (0, u64::MAX, 0), (u64::MAX, 4096, 1)] {
            assert!(at(Some(segment), offset, address, block).is_some());
        }
    }

    #[test]
    fn only_a_second_look_up_of_a_block_is_a_miss() {
        let relations = LentRelations { block_bytes: 4096 };
        let misses = |blocks: &[u64]| {
            let look_up = || blocks.iter().for_each(|&block| _ = relations.relation(block));
            through(None, None, (0, 0), look_up).1.was_missed
        };
        assert!(misses(&[7, 7, 8]) && misses(&[6, 7, 7]));
        assert!(!misses(&[]) && !misses(&[7, 8, 9]));
    }
}
