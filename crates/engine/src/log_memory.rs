//! Settings of persistent memory for the log.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use terrace_io::units::{self, show_size};
use terrace_io::{
    Directory, FileDirectory, OpenMode, PersistentKind, PersistentMemory, Profile, SimulatedMemory, Time,
};

use crate::error::{Error, Result};
use crate::store::ring::{RING_AT, RING_BYTES_MAX, RING_BYTES_MIN, RingMemory};

/// Name of a simulated memory in the database's directory.
const SIMULATED: &str = "log.ring";

/// Persistent memory that makes commits durable without a write to the log's file.
///
/// The log's newest records are in this memory alone: see [`crate::Builder::log_memory`]. On the
/// command line: kind and location, with an optional size, a power of two from 16 KiB to 8 MiB.
///
/// ```
/// use std::sync::Arc;
/// use terrace::{Db, LogMemory, MemoryDirectory};
///
/// let memory: LogMemory = "simulated:optane,1MiB".parse()?;
/// assert_eq!(memory.bytes(), Some(1 << 20));
/// let directory = Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20);
/// let db = builder.log_memory(memory).open("")?;
/// db.create_table("t")?.put("k", "v")?;
/// let stats = db.stats();
/// assert_eq!(stats.log_memory_bytes, 1 << 20);
/// assert!(stats.log_persistent > stats.log_filed, "durable, and not yet in the log's file");
/// db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LogMemory {
    kind: LogMemoryKind,
    bytes: Option<u64>,
}

/// Kind and location.
///
/// ```
/// use terrace::LogMemoryKind;
///
/// let kind: LogMemoryKind = "shm:/dev/shm/orders.log".parse()?;
/// assert_eq!(kind, LogMemoryKind::Shm("/dev/shm/orders.log".into()));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LogMemoryKind {
    /// A file on tmpfs: outlives the process, but no power cut or restart of the machine.
    Shm(PathBuf),
    /// A file on persistent memory that the system maps synchronously (DAX): outlives a power cut.
    Pmem(PathBuf),
    /// Simulated persistent memory with this profile, in a directory in memory.
    Simulated(Profile),
}

impl LogMemory {
    /// Persistent memory of `bytes` bytes, a power of two; `None`: as the file has, or 8 MiB.
    pub fn new(kind: LogMemoryKind, bytes: Option<u64>) -> LogMemory {
        LogMemory { kind, bytes }
    }

    /// Kind and location.
    pub fn kind(&self) -> &LogMemoryKind {
        &self.kind
    }

    /// Size in bytes, if given.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Opens the memory, or creates it.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Busy`], [`Error::LogMemory`] for a file that is not such memory,
    /// [`Error::Io`].
    pub(crate) fn open(&self, database: &dyn Directory, id: u64, time: &Time) -> Result<RingMemory> {
        if let Some(bytes) = self.bytes {
            check_bytes(bytes).map_err(Error::Config)?;
        }
        let mut cost = None;
        let memory = match &self.kind {
            LogMemoryKind::Shm(path) => self.open_file(path, PersistentKind::Shm)?,
            LogMemoryKind::Pmem(path) => self.open_file(path, PersistentKind::Dax)?,
            LogMemoryKind::Simulated(profile) if !profile.is_persistent() => {
                let name = profile.name();
                return Err(Error::Config(format!(
                    "the log cannot be in simulated memory of profile {name}, which is not persistent"
                )));
            }
            LogMemoryKind::Simulated(profile) => {
                cost = Some(Arc::new(SimulatedMemory::new(profile.clone(), time.clone())));
                self.open_in(database, SIMULATED, PersistentKind::Simulated)?
            }
        };
        RingMemory::new(memory, id, cost)
    }

    /// Removes the memory's file, which nobody needs any more.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn remove(&self, database: &dyn Directory) -> Result<()> {
        let remove = |directory: &dyn Directory, file: &str| {
            let removed = directory.remove(file).and_then(|()| directory.sync());
            removed.map_err(|source| Error::io("remove", &self.kind.to_string(), None, source))
        };
        match &self.kind {
            LogMemoryKind::Shm(path) | LogMemoryKind::Pmem(path) => {
                let (directory, file) = file_of(path)?;
                remove(&directory, &file)
            }
            LogMemoryKind::Simulated(_) => remove(database, SIMULATED),
        }
    }

    fn open_file(&self, path: &Path, kind: PersistentKind) -> Result<Arc<PersistentMemory>> {
        let (directory, file) = file_of(path)?;
        self.open_in(&directory, &file, kind)
    }

    fn open_in(
        &self,
        directory: &dyn Directory,
        file: &str,
        kind: PersistentKind,
    ) -> Result<Arc<PersistentMemory>> {
        let bytes = RING_AT as u64 + self.bytes.unwrap_or(RING_BYTES_MAX);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::ResourceBusy => Error::Busy { path: self.kind.to_string(), owner_process: None },
            io::ErrorKind::Unsupported => Error::LogMemory {
                path: self.kind.to_string(),
                what: format!("the log cannot be there: {source}"),
            },
            _ => Error::io("open", &self.kind.to_string(), None, source),
        };
        let memory = match directory.open_memory(file, 0, OpenMode::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = directory.open_memory(file, bytes, OpenMode::CreateNew).map_err(failed)?;
                directory.sync().map_err(failed)?;
                made
            }
            opened => opened.map_err(failed)?,
        };
        if memory.kind() != kind {
            let what = format!(
                "this memory outlives {}; name it as what it is (shm: or pmem:), or give another path",
                memory.kind().outlives()
            );
            return Err(Error::LogMemory { path: self.kind.to_string(), what });
        }
        Ok(memory)
    }
}

fn file_of(path: &Path) -> Result<(FileDirectory, String)> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(file) = path.file_name().and_then(|name| name.to_str()) else {
        let what = format!("the log's memory cannot be at {}, which names no file", path.display());
        return Err(Error::Config(what));
    };
    let directory = FileDirectory::open(parent);
    let directory =
        directory.map_err(|source| Error::io("open", &parent.display().to_string(), None, source))?;
    Ok((directory, file.to_owned()))
}

fn check_bytes(bytes: u64) -> std::result::Result<(), String> {
    if bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    let (least, most) = (show_size(RING_BYTES_MIN), show_size(RING_BYTES_MAX));
    Err(format!("a log memory of {bytes} bytes; it must be a power of two from {least} to {most}"))
}

impl fmt::Display for LogMemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogMemoryKind::Shm(path) => write!(f, "shm:{}", path.display()),
            LogMemoryKind::Pmem(path) => write!(f, "pmem:{}", path.display()),
            LogMemoryKind::Simulated(profile) => write!(f, "simulated:{}", profile.location()),
        }
    }
}

impl FromStr for LogMemoryKind {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<LogMemoryKind, String> {
        let path = |path: &str| match path {
            "" => Err(format!("\"{text}\" names no file")),
            path => Ok(PathBuf::from(path)),
        };
        if let Some(file) = text.strip_prefix("shm:") {
            path(file).map(LogMemoryKind::Shm)
        } else if let Some(file) = text.strip_prefix("pmem:") {
            path(file).map(LogMemoryKind::Pmem)
        } else if let Some(profile) = text.strip_prefix("simulated:") {
            Profile::find(profile).map(LogMemoryKind::Simulated).map_err(|error| error.to_string())
        } else {
            Err(format!(
                "there is no log memory \"{text}\"; there are shm:PATH, pmem:PATH and simulated:PROFILE,SIZE"
            ))
        }
    }
}

impl fmt::Display for LogMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Some(bytes) => write!(f, "{},{bytes}B", self.kind),
            None => write!(f, "{}", self.kind),
        }
    }
}

impl FromStr for LogMemory {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<LogMemory, String> {
        let (kind, bytes) = match text.rsplit_once(',') {
            Some((kind, size)) => (kind, Some(units::size(size)?)),
            None => (text, None),
        };
        bytes.map_or(Ok(()), check_bytes)?;
        Ok(LogMemory { kind: kind.parse()?, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_memory_round_trips_as_text_and_others_are_refused() {
        for text in ["shm:/dev/shm/ring", "pmem:/mnt/pmem/a,b,65536B", "simulated:optane,1048576B"] {
            let memory: LogMemory = text.parse().unwrap();
            assert_eq!(memory.to_string(), text);
        }
        for (text, wrong) in [
            ("", "there is no log memory"),
            ("shm:", "names no file"),
            ("numa:0,1MiB", "there is no log memory"),
            ("shm:/dev/shm/ring,1000000", "a power of two"),
            ("shm:/dev/shm/ring,16MiB", "a power of two"),
            ("shm:/dev/shm/ring,8KiB", "a power of two"),
            ("simulated:nothing,1MiB", "nothing"),
        ] {
            let error = text.parse::<LogMemory>().unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
