//! The folders of a run, and the mount, which the test starts, ends and kills.
//!
//! `lower` is the slow directory, `mount` the mountpoint. The cache, logs and sockets are outside.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{self, Daemon, PATIENCE};
use crate::{Checked, text_of, variable};

/// Smaller than the database, so that the cache replaces blocks.
const CACHE_SIZE: &str = "16MiB";

pub struct Mounted {
    folder: TempDir,
    is_plain: bool,
    mount: Option<(Daemon, Receiver<String>)>,
    /// What the last mount said when it ended.
    pub statistics: String,
}

impl Mounted {
    /// Makes the folders; `data` below belongs to `user`.
    pub fn new(user: &str, is_plain: bool) -> Self {
        // The server's user must pass.
        let open = Permissions::from_mode(0o755);
        let folder =
            tempfile::Builder::new().prefix("servers").permissions(open).tempdir().expect("a folder");
        for name in ["lower", "mount", "lower/data", "socket", "scratch"] {
            fs::create_dir(folder.path().join(name)).expect("the folder is new");
        }
        for name in ["lower/data", "socket", "scratch"] {
            process::give(&folder.path().join(name), user);
        }
        let closed = Permissions::from_mode(0o700);
        fs::set_permissions(folder.path().join("lower/data"), closed).expect("the folder is ours");
        Self { folder, is_plain, mount: None, statistics: String::new() }
    }

    /// Whether the environment asks for no mount.
    pub fn is_plain() -> bool {
        variable("TERRACE_NO_MOUNT").is_some_and(|value| value != "0")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The database's files as they are below.
    pub fn lower_data(&self) -> PathBuf {
        self.path("lower/data")
    }

    /// The database's files as the server sees them.
    pub fn data(&self) -> PathBuf {
        if self.is_plain { self.lower_data() } else { self.path("mount/data") }
    }

    /// Starts the command, unless it runs, and waits until it says that it serves.
    pub fn start(&mut self) -> Checked {
        if self.is_plain {
            return Ok(());
        }
        if self.mount.is_some() {
            return self.check_running();
        }
        self.detach()?;
        let size = variable("TERRACE_MOUNT_CACHE").unwrap_or_else(|| CACHE_SIZE.to_owned());
        let mut command = process::bound(env!("CARGO_BIN_EXE_terrace"));
        command.arg("mount").args([self.path("lower"), self.path("mount")]);
        command.arg("--cache").arg(format!("file:{},{size}", text_of(&self.path("cache"))));
        command.args(["--cache-always", "--allow-other"]).stdout(Stdio::piped());
        command.args(variable("TERRACE_MOUNT_FLAGS").unwrap_or_default().split_whitespace());
        let mut daemon = Daemon::start(&mut command, &self.path("mount.log"))?;
        let output = BufReader::new(daemon.child().stdout.take().expect("piped"));
        let (sender, lines) = channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        match lines.recv_timeout(PATIENCE) {
            Ok(line) if line.starts_with("mounted") => {}
            other => {
                return Err(format!("{command:?} said {other:?} instead of \"mounted\"\n{}", self.log()));
            }
        }
        self.mount = Some((daemon, lines));
        Ok(())
    }

    /// Ends the mount in order, by a signal or by `umount`.
    pub fn end(&mut self, by_signal: bool) -> Checked {
        let Some((mut daemon, lines)) = self.mount.take() else { return Ok(()) };
        if by_signal {
            daemon.end(Signal::TERM).map_err(|wrong| format!("mount: {wrong}\n{}", self.log()))?;
        } else {
            process::run(Command::new("umount").arg(self.path("mount")), "")?;
            let status = process::wait(daemon.child(), PATIENCE)?;
            if !status.success() {
                return Err(format!("mount: {status} after umount\n{}", self.log()));
            }
        }
        self.statistics = lines.iter().map(|line| format!("{line}\n")).collect();
        match self.is_attached() {
            true => Err("the mount has ended and left its mountpoint mounted".to_owned()),
            false => Ok(()),
        }
    }

    /// The mountpoint stays, and answers ENOTCONN.
    pub fn kill(&mut self) {
        if let Some((mut daemon, _)) = self.mount.take() {
            daemon.kill();
        }
    }

    /// A mount that ended by itself is a finding.
    pub fn check_running(&mut self) -> Checked {
        let Some((daemon, _)) = &mut self.mount else { return Ok(()) };
        if daemon.is_running() {
            return Ok(());
        }
        let status = daemon.child().wait().expect("our child");
        Err(format!("the mount ended by itself: {status}\n{}", self.log()))
    }

    fn is_attached(&self) -> bool {
        let (mounts, point) = (fs::read_to_string("/proc/self/mountinfo"), text_of(&self.path("mount")));
        mounts.expect("/proc is mounted").lines().any(|line| line.split(' ').nth(4) == Some(&point))
    }

    fn detach(&self) -> Checked {
        while self.is_attached() {
            process::run(Command::new("umount").arg("-l").arg(self.path("mount")), "")?;
        }
        Ok(())
    }

    /// Compares each file below with the same file of the mount. No server may run.
    pub fn check_same(&self) -> Checked {
        if self.is_plain {
            return Ok(());
        }
        let mut command = Command::new("diff");
        command.args(["-r", "--no-dereference"]).args([self.lower_data(), self.data()]);
        process::run(&mut command, "").map(drop).map_err(|wrong| format!("not the bytes below: {wrong}"))
    }

    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.path("mount.log")).unwrap_or_default();
        format!("log of the mount:\n{}", process::last_lines(&log, 20))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.kill();
        let _ = self.detach();
        if variable("TERRACE_KEEP").is_some() {
            self.folder.disable_cleanup(true);
            println!("files are left in {}", self.folder.path().display());
        }
    }
}

/// How an older copy of the database comes back below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBack {
    /// New files, whose inode numbers may be those of the removed ones.
    Anew,
    /// Old bytes in the inodes that are there.
    InPlace,
    /// The copy itself, under the old name. Its files do not even change their ctime.
    Renamed,
}

impl PutBack {
    pub const ALL: [Self; 3] = [Self::Anew, Self::InPlace, Self::Renamed];

    /// Makes `data` the same as `aside`, which is gone afterwards.
    pub fn run(self, aside: &Path, data: &Path) -> Checked {
        match self {
            Self::Anew => {
                fs::remove_dir_all(data).map_err(|error| format!("{}: {error}", data.display()))?;
                copy(aside, data)?;
            }
            Self::InPlace => {
                remove_others(aside, data).map_err(|error| format!("{}: {error}", data.display()))?;
                copy(aside, data)?;
            }
            Self::Renamed => {
                fs::remove_dir_all(data).map_err(|error| format!("{}: {error}", data.display()))?;
                return fs::rename(aside, data).map_err(|error| format!("{}: {error}", aside.display()));
            }
        }
        fs::remove_dir_all(aside).map_err(|error| format!("{}: {error}", aside.display()))
    }
}

/// Copies a folder with owners and times.
pub fn copy(from: &Path, to: &Path) -> Checked {
    process::run(Command::new("cp").args(["-a", "-T"]).args([from, to]), "").map(drop)
}

/// Removes the entries of `data` that `aside` lacks.
fn remove_others(aside: &Path, data: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        let (here, there) = (entry.path(), aside.join(entry.file_name()));
        match (here.is_dir(), there.is_dir()) {
            (true, true) => remove_others(&there, &here)?,
            (true, false) => fs::remove_dir_all(here)?,
            (false, false) if there.exists() => {}
            (false, _) => fs::remove_file(here)?,
        }
    }
    Ok(())
}
