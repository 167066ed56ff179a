//! The directory of a cache: its lock, the blocks, and the file that says what they were cached from.
//!
//! One process at a time has it. Another that asks for it is told who, and goes on without a cache; it is then one of those
//! whose changes the owner of the cache notices (`database.rs`).

use std::path::Path;
use std::sync::Arc;

use terrace_block::policy::Relation;
use terrace_block::{
    BlockDevice, CacheConfig, Cached, Directory, FileDirectory, FileOptions, LockError, OpenMode, WriteMode,
};

use crate::database::InUse;
use crate::fingerprint::Fingerprint;
use crate::options::CacheOptions;
use crate::origin::Origin;
use crate::relations::RelationMap;
use crate::slow::SlowFile;

const LOCK: &str = "lock";
const BLOCKS: &str = "blocks";

/// The smallest block of a cache, in bytes.
const BLOCK_BYTES_MIN: u32 = 4096;

/// Why there is no cache.
pub(crate) struct Refused {
    pub why: String,
    /// It is the user's mistake, not the cache's device.
    pub is_mistake: bool,
}

/// A cache's directory, and from the first look at the database's head on the cache.
pub(crate) struct Storage {
    directory: String,
    options: CacheOptions,
    fast: Arc<dyn BlockDevice>,
    origin: Origin,
    slow_name: String,
    relations: Arc<RelationMap>,
    in_use: Option<InUse>,
    /// How often it was emptied because the database was changed by others.
    emptied: u64,
    /// Dropped last: others wait for it.
    _lock: Box<dyn Send + Sync>,
}

impl Storage {
    /// Takes the directory, which is made if it is not there.
    pub fn open(
        options: &CacheOptions,
        database: &Path,
        relations: Arc<RelationMap>,
    ) -> Result<Storage, Refused> {
        config(options, BLOCK_BYTES_MIN)?;
        let name = format!("the block cache {}", options.directory.display());
        let failed = |error: std::io::Error| refused(format!("{name}: {error}"));
        let blocks = FileDirectory::create(&options.directory).map_err(failed)?;
        let lock = blocks.lock(LOCK).map_err(|error| match error {
            LockError::Busy { owner_process: Some(process) } => {
                refused(format!("{name} is in use by process {process}"))
            }
            LockError::Busy { owner_process: None } => refused(format!("{name} is in use")),
            LockError::Io(error) => failed(error),
        })?;
        let mode = if blocks.exists(BLOCKS).map_err(failed)? { OpenMode::Write } else { OpenMode::CreateNew };
        let fast = blocks.open(BLOCKS, mode).map_err(failed)?;
        let small = FileOptions { direct: false, uring: false };
        let small = FileDirectory::open_with(&options.directory, small).map_err(failed)?;
        let origin = Origin::open(&small).map_err(failed)?;
        Ok(Storage {
            directory: name,
            options: options.clone(),
            fast,
            origin,
            slow_name: database.display().to_string(),
            relations,
            in_use: None,
            emptied: 0,
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

    /// Whether what the last process left was cached from a file with this fingerprint.
    pub fn is_of(&self, now: &Fingerprint) -> bool {
        self.origin.is_of(now)
    }

    /// Begins to use the cache, or goes on; it is emptied unless the file is the same as before.
    pub fn begin(&mut self, is_same: bool, page_bytes: u32) -> Result<(), String> {
        if let Some(in_use) = &self.in_use {
            if !is_same {
                in_use.cached.free(0, u64::MAX);
                self.emptied += 1;
            }
            return Ok(());
        }
        if page_bytes < BLOCK_BYTES_MIN {
            return Err(format!(
                "{}: {} has pages of {page_bytes} bytes, and a cache blocks of at least {BLOCK_BYTES_MIN}",
                self.directory, self.slow_name
            ));
        }
        if !is_same {
            self.origin.begin_anew().map_err(|error| format!("{}: {error}", self.directory))?;
        }
        let page = page_bytes as usize;
        let slow = Arc::new(SlowFile { name: self.slow_name.clone(), page_bytes: page });
        let relations = Arc::clone(&self.relations);
        let config = config(&self.options, page_bytes).map_err(|refused| refused.why)?;
        let config = config.identity(self.origin.identity).relations(Arc::new(move |block: u64| {
            let relation = relations.relation(u32::try_from(block + 1).ok()?)?;
            Some((Relation(relation), block))
        }));
        let cached = Cached::open(slow, Arc::clone(&self.fast), config);
        let cached = Arc::new(cached.map_err(|error| format!("{}: {error}", self.directory))?);
        self.in_use = Some(InUse { cached, page_bytes: page });
        Ok(())
    }

    /// The cache is right of a file with this fingerprint. Where blocks were taken out of it because of changes by others this
    /// waits for the close, which makes that durable first.
    pub fn record(&mut self, fingerprint: &Fingerprint) -> std::io::Result<()> {
        if self.emptied > 0 { Ok(()) } else { self.origin.record(fingerprint) }
    }

    /// Closes the cache, right of a file with the fingerprint `record`, if there is one.
    pub fn close(mut self, record: Option<Fingerprint>) -> Result<(), String> {
        let Some(InUse { cached, .. }) = self.in_use.take() else { return Ok(()) };
        if let Ok(cached) = Arc::try_unwrap(cached) {
            cached.close().map_err(|error| format!("{}: {error}", self.directory))?;
            if let Some(record) = record {
                self.origin.record(&record).map_err(|error| format!("{}: {error}", self.directory))?;
            }
        }
        Ok(())
    }
}

fn refused(why: String) -> Refused {
    Refused { why, is_mistake: false }
}

/// The settings of a cache in blocks of one page.
fn config(options: &CacheOptions, page_bytes: u32) -> Result<CacheConfig, Refused> {
    let mistake = |why: String| Refused { why, is_mistake: true };
    let blocks = u32::try_from(options.bytes / u64::from(page_bytes)).unwrap_or(u32::MAX);
    let mode = if options.around { WriteMode::Around } else { WriteMode::Through };
    let mut config = CacheConfig::new(blocks).block_bytes(page_bytes as usize).mode(mode);
    if let Some(policy) = &options.policy {
        config = config.policy(policy).map_err(|error| mistake(format!("block_cache_policy: {error}")))?;
    }
    config.check().map_err(|error| mistake(format!("block_cache: {error}")))?;
    Ok(config)
}
