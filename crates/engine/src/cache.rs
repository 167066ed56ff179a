//! The block cache under the page file: what it is, and how a database is given it.
//!
//! The page file is then a [`Cached`] over its device; nothing above knows of it but the cleaner, which moves images and has
//! cached blocks follow them (`buffer/cleaner.rs`), and who frees places. Its blocks are places of 4 KiB, since images begin at any of them
//! and have any number. The log is not cached: it is read in recovery alone.
//!
//! **Never stale.** The cache bears the database's identity and its timeline, so that of a restored database nothing of before counts.
//! The file `cache.guard` beside the page file says which cache was used last. Who opens the database for writing with another cache or
//! with none says so there, durably, before anything is written; and where the file is missing, as in a restored database, no cache
//! counts. Who only reads leaves the cache alone: it is one process's. Guard and cache have a number of each opening and close, and the
//! cache knows the superblock of the page file, so that a copy of one of the files that is put back is noticed: the cache begins empty.
//!
//! **Only slower.** What goes wrong with the fast device while it is used makes the cache go out of service, with a warning and the reason in
//! the statistics; and so does a file that cannot be opened. Refused is what somebody has to mend first: a cache that another
//! process uses, a directory that is not there, a size or a policy that cannot be.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use terrace_block::policy::Name;
use terrace_block::{
    AlignedBuffer, BlockDevice, CacheConfig, CacheError, CacheTrust, Cached, Clock, Directory, FileDirectory,
    MemoryDevice, OpenMode, Profile, SimulatedDevice, SimulatedMemory, Time, VirtualTime,
};

use crate::db::open::{exists, within};
use crate::error::{Error, Result};
use crate::middle::kind_and_bytes;
use crate::planted::{Bug, planted};
use crate::store::place::PLACE_BYTES;
use crate::store::superblock::Superblock;

/// The file beside the page file that says which cache was used last.
const GUARD: &str = "cache.guard";

/// A cache of the page file's blocks on a device that is faster than the page file's.
///
/// What is said on the command line is its kind and its size, with a comma between.
///
/// ```
/// use std::sync::Arc;
/// use terrace::{Cache, Db, MemoryDirectory};
///
/// let cache: Cache = "file:/mnt/nvme/cache,64MiB".parse()?;
/// assert_eq!((cache.bytes(), cache.policy_name().as_str()), (64 << 20, "sieve"));
/// # let directory = Arc::new(MemoryDirectory::new());
/// # let fast = Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).cache_directory(fast).dram(8 << 20);
/// let db = builder.cache(cache.policy("obp+lru")?).open("")?;
/// db.create_table("t")?.put("k", "v")?;
/// assert_eq!(db.stats().cache.unwrap().capacity_bytes, 64 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    kind: CacheKind,
    bytes: u64,
    policy: Name,
    write_budget_bytes_day: Option<u64>,
    trust: CacheTrust,
}

/// Where a cache is.
///
/// ```
/// use terrace::{CacheKind, Profile};
///
/// let kind: CacheKind = "simulated:optane".parse()?;
/// assert_eq!(kind, CacheKind::Simulated(Profile::named("optane").unwrap()));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CacheKind {
    /// A file of this path, in a directory that exists; of a directory, the file that is called after the database's
    /// identity.
    File(PathBuf),
    /// A device that this machine does not have: the bytes are in DRAM beside the budget, and accesses take as long as the profile says
    /// ([`crate::Builder::simulated_time`]). Never a default, and empty whenever the database is opened. With a simulated middle tier of
    /// a profile of the same name it shares the modules: one bandwidth, in which the writers of one slow down the readers of the other.
    Simulated(Profile),
}

/// Bytes of DRAM that the index and the journal's account take for each block.
const INDEX_BYTES: u64 = 24;
/// What admission policies take: the block's name, once, the sketch of `frequency`, and what `ration` remembers of blocks lately asked
/// for and of what LRU would hold, by the sizes of its arrays.
const NAME_BYTES: u64 = 8;
const SKETCH_BYTES: u64 = 16;
const RATION_BYTES: u64 = 176;

/// Bytes of DRAM that an eviction policy takes for each block: the most that was measured by counting what it allocates while its
/// tables grow, over nine capacities of look-ups of a database of twenty. `tac` keeps 64 bytes for every 128 KiB of the page file that were ever looked up,
/// which for a database of that size is in here; all others are bounded.
fn policy_bytes(eviction: &str) -> u64 {
    match eviction {
        "lru" | "mru" | "fifo" | "clock" | "sieve" | "lfu-in-cache" => 16,
        "lfru" => 36,
        "w-tinylfu" => 40,
        "arc" | "2q" | "s3-fifo" => 112,
        "tac" => 128,
        "lirs" => 192,
        // Counts of four blocks for each that is in the cache.
        "lfu" | "mq" => 400,
        "heuristicdb" | "heuristicdb-paper" | "heuristicdb-eager" => 408,
        // Whole policies beside each other, of which each has its own idea of what is in the cache. Those that are watched only where
        // queries are told, or while the quota is given up, are added by what they take alone and 72 bytes for a shadow.
        "auto" => 1480,
        _ => 2150,
    }
}

/// Bytes of DRAM for a cache of so many blocks: what is known of each, and what the policies remember of those that are not in it.
pub(crate) fn dram_bytes(policy: &Name, blocks: u64) -> u64 {
    let name = policy.to_string();
    let filters = [("", NAME_BYTES), ("frequency", SKETCH_BYTES), ("ration", RATION_BYTES)];
    let admitted = filters.iter().filter(|(filter, _)| policy.admissions() > 0 && name.contains(filter));
    blocks.saturating_mul(
        INDEX_BYTES + policy_bytes(policy.eviction()) + admitted.map(|(_, bytes)| bytes).sum::<u64>(),
    )
}

impl Cache {
    /// One of `bytes` bytes with the default policy, SIEVE. What does not make a block of 4 KiB is left alone.
    pub fn new(kind: CacheKind, bytes: u64) -> Cache {
        let policy = CacheConfig::new(1).policy;
        Cache { kind, bytes, policy, write_budget_bytes_day: None, trust: CacheTrust::Auto }
    }

    /// Which policy decides what is cached: one of [`terrace_block::policy::NAMES`], behind any of
    /// [`terrace_block::policy::ADMISSIONS`], as in `obp+lru`, or a preset of [`terrace_block::policy::PRESETS`].
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such policy, or it is for traces only: because it needs the future, or is there to be
    /// compared with.
    pub fn policy(self, name: &str) -> Result<Cache> {
        let policy: Name = name
            .parse()
            .map_err(|error: terrace_block::policy::UnknownPolicy| Error::Config(error.to_string()))?;
        if policy.needs_future() {
            return Err(Error::Config(format!("a cache cannot have the policy {name}: it needs the future")));
        }
        if policy.is_baseline() {
            return Err(Error::Config(format!(
                "a cache cannot have the policy {name}: it is there for traces only, to compare with"
            )));
        }
        Ok(Cache { policy, ..self })
    }

    /// Bytes a day that may be written to the fast device; by default as many as come.
    #[must_use]
    pub fn write_budget(self, bytes_day: u64) -> Cache {
        Cache { write_budget_bytes_day: Some(bytes_day), ..self }
    }

    /// Bytes a day that may be written to the fast device, if that is limited.
    pub fn write_budget_bytes_day(&self) -> Option<u64> {
        self.write_budget_bytes_day
    }

    /// How much of it is believed after its process died; by default all that was written where both it and the database are on
    /// file systems of this machine, and what was synced elsewhere.
    #[must_use]
    pub fn trust(self, trust: CacheTrust) -> Cache {
        Cache { trust, ..self }
    }

    /// Where it is.
    pub fn kind(&self) -> &CacheKind {
        &self.kind
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What its policy is called.
    pub fn policy_name(&self) -> String {
        self.policy.to_string()
    }

    /// Bytes of DRAM that it takes: part of the budget.
    pub(crate) fn dram_bytes(&self) -> u64 {
        dram_bytes(&self.policy, self.bytes / PLACE_BYTES as u64)
    }

    fn config(&self, dram_bytes: u64) -> Result<CacheConfig> {
        if let CacheKind::Simulated(profile) = &self.kind
            && profile.dram_cache_bytes() > 0
        {
            let what = format!(
                "the cache's profile {} has DRAM before it, which only memory can have",
                profile.place()
            );
            return Err(Error::Config(what));
        }
        let blocks = self.bytes / PLACE_BYTES as u64;
        let blocks = u32::try_from(blocks).map_err(|_| too_large(self.bytes))?;
        let config = CacheConfig {
            policy: self.policy.clone(),
            dram_blocks: Some(dram_bytes / PLACE_BYTES as u64),
            write_budget_bytes_day: self.write_budget_bytes_day,
            // Every image has a checksum of its own, and what reads it asks the page file if that does not hold.
            verify_hits: false,
            ..CacheConfig::new(blocks).block_bytes(PLACE_BYTES)
        };
        config.check().map_err(|error| Error::Config(error.to_string()))?;
        Ok(config)
    }
}

fn too_large(bytes: u64) -> Error {
    Error::Config(format!("a cache of {bytes} bytes has more blocks than can be numbered"))
}

/// How a database is opened, as far as its cache is concerned.
pub(crate) struct Opening<'a> {
    pub(crate) cache: Option<&'a Cache>,
    /// Where a cache of the kind `file` is, instead of in the file system.
    pub(crate) fast: Option<&'a Arc<dyn Directory>>,
    /// The database's.
    pub(crate) directory: &'a dyn Directory,
    pub(crate) dram_bytes: u64,
    pub(crate) time: &'a Time,
    /// The middle tier's, where it is simulated.
    pub(crate) memory: Option<&'a SimulatedMemory>,
}

impl Opening<'_> {
    /// Puts the cache before the page file, or says that there is none before anything is written without it. Nobody else has the
    /// page file.
    pub(crate) fn attach(
        &self,
        pages: Arc<dyn BlockDevice>,
        superblock: &Superblock,
    ) -> Result<Option<Arc<Cached>>> {
        let Some(cache) = self.cache else {
            if exists(self.directory, GUARD)? && !planted(Bug::CacheUntold) {
                self.revoke(&*self.guard(OpenMode::Write)?)?;
            }
            return Ok(None);
        };
        // Whether the database has been used with a cache before.
        let is_known = exists(self.directory, GUARD)?;
        let config = cache.config(self.dram_bytes)?.identity(identity(superblock)).guard(self.open_guard()?);
        let mut config = CacheConfig { progress: superblock.sequence, ..config };
        let cached = match &cache.kind {
            CacheKind::Simulated(profile) => {
                let inner = Arc::new(MemoryDevice::new("the cache", 0));
                let fast = match self.memory.filter(|memory| memory.profile().name() == profile.name()) {
                    Some(memory) => SimulatedDevice::beside(inner, memory),
                    None => SimulatedDevice::new(inner, profile.clone(), self.time.clone()),
                };
                if let Time::Virtual(time) = self.time {
                    config = config.clock(Arc::new(WorkersClock(Arc::clone(time))));
                }
                Cached::open(pages, Arc::new(fast), config)
            }
            CacheKind::File(path) => {
                let (directory, name) = self.place(path, superblock)?;
                config = config.power_cycle(cache.trust.power_cycle(&[self.directory, &*directory]));
                match Cached::open_in(Arc::clone(&pages), &*directory, &name, config.clone()) {
                    Err(CacheError::Directory { file, source }) => {
                        tracing::warn!(file, %source, "the cache cannot be opened; going on without");
                        Cached::open(pages, Arc::new(Unusable { file, source }), config)
                    }
                    // It may be what damage has left of the cache, and does not keep the database from being opened. It may be
                    // a file of somebody else's, too, and is left as it is.
                    Err(CacheError::Foreign { device: file }) if is_known => {
                        tracing::warn!(
                            file,
                            "the file is not a cache and is left as it is; going on without"
                        );
                        let source = io::Error::new(io::ErrorKind::InvalidData, "it is not a cache");
                        Cached::open(pages, Arc::new(Unusable { file, source }), config)
                    }
                    // A name that was mistyped: the next attempt is to be told so, too.
                    Err(CacheError::Foreign { device }) => {
                        let _ = self.directory.remove(GUARD);
                        Err(CacheError::Foreign { device })
                    }
                    opened => opened,
                }
            }
        };
        cached.map(|cached| Some(Arc::new(cached))).map_err(refused)
    }

    fn guard(&self, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
        let opened = self.directory.open(GUARD, mode);
        opened.map_err(|source| Error::io("open", &within(self.directory, GUARD), None, source))
    }

    fn revoke(&self, guard: &dyn BlockDevice) -> Result<()> {
        Cached::revoke_all(guard).map_err(|source| Error::io("write", guard.name(), Some(0), source))
    }

    /// The guard. One that is made says that no cache counts: who knows what was done before it was there.
    fn open_guard(&self) -> Result<Arc<dyn BlockDevice>> {
        let is_there = exists(self.directory, GUARD)?;
        let guard = self.guard(if is_there { OpenMode::Write } else { OpenMode::CreateNew })?;
        // One in which nothing was said is one whose making was cut off.
        if is_there && !is_blank(&*guard)? {
            return Ok(guard);
        }
        self.revoke(&*guard)?;
        let synced = self.directory.sync();
        synced.map_err(|source| Error::io("sync", &self.directory.name(), None, source))?;
        Ok(guard)
    }

    /// The directory that the cache's file is in, and its name there.
    fn place(&self, path: &Path, superblock: &Superblock) -> Result<(Arc<dyn Directory>, String)> {
        let own_name =
            || superblock.uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + ".cache";
        let name = || path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        if let Some(directory) = self.fast {
            return Ok((Arc::clone(directory), name().unwrap_or_else(own_name)));
        }
        let (parent, name) = match name() {
            Some(name) if !path.is_dir() => (path.parent().unwrap_or(Path::new("")), name),
            _ => (path, own_name()),
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let opened = FileDirectory::open(parent);
        let opened = opened.map_err(|source| {
            Error::Config(format!("the cache's directory {} cannot be opened: {source}", parent.display()))
        });
        Ok((Arc::new(opened?), name))
    }
}

/// Whether nothing was said in a guard.
fn is_blank(guard: &dyn BlockDevice) -> Result<bool> {
    let mut page = AlignedBuffer::zeroed(PLACE_BYTES);
    if guard.len() < page.len() as u64 {
        return Ok(true);
    }
    let read = guard.read_at(0, &mut page);
    read.map_err(|source| Error::io("read", guard.name(), Some(0), source))?;
    Ok(page.iter().all(|&byte| byte == 0))
}

/// What names the content of the page file: a restored database has another timeline.
fn identity(superblock: &Superblock) -> [u8; 16] {
    let mut identity = superblock.uuid;
    let timeline = superblock.timeline.to_le_bytes();
    identity[8..].iter_mut().zip(timeline).for_each(|(byte, timeline)| *byte ^= timeline);
    identity
}

fn refused(error: CacheError) -> Error {
    match error {
        CacheError::Busy { file, owner_process } => {
            Error::Busy { path: format!("the cache {file}"), owner_process }
        }
        CacheError::Slow { device, source } => Error::io("open a cache over", &device, None, source),
        error => Error::Config(error.to_string()),
    }
}

/// What the worker that asks has on its clock: a cache on a simulated device measures, in virtual time, what is charged there.
/// Workers are not all as far, so it may go back from one to the other, by as much as an operation takes.
#[derive(Debug)]
struct WorkersClock(Arc<VirtualTime>);

impl Clock for WorkersClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now(self.0.worker()))
    }

    fn sleep_until(&self, deadline: Duration) {
        let left = deadline.saturating_sub(self.now());
        self.0.spend(self.0.worker(), left.as_nanos() as u64);
    }
}

/// What stands for a file that cannot be opened: a cache on it is out of service.
#[derive(Debug)]
struct Unusable {
    file: String,
    source: io::Error,
}

impl Unusable {
    fn fail<T>(&self) -> io::Result<T> {
        Err(io::Error::new(self.source.kind(), self.source.to_string()))
    }
}

impl BlockDevice for Unusable {
    fn name(&self) -> &str {
        &self.file
    }

    fn len(&self) -> u64 {
        // Longer than a superblock, so that reading one is tried and fails.
        u64::MAX / 2
    }

    fn alignment(&self) -> usize {
        512
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        self.fail()
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        self.fail()
    }

    fn sync(&self) -> io::Result<()> {
        self.fail()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        self.fail()
    }
}

impl fmt::Display for CacheKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheKind::File(path) => write!(f, "file:{}", path.display()),
            CacheKind::Simulated(profile) => write!(f, "simulated:{}", profile.place()),
        }
    }
}

impl FromStr for CacheKind {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheKind, String> {
        if let Some(profile) = text.strip_prefix("simulated:") {
            Profile::find(profile).map(CacheKind::Simulated).map_err(|error| error.to_string())
        } else if let Some(path) = text.strip_prefix("file:").filter(|path| !path.is_empty()) {
            Ok(CacheKind::File(path.into()))
        } else {
            Err(format!("there is no cache \"{text}\"; there are file:PATH and simulated:PROFILE"))
        }
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}B", self.kind, self.bytes)
    }
}

impl FromStr for Cache {
    type Err = String;

    fn from_str(text: &str) -> Result<Cache, String> {
        let (kind, bytes) = kind_and_bytes(text, "file:/mnt/nvme/cache,8GiB")?;
        if bytes < PLACE_BYTES as u64 {
            return Err(format!("a cache of {bytes}B has no room for a block of {PLACE_BYTES} bytes"));
        }
        Ok(Cache::new(kind, bytes))
    }
}

#[cfg(test)]
mod tests;
