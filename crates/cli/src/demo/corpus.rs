//! Records for the demo: chunks of the text, header and binary files of this machine.
//!
//! A record is a chunk of a file. Its key is the path and the chunk number, its value up to
//! [`CHUNK_BYTES`] of content. Directories are walked in name order, so one machine always gives
//! the same records. Symbolic links, devices and unreadable files are skipped. No file gives more
//! than [`FILE_BYTES_MAX`], so that a few large files do not dominate.
//!
//! If too little is found (a bare container), records of the same sizes are generated, and
//! [`Corpus::source`] says so.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use terrace_common::failure::{Failure, Outcome};

/// Bytes per chunk; the last chunk of a file is shorter.
pub const CHUNK_BYTES: usize = 1024;
/// Bytes used per file.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Longest path used, so that keys fit the engine's limit.
const PATH_BYTES_MAX: usize = 900;
/// Records required for a real corpus.
const RECORDS_MIN: u64 = 100_000;
/// Depth limit of the walk.
const DEPTH_MAX: usize = 32;
/// Default directories, in order of preference.
const ROOTS: [&str; 4] = ["/usr/share", "/usr/include", "/usr/lib", "/usr"];
/// Vocabulary of generated records.
const WORDS: [&str; 16] = [
    "page", "frame", "latch", "log", "tier", "fault", "commit", "index", "leaf", "record", "store", "cache",
    "write", "read", "ring", "epoch",
];

/// A source of records. Iterating twice gives the same records while the files stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Corpus {
    /// Files below these directories.
    Files(Vec<PathBuf>),
    /// Generated from a seed.
    Generated(u64),
}

impl Corpus {
    /// The corpus in `directory`, or else of this machine; `bytes` is the wanted amount.
    pub fn find(directory: Option<&Path>, bytes: u64, seed: u64) -> Outcome<Corpus> {
        if let Some(directory) = directory {
            fs::read_dir(directory).map_err(|error| Failure::file("reading --data", directory, error))?;
            let corpus = Corpus::Files(vec![directory.to_owned()]);
            let has_records = corpus.records(1).next().is_some();
            return match has_records {
                true => Ok(corpus),
                false => Err(Failure::Work(format!(
                    "no files to load below {}; name a directory with readable files, or leave --data out",
                    terrace_common::escape::path(directory)
                ))),
            };
        }
        let roots: Vec<PathBuf> =
            ROOTS.iter().map(PathBuf::from).filter(|root| fs::read_dir(root).is_ok()).collect();
        let wanted = RECORDS_MIN.min(bytes / CHUNK_BYTES as u64);
        // File sizes suffice here; the load reads the contents.
        let mut records = 0;
        let enough = Files::new(&roots).any(|path| {
            let length = fs::symlink_metadata(&path).map_or(0, |found| found.len().min(FILE_BYTES_MAX));
            records += length.div_ceil(CHUNK_BYTES as u64);
            records >= wanted
        });
        Ok(if enough { Corpus::Files(roots) } else { Corpus::Generated(seed) })
    }

    /// Description of the source.
    pub fn source(&self) -> String {
        match self {
            Corpus::Files(roots) => {
                let names: Vec<String> =
                    roots.iter().map(|root| terrace_common::escape::path(root)).collect();
                format!("files below {}", names.join(", "))
            }
            Corpus::Generated(seed) => format!("generated text (too few files here), seed {seed}"),
        }
    }

    /// Whether the records come from files.
    pub fn is_real(&self) -> bool {
        matches!(self, Corpus::Files(_))
    }

    /// Records with keys and values of about `bytes` in total, or fewer if the files end.
    pub fn records(&self, bytes: u64) -> Box<dyn Iterator<Item = (Vec<u8>, Vec<u8>)> + '_> {
        let mut left = bytes;
        let records: Box<dyn Iterator<Item = (Vec<u8>, Vec<u8>)>> = match self {
            Corpus::Files(roots) => Box::new(Files::new(roots).flat_map(|path| chunks(&path))),
            Corpus::Generated(seed) => Box::new(generated(*seed)),
        };
        Box::new(records.take_while(move |(key, value)| {
            let had_room = left > 0;
            left = left.saturating_sub((key.len() + value.len()) as u64);
            had_room
        }))
    }
}

/// The key of a chunk; chunks of a file sort in order.
fn key(path: &[u8], chunk: u64) -> Vec<u8> {
    let mut key = path.to_vec();
    key.extend_from_slice(format!("#{chunk:06}").as_bytes());
    key
}

/// The chunks of a file; none if it is unreadable.
fn chunks(path: &Path) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + use<> {
    let name = path.as_os_str().as_bytes().to_vec();
    let mut content = Vec::new();
    // After a read error, use what was read.
    let _ = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut content));
    let count = content.len().div_ceil(CHUNK_BYTES);
    (0..count).map(move |chunk| {
        let start = chunk * CHUNK_BYTES;
        let end = content.len().min(start + CHUNK_BYTES);
        (key(&name, chunk as u64), content[start..end].to_vec())
    })
}

fn generated(seed: u64) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let mut random = SmallRng::seed_from_u64(seed);
    (0u64..).map(move |record| {
        let name = format!("generated/{:05}", record / 16);
        let length = random.random_range(CHUNK_BYTES / 2..=CHUNK_BYTES);
        let mut value = Vec::with_capacity(length + 8);
        while value.len() < length {
            value.extend_from_slice(WORDS[random.random_range(0..WORDS.len())].as_bytes());
            value.push(b' ');
        }
        value.truncate(length);
        (key(name.as_bytes(), record % 16), value)
    })
}

/// Regular files below the given directories, in name order. A directory nested in another given
/// one appears once.
struct Files {
    pending: Vec<(PathBuf, usize)>,
    roots: Vec<PathBuf>,
}

impl Files {
    fn new(roots: &[PathBuf]) -> Files {
        Files { pending: roots.iter().rev().map(|root| (root.clone(), 0)).collect(), roots: roots.to_vec() }
    }

    fn enter(&mut self, directory: &Path, depth: usize) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        let mut entries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        entries.sort_unstable_by(|a, b| b.cmp(a));
        let fresh = entries.into_iter().filter(|path| !self.roots.contains(path));
        self.pending.extend(fresh.map(|path| (path, depth + 1)));
    }
}

impl Iterator for Files {
    type Item = PathBuf;

    fn next(&mut self) -> Option<PathBuf> {
        while let Some((path, depth)) = self.pending.pop() {
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            // A root may be a symbolic link, as /usr/lib on some systems; links below it are
            // skipped.
            if found.is_dir() || (depth == 0 && path.is_dir()) {
                if depth < DEPTH_MAX {
                    self.enter(&path, depth);
                }
            } else if found.is_file() && found.len() > 0 && path.as_os_str().len() <= PATH_BYTES_MAX {
                return Some(path);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("b/deep")).unwrap();
        fs::write(root.join("b/deep/one"), vec![1; 2500]).unwrap();
        fs::write(root.join("a"), vec![2; 10]).unwrap();
        fs::write(root.join("b/empty"), b"").unwrap();
        fs::write(root.join("z"), vec![3; FILE_BYTES_MAX as usize + 5000]).unwrap();
        std::os::unix::fs::symlink("/", root.join("loop")).unwrap();
        directory
    }

    #[test]
    fn chunks_of_files_come_in_order_of_their_names() {
        let tree = tree();
        let corpus = Corpus::find(Some(tree.path()), 1 << 30, 0).unwrap();
        let records: Vec<_> = corpus.records(1 << 30).collect();
        let sizes: Vec<usize> = records.iter().map(|(_, value)| value.len()).collect();
        assert_eq!(sizes[..5], [10, 1024, 1024, 452, 1024]);
        assert_eq!(sizes.len(), 4 + FILE_BYTES_MAX as usize / CHUNK_BYTES);
        assert!(records.is_sorted_by(|a, b| a.0 < b.0));
        assert!(records[2].0.ends_with(b"/b/deep/one#000001"));
        assert!(corpus.records(1 << 30).eq(records));
    }

    #[test]
    fn the_size_asked_for_bounds_the_records() {
        let tree = tree();
        let corpus = Corpus::find(Some(tree.path()), 0, 0).unwrap();
        let bytes: usize = corpus.records(50_000).map(|(key, value)| key.len() + value.len()).sum();
        assert!((50_000..52_000).contains(&bytes), "{bytes}");
        assert_eq!(corpus.records(0).count(), 0);
    }

    #[test]
    fn a_directory_without_contents_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("empty")).unwrap();
        fs::write(directory.path().join("nothing"), "").unwrap();
        let error = Corpus::find(Some(directory.path()), 1 << 20, 0).unwrap_err();
        let told = format!("no files to load below {};", directory.path().display());
        assert!(error.code() == 1 && error.to_string().starts_with(&told), "{error}");
    }

    #[test]
    fn nested_roots_come_once() {
        let tree = tree();
        let roots = [tree.path().join("b"), tree.path().to_owned()];
        let mut seen = HashSet::new();
        assert!(Files::new(&roots).all(|path| seen.insert(path)));
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn generated_records_are_labelled_repeatable_and_unlike() {
        let corpus = Corpus::Generated(3);
        assert!(corpus.source().contains("generated") && !corpus.is_real());
        let records: Vec<_> = corpus.records(1 << 20).collect();
        assert!(records.len() > 1000 && records.iter().all(|(_, value)| value.len() <= CHUNK_BYTES));
        assert!(records.is_sorted_by(|a, b| a.0 < b.0));
        assert!(corpus.records(1 << 20).eq(records.iter().cloned()));
        assert!(!Corpus::Generated(4).records(1 << 20).eq(records));
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = Corpus::find(Some(Path::new("/no/such")), 1, 0).unwrap_err();
        assert!(error.to_string().contains("/no/such"));
    }
}
