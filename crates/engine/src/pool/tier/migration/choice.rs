//! Policies by name, for the command line and settings.

use std::fmt;
use std::str::FromStr;

use super::Policy;

/// The value of `--policy`: how pages move between tiers.
///
/// ```
/// use terrace::migration::{Choice, CleanVictims, Policy};
///
/// let choice: Choice = "lazy-cxl".parse().unwrap();
/// assert_eq!(choice.policy(), Policy::LAZY_CXL);
/// assert_eq!(choice.clean_victims(), CleanVictims::Offer);
/// // All pages in DRAM, or all in the middle tier: the two-tier systems of the CXL paper.
/// let local_only: Choice = "0,0,0,0".parse().unwrap();
/// let far_only: Choice = "0,0,1,1".parse().unwrap();
/// assert_eq!((local_only.policy().nr(), far_only.policy().nr()), (0.0, 1.0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Searches for the best, starting at [`Policy::EAGER`] (Spitfire, section 6.4).
    #[default]
    Adaptive,
    /// [`Policy::EAGER`].
    Eager,
    /// [`Policy::LAZY`].
    Lazy,
    /// [`Policy::HYMEM`] with an admission queue.
    ///
    /// A page enters the middle tier at its second recent departure from DRAM.
    HyMem,
    /// [`Policy::LAZY_CXL`].
    LazyCxl,
    /// Custom probabilities.
    Fixed(Policy),
}

impl Choice {
    /// Initial probabilities; only [`Choice::Adaptive`] changes them.
    pub fn policy(self) -> Policy {
        match self {
            Choice::Adaptive | Choice::Eager => Policy::EAGER,
            Choice::Lazy => Policy::LAZY,
            Choice::HyMem => Policy::HYMEM,
            Choice::LazyCxl => Policy::LAZY_CXL,
            Choice::Fixed(policy) => policy,
        }
    }

    /// Whether an [`super::AdmissionQueue`] replaces `N_w`.
    pub fn has_queue(self) -> bool {
        self == Choice::HyMem
    }

    /// Treatment of clean victims in the policy's paper.
    ///
    /// Spitfire drops them (section 3.3). HyMem and the CXL buffer manager treat them like dirty
    /// ones.
    pub fn clean_victims(self) -> CleanVictims {
        match self {
            Choice::Adaptive | Choice::Eager | Choice::Lazy | Choice::Fixed(_) => CleanVictims::Drop,
            Choice::HyMem | Choice::LazyCxl => CleanVictims::Offer,
        }
    }
}

const NAMED: [(&str, Choice); 5] = [
    ("adaptive", Choice::Adaptive),
    ("eager", Choice::Eager),
    ("lazy", Choice::Lazy),
    ("hymem", Choice::HyMem),
    ("lazy-cxl", Choice::LazyCxl),
];

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Choice::Fixed(policy) = self {
            return policy.fmt(f);
        }
        let named = NAMED.iter().find(|(_, choice)| choice == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        if let Some(&(_, choice)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(choice);
        }
        if text.contains(',') {
            return text.parse().map(Choice::Fixed);
        }
        let names = NAMED.map(|(name, _)| name).join(", ");
        Err(format!("there is no policy \"{text}\"; there are {names}, and four probabilities DR,DW,NR,NW"))
    }
}

/// Treatment of a clean page that leaves DRAM.
///
/// A page with a middle copy always goes to that copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CleanVictims {
    /// Drop it.
    Drop,
    /// Offer it like a dirty one: by `N_w` or the admission queue.
    Offer,
    /// Always demote it.
    Always,
}

impl CleanVictims {
    /// All variants.
    pub const ALL: [CleanVictims; 3] = [CleanVictims::Drop, CleanVictims::Offer, CleanVictims::Always];

    /// Its name in commands and settings.
    pub const fn name(self) -> &'static str {
        match self {
            CleanVictims::Drop => "drop",
            CleanVictims::Offer => "offer",
            CleanVictims::Always => "always",
        }
    }
}

impl fmt::Display for CleanVictims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CleanVictims {
    type Err = String;

    fn from_str(name: &str) -> Result<CleanVictims, String> {
        let found = CleanVictims::ALL.into_iter().find(|clean| clean.name() == name);
        found.ok_or_else(|| format!("clean victims are not \"{name}\"; there are drop, offer and always"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        let fixed = Choice::Fixed(Policy::new(0.25, 0.0, 1.0, 0.5).unwrap());
        for choice in NAMED.map(|(_, choice)| choice).into_iter().chain([fixed]) {
            assert!(!choice.to_string().is_empty());
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for clean in CleanVictims::ALL {
            assert_eq!(clean.to_string().parse(), Ok(clean));
        }
        for wrong in ["", "Lazy", "lazy ", "eager,lazy", "1,1,1"] {
            assert!(wrong.parse::<Choice>().unwrap_err().contains(wrong));
        }
        assert!("keep".parse::<CleanVictims>().unwrap_err().contains("keep"));
    }

    /// Spitfire, Table 3; CXL paper, section IV-B.
    #[test]
    fn presets_are_those_of_the_papers() {
        assert_eq!(Choice::Eager.policy().probabilities(), [1.0, 1.0, 1.0, 1.0]);
        assert_eq!(Choice::Lazy.policy().probabilities(), [0.01, 0.01, 0.2, 1.0]);
        assert_eq!(Choice::HyMem.policy().probabilities()[..3], [1.0, 1.0, 0.0]);
        assert_eq!(Choice::LazyCxl.policy().probabilities(), [0.2; 4]);
        assert!(NAMED.iter().all(|&(name, choice)| choice.has_queue() == (name == "hymem")));
    }
}
