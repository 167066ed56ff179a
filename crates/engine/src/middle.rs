//! What the middle tier is: which memory, and how much of it.

use std::fmt;
use std::io;
use std::str::FromStr;

use terrace_block::{NodeSet, Profile, check_room, units};

use crate::buffer::{FRAMES_MAX, MIDDLE_FRAME_BYTES_BESIDE, MiddleOptions};
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::migration::{AdmissionQueue, Choice, CleanVictims};

/// Memory between DRAM and the store, in which pages can stay and be used where they are.
///
/// What is said on the command line is its kind and how much there is of it, with a comma between.
///
/// ```
/// use terrace::{Db, MemoryDirectory, Middle};
/// use terrace::migration::Choice;
///
/// let middle: Middle = "simulated:dram,16MiB".parse()?;
/// assert_eq!(middle.bytes(), 16 << 20);
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20).middle(middle).policy(Choice::Lazy);
/// let db = builder.open("")?;
/// db.create_table("t")?.put("k", "v")?;
/// assert_eq!(db.stats().middle.unwrap().capacity_bytes, 16 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Middle {
    kind: MiddleKind,
    bytes: u64,
}

/// Which memory a middle tier is.
///
/// ```
/// use terrace::{MiddleKind, Profile};
///
/// let kind: MiddleKind = "simulated:cxl-2024".parse()?;
/// assert_eq!(kind, MiddleKind::Simulated(Profile::named("cxl-2024").unwrap()));
/// assert_eq!(kind.to_string(), "simulated:cxl-2024");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MiddleKind {
    /// Memory that this machine does not have: the bytes are in DRAM, and accesses take as long as the profile says
    /// ([`crate::Builder::simulated_time`]). Never a default, and volatile whatever the profile says.
    Simulated(Profile),
    /// Memory of NUMA nodes, in equal parts: another processor's, or memory behind CXL.
    Numa(NodeSet),
}

/// The variable of the environment that says what a builder means that says nothing of a middle tier: for running programs and tests
/// as they are over three. After kind and size it may say a policy, as in `simulated:dram,1MiB,.5,.5,.5,.5`.
const VARIABLE: &str = "TERRACE_MIDDLE";

impl Middle {
    /// One of `bytes` bytes, of which the last that do not make a page are left alone.
    pub fn new(kind: MiddleKind, bytes: u64) -> Middle {
        Middle { kind, bytes }
    }

    /// Which memory it is.
    pub fn kind(&self) -> &MiddleKind {
        &self.kind
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many pages of `class` it has room for.
    ///
    /// # Errors
    /// [`Error::Config`] if it has not room for one, or for more than there can be frames.
    fn frames(&self, class: SizeClass) -> Result<u32> {
        let (bytes, page_bytes) = (self.bytes, class.page_bytes() as u64);
        match bytes / page_bytes {
            0 => {
                let what = format!("a middle tier of {bytes} bytes has no room for one page of {page_bytes}");
                Err(Error::Config(what))
            }
            frames if frames > u64::from(FRAMES_MAX) => {
                let most = u64::from(FRAMES_MAX) * page_bytes;
                Err(Error::Config(format!(
                    "a middle tier of {bytes} bytes; with pages of {page_bytes} bytes the most is {most}"
                )))
            }
            frames => Ok(frames as u32),
        }
    }

    /// What a pool of pages of `class` is to be told of it.
    ///
    /// # Errors
    /// [`Error::Config`] if there is not room for one page, or for more than there can be.
    pub(crate) fn options(
        &self,
        class: SizeClass,
        choice: Choice,
        clean_victims: Option<CleanVictims>,
        queue_pages: Option<u64>,
    ) -> Result<MiddleOptions> {
        let frames = self.frames(class)?;
        // HyMem's queue is half as long as there are frames (Spitfire, section 6.5).
        let queue_pages = match choice.has_queue() {
            true => Some(queue_pages.unwrap_or(u64::from(frames / 2).max(1)) as usize),
            false => queue_pages.map(|pages| pages as usize),
        };
        Ok(MiddleOptions {
            frames,
            policy: choice.policy(),
            clean_victims: clean_victims.unwrap_or(choice.clean_victims()),
            queue_pages,
            adaptive: choice == Choice::Adaptive,
        })
    }

    /// What the environment variable `TERRACE_MIDDLE` says.
    ///
    /// # Errors
    /// [`Error::Config`] if that is no middle tier.
    pub(crate) fn of_environment() -> Result<Option<(Middle, Choice)>> {
        let text = match std::env::var(VARIABLE) {
            Ok(text) => text,
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(error) => return Err(Error::Config(format!("{VARIABLE}: {error}"))),
        };
        let wrong = |error: String| Error::Config(format!("{VARIABLE}: {error}"));
        let at = text.match_indices(',').nth(1).map_or(text.len(), |(at, _)| at);
        let middle = text[..at].parse().map_err(wrong)?;
        let choice = match text.get(at + 1..) {
            Some(policy) => policy.parse().map_err(wrong)?,
            None => Choice::default(),
        };
        Ok(Some((middle, choice)))
    }
}

/// The nodes that a middle tier is on, if it is of that kind, which must have room for it.
///
/// # Errors
/// As [`with_room`].
pub(crate) fn nodes_of(middle: &Middle, class: SizeClass) -> Result<Option<NodeSet>> {
    let MiddleKind::Numa(nodes) = middle.kind() else { return Ok(None) };
    let bytes = middle.bytes() / class.page_bytes() as u64 * class.page_bytes() as u64;
    with_room(nodes, bytes, "the middle tier").map(Some)
}

/// The nodes that `bytes` bytes of a tier are to be on, which must have room for them.
///
/// # Errors
/// [`Error::Config`] for a node that is not there; [`Error::Memory`] for one that has less memory free.
pub(crate) fn with_room(nodes: &NodeSet, bytes: u64, what: &'static str) -> Result<NodeSet> {
    check_room(nodes, bytes).map_err(|source| match source.kind() {
        io::ErrorKind::OutOfMemory => Error::Memory { bytes, what, source },
        _ => Error::Config(format!("{what} on nodes {nodes}: {source}")),
    })?;
    Ok(nodes.clone())
}

/// Bytes of DRAM that a middle tier takes: what is known of each of its frames, and of the pages in its queue.
pub(crate) fn bytes_beside(options: &MiddleOptions) -> u64 {
    let queue =
        options.queue_pages.map_or(0, |pages| (pages as u64).saturating_mul(AdmissionQueue::BYTES_PER_PAGE));
    (u64::from(options.frames) * MIDDLE_FRAME_BYTES_BESIDE).saturating_add(queue)
}

/// What tests of the pool tell it that are to run over three tiers too.
#[cfg(test)]
pub(crate) fn options_of_environment(class: SizeClass) -> Option<MiddleOptions> {
    let (middle, choice) = Middle::of_environment().unwrap()?;
    Some(middle.options(class, choice, None, None).unwrap())
}

impl fmt::Display for MiddleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MiddleKind::Simulated(profile) => write!(f, "simulated:{}", profile.place()),
            MiddleKind::Numa(nodes) => write!(f, "numa:{nodes}"),
        }
    }
}

impl FromStr for MiddleKind {
    type Err = String;

    fn from_str(text: &str) -> Result<MiddleKind, String> {
        if let Some(profile) = text.strip_prefix("simulated:") {
            Profile::find(profile).map(MiddleKind::Simulated).map_err(|error| error.to_string())
        } else if let Some(nodes) = text.strip_prefix("numa:") {
            nodes.parse().map(MiddleKind::Numa)
        } else {
            Err(format!("there is no middle tier \"{text}\"; there are numa:NODES and simulated:PROFILE"))
        }
    }
}

impl fmt::Display for Middle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}B", self.kind, self.bytes)
    }
}

impl FromStr for Middle {
    type Err = String;

    fn from_str(text: &str) -> Result<Middle, String> {
        let (kind, bytes) = kind_and_bytes(text, "simulated:dram,64MiB")?;
        Ok(Middle { kind, bytes })
    }
}

/// A kind and a size with a comma between, as in `example`.
pub(crate) fn kind_and_bytes<K: FromStr<Err = String>>(
    text: &str,
    example: &str,
) -> Result<(K, u64), String> {
    let (kind, size) = text
        .rsplit_once(',')
        .ok_or_else(|| format!("\"{text}\" is not a kind and a size, as in {example}"))?;
    Ok((kind.parse()?, units::size(size)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_tiers_round_trip_as_text_and_others_are_refused() {
        for text in [
            "numa:0,64MiB",
            "numa:1-2,5,8KiB",
            "simulated:dram,64MiB",
            "simulated:dram,4096B",
            "simulated:dram,3GiB",
        ] {
            let middle: Middle = text.parse().unwrap();
            assert_eq!(middle.to_string().parse(), Ok(middle));
        }
        // Sizes are those of every other flag.
        for (text, bytes) in [("simulated:dram,1.5GiB", 3 << 29), ("simulated:dram,65536", 65536)] {
            assert_eq!(text.parse::<Middle>().unwrap().bytes(), bytes);
        }
        for (text, wrong) in [
            ("", "kind and a size"),
            ("simulated:dram", "kind and a size"),
            ("simulated:dram,64MB", "did you mean MiB"),
            ("simulated:dram,MiB", "begin with a number"),
            ("simulated:dram,1.5B", "whole number of bytes"),
            ("simulated:dram,18446744073709551615GiB", "below 16 EiB"),
            ("dram,64MiB", "\"dram\""),
            ("simulated:drum,64MiB", "drum"),
            ("numa:,64MiB", ""),
            ("numa:x,64MiB", "x"),
        ] {
            let error = text.parse::<Middle>().unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }

    /// Else what is handed on as text, to another process, would be another memory or none.
    #[test]
    fn a_profile_of_a_file_round_trips_as_its_file_whatever_it_is_called() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("slow.toml");
        std::fs::write(&path, "base = 'optane'\nname = 'optane'\nrandom_read_ns = 4000").unwrap();
        let text = format!("simulated:{},67108864B", path.display());
        let middle: Middle = text.parse().unwrap();
        assert_eq!(middle.to_string(), text);
        assert_eq!(middle.to_string().parse(), Ok(middle));
    }

    #[test]
    fn a_middle_tier_has_room_for_a_page_at_least() {
        let class = SizeClass::of_bytes(16 << 10).unwrap();
        let options = |bytes, choice, queue| {
            Middle::new("simulated:dram".parse().unwrap(), bytes).options(class, choice, None, queue)
        };
        let on = |nodes: &str| nodes_of(&format!("numa:{nodes},64KiB").parse().unwrap(), class);
        assert_eq!(on("0").unwrap(), Some("0".parse().unwrap()));
        assert!(on("1000").unwrap_err().to_string().contains("node 1000"));
        assert!(options((16 << 10) - 1, Choice::Eager, None).is_err());
        // What is asked for is there, or refused.
        let most = u64::from(FRAMES_MAX) * (16 << 10);
        assert_eq!(options(most, Choice::Lazy, None).unwrap().frames, FRAMES_MAX);
        let refused = options(most + (16 << 10), Choice::Lazy, None).unwrap_err().to_string();
        assert!(refused.contains(&format!("the most is {most}")), "{refused}");
        assert_eq!(options(16 << 10, Choice::Eager, None).unwrap().frames, 1);
        assert_eq!(options(1 << 20, Choice::HyMem, None).unwrap().queue_pages, Some(32));
        assert_eq!(options(1 << 20, Choice::HyMem, Some(7)).unwrap().queue_pages, Some(7));
        assert_eq!(options(1 << 20, Choice::Lazy, None).unwrap().queue_pages, None);
        assert_eq!(bytes_beside(&options(1 << 20, Choice::HyMem, Some(u64::MAX)).unwrap()), u64::MAX);
    }
}
