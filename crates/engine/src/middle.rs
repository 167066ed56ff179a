//! Settings of the middle tier: kind of memory and size.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use terrace_io::{NodeSet, PersistentKind, Profile, check_room};

use crate::cache::kind_and_bytes;
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::migration::{AdmissionQueue, Migration};
use crate::pool::{FRAMES_MAX, LineMasks, MIDDLE_FRAME_BYTES_BESIDE, MiddleOptions, MiniPages, persistent};

/// A memory tier between DRAM and the store, with pages used in place.
///
/// On the command line: kind and size, separated by a comma.
///
/// ```
/// use terrace::{Db, MemoryDirectory, Middle};
/// use terrace::migration::Choice;
///
/// let middle: Middle = "simulated:dram,16MiB".parse()?;
/// assert_eq!(middle.bytes(), 16 << 20);
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20);
/// let builder = builder.middle(middle).policy(Choice::Lazy);
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

/// Kind of memory of a middle tier.
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
    /// Simulated memory with this profile; the bytes are in DRAM.
    ///
    /// Accesses take as long as the profile says ([`crate::Builder::simulated_time`]). Never a
    /// default. With a persistent profile, frames outlive the database handle in directories in
    /// memory, and write-backs are charged.
    Simulated(Profile),
    /// Memory of NUMA nodes in equal parts, such as another socket or CXL memory.
    Numa(NodeSet),
    /// A file on tmpfs, such as one in `/dev/shm`: outlives the process, but no power cut.
    ///
    /// One database has it at a time. A database opened with it again finds its pages there.
    Shm(PathBuf),
    /// A file on persistent memory (DAX): outlives the process and a power cut.
    Pmem(PathBuf),
}

impl MiddleKind {
    /// The file of a tier that outlives the process, and what it outlives.
    pub(crate) fn file(&self) -> Option<(&Path, PersistentKind)> {
        match self {
            MiddleKind::Shm(path) => Some((path, PersistentKind::Shm)),
            MiddleKind::Pmem(path) => Some((path, PersistentKind::Dax)),
            MiddleKind::Simulated(_) | MiddleKind::Numa(_) => None,
        }
    }
}

impl Middle {
    /// A tier of `bytes` bytes, rounded down to whole pages.
    pub fn new(kind: MiddleKind, bytes: u64) -> Middle {
        Middle { kind, bytes }
    }

    /// Kind of memory.
    pub fn kind(&self) -> &MiddleKind {
        &self.kind
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Frames for pages of `class`.
    ///
    /// # Errors
    /// [`Error::Config`] if no page fits, or more than the maximum number of frames.
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

    /// Pool options of this tier.
    ///
    /// # Errors
    /// [`Error::Config`] if no page fits, or more than the maximum number of frames.
    pub(crate) fn options(&self, class: SizeClass, migration: Migration) -> Result<MiddleOptions> {
        Ok(MiddleOptions { class, frames: self.frames(class)?, migration, lines: None, minis: false })
    }
}

/// The NUMA nodes of a middle tier, checked for room; `None` for other kinds.
///
/// # Errors
/// Those of [`with_room`].
pub(crate) fn nodes_of(middle: &Middle, class: SizeClass) -> Result<Option<NodeSet>> {
    let MiddleKind::Numa(nodes) = middle.kind() else { return Ok(None) };
    let bytes = middle.bytes() / class.page_bytes() as u64 * class.page_bytes() as u64;
    with_room(nodes, bytes, "the middle tier").map(Some)
}

/// Checks that `nodes` have `bytes` bytes free for a tier.
///
/// # Errors
/// [`Error::Config`] for a missing node; [`Error::Memory`] for too little free memory.
pub(crate) fn with_room(nodes: &NodeSet, bytes: u64, what: &'static str) -> Result<NodeSet> {
    check_room(nodes, bytes).map_err(|source| match source.kind() {
        io::ErrorKind::OutOfMemory => Error::Memory { bytes, what, source },
        _ => Error::Config(format!("{what} on nodes {nodes}: {source}")),
    })?;
    Ok(nodes.clone())
}

/// DRAM bytes for the tier's frame headers, the states of persistent frames, the admission queue,
/// and the lines and mini pages of up to `dram_max` bytes of frames of `class`.
pub(crate) fn bytes_beside(
    options: &MiddleOptions,
    is_persistent: bool,
    class: SizeClass,
    dram_max: u64,
) -> u64 {
    let lines = options.lines.map_or(0, |bytes| {
        let masks = LineMasks::bytes_per_frame(class, bytes as usize);
        let minis = if options.minis { MiniPages::BYTES_PER_FRAME } else { 0 };
        dram_max / class.page_bytes() as u64 * (masks + minis)
    });
    let queue = options.migration.queue_pages(options.frames);
    let queue = queue.map_or(0, |pages| (pages as u64).saturating_mul(AdmissionQueue::BYTES_PER_PAGE));
    let frame = MIDDLE_FRAME_BYTES_BESIDE + if is_persistent { persistent::BYTES_BESIDE } else { 0 };
    (u64::from(options.frames) * frame).saturating_add(queue).saturating_add(lines)
}

/// Pool options from `TERRACE_MIDDLE`, for tests.
#[cfg(test)]
pub(crate) fn options_of_environment(class: SizeClass) -> Option<MiddleOptions> {
    let defaults = crate::config::Defaults::default();
    let (middle, choice) = defaults.middle?;
    let lines = defaults.lines.filter(|_| defaults.backend == crate::Backend::Frames);
    let options = middle.options(class, choice.into()).unwrap();
    let minis = defaults.minis && lines.is_some_and(|bytes| MiniPages::are_useful(class, bytes as usize));
    Some(MiddleOptions { lines: lines.map(|bytes| bytes as u32), minis, ..options })
}

impl fmt::Display for MiddleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MiddleKind::Simulated(profile) => write!(f, "simulated:{}", profile.location()),
            MiddleKind::Numa(nodes) => write!(f, "numa:{nodes}"),
            MiddleKind::Shm(path) => write!(f, "shm:{}", path.display()),
            MiddleKind::Pmem(path) => write!(f, "pmem:{}", path.display()),
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
        } else if let Some(path) = text.strip_prefix("shm:") {
            file(path).map(MiddleKind::Shm)
        } else if let Some(path) = text.strip_prefix("pmem:") {
            file(path).map(MiddleKind::Pmem)
        } else {
            let kinds = "numa:NODES, shm:FILE, pmem:FILE and simulated:PROFILE";
            Err(format!("there is no middle tier \"{text}\"; there are {kinds}"))
        }
    }
}

fn file(path: &str) -> Result<PathBuf, String> {
    match Path::new(path).file_name() {
        Some(_) => Ok(PathBuf::from(path)),
        None => Err(format!("\"{path}\" names no file for a middle tier, such as /dev/shm/tier")),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migration::Choice;

    #[test]
    fn middle_tiers_round_trip_as_text_and_others_are_refused() {
        for text in [
            "numa:0,64MiB",
            "numa:1-2,5,8KiB",
            "simulated:dram,64MiB",
            "simulated:dram,4096B",
            "simulated:dram,3GiB",
            "shm:/dev/shm/tier,64MiB",
            "pmem:/mnt/a,b/tier,64MiB",
        ] {
            let middle: Middle = text.parse().unwrap();
            assert_eq!(middle.to_string().parse(), Ok(middle));
        }
        // Same size units as other flags.
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
            ("shm:,64MiB", "names no file"),
            ("pmem:/mnt/..,64MiB", "names no file"),
        ] {
            let error = text.parse::<Middle>().unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }

    /// Another process must find the same memory by this text.
    #[test]
    fn a_profile_of_a_file_round_trips_as_its_file_whatever_it_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slow.toml");
        std::fs::write(&path, "base = 'optane'\nname = 'optane'\nrandom_read_ns = 4000").unwrap();
        let text = format!("simulated:{},67108864B", path.display());
        let middle: Middle = text.parse().unwrap();
        assert_eq!(middle.to_string(), text);
        assert_eq!(middle.to_string().parse(), Ok(middle));
    }

    #[test]
    fn a_middle_tier_has_room_for_a_page_at_least() {
        let class = SizeClass::of_bytes(16 << 10).unwrap();
        let options = |bytes, choice: Choice, admission_queue| {
            let migration = Migration { admission_queue, ..choice.into() };
            Middle::new("simulated:dram".parse().unwrap(), bytes).options(class, migration)
        };
        let on = |nodes: &str| nodes_of(&format!("numa:{nodes},64KiB").parse().unwrap(), class);
        assert_eq!(on("0").unwrap(), Some("0".parse().unwrap()));
        assert!(on("1000").unwrap_err().to_string().contains("node 1000"));
        assert!(options((16 << 10) - 1, Choice::Eager, None).is_err());
        // The full size is available, or refused.
        let most = u64::from(FRAMES_MAX) * (16 << 10);
        assert_eq!(options(most, Choice::Lazy, None).unwrap().frames, FRAMES_MAX);
        let refused = options(most + (16 << 10), Choice::Lazy, None).unwrap_err().to_string();
        assert!(refused.contains(&format!("the most is {most}")), "{refused}");
        assert_eq!(options(16 << 10, Choice::Eager, None).unwrap().frames, 1);
        let beside_of = |options| bytes_beside(&options, false, class, 64 << 20);
        let beside = |choice, queue| beside_of(options(1 << 20, choice, queue).unwrap());
        let [lazy, hymem, seven] = [(Choice::Lazy, None), (Choice::HyMem, None), (Choice::HyMem, Some(7))]
            .map(|(c, q)| beside(c, q));
        assert_eq!(lazy, 64 * MIDDLE_FRAME_BYTES_BESIDE);
        assert_eq!(hymem - lazy, 32 * AdmissionQueue::BYTES_PER_PAGE);
        assert_eq!(seven - lazy, 7 * AdmissionQueue::BYTES_PER_PAGE);
        assert_eq!(beside(Choice::HyMem, Some(u64::MAX)), u64::MAX);
        let lines = |bytes| MiddleOptions { lines: bytes, ..options(1 << 20, Choice::Lazy, None).unwrap() };
        // Two bits for each of the 256 lines of each page that DRAM could hold.
        assert_eq!(beside_of(lines(Some(64))) - lazy, (64 << 20) / (16 << 10) * 64);
    }
}
