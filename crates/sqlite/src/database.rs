//! A database file shared by all connections, and the rule for its cache.
//!
//! Our writes to the file go through the cache. Other processes, and connections without this VFS,
//! write past it. So whenever SQLite begins to rely on the file, the cache is compared with the
//! state for which it was last right. If they are equal it stays right while SQLite's locks protect
//! the pages that SQLite will read. Otherwise it is emptied.
//!
//! * **Rollback mode.** After the shared lock ([`Database::shares`]) the head of the file must be
//!   unchanged. Every change alters the sixteen bytes by which SQLite checks its own pages. Our
//!   changes end with the exclusive lock ([`Database::unlocks`]); the new head is then noted,
//!   unless a hot journal is left.
//! * **WAL mode.** Checkpoints write the file, one at a time, while others read. The log's index
//!   has the *salts* of its generation and counts frames *attempted* and *backfilled*. A change of
//!   the file alters salts or `attempted` beforehand, except after an interrupted checkpoint or an
//!   index recovery. It alters `backfilled` before anyone reads the change from the file. All three
//!   must be unchanged once a read mark is held and SQLite has noted `backfilled`
//!   ([`Database::reads_log`]). Later checkpoints move only pages that this reader takes from the
//!   log and does not cache. A page is one block, so no neighbour is fetched. Our own checkpoints,
//!   restarts and first commits to an empty log are no changes. Without a shared lock of ours
//!   others may delete the log, so its state is forgotten.
//! * **Otherwise**, when the file was closed or its mode changed, the fingerprint decides
//!   (`fingerprint.rs`). It is recorded when our change is complete while others are locked out.
//!
//! In doubt the cache is emptied or not read: `nolock=1` takes no locks, and
//! `locking_mode=EXCLUSIVE` from the start means WAL mode without an index. A kill during a change
//! leaves a fingerprint that does not match, and so an empty cache.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use libsqlite3_sys as ffi;
use parking_lot::Mutex;
use terrace_cache::policy::Name;

use crate::below::{Below, CHECKPOINT_LOCK, WalIndex, WalState};
use crate::fingerprint::Fingerprint;
use crate::gates::SlowDisk;
use crate::header::{Head, Header};
use crate::in_use::InUse;
use crate::log::LogPages;
use crate::options::Options;
use crate::planted::{Bug, planted};
use crate::queries::{Queries, Roots, name_of};
use crate::recorder::Recorder;
use crate::relations::RelationMap;
use crate::stats::{self, Around, CacheState};
use crate::storage::Storage;

/// Interval of attempts to record the fingerprint of an unchanged file.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// Schema version in the first page ("Database File Format", section 1.3).
const SCHEMA_VERSION: std::ops::Range<usize> = 40..44;

/// First bytes of a journal ("Database File Format", section 3).
const JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

/// Logs a warning of one line.
pub(crate) type Warn = Arc<dyn Fn(&str) + Send + Sync>;

pub(crate) struct Database {
    path: PathBuf,
    inode: u64,
    warn: Warn,
    relations: Arc<RelationMap>,
    recorder: Option<Mutex<Recorder>>,
    /// Present if the policy or the trace uses statements.
    queries: Option<Mutex<Queries>>,
    disk: Option<Arc<SlowDisk>>,
    /// Present if there is a cache.
    log: Option<Arc<Mutex<LogPages>>>,
    state: Mutex<State>,
}

struct State {
    storage: Option<Storage>,
    /// Why there is no storage.
    uncached: String,
    /// State of the file when the cache was last known to be right.
    known: Known,
    /// The head then, or as we have written it since.
    header: Option<Header>,
    /// The fingerprint then; `None` during our changes, or if unknown.
    record: Option<Fingerprint>,
    /// We changed the file, and the change is not complete.
    is_changing: bool,
    /// The change began while `known` was `Nothing`, so the cache may be wrong.
    is_doubtful: bool,
    /// A connection of ours holds the checkpoint lock.
    is_checkpointing: bool,
    /// A connection of ours restarts the log; the cache was right.
    is_restarting: bool,
    /// A connection of ours writes to an empty log; the cache was right.
    is_first_to_log: bool,
    /// Connections of ours with at least the shared lock.
    sharers: usize,
    tried_to_record: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    Rollback(Header),
    Wal(WalState),
}

type Key = (PathBuf, u64, u64, Options);

static DATABASES: Mutex<Option<HashMap<Key, Weak<Database>>>> = Mutex::new(None);

impl Database {
    /// The database file at `path`, shared by connections with equal options.
    ///
    /// # Errors
    /// A sentence about an invalid parameter.
    pub fn of(
        path: &Path,
        options: &Options,
        disk: Option<Arc<SlowDisk>>,
        warn: Warn,
    ) -> Result<Arc<Database>, String> {
        let stat = rustix::fs::stat(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let key = (path.to_owned(), stat.st_dev, stat.st_ino, options.clone());
        let mut databases = DATABASES.lock();
        let databases = databases.get_or_insert_default();
        if let Some(database) = databases.get(&key).and_then(Weak::upgrade) {
            return Ok(database);
        }
        databases.retain(|_, database| database.strong_count() > 0);
        let database = Arc::new(Database::open(path, stat.st_ino, options, disk, warn)?);
        databases.insert(key, Arc::downgrade(&database));
        Ok(database)
    }

    /// The kept log pages of the open database at `path`.
    pub fn log_of(path: &Path, options: &Options) -> Option<Arc<Mutex<LogPages>>> {
        let databases = DATABASES.lock();
        let is_it = |key: &&Key| key.0 == path && key.3 == *options;
        let database = databases.as_ref()?.iter().find(|(key, _)| is_it(key))?.1.upgrade()?;
        database.log.clone()
    }

    /// Closes the cache with the last connection; `below` is still open.
    pub fn leave(database: Arc<Database>, below: &Arc<Below>) {
        // An open of the same file waits until the cache is free.
        let _databases = DATABASES.lock();
        // Dropped before the guard, so that the next open does not find it.
        let database = database;
        if Arc::strong_count(&database) > 1 {
            return;
        }
        if let Some(recorder) = &database.recorder {
            let mut recorder = recorder.lock();
            recorder.write_out(&database.relations);
            database.warn_of_trace(&mut recorder);
        }
        let (storage, record) = {
            let mut state = database.state.lock();
            (state.storage.take(), state.record)
        };
        let Some(storage) = storage else { return };
        if let Err(why) = storage.close(record, below) {
            (database.warn)(&why);
        }
    }

    fn open(
        path: &Path,
        inode: u64,
        options: &Options,
        disk: Option<Arc<SlowDisk>>,
        warn: Warn,
    ) -> Result<Database, String> {
        let relations = Arc::new(RelationMap::default());
        let recorder = options.trace.as_deref().map(|trace| {
            Recorder::create(trace).map(Mutex::new).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    format!("trace {} exists already; name a new file", trace.display())
                }
                // SQLite's log cuts long lines.
                _ => format!("{error}: trace {}", trace.display()),
            })
        });
        let recorder = recorder.transpose()?;
        let storage = match &options.cache {
            None => Err("the URI has no block_cache".to_owned()),
            Some(cache) => {
                let storage = Storage::open(cache, path, Arc::clone(&relations), disk.as_deref());
                storage.inspect_err(|why| warn(&format!("{why}; continuing without a cache")))
            }
        };
        let (storage, uncached) = match storage {
            Ok(storage) => (Some(storage), String::new()),
            Err(why) => (None, why),
        };
        let is_hinted = options.cache.as_ref().is_some_and(|cache| {
            let policy = cache.policy.as_ref().and_then(|policy| policy.parse::<Name>().ok());
            !cache.no_hints && policy.is_some_and(|policy| policy.wants_queries())
        });
        let queries = (is_hinted || recorder.is_some()).then(Mutex::default);
        let log = storage.is_some().then(Arc::default);
        let state = State {
            storage,
            uncached,
            known: Known::Nothing,
            header: None,
            record: None,
            is_changing: false,
            is_doubtful: false,
            is_checkpointing: false,
            is_restarting: false,
            is_first_to_log: false,
            sharers: 0,
            tried_to_record: None,
        };
        let (path, state) = (path.to_owned(), Mutex::new(state));
        Ok(Database { path, inode, warn, relations, recorder, queries, disk, log, state })
    }

    /// Called with the shared lock held; returns the readable cache and the head.
    pub fn shares(&self, below: &Arc<Below>) -> (Option<InUse>, Option<Head>) {
        let mut state = self.state.lock();
        state.sharers += 1;
        if state.storage.is_none() {
            return (None, None);
        }
        let Some((header, head)) = Header::read(below).filter(|(header, _)| !header.is_wal) else {
            // The mode has changed, so the state of the old mode is void.
            if matches!(state.known, Known::Rollback(_)) {
                state.known = Known::Nothing;
            }
            return (None, None);
        };
        state.header = Some(header);
        let is_trusted = planted(Bug::TrustTheHead) && matches!(state.known, Known::Rollback(_));
        if !is_trusted && state.known != Known::Rollback(header) || !state.has_cache() {
            let fingerprint = self.fingerprint(header);
            self.identify(&mut state, below, fingerprint, header);
            state.known = Known::Rollback(header);
        }
        if state.is_time_to_record() {
            self.record(&mut state, self.fingerprint(header).filter(Fingerprint::is_settled));
        }
        (state.cache(), Some(head))
    }

    /// Called after a barrier: SQLite is about to use or recheck the index.
    pub fn sees_log(&self, index: WalIndex) {
        if let Some(log) = &self.log {
            log.lock().generation_is(index.state());
        }
    }

    /// Called after a read mark and its barrier; returns the readable cache.
    pub fn reads_log(&self, below: &Arc<Below>, index: WalIndex) -> Option<InUse> {
        let mut state = self.state.lock();
        self.compare_log(&mut state, below, index, false);
        state.cache().filter(|_| matches!(state.known, Known::Wal(_)))
    }

    /// Called with the exclusive lock on a file in WAL mode.
    pub fn excludes(&self, below: &Arc<Below>, index: WalIndex) {
        self.compare_log(&mut self.state.lock(), below, index, false);
    }

    /// Called with the checkpoint lock.
    pub fn checkpoint_begins(&self, below: &Arc<Below>, index: WalIndex) {
        let mut state = self.state.lock();
        self.compare_log(&mut state, below, index, true);
        state.is_checkpointing = true;
    }

    /// Called before the checkpoint lock is released.
    pub fn checkpoint_ends(&self, index: WalIndex) {
        let mut state = self.state.lock();
        if matches!(state.known, Known::Wal(_)) {
            state.known = Known::Wal(index.state());
        }
        self.change_is_complete(&mut state);
        state.is_checkpointing = false;
    }

    /// Called with the locks to restart the log.
    pub fn restart_begins(&self, index: WalIndex) {
        let mut state = self.state.lock();
        state.is_restarting = state.agrees_with(index.state());
    }

    /// Called before those locks are released.
    pub fn restart_ends(&self, index: WalIndex) {
        let mut state = self.state.lock();
        if state.is_restarting {
            state.known = Known::Wal(index.state());
            state.is_restarting = false;
        }
    }

    /// Called with the write lock of the log.
    ///
    /// In an empty log the commit starts a new generation; until then no frame can be transferred.
    pub fn log_write_begins(&self, index: WalIndex) {
        if let Some(log) = &self.log {
            log.lock().begins();
        }
        let mut state = self.state.lock();
        let now = index.state();
        state.is_first_to_log = now.frames == 0 && state.agrees_with(now);
    }

    /// Called before the write lock is released.
    pub fn log_write_ends(&self, index: WalIndex) {
        if let Some(log) = &self.log {
            log.lock().commits(index.state());
        }
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_first_to_log)
            && let Known::Wal(known) = &mut state.known
        {
            known.salts = index.state().salts;
        }
    }

    /// Called before the lock on the file is lowered.
    pub fn unlocks(&self, from: i32, to: i32, index: Option<WalIndex>) {
        let mut state = self.state.lock();
        if from >= ffi::SQLITE_LOCK_EXCLUSIVE && state.is_changing {
            // Others will roll the change back from the journal, past our cache.
            let is_broken_off = index.is_none() && self.has_hot_journal();
            state.is_doubtful |= is_broken_off;
            state.known = match (state.header, index) {
                _ if is_broken_off => Known::Nothing,
                (Some(header), None) if !header.is_wal => Known::Rollback(header),
                (Some(header), Some(index)) if header.is_wal => Known::Wal(index.state()),
                _ => Known::Nothing,
            };
            self.change_is_complete(&mut state);
        }
        if to == ffi::SQLITE_LOCK_NONE {
            state.sharers = state.sharers.saturating_sub(1);
            if state.sharers == 0 && matches!(state.known, Known::Wal(_)) && !planted(Bug::KeepTheLog) {
                state.known = Known::Nothing;
            }
        }
    }

    /// Whether a failed commit or rollback left a hot journal.
    ///
    /// The journal of a finished commit does not begin with the magic.
    fn has_hot_journal(&self) -> bool {
        let mut path = self.path.clone().into_os_string();
        path.push("-journal");
        let mut begins = [0; JOURNAL_MAGIC.len()];
        std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut begins)).is_ok()
            && begins == JOURNAL_MAGIC
    }

    /// Called before a write or truncation of the file.
    pub fn will_change(&self) {
        let mut state = self.state.lock();
        state.is_doubtful |= state.known == Known::Nothing;
        (state.is_changing, state.record) = (true, None);
    }

    pub fn wrote_header(&self, page: &[u8]) {
        if let Some(head) = page.first_chunk() {
            self.state.lock().header = Header::parse(head);
        }
        if let (Some(queries), Some(version)) = (&self.queries, page.get(SCHEMA_VERSION)) {
            queries.lock().saw_schema(version.try_into().expect("four bytes"));
        }
    }

    pub fn wants_queries(&self) -> bool {
        self.queries.is_some()
    }

    /// Whether the tables and indexes of this text are known.
    pub fn knows_query(&self, text: &str) -> bool {
        self.queries.as_ref().is_none_or(|queries| queries.lock().knows(text))
    }

    pub fn query_begins(&self, process: u64, statement: usize, text: &str, roots: Roots) -> u32 {
        let Some(queries) = &self.queries else { return 0 };
        let cache = self.state.lock().cache();
        let mut queries = queries.lock();
        queries.learn(text, &roots);
        let (number, before, relations) = queries.begin(statement, text);
        if let Some(InUse { cached, .. }) = cache {
            before.iter().for_each(|before| cached.query_ends(u64::from(*before)));
            for (relation, pages) in
                relations.iter().filter_map(|&of| Some((of, self.relations.pages(of.0)?)))
            {
                cached.relation_size(relation, u64::from(pages));
            }
            cached.query_begins(u64::from(number), relations);
        }
        if let Some(recorder) = &self.recorder {
            let relations = relations.iter().map(|relation| relation.0).collect();
            recorder.lock().note_query(number, process, name_of(text), relations);
        }
        number
    }

    pub fn query_ends(&self, statement: usize) -> Option<u32> {
        let number = self.queries.as_ref()?.lock().end(statement)?;
        if let Some(InUse { cached, .. }) = self.state.lock().cache() {
            cached.query_ends(u64::from(number));
        }
        Some(number)
    }

    /// The cache that writes go through.
    pub fn cache_to_write(&self) -> Option<InUse> {
        self.state.lock().cache().filter(|_| !planted(Bug::WritePastTheCache))
    }

    pub fn saw(&self, page: u32, bytes: &[u8], written: bool, query: Option<u32>) {
        self.relations.observe(page, bytes, written);
        if let Some(recorder) = &self.recorder {
            let mut recorder = recorder.lock();
            recorder.note(page, written, query, &self.relations);
            self.warn_of_trace(&mut recorder);
        }
    }

    pub fn stats(&self) -> String {
        let disk = self.disk.as_ref().map_or(String::new(), |disk| format!(r#","disk":{}"#, disk.stats()));
        let queries = self
            .queries
            .as_ref()
            .map_or(String::new(), |queries| format!(r#","queries":{}"#, queries.lock().begun()));
        let log =
            self.log.as_ref().map_or(String::new(), |log| format!(r#","log_hits":{}"#, log.lock().hits()));
        let state = self.state.lock();
        let (told, cache) = match (&state.storage, state.cache()) {
            (None, _) => (CacheState::Uncached(state.uncached.clone()), "null".to_owned()),
            (Some(_), None) => {
                (CacheState::Pending("the next read under a lock opens the cache"), "null".to_owned())
            }
            (Some(storage), Some(in_use)) => {
                let (emptied, cold) = (storage.emptied(), storage.cold());
                let around = Around { emptied, cold, relations: &self.relations };
                (CacheState::of(&in_use), stats::of_cache(&in_use, &around))
            }
        };
        // The object of the state, open at its end for the other keys.
        let told = stats::json(&told);
        let told = told.strip_suffix('}').expect("an object");
        format!(r#"{told},"cache":{cache}{log}{disk}{queries}}}"#)
    }

    /// Compares the cache with the log's index.
    ///
    /// `is_mine`: the connection holds the checkpoint lock.
    fn compare_log(&self, state: &mut State, below: &Arc<Below>, index: WalIndex, is_mine: bool) {
        let now = index.state();
        let agrees = state.is_restarting || state.agrees_with(now);
        if state.storage.is_none() || (agrees && state.has_cache() && !state.is_time_to_record()) {
            return;
        }
        let Some((header, _)) = Header::read(below) else {
            state.known = Known::Nothing;
            return;
        };
        let look = || self.fingerprint(header);
        let fingerprint = match (is_mine, state.is_checkpointing) {
            (true, _) => look(),
            (false, true) => None,
            (false, false) => self.between_checkpoints(below, look),
        };
        if !agrees || !state.has_cache() {
            state.header = Some(header);
            self.identify(state, below, fingerprint, header);
            state.known = Known::Wal(now);
        }
        if state.is_time_to_record() {
            // A checkpoint by others since then would be in the fingerprint, but not in the cache.
            let after = index.state();
            let is_quiet = after.salts == now.salts && after.progress() == now.progress();
            self.record(state, fingerprint.filter(|fingerprint| is_quiet && fingerprint.is_settled()));
        }
    }

    /// Runs `act` under the checkpoint lock, or not at all.
    ///
    /// Only then are the times of a file in WAL mode conclusive, because nobody can be writing it.
    fn between_checkpoints<T>(&self, below: &Below, act: impl FnOnce() -> Option<T>) -> Option<T> {
        let exclusive = ffi::SQLITE_SHM_EXCLUSIVE;
        below.shm_lock(CHECKPOINT_LOCK, 1, ffi::SQLITE_SHM_LOCK | exclusive).ok()?;
        let outcome = act();
        if below.shm_lock(CHECKPOINT_LOCK, 1, ffi::SQLITE_SHM_UNLOCK | exclusive).is_err() {
            (self.warn)("cannot release the checkpoint lock");
        }
        outcome
    }

    /// Opens or keeps the cache; empties it unless the fingerprint is unchanged.
    fn identify(&self, state: &mut State, below: &Arc<Below>, now: Option<Fingerprint>, header: Header) {
        let (record, changing) = (state.record, state.is_changing);
        let Some(storage) = &mut state.storage else { return };
        let is_same = !changing
            && now.is_some_and(|now| match storage.is_open() {
                true => record == Some(now),
                false => storage.is_of(&now) || planted(Bug::TrustTheOrigin),
            });
        match storage.begin(is_same, header.page_bytes, below) {
            Ok(told) => told.iter().for_each(|told| (self.warn)(told)),
            Err(why) => {
                (self.warn)(&format!("{why}; continuing without a cache"));
                (state.storage, state.uncached) = (None, why);
            }
        }
        state.record = now.filter(|_| is_same);
        if !is_same {
            self.relations.forget_what_was_seen();
        }
    }

    /// Called when our change is complete, while others are still locked out.
    fn change_is_complete(&self, state: &mut State) {
        if let Some(recorder) = &self.recorder {
            let mut recorder = recorder.lock();
            recorder.write_out(&self.relations);
            self.warn_of_trace(&mut recorder);
        }
        let is_doubtful = std::mem::take(&mut state.is_doubtful);
        let has_changed = std::mem::take(&mut state.is_changing);
        if let Some(header) = state.header.filter(|_| has_changed && !is_doubtful && state.has_cache()) {
            // `fingerprint` rejects another file that has got the name since.
            let stamped = self.fingerprint(header).and_then(|now| now.stamp(&self.path));
            self.record(state, stamped);
        }
    }

    /// The fingerprint of the file, if the path still leads to it.
    fn fingerprint(&self, header: Header) -> Option<Fingerprint> {
        Fingerprint::of(&self.path, header).filter(|now| now.inode == self.inode)
    }

    fn record(&self, state: &mut State, fingerprint: Option<Fingerprint>) {
        state.tried_to_record = Some(Instant::now());
        state.record = fingerprint;
        if let (Some(storage), Some(fingerprint)) = (&mut state.storage, &fingerprint)
            && let Err(error) = storage.record(fingerprint)
        {
            (self.warn)(&format!("the cache will start empty at the next open: {error}"));
        }
    }

    fn warn_of_trace(&self, recorder: &mut Recorder) {
        if let Some(error) = recorder.take_error() {
            (self.warn)(&format!("the trace stops early: {error}"));
        }
    }
}

impl State {
    fn has_cache(&self) -> bool {
        self.storage.as_ref().is_some_and(Storage::is_open)
    }

    fn cache(&self) -> Option<InUse> {
        self.storage.as_ref()?.in_use()
    }

    /// Whether the log shows no transfer by others since the cache was right.
    fn agrees_with(&self, now: WalState) -> bool {
        match self.known {
            Known::Wal(known) => {
                let is_generation = self.is_first_to_log || planted(Bug::ForgetGenerations);
                let is_progress = self.is_checkpointing || planted(Bug::ForgetCheckpoints);
                (is_generation || known.salts == now.salts)
                    && (is_progress || known.progress() == now.progress())
            }
            _ => false,
        }
    }

    /// Whether to record the fingerprint of a file we did not change.
    fn is_time_to_record(&self) -> bool {
        self.record.is_none()
            && self.has_cache()
            && !self.is_changing
            && self.tried_to_record.is_none_or(|tried| tried.elapsed() >= RECORD_EVERY)
    }
}
