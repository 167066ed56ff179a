//! A directory with renamed and hidden files, for a database that is not complete yet.

use std::io;
use std::sync::Arc;

use terrace_io::{BlockDevice, Directory, LockError, OpenMode, Sharing};

#[derive(Debug)]
pub(super) struct Renamed<const N: usize> {
    directory: Arc<dyn Directory>,
    names: [(&'static str, &'static str); N],
    hidden: &'static [&'static str],
}

impl<const N: usize> Renamed<N> {
    /// Maps the first of each two names to the second, and hides some files.
    pub(super) fn new(
        directory: Arc<dyn Directory>,
        names: [(&'static str, &'static str); N],
        hidden: &'static [&'static str],
    ) -> Self {
        Renamed { directory, names, hidden }
    }

    fn real<'a>(&self, file: &'a str) -> &'a str {
        self.names.iter().find(|(name, _)| *name == file).map_or(file, |(_, real)| real)
    }
}

impl<const N: usize> Directory for Renamed<N> {
    fn name(&self) -> String {
        self.directory.name()
    }

    fn open(&self, file: &str, mode: OpenMode) -> io::Result<Arc<dyn BlockDevice>> {
        self.directory.open(self.real(file), mode)
    }

    fn exists(&self, file: &str) -> io::Result<bool> {
        Ok(!self.hidden.contains(&file) && self.directory.exists(self.real(file))?)
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        self.directory.remove(self.real(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.directory.rename(self.real(from), self.real(to))
    }

    fn sync(&self) -> io::Result<()> {
        self.directory.sync()
    }

    fn lock(&self, file: &str) -> Result<Box<dyn Send + Sync>, LockError> {
        self.directory.lock(self.real(file))
    }

    fn lock_existing(&self, file: &str, sharing: Sharing) -> Result<Box<dyn Send + Sync>, LockError> {
        self.directory.lock_existing(self.real(file), sharing)
    }

    fn lock_owner(&self, file: &str) -> Option<u32> {
        self.directory.lock_owner(self.real(file))
    }
}
