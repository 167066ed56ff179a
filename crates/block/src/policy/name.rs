//! Policies by name: what a command line says, and how a policy is made from it.
//!
//! ```text
//! lru   obp+lru   small-bypass+obp+s3-fifo   probability:0.1@reads+arc   nvcache
//! ```
//!
//! A name is an eviction policy, with any number of admission policies before it, each with a plus; all must admit.
//! `nvcache` is the name of such a row. An admission policy may have a value after a colon, and `@reads` or `@writes` if it is for these alone.
//!
//! Making a policy hands it to a [`Build`], which is generic over the policy, so that a simulator's loop is compiled once
//! for every eviction policy and calls nothing through a table. Behind admission policies there is one pointer.

use std::fmt;
use std::str::FromStr;
use std::sync;

use super::{
    Admission, Applies, Arc, Auto, Belady, BlockTable, Clock, Fifo, Filtered, Frequency, Future, Goal,
    HeuristicDb, HeuristicDbSettings, Lfru, Lfu, LfuInCache, LifetimeObp, Lirs, Lru, Mq, Mru, Obp, OpenCas,
    Policy, Probability, Ration, S3Fifo, SequentialCutoff, Sieve, SmallBypass, Tac, TacSettings, TwoQ,
    WTinyLfu, admission, mq,
};

/// The names of all eviction policies, in the order of documentation.
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

/// What others ship, to compare with in a simulation: a name that stands alone, with no admission before it. `opencas` is Linux's
/// OpenCAS in write-around mode; `memory-mode` is DRAM as the direct-mapped cache of slower memory, where nobody decides anything,
/// so it is no [`Policy`].
pub const BASELINES: &[&str] = &[OPENCAS, MEMORY_MODE];

/// What papers have put together: a name that stands for an eviction policy and the admission policies before it.
pub const PRESETS: &[(&str, &str)] = &[("nvcache", "small-bypass+obp+lfru")];

const OPENCAS: &str = "opencas";
const MEMORY_MODE: &str = "memory-mode";

/// The names of all admission policies, with what may stand after a colon.
pub const ADMISSIONS: &[&str] = &[
    "always",
    "probability:P",
    "sequential[:BLOCKS]",
    "frequency[:CHANCE]",
    "ration[:SHARE]",
    "small-bypass[:DRAM_BLOCKS]",
    "obp[:TARGET]",
    "obp-lifetime[:TARGET]",
];

/// What a policy is made from besides its name.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cache's capacity in blocks, at least one.
    pub capacity: usize,
    /// Decides what is drawn by chance.
    pub seed: u64,
    /// The trace's future, without which `belady` cannot be made.
    pub future: Option<sync::Arc<Future>>,
    /// The settings of `tac`.
    pub tac: TacSettings,
    /// The settings of `heuristicdb`; those of `heuristicdb-paper` and `heuristicdb-eager` are fixed.
    pub heuristicdb: HeuristicDbSettings,
    /// The window of `lfru`, in look-ups; by default the capacity.
    pub lfru_window: u64,
    /// Counts that `lfu` keeps of blocks which are not cached, in multiples of the capacity; by default it keeps all, without bound.
    pub lfu_counts: Option<usize>,
    /// The life time of `mq`, in look-ups.
    pub mq_life_time: u64,
    /// The window of `obp`, in look-ups.
    pub obp_window: u64,
    /// The DRAM above the cache, in blocks, for `small-bypass`; by default a tenth of the capacity, about as in paper 004.
    pub dram_blocks: u64,
}

impl Settings {
    /// The default settings for a cache of `capacity` blocks.
    pub fn new(capacity: usize) -> Settings {
        Settings {
            capacity,
            seed: 1,
            future: None,
            tac: TacSettings::default(),
            heuristicdb: HeuristicDbSettings::DEFAULT,
            lfru_window: capacity as u64,
            lfu_counts: None,
            mq_life_time: mq::LIFE_TIME,
            obp_window: Obp::WINDOW,
            dram_blocks: capacity as u64 / 10,
        }
    }
}

/// Takes a policy whose type depends on a name.
pub trait Build {
    /// What becomes of the policy.
    type Output;

    /// Takes the policy.
    fn build<P: Policy + 'static>(self, policy: P) -> Self::Output;
}

/// Boxes the policy.
struct Boxed;

impl Build for Boxed {
    type Output = Box<dyn Policy>;

    fn build<P: Policy + 'static>(self, policy: P) -> Box<dyn Policy> {
        Box::new(policy)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum AdmissionName {
    Always,
    Probability(f64),
    Sequential(u32),
    Frequency(f64),
    Ration(f64),
    SmallBypass(Option<u64>),
    Obp(f64),
    ObpLifetime(f64),
}

/// The name of a policy that exists.
///
/// ```
/// use terrace_block::policy::{HashedTable, Name, Settings};
///
/// let name: Name = "obp+lru".parse().unwrap();
/// let policy = name.boxed::<HashedTable>(&Settings::new(100));
/// assert_eq!(policy.coldest(), None);
/// assert_eq!(name.to_string(), "obp+lru");
/// assert!("lur".parse::<Name>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Name {
    /// As it was written.
    text: String,
    admissions: Vec<(Applies, AdmissionName)>,
    eviction: &'static str,
}

impl Name {
    /// The eviction policy, one of [`NAMES`] or [`BASELINES`]; of a preset, that which it stands for.
    pub fn eviction(&self) -> &'static str {
        self.eviction
    }

    /// How many admission policies are before it, those of a preset included.
    pub fn admissions(&self) -> usize {
        self.admissions.len()
    }

    /// Whether the policy needs the trace's future: then it is a bound, for traces only.
    pub fn needs_future(&self) -> bool {
        self.eviction == "belady"
    }

    /// Whether this is one of [`BASELINES`], which are for traces only.
    pub fn is_baseline(&self) -> bool {
        BASELINES.contains(&self.eviction)
    }

    /// Whether a block has one place that it can be in, so that no [`Policy`] can be made.
    pub fn is_direct_mapped(&self) -> bool {
        self.eviction == MEMORY_MODE
    }

    /// Whether the cache is one that writes go through to the store at once.
    pub fn writes_through(&self) -> bool {
        self.eviction == OPENCAS
    }

    /// Whether the policy decides by the sizes of relations, and so must be told them before it begins.
    pub fn needs_relation_sizes(&self) -> bool {
        let is_bypass = |admission: &AdmissionName| matches!(admission, AdmissionName::SmallBypass(_));
        self.admissions.iter().any(|(_, admission)| is_bypass(admission)) || self.wants_queries()
    }

    /// Whether the policy goes by queries where they are told, with [`Hint::QueryBegins`](super::Hint::QueryBegins): `heuristicdb` in
    /// all its forms, and the selectors, which have it among their candidates.
    pub fn wants_queries(&self) -> bool {
        ["heuristicdb", "heuristicdb-paper", "heuristicdb-eager", "auto", "auto-thrifty"]
            .contains(&self.eviction)
    }

    /// Makes the policy and hands it over.
    ///
    /// # Panics
    /// If the policy needs a future and `settings` have none, or [is direct-mapped](Name::is_direct_mapped).
    pub fn build<T: BlockTable, B: Build>(&self, settings: &Settings, build: B) -> B::Output {
        if self.admissions.is_empty() {
            return self.build_eviction::<T, B>(settings, build);
        }
        let admissions = self.admissions.iter().map(|&(applies, name)| (applies, name.make::<T>(settings)));
        let eviction = self.build_eviction::<T, _>(settings, Boxed);
        build.build(Filtered::new(eviction, settings.capacity, admissions.collect()))
    }

    fn build_eviction<T: BlockTable, B: Build>(&self, settings: &Settings, build: B) -> B::Output {
        let capacity = settings.capacity;
        match self.eviction {
            "lru" => build.build(Lru::new(capacity)),
            "mru" => build.build(Mru::new(capacity)),
            "fifo" => build.build(Fifo::new(capacity)),
            "clock" => build.build(Clock::new(capacity)),
            "lfu" => build.build(match settings.lfu_counts {
                Some(per_slot) => Lfu::<T>::bounded(capacity, per_slot),
                None => Lfu::<T>::new(capacity),
            }),
            "lfu-in-cache" => build.build(LfuInCache::new(capacity)),
            "lfru" => build.build(Lfru::new(capacity, settings.lfru_window)),
            "arc" => build.build(Arc::<T>::new(capacity)),
            "mq" => build.build(Mq::<T>::new(capacity, settings.mq_life_time)),
            "tac" => build.build(Tac::new(capacity, settings.tac)),
            "2q" => build.build(TwoQ::<T>::new(capacity)),
            "lirs" => build.build(Lirs::<T>::new(capacity)),
            "s3-fifo" => build.build(S3Fifo::<T>::new(capacity)),
            "sieve" => build.build(Sieve::new(capacity)),
            "w-tinylfu" => build.build(WTinyLfu::new(capacity, settings.seed)),
            "heuristicdb" => build.build(HeuristicDb::<T>::new(capacity, settings.heuristicdb)),
            "heuristicdb-eager" => build.build(HeuristicDb::<T>::new(capacity, HeuristicDbSettings::EAGER)),
            "heuristicdb-paper" => build.build(HeuristicDb::<T>::new(capacity, HeuristicDbSettings::PAPER)),
            "auto" => build.build(Auto::<T>::new(settings.capacity, Goal::Hits, settings.seed)),
            "auto-thrifty" => build.build(Auto::<T>::new(settings.capacity, Goal::FewWrites, settings.seed)),
            OPENCAS => build.build(OpenCas::new(capacity)),
            MEMORY_MODE => panic!("{MEMORY_MODE} is a placement, not a policy"),
            "belady" => {
                let future = settings.future.clone().expect("belady needs the trace's future");
                build.build(Belady::new(capacity, future))
            }
            name => unreachable!("{name} is no policy's name"),
        }
    }

    /// Makes the policy, behind a pointer.
    ///
    /// # Panics
    /// As [`Name::build`].
    pub fn boxed<T: BlockTable>(&self, settings: &Settings) -> Box<dyn Policy> {
        self.build::<T, _>(settings, Boxed)
    }
}

impl AdmissionName {
    /// `name` is an admission policy's, perhaps with a value.
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
            _ => return None,
        })
    }

    fn make<T: BlockTable>(self, settings: &Settings) -> Box<dyn Admission> {
        match self {
            AdmissionName::Always => Box::new(Probability::new(1.0, settings.seed)),
            AdmissionName::Probability(p) => Box::new(Probability::new(p, settings.seed)),
            AdmissionName::Sequential(blocks) => Box::new(SequentialCutoff::new(blocks)),
            AdmissionName::Frequency(chance) => {
                Box::new(Frequency::with_chance(settings.capacity, chance, settings.seed))
            }
            AdmissionName::Ration(share) => Box::new(Ration::<T>::new(settings.capacity, share)),
            AdmissionName::SmallBypass(blocks) => {
                Box::new(SmallBypass::new(blocks.unwrap_or(settings.dram_blocks)))
            }
            AdmissionName::Obp(target) => Box::new(Obp::new(target, settings.obp_window)),
            AdmissionName::ObpLifetime(target) => Box::new(LifetimeObp::new(target)),
        }
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
        // What stands alone is not found behind an admission.
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

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    part: String,
    admission: bool,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.admission {
            let known = ADMISSIONS.join(" ");
            return write!(
                f,
                "no admission policy is called '{}'; they are {known}, each with @reads or @writes if wanted",
                self.part
            );
        }
        let (known, alone) = (NAMES.join(" "), BASELINES.join(" "));
        if BASELINES.contains(&self.part.as_str()) {
            return write!(f, "'{}' stands alone, with no admission before it", self.part);
        }
        let presets =
            PRESETS.iter().map(|(name, whole)| format!("{name} ({whole})")).collect::<Vec<_>>().join(" ");
        write!(
            f,
            "no policy is called '{}'; the policies are {known} {presets}, and for comparison {alone}",
            self.part
        )
    }
}

impl std::error::Error for UnknownPolicy {}

#[cfg(test)]
mod tests {
    use super::{ADMISSIONS, BASELINES, NAMES, Name, PRESETS};

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
}
