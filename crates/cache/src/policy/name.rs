//! Policy names.
//!
//! ```text
//! lru   obp+lru   small-bypass+obp+s3-fifo   probability:0.1@reads+arc   nvcache
//! ```
//!
//! A name is an eviction policy after any number of admission policies; all must admit. `nvcache`
//! is short for such a row. An admission policy may have a value after a colon, and `@reads` or
//! `@writes` to restrict it.

use std::fmt;
use std::str::FromStr;
use std::sync;

use super::{Applies, Future, HeuristicDbSettings, Obp, SequentialCutoff, TacSettings, admission, mq};

/// All eviction policies, in the order of the documentation.
pub const NAMES: &[&str] = &[
    "lru",
    "mru",
    "fifo",
    "clock",
    "lfu",
    "lfu-in-cache",
    "lfru",
    "arc",
    "mq",
    "tac",
    "2q",
    "lirs",
    "s3-fifo",
    "sieve",
    "w-tinylfu",
    "belady",
    "heuristicdb",
    "heuristicdb-paper",
    "heuristicdb-eager",
    "auto",
    "auto-thrifty",
];

/// Comparisons for simulation, always without admission. `opencas` is Linux's OpenCAS in
/// write-around mode. `memory-mode` is DRAM as a direct-mapped cache of slower memory, without
/// decisions, so it is no [`Policy`](super::Policy).
pub const BASELINES: &[&str] = &[OPENCAS, MEMORY_MODE];

/// The papers' combinations: a name, and the policies that it stands for.
pub const PRESETS: &[(&str, &str)] = &[("nvcache", "small-bypass+obp+lfru")];

/// DRAM bytes per block of index and journal.
const INDEX_BYTES: u64 = 24;
/// DRAM bytes per block: name, sketch of `frequency`, history of `ration`.
const NAME_BYTES: u64 = 8;
const SKETCH_BYTES: u64 = 16;
const RATION_BYTES: u64 = 176;

/// DRAM bytes per block of the eviction policies of each line.
///
/// At least what `tests/memory.rs` counts, for devices of twenty times the cache. `tac` keeps 64
/// bytes per 128 KiB of device ever accessed, included for that size; all others are bounded.
const POLICY_BYTES: &[(&[&str], u64)] = &[
    (&["lru", "mru", "fifo", "clock", "sieve", "lfu-in-cache"], 16),
    (&["lfru"], 36),
    (&["w-tinylfu"], 40),
    (&["arc", "2q", "s3-fifo"], 48),
    (&["tac"], 128),
    (&["lirs"], 192),
    // These keep counts of four blocks per cached block.
    (&["lfu", "mq"], 144),
    (&["heuristicdb", "heuristicdb-paper"], 136),
    (&["heuristicdb-eager"], 144),
    // These run whole policies side by side, also those used only with hints.
    (&["auto", "auto-thrifty"], POLICY_BYTES_MAX),
];

/// Also stated for a policy that no live cache can run.
const POLICY_BYTES_MAX: u64 = 1100;

fn policy_bytes(eviction: &str) -> u64 {
    let found = POLICY_BYTES.iter().find(|(names, _)| names.contains(&eviction));
    found.map_or(POLICY_BYTES_MAX, |(_, bytes)| *bytes)
}

pub(super) const OPENCAS: &str = "opencas";
pub(super) const MEMORY_MODE: &str = "memory-mode";

/// All admission policies, with the form of their values.
pub const ADMISSIONS: &[&str] = &[
    "always",
    "probability:P",
    "sequential[:BLOCKS]",
    "frequency[:CHANCE]",
    "ration[:SHARE]",
    "small-bypass[:DRAM_BLOCKS]",
    "obp[:TARGET]",
    "obp-lifetime[:TARGET]",
    "no-eviction",
];

/// The parameters of a policy besides its name.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Capacity in blocks, at least one.
    pub capacity: usize,
    /// The seed of random draws.
    pub seed: u64,
    /// The trace's future, required by `belady`.
    pub future: Option<sync::Arc<Future>>,
    /// The settings of `tac`.
    pub tac: TacSettings,
    /// The settings of `heuristicdb`; its other variants are fixed.
    pub heuristicdb: HeuristicDbSettings,
    /// Most blocks skipped within a sequential run, for `tac` and all variants of `heuristicdb`; by
    /// default those of their settings.
    pub band_blocks: Option<u64>,
    /// The window of `lfru`, in lookups; by default the capacity.
    pub lfru_window: u64,
    /// Counts of absent blocks in `lfu`, in multiples of the capacity; unbounded by default.
    pub lfu_counts: Option<usize>,
    /// The life time of `mq`, in lookups.
    pub mq_life_time: u64,
    /// The window of `obp`, in lookups.
    pub obp_window: u64,
    /// DRAM above the cache, in blocks, for `small-bypass`; by default a tenth of the capacity, as
    /// in NVCache.
    pub dram_blocks: u64,
}

impl Settings {
    /// Default settings for `capacity` blocks.
    pub fn new(capacity: usize) -> Settings {
        Settings {
            capacity,
            seed: 1,
            future: None,
            tac: TacSettings::default(),
            heuristicdb: HeuristicDbSettings::DEFAULT,
            band_blocks: None,
            lfru_window: capacity as u64,
            lfu_counts: None,
            mq_life_time: mq::LIFE_TIME,
            obp_window: Obp::WINDOW,
            dram_blocks: capacity as u64 / 10,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AdmissionName {
    Always,
    Probability(f64),
    Sequential(u32),
    Frequency(f64),
    Ration(f64),
    SmallBypass(Option<u64>),
    Obp(f64),
    ObpLifetime(f64),
    NoEviction,
}

/// The name of an existing policy.
///
/// ```
/// use terrace_cache::policy::{HashedTable, Name, Settings};
///
/// let name: Name = "obp+lru".parse().unwrap();
/// let policy = name.boxed::<HashedTable>(&Settings::new(100));
/// assert_eq!(policy.coldest(), None);
/// assert_eq!(name.to_string(), "obp+lru");
/// assert!("lur".parse::<Name>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Name {
    text: String,
    pub(super) admissions: Vec<(Applies, AdmissionName)>,
    pub(super) eviction: &'static str,
}

impl Name {
    /// The eviction policy, one of [`NAMES`] or [`BASELINES`]; presets are resolved.
    pub fn eviction(&self) -> &'static str {
        self.eviction
    }

    /// Number of admission policies, including a preset's.
    pub fn admissions(&self) -> usize {
        self.admissions.len()
    }

    /// DRAM bytes for a live cache of `blocks` blocks: index, policies and their history.
    pub fn dram_bytes(&self, blocks: u64) -> u64 {
        let name = self.to_string();
        let filters = [("", NAME_BYTES), ("frequency", SKETCH_BYTES), ("ration", RATION_BYTES)];
        let admitted = filters.iter().filter(|(filter, _)| self.admissions() > 0 && name.contains(filter));
        let admission: u64 = admitted.map(|(_, bytes)| bytes).sum();
        blocks.saturating_mul(INDEX_BYTES + policy_bytes(self.eviction()) + admission)
    }

    /// Whether it needs the trace's future, so is for traces only.
    pub fn needs_future(&self) -> bool {
        self.eviction == "belady"
    }

    /// Whether it is one of [`BASELINES`], for traces only.
    pub fn is_baseline(&self) -> bool {
        BASELINES.contains(&self.eviction)
    }

    /// Whether each block has one fixed slot, so that it is no [`Policy`](super::Policy).
    pub fn is_direct_mapped(&self) -> bool {
        self.eviction == MEMORY_MODE
    }

    /// Whether writes go through to the store at once.
    pub fn writes_through(&self) -> bool {
        self.eviction == OPENCAS
    }

    /// Whether it needs the sizes of relations before it begins.
    pub fn needs_relation_sizes(&self) -> bool {
        let is_bypass = |admission: &AdmissionName| matches!(admission, AdmissionName::SmallBypass(_));
        self.admissions.iter().any(|(_, admission)| is_bypass(admission)) || self.wants_queries()
    }

    /// Whether it decides by runs of blocks, which a sample of blocks tears apart.
    pub fn needs_runs(&self) -> bool {
        let is_sequential = |admission: &AdmissionName| matches!(admission, AdmissionName::Sequential(_));
        ["tac", "heuristicdb", "heuristicdb-paper", "heuristicdb-eager"].contains(&self.eviction)
            || self.admissions.iter().any(|(_, admission)| is_sequential(admission))
    }

    /// Whether it uses [`Hint::QueryBegins`](super::Hint::QueryBegins): all variants of
    /// `heuristicdb`, and the selectors.
    pub fn wants_queries(&self) -> bool {
        ["heuristicdb", "heuristicdb-paper", "heuristicdb-eager", "auto", "auto-thrifty"]
            .contains(&self.eviction)
    }
}

impl AdmissionName {
    /// Parses an admission policy, perhaps with a value.
    fn parse(name: &str) -> Option<AdmissionName> {
        let (name, value) = match name.split_once(':') {
            Some((name, value)) => (name, Some(value)),
            None => (name, None),
        };
        let ratio = |default: Option<f64>| match value {
            Some(value) => value.parse().ok().filter(|ratio: &f64| (0.0..=1.0).contains(ratio)),
            None => default,
        };
        Some(match (name, value) {
            ("always", None) => AdmissionName::Always,
            ("probability", _) => AdmissionName::Probability(ratio(None)?),
            ("sequential", None) => AdmissionName::Sequential(SequentialCutoff::BLOCKS_MAX),
            ("sequential", Some(blocks)) => AdmissionName::Sequential(blocks.parse().ok()?),
            ("frequency", _) => AdmissionName::Frequency(ratio(Some(0.0))?),
            ("ration", _) => AdmissionName::Ration(ratio(Some(admission::SHARE))?),
            ("small-bypass", None) => AdmissionName::SmallBypass(None),
            ("small-bypass", Some(blocks)) => AdmissionName::SmallBypass(Some(blocks.parse().ok()?)),
            ("obp", _) => AdmissionName::Obp(ratio(Some(admission::TARGET))?),
            ("obp-lifetime", _) => AdmissionName::ObpLifetime(ratio(Some(admission::TARGET))?),
            ("no-eviction", None) => AdmissionName::NoEviction,
            _ => return None,
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Name {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Name, UnknownPolicy> {
        let unknown = |part: &str, admission| UnknownPolicy { part: part.to_owned(), admission };
        let (admissions, eviction) = match text.rsplit_once('+') {
            Some((admissions, eviction)) => (Some(admissions), eviction),
            None => (None, text),
        };
        if let Some((_, whole)) = PRESETS.iter().find(|(name, _)| *name == eviction) {
            let before = &text[..text.len() - eviction.len()];
            let name: Name = format!("{before}{whole}").parse()?;
            return Ok(Name { text: text.to_owned(), ..name });
        }
        // Policies that stand alone are not found behind an admission.
        let alone = BASELINES.iter().filter(|_| admissions.is_none());
        let found = NAMES.iter().chain(alone).find(|&&name| name == eviction);
        let eviction = found.ok_or_else(|| unknown(eviction, false))?;
        let admissions = admissions.into_iter().flat_map(|admissions| admissions.split('+')).map(|part| {
            let (name, applies) = match part.split_once('@') {
                None => (part, Applies::Both),
                Some((name, "reads")) => (name, Applies::Reads),
                Some((name, "writes")) => (name, Applies::Writes),
                Some(_) => return Err(unknown(part, true)),
            };
            Ok((applies, AdmissionName::parse(name).ok_or_else(|| unknown(part, true))?))
        });
        Ok(Name { text: text.to_owned(), admissions: admissions.collect::<Result<_, _>>()?, eviction })
    }
}

/// An unknown policy name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    part: String,
    admission: bool,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = &self.part;
        // The reason comes first: some logs cut a message.
        if self.admission {
            return self.write_admission(f);
        }
        if BASELINES.contains(&part.as_str()) {
            return write!(f, "'{part}' stands alone, with no admission before it");
        }
        if is_admission(part) {
            return write!(f, "'{part}' is an admission policy, before an eviction policy; write {part}+lru");
        }
        let presets = PRESETS.iter().map(|(name, _)| *name);
        let nearest = nearest(part, NAMES.iter().chain(BASELINES).copied().chain(presets));
        let (known, alone) = (NAMES.join(" "), BASELINES.join(" "));
        let presets =
            PRESETS.iter().map(|(name, whole)| format!("{name} ({whole})")).collect::<Vec<_>>().join(" ");
        write!(
            f,
            "no policy is called '{part}'; {} policies are {known} {presets}, and for comparison {alone}",
            asked(nearest, "The")
        )
    }
}

impl UnknownPolicy {
    fn write_admission(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = &self.part;
        if NAMES.contains(&part.as_str()) {
            return write!(f, "'{part}' is an eviction policy, which comes last, after the last plus");
        }
        let (name, applies) = part.split_once('@').map_or((part.as_str(), None), |(a, b)| (a, Some(b)));
        if let Some(applies) = applies.filter(|applies| !["reads", "writes"].contains(applies)) {
            return write!(f, "'{part}' ends with @{applies}; a restriction is @reads or @writes");
        }
        if let Some(form) = ADMISSIONS.iter().find(|form| base(form) == base(name)) {
            return write!(f, "'{part}' has a wrong value; the form is {form}, with shares from 0 to 1");
        }
        let nearest = nearest(base(name), ADMISSIONS.iter().map(|form| base(form)));
        let (asked, known) = (asked(nearest, "They"), ADMISSIONS.join(" "));
        write!(
            f,
            "no admission policy is called '{part}'; {asked} are {known}, each with @reads or @writes if wanted"
        )
    }
}

/// An admission policy's name without its value.
fn base(text: &str) -> &str {
    text.split([':', '[']).next().unwrap_or(text)
}

fn is_admission(part: &str) -> bool {
    let name = part.split('@').next().unwrap_or(part);
    AdmissionName::parse(name).is_some()
}

/// A question for the nearest name, if any, and the first word of the next sentence.
fn asked(nearest: Option<&str>, next: &str) -> String {
    nearest.map_or(next.to_lowercase(), |name| format!("did you mean {name}? {next}"))
}

/// The longest text that is compared with names.
const COMPARED_MAX: usize = 40;

/// The nearest of `names`, if at most every third letter of `text` is wrong.
fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let text: Vec<char> = text.to_lowercase().chars().collect();
    if text.len() > COMPARED_MAX {
        return None;
    }
    let near = names.map(|name| (distance(&text, &name.chars().collect::<Vec<_>>()), name));
    near.min_by_key(|(distance, _)| *distance).filter(|(distance, _)| 3 * distance <= text.len()).map(|n| n.1)
}

/// The letters to add, drop, replace or swap with the next.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

impl std::error::Error for UnknownPolicy {}

#[cfg(test)]
mod tests {
    use super::{ADMISSIONS, BASELINES, NAMES, Name, POLICY_BYTES, PRESETS};

    #[test]
    fn the_bytes_of_every_policy_are_stated() {
        for name in NAMES.iter().filter(|name| **name != "belady") {
            let lines = POLICY_BYTES.iter().filter(|(names, _)| names.contains(name));
            assert_eq!(lines.count(), 1, "{name}");
        }
    }

    #[test]
    fn presets_are_what_they_stand_for() {
        for (name, whole) in PRESETS {
            for before in ["", "probability:0.5+"] {
                let preset: Name = format!("{before}{name}").parse().unwrap();
                let spelt: Name = format!("{before}{whole}").parse().unwrap();
                assert_eq!(preset.to_string(), format!("{before}{name}"));
                assert_eq!((preset.eviction(), preset.admissions()), (spelt.eviction(), spelt.admissions()));
                assert_eq!((preset.admissions, preset.eviction), (spelt.admissions, spelt.eviction));
            }
            assert!("lur".parse::<Name>().unwrap_err().to_string().contains(name));
            assert!(format!("{name}+lru").parse::<Name>().is_err());
        }
    }

    #[test]
    fn those_that_go_by_queries_say_so() {
        let wants = |text: &str| text.parse::<Name>().unwrap().wants_queries();
        assert!(
            ["heuristicdb", "obp+heuristicdb-eager", "auto", "ration+auto-thrifty"].into_iter().all(wants)
        );
        assert!(!["lru", "nvcache", "frequency+w-tinylfu", "opencas"].into_iter().any(wants));
    }

    #[test]
    fn every_documented_name_is_known() {
        for admission in ADMISSIONS {
            let plain = admission.split('[').next().unwrap_or_default().replace(":P", ":0.5");
            for suffix in ["", "@reads", "@writes"] {
                for name in NAMES {
                    let text = format!("{plain}{suffix}+{name}");
                    assert_eq!(text.parse::<Name>().map(|name| name.to_string()), Ok(text));
                }
            }
        }
    }

    #[test]
    fn baselines_are_known_and_stand_alone() {
        for name in BASELINES {
            let parsed: Name = name.parse().unwrap();
            assert!(parsed.is_baseline() && !NAMES.contains(name));
        }
    }

    #[test]
    fn wrong_names_say_which_part_is_wrong() {
        for (text, part) in [
            ("lur", "'lur'"),
            ("", "''"),
            ("lru+obp", "'obp'"),
            ("opb+lru", "'opb'"),
            ("obp@both+lru", "'obp@both'"),
            ("probability+lru", "'probability'"),
            ("probability:2+lru", "'probability:2'"),
            ("obp:nan+lru", "'obp:nan'"),
            ("sequential:-1+lru", "'sequential:-1'"),
            ("+lru", "''"),
            ("frequency:2+lru", "'frequency:2'"),
            ("obp+opencas", "'opencas' stands alone"),
            ("always+memory-mode", "'memory-mode' stands alone"),
        ] {
            let error = text.parse::<Name>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_wrong_name_is_told_with_the_reason_and_the_nearest_before_the_list() {
        for (text, told) in [
            ("lur", "no policy is called 'lur'; did you mean lru? The policies are lru "),
            ("S3FIFO", "no policy is called 'S3FIFO'; did you mean s3-fifo?"),
            ("tinylfu", "no policy is called 'tinylfu'; did you mean w-tinylfu?"),
            ("nvcash", "no policy is called 'nvcash'; did you mean nvcache?"),
            ("random", "no policy is called 'random'; the policies are "),
            ("obp", "'obp' is an admission policy, before an eviction policy; write obp+lru"),
            (
                "ration:0.3",
                "'ration:0.3' is an admission policy, before an eviction policy; write ration:0.3+lru",
            ),
            ("obp@reads", "'obp@reads' is an admission policy"),
            ("opb+lru", "no admission policy is called 'opb'; did you mean obp?"),
            ("lru+arc", "'lru' is an eviction policy, which comes last"),
            ("obp:2+lru", "'obp:2' has a wrong value; the form is obp[:TARGET]"),
            ("obp@both+lru", "'obp@both' ends with @both; a restriction is @reads or @writes"),
        ] {
            let error = text.parse::<Name>().expect_err(text).to_string();
            assert!(error.starts_with(told), "{text}: {error}");
        }
        assert!("x".repeat(100_000).parse::<Name>().is_err());
    }

    #[test]
    fn those_that_go_by_runs_say_so() {
        let needs = |text: &str| text.parse::<Name>().unwrap().needs_runs();
        assert!(
            ["tac", "obp+heuristicdb", "sequential+lru", "sequential:9@reads+arc"].into_iter().all(needs)
        );
        assert!(!["lru", "nvcache", "auto", "obp+sieve"].into_iter().any(needs));
    }
}
