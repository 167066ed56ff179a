//! The block cache under the page file, and how a database opens it.
//!
//! The page file is then a [`Cached`] over its device. Only the cleaner knows: cached blocks follow
//! the images that it moves (`maintenance/cleaner.rs`). Cache blocks have 4 KiB, because images
//! begin at any block id. The log is not cached.
//!
//! **Never stale.** The cache carries the database's identity and timeline. The file `cache.guard`
//! beside the page file names the cache used last. An open for writing with another cache, or none,
//! updates it durably before any write. Without a guard no cache is trusted. Guard and cache share
//! a random session, drawn at each opening and close, and the cache knows the superblock. So a file
//! restored from a copy makes the cache cold. A read-only open ignores the cache, which only one
//! process can use.
//!
//! **Only slower.** A fast device that fails, or a cache file that cannot be opened, takes the
//! cache out of service. An open fails only for what the user must correct: a cache in use by
//! another process, a missing directory, an invalid size or policy.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use terrace_cache::policy::Name;
use terrace_cache::{CacheConfig, CacheError, CacheTrust, Cached};
use terrace_io::{
    AlignedBuffer, BlockDevice, Clock, Directory, FileDirectory, MemoryDevice, OpenMode, Profile,
    SimulatedDevice, SimulatedMemory, Time, VirtualTime, units,
};

use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::store::mapping_word::BLOCK_BYTES;
use crate::store::names::{exists, within};
use crate::store::superblock::Superblock;

/// File beside the page file that names the cache used last.
pub(crate) const GUARD: &str = "cache.guard";

/// A cache of page file blocks on a faster device.
///
/// On the command line: kind and size, separated by a comma.
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

/// Location of a cache.
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
    /// A file in an existing directory. If the path is a directory, the file is named after the
    /// database's identity.
    File(PathBuf),
    /// A simulated device with this profile, in DRAM beyond the budget.
    ///
    /// Accesses take as long as the profile says ([`crate::Builder::simulated_time`]). Never a
    /// default, and empty at each open. A simulated middle tier with a profile of the same name
    /// shares its bandwidth: writes of one slow down reads of the other.
    Simulated(Profile),
}

impl Cache {
    /// A cache of `bytes` bytes with the default policy, SIEVE.
    ///
    /// Rounds down to whole blocks of 4 KiB.
    pub fn new(kind: CacheKind, bytes: u64) -> Cache {
        let policy = CacheConfig::new(1).policy;
        Cache { kind, bytes, policy, write_budget_bytes_day: None, trust: CacheTrust::Auto }
    }

    /// Sets the policy: an eviction policy, optional admission policies, or a preset.
    ///
    /// Names are in [`terrace_cache::policy::NAMES`], [`terrace_cache::policy::ADMISSIONS`] (as in
    /// `obp+lru`) and [`terrace_cache::policy::PRESETS`].
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown policy or one for traces only.
    pub fn policy(self, name: &str) -> Result<Cache> {
        let policy: Name = name
            .parse()
            .map_err(|error: terrace_cache::policy::UnknownPolicy| Error::Config(error.to_string()))?;
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

    /// Limits writes to the fast device, bytes per day. Default: no limit.
    #[must_use]
    pub fn write_budget(self, bytes_day: u64) -> Cache {
        Cache { write_budget_bytes_day: Some(bytes_day), ..self }
    }

    /// The write limit of the fast device, bytes per day.
    pub fn write_budget_bytes_day(&self) -> Option<u64> {
        self.write_budget_bytes_day
    }

    /// Sets how much of the cache is trusted after its process was killed.
    ///
    /// By default everything written, if cache and database are on local file systems; otherwise
    /// only synced blocks.
    #[must_use]
    pub fn trust(self, trust: CacheTrust) -> Cache {
        Cache { trust, ..self }
    }

    /// Location of the cache.
    pub fn kind(&self) -> &CacheKind {
        &self.kind
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Name of the policy.
    pub fn policy_name(&self) -> String {
        self.policy.to_string()
    }

    pub(crate) fn dram_bytes(&self) -> u64 {
        self.policy.dram_bytes(self.bytes / BLOCK_BYTES as u64)
    }

    fn config(&self, dram_bytes: u64) -> Result<CacheConfig> {
        if let CacheKind::Simulated(profile) = &self.kind
            && profile.dram_cache_bytes() > 0
        {
            let what = format!(
                "the cache's profile {} has DRAM before it, which only memory can have",
                profile.location()
            );
            return Err(Error::Config(what));
        }
        let blocks = self.bytes / BLOCK_BYTES as u64;
        let blocks = u32::try_from(blocks).map_err(|_| too_large(self.bytes))?;
        let config = CacheConfig {
            policy: self.policy.clone(),
            dram_blocks: Some(dram_bytes / BLOCK_BYTES as u64),
            write_budget_bytes_day: self.write_budget_bytes_day,
            // Each image has its own checksum; a reader falls back to the page file.
            verify_hits: false,
            ..CacheConfig::new(blocks).block_bytes(BLOCK_BYTES)
        };
        config.check().map_err(|error| Error::Config(error.to_string()))?;
        Ok(config)
    }
}

fn too_large(bytes: u64) -> Error {
    Error::Config(format!("a cache of {bytes} bytes has more blocks than can be numbered"))
}

pub(crate) struct Opening<'a> {
    pub(crate) cache: Option<&'a Cache>,
    /// Replaces the file system for a cache of kind `file`.
    pub(crate) fast: Option<&'a Arc<dyn Directory>>,
    /// Directory of the database.
    pub(crate) directory: &'a dyn Directory,
    pub(crate) dram_bytes: u64,
    pub(crate) time: &'a Time,
    /// Memory of the middle tier, if simulated.
    pub(crate) memory: Option<&'a SimulatedMemory>,
}

impl Opening<'_> {
    /// Opens the cache over the page file, or durably records that there is none.
    ///
    /// The caller has exclusive access to the page file.
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
                let (directory, name) = self.path(path, superblock)?;
                config = config.power_cycle(cache.trust.power_cycle(&[self.directory, &*directory]));
                match Cached::open_in(Arc::clone(&pages), &*directory, &name, config.clone()) {
                    Err(CacheError::Directory { file, source }) => {
                        tracing::warn!(file, %source, "the cache cannot be opened; going on without");
                        Cached::open(pages, Arc::new(Unusable { file, source }), config)
                    }
                    // It may be a damaged cache or a foreign file. Leave it alone, and open the
                    // database without.
                    Err(CacheError::Foreign { device: file }) if is_known => {
                        tracing::warn!(
                            file,
                            "the file is not a cache and is left as it is; going on without"
                        );
                        let source = io::Error::new(io::ErrorKind::InvalidData, "it is not a cache");
                        Cached::open(pages, Arc::new(Unusable { file, source }), config)
                    }
                    // Probably a mistyped name. Remove the guard, so that the next attempt fails
                    // too.
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

    /// Opens the guard. A new guard trusts no cache: the history before it is unknown.
    fn open_guard(&self) -> Result<Arc<dyn BlockDevice>> {
        let is_there = exists(self.directory, GUARD)?;
        let guard = self.guard(if is_there { OpenMode::Write } else { OpenMode::CreateNew })?;
        // An empty guard is one whose creation was interrupted.
        if is_there && !is_blank(&*guard)? {
            return Ok(guard);
        }
        self.revoke(&*guard)?;
        let synced = self.directory.sync();
        synced.map_err(|source| Error::io("sync", &self.directory.name(), None, source))?;
        Ok(guard)
    }

    fn path(&self, path: &Path, superblock: &Superblock) -> Result<(Arc<dyn Directory>, String)> {
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

/// Whether a guard is empty.
fn is_blank(guard: &dyn BlockDevice) -> Result<bool> {
    let mut page = AlignedBuffer::zeroed(BLOCK_BYTES);
    if guard.len() < page.len() as u64 {
        return Ok(true);
    }
    let read = guard.read_at(0, &mut page);
    read.map_err(|source| Error::io("read", guard.name(), Some(0), source))?;
    Ok(page.iter().all(|&byte| byte == 0))
}

/// Identity of the page file's content.
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

/// The calling worker's virtual clock; it may go back slightly between workers.
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

/// Stands for a file that cannot be opened.
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
            CacheKind::Simulated(profile) => write!(f, "simulated:{}", profile.location()),
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
        if bytes < BLOCK_BYTES as u64 {
            return Err(format!("a cache of {bytes}B has no room for a block of {BLOCK_BYTES} bytes"));
        }
        Ok(Cache::new(kind, bytes))
    }
}

/// Parses a kind and a size with a comma between, as in `example`.
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
mod tests;
