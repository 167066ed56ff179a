//! The four probabilities of a policy.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde::ser::SerializeStruct;

/// The stored form of probability 1: millionths compare and print exactly.
pub(super) const ONE: u32 = 1_000_000;

/// Four probabilities by which pages move between tiers.
///
/// Each is from 0 to 1, in steps of a millionth.
///
/// ```
/// use terrace::migration::Policy;
///
/// let policy: Policy = ".01,.01,.2,1".parse().unwrap();
/// assert_eq!(policy, Policy::LAZY);
/// assert_eq!((policy.dr(), policy.nr()), (0.01, 0.2));
/// assert_eq!(policy.to_string(), "0.01,0.01,0.2,1");
/// assert!("1,1,1,1.5".parse::<Policy>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    pub(super) millionths: [u32; 4],
}

impl Policy {
    /// Every page goes through every tier (Spitfire, Table 3).
    pub const EAGER: Policy = Policy::of([ONE; 4]);
    /// Few pages go to DRAM or the middle tier (Spitfire, Table 3).
    pub const LAZY: Policy = Policy::of([ONE / 100, ONE / 100, ONE / 5, ONE]);
    /// Accessed pages go to DRAM; loaded ones bypass the middle tier.
    ///
    /// HyMem's queue, not the 0 here, decides about pages that leave DRAM (Spitfire, Table 3).
    pub const HYMEM: Policy = Policy::of([ONE, ONE, 0, 0]);
    /// The lazy policy of the CXL paper (section IV-B).
    pub const LAZY_CXL: Policy = Policy::of([ONE / 5; 4]);

    const fn of(millionths: [u32; 4]) -> Policy {
        Policy { millionths }
    }

    /// A policy of four probabilities, rounded to millionths.
    ///
    /// # Errors
    /// A probability that is not between 0 and 1.
    pub fn new(dr: f64, dw: f64, nr: f64, nw: f64) -> Result<Policy, String> {
        let mut millionths = [0; 4];
        for ((name, probability), stored) in
            Self::NAMES.into_iter().zip([dr, dw, nr, nw]).zip(&mut millionths)
        {
            if !(0.0..=1.0).contains(&probability) {
                return Err(format!("{name} is {probability}, and a probability is between 0 and 1"));
            }
            *stored = (probability * f64::from(ONE)).round() as u32;
        }
        Ok(Policy { millionths })
    }

    const NAMES: [&str; 4] = ["DR", "DW", "NR", "NW"];

    fn probability(self, which: usize) -> f64 {
        f64::from(self.millionths[which]) / f64::from(ONE)
    }

    /// `D_r`: probability that a read promotes a page.
    pub fn dr(self) -> f64 {
        self.probability(0)
    }

    /// `D_w`: probability that a write promotes a page.
    pub fn dw(self) -> f64 {
        self.probability(1)
    }

    /// `N_r`: probability that a loaded or new page enters the middle tier.
    pub fn nr(self) -> f64 {
        self.probability(2)
    }

    /// `N_w`: probability that a page leaving DRAM goes to the middle tier.
    pub fn nw(self) -> f64 {
        self.probability(3)
    }

    /// All four: `D_r`, `D_w`, `N_r`, `N_w`.
    pub fn probabilities(self) -> [f64; 4] {
        [self.dr(), self.dw(), self.nr(), self.nw()]
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{},{}", self.dr(), self.dw(), self.nr(), self.nw())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let parts: Vec<&str> = text.split(',').collect();
        let [dr, dw, nr, nw] = parts[..] else {
            return Err(format!("\"{text}\" is not four probabilities DR,DW,NR,NW, as in .01,.01,.2,1"));
        };
        let number = |part: &str| {
            let part = part.trim();
            part.parse::<f64>().map_err(|_| format!("\"{part}\" in \"{text}\" is not a number"))
        };
        Policy::new(number(dr)?, number(dw)?, number(nr)?, number(nw)?)
    }
}

impl Serialize for Policy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut policy = serializer.serialize_struct("Policy", 4)?;
        policy.serialize_field("dr", &self.dr())?;
        policy.serialize_field("dw", &self.dw())?;
        policy.serialize_field("nr", &self.nr())?;
        policy.serialize_field("nw", &self.nw())?;
        policy.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_round_trip_as_text() {
        for policy in [Policy::EAGER, Policy::LAZY, Policy::HYMEM, Policy::LAZY_CXL] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(" 0.5, 0 ,1,1e-6".parse::<Policy>().unwrap().probabilities(), [0.5, 0.0, 1.0, 0.000_001]);
        assert_eq!(Policy::new(0.123_456_7, 0.0, 0.0, 0.0).unwrap().dr(), 0.123_457);
    }

    #[test]
    fn what_is_no_policy_is_refused_with_what_is_wrong() {
        for (text, wrong) in [
            ("", "four"),
            ("1,1,1", "four"),
            ("1,1,1,1,1", "four"),
            ("1,,1,1", "\"\""),
            ("1,x,1,1", "\"x\""),
            ("1,1,-.1,1", "NR"),
            ("1.000001,1,1,1", "DR"),
            ("1,NaN,1,1", "DW"),
            ("1,1,1,inf", "NW"),
        ] {
            let error = text.parse::<Policy>().unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
