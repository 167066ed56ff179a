//! Limits the memory of a process and its page cache with a Linux control group.
//!
//! Some engines keep pages in their own memory, others in the kernel's page cache. Only a control
//! group counts both, so each process of a comparison with a budget runs in one. A group is a
//! directory below this process's group, which keeps outer limits in force. It gets a limit,
//! processes join by writing their id, and it is removed after the process.
//!
//! In version 2 a group has either processes or limited subgroups. So the memory controller must
//! already be enabled for subgroups here, or be enabled: at the root, or in a group that contains
//! only us. We then move to a sibling of the measured groups. `systemd-run --scope -p Delegate=yes
//! COMMAND` makes such a group. Version 1 lacks this rule and is used if its memory controller is
//! mounted.
//!
//! | | version 2 | version 1 |
//! |---|---|---|
//! | limit | `memory.max` | `memory.limit_in_bytes` |
//! | no swap | `memory.swap.max` is 0 | `memory.swappiness` is 0 |
//! | dirty pages, in `memory.stat` | `file_dirty`, `file_writeback` | `dirty`, `writeback` |
//! | out-of-memory kills | `oom_kill` in `memory.events` | `oom_kill` in `memory.oom_control` |

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use terrace_common::failure::{Failure, Outcome};

/// Allowance beyond the budget for code, stacks and buffers.
pub const OVERHEAD_BYTES: u64 = 32 << 20;

/// Attempts, 10 ms apart, while the kernel releases an ended process.
const REMOVE_TRIES: u32 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The group of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Base {
    version: Version,
    path: PathBuf,
}

/// A control group with a limit, removed on drop.
#[derive(Debug)]
pub struct Group {
    version: Version,
    path: PathBuf,
}

/// The parent for groups, and changes to undo on drop.
pub struct Ground {
    base: Base,
    /// The group this process moved to, to empty `base`.
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
            reasons.push("no cgroup file system with a memory controller is mounted".to_owned());
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
        // Find out now whether groups work, not after measuring the first engine.
        drop(ground.group("terrace-try", u64::MAX >> 1)?);
        Ok(ground)
    }

    /// Enables the memory controller for subgroups.
    fn pass_on(&mut self) -> io::Result<()> {
        let control = self.base.path.join("cgroup.subtree_control");
        let available = fs::read_to_string(self.base.path.join("cgroup.controllers"))?;
        if !available.split_whitespace().any(|name| name == "memory") {
            return Err(io::Error::other("the memory controller is not enabled for this group"));
        }
        let passed = fs::read_to_string(&control)?;
        if passed.split_whitespace().any(|name| name == "memory") || write(&control, "+memory").is_ok() {
            return Ok(());
        }
        let inside = fs::read_to_string(self.base.path.join("cgroup.procs"))?;
        if inside.split_whitespace().ne([std::process::id().to_string()]) {
            return Err(io::Error::other("this group contains other processes"));
        }
        let aside = self.base.path.join(format!("terrace-{}", std::process::id()));
        fs::create_dir(&aside)?;
        self.moved = Some(aside.clone());
        join(&aside)?;
        write(&control, "+memory")
    }

    /// Makes a group limited to `limit_bytes`.
    pub fn group(&self, name: &str, limit_bytes: u64) -> io::Result<Group> {
        let path = self.base.path.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Group { version: self.base.version, path };
        let (limit, swap) = match group.version {
            Version::One => ("memory.limit_in_bytes", "memory.swappiness"),
            Version::Two => ("memory.max", "memory.swap.max"),
        };
        write(&group.path.join(limit), &limit_bytes.to_string())?;
        // Missing if the kernel has no swap.
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

    /// Whether the kernel killed a process in the group for lack of memory.
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

/// Dirty file bytes of a group or of the machine.
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

fn field(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', '\t']));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Control files take one write and must be neither truncated nor created.
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

/// Groups of a process that may have a memory controller, version 2 first.
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
            let (mount, kind) = line.split_once(" - ")?;
            let mut kind = kind.split_whitespace();
            let fits = match (version, kind.next()?, kind.nth(1)?) {
                (Version::Two, "cgroup2", _) => true,
                (Version::One, "cgroup", options) => options.split(',').any(|name| name == "memory"),
                _ => false,
            };
            let mut mount = mount.split_whitespace().skip(3);
            fits.then_some((mount.next()?, mount.next()?))
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

    /// A directory with mock kernel files.
    fn pretended(files: &[(&str, &str)]) -> tempfile::TempDir {
        let mount = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(mount.path().join(name), text).unwrap();
        }
        mount
    }

    #[test]
    fn where_the_controller_is_missing_or_others_live_nothing_is_made() {
        let refused = |files: &[(&str, &str)]| {
            let mount = pretended(files);
            let base = Base { version: Version::Two, path: mount.path().to_owned() };
            let error = Ground::prepare(base).err().expect("it is refused").to_string();
            assert_eq!(fs::read_dir(mount.path()).unwrap().count(), files.len());
            error
        };
        let controllers = ("cgroup.controllers", "cpu io\n");
        assert!(refused(&[controllers, ("cgroup.subtree_control", "")]).contains("not enabled"));
        // The mock accepts the write, so making the group fails next: it has no files.
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
