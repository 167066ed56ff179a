//! Holding a process and the page cache it causes to a number of bytes, with a memory control group of Linux.
//!
//! One engine keeps its pages in memory of its own, another in the kernel's page cache. Only a control group counts both, so a
//! comparison with a budget puts each process into one. A group is a directory: made below the group this process is in, so
//! that whatever holds this process holds the measured ones too, given a limit, joined by writing a process id into it, and
//! removed when the process is gone.
//!
//! Version 2 of control groups lets a group have processes or limited groups below it, not both. So the memory controller must
//! be passed on already where we are, or be let pass on: at the root, or in a group with nobody in it but us, which then moves
//! into a group of its own beside the measured ones. `systemd-run --scope -p Delegate=yes COMMAND` makes such a group. Version 1
//! has no such rule, and serves where the memory controller is there.
//!
//! | | version 2 | version 1 |
//! |---|---|---|
//! | limit | `memory.max` | `memory.limit_in_bytes` |
//! | no swap | `memory.swap.max` is 0 | `memory.swappiness` is 0 |
//! | dirty pages, in `memory.stat` | `file_dirty`, `file_writeback` | `dirty`, `writeback` |
//! | killed for lack of memory | `oom_kill` in `memory.events` | `oom_kill` in `memory.oom_control` |

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::failure::{Failure, Outcome};

/// Bytes beside the budget that a process may take: its code, stacks and buffers.
pub const OVERHEAD_BYTES: u64 = 32 << 20;

/// How long the kernel may take to let go of a process that has ended, in steps of ten milliseconds.
const REMOVE_TRIES: u32 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The group that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Base {
    version: Version,
    path: PathBuf,
}

/// A control group with a limit; removed when dropped.
#[derive(Debug)]
pub struct Group {
    version: Version,
    path: PathBuf,
}

/// Where groups can be made, and what was changed for that, undone when dropped.
pub struct Ground {
    base: Base,
    /// The group this process has moved to, to leave `base` to others.
    moved: Option<PathBuf>,
}

impl Ground {
    /// Finds where this process may make groups.
    pub fn find() -> Outcome<Ground> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let bases = bases(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        let mut reasons = Vec::new();
        for base in bases {
            match Ground::prepare(base.clone()) {
                Ok(ground) => return Ok(ground),
                Err(error) => reasons.push(format!("{}: {error}", base.path.display())),
            }
        }
        if reasons.is_empty() {
            reasons.push("no file system of control groups with a memory controller is mounted".to_owned());
        }
        Err(Failure::Work(format!(
            "no memory control group can be made here ({}); run as root, or below \
             `systemd-run --scope -p Delegate=yes`, or compare with --unconfined",
            reasons.join("; ")
        )))
    }

    fn prepare(base: Base) -> io::Result<Ground> {
        let mut ground = Ground { base, moved: None };
        if ground.base.version == Version::Two {
            ground.pass_on()?;
        }
        // What cannot be made is found out now, not after the first engine has been measured.
        drop(ground.group("terrace-try", u64::MAX >> 1)?);
        Ok(ground)
    }

    /// Has the memory controller passed on to the groups below.
    fn pass_on(&mut self) -> io::Result<()> {
        let control = self.base.path.join("cgroup.subtree_control");
        let available = fs::read_to_string(self.base.path.join("cgroup.controllers"))?;
        if !available.split_whitespace().any(|name| name == "memory") {
            return Err(io::Error::other("the memory controller is not passed on to this group"));
        }
        let passed = fs::read_to_string(&control)?;
        if passed.split_whitespace().any(|name| name == "memory") || write(&control, "+memory").is_ok() {
            return Ok(());
        }
        let inside = fs::read_to_string(self.base.path.join("cgroup.procs"))?;
        if inside.split_whitespace().ne([std::process::id().to_string()]) {
            return Err(io::Error::other("other processes are in this group too"));
        }
        let aside = self.base.path.join(format!("terrace-{}", std::process::id()));
        fs::create_dir(&aside)?;
        self.moved = Some(aside.clone());
        join(&aside)?;
        write(&control, "+memory")
    }

    /// Makes a group that may hold `limit_bytes`.
    pub fn group(&self, name: &str, limit_bytes: u64) -> io::Result<Group> {
        let path = self.base.path.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Group { version: self.base.version, path };
        let (limit, swap) = match group.version {
            Version::One => ("memory.limit_in_bytes", "memory.swappiness"),
            Version::Two => ("memory.max", "memory.swap.max"),
        };
        write(&group.path.join(limit), &limit_bytes.to_string())?;
        // Not there where the kernel has no swap.
        drop(write(&group.path.join(swap), "0"));
        Ok(group)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(aside) = &self.moved {
            drop(write(&self.base.path.join("cgroup.subtree_control"), "-memory"));
            drop(join(&self.base.path));
            remove(aside);
        }
    }
}

impl Group {
    /// The directory, for [`join`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the kernel has ended a process in it for lack of memory.
    pub fn was_short(&self) -> bool {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        fs::read_to_string(self.path.join(file)).is_ok_and(|text| field(&text, "oom_kill") > 0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Moves this process into a group.
pub fn join(group: &Path) -> io::Result<()> {
    write(&group.join("cgroup.procs"), &std::process::id().to_string())
}

/// Bytes of files that were written and have not reached the disk: of a group, or of the whole machine.
pub fn dirty_bytes(group: Option<&Path>) -> Option<u64> {
    match group {
        Some(path) => {
            let text = fs::read_to_string(path.join("memory.stat")).ok()?;
            let both = |names: [&str; 2]| names.iter().map(|name| field(&text, name)).sum::<u64>();
            Some(both(["file_dirty", "file_writeback"]) + both(["dirty", "writeback"]))
        }
        None => {
            let text = fs::read_to_string("/proc/meminfo").ok()?;
            Some((field(&text, "Dirty:") + field(&text, "Writeback:")) * 1024)
        }
    }
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', '\t']));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Control files take one write, and must not be truncated or made.
fn write(file: &Path, text: &str) -> io::Result<()> {
    io::Write::write_all(&mut fs::OpenOptions::new().write(true).open(file)?, text.as_bytes())
}

fn remove(group: &Path) {
    for _ in 0..REMOVE_TRIES {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                thread::sleep(Duration::from_millis(10));
            }
            _ => return,
        }
    }
}

/// The groups of a process that may have a memory controller, version 2 first.
fn bases(mountinfo: &str, cgroup: &str) -> Vec<Base> {
    let mut found = Vec::new();
    for version in [Version::Two, Version::One] {
        let own = cgroup.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let wanted = match version {
                Version::Two => controllers.is_empty(),
                Version::One => controllers.split(',').any(|name| name == "memory"),
            };
            wanted.then_some(path)
        });
        let mounted = mountinfo.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mut kind = kind.split_whitespace();
            let fits = match (version, kind.next()?, kind.nth(1)?) {
                (Version::Two, "cgroup2", _) => true,
                (Version::One, "cgroup", options) => options.split(',').any(|name| name == "memory"),
                _ => false,
            };
            let mut place = place.split_whitespace().skip(3);
            fits.then_some((place.next()?, place.next()?))
        });
        if let (Some(own), Some((root, mount))) = (own, mounted) {
            let below = Path::new(own).strip_prefix(root).unwrap_or(Path::new("")).to_owned();
            found.push(Base { version, path: Path::new(mount).join(below) });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_both_versions() {
        let mountinfo = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let two = Base { version: Version::Two, path: "/sys/fs/cgroup/user.slice/a.scope".into() };
        assert_eq!(bases(mountinfo, "0::/user.slice/a.scope\n"), [two]);
        let mountinfo = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                         32 23 0:28 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let one = Base { version: Version::One, path: "/sys/fs/cgroup/memory/inner".into() };
        assert_eq!(bases(mountinfo, "4:memory:/box/inner\n1:cpu:/\n"), [one]);
        assert!(bases("", "").is_empty());
    }

    /// A directory with the files that the kernel would put there.
    fn pretended(files: &[(&str, &str)]) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(place.path().join(name), text).unwrap();
        }
        place
    }

    #[test]
    fn where_the_controller_is_missing_or_others_live_nothing_is_made() {
        let refused = |files: &[(&str, &str)]| {
            let place = pretended(files);
            let base = Base { version: Version::Two, path: place.path().to_owned() };
            let error = Ground::prepare(base).err().expect("it is refused").to_string();
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), files.len());
            error
        };
        let controllers = ("cgroup.controllers", "cpu io\n");
        assert!(refused(&[controllers, ("cgroup.subtree_control", "")]).contains("not passed on"));
        // The pretended kernel takes the write, so the group is next: it has no files there.
        let controllers = ("cgroup.controllers", "cpu memory\n");
        assert!(refused(&[controllers, ("cgroup.subtree_control", "memory\n")]).contains("No such file"));
    }

    #[test]
    fn counts_are_read_in_both_versions() {
        let two = pretended(&[("memory.stat", "file 9\nfile_dirty 4096\nfile_writeback 8192\n")]);
        assert_eq!(dirty_bytes(Some(two.path())), Some(12_288));
        let one = pretended(&[("memory.stat", "cache 9\ndirty 4096\nwriteback 0\ntotal_dirty 7\n")]);
        assert_eq!(dirty_bytes(Some(one.path())), Some(4096));
        assert_eq!(dirty_bytes(Some(Path::new("/no/such/group"))), None);
        assert!(dirty_bytes(None).is_some());
        let killed =
            pretended(&[("memory.events", "oom 1\noom_kill 1\n"), ("memory.oom_control", "oom_kill 0\n")]);
        let group = |version| Group { version, path: killed.path().to_owned() };
        assert!(group(Version::Two).was_short() && !group(Version::One).was_short());
    }
}
