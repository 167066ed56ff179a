//! Keeps benchmarks, which replace tables, out of other databases.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use terrace_common::failure::{Failure, Outcome};
use terrace_io::{Directory, FileDirectory, OpenMode};

/// The file that tells a directory of the benchmarks.
const MARK: &str = "bench.terrace";
/// What a new file system has in its root.
const OF_FILE_SYSTEM: &str = "lost+found";

/// Makes the directory `store` one of the benchmarks, if it is new or empty.
///
/// # Errors
/// If it has files, but no benchmark made them.
pub(super) fn take(store: Option<&Path>) -> Outcome {
    let Some(store) = store else { return Ok(()) };
    let has_others = match fs::read_dir(store) {
        Ok(entries) => entries.flatten().any(|entry| entry.file_name() != OF_FILE_SYSTEM),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(Failure::file("reading", store, error)),
    };
    let failed = |error| Failure::file("making a directory for the benchmark", store, error);
    if !has_others {
        let made =
            FileDirectory::create(store).and_then(|directory| directory.open(MARK, OpenMode::CreateNew));
        return made.map(drop).map_err(failed);
    }
    match store.join(MARK).try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Work(format!(
            "{} has files that no benchmark made, and this one replaces tables; name a new or an empty directory",
            terrace_common::escape::path(store)
        ))),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_without_other_files_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        take(None).unwrap();
        for store in ["new", "empty", "disk", "new"] {
            fs::create_dir_all(path.join("empty")).unwrap();
            fs::create_dir_all(path.join("disk").join(OF_FILE_SYSTEM)).unwrap();
            take(Some(&path.join(store))).unwrap();
            assert!(path.join(store).join(MARK).exists());
            // The database of the benchmark.
            fs::write(path.join(store).join("pages.terrace"), "").unwrap();
        }
        fs::create_dir(path.join("mine")).unwrap();
        fs::write(path.join("mine/pages.terrace"), "").unwrap();
        for (store, why) in
            [("mine", "no benchmark made"), ("no/parent", "making"), ("mine/pages.terrace", "reading")]
        {
            let error = take(Some(&path.join(store))).unwrap_err();
            assert!(error.code() == 1 && error.to_string().contains(why), "{error}");
        }
        assert_eq!(fs::read_dir(path.join("mine")).unwrap().count(), 1);
    }
}
