//! A cache directory: its lock, its blocks, and the record of their origin.
//!
//! One process at a time holds the directory. Another one gets the owner's process id and goes on
//! without a cache; the owner notices its changes (`database.rs`).

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libsqlite3_sys as ffi;
use terrace_cache::policy::Relation;
use terrace_cache::{CacheConfig, CacheError, Cached, WriteMode};
use terrace_io::{
    BlockDevice, Clock, Directory, FileDirectory, FileOptions, Limits, LockError, MachineClock, OpenMode,
    ThrottledDevice,
};

use crate::below::Below;
use crate::fingerprint::Fingerprint;
use crate::gates::SlowDisk;
use crate::in_use::InUse;
use crate::options::CacheOptions;
use crate::origin::Origin;
use crate::planted::{Bug, planted};
use crate::relations::RelationMap;
use crate::slow::SlowFile;

const LOCK: &str = "lock";
const BLOCKS: &str = "blocks";
const ASIDE: &str = "blocks.aside";

/// Longest reason. SQLite's log cuts a message after 210 bytes, which the names of all policies
/// exceed.
const REASON_MAX: usize = 160;

/// Limit of files set aside.
const ASIDE_MAX: u32 = 9;

const BLOCK_BYTES_MIN: u32 = 4096;

/// Interval of maintenance that makes an emptied cache durable.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);

/// A cache directory, and the cache once the database's head is known.
pub(crate) struct Storage {
    name: String,
    directory: FileDirectory,
    options: CacheOptions,
    fast: Arc<dyn BlockDevice>,
    clock: Arc<dyn Clock>,
    origin: Origin,
    slow_name: String,
    relations: Arc<RelationMap>,
    /// The machine's power cycle, if unsynced writes are trusted.
    power_cycle: Option<[u8; 16]>,
    in_use: Option<InUse>,
    /// How often other programs' changes emptied it.
    emptied: u64,
    /// Why it started empty, if the cache itself cannot know.
    cold: Option<String>,
    /// It was emptied, perhaps not durably.
    is_unsettled: bool,
    settled_at: Option<Instant>,
    /// Dropped last, because others wait for it.
    _lock: Box<dyn Send + Sync>,
}

impl Storage {
    /// Locks the directory, and creates it if it is missing.
    pub fn open(
        options: &CacheOptions,
        database: &Path,
        relations: Arc<RelationMap>,
        disk: Option<&SlowDisk>,
    ) -> Result<Storage, String> {
        let name = format!("the block cache {}", options.directory.display());
        let failed = |error: std::io::Error| format!("{name}: {error}");
        FileDirectory::create(&options.directory).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!("{name}: its parent directory does not exist; create it first")
            }
            _ => failed(error),
        })?;
        let how = FileOptions { direct: !options.buffered, uring: false };
        let blocks = FileDirectory::open_with(&options.directory, how).map_err(failed)?;
        let lock = blocks.lock(LOCK).map_err(|error| match error {
            LockError::Busy { owner_process: Some(process) } if process == std::process::id() => {
                format!("{name} is open in this process for another file or with other settings")
            }
            LockError::Busy { owner_process: Some(process) } => {
                format!("{name} is in use by process {process}")
            }
            LockError::Busy { owner_process: None } => format!("{name} is in use"),
            LockError::Io(error) => failed(error),
        })?;
        let mode = if blocks.exists(BLOCKS).map_err(failed)? { OpenMode::Write } else { OpenMode::CreateNew };
        let clock =
            disk.map_or_else(|| Arc::new(MachineClock::default()) as _, |disk| Arc::clone(&disk.clock));
        let fast = slowed(blocks.open(BLOCKS, mode).map_err(failed)?, options, &clock);
        let small = FileOptions { direct: false, uring: false };
        let small = FileDirectory::open_with(&options.directory, small).map_err(failed)?;
        let origin = Origin::open(&small).map_err(failed)?;
        let parent = database.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = FileDirectory::open(parent.unwrap_or(Path::new("."))).map_err(failed)?;
        let power_cycle = options.trust.power_cycle(&[&blocks, &parent]);
        Ok(Storage {
            name,
            directory: blocks,
            options: options.clone(),
            fast,
            clock,
            origin,
            slow_name: database.display().to_string(),
            relations,
            power_cycle,
            in_use: None,
            emptied: 0,
            cold: None,
            is_unsettled: false,
            settled_at: None,
            _lock: lock,
        })
    }

    pub fn is_open(&self) -> bool {
        self.in_use.is_some()
    }

    pub fn in_use(&self) -> Option<InUse> {
        self.in_use.clone()
    }

    pub fn emptied(&self) -> u64 {
        self.emptied
    }

    /// Why it started empty, if the cache itself cannot know.
    pub fn cold(&self) -> Option<&str> {
        self.cold.as_deref()
    }

    /// Whether the last process cached a file with this fingerprint.
    pub fn is_of(&self, now: &Fingerprint) -> bool {
        self.origin.is_of(now)
    }

    /// Opens the cache, or keeps using it; empties it unless `is_same`.
    ///
    /// `below` is the file. A cache of another version is set aside, and the answer says so. A file
    /// that is not a cache is an error and stays as it is.
    pub fn begin(
        &mut self,
        is_same: bool,
        page_bytes: u32,
        below: &Arc<Below>,
    ) -> Result<Option<String>, String> {
        let bytes = below.size().ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
        if let Some(in_use) = &self.in_use {
            in_use.slow.reaches(bytes);
            if !is_same {
                in_use.cached.free(0, u64::MAX);
                self.emptied += 1;
                self.is_unsettled = true;
            }
            return Ok(None);
        }
        if page_bytes < BLOCK_BYTES_MIN {
            return Err(format!(
                "{}: {} has pages of {page_bytes} bytes; a cache needs {BLOCK_BYTES_MIN} or more",
                self.name, self.slow_name
            ));
        }
        if !is_same {
            if !self.fast.is_empty() {
                self.cold = Some(self.origin.why_other().to_owned());
            }
            self.origin.begin_anew().map_err(|error| format!("{}: {error}", self.name))?;
        }
        let mut told = None;
        let cached = match self.open_cached(page_bytes, bytes, below)? {
            Err(error @ CacheError::OtherVersion { .. }) => {
                let aside = self.set_aside().map_err(|error| format!("{}: {error}", self.name))?;
                let reason = format!("{error}; renamed to {aside}");
                self.cold = Some(reason.clone());
                told = Some(reason);
                self.open_cached(page_bytes, bytes, below)?
            }
            cached => cached,
        };
        let in_use = cached.map_err(|error| format!("{}: {error}", self.name))?;
        self.origin
            .begin_session(in_use.cached.session())
            .map_err(|error| format!("{}: {error}", self.name))?;
        if !planted(Bug::ForgetTheSession) {
            in_use.cached.session_noted();
        }
        self.in_use = Some(in_use);
        Ok(told)
    }

    fn open_cached(
        &self,
        page_bytes: u32,
        file_bytes: u64,
        below: &Arc<Below>,
    ) -> Result<Result<InUse, CacheError>, String> {
        let slow = Arc::new(SlowFile::new(self.slow_name.clone(), file_bytes));
        let relations = Arc::clone(&self.relations);
        let config = config(&self.options, page_bytes)?;
        let config = config.identity(self.origin.identity).power_cycle(self.power_cycle);
        let session = self.origin.session.filter(|_| !planted(Bug::ForgetTheSession));
        let config = CacheConfig { session, ..config };
        let config = config.clock(Arc::clone(&self.clock));
        let config = config.relations(Arc::new(move |block: u64| {
            let relation = relations.relation(u32::try_from(block + 1).ok()?)?;
            Some((Relation(relation), block))
        }));
        let opened = SlowFile::through(below, ffi::SQLITE_SYNC_NORMAL, ffi::SQLITE_IOERR, || {
            Ok(Cached::claim(&*self.fast)
                .and_then(|_| Cached::open(Arc::clone(&slow) as _, Arc::clone(&self.fast), config)))
        });
        let opened = opened.map_err(|code| format!("{}: SQLite error {}", self.name, code.0))?;
        Ok(opened.map(|cached| InUse { cached: Arc::new(cached), slow, page_bytes: page_bytes as usize }))
    }

    /// Never over another file; returns the new name.
    fn set_aside(&mut self) -> std::io::Result<String> {
        let names = (1..=ASIDE_MAX).map(|number| match number {
            1 => ASIDE.to_owned(),
            number => format!("{ASIDE}{number}"),
        });
        let mut free = names.filter(|name| matches!(self.directory.exists(name), Ok(false)));
        let Some(aside) = free.next() else {
            let what = format!("{ASIDE_MAX} files have been set aside there; remove those no longer needed");
            return Err(std::io::Error::new(std::io::ErrorKind::AlreadyExists, what));
        };
        self.directory.rename(BLOCKS, &aside)?;
        let fast = self.directory.open(BLOCKS, OpenMode::CreateNew)?;
        self.fast = slowed(fast, &self.options, &self.clock);
        Ok(aside)
    }

    /// Records that the cache matches a file with this fingerprint.
    ///
    /// Blocks that others' changes made stale must be dropped durably first. This takes a sync, so
    /// it happens at intervals and at close. Nothing is recorded for a cache that is out of
    /// service: its device holds older blocks than the file.
    pub fn record(&mut self, fingerprint: &Fingerprint) -> std::io::Result<()> {
        if self.in_use.as_ref().is_some_and(InUse::is_given_up) {
            return Ok(());
        }
        if let Some(in_use) = self.in_use.as_ref().filter(|_| self.is_unsettled) {
            if self.settled_at.is_some_and(|settled| settled.elapsed() < MAINTENANCE_INTERVAL) {
                return Ok(());
            }
            in_use.cached.maintain();
            if in_use.is_given_up() {
                return Ok(());
            }
            (self.is_unsettled, self.settled_at) = (false, Some(Instant::now()));
        }
        self.origin.record(fingerprint)
    }

    /// Closes the cache; `record` is the fingerprint that it matches, `below` the file.
    pub fn close(mut self, record: Option<Fingerprint>, below: &Arc<Below>) -> Result<(), String> {
        let Some(in_use) = self.in_use.take() else { return Ok(()) };
        let closed = SlowFile::through(below, ffi::SQLITE_SYNC_NORMAL, ffi::SQLITE_IOERR_CLOSE, || {
            Ok(in_use.cached.close())
        });
        let closed = closed.map_err(|code| format!("{}: SQLite error {}", self.name, code.0))?;
        closed.map_err(|error| format!("{}: {error}", self.name))?;
        self.origin.session = in_use.cached.session();
        match record.filter(|_| !in_use.is_given_up()) {
            Some(record) => self.origin.record(&record).map_err(|error| format!("{}: {error}", self.name)),
            None => Ok(()),
        }
    }

    /// Refuses invalid options.
    pub fn check(options: &CacheOptions) -> Result<(), String> {
        config(options, BLOCK_BYTES_MIN).map(drop)
    }
}

fn slowed(
    fast: Arc<dyn BlockDevice>,
    options: &CacheOptions,
    clock: &Arc<dyn Clock>,
) -> Arc<dyn BlockDevice> {
    let Some(latency_us) = options.latency_us else { return fast };
    let limits = Limits { latency: Duration::from_micros(latency_us), ..Limits::default() };
    Arc::new(ThrottledDevice::new(fast, limits, Arc::clone(clock)))
}

/// The settings of a cache whose block is one page.
fn config(options: &CacheOptions, page_bytes: u32) -> Result<CacheConfig, String> {
    let blocks = u32::try_from(options.bytes / u64::from(page_bytes)).unwrap_or(u32::MAX);
    let mode = if options.around { WriteMode::Around } else { WriteMode::Through };
    let mut config = CacheConfig::new(blocks).block_bytes(page_bytes as usize).mode(mode);
    if let Some(policy) = &options.policy {
        config = config.policy(policy).map_err(|error| match error.to_string() {
            why if why.len() < REASON_MAX => format!("block_cache_policy: {why}"),
            _ => format!(
                "there is no block_cache_policy {policy:?}; `terrace simulate --help` lists the policies"
            ),
        })?;
    }
    config.write_budget_bytes_day = options.write_budget;
    config.check().map_err(|error| format!("block_cache: {error}"))?;
    Ok(config)
}
