//! The socket of `--control`, by which programs say which queries run.
//!
//! A line has the number of a query and the files that it reads. An empty line ends the list of
//! all queries that run now. A client that goes has none.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use rustix::fs::Mode;
use terrace_common::escape;
use terrace_common::failure::{Failure, Outcome};
use terrace_mount::{QueryHints, Watch};

use super::accept::{Accepting, End, PAUSE, accept_all, is_pause};

const LINE_BYTES_MAX: usize = 64 << 10;
const LIST_BYTES_MAX: usize = 1 << 20;
const CLIENTS_MAX: usize = 16;

/// A socket that listens, and is removed in the end.
pub(super) struct Control {
    path: PathBuf,
    /// Device and inode, so that a socket of another mount stays.
    file: (u64, u64),
    listener: UnixListener,
}

fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Removes a socket that a killed mount left.
fn remove_old(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            _ => Err(io::ErrorKind::AddrInUse.into()),
        },
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn failure(path: &Path, error: &io::Error) -> Failure {
    Failure::Work(format!("cannot listen at {}: {error}", escape::path(path)))
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    remove_old(path)?;
    // Nobody else may connect, not even for a moment. No other thread makes files yet.
    let umask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(umask);
    let listener = listener?;
    // So that the thread sees the end.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Control {
    /// Listens at `path`, without answers yet.
    pub fn bind(path: &Path) -> Outcome<Control> {
        let listener = listen(path).map_err(|error| failure(path, &error))?;
        let file = file_at(path).map_err(|error| failure(path, &error))?;
        Ok(Control { path: path.to_owned(), file, listener })
    }

    /// Passes on what clients say, to the mount of `watch`, until the result is dropped.
    pub fn serve(self, watch: Watch) -> Outcome<Accepting> {
        let path = self.path.clone();
        // The thread owns the socket, which is removed when the last client has gone.
        let accepting = Accepting::start("control", move |end| self.accept(&watch, end));
        accepting.map_err(|error| failure(&path, &error))
    }

    fn accept(&self, watch: &Watch, end: &End) {
        let mut clients: Vec<JoinHandle<()>> = Vec::new();
        accept_all((&self.listener, "--control"), UnixListener::accept, end, |(mut stream, _)| {
            clients.retain(|client| !client.is_finished());
            if clients.len() >= CLIENTS_MAX {
                let _ = writeln!(stream, "there are {CLIENTS_MAX} clients already");
                return;
            }
            let (hints, end) = (watch.query_hints(), end.clone());
            let talk = move || talk(&stream, &hints, &end);
            match thread::Builder::new().name("queries".to_owned()).spawn(talk) {
                Ok(client) => clients.push(client),
                Err(error) => tracing::warn!(%error, "no thread for a client of --control"),
            }
        });
        for client in clients {
            let _ = client.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if file_at(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn query(line: &str) -> Result<(u64, Vec<PathBuf>), String> {
    let mut words = line.split_ascii_whitespace();
    let number = words.next().unwrap_or_default();
    let number = number.parse().map_err(|_| format!("{number:?} is not the number of a query"))?;
    Ok((number, words.map(PathBuf::from).collect()))
}

/// The next line, without its end; `None` at the end of input or of the mount.
fn next_line(input: &mut impl BufRead, end: &End) -> Result<Option<String>, String> {
    let mut line = Vec::new();
    // Not `read_until`, which goes on as long as some bytes come.
    while !end.has_come() {
        let found = match input.fill_buf() {
            Ok([]) => return Ok(None),
            Ok(found) => found,
            Err(error) if is_pause(&error) => continue,
            Err(error) => return Err(error.to_string()),
        };
        let line_end = found.iter().position(|&byte| byte == b'\n');
        let taken = line_end.map_or(found.len(), |at| at + 1);
        line.extend_from_slice(&found[..taken]);
        input.consume(taken);
        if line.len() > LINE_BYTES_MAX {
            return Err(format!("a line has more than {LINE_BYTES_MAX} bytes"));
        }
        if line_end.is_some() {
            return Ok(Some(String::from_utf8_lossy(&line).trim().to_owned()));
        }
    }
    Ok(None)
}

fn listen_to(stream: &UnixStream, hints: &QueryHints, end: &End) -> Result<(), String> {
    // It may have been inherited from the listener.
    let prepared = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(PAUSE)));
    prepared.map_err(|error| error.to_string())?;
    let mut input = BufReader::new(stream);
    let (mut running, mut bytes) = (Vec::new(), 0);
    while let Some(line) = next_line(&mut input, end)? {
        bytes += line.len();
        if bytes > LIST_BYTES_MAX {
            return Err(format!("a list has more than {LIST_BYTES_MAX} bytes"));
        }
        if line.is_empty() {
            hints.replace(&running);
            (running, bytes) = (Vec::new(), 0);
        } else {
            running.push(query(&line)?);
        }
    }
    Ok(())
}

fn talk(stream: &UnixStream, hints: &QueryHints, end: &End) {
    if let Err(what) = listen_to(stream, hints, end) {
        // Whether the client listens is its own affair; it may not stop this thread.
        let _ = stream.set_write_timeout(Some(PAUSE)).and_then(|()| writeln!(&mut &*stream, "{what}"));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn lines_name_queries_and_their_files() {
        let files = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(query("17 base/5/16384 a.ibd"), Ok((17, files(&["base/5/16384", "a.ibd"]))));
        assert_eq!(query("17"), Ok((17, files(&[]))));
        assert!(query("-1 a").unwrap_err().contains("\"-1\""));
        assert!(query("").is_err());
    }

    #[test]
    fn lines_have_an_end_and_a_limit() {
        let end = End::default();
        let mut input = Cursor::new(b"1 a\n\n2 b".to_vec());
        assert_eq!(next_line(&mut input, &end), Ok(Some("1 a".to_owned())));
        assert_eq!(next_line(&mut input, &end), Ok(Some(String::new())));
        // Without its end a line may be a part of one.
        assert_eq!(next_line(&mut input, &end), Ok(None));
        let mut long = Cursor::new(vec![b'1'; LINE_BYTES_MAX + 1]);
        assert!(next_line(&mut long, &end).unwrap_err().contains("65536 bytes"));
        end.come();
        assert_eq!(next_line(&mut Cursor::new(b"1 a\n".to_vec()), &end), Ok(None));
    }
}
