//! Orderly end of long work after `SIGINT` or `SIGTERM`.
//!
//! The command passes signals to [`raise`]. Long work calls [`check`] between steps and ends with
//! its error, so that destructors close databases and remove temporary directories. Work inside
//! one long call runs in [`at_once`]: there a signal removes every registered [`Leftover`] and ends
//! the process. A second signal always does.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io, thread};

use crate::failure::{Failure, Outcome};

/// The first signal; 0 means none.
static RAISED: AtomicI32 = AtomicI32::new(0);
static STATE: Mutex<State> = Mutex::new(State { at_once: 0, next: 0, leftovers: Vec::new() });

/// Most passes over a directory, a millisecond apart: other threads may still create files in it,
/// or make it again.
const PASSES_MAX: u32 = 1000;
/// Passes in a row that find nothing, after which it is gone.
const PASSES_GONE: u32 = 10;

struct State {
    /// Depth of [`at_once`].
    at_once: u32,
    /// Id of the next leftover.
    next: u64,
    leftovers: Vec<(u64, Unfinished)>,
}

enum Unfinished {
    /// A directory of this process, with all in it.
    Tree(PathBuf),
    /// Files of a directory that was empty, and the directory itself if it was missing.
    Files { path: PathBuf, was_missing: bool },
    /// Anything else that must end with the process, such as children.
    Work(Box<dyn Fn() + Send>),
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails if a signal asks for the end.
///
/// # Errors
/// [`Failure::Interrupted`].
pub fn check() -> Outcome {
    match RAISED.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Failure::Interrupted(signal)),
    }
}

/// Asks for the end of the work because of `signal`, or ends the process.
///
/// If the work ends by itself, `announce` runs first: the process may end right after.
pub fn raise(signal: i32, announce: impl FnOnce()) {
    // The lock is held until the process ends, so that the work cannot end meanwhile.
    let state = state();
    let is_first = RAISED.load(Ordering::Relaxed) == 0;
    if is_first && state.at_once == 0 {
        announce();
        RAISED.store(signal, Ordering::Relaxed);
        return;
    }
    state.leftovers.iter().for_each(|(_, unfinished)| unfinished.remove());
    std::process::exit(i32::from(Failure::Interrupted(signal).code()));
}

/// Runs `work`, during which a signal ends the process.
///
/// # Errors
/// [`Failure::Interrupted`] if a signal came before, and those of `work`.
pub fn at_once<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    struct Inside;
    impl Drop for Inside {
        fn drop(&mut self) {
            state().at_once -= 1;
        }
    }
    let mut state = state();
    check()?;
    state.at_once += 1;
    drop(state);
    let _inside = Inside;
    work()
}

/// Registers something to remove if a signal ends the process. Dropping it ends the registration.
#[derive(Debug)]
pub struct Leftover(u64);

impl Leftover {
    /// The directory `path` of this process, with all in it.
    pub fn tree(path: &Path) -> Leftover {
        Leftover::register(Unfinished::Tree(path.to_owned()))
    }

    /// What the work puts into the directory `path`, if that is missing or empty now.
    pub fn files(path: &Path) -> Option<Leftover> {
        let was_missing = match fs::read_dir(path) {
            Ok(mut entries) => entries.next().map_or(Some(false), |_| None)?,
            Err(_) => !path.exists(),
        };
        let path = path.to_owned();
        Some(Leftover::register(Unfinished::Files { path, was_missing }))
    }

    /// Children or others that `end` ends. It runs once, before later registrations are removed. It
    /// may not register or drop leftovers.
    pub fn ended_by(end: impl Fn() + Send + 'static) -> Leftover {
        Leftover::register(Unfinished::Work(Box::new(end)))
    }

    fn register(unfinished: Unfinished) -> Leftover {
        let mut state = state();
        let id = state.next;
        state.next += 1;
        state.leftovers.push((id, unfinished));
        Leftover(id)
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        state().leftovers.retain(|(id, _)| *id != self.0);
    }
}

impl Unfinished {
    fn remove(&self) {
        match self {
            Unfinished::Work(end) => end(),
            _ => self.remove_between(|| thread::sleep(Duration::from_millis(1))),
        }
    }

    /// Removes it until it stays away, with a pause between any two passes.
    fn remove_between(&self, mut pause: impl FnMut()) {
        let mut gone = 0;
        for _ in 0..PASSES_MAX {
            gone = if self.was_gone() { gone + 1 } else { 0 };
            if gone == PASSES_GONE {
                return;
            }
            pause();
        }
    }

    /// Removes it; returns whether it was gone before.
    fn was_gone(&self) -> bool {
        match self {
            Unfinished::Tree(path) => is_missing(&fs::remove_dir_all(path)),
            Unfinished::Files { path, was_missing } => {
                let files: Vec<_> = fs::read_dir(path).into_iter().flatten().flatten().collect();
                files.iter().for_each(|file| drop(fs::remove_file(file.path())));
                files.is_empty() && (!was_missing || is_missing(&fs::remove_dir(path)))
            }
            Unfinished::Work(_) => true,
        }
    }
}

fn is_missing(removed: &io::Result<()>) -> bool {
    removed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_an_empty_or_missing_directory_are_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let (empty, missing) = (folder.path().join("empty"), folder.path().join("missing"));
        fs::create_dir(&empty).unwrap();
        let remove = |path: &Path| {
            let leftover = Leftover::files(path).expect("it is empty or missing");
            fs::create_dir_all(path).unwrap();
            fs::write(path.join("pages"), "x").unwrap();
            let state = state();
            state.leftovers.iter().find(|(id, _)| *id == leftover.0).unwrap().1.remove();
            drop(state);
        };
        remove(&empty);
        assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
        remove(&missing);
        assert!(!missing.exists());
        fs::write(empty.join("of the user"), "x").unwrap();
        assert!(Leftover::files(&empty).is_none());
        assert!(!state().leftovers.iter().any(|(_, unfinished)| {
            matches!(unfinished, Unfinished::Files { path, .. } if path.starts_with(folder.path()))
        }));
    }

    /// As an open does that a signal interrupts.
    #[test]
    fn a_directory_that_is_made_again_is_removed_again() {
        let folder = tempfile::tempdir().unwrap();
        for was_missing in [None, Some(true)] {
            let path = folder.path().join("database");
            fs::create_dir(&path).unwrap();
            let unfinished = match was_missing {
                None => Unfinished::Tree(path.clone()),
                Some(was_missing) => Unfinished::Files { path: path.clone(), was_missing },
            };
            let mut left = 5;
            unfinished.remove_between(|| {
                if left > 0 {
                    left -= 1;
                    fs::create_dir_all(&path).unwrap();
                    fs::write(path.join("pages"), "x").unwrap();
                }
            });
            assert_eq!(left, 0, "{was_missing:?}");
            assert!(!path.exists(), "{was_missing:?}");
        }
    }

    #[test]
    fn other_leftovers_are_ended_by_what_they_say() {
        let ends = std::sync::Arc::new(AtomicI32::new(0));
        let leftover = Leftover::ended_by({
            let ends = std::sync::Arc::clone(&ends);
            move || {
                ends.fetch_add(1, Ordering::Relaxed);
            }
        });
        let state = state();
        state.leftovers.iter().find(|(id, _)| *id == leftover.0).unwrap().1.remove();
        drop(state);
        assert_eq!(ends.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn work_without_a_signal_goes_on() {
        assert!(check().is_ok());
        assert_eq!(at_once(|| at_once(|| Ok(7))).unwrap(), 7);
    }
}
