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

use parking_lot::Mutex;
use terrace_cache::RelationStats;
use terrace_cache::policy::Relation;

/// Relations with a number of their own. The cache counts 4096: these, [`OTHERS`], and blocks
/// without a relation.
const RELATIONS_MAX: usize = 4094;
/// The number of all that came when the others had files.
const OTHERS: Relation = Relation(RELATIONS_MAX as u32);
/// Numbers without files that are cleared at a time, since the counters of all are looked at.
const CLEARED: usize = 64;
/// PostgreSQL's, unless it was built with another one.
const SEGMENT_BYTES: u64 = 1 << 30;
/// Of a table of PostgreSQL, which has at most 32 TiB.
const SEGMENTS_MAX: u64 = 32 << 10;
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

/// A log, which a database writes once, in order, and reads after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    /// Of PostgreSQL, WiredTiger or RocksDB.
    MayOutliveData,
    /// Of InnoDB or Aria. When a read fails, InnoDB logs that the index is corrupt. So if the mount
    /// is killed, its log must fail together with its data.
    BoundToData,
}

/// Directories of logs, and beginnings of names of logs in other directories.
const LOG_DIRECTORIES: [(&str, Log); 2] =
    [("pg_wal", Log::MayOutliveData), ("#innodb_redo", Log::BoundToData)];
const LOG_FILES: [(&str, Log); 3] = [
    ("ib_logfile", Log::BoundToData),
    ("aria_log.", Log::BoundToData),
    ("WiredTigerLog.", Log::MayOutliveData),
];

impl Log {
    /// The log that a file is a part of.
    pub fn of(path: &Path) -> Option<Log> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let directory = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let by_directory = LOG_DIRECTORIES.iter().find(|(known, _)| directory == **known);
        let by_name = || LOG_FILES.iter().find(|(begin, _)| name.starts_with(begin));
        let of_rocksdb = || name.strip_suffix(".log").is_some_and(|stem| stem.len() >= 6 && is_number(stem));
        let known = by_directory.or_else(by_name).map(|&(_, log)| log);
        known.or_else(|| of_rocksdb().then_some(Log::MayOutliveData))
    }
}

/// The name of a file's relation, and the file's position in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
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
    let before = (segment < SEGMENTS_MAX).then(|| segment * SEGMENT_BYTES)?;
    if is_number(number) {
        return Some((stem.to_owned(), before));
    }
    let (backend, number) = number.strip_prefix('t')?.split_once('_')?;
    (is_number(backend) && is_number(number)).then(|| ("t*".to_owned(), before))
}

fn named(path: &Path) -> Named {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parent = path.parent().unwrap_or(Path::new(""));
    let directory = parent.file_name().unwrap_or_default().to_string_lossy();
    let within =
        |name: &str, before| Named { relation: parent.join(name).to_string_lossy().into_owned(), before };
    if TOGETHER.contains(&&*directory) {
        return Named { relation: parent.to_string_lossy().into_owned(), before: None };
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
    let named = named(path);
    match named.before {
        Some(before) => (named.relation, before),
        None => (path.to_string_lossy().into_owned(), 0),
    }
}

/// A file as a part of a numbered relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub relation: Relation,
    before: Option<u64>,
}

impl Part {
    /// The position in the relation of the byte at `offset` of the file. Without an order of files
    /// it is that of the cache's address space.
    pub fn position(&self, offset: u64, address: u64) -> u64 {
        self.before.map_or(address, |before| before.saturating_add(offset))
    }
}

/// A number, and whose it is.
#[derive(Debug, Default)]
struct Number {
    /// None of one that waits for its next relation.
    name: Option<Arc<str>>,
    /// Files with cached blocks.
    files: u32,
    /// When the last of them left.
    idle_since: u64,
    /// Known length, bytes.
    length: u64,
    /// What the cache had counted for earlier relations of this number.
    earlier: RelationStats,
}

#[derive(Debug, Default)]
struct Table {
    numbers: Vec<Number>,
    by_name: HashMap<Arc<str>, Relation>,
    /// Numbers without files. They keep their relation, which may come back, until others need one.
    idle: BTreeMap<u64, Relation>,
    cleared: Vec<Relation>,
    clock: u64,
}

impl Table {
    /// The number of a relation, and whether another one had it before.
    fn number(&mut self, name: &str, counted: impl FnOnce() -> Vec<RelationStats>) -> (Relation, bool) {
        if let Some(&relation) = self.by_name.get(name) {
            return (relation, false);
        }
        let is_new = self.numbers.len() < RELATIONS_MAX;
        if is_new {
            self.cleared.push(Relation(self.numbers.len() as u32));
            self.numbers.push(Number::default());
        } else if self.cleared.is_empty() && !self.idle.is_empty() {
            self.clear(&counted());
        }
        let Some(relation) = self.cleared.pop() else { return (OTHERS, false) };
        let name = Arc::<str>::from(name);
        self.numbers[relation.0 as usize].name = Some(Arc::clone(&name));
        self.by_name.insert(name, relation);
        (relation, !is_new)
    }

    /// Takes the numbers that had no files for the longest time.
    fn clear(&mut self, counted: &[RelationStats]) {
        for _ in 0..CLEARED {
            let Some((_, relation)) = self.idle.pop_first() else { break };
            let earlier = counted.iter().find(|stats| stats.relation == Some(relation));
            let earlier = earlier.copied().unwrap_or_default();
            let before = std::mem::replace(
                &mut self.numbers[relation.0 as usize],
                Number { earlier, ..Number::default() },
            );
            before.name.and_then(|name| self.by_name.remove(&name));
            self.cleared.push(relation);
        }
        // The oldest is the next.
        self.cleared.reverse();
    }
}

/// The numbers of relations.
#[derive(Debug)]
pub(crate) struct RelationTable {
    block_bytes: u64,
    table: Mutex<Table>,
}

impl RelationTable {
    pub fn new(block_bytes: u64) -> RelationTable {
        RelationTable { block_bytes, table: Mutex::default() }
    }

    /// Counts the file `path`, which has `length` bytes, to its relation. Returns the relation's
    /// length in blocks if the cache should learn of it.
    ///
    /// `counted` gets what the cache has counted.
    pub fn take(
        &self,
        path: &Path,
        length: u64,
        counted: impl FnOnce() -> Vec<RelationStats>,
    ) -> (Part, Option<u64>) {
        let Named { relation: name, before } = named(path);
        let mut table = self.table.lock();
        let (relation, is_reused) = table.number(&name, counted);
        let part = Part { relation, before };
        if relation == OTHERS {
            return (part, None);
        }
        let number = &mut table.numbers[relation.0 as usize];
        number.files += 1;
        let idle_since = number.idle_since;
        let length = before.map_or(0, |before| before.saturating_add(length));
        let is_news = length > number.length || is_reused;
        number.length = number.length.max(length);
        table.idle.remove(&idle_since);
        (part, is_news.then(|| length.div_ceil(self.block_bytes)))
    }

    /// The number of a file's relation, if it has one.
    pub fn number_of(&self, path: &Path) -> Option<Relation> {
        self.table.lock().by_name.get(&*named(path).relation).copied()
    }

    /// A file of the relation has no more cached blocks.
    pub fn let_go(&self, relation: Relation) {
        let table = &mut *self.table.lock();
        let number = table.numbers.get_mut(relation.0 as usize).filter(|number| number.files > 0);
        let Some(number) = number else { return };
        number.files -= 1;
        if number.files == 0 {
            table.clock += 1;
            number.idle_since = table.clock;
            table.idle.insert(table.clock, relation);
        }
    }

    #[cfg(test)]
    pub fn numbers_with_files(&self) -> usize {
        self.table.lock().numbers.iter().filter(|number| number.files > 0).count()
    }

    /// What the cache counted for each relation, by name.
    pub fn by_name(&self, counted: Vec<RelationStats>) -> Vec<(Arc<str>, RelationStats)> {
        let table = self.table.lock();
        let named = |mut stats: RelationStats| {
            let relation = stats.relation?;
            if relation == OTHERS {
                return Some((Arc::from("(others)"), stats));
            }
            let Number { name, earlier, .. } = table.numbers.get(relation.0 as usize)?;
            stats.hits = stats.hits.saturating_sub(earlier.hits);
            stats.misses = stats.misses.saturating_sub(earlier.misses);
            stats.writes = stats.writes.saturating_sub(earlier.writes);
            stats.admissions = stats.admissions.saturating_sub(earlier.admissions);
            Some((name.clone()?, stats))
        };
        counted.into_iter().filter_map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(path: &str) -> (String, Option<u64>) {
        let found = named(Path::new(path));
        (found.relation, found.before)
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
            ("base/5/16384.32767", "base/5/16384", Some((32 << 40) - (1 << 30))),
            // No table has as many bytes.
            ("base/5/16384.32768", "base/5/16384.32768", Some(0)),
            ("5/1.17179869183", "5/1.*", None),
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
    fn logs_are_known_by_their_names() {
        for (path, log) in [
            ("pg_wal/000000010000000000000001", Some(Log::MayOutliveData)),
            ("pg_wal/xlogtemp.17", Some(Log::MayOutliveData)),
            ("journal/WiredTigerLog.0000000001", Some(Log::MayOutliveData)),
            ("rocks/000123.log", Some(Log::MayOutliveData)),
            ("#innodb_redo/#ib_redo12", Some(Log::BoundToData)),
            ("ib_logfile0", Some(Log::BoundToData)),
            ("aria_log.00000001", Some(Log::BoundToData)),
            ("base/5/16384", None),
            ("pg_wal", None),
            ("a.log", None),
            ("17.log", None),
            ("aria_log_control", None),
            ("shop.db-wal", None),
            ("", None),
        ] {
            assert_eq!(Log::of(Path::new(path)), log, "{path}");
        }
    }

    fn take(relations: &RelationTable, path: &str, length: u64) -> (Part, Option<u64>) {
        relations.take(Path::new(path), length, || panic!("numbers are left"))
    }

    #[test]
    fn files_of_a_relation_share_its_number_and_length() {
        let relations = RelationTable::new(4096);
        let (second, length) = take(&relations, "base/5/7.1", 3 << 20);
        assert_eq!((second.relation, length), (Relation(0), Some((1027 << 20) / 4096)));
        assert_eq!(second.position(1 << 20, 8 << 20), 1025 << 20);
        let (first, length) = take(&relations, "base/5/7", 1 << 30);
        assert_eq!((first.relation, first.position(5, 8 << 20), length), (Relation(0), 5, None));
        let (log, length) = take(&relations, "pg_wal/1", 1 << 20);
        assert_eq!((log.relation, log.position(5, 8 << 20), length), (Relation(1), 8 << 20, None));
        assert_eq!(first.position(u64::MAX, 0), u64::MAX);
        assert_eq!(second.position(u64::MAX, 0), u64::MAX);
    }

    fn counted(relation: u32, hits: u64) -> RelationStats {
        RelationStats { relation: Some(Relation(relation)), hits, ..RelationStats::default() }
    }

    #[test]
    fn numbers_without_files_go_to_other_relations_and_count_from_zero() {
        let relations = RelationTable::new(4096);
        for file in 0..RELATIONS_MAX {
            let (part, _) = take(&relations, &format!("{file}.db"), 4096);
            assert_eq!(part.relation, Relation(file as u32));
        }
        // All have files.
        assert_eq!(take(&relations, "more.db", 4096).0.relation, OTHERS);
        relations.let_go(OTHERS);
        let again = take(&relations, "7.db", 4096).0;
        for relation in [again.relation, Relation(9), Relation(8), Relation(5), Relation(7)] {
            relations.let_go(relation);
        }
        // One comes back, with all it had.
        assert_eq!(take(&relations, "9.db", 4096), (Part { relation: Relation(9), before: Some(0) }, None));
        let counts = || vec![counted(5, 50), counted(7, 70), counted(8, 80), counted(9, 90)];
        let (part, length) = relations.take(Path::new("new.db"), 0, counts);
        assert_eq!((part.relation, length), (Relation(8), Some(0)));
        let names = |counted| -> Vec<(String, u64)> {
            let found = relations.by_name(counted).into_iter();
            found.map(|(name, stats)| (name.to_string(), stats.hits)).collect()
        };
        let later = vec![counted(5, 50), counted(8, 81), counted(9, 91), counted(OTHERS.0, 3)];
        let expected = [("new.db", 1), ("9.db", 91), ("(others)", 3)];
        assert_eq!(names(later), expected.map(|(name, hits)| (name.to_owned(), hits)));
        // Those that were cleared with it are the next, and then there are none.
        let next = ["a.db", "b.db", "c.db"].map(|path| take(&relations, path, 1).0.relation);
        assert_eq!(next, [Relation(5), Relation(7), OTHERS]);
    }
}
