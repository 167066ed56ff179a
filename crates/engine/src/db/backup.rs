//! Backup, its check, and restore.
//!
//! A backup is a directory with two files:
//!
//! | name            | contents                                             |
//! |-----------------|------------------------------------------------------|
//! | `pages.backup`  | packed images of all pages, with their page table    |
//! | `log.backup`    | the part of the log that makes the images consistent |
//! | `*.partial`     | a file of an unfinished backup                       |
//! | `*.restoring`   | a database being restored                            |
//!
//! Each file gets its final name durably, the log first and the page file last. So a directory with
//! `pages.backup` holds a whole backup.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rand::RngExt;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use serde::Serialize;
use terrace_io::{Directory, FileDirectory, OpenMode};

use super::Db;
use super::files::{
    BACKUP_LOG, BACKUP_PAGES, LOCK, LOG, NEW_LOG, NEW_PAGES, PAGES, PARTIAL_LOG, PARTIAL_PAGES,
    RESTORING_LOG, RESTORING_PAGES, UNFINISHED_REPAIR, own,
};
use super::verify::damages::Damages;
use crate::backup::{Archive, Tally, Visitor};
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::index::{check_page, children, leaf_entries};
use crate::stats::{Damage, VerifyReport};
use crate::store::files::Files;
use crate::store::names::{exists, within};
use crate::txn::garbage::garbage_root;
use crate::txn::table::catalog_root;

/// Sizes of a backup or a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BackupReport {
    /// Pages copied.
    pub pages: u64,
    /// Bytes of the page file written.
    pub page_file_bytes: u64,
    /// Bytes of log copied, which the first open after a restore replays.
    pub log_bytes: u64,
}

/// A backup, open for reading.
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
    /// Copies the database to the directory `destination` while it is in use.
    ///
    /// The directory must be empty or missing. [`Backup::restore`] makes a database of the copy:
    /// the state after some commit, with every commit acknowledged before this call.
    ///
    /// Reads and writes go on. Commits wait if the log is full while its last part is copied.
    /// Memory: about a megabyte, and a bit per page. Backups of one database run one at a time.
    ///
    /// # Errors
    /// [`Error::NotEmpty`]; [`Error::Io`], also if `destination` is so slow that writers would wait
    /// too long. [`Error::Full`], [`Error::Memory`], [`Error::Poisoned`]; [`Error::Corrupt`] for a
    /// damaged page. An error removes the partial backup, and the database goes on.
    ///
    /// See [`Backup`] for an example.
    pub fn backup(&self, destination: impl AsRef<Path>) -> Result<BackupReport> {
        self.shared.check()?;
        let (directory, made) = new_directory(destination.as_ref())?;
        self.backup_to(&directory).inspect_err(|_| {
            if made {
                // Removes only an empty directory.
                let _ = std::fs::remove_dir(destination.as_ref());
            }
        })
    }

    /// Copies the database like [`Db::backup`], to any kind of directory.
    ///
    /// The directory must hold no database and no backup.
    ///
    /// # Errors
    /// Those of [`Db::backup`].
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
            // The page file goes last: its name marks the log as a remainder.
            for file in [BACKUP_PAGES, BACKUP_LOG, PARTIAL_LOG, PARTIAL_PAGES] {
                let _ = destination.remove(file);
            }
        }
        copied
    }

    fn copy(&self, destination: &dyn Directory, files: Files) -> Result<BackupReport> {
        sync(destination)?;
        let mut backup = crate::backup::Backup::begin(&self.shared.maintenance, files)?;
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
    /// [`Error::NotADatabase`], also for an unfinished one; [`Error::Version`],
    /// [`Error::Corrupt`], [`Error::Io`].
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

    /// Opens the backup in any kind of directory.
    ///
    /// # Errors
    /// Those of [`Backup::open`].
    pub fn open_in(directory: &dyn Directory) -> Result<Backup> {
        if !exists(directory, BACKUP_PAGES)? {
            let (is_unfinished, is_database) = (exists(directory, PARTIAL_PAGES)?, exists(directory, PAGES)?);
            let what = match (is_unfinished, is_database) {
                (true, _) => "it holds no backup; the one there was never finished; make another one",
                (false, true) => {
                    "it holds no backup, but a database; make a backup of it with `terrace backup`"
                }
                (false, false) => "it holds no backup; `terrace backup` makes one",
            };
            return Err(Error::NotADatabase { path: directory.name(), what: what.to_owned() });
        }
        let open = |file: &str| {
            directory.open(file, OpenMode::Read).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => Error::NotADatabase {
                    path: directory.name(),
                    what: format!("it holds no backup: {file} is missing"),
                },
                _ => Error::io("open", &within(directory, file), None, source),
            })
        };
        let files = Files::new(open(BACKUP_PAGES)?, open(BACKUP_LOG)?);
        Ok(Backup { archive: Archive::open(files)? })
    }

    /// Whether directory `path` holds a backup, finished or not.
    pub fn is_at(path: impl AsRef<Path>) -> bool {
        [BACKUP_PAGES, PARTIAL_PAGES].iter().any(|file| path.as_ref().join(file).exists())
    }

    /// Verifies the whole backup: all pages and all log records.
    ///
    /// The report counts table entries like [`Db::verify`], without changes that only the log has.
    ///
    /// # Errors
    /// Only read errors. Damage is in the report.
    pub fn check(&self) -> Result<VerifyReport> {
        let mut inspector = Inspector { entries: 0, damages: Damages::default() };
        let checked = self.archive.check(&mut inspector)?;
        // A page does not name its tree, so subtract the entries of the catalog and the garbage
        // tree.
        let mut not_of_tables = 0;
        let class = self.archive.class();
        self.archive.descend(&[catalog_root(class), garbage_root(class)], &mut |page| {
            check_page(page)?;
            not_of_tables += leaf_entries(page);
            Ok(children(page))
        })?;
        let entries_checked = inspector.entries.saturating_sub(not_of_tables);
        let (errors, more_errors) = inspector.damages.into_parts();
        Ok(VerifyReport {
            pages_checked: checked.pages,
            entries_checked,
            log_bytes_checked: checked.log_bytes,
            errors,
            more_errors,
        })
    }

    /// Restores the backup to a database in the directory `path`.
    ///
    /// The directory must be empty or missing. Everything is verified during the copy, and the
    /// first open replays the log. The database begins its own timeline, so its files never mix
    /// with those of the original or of another restore.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with file and page for a damaged backup; [`Error::NotEmpty`],
    /// [`Error::Io`], [`Error::Full`], [`Error::Busy`]. After an error no database is left behind.
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<BackupReport> {
        let (directory, made) = new_directory(path.as_ref())?;
        self.restore_to(&directory).inspect_err(|_| {
            if made {
                // Best effort; the lock file is the last file in the directory.
                let _ = directory.remove(LOCK);
                let _ = std::fs::remove_dir(path.as_ref());
            }
        })
    }

    /// Restores the backup to any kind of directory, which must hold no database and no backup.
    ///
    /// # Errors
    /// Those of [`Backup::restore`].
    pub fn restore_to(&self, directory: &dyn Directory) -> Result<BackupReport> {
        refuse_used(directory)?;
        // Comes first, so that an interrupted restore is recognised.
        let pages = create(directory, RESTORING_PAGES)?;
        let restored = own(directory).and_then(|_lock| {
            // Another process may have created a database since the first check.
            refuse(directory, &[PAGES, LOG, NEW_PAGES, NEW_LOG])?;
            let files = Files::new(pages, create(directory, RESTORING_LOG)?);
            sync(directory)?;
            // 0 means none; new databases begin with 1.
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

struct Refuser;

impl Visitor for Refuser {
    fn image(&mut self, _id: PageId, image: &[u8]) -> Result<(), String> {
        check_page(image)
    }

    fn damage(&mut self, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Opens or creates a directory to fill; the flag says that it was created.
pub(crate) fn new_directory(path: &Path) -> Result<(FileDirectory, bool)> {
    let name = path.display().to_string();
    let made = match std::fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            None => false,
            Some(_) => return Err(Error::NotEmpty { path: name }),
        },
        Err(source) if source.kind() == io::ErrorKind::NotFound => true,
        Err(source) => return Err(Error::io("open", &name, None, source)),
    };
    match FileDirectory::create(path) {
        Ok(directory) => Ok((directory, made)),
        Err(source) => Err(Error::io("create", &name, None, source)),
    }
}

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
            return Err(Error::NotEmpty { path: directory.name() });
        }
    }
    Ok(())
}

pub(crate) fn create(directory: &dyn Directory, file: &str) -> Result<Arc<dyn terrace_io::BlockDevice>> {
    let device = directory.open(file, OpenMode::CreateNew);
    device.map_err(|source| Error::io("create", &within(directory, file), None, source))
}

fn sync(directory: &dyn Directory) -> Result<()> {
    directory.sync().map_err(|source| Error::io("sync", &directory.name(), None, source))
}

/// Renames files to their final names, each durably before the next.
pub(crate) fn publish(directory: &dyn Directory, names: [(&str, &str); 2]) -> Result<()> {
    for (from, to) in names {
        let renamed = directory.rename(from, to);
        renamed.map_err(|source| Error::io("rename", &within(directory, from), None, source))?;
        sync(directory)?;
    }
    Ok(())
}
