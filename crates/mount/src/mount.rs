//! A mount from its checks to its end.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, StatVfsMountFlags};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Resource, getrlimit, setrlimit};
use terrace_cache::policy::Name;
use terrace_cache::{CacheConfig, CacheError, RelationStats};
use terrace_io::{Directory, FileDirectory};

use crate::cache::FileCache;
use crate::counters::{Counters, MountRelation, MountStats};
use crate::extents::FIRST_BYTES;
use crate::hints::QueryHints;
use crate::map::{FileMap, Owner};
use crate::node::Nodes;
use crate::observer::Observer;
use crate::passthrough::{Passed, Passthrough};
use crate::read_times::ReadTimes;
use crate::requests::Requests;
use crate::slow_calls::SlowCalls;
use crate::stamp::{Clockwork, kernel_is_since};
use crate::tree::{LeftOut, Tree};

/// How often the end of a mount is looked for.
const PAUSE: Duration = Duration::from_millis(50);
/// Pauses between two rounds of maintenance.
const ROUND_PAUSES: u32 = 20;
/// Age after which a change from outside is over: no write call takes as long.
const QUIET: Duration = Duration::from_secs(10);
const BLOCK_BYTES: usize = 4096;
const THREADS: usize = 16;

/// Why a mount cannot begin or end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// A setting is wrong.
    #[error("{0}")]
    Config(String),
    /// A file or directory cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// The file and what was tried.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

fn failed(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> MountError {
    move |source| MountError::Io { what: what.to_string(), source }
}

/// The cache of a mount.
#[derive(Clone, Debug)]
pub struct MountCache {
    /// The file of the cache, in an existing directory. The map is beside it, in `PATH.map`.
    pub path: PathBuf,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Bytes of a block: a power of two from 4 KiB to 1 MiB.
    pub block_bytes: usize,
    /// Eviction policy behind admission policies.
    pub policy: Name,
    /// Limit of bytes written to the fast device per day.
    pub write_budget_bytes_day: Option<u64>,
    /// Use it even if a read from its device takes as long as one from the directory. Otherwise the
    /// mount measures both and leaves such a cache out ([`MountStats::left_out`]).
    pub always: bool,
}

impl MountCache {
    /// A cache with the default policy and blocks of 4 KiB.
    pub fn new(path: impl Into<PathBuf>, bytes: u64) -> MountCache {
        MountCache {
            path: path.into(),
            bytes,
            block_bytes: BLOCK_BYTES,
            policy: CacheConfig::new(1).policy,
            write_budget_bytes_day: None,
            always: false,
        }
    }
}

/// The settings of a mount.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// The directory that is shown.
    pub source: PathBuf,
    /// The empty directory where it is shown.
    pub mountpoint: PathBuf,
    /// The cache; without one all goes to `source`.
    pub cache: Option<MountCache>,
    /// Threads that serve requests. Fsyncs have further ones.
    pub threads: usize,
    /// Refuse all changes.
    pub read_only: bool,
    /// Let other users than this one in.
    pub allow_other: bool,
    /// Let the kernel read and write files by itself if they are never cached: all without a
    /// cache, or if it is left out, and logs of databases with one. Nothing counts these accesses.
    /// An observer forbids them.
    pub passthrough: bool,
    /// Is told what programs read and write.
    pub observer: Option<Arc<dyn Observer>>,
    /// Age of a change past the mount after which the file is cached. Zero only for tests.
    pub quiet: Duration,
}

impl MountConfig {
    /// A mount of `source` without a cache, by 16 threads.
    pub fn new(source: impl Into<PathBuf>, mountpoint: impl Into<PathBuf>) -> MountConfig {
        MountConfig {
            source: source.into(),
            mountpoint: mountpoint.into(),
            cache: None,
            threads: THREADS,
            read_only: false,
            allow_other: false,
            passthrough: true,
            observer: None,
            quiet: QUIET,
        }
    }
}

/// A directory that is mounted. Dropping it unmounts, without a report.
///
/// ```no_run
/// use terrace_mount::{Mount, MountCache, MountConfig};
///
/// let mut config = MountConfig::new("/srv/database", "/mnt/database");
/// config.cache = Some(MountCache::new("/nvme/cache", 8 << 30));
/// let stats = Mount::start(&config)?.wait(|| false)?;
/// println!("{stats}");
/// # Ok::<(), terrace_mount::MountError>(())
/// ```
#[derive(Debug)]
pub struct Mount {
    tree: Arc<Tree>,
    session: Option<BackgroundSession>,
    /// Keeps the directory from other mounts with a cache, which would not see changes of this one.
    _locked: Option<Locked>,
    mountpoint: PathBuf,
    is_over: Arc<AtomicBool>,
    maintenance: Option<thread::JoinHandle<()>>,
}

/// The statistics of a mount, for other threads than the one that waits for its end.
///
/// It keeps the cache open, so drop it before the directory is mounted again.
#[derive(Clone, Debug)]
pub struct Watch {
    tree: Arc<Tree>,
}

impl Watch {
    /// What the mount did so far.
    pub fn stats(&self) -> MountStats {
        stats(&self.tree)
    }

    /// A client that says which queries run, for policies that know queries.
    pub fn query_hints(&self) -> QueryHints {
        QueryHints::new(&self.tree)
    }

    /// Blocks of each table, index or other file that was cached, those with most misses first.
    pub fn relations(&self) -> Vec<MountRelation> {
        let found = self.tree.cache.as_ref().map(FileCache::relation_stats).unwrap_or_default();
        let row = |(name, stats): (Arc<str>, RelationStats)| MountRelation {
            name: name.escape_debug().to_string(),
            hits: stats.hits,
            misses: stats.misses,
            writes: stats.writes,
            admissions: stats.admissions,
        };
        let mut rows: Vec<MountRelation> = found.into_iter().map(row).collect();
        rows.sort_by(|left, right| right.misses.cmp(&left.misses).then_with(|| left.name.cmp(&right.name)));
        rows
    }
}

fn name_of(path: &Path) -> std::path::Display<'_> {
    path.display()
}

/// The two directories as absolute paths, if they can be mounted on each other.
fn check_paths(config: &MountConfig) -> Result<(PathBuf, PathBuf), MountError> {
    let wrong = |what: String| Err(MountError::Config(what));
    let absolute = |path: &Path| fs::canonicalize(path).map_err(failed(name_of(path)));
    let (source, mountpoint) = (absolute(&config.source)?, absolute(&config.mountpoint)?);
    for path in [&source, &mountpoint] {
        if !path.is_dir() {
            return wrong(format!("{} is not a directory", name_of(path)));
        }
    }
    if mountpoint.starts_with(&source) {
        return wrong(format!(
            "the mountpoint {} is in {}, which it shows",
            name_of(&mountpoint),
            name_of(&source)
        ));
    }
    if source.starts_with(&mountpoint) {
        return wrong(format!("the mountpoint {} would hide {}", name_of(&mountpoint), name_of(&source)));
    }
    let mut entries = fs::read_dir(&mountpoint).map_err(failed(name_of(&mountpoint)))?;
    if entries.next().is_some() {
        return wrong(format!("the mountpoint {} is not empty", name_of(&mountpoint)));
    }
    if let Some(cache) = &config.cache {
        let parent = match cache.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => absolute(parent)?,
            _ => absolute(Path::new("."))?,
        };
        if parent.starts_with(&source) || parent.starts_with(&mountpoint) {
            return wrong(format!("the cache {} must be outside of both directories", name_of(&cache.path)));
        }
    }
    if !Path::new("/dev/fuse").exists() {
        return wrong("/dev/fuse does not exist; load the kernel's module `fuse`".to_owned());
    }
    Ok((source, mountpoint))
}

/// Magic numbers of ext4, XFS, Btrfs and tmpfs.
const FINE_CLOCKS: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

/// Whether the file system gives a change after a look at the times a finer time, since Linux 6.13.
fn has_fine_clock(kind: u64) -> bool {
    kernel_is_since((6, 13)) && FINE_CLOCKS.contains(&kind)
}

fn open_cache(
    config: &MountConfig,
    cache: &MountCache,
    source: &Path,
    nodes: &Nodes,
    counters: &Arc<Counters>,
) -> Result<FileCache, MountError> {
    let stat = nodes.root().stat().map_err(failed(name_of(source)))?;
    if cache.block_bytes as u64 > FIRST_BYTES {
        return Err(MountError::Config("a block has at most 1 MiB".to_owned()));
    }
    let Some(power_cycle) = CacheConfig::machine_power_cycle() else {
        return Err(MountError::Config("the kernel's boot id cannot be read from /proc".to_owned()));
    };
    let blocks = u32::try_from(cache.bytes / cache.block_bytes.max(1) as u64);
    let blocks = blocks.map_err(|_| MountError::Config("the cache has too many blocks".to_owned()))?;
    let settings = CacheConfig {
        policy: cache.policy.clone(),
        write_budget_bytes_day: cache.write_budget_bytes_day,
        ..CacheConfig::new(blocks).block_bytes(cache.block_bytes).power_cycle(Some(power_cycle))
    };
    settings.check()?;
    let (parent, name) = match (cache.path.parent(), cache.path.file_name().and_then(|name| name.to_str())) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), name),
        (Some(parent), Some(name)) => (parent, name),
        _ => return Err(MountError::Config(format!("{} is not a file name", name_of(&cache.path)))),
    };
    if cache.path.is_dir() {
        return Err(MountError::Config(format!("the cache {} is a directory", name_of(&cache.path))));
    }
    let directory = FileDirectory::open(parent).map_err(failed(name_of(parent)))?;
    // It will have the content of files that others may not read.
    let mut private = fs::OpenOptions::new();
    private.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    private.open(&cache.path).map_err(failed(name_of(&cache.path)))?;
    let mut map_path = OsString::from(&cache.path);
    map_path.push(".map");
    let owner =
        Owner { power_cycle, device: stat.st_dev, inode: stat.st_ino, block_bytes: cache.block_bytes as u64 };
    let map_path = PathBuf::from(map_path);
    let found = FileMap::open(&map_path, owner).map_err(failed(name_of(&map_path)))?;
    let kind =
        rustix::fs::fstatfs(&nodes.root().fd).map_err(|error| failed(name_of(source))(error.into()))?;
    let is_local = FileDirectory::open(source).is_ok_and(|directory| directory.is_local());
    // ext4 has no room for nanoseconds where it has none for the birth time.
    let has_birth = nodes.root().has_birth_time().map_err(failed(name_of(source)))?;
    let is_fine = has_birth && has_fine_clock(kind.f_type as u64);
    let clockwork = Clockwork { quiet: config.quiet, is_fine, is_local };
    Ok(FileCache::open(found, &directory, name, settings, clockwork, Arc::clone(counters))?)
}

/// The cache of a mount, or why it is left out.
fn cache_of(
    config: &MountConfig,
    source: &Path,
    nodes: &Nodes,
    counters: &Arc<Counters>,
) -> Result<(Option<FileCache>, Option<LeftOut>), MountError> {
    let Some(cache) = &config.cache else { return Ok((None, None)) };
    let opened = open_cache(config, cache, source, nodes, counters)?;
    let measured =
        if cache.always { None } else { ReadTimes::measure(source, &cache.path, cache.block_bytes) };
    Ok(match measured.filter(|times| !times.are_worth_a_cache()) {
        Some(times) => (None, Some(LeftOut { times, cache: opened })),
        None => (Some(opened), None),
    })
}

/// The options of the kernel, with those of the lower mount that forbid something.
fn options(config: &MountConfig, source: &Path, nodes: &Nodes) -> Result<Config, MountError> {
    let lower =
        rustix::fs::fstatvfs(&nodes.root().fd).map_err(|error| failed(name_of(source))(error.into()))?;
    let is_root = rustix::process::geteuid().is_root();
    let has = |flag: StatVfsMountFlags| lower.f_flag.contains(flag);
    let either = |is_set: bool, yes: MountOption, no: MountOption| if is_set { yes } else { no };
    let mut options = Config::default();
    options.mount_options = vec![
        MountOption::FSName(source.display().to_string()),
        MountOption::Subtype("terrace".to_owned()),
        MountOption::DefaultPermissions,
        either(has(StatVfsMountFlags::NOSUID) || !is_root, MountOption::NoSuid, MountOption::Suid),
        either(has(StatVfsMountFlags::NODEV) || !is_root, MountOption::NoDev, MountOption::Dev),
        either(has(StatVfsMountFlags::NOEXEC), MountOption::NoExec, MountOption::Exec),
        either(has(StatVfsMountFlags::RDONLY) || config.read_only, MountOption::RO, MountOption::RW),
    ];
    options.acl = if config.allow_other { SessionACL::All } else { SessionACL::Owner };
    options.n_threads = Some(config.threads.max(1));
    options.clone_fd = true;
    Ok(options)
}

/// Which files the kernel reads and writes by itself.
fn passed(config: &MountConfig, is_cached: bool) -> Passed {
    match is_cached {
        _ if !config.passthrough || config.observer.is_some() => Passed::None,
        true => Passed::Logs,
        false => Passed::All,
    }
}

/// The directory, locked for a mount with a cache.
#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing is not enough if a forked child shares the open file.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

fn lock(source: &Path) -> Result<Locked, MountError> {
    let directory = File::open(source).map_err(failed(name_of(source)))?;
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(MountError::Config(format!(
            "{} is locked by another program, such as another mount with a cache",
            name_of(source)
        ))),
        // Some file servers have no locks.
        _ => Ok(Locked(directory)),
    }
}

/// Allows as many open files as the system does: each file that the kernel knows is one.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With fewer, the kernel gets an error when they run out.
    let _ = setrlimit(Resource::Nofile, limit);
}

impl Mount {
    /// Mounts a directory.
    ///
    /// Sets the umask of the process to 0, since programs bring their own, and raises its limit of
    /// open files.
    ///
    /// # Errors
    /// [`MountError::Config`] if paths or settings do not fit, otherwise what the system or the
    /// cache reports.
    pub fn start(config: &MountConfig) -> Result<Mount, MountError> {
        let (source, mountpoint) = check_paths(config)?;
        raise_file_limit();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &source, flags, Mode::empty())
            .map_err(|error| failed(name_of(&source))(error.into()))?;
        let nodes = Nodes::new(root).map_err(failed(name_of(&source)))?;
        let locked = config.cache.as_ref().map(|_| lock(&source)).transpose()?;
        let counters = Arc::new(Counters::default());
        let (cache, left_out) = cache_of(config, &source, &nodes, &counters)?;
        let options = options(config, &source, &nodes)?;
        rustix::process::umask(Mode::empty());
        let passthrough = Passthrough::new(passed(config, cache.is_some()));
        let mut tree = Tree::new(nodes, cache, counters, config.observer.clone(), passthrough);
        tree.left_out = left_out;
        let tree = Arc::new(tree);
        let requests = Requests::new(Arc::clone(&tree), SlowCalls::new(config.threads / 2));
        let what = || format!("mounting on {}", mountpoint.display());
        let session = Session::new(requests, &mountpoint, &options).map_err(failed(what()))?;
        let session = session.spawn().map_err(failed(what()))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let maintenance = {
            let (tree, is_over) = (Arc::clone(&tree), Arc::clone(&is_over));
            thread::Builder::new()
                .name("maintenance".to_owned())
                .spawn(move || maintain(&tree, &is_over))
                .map_err(failed("starting a thread"))?
        };
        let (session, maintenance) = (Some(session), Some(maintenance));
        Ok(Mount { tree, session, _locked: locked, mountpoint, is_over, maintenance })
    }

    /// What the mount did so far.
    pub fn stats(&self) -> MountStats {
        stats(&self.tree)
    }

    /// A view of the statistics for other threads.
    pub fn watch(&self) -> Watch {
        Watch { tree: Arc::clone(&self.tree) }
    }

    /// Serves until the directory is unmounted or `asks_for_end`, then closes the cache.
    ///
    /// If programs still use the mount then, it is detached at once and serves them until they
    /// end.
    ///
    /// # Errors
    /// Those of the kernel's device. The cache is closed even so.
    pub fn wait(mut self, asks_for_end: impl Fn() -> bool) -> Result<MountStats, MountError> {
        let session = self.session.take().expect("it is mounted");
        let mut has_left = false;
        while !session.guard.is_finished() {
            if !has_left && asks_for_end() {
                has_left = true;
                if let Err(error) = leave(&self.mountpoint) {
                    let mountpoint = name_of(&self.mountpoint);
                    tracing::warn!(%error, "{mountpoint} cannot be unmounted; serving it until somebody else does");
                }
            }
            thread::sleep(PAUSE);
        }
        let served = session.join();
        let stats = self.end();
        match served {
            // How the kernel tells some threads of an end for which it gives others `ENODEV`.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(stats),
            served => served.map(|()| stats).map_err(failed("serving the kernel's requests")),
        }
    }

    /// Unmounts, and waits for the end.
    ///
    /// # Errors
    /// As [`Mount::wait`].
    pub fn unmount(self) -> Result<MountStats, MountError> {
        self.wait(|| true)
    }

    fn end(&mut self) -> MountStats {
        // Release: pairs with the acquire in `maintain`.
        self.is_over.store(true, Ordering::Release);
        if let Some(maintenance) = self.maintenance.take() {
            // A panic there was reported by its thread.
            let _ = maintenance.join();
        }
        let stats = stats(&self.tree);
        self.tree.close();
        let opened = self.tree.cache.as_ref().or(self.tree.left_out.as_ref().map(|left_out| &left_out.cache));
        if let Some(Err(error)) = opened.map(FileCache::close) {
            tracing::warn!(%error, "the cache could not be closed; it may start empty");
        }
        stats
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // Nobody to report to.
            let _ = leave(&self.mountpoint);
            let _ = session.join();
            self.end();
        }
    }
}

/// Detaches the mount, even if it is in use.
fn leave(mountpoint: &Path) -> io::Result<()> {
    match unmount(mountpoint, UnmountFlags::empty()) {
        Err(rustix::io::Errno::BUSY) => {
            tracing::warn!("programs use the mount; serving them until they end");
            Ok(unmount(mountpoint, UnmountFlags::DETACH)?)
        }
        Err(rustix::io::Errno::PERM) => {
            let status = std::process::Command::new("fusermount3").arg("-uz").arg(mountpoint).status()?;
            if status.success() { Ok(()) } else { Err(io::Error::other("fusermount3 failed")) }
        }
        // Somebody else unmounted it.
        Err(rustix::io::Errno::INVAL) => Ok(()),
        outcome => Ok(outcome?),
    }
}

fn stats(tree: &Tree) -> MountStats {
    let (cache, kept_files) = tree.cache.as_ref().map(FileCache::stats).unzip();
    let stats = tree.counters.stats(cache, kept_files.unwrap_or(0));
    MountStats { left_out: tree.left_out.as_ref().map(|left_out| left_out.times), ..stats }
}

fn maintain(tree: &Tree, is_over: &AtomicBool) {
    let Some(cache) = &tree.cache else { return };
    let mut pauses = 0;
    // Acquire: pairs with the release in `end`.
    while !is_over.load(Ordering::Acquire) {
        thread::sleep(PAUSE);
        pauses += 1;
        if pauses % ROUND_PAUSES == 0 {
            cache.maintain();
        }
    }
}
