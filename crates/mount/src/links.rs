//! Names of a file, each by directory and name, so that a renamed directory renames all below it.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Most hard links of a file that are remembered.
const NAMES_MAX: usize = 4;
/// Most directories of a path. Changes past the mount could make two directories each other's
/// parent.
const DEPTH_MAX: usize = 1024;

#[derive(Debug)]
struct Name {
    directory: Weak<Links>,
    name: OsString,
}

/// The known names of a file or directory, the one noted last at the end. The root has none.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<Vec<Name>>);

impl Name {
    fn is(&self, directory: &Arc<Links>, name: &OsStr) -> bool {
        std::ptr::eq(self.directory.as_ptr(), Arc::as_ptr(directory)) && self.name == name
    }
}

impl Links {
    pub fn new(directory: &Arc<Links>, name: &OsStr) -> Arc<Links> {
        let links = Links::default();
        links.renamed(None, (directory, name));
        Arc::new(links)
    }

    /// The path below the root by the name noted last.
    pub fn path(&self) -> PathBuf {
        let mut names = Vec::new();
        let mut next = self.latest();
        while let Some((directory, name)) = next {
            names.push(name);
            next = directory.filter(|_| names.len() < DEPTH_MAX).and_then(|directory| directory.latest());
        }
        names.iter().rev().collect()
    }

    fn latest(&self) -> Option<(Option<Arc<Links>>, OsString)> {
        self.0.lock().last().map(|latest| (latest.directory.upgrade(), latest.name.clone()))
    }

    /// Notes that a look-up found this name; returns whether another one was the latest.
    ///
    /// A rename may have come between. `count` says how many names the file has, if it still has
    /// this one. If not, that rename has noted its name; otherwise it waits for the lock.
    pub fn found(&self, directory: &Arc<Links>, name: &OsStr, count: impl FnOnce() -> Option<usize>) -> bool {
        let mut names = self.0.lock();
        if names.last().is_some_and(|latest| latest.is(directory, name)) {
            return false;
        }
        let Some(count) = count() else { return false };
        note(&mut names, directory, name);
        // More have changed past the mount.
        let gone = names.len().saturating_sub(count.max(1));
        names.drain(..gone);
        true
    }

    /// The file has the second name instead of the first.
    pub fn renamed(&self, from: Option<(&Arc<Links>, &OsStr)>, (directory, name): (&Arc<Links>, &OsStr)) {
        let mut names = self.0.lock();
        if let Some((directory, name)) = from {
            names.retain(|known| !known.is(directory, name));
        }
        note(&mut names, directory, name);
    }

    /// The file has lost a name; returns whether that was the latest of several. The only one stays
    /// for those that have the file open.
    pub fn removed(&self, directory: &Arc<Links>, name: &OsStr) -> bool {
        let mut names = self.0.lock();
        let found = names.iter().position(|known| known.is(directory, name));
        match found {
            Some(at) if names.len() > 1 => {
                names.remove(at);
                at == names.len()
            }
            _ => false,
        }
    }
}

fn note(names: &mut Vec<Name>, directory: &Arc<Links>, name: &OsStr) {
    names.retain(|known| !known.is(directory, name));
    if names.len() == NAMES_MAX {
        names.remove(0);
    }
    names.push(Name { directory: Arc::downgrade(directory), name: name.to_owned() });
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn named(directory: &Arc<Links>, name: &str) -> Arc<Links> {
        Links::new(directory, name.as_ref())
    }

    #[test]
    fn a_renamed_directory_renames_what_is_below() {
        let root = Arc::new(Links::default());
        let (a, other) = (named(&root, "a"), named(&root, "other"));
        let file = named(&named(&a, "b"), "f");
        // Nobody keeps `b`.
        assert_eq!((file.path().as_path(), root.path().as_path()), (Path::new("f"), Path::new("")));
        let b = named(&a, "b");
        let file = named(&b, "f");
        assert_eq!(file.path(), Path::new("a/b/f"));
        a.renamed(Some((&root, "a".as_ref())), (&other, "c".as_ref()));
        assert_eq!(file.path(), Path::new("other/c/b/f"));
    }

    #[test]
    fn a_file_of_several_names_has_the_latest_that_is_there() {
        let root = Arc::new(Links::default());
        let file = named(&root, "a");
        assert!(!file.found(&root, "a".as_ref(), || panic!("it is the latest")));
        assert!(!file.found(&root, "b".as_ref(), || None));
        assert_eq!(file.path(), Path::new("a"));
        for name in ["b", "c", "a", "d", "e"] {
            assert!(file.found(&root, name.as_ref(), || Some(5)));
            assert_eq!(file.path(), Path::new(name));
        }
        // `b` was one too many.
        for (name, is_latest, path) in
            [("b", false, "e"), ("a", false, "e"), ("e", true, "d"), ("d", true, "c"), ("c", false, "c")]
        {
            assert_eq!(file.removed(&root, name.as_ref()), is_latest, "{name}");
            assert_eq!(file.path(), Path::new(path));
        }
        file.renamed(None, (&root, "f".as_ref()));
        // Of `c`, `f` and `g`, one was renamed past the mount.
        assert!(file.found(&root, "g".as_ref(), || Some(2)) && file.removed(&root, "g".as_ref()));
        assert!(file.path() == Path::new("f") && !file.removed(&root, "f".as_ref()));
    }

    #[test]
    fn directories_that_hold_each_other_have_a_path() {
        let root = Arc::new(Links::default());
        let a = named(&root, "a");
        let b = named(&a, "b");
        assert!(a.found(&b, "a".as_ref(), || Some(1)));
        assert!(b.path().ends_with("a/b"));
    }
}
