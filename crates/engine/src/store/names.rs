//! Names of files in a database's directory, in questions and errors.

use terrace_io::Directory;

use crate::error::{Error, Result};

pub(crate) fn exists(directory: &dyn Directory, file: &str) -> Result<bool> {
    directory.exists(file).map_err(|source| Error::io("look for", &within(directory, file), None, source))
}

pub(crate) fn within(directory: &dyn Directory, file: &str) -> String {
    format!("{}/{file}", directory.name())
}
