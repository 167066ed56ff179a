//! Files of a database: names, locks, and remains of unfinished work.

use std::io;
use std::path::Path;
use std::sync::Arc;

use terrace_io::{Directory, FileDirectory, LockError, Sharing};

use crate::error::{Error, Result};
use crate::store::names::{exists, within};

pub(super) const PAGES: &str = "pages.terrace";
pub(super) const LOG: &str = "log.terrace";
pub(super) const LOCK: &str = "lock";
pub(super) const NEW_PAGES: &str = "pages.new";
pub(super) const NEW_LOG: &str = "log.new";

/// Locks others out, or to reading, until dropped.
pub(crate) type Lock = Box<dyn Send + Sync>;

pub(super) const BACKUP_PAGES: &str = "pages.backup";
pub(super) const BACKUP_LOG: &str = "log.backup";
pub(super) const PARTIAL_PAGES: &str = "pages.partial";
pub(super) const PARTIAL_LOG: &str = "log.partial";
pub(super) const RESTORING_PAGES: &str = "pages.restoring";
pub(super) const RESTORING_LOG: &str = "log.restoring";

pub(super) const SALVAGE_PAGES: &str = "pages.salvage";
pub(super) const SALVAGE_LOG: &str = "log.salvage";
pub(super) const REPAIRED_PAGES: &str = "pages.repaired";
pub(super) const REPAIRED_LOG: &str = "log.repaired";
/// Without a database, any of these files marks an unfinished repair.
pub(super) const UNFINISHED_REPAIR: [&str; 4] = [SALVAGE_PAGES, SALVAGE_LOG, REPAIRED_PAGES, REPAIRED_LOG];

pub(crate) fn open_directory(path: &Path, create: bool) -> Result<Arc<dyn Directory>> {
    let opened = if create { FileDirectory::create(path) } else { FileDirectory::open(path) };
    match opened {
        Ok(directory) => Ok(Arc::new(directory)),
        Err(source) => {
            let name = match path.as_os_str().is_empty() {
                true => "an empty path".to_owned(),
                false => path.display().to_string(),
            };
            let what = match source.kind() {
                _ if path.as_os_str().is_empty() => "name a directory",
                io::ErrorKind::NotADirectory => "it is not a directory",
                io::ErrorKind::NotFound if create => "the directory it would be made in does not exist",
                io::ErrorKind::NotFound => "there is no such directory",
                _ => return Err(Error::io("open", &name, None, source)),
            };
            Err(Error::NotADatabase { path: name, what: what.to_owned() })
        }
    }
}

/// Locks the lock file, which names the owner's process.
pub(crate) fn own(directory: &dyn Directory) -> Result<Lock> {
    directory.lock(LOCK).map_err(|error| refused(directory, LOCK, error))
}

pub(crate) fn hold(directory: &dyn Directory, sharing: Sharing) -> Result<Lock> {
    directory.lock_existing(PAGES, sharing).map_err(|error| match error {
        LockError::Busy { .. } if sharing == Sharing::Shared => {
            Error::Busy { path: directory.name(), owner_process: directory.lock_owner(LOCK) }
        }
        LockError::Busy { .. } => Error::Busy { path: directory.name(), owner_process: None },
        error => refused(directory, PAGES, error),
    })
}

fn refused(directory: &dyn Directory, file: &str, error: LockError) -> Error {
    match error {
        LockError::Busy { owner_process } => Error::Busy { path: directory.name(), owner_process },
        LockError::Io(source) => Error::io("lock", &within(directory, file), None, source),
    }
}

/// Refuses a directory with a backup, or with an unfinished backup, restore or repair.
///
/// A database created there would look like the unfinished one.
pub(crate) fn refuse_unfinished(directory: &dyn Directory) -> Result<()> {
    let unfinished = |file: &str, what: &str| {
        format!(
            "{file} is left of a {what} that was never finished; empty the directory and run the {what} again"
        )
    };
    let backup = "it holds a backup; make a database of it with `terrace restore`".to_owned();
    let there = |files: &[&'static str]| -> Result<Option<&'static str>> {
        for &file in files {
            if exists(directory, file)? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    };
    let what = if there(&[BACKUP_PAGES])?.is_some() {
        backup
    } else if let Some(file) = there(&[PARTIAL_PAGES, PARTIAL_LOG])? {
        unfinished(file, "backup")
    } else if let Some(file) = there(&[RESTORING_PAGES, RESTORING_LOG])? {
        unfinished(file, "restore")
    } else if let Some(file) = there(&UNFINISHED_REPAIR)? {
        unfinished(file, "repair")
    } else {
        return Ok(());
    };
    Err(Error::NotADatabase { path: directory.name(), what })
}
