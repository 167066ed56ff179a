//! The file of a persistent middle tier at open, and the frames that count.
//!
//! 1. [`Attached::open`] opens or creates the file. It first writes all headers back: a killed
//!    process may have left lines that are not durable (rule 13).
//! 2. [`Attached::candidates`] selects frames, once the log was read to its end.
//! 3. [`Attached::begin_life`] runs after the superblock with the new epoch is synced. It unseals
//!    all other frames durably, then names the new epoch. In the opposite order a cut between the
//!    two leaves dropped frames, and an epoch that fits them.
//!
//! A file of another size is resized first; the frames that fit stay where they are. Any other file
//! that does not fit starts cold, with a warning. A foreign file stays as it is, and the tier is
//! volatile.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use terrace_io::{
    AlignedBuffer, Directory, OpenMode, Pattern, PersistentKind, PersistentMemory, SimulatedMemory,
};

use super::layout::{self, Identity, LINE_BYTES, Layout, Sealed};
use super::seals::{Dropped, PersistentFrames};
use crate::error::{Error, Result};
use crate::ids::{Lsn, PageId, SizeClass};
use crate::planted::{Bug, planted};
use crate::store::superblock::Superblock;

/// Where a persistent middle tier lies.
#[derive(Clone, Debug)]
pub(crate) struct PersistentSource {
    /// `None` for memory that dies with the process, as does that of a directory without any.
    pub(crate) directory: Option<Arc<dyn Directory>>,
    pub(crate) file: String,
    pub(crate) kind: PersistentKind,
    /// Whether bodies are compared with their checksums, which mask faults. Crash tests of the
    /// order of write-backs turn it off.
    pub(crate) checks_bodies: bool,
}

impl PersistentSource {
    /// The path, for messages.
    fn name(&self) -> String {
        let directory = self.directory.as_ref().map_or_else(|| "anonymous".to_owned(), |found| found.name());
        format!("{directory}/{}", self.file)
    }
}

/// A frame that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adopted {
    pub(crate) id: PageId,
    pub(crate) lsn: Lsn,
    /// In the middle partition.
    pub(crate) index: u32,
    /// Whether the page's image is known to be equal.
    pub(crate) is_imaged: bool,
}

#[derive(Debug)]
pub(crate) struct Attached {
    frames: PersistentFrames,
    identity: Identity,
    /// Of the last life with the tier, if the file fits the database.
    life: Option<Life>,
}

/// Epoch and random number of a life.
type Life = (u32, u64);

enum Found {
    /// It is this tier's, of this last life.
    Fits(Life),
    /// It is this tier's, with another number of frames or another length.
    Resize(Identity),
    /// It is a tier's, of this length.
    Cold(String),
    /// It is a tier's, of another length.
    Replace(String),
    /// It is none.
    Foreign,
}

impl Attached {
    /// Opens the tier of the database with `superblock`. `None` if the file is something else,
    /// which is reported.
    ///
    /// # Errors
    /// [`Error::Busy`] if another handle has it, and what the system reports.
    pub(crate) fn open(
        source: &PersistentSource,
        superblock: &Superblock,
        frames: u32,
        charge: Option<Arc<SimulatedMemory>>,
    ) -> Result<Option<Attached>> {
        let class = SizeClass::of_bytes(superblock.page_bytes.into()).expect("the superblock was checked");
        let layout = Layout { class, frames };
        let identity = Identity {
            uuid: superblock.uuid,
            timeline: superblock.timeline,
            page_bytes: superblock.page_bytes,
            frames,
            epoch: superblock.epoch,
            life: superblock.life,
        };
        let Some((memory, life)) = open_memory(source, layout, &identity)? else { return Ok(None) };
        let begun = Instant::now();
        let frames = PersistentFrames::new(memory, layout, charge, source.checks_bodies);
        if life.is_some() && !planted(Bug::TrustUnsealedHeader) {
            let mut headers = layout.headers(0);
            headers.try_for_each(|group| frames.memory.write_back(group)).map_err(lost(&frames))?;
            frames.charge_write_back(layout.headers(0), 0);
            frames.memory.fence().map_err(lost(&frames))?;
        }
        frames.count_adoption(begun);
        Ok(Some(Attached { frames, identity, life }))
    }

    /// Whether the database's last life was this tier's last one too. If not, all frames are
    /// dropped.
    pub(crate) fn is_of_life(&self, superblock: &Superblock) -> bool {
        let Some(life) = self.life else { return false };
        let fits = life == (superblock.epoch, superblock.life) || planted(Bug::KeepEpochOfTier);
        if !fits {
            let file = self.frames.memory.name();
            tracing::warn!(
                file,
                "the middle tier starts cold: the database was open without it, or is another copy of it"
            );
            let headers = (0..self.frames.layout.frames).map(|index| self.header(index));
            let sealed = headers.filter(|line| layout::reads_sealed(line)).count();
            self.frames.count_dropped(Dropped::Life, sealed as u64);
        }
        fits
    }

    fn header(&self, index: u32) -> &[AtomicU64] {
        self.frames.memory.words(self.frames.layout.header(index))
    }

    /// The frames that count, at most one per page, in order of page ids. `judge` gets a page and
    /// the LSN of the frame, and says whether the image is equal.
    pub(crate) fn candidates(&self, judge: impl Fn(PageId, Lsn) -> Result<bool, Dropped>) -> Vec<Adopted> {
        let (begun, mut found) = (Instant::now(), Vec::new());
        let count = |why| self.frames.count_dropped(why, 1);
        for index in 0..self.frames.layout.frames {
            let line = self.header(index);
            if !layout::reads_sealed(line) {
                continue;
            }
            let Some(Sealed { page: id, lsn, .. }) = Sealed::load(index, line) else {
                count(Dropped::Header);
                continue;
            };
            match judge(id, lsn) {
                Ok(is_imaged) => found.push(Adopted { id, lsn, index, is_imaged }),
                Err(why) => count(why),
            }
        }
        if let Some(charge) = &self.frames.charge {
            for headers in self.frames.layout.headers(0) {
                charge.read(headers.start as u64, headers.len() as u64, Pattern::Sequential);
            }
        }
        found.sort_unstable_by_key(|frame| (frame.id, std::cmp::Reverse(frame.lsn)));
        let before = found.len();
        found.dedup_by_key(|frame| frame.id);
        self.frames.count_dropped(Dropped::Duplicate, (before - found.len()) as u64);
        self.frames.count_adoption(begun);
        found
    }

    /// Whether the body of a candidate is what was sealed.
    pub(crate) fn holds(&self, frame: &Adopted) -> bool {
        self.frames.check_body(self.frames.partition().frame(frame.index), frame.id)
    }

    /// Begins the life that durable `superblock` names. Unseals all frames but those `adopted`,
    /// then names the life.
    ///
    /// # Errors
    /// Those of a simulated power cut.
    pub(crate) fn begin_life(
        mut self,
        superblock: &Superblock,
        adopted: &[Adopted],
    ) -> Result<PersistentFrames> {
        let begun = Instant::now();
        self.identity = Identity { epoch: superblock.epoch, life: superblock.life, ..self.identity };
        if planted(Bug::EpochBeforeUnsealing) {
            self.name_life()?;
        }
        self.frames.begin_life(adopted.iter().map(|frame| (frame.index, frame.is_imaged)));
        let mut cleared = 0;
        for index in 0..self.frames.layout.frames {
            let (line, is_adopted) = (self.frames.layout.header(index), self.frames.is_adopted(index));
            let trusted = planted(Bug::TrustUnsealedHeader) && !layout::reads_sealed(self.header(index));
            if !is_adopted && !trusted {
                self.frames.memory.note(line.clone());
                layout::clear_seal(self.header(index));
                cleared += LINE_BYTES;
            }
            if planted(Bug::TrustUnsealedHeader) && !is_adopted && !trusted {
                self.frames.memory.write_back(line).map_err(lost(&self.frames))?;
            }
        }
        if !planted(Bug::TrustUnsealedHeader) {
            let mut headers = self.frames.layout.headers(0);
            headers.try_for_each(|group| self.frames.memory.write_back(group)).map_err(lost(&self.frames))?;
        }
        self.frames.charge_write_back(self.frames.layout.headers(0), cleared);
        self.frames.memory.fence().map_err(lost(&self.frames))?;
        if !planted(Bug::EpochBeforeUnsealing) {
            self.name_life()?;
        }
        self.frames.count_adoption(begun);
        Ok(self.frames)
    }

    fn name_life(&self) -> Result<()> {
        self.frames.charge_write_back(std::iter::once(0..LINE_BYTES), LINE_BYTES);
        store_identity(&self.frames.memory, &self.identity).map_err(lost(&self.frames))
    }
}

fn lost(frames: &PersistentFrames) -> impl Fn(io::Error) -> Error + Copy + '_ {
    |source| Error::io("write back", frames.memory.name(), None, source)
}

fn store_identity(memory: &PersistentMemory, identity: &Identity) -> io::Result<()> {
    memory.note(0..LINE_BYTES);
    for (word, bytes) in memory.words(0..LINE_BYTES).iter().zip(identity.encode().chunks_exact(8)) {
        word.store(u64::from_ne_bytes(bytes.try_into().expect("eight bytes")), Relaxed);
    }
    memory.persist(0..LINE_BYTES)
}

/// The memory, and its last life if it fits. `None` if the file is something else.
fn open_memory(
    source: &PersistentSource,
    layout: Layout,
    identity: &Identity,
) -> Result<Option<(Arc<PersistentMemory>, Option<Life>)>> {
    let (file, name) = (&source.file[..], &source.name()[..]);
    let bytes = layout.bytes() as u64;
    let anonymous = || {
        PersistentMemory::anonymous(file, bytes as usize)
            .map(|memory| Some((memory, None)))
            .map_err(|source| Error::Memory { bytes, what: "the middle tier", source })
    };
    let Some(directory) = &source.directory else { return anonymous() };
    let explain = |error: io::Error| match error.kind() {
        io::ErrorKind::ResourceBusy => {
            Error::Busy { path: format!("the middle tier {name}"), owner_process: None }
        }
        io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput => {
            Error::Config(format!("the middle tier {name}: {error}"))
        }
        _ => Error::io("open", name, None, error),
    };
    let create = || -> Result<_> {
        let memory = directory.open_memory(file, bytes, OpenMode::CreateNew).map_err(explain)?;
        // Nobody needs the new file on other memory.
        check_kind(source, &memory).inspect_err(|_| _ = directory.remove(file))?;
        // The name is durable before frames count.
        directory.sync().map_err(|error| Error::io("sync", &directory.name(), None, error))?;
        Ok(Some((memory, None)))
    };
    let memory = match directory.open_memory(file, bytes, OpenMode::Write) {
        Ok(memory) => memory,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => return create(),
            io::ErrorKind::Unsupported if source.kind == PersistentKind::Simulated => return anonymous(),
            // No length that a tier has.
            io::ErrorKind::InvalidData if begins_as_tier(&**directory, file) => {
                warn_cold(name, "it is cut off");
                directory.remove(file).map_err(|error| Error::io("remove", name, None, error))?;
                return create();
            }
            io::ErrorKind::InvalidData => {
                warn_foreign(name, &error.to_string());
                return Ok(None);
            }
            _ => return Err(explain(error)),
        },
    };
    check_kind(source, &memory)?;
    match look_at(&memory, layout, identity) {
        Found::Fits(life) => Ok(Some((memory, Some(life)))),
        Found::Resize(found) => resize(&**directory, file, memory, found, layout)
            .map(|memory| Some((memory, Some((found.epoch, found.life)))))
            .map_err(explain),
        Found::Cold(why) => {
            warn_cold(name, &why);
            Ok(Some((memory, None)))
        }
        Found::Replace(why) => {
            warn_cold(name, &why);
            drop(memory);
            directory.remove(file).map_err(|error| Error::io("remove", name, None, error))?;
            create()
        }
        Found::Foreign => {
            warn_foreign(name, "it does not begin as one");
            Ok(None)
        }
    }
}

/// Gives the file of the tier `found` length and frames of `layout`.
///
/// Frames beyond the named ones are always durably unsealed. They are so before the identity names
/// fewer, which comes before the cut of the file: a power cut may undo that cut even in a later
/// life. Cut off in between, the file is longer than its identity says, and fits.
fn resize(
    directory: &dyn Directory,
    file: &str,
    memory: Arc<PersistentMemory>,
    found: Identity,
    layout: Layout,
) -> io::Result<Arc<PersistentMemory>> {
    let named = Identity { frames: layout.frames, ..found };
    if !planted(Bug::KeepSealBeyondEnd) {
        unseal_beyond(&memory, layout)?;
    }
    let is_smaller = named.frames < found.frames;
    if is_smaller {
        store_identity(&memory, &named)?;
    }
    let memory = match memory.len() == layout.bytes() {
        true => memory,
        false => {
            drop(memory);
            directory.resize_memory(file, layout.bytes() as u64)?;
            directory.open_memory(file, 0, OpenMode::Write)?
        }
    };
    let expected = if is_smaller { named } else { found };
    if memory.len() != layout.bytes() || Identity::decode(&identity_line(&memory)) != Some(Ok(expected)) {
        // It had no handle for a moment.
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    if !is_smaller {
        store_identity(&memory, &named)?;
    }
    Ok(memory)
}

/// Unseals durably all frames in the file that `layout` does not have.
fn unseal_beyond(memory: &PersistentMemory, layout: Layout) -> io::Result<()> {
    for headers in Layout::of_headers_in(layout.class, memory.len()).headers(layout.frames) {
        memory.note(headers.clone());
        memory.words(headers.clone()).chunks(LINE_BYTES / 8).for_each(layout::clear_seal);
        memory.write_back(headers)?;
    }
    memory.fence()
}

fn check_kind(source: &PersistentSource, memory: &PersistentMemory) -> Result<()> {
    if memory.kind() == source.kind {
        return Ok(());
    }
    Err(Error::Config(format!(
        "the middle tier {} outlives {}, and was to outlive {}; name a file on other memory, or the other kind of tier",
        memory.name(),
        memory.kind().outlives(),
        source.kind.outlives()
    )))
}

fn begins_as_tier(directory: &dyn Directory, name: &str) -> bool {
    let mut block = AlignedBuffer::zeroed(4096);
    let read = directory.open(name, OpenMode::Read).and_then(|file| file.read_at(0, &mut block));
    let line = block[..LINE_BYTES].try_into().expect("a block has a line");
    read.is_ok() && Identity::decode(line).is_some()
}

fn warn_cold(file: &str, why: &str) {
    tracing::warn!(file, why, "the middle tier starts cold");
}

fn warn_foreign(file: &str, why: &str) {
    tracing::warn!(
        file,
        why,
        "this file is no middle tier, and stays as it is: the tier is volatile; name another file, or remove it"
    );
}

fn identity_line(memory: &PersistentMemory) -> [u8; LINE_BYTES] {
    let mut line = [0; LINE_BYTES];
    for (bytes, word) in line.chunks_exact_mut(8).zip(memory.words(0..LINE_BYTES)) {
        bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    line
}

fn look_at(memory: &PersistentMemory, layout: Layout, identity: &Identity) -> Found {
    let has_length = memory.len() == layout.bytes();
    let cold = |why: String| if has_length { Found::Cold(why) } else { Found::Replace(why) };
    match Identity::decode(&identity_line(memory)) {
        // Its creation was cut off, or it was created empty.
        None if memory.words(0..memory.len()).iter().all(|word| word.load(Relaxed) == 0) => {
            cold("it was just created".to_owned())
        }
        None => Found::Foreign,
        Some(Err(why)) => cold(why.to_owned()),
        Some(Ok(found)) if found.uuid != identity.uuid => cold("it is of another database".to_owned()),
        Some(Ok(found)) if found.timeline != identity.timeline => {
            cold("the database was restored or repaired since".to_owned())
        }
        Some(Ok(found)) if found.page_bytes != identity.page_bytes => {
            cold(format!("it has frames of {} bytes", found.page_bytes))
        }
        Some(Ok(found)) if memory.len() < (Layout { frames: found.frames, ..layout }).bytes() => {
            Found::Replace(format!("it is cut off at {} bytes", memory.len()))
        }
        Some(Ok(found)) if found.frames != identity.frames || !has_length => Found::Resize(found),
        Some(Ok(found)) => Found::Fits((found.epoch, found.life)),
    }
}
