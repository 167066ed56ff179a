//! Mixes of the Yahoo! Cloud Serving Benchmark (Cooper et al., SoCC 2010) and of our papers.
//!
//! A to F are YCSB's. `ro`, `ba` and `wh` read 100, 50 and 10 percent and update the rest
//! (Spitfire, SIGMOD 2021). `rw:PCT` reads PCT percent. `scan` only scans 100 entries at a time.
//! `cxl-update`, `cxl-read` and `cxl-scan` are from the CXL paper (section IV-A). Their tuples are
//! cache lines, [`PAGE_TUPLES`] to a page. The distribution picks the page, lines within it are
//! uniform, and a scan reads a whole page. A half, a twentieth and a twentieth of their operations
//! are updates.
//!
//! A [`Stream`] is one thread's endless sequence of operations. It depends only on the seed and the
//! thread number, so runs repeat exactly and threads share no cache line.
//!
//! "Latest" (workload D) prefers recent inserts. Each thread uses its own inserts as the newest and
//! loaded records as older, so it never requests an uncommitted record of another thread.

use std::fmt;
use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use terrace_common::values;
use terrace_common::zipf::{Scatter, Zipf};

/// Longest scan of workload E.
const SCAN_LENGTH_MAX: u64 = 100;
/// Tuples per page in the CXL paper's mixes: 4 KiB of lines.
pub const PAGE_TUPLES: u64 = 64;
/// Bytes per tuple.
const TUPLE_BYTES: usize = 64;
/// Default value size of the other mixes.
const VALUE_BYTES: usize = 1000;

/// Workloads of NVCache's table 2, without the suffixes for data size.
pub const NVCACHE: [&str; 10] = [
    "500m-btree-50r50u",
    "chkpt-stress",
    "evict-btree-stress-multi",
    "evict-btree-large",
    "evict-btree-scan",
    "medium-btree-large",
    "overflow-130k",
    "update-chkpt-btree",
    "update-delta-mix1",
    "update-grow-stress",
];

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Read and check a value.
    Read,
    /// Set a value without reading it.
    Update,
    /// Add a record.
    Insert,
    /// Read entries in key order.
    Scan,
    /// Read and set a value in one transaction.
    ReadModifyWrite,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 5] = [Kind::Read, Kind::Update, Kind::Insert, Kind::Scan, Kind::ReadModifyWrite];

    /// The name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Update => "update",
            Kind::Insert => "insert",
            Kind::Scan => "scan",
            Kind::ReadModifyWrite => "read_modify_write",
        }
    }
}

/// Percentages by kind of operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    name: String,
    percent: [u8; Kind::ALL.len()],
    latest: bool,
    /// Whether all scans have the maximum length instead of a random one.
    long_scans: bool,
    /// Whether pages of tuples are requested instead of single records.
    by_page: bool,
}

impl Mix {
    /// Default value size.
    pub fn value_bytes(&self) -> usize {
        if self.by_page { TUPLE_BYTES } else { VALUE_BYTES }
    }

    /// The fraction of `kind` operations.
    pub fn share(&self, kind: Kind) -> f64 {
        f64::from(self.percent[kind as usize]) / 100.0
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(name: &str) -> Result<Mix, String> {
        //                                                read update insert scan rmw
        let percent = match name {
            "a" | "ba" => [50, 50, 0, 0, 0],
            "b" => [95, 5, 0, 0, 0],
            "c" | "ro" => [100, 0, 0, 0, 0],
            "d" => [95, 0, 5, 0, 0],
            "e" => [0, 0, 5, 95, 0],
            "f" => [50, 0, 0, 0, 50],
            "wh" => [10, 90, 0, 0, 0],
            "cxl-update" => [50, 50, 0, 0, 0],
            "cxl-read" => [95, 5, 0, 0, 0],
            "cxl-scan" => [0, 5, 0, 95, 0],
            "scan" => [0, 0, 0, 100, 0],
            // NVCache, table 2.
            "evict-btree-large" | "medium-btree-large" => [100, 0, 0, 0, 0],
            "evict-btree-scan" => [95, 1, 4, 0, 0],
            "evict-btree-stress-multi" => [80, 20, 0, 0, 0],
            "500m-btree-50r50u" | "overflow-130k" => [50, 50, 0, 0, 0],
            "chkpt-stress" | "update-delta-mix1" => [0, 100, 0, 0, 0],
            "update-chkpt-btree" => [5, 5, 90, 0, 0],
            "update-grow-stress" => [0, 96, 4, 0, 0],
            other => match other.strip_prefix("rw:").map(str::parse::<u8>) {
                Some(Ok(reads @ 0..=100)) => [reads, 100 - reads, 0, 0, 0],
                Some(_) => return Err(format!("{other:?}: PCT in rw:PCT is a whole number from 0 to 100")),
                None => {
                    return Err(format!(
                        "unknown workload {other:?}; use a b c d e f ro ba wh scan cxl-update cxl-read cxl-scan, \
                         rw:PCT, or one of NVCache's: {}",
                        NVCACHE.join(" ")
                    ));
                }
            },
        };
        Ok(Mix {
            name: name.to_owned(),
            percent,
            latest: name == "d",
            long_scans: name == "scan",
            by_page: name.starts_with("cxl-"),
        })
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Distribution of requests over records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Zipf's law with this theta.
    Zipfian(f64),
    /// Uniform.
    Uniform,
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Distribution, String> {
        match text.split_once(':') {
            None if text == "uniform" => Ok(Distribution::Uniform),
            None if text == "zipfian" => Ok(Distribution::Zipfian(0.99)),
            Some(("zipfian", theta)) => match theta.parse::<f64>() {
                Ok(theta) if theta > 0.0 && theta < 2.0 => Ok(Distribution::Zipfian(theta)),
                _ => Err(format!("{theta:?} is not a valid theta; use a number above 0 and below 2")),
            },
            _ => Err(format!("unknown distribution {text:?}; use zipfian:THETA or uniform")),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Zipfian(theta) => write!(f, "zipfian:{theta}"),
            Distribution::Uniform => f.write_str("uniform"),
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What to do.
    pub kind: Kind,
    /// Key number, see [`values::key`].
    pub number: u64,
    /// Version to write, unique within a run.
    pub version: u64,
    /// Entries to scan.
    pub scan_length: u64,
}

/// The operations of one thread.
pub struct Stream {
    random: SmallRng,
    mix: Mix,
    records: u64,
    /// Number of records, or pages of them, that the distribution covers.
    indexes: u64,
    scatter: Scatter,
    zipf: Option<Zipf>,
    thread: u64,
    threads: u64,
    inserts: u64,
    writes: u64,
}

impl Stream {
    /// The stream of one of `threads` threads over `records` loaded records.
    pub fn new(
        mix: &Mix,
        distribution: Distribution,
        records: u64,
        thread: u64,
        threads: u64,
        seed: u64,
    ) -> Stream {
        let seed = values::mix(values::mix(seed).wrapping_add(thread));
        let indexes = if mix.by_page { records.div_ceil(PAGE_TUPLES) } else { records };
        Stream {
            random: SmallRng::seed_from_u64(seed),
            mix: mix.clone(),
            records,
            scatter: Scatter::new(indexes),
            indexes,
            zipf: match distribution {
                Distribution::Zipfian(theta) => Some(Zipf::new(indexes, theta)),
                Distribution::Uniform => None,
            },
            thread,
            threads,
            inserts: 0,
            writes: 0,
        }
    }

    /// The next operation.
    #[inline]
    pub fn next_operation(&mut self) -> Operation {
        let kind = self.kind();
        let number = match kind {
            Kind::Insert => {
                self.inserts += 1;
                if let (Some(zipf), true) = (&mut self.zipf, self.mix.latest) {
                    zipf.resize(self.records + self.inserts);
                }
                self.own_insert(self.inserts - 1)
            }
            _ if self.mix.latest => self.latest(),
            _ => {
                let rank = self.rank(self.indexes);
                let index = self.scatter.spread(rank);
                values::loaded(if self.mix.by_page { self.tuple(index, kind) } else { index })
            }
        };
        self.writes += 1;
        let scan_length = match kind {
            Kind::Scan if self.mix.by_page => PAGE_TUPLES,
            Kind::Scan if self.mix.long_scans => SCAN_LENGTH_MAX,
            Kind::Scan => self.random.random_range(1..=SCAN_LENGTH_MAX),
            _ => 0,
        };
        Operation { kind, number, version: (self.thread + 1) << 48 | self.writes, scan_length }
    }

    fn kind(&mut self) -> Kind {
        let mut draw = self.random.random_range(0..100u8);
        for (kind, percent) in Kind::ALL.into_iter().zip(self.mix.percent) {
            if draw < percent {
                return kind;
            }
            draw -= percent;
        }
        unreachable!("the percentages of {} do not add up to 100", self.mix)
    }

    fn tuple(&mut self, page: u64, kind: Kind) -> u64 {
        let first = page * PAGE_TUPLES;
        match kind {
            Kind::Scan => first,
            _ => first + self.random.random_range(0..PAGE_TUPLES.min(self.records - first)),
        }
    }

    fn rank(&mut self, items: u64) -> u64 {
        match &self.zipf {
            Some(zipf) => zipf.sample(&mut self.random),
            None => self.random.random_range(0..items),
        }
    }

    fn latest(&mut self) -> u64 {
        let back = self.rank(self.records + self.inserts);
        match self.inserts.checked_sub(back + 1) {
            Some(insert) => self.own_insert(insert),
            None => values::loaded(self.records - 1 - (back - self.inserts)),
        }
    }

    /// Key number of this thread's `nth` insert.
    fn own_insert(&self, nth: u64) -> u64 {
        values::inserted(&self.scatter, self.records, nth * self.threads + self.thread)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn stream(mix: &str, seed: u64, thread: u64) -> Stream {
        Stream::new(&mix.parse().unwrap(), Distribution::Zipfian(0.99), 1000, thread, 2, seed)
    }

    #[test]
    fn the_mixes_keep_their_percentages() {
        let shares = [
            ("a", Kind::Read, 50),
            ("b", Kind::Update, 5),
            ("c", Kind::Read, 100),
            ("d", Kind::Insert, 5),
            ("e", Kind::Scan, 95),
            ("f", Kind::ReadModifyWrite, 50),
            ("ro", Kind::Read, 100),
            ("ba", Kind::Update, 50),
            ("wh", Kind::Update, 90),
            ("rw:80", Kind::Read, 80),
            ("rw:0", Kind::Update, 100),
            ("scan", Kind::Scan, 100),
            ("cxl-update", Kind::Update, 50),
            ("cxl-read", Kind::Update, 5),
            ("cxl-scan", Kind::Scan, 95),
        ];
        for (mix, kind, percent) in shares {
            let mut stream = stream(mix, 1, 0);
            let count = (0..20_000).filter(|_| stream.next_operation().kind == kind).count();
            assert!(count.abs_diff(percent * 200) < 400, "{mix}: {count}");
        }
    }

    #[test]
    fn a_seed_fixes_each_thread_and_parts_them() {
        let take = |seed, thread| {
            let mut stream = stream("a", seed, thread);
            (0..100).map(|_| stream.next_operation()).collect::<Vec<_>>()
        };
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(2, 0));
        assert_ne!(take(1, 0), take(1, 1));
    }

    #[test]
    fn latest_asks_only_for_what_exists_and_mostly_for_the_new() {
        let mut stream = stream("d", 4, 1);
        let mut present: HashSet<u64> = (0..1000).map(values::loaded).collect();
        let mut new = 0;
        for _ in 0..20_000 {
            let operation = stream.next_operation();
            match operation.kind {
                Kind::Insert => assert!(present.insert(operation.number)),
                _ => assert!(present.contains(&operation.number)),
            }
            new += u32::from(operation.kind == Kind::Read && operation.number & 0xff_ffff != 0);
        }
        assert!(new > 10_000, "{new}");
    }

    #[test]
    fn scans_have_their_lengths() {
        let mut e = stream("e", 1, 0);
        let lengths: HashSet<u64> = (0..10_000).map(|_| e.next_operation().scan_length).collect();
        assert_eq!(lengths.len(), 101);
        assert_eq!(stream("scan", 1, 0).next_operation().scan_length, 100);
    }

    /// 1000 records are fifteen pages and a partial one.
    #[test]
    fn pages_of_tuples_are_asked_for_as_pages() {
        let mut read = stream("cxl-read", 3, 0);
        let mut asked: HashMap<u64, u64> = HashMap::new();
        for _ in 0..64_000 {
            *asked.entry(read.next_operation().number).or_default() += 1;
        }
        let records: Vec<u64> = (0..1000).map(values::loaded).collect();
        assert!(asked.keys().all(|number| records.contains(number)) && asked.len() == 1000);
        let mut pages: Vec<(u64, u64)> = records
            .chunks(PAGE_TUPLES as usize)
            .map(|page| page.iter().map(|number| asked[number]))
            .map(|page| (page.clone().max().unwrap(), page.min().unwrap()))
            .collect();
        pages.sort_unstable();
        // Lines of a page are equally likely, pages are not.
        assert!(pages.iter().all(|(most, least)| *most < 2 * least + 40), "{pages:?}");
        assert!(pages[15].1 > 3 * pages[0].0, "{pages:?}");
        let mut scan = stream("cxl-scan", 3, 0);
        let scans: Vec<Operation> =
            (0..1000).map(|_| scan.next_operation()).filter(|one| one.kind == Kind::Scan).collect();
        let first = |number: u64| records.iter().position(|one| *one == number).unwrap() as u64;
        assert!(scans.iter().all(|one| one.scan_length == 64 && first(one.number) % 64 == 0));
        assert_eq!("cxl-scan".parse::<Mix>().unwrap().value_bytes(), 64);
        assert_eq!("a".parse::<Mix>().unwrap().value_bytes(), 1000);
    }

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for name in ["a", "rw:7", "scan", "cxl-update"] {
            assert_eq!(name.parse::<Mix>().unwrap().to_string(), name);
        }
        assert!("rw:101".parse::<Mix>().is_err() && "g".parse::<Mix>().is_err());
        assert_eq!("uniform".parse::<Distribution>().unwrap().to_string(), "uniform");
        assert_eq!("zipfian:0.3".parse::<Distribution>().unwrap().to_string(), "zipfian:0.3");
        for wrong in ["zipfian:0", "zipfian:2", "zipfian:NaN", "pareto", "zipfian:"] {
            assert!(wrong.parse::<Distribution>().is_err(), "{wrong}");
        }
    }
}
