//! Policies by name: what a command line says, and how a policy is made from it.
//!
//! A name is an eviction policy (`lru`). Making one hands the policy to a [`Build`], which is generic over the
//! policy, so that a simulator's loop is compiled once for every policy and calls nothing through a table.

use std::fmt;
use std::str::FromStr;

use super::{BlockTable, Fifo, Lru, Policy};

/// The names of all eviction policies, in the order of documentation.
pub const NAMES: &[&str] = &["lru", "fifo"];

/// What a policy is made from besides its name.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cache's capacity in blocks, at least one.
    pub capacity: usize,
}

impl Settings {
    /// The default settings for a cache of `capacity` blocks.
    pub fn new(capacity: usize) -> Settings {
        Settings { capacity }
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
    /// Makes the policy and hands it over.
    pub fn build<T: BlockTable, B: Build>(&self, settings: &Settings, build: B) -> B::Output {
        let capacity = settings.capacity;
        match self.eviction {
            "lru" => build.build(Lru::new(capacity)),
            "fifo" => build.build(Fifo::new(capacity)),
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
