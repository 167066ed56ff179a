//! Tables and indexes, known by the names of their files.
//!
//! The cache's policies and statistics speak of relations. A relation is a file, or files that
//! belong together:
//!
//! | files | relation |
//! |---|---|
//! | PostgreSQL's `base/5/16384`, `.1`, `.2` ... | `base/5/16384`, of segments of 1 GiB |
//! | its forks `16384_fsm`, `_vm`, `_init` | `base/5/16384_fsm` and so on |
//! | its temporary tables `t3_16450` | `base/5/t*` |
//! | RocksDB's `000012.sst` | `*.sst` of the directory |
//! | logs, spilled rows: `pg_wal`, `pgsql_tmp`, `#innodb_redo` and others | the directory |
//! | numbered files such as `binlog.000001` | `binlog.*` |
//! | others, such as `shop/orders.ibd`, `index-7.wt`, `shop.db` | the file |

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use terrace_cache::Relations;
use terrace_cache::policy::Relation;

use crate::extents::{Extents, NOWHERE, length_of, start_of};

/// Relations with a name of their own; further ones share the last number. The cache counts no
/// more.
const RELATIONS_MAX: usize = 4096;
const OTHERS: &str = "(others)";
/// PostgreSQL's, unless it was built with another one.
const SEGMENT_BYTES: u64 = 1 << 30;
/// Directories whose files belong together and have no order.
const TOGETHER: [&str; 8] = [
    "pg_wal",
    "pg_xact",
    "pgsql_tmp",
    "#innodb_redo",
    "#innodb_temp",
    "journal",
    "WiredTigerLog",
    "diagnostic.data",
];

/// The relation of a file, and its position in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    relation: String,
    /// Bytes of the relation before this file, if its files have an order.
    before: Option<u64>,
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit())
}

/// The part that a file of PostgreSQL is of a relation.
fn postgres(name: &str) -> Option<(String, u64)> {
    let (stem, segment) = match name.split_once('.') {
        Some((stem, segment)) if is_number(segment) => (stem, segment.parse().ok()?),
        Some(_) => return None,
        None => (name, 0u64),
    };
    let number = ["_fsm", "_vm", "_init"].iter().find_map(|fork| stem.strip_suffix(fork)).unwrap_or(stem);
    let before = segment.checked_mul(SEGMENT_BYTES)?;
    if is_number(number) {
        return Some((stem.to_owned(), before));
    }
    let (backend, number) = number.strip_prefix('t')?.split_once('_')?;
    (is_number(backend) && is_number(number)).then(|| ("t*".to_owned(), before))
}

fn part_of(path: &Path) -> Part {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parent = path.parent().unwrap_or(Path::new(""));
    let directory = parent.file_name().unwrap_or_default().to_string_lossy();
    let within =
        |name: &str, before| Part { relation: parent.join(name).to_string_lossy().into_owned(), before };
    if TOGETHER.contains(&&*directory) {
        return Part { relation: parent.to_string_lossy().into_owned(), before: None };
    }
    if (is_number(&directory) || directory == "global")
        && let Some((relation, before)) = postgres(&name)
    {
        return within(&relation, (relation != "t*").then_some(before));
    }
    match name.rsplit_once('.') {
        Some((stem, "sst")) if is_number(stem) => within("*.sst", None),
        Some((stem, number)) if number.len() >= 6 && is_number(number) => within(&format!("{stem}.*"), None),
        _ => within(&name, Some(0)),
    }
}

/// A name under which every byte of the file has one position, and the bytes before it.
pub(crate) fn position_of(path: &Path) -> (String, u64) {
    let part = part_of(path);
    match part.before {
        Some(before) => (part.relation, before),
        None => (path.to_string_lossy().into_owned(), 0),
    }
}

/// What a range of addresses holds.
#[derive(Clone, Copy, Debug)]
struct Content {
    bytes: u64,
    relation: Relation,
    /// Position of its first byte in the relation.
    position: u64,
}

#[derive(Debug, Default)]
struct Table {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, Relation>,
    /// Known lengths of the relations, bytes.
    lengths: Vec<u64>,
    /// By first address.
    contents: BTreeMap<u64, Content>,
}

impl Table {
    fn number(&mut self, name: &str) -> Relation {
        let name = match self.names.len() + 1 < RELATIONS_MAX || self.numbers.contains_key(name) {
            true => name,
            false => OTHERS,
        };
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let (number, name) = (Relation(self.names.len() as u32), Arc::<str>::from(name));
        self.names.push(Arc::clone(&name));
        self.lengths.push(0);
        self.numbers.insert(name, number);
        number
    }
}

/// The relations of all addresses.
#[derive(Debug)]
pub(crate) struct RelationTable {
    block_bytes: u64,
    table: RwLock<Table>,
}

impl RelationTable {
    pub fn new(block_bytes: u64) -> RelationTable {
        RelationTable { block_bytes, table: RwLock::default() }
    }

    /// Notes that these extents are of the file `path`, which has `length` bytes. Returns the
    /// relation's length in blocks if it is longer than known.
    pub fn put(&self, path: &Path, extents: &Extents, length: u64) -> Option<(Relation, u64)> {
        let part = part_of(path);
        let mut table = self.table.write();
        let relation = table.number(&part.relation);
        for (extent, &address) in extents.0.iter().enumerate().filter(|(_, address)| **address != NOWHERE) {
            let offset = start_of(extent);
            let position = part.before.map_or(address, |before| before.saturating_add(offset));
            table.contents.insert(address, Content { bytes: length_of(extent), relation, position });
        }
        let length = part.before?.saturating_add(length);
        let known = &mut table.lengths[relation.0 as usize];
        let has_grown = length > *known && &*table.names[relation.0 as usize] != OTHERS;
        has_grown.then(|| {
            table.lengths[relation.0 as usize] = length;
            (relation, length.div_ceil(self.block_bytes))
        })
    }

    /// Nobody uses the addresses from `address` any more.
    pub fn remove(&self, address: u64) {
        self.table.write().contents.remove(&address);
    }

    pub fn name(&self, relation: Relation) -> Option<Arc<str>> {
        self.table.read().names.get(relation.0 as usize).cloned()
    }
}

impl Relations for RelationTable {
    fn relation(&self, block: u64) -> Option<(Relation, u64)> {
        let address = block * self.block_bytes;
        let table = self.table.read();
        let (start, content) = table.contents.range(..=address).next_back()?;
        let within = address - start;
        (within < content.bytes).then(|| (content.relation, (content.position + within) / self.block_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(path: &str) -> (String, Option<u64>) {
        let part = part_of(Path::new(path));
        (part.relation, part.before)
    }

    #[test]
    fn files_of_databases_have_their_relations() {
        let files = [
            ("base/5/16384", "base/5/16384", Some(0)),
            ("base/5/16384.2", "base/5/16384", Some(2 << 30)),
            ("base/5/16384_fsm", "base/5/16384_fsm", Some(0)),
            ("base/5/16384_vm.1", "base/5/16384_vm", Some(1 << 30)),
            ("global/1262", "global/1262", Some(0)),
            ("global/pg_control", "global/pg_control", Some(0)),
            ("base/5/t3_16450", "base/5/t*", None),
            ("base/5/t3_16450_fsm.1", "base/5/t*", None),
            ("base/5/PG_VERSION", "base/5/PG_VERSION", Some(0)),
            ("base/5/16384.99999999999999999999", "base/5/16384.*", None),
            ("base/pgsql_tmp/pgsql_tmp12.0", "base/pgsql_tmp", None),
            ("pg_wal/000000010000000000000001", "pg_wal", None),
            ("shop/orders.ibd", "shop/orders.ibd", Some(0)),
            ("#innodb_redo/#ib_redo12", "#innodb_redo", None),
            ("binlog.000017", "binlog.*", None),
            ("rocks/000012.sst", "rocks/*.sst", None),
            ("rocks/MANIFEST-000004", "rocks/MANIFEST-000004", Some(0)),
            ("collection-7-123.wt", "collection-7-123.wt", Some(0)),
            ("shop.db-wal", "shop.db-wal", Some(0)),
            // Only directories of numbers are PostgreSQL's.
            ("photos/16384.1", "photos/16384.1", Some(0)),
        ];
        for (path, name, before) in files {
            assert_eq!(relation(path), (name.to_owned(), before), "{path}");
        }
    }

    #[test]
    fn addresses_have_the_relation_of_their_file() {
        let relations = RelationTable::new(4096);
        let at = |extent, address| {
            let mut extents = Extents::default();
            extents.0[extent] = address;
            extents
        };
        let longer = relations.put(Path::new("base/5/7.1"), &at(1, 8 << 20), 3 << 20);
        assert_eq!(longer, Some((Relation(0), (1027 << 20) / 4096)));
        assert_eq!(relations.put(Path::new("base/5/7"), &at(0, 4 << 20), 1 << 30), None);
        assert_eq!(relations.put(Path::new("pg_wal/1"), &at(0, 2 << 20), 1 << 20), None);
        assert_eq!(relations.relation((8 << 20) / 4096 + 2), Some((Relation(0), (1025 << 20) / 4096 + 2)));
        assert_eq!(relations.relation((4 << 20) / 4096), Some((Relation(0), 0)));
        assert_eq!(relations.relation((2 << 20) / 4096 + 1), Some((Relation(1), (2 << 20) / 4096 + 1)));
        // Before, between and behind them.
        assert_eq!([0, (3 << 20) / 4096, (9 << 20) / 4096].map(|block| relations.relation(block)), [None; 3]);
        relations.remove(4 << 20);
        assert_eq!(relations.relation((4 << 20) / 4096), None);
        assert_eq!(
            (relations.name(Relation(0)).as_deref(), relations.name(Relation(7))),
            (Some("base/5/7"), None)
        );
    }

    #[test]
    fn too_many_relations_share_one() {
        let relations = RelationTable::new(4096);
        for file in 0..RELATIONS_MAX as u64 + 10 {
            let mut extents = Extents::default();
            extents.0[0] = file << 20;
            relations.put(Path::new(&format!("{file}.db")), &extents, 1 << 20);
        }
        let last = Relation(RELATIONS_MAX as u32 - 1);
        assert_eq!(
            (relations.name(last).as_deref(), relations.name(Relation(last.0 + 1))),
            (Some(OTHERS), None)
        );
        assert_eq!(
            relations.relation((RELATIONS_MAX as u64 + 5) << 8).map(|(relation, _)| relation),
            Some(last)
        );
        assert_eq!(relations.relation(5 << 8).map(|(relation, _)| relation), Some(Relation(5)));
    }
}
