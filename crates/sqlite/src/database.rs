//! A database file as all connections of this process share it: the cache, and the rule by which it is never stale.
//!
//! # The rule
//!
//! Everything that this process writes to the file goes through the cache. What others write does not: another process,
//! or a connection of this one that does not use this VFS. So at the moments at which SQLite begins to rely on the file's
//! content, the cache is held against what the file was when the cache was last known to be right. If that is the same, it is
//! right now, and stays so for as long as SQLite's locks keep others from changing what SQLite will read. If not, it is
//! emptied.
//!
//! * **Rollback mode.** Who writes holds the exclusive lock, who reads the shared one. When a connection has got the shared lock
//!   ([`Database::shares`]), the head of the file must be what it was: SQLite goes by the same sixteen bytes for the pages that it has in
//!   memory, and every change of the file changes them. What we write ourselves ends with the exclusive lock
//!   ([`Database::unlocks`]), when the new head is remembered, unless it was broken off and leaves a hot journal.
//! * **WAL mode.** The file is written by checkpoints, of any process, one at a time, while others read. The index of the log,
//!   which all processes share, says which generation of the log this is (the *salts*) and how many of its frames a checkpoint
//!   has begun to transfer (*attempted*) and has transferred (*backfilled*): a change of the file changes the first two before,
//!   unless a checkpoint was broken off or the index recovered, and the third before anybody reads it from the file. When a
//!   connection has got a read mark, and SQLite has taken note of how much is transferred ([`Database::reads_log`]), all
//!   must be what they were. A checkpoint that is under way at that moment, or begins
//!   later, transfers only pages that the reader finds in the log, so the reader neither reads them from the file nor puts them
//!   into the cache; they are one block each, so it does not fetch them along with others. Our own checkpoints
//!   ([`Database::checkpoint_begins`]) and our own new generations ([`Database::restart_begins`], and in an empty log
//!   [`Database::log_write_begins`]) are no changes by others.
//!   When no connection of ours holds the shared lock any more, others may take the log away and begin anew, and what is known of
//!   it is void.
//! * **Across both, and across processes.** Where neither comparison is possible, because the file was not open, or its mode
//!   has changed, the fingerprint of the file decides (`fingerprint.rs`). It is recorded whenever a change of ours is
//!   complete and nobody else can be writing.
//!
//! Where there is doubt the cache is emptied or passed by: with `nolock=1`, where no lock is ever taken, and with
//! `locking_mode=EXCLUSIVE` in WAL mode from the start, where there is no index, it is not read at all.
//!
//! # What a kill leaves
//!
//! The database file alone is always complete: the cache is written after it, and never instead. A process that is killed while it
//! changes the file leaves a fingerprint that does not fit, and the next one begins with an empty cache; killed at any other
//! time, it leaves a cache that is right.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use libsqlite3_sys as ffi;
use parking_lot::Mutex;
use terrace_block::policy::Name;
use terrace_block::{BlockDevice, Cached};

use crate::below::{Below, CHECKPOINT_LOCK, WalIndex, WalState};
use crate::fingerprint::Fingerprint;
use crate::gates::SlowDisk;
use crate::header::{Head, Header};
use crate::log::LogPages;
use crate::options::Options;
use crate::planted::{Bug, planted};
use crate::queries::{Queries, Roots, name_of};
use crate::recorder::Recorder;
use crate::relations::RelationMap;
use crate::slow::SlowFile;
use crate::stats::{self, Around};
use crate::storage::Storage;

/// How often it is tried to record the fingerprint of a file that we do not write.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// Where the first page has the version of the schema ("Database File Format", section 1.3).
const SCHEMA_VERSION: std::ops::Range<usize> = 40..44;

/// What a journal begins with ("Database File Format", section 3).
const JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

/// Says what went wrong, in a line.
pub(crate) type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// A cache that may be used now.
#[derive(Clone)]
pub(crate) struct InUse {
    pub cached: Arc<Cached>,
    pub slow: Arc<SlowFile>,
    pub page_bytes: usize,
}

impl InUse {
    /// Whether the cache is out of service for good.
    pub fn is_given_up(&self) -> bool {
        self.cached.stats().out_of_service.is_some()
    }

    /// Whether the page at `offset` is on the slow device, as far as that knows.
    pub fn holds(&self, offset: i64) -> bool {
        u64::try_from(offset).is_ok_and(|start| start + self.page_bytes as u64 <= self.slow.len())
    }
}

/// One database file.
pub(crate) struct Database {
    path: PathBuf,
    inode: u64,
    warn: Warn,
    relations: Arc<RelationMap>,
    recorder: Option<Mutex<Recorder>>,
    /// Where the policy or the trace has a use for it.
    queries: Option<Mutex<Queries>>,
    disk: Option<Arc<SlowDisk>>,
    /// Where there is a cache.
    log: Option<Arc<Mutex<LogPages>>>,
    state: Mutex<State>,
}

struct State {
    storage: Option<Storage>,
    /// What the file was when the cache was last known to be right.
    known: Known,
    /// Its head then, or as we have written it since.
    header: Option<Header>,
    /// Its fingerprint then; none while we change it, and where it could not be had.
    record: Option<Fingerprint>,
    /// We have changed the file, and the change is not complete.
    is_changing: bool,
    /// The change was begun while nothing was known of the file: the cache may not be right of what comes of it.
    is_doubtful: bool,
    /// A connection of ours holds the checkpoint lock.
    is_checkpointing: bool,
    /// A connection of ours, for which the cache was right, begins the log anew.
    is_restarting: bool,
    /// A connection of ours, for which the cache was right, writes to a log that was empty.
    is_first_to_log: bool,
    /// Connections of ours that hold at least the shared lock.
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
    /// The database file at `path`, which is open. Connections that ask for the same get the same.
    ///
    /// # Errors
    /// A sentence about a parameter that cannot be obeyed.
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

    /// The pages of the log of the database at `path`, which is open, if they are kept.
    pub fn log_of(path: &Path, options: &Options) -> Option<Arc<Mutex<LogPages>>> {
        let databases = DATABASES.lock();
        let is_it = |key: &&Key| key.0 == path && key.3 == *options;
        let database = databases.as_ref()?.iter().find(|(key, _)| is_it(key))?.1.upgrade()?;
        database.log.clone()
    }

    /// A connection is about to close its file. The last one closes the cache, as long as it has a file to lend.
    pub fn leave(database: Arc<Database>, below: &Arc<Below>) {
        // Whoever opens the file meanwhile waits until its cache is free.
        let _databases = DATABASES.lock();
        // Dropped before the lock is: who comes next sees that it is gone.
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
            Recorder::create(trace)
                .map(Mutex::new)
                .map_err(|error| format!("trace {}: {error}", trace.display()))
        });
        let recorder = recorder.transpose()?;
        let storage = options.cache.as_ref().and_then(|cache| {
            let storage = Storage::open(cache, path, Arc::clone(&relations), disk.as_deref());
            // Without its cache a database is only slower.
            storage.map_err(|why| warn(&format!("{why}; going on without a cache"))).ok()
        });
        let is_hinted = options.cache.as_ref().is_some_and(|cache| {
            let policy = cache.policy.as_ref().and_then(|policy| policy.parse::<Name>().ok());
            !cache.no_hints && policy.is_some_and(|policy| policy.wants_queries())
        });
        let queries = (is_hinted || recorder.is_some()).then(Mutex::default);
        let log = storage.is_some().then(Arc::default);
        let state = State {
            storage,
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

    /// A connection has got the shared lock, or more. Gives the cache, if it may be read under that, and with it the head of the
    /// file, which will not change either.
    pub fn shares(&self, below: &Arc<Below>) -> (Option<InUse>, Option<Head>) {
        let mut state = self.state.lock();
        state.sharers += 1;
        if state.storage.is_none() {
            return (None, None);
        }
        let Some((header, head)) = Header::read(below).filter(|(header, _)| !header.is_wal) else {
            // What was known under the other rule says nothing.
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

    /// A connection has passed a barrier: SQLite is about to go by the index as it is now, or looks at it again.
    pub fn sees_log(&self, index: WalIndex) {
        if let Some(log) = &self.log {
            log.lock().generation_is(index.state());
        }
    }

    /// A connection has got a read mark, and has passed the barrier after that. Gives the cache, if it may be read under that.
    pub fn reads_log(&self, below: &Arc<Below>, index: WalIndex) -> Option<InUse> {
        let mut state = self.state.lock();
        self.compare_log(&mut state, below, index, false);
        state.cache().filter(|_| matches!(state.known, Known::Wal(_)))
    }

    /// A connection has got the exclusive lock on a file whose log has an index.
    pub fn excludes(&self, below: &Arc<Below>, index: WalIndex) {
        self.compare_log(&mut self.state.lock(), below, index, false);
    }

    /// A connection has got the checkpoint lock.
    pub fn checkpoint_begins(&self, below: &Arc<Below>, index: WalIndex) {
        let mut state = self.state.lock();
        self.compare_log(&mut state, below, index, true);
        state.is_checkpointing = true;
    }

    /// A connection gives up the checkpoint lock.
    pub fn checkpoint_ends(&self, index: WalIndex) {
        let mut state = self.state.lock();
        if matches!(state.known, Known::Wal(_)) {
            state.known = Known::Wal(index.state());
        }
        self.change_is_complete(&mut state);
        state.is_checkpointing = false;
    }

    /// A connection keeps everybody out of the log, to begin it anew.
    pub fn restart_begins(&self, index: WalIndex) {
        let mut state = self.state.lock();
        state.is_restarting = state.agrees_with(index.state());
    }

    /// The connection lets others into the log again.
    pub fn restart_ends(&self, index: WalIndex) {
        let mut state = self.state.lock();
        if state.is_restarting {
            state.known = Known::Wal(index.state());
            state.is_restarting = false;
        }
    }

    /// A connection has got the lock of those that write to the log. In an empty log its commit begins a generation, and until
    /// then there is nothing that anybody could transfer.
    pub fn log_write_begins(&self, index: WalIndex) {
        if let Some(log) = &self.log {
            log.lock().begins();
        }
        let mut state = self.state.lock();
        let now = index.state();
        state.is_first_to_log = now.frames == 0 && state.agrees_with(now);
    }

    /// The connection gives up that lock.
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

    /// A connection is about to lower its lock on the file.
    pub fn unlocks(&self, from: i32, to: i32, index: Option<WalIndex>) {
        let mut state = self.state.lock();
        if from >= ffi::SQLITE_LOCK_EXCLUSIVE && state.is_changing {
            // Others will take the change back, by a journal that says nothing of our cache.
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

    /// Whether there is a journal by which who comes next takes back what we have written: a commit or a rollback that has failed
    /// leaves it. A journal that is kept after a commit has no such beginning.
    fn has_hot_journal(&self) -> bool {
        let mut path = self.path.clone().into_os_string();
        path.push("-journal");
        let mut begins = [0; JOURNAL_MAGIC.len()];
        std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut begins)).is_ok()
            && begins == JOURNAL_MAGIC
    }

    /// A connection is about to write to the file, or to cut it.
    pub fn will_change(&self) {
        let mut state = self.state.lock();
        state.is_doubtful |= state.known == Known::Nothing;
        (state.is_changing, state.record) = (true, None);
    }

    /// A connection has written the first page.
    pub fn wrote_header(&self, page: &[u8]) {
        if let Some(head) = page.first_chunk() {
            self.state.lock().header = Header::parse(head);
        }
        if let (Some(queries), Some(version)) = (&self.queries, page.get(SCHEMA_VERSION)) {
            queries.lock().saw_schema(version.try_into().expect("four bytes"));
        }
    }

    /// Whether it is of use to know which statements run.
    pub fn wants_queries(&self) -> bool {
        self.queries.is_some()
    }

    /// Whether it is known what the statement with this text uses.
    pub fn knows_query(&self, text: &str) -> bool {
        self.queries.as_ref().is_none_or(|queries| queries.lock().knows(text))
    }

    /// A statement begins on a connection; gives its number.
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

    /// A statement is over; gives its number.
    pub fn query_ends(&self, statement: usize) -> Option<u32> {
        let number = self.queries.as_ref()?.lock().end(statement)?;
        if let Some(InUse { cached, .. }) = self.state.lock().cache() {
            cached.query_ends(u64::from(number));
        }
        Some(number)
    }

    /// The cache through which writes go.
    pub fn cache_to_write(&self) -> Option<InUse> {
        self.state.lock().cache().filter(|_| !planted(Bug::WritePastTheCache))
    }

    /// A connection has read or written a page.
    pub fn saw(&self, page: u32, bytes: &[u8], written: bool, query: Option<u32>) {
        self.relations.observe(page, bytes, written);
        if let Some(recorder) = &self.recorder {
            let mut recorder = recorder.lock();
            recorder.note(page, written, query, &self.relations);
            self.warn_of_trace(&mut recorder);
        }
    }

    /// What `PRAGMA terrace_stats` answers: one JSON object.
    pub fn stats(&self) -> String {
        let disk = self.disk.as_ref().map_or(String::new(), |disk| format!(r#","disk":{}"#, disk.stats()));
        let queries = self
            .queries
            .as_ref()
            .map_or(String::new(), |queries| format!(r#","queries":{}"#, queries.lock().begun()));
        let log =
            self.log.as_ref().map_or(String::new(), |log| format!(r#","log_hits":{}"#, log.lock().hits()));
        format!(r#"{{"cache":{}{log}{disk}{queries}}}"#, self.cache_stats())
    }

    fn cache_stats(&self) -> String {
        let state = self.state.lock();
        let (Some(storage), Some(in_use)) = (&state.storage, state.cache()) else {
            return "null".to_owned();
        };
        let around = Around { emptied: storage.emptied(), cold: storage.cold(), relations: &self.relations };
        stats::of_cache(&in_use, &around)
    }

    /// Holds the cache against the log's index. `is_mine` says that the connection holds the checkpoint lock.
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
            // A checkpoint by others since the comparison would be in the fingerprint, but not in the cache.
            let after = index.state();
            let is_quiet = after.salts == now.salts && after.progress() == now.progress();
            self.record(state, fingerprint.filter(|fingerprint| is_quiet && fingerprint.is_settled()));
        }
    }

    /// Does `act` while nobody can be writing to a file in WAL mode; none if somebody may be. Times of the file say something
    /// only then.
    fn between_checkpoints<T>(&self, below: &Below, act: impl FnOnce() -> Option<T>) -> Option<T> {
        let exclusive = ffi::SQLITE_SHM_EXCLUSIVE;
        below.shm_lock(CHECKPOINT_LOCK, 1, ffi::SQLITE_SHM_LOCK | exclusive).ok()?;
        let outcome = act();
        if below.shm_lock(CHECKPOINT_LOCK, 1, ffi::SQLITE_SHM_UNLOCK | exclusive).is_err() {
            (self.warn)("the checkpoint lock could not be given back");
        }
        outcome
    }

    /// The file may have been changed by others: keeps the cache if the fingerprint says that it was not.
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
                (self.warn)(&format!("{why}; going on without a cache"));
                state.storage = None;
            }
        }
        state.record = now.filter(|_| is_same);
        if !is_same {
            self.relations.forget_what_was_seen();
        }
    }

    /// A change of ours is complete, and others are still kept out.
    fn change_is_complete(&self, state: &mut State) {
        if let Some(recorder) = &self.recorder {
            let mut recorder = recorder.lock();
            recorder.write_out(&self.relations);
            self.warn_of_trace(&mut recorder);
        }
        let is_doubtful = std::mem::take(&mut state.is_doubtful);
        let has_changed = std::mem::take(&mut state.is_changing);
        if let Some(header) = state.header.filter(|_| has_changed && !is_doubtful && state.has_cache()) {
            // Not another file that has got the name since.
            let stamped = self.fingerprint(header).and_then(|now| now.stamp(&self.path));
            self.record(state, stamped);
        }
    }

    /// The fingerprint of the file, if its name is still its own.
    fn fingerprint(&self, header: Header) -> Option<Fingerprint> {
        Fingerprint::of(&self.path, header).filter(|now| now.inode == self.inode)
    }

    fn record(&self, state: &mut State, fingerprint: Option<Fingerprint>) {
        state.tried_to_record = Some(Instant::now());
        state.record = fingerprint;
        if let (Some(storage), Some(fingerprint)) = (&mut state.storage, &fingerprint)
            && let Err(error) = storage.record(fingerprint)
        {
            (self.warn)(&format!("the cache will be empty when it is opened again: {error}"));
        }
    }

    fn warn_of_trace(&self, recorder: &mut Recorder) {
        if let Some(error) = recorder.take_error() {
            (self.warn)(&format!("the trace ends early: {error}"));
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

    /// Whether the log says that nobody else has transferred anything since the cache was right.
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

    /// Whether a file that we have not changed has no record, and it is time to try again.
    fn is_time_to_record(&self) -> bool {
        self.record.is_none()
            && self.has_cache()
            && !self.is_changing
            && self.tried_to_record.is_none_or(|tried| tried.elapsed() >= RECORD_EVERY)
    }
}
