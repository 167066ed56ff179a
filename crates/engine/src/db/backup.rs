//! Backups: made while the database is used, checked, and made a database again.
//!
//! A backup is a directory with two files under names of its own, so that nothing takes it for a database:
//!
//! | name             | what it is                                                        |
//! |------------------|--------------------------------------------------------------------|
//! | `pages.backup`   | the images of all pages, packed, with their page table             |
//! | `log.backup`     | the stretch of the log that makes one state of them                |
//! | `*.partial`      | the same, of a backup that was never finished                      |
//! | `*.restoring`    | a database that is being made of a backup                          |
//!
//! The log gets its name first, the page file last, each made durable before the next step: a directory that holds
//! `pages.backup` holds all of a backup. How it is copied is described in `buffer/backup.rs`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rand::RngExt;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use serde::Serialize;
use terrace_block::{Directory, FileDirectory, OpenMode};

use super::Db;
use super::core::{catalog_root, garbage_root};
use super::open::{LOG, NEW_LOG, NEW_PAGES, PAGES, exists, own, within};
use super::repair::UNFINISHED_REPAIR;
use super::verify::damages::Damages;
use crate::buffer::Files;
use crate::buffer::backup::{Archive, Tally, Visitor};
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::index::{check_page, children, leaf_entries};
use crate::stats::{Damage, VerifyReport};

const BACKUP_PAGES: &str = "pages.backup";
const BACKUP_LOG: &str = "log.backup";
const PARTIAL_PAGES: &str = "pages.partial";
const PARTIAL_LOG: &str = "log.partial";
const RESTORING_PAGES: &str = "pages.restoring";
const RESTORING_LOG: &str = "log.restoring";

/// What was backed up, or restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BackupReport {
    /// Pages copied.
    pub pages: u64,
    /// Bytes of the page file that was written.
    pub page_file_bytes: u64,
    /// Bytes of log copied, which opening the restored database replays.
    pub log_bytes: u64,
}

/// A backup, opened to be checked or restored. It is only read.
///
/// ```
/// use terrace::{Backup, Db};
///
/// let place = tempfile::tempdir().unwrap();
/// let db = Db::builder().dram(4 << 20).open(place.path().join("db"))?;
/// let table = db.create_table("t")?;
/// table.put("key", "before")?;
/// db.backup(place.path().join("backup"))?;
/// table.put("key", "after")?;
///
/// let backup = Backup::open(place.path().join("backup"))?;
/// assert!(backup.check()?.is_ok());
/// backup.restore(place.path().join("restored"))?;
/// let restored = Db::builder().dram(4 << 20).open(place.path().join("restored"))?;
/// assert_eq!(restored.open_table("t")?.get("key")?.as_deref(), Some(&b"before"[..]));
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Debug)]
pub struct Backup {
    archive: Archive,
}

impl Db {
    /// Copies the database to `destination`, a directory that is empty or does not exist, while it is used. What
    /// [`Backup::restore`] makes of the copy is the state after some commit: every commit acknowledged before this call
    /// is in it, and with any commit all that were made before that one.
    ///
    /// Readers and writers go on. Memory: about a megabyte, and a bit for each page. While the last part is copied the
    /// log is kept; commits that then find it full wait, as they do for a checkpoint. Backups of one database run one
    /// after the other.
    ///
    /// # Errors
    /// [`Error::Io`], also if `destination` is not empty, or the destination is so slow that writers would have to wait
    /// too long; [`Error::Full`], [`Error::Corrupt`] if a page is damaged, [`Error::Memory`], [`Error::Poisoned`]. The
    /// database goes on as if nothing had been begun; what was written is removed.
    ///
    /// See [`Backup`] for an example.
    pub fn backup(&self, destination: impl AsRef<Path>) -> Result<BackupReport> {
        self.shared.check()?;
        let (directory, made) = new_directory(destination.as_ref())?;
        self.backup_to(&directory).inspect_err(|_| {
            if made {
                // Best effort, and only if it is empty.
                let _ = std::fs::remove_dir(destination.as_ref());
            }
        })
    }

    /// As [`Db::backup`], into a directory of any kind that holds no database and no backup.
    ///
    /// # Errors
    /// As [`Db::backup`].
    pub fn backup_to(&self, destination: &dyn Directory) -> Result<BackupReport> {
        self.shared.check()?;
        refuse_used(destination)?;
        let _alone = self.shared.backups.lock();
        let pages = create(destination, PARTIAL_PAGES)?;
        let log =
            create(destination, PARTIAL_LOG).inspect_err(|_| drop(destination.remove(PARTIAL_PAGES)))?;
        let files = Files::new(pages, log);
        let copied = self.copy(destination, files);
        if copied.is_err() {
            // The page file's name goes last: it is what says that the log is a remainder.
            for file in [BACKUP_PAGES, BACKUP_LOG, PARTIAL_LOG, PARTIAL_PAGES] {
                let _ = destination.remove(file);
            }
        }
        copied
    }

    fn copy(&self, destination: &dyn Directory, files: Files) -> Result<BackupReport> {
        sync(destination)?;
        let mut backup = self.shared.pool.begin_backup(files)?;
        let copied = loop {
            if let Some(copied) = backup.step()? {
                break copied;
            }
        };
        drop(backup);
        publish(destination, [(PARTIAL_LOG, BACKUP_LOG), (PARTIAL_PAGES, BACKUP_PAGES)])?;
        Ok(BackupReport {
            pages: copied.images,
            page_file_bytes: copied.file_bytes,
            log_bytes: copied.log_bytes,
        })
    }
}

impl Backup {
    /// Opens the backup in the directory `path`.
    ///
    /// # Errors
    /// [`Error::NotADatabase`], also for a backup that was never finished; [`Error::Version`], [`Error::Corrupt`],
    /// [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Backup> {
        let path = path.as_ref();
        let directory = FileDirectory::open(path).map_err(|source| {
            let path = path.display().to_string();
            match source.kind() {
                io::ErrorKind::NotFound => {
                    Error::NotADatabase { path, what: "there is no such directory".into() }
                }
                io::ErrorKind::NotADirectory => {
                    Error::NotADatabase { path, what: "it is not a directory".into() }
                }
                _ => Error::io("open", &path, None, source),
            }
        })?;
        Backup::open_in(&directory)
    }

    /// Opens the backup in a directory of any kind.
    ///
    /// # Errors
    /// As [`Backup::open`].
    pub fn open_in(directory: &dyn Directory) -> Result<Backup> {
        if !exists(directory, BACKUP_PAGES)? {
            let what = match exists(directory, PARTIAL_PAGES)? {
                true => "it holds a backup that was never finished; make another one",
                false => "it holds no backup",
            };
            return Err(Error::NotADatabase { path: directory.name(), what: what.to_owned() });
        }
        let open = |file: &str| {
            directory.open(file, OpenMode::Read).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => {
                    Error::NotADatabase { path: directory.name(), what: format!("it holds no {file}") }
                }
                _ => Error::io("open", &within(directory, file), None, source),
            })
        };
        let files = Files::new(open(BACKUP_PAGES)?, open(BACKUP_LOG)?);
        Ok(Backup { archive: Archive::open(files)? })
    }

    /// Whether the directory `path` holds a backup, finished or not, and so no database.
    pub fn is_at(path: impl AsRef<Path>) -> bool {
        [BACKUP_PAGES, PARTIAL_PAGES].iter().any(|file| path.as_ref().join(file).exists())
    }

    /// Reads all of the backup and checks it: every page against its checksums, and that it is a page; every record of
    /// the log. The entries counted are those of tables, as [`Db::verify`] counts them, as far as they are in the pages: what the
    /// log would change about them is not counted.
    ///
    /// # Errors
    /// Failures to look. Damage is in the report.
    pub fn check(&self) -> Result<VerifyReport> {
        let mut inspector = Inspector { entries: 0, damages: Damages::default() };
        let pages_checked = self.archive.check(&mut inspector)?.pages;
        // No page says which tree it is of. So the entries of the two that are no tables are taken off in the end.
        let mut not_of_tables = 0;
        let class = self.archive.class();
        self.archive.descend(&[catalog_root(class), garbage_root(class)], &mut |page| {
            check_page(page)?;
            not_of_tables += leaf_entries(page);
            Ok(children(page))
        })?;
        let entries_checked = inspector.entries.saturating_sub(not_of_tables);
        let (errors, more_errors) = inspector.damages.into_parts();
        Ok(VerifyReport { pages_checked, entries_checked, errors, more_errors })
    }

    /// Makes a database of the backup in the directory `path`, which is empty or does not exist. Everything is checked
    /// while it is copied. The first opening replays the log.
    ///
    /// The database has a timeline of its own: its files are not taken for those of the original, or of another one that
    /// was restored from the same backup.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with file and page for a backup that is damaged, [`Error::Io`], also if the directory is not
    /// empty; [`Error::Full`], [`Error::Busy`]. Nothing that would be taken for a database is left.
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<BackupReport> {
        let (directory, made) = new_directory(path.as_ref())?;
        self.restore_to(&directory).inspect_err(|_| {
            if made {
                // Best effort; the lock's file is the last thing in it.
                let _ = directory.remove(super::open::LOCK);
                let _ = std::fs::remove_dir(path.as_ref());
            }
        })
    }

    /// As [`Backup::restore`], into a directory of any kind that holds no database and no backup.
    ///
    /// # Errors
    /// As [`Backup::restore`].
    pub fn restore_to(&self, directory: &dyn Directory) -> Result<BackupReport> {
        refuse_used(directory)?;
        // First of all: whatever ends this from now on leaves what says so.
        let pages = create(directory, RESTORING_PAGES)?;
        let restored = own(directory).and_then(|_lock| {
            // Somebody may have made a database here since the first look.
            refuse(directory, &[PAGES, LOG, NEW_PAGES, NEW_LOG])?;
            let files = Files::new(pages, create(directory, RESTORING_LOG)?);
            sync(directory)?;
            // Not 0, which is none, nor 1, with which databases begin.
            let timeline = UnwrapErr(SysRng).random_range(2..u64::MAX);
            let Tally { pages, log_bytes } = self.archive.restore(&files, timeline, &mut Refuser)?;
            let page_file_bytes = files.pages.len();
            let published = publish(directory, [(RESTORING_LOG, LOG), (RESTORING_PAGES, PAGES)]);
            published.inspect_err(|_| {
                for file in [PAGES, LOG] {
                    let _ = directory.remove(file);
                }
            })?;
            Ok(BackupReport { pages, page_file_bytes, log_bytes })
        });
        if restored.is_err() {
            for file in [RESTORING_LOG, RESTORING_PAGES] {
                let _ = directory.remove(file);
            }
        }
        restored
    }
}

/// Counts entries, and collects what is wrong.
struct Inspector {
    entries: u64,
    damages: Damages,
}

impl Visitor for Inspector {
    fn image(&mut self, _id: PageId, image: &[u8]) -> Result<(), String> {
        check_page(image)?;
        self.entries += leaf_entries(image);
        Ok(())
    }

    fn damage(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Corrupt { file, page, what } => self.damages.add(Damage { file, page, what }),
            other => return Err(other),
        }
        Ok(())
    }
}

/// Copies nothing that is wrong.
struct Refuser;

impl Visitor for Refuser {
    fn image(&mut self, _id: PageId, image: &[u8]) -> Result<(), String> {
        check_page(image)
    }

    fn damage(&mut self, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Opens a directory that is to be filled, and makes it if need be; whether it was made.
pub(crate) fn new_directory(path: &Path) -> Result<(FileDirectory, bool)> {
    let name = path.display().to_string();
    let made = match std::fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            None => false,
            Some(_) => return Err(Error::io("write into", &name, None, not_empty())),
        },
        Err(source) if source.kind() == io::ErrorKind::NotFound => true,
        Err(source) => return Err(Error::io("open", &name, None, source)),
    };
    match FileDirectory::create(path) {
        Ok(directory) => Ok((directory, made)),
        Err(source) => Err(Error::io("create", &name, None, source)),
    }
}

fn not_empty() -> io::Error {
    io::Error::new(io::ErrorKind::DirectoryNotEmpty, "it is not empty; name a new or an empty directory")
}

/// Refuses a directory that holds what would be written over or mixed up.
pub(crate) fn refuse_used(directory: &dyn Directory) -> Result<()> {
    refuse(
        directory,
        &[PAGES, LOG, NEW_PAGES, NEW_LOG, BACKUP_PAGES, BACKUP_LOG, PARTIAL_PAGES, PARTIAL_LOG],
    )?;
    refuse(directory, &[RESTORING_PAGES, RESTORING_LOG])?;
    refuse(directory, &UNFINISHED_REPAIR)
}

fn refuse(directory: &dyn Directory, files: &[&str]) -> Result<()> {
    for file in files {
        if exists(directory, file)? {
            return Err(Error::io("write into", &directory.name(), None, not_empty()));
        }
    }
    Ok(())
}

/// Refuses a directory without a database in which something else was made, or was begun and never finished: a database that
/// was made there now would look like what that was to be.
pub(crate) fn refuse_unfinished(directory: &dyn Directory) -> Result<()> {
    let unfinished = |file: &str, what: &str| {
        format!(
            "{file} there is of a {what} that was never finished; empty the directory and run the {what} again"
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

pub(crate) fn create(directory: &dyn Directory, file: &str) -> Result<Arc<dyn terrace_block::BlockDevice>> {
    let device = directory.open(file, OpenMode::CreateNew);
    device.map_err(|source| Error::io("create", &within(directory, file), None, source))
}

fn sync(directory: &dyn Directory) -> Result<()> {
    directory.sync().map_err(|source| Error::io("sync", &directory.name(), None, source))
}

/// Gives files the names they are known by, one after the other, each durable before the next.
pub(crate) fn publish(directory: &dyn Directory, names: [(&str, &str); 2]) -> Result<()> {
    for (from, to) in names {
        let renamed = directory.rename(from, to);
        renamed.map_err(|source| Error::io("rename", &within(directory, from), None, source))?;
        sync(directory)?;
    }
    Ok(())
}
