//! Policies by name: what a command line says, and how a policy is made from it.
//!
//! A name is an eviction policy (`lru`). Making one hands the policy to a [`Build`], which is generic over the
//! policy, so that a simulator's loop is compiled once for every policy and calls nothing through a table.

use std::fmt;
use std::str::FromStr;

use std::sync;

use super::{
    Arc, Belady, BlockTable, Clock, Fifo, Future, Lfru, Lfu, LfuInCache, Lirs, Lru, Mq, Mru, Policy, S3Fifo,
    Sieve, Tac, TacSettings, TwoQ, WTinyLfu, mq,
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
    /// The window of `lfru`, in look-ups; by default the capacity.
    pub lfru_window: u64,
    /// The life time of `mq`, in look-ups.
    pub mq_life_time: u64,
}

impl Settings {
    /// The default settings for a cache of `capacity` blocks.
    pub fn new(capacity: usize) -> Settings {
        Settings {
            capacity,
            seed: 1,
            future: None,
            tac: TacSettings::default(),
            lfru_window: capacity as u64,
            mq_life_time: mq::LIFE_TIME,
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

/// The name of a policy that exists.
///
/// ```
/// use terrace_block::policy::{HashedTable, Name, Settings};
///
/// let name: Name = "lru".parse().unwrap();
/// let policy = name.boxed::<HashedTable>(&Settings::new(100));
/// assert_eq!(policy.coldest(), None);
/// assert!("lur".parse::<Name>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    eviction: &'static str,
}

impl Name {
    /// Whether the policy needs the trace's future: then it is a bound, for traces only.
    pub fn needs_future(&self) -> bool {
        self.eviction == "belady"
    }

    /// Makes the policy and hands it over.
    ///
    /// # Panics
    /// If the policy needs a future and `settings` have none.
    pub fn build<T: BlockTable, B: Build>(&self, settings: &Settings, build: B) -> B::Output {
        let capacity = settings.capacity;
        match self.eviction {
            "lru" => build.build(Lru::new(capacity)),
            "mru" => build.build(Mru::new(capacity)),
            "fifo" => build.build(Fifo::new(capacity)),
            "clock" => build.build(Clock::new(capacity)),
            "lfu" => build.build(Lfu::<T>::new(capacity)),
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
            "belady" => {
                let future = settings.future.clone().expect("belady needs the trace's future");
                build.build(Belady::new(capacity, future))
            }
            name => unreachable!("{name} is no policy's name"),
        }
    }

    /// Makes the policy, behind a pointer.
    pub fn boxed<T: BlockTable>(&self, settings: &Settings) -> Box<dyn Policy> {
        self.build::<T, _>(settings, Boxed)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.eviction)
    }
}

impl FromStr for Name {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Name, UnknownPolicy> {
        match NAMES.iter().find(|&&name| name == text) {
            Some(eviction) => Ok(Name { eviction }),
            None => Err(UnknownPolicy { text: text.to_owned() }),
        }
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    text: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no policy is called '{}'; the policies are {}", self.text, NAMES.join(" "))
    }
}

impl std::error::Error for UnknownPolicy {}
