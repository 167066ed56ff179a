//! Answers one request of each connection by HTTP, for pages that few programs read.
//!
//! The bytes of a head and the time of a connection are limited, and bodies are ignored. So no
//! client costs much memory, and the others wait for it only for a moment.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use httparse::Status;

use super::accept::{Accepting, End, PAUSE, accept_all, is_pause};

const HEAD_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// Time of a connection. An answer to a program that waits takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// Reads of what a program sent behind its head.
const REST_READS_MAX: usize = 16;

/// What a program gets.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    /// Further headers, by name and value.
    pub headers: Vec<(&'static str, &'static str)>,
    pub body: String,
}

impl Answer {
    pub fn new(status: u16, kind: &'static str, body: impl Into<String>) -> Answer {
        Answer { status, headers: vec![("Content-Type", kind)], body: body.into() }
    }

    pub fn text(status: u16, body: impl Into<String>) -> Answer {
        Answer::new(status, "text/plain; charset=utf-8", body)
    }

    pub fn with(mut self, name: &'static str, value: &'static str) -> Answer {
        self.headers.push((name, value));
        self
    }

    fn head(&self) -> String {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            431 => "Request Header Fields Too Large",
            _ => "Internal Server Error",
        };
        let (status, length) = (self.status, self.body.len());
        let headers = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let headers = headers.collect::<String>();
        format!(
            "HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        )
    }
}

/// An address that listens.
#[derive(Debug)]
pub(super) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    patience: Duration,
}

impl Server {
    /// Listens at an address; port 0 takes a free one.
    pub fn bind(address: SocketAddr) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Server { listener, address, patience: PATIENCE })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests of a path by `page`, in a thread.
    pub fn serve(self, page: impl Fn(&str) -> Answer + Send + 'static) -> io::Result<Accepting> {
        Accepting::start("statistics", move |end| {
            accept_all((&self.listener, "--metrics"), TcpListener::accept, end, |(stream, _)| {
                let deadline = Instant::now() + self.patience;
                // The program may have gone, which is no fault of this one.
                let _ = Connection { stream, deadline, end }.answer(&page);
            });
        })
    }
}

struct Connection<'s> {
    stream: TcpStream,
    deadline: Instant,
    end: &'s End,
}

/// A request that is answered.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    path: String,
    wants_body: bool,
}

impl Connection<'_> {
    fn answer(mut self, page: impl Fn(&str) -> Answer) -> io::Result<()> {
        self.stream.set_read_timeout(Some(PAUSE))?;
        self.stream.set_write_timeout(Some(PAUSE))?;
        let (answer, wants_body) = match self.asked()? {
            Ok(Asked { path, wants_body }) => (page(&path), wants_body),
            Err(refusal) => (refusal, true),
        };
        self.write(answer.head().as_bytes())?;
        if wants_body {
            self.write(answer.body.as_bytes())?;
        }
        self.stream.shutdown(Shutdown::Write)?;
        // Unread bytes would reset the connection, perhaps before the program has its answer.
        self.stream.set_nonblocking(true)?;
        let mut rest = [0; HEAD_BYTES_MAX];
        let is_more = |_: &usize| self.stream.read(&mut rest).is_ok_and(|read| read > 0);
        let _ = (0..REST_READS_MAX).take_while(is_more).count();
        Ok(())
    }

    /// Repeats a transfer until some bytes went, or the time is over.
    fn patiently(&mut self, mut act: impl FnMut(&mut TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        while !self.end.has_come() && Instant::now() < self.deadline {
            match act(&mut self.stream) {
                Err(error) if is_pause(&error) => {}
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                outcome => return outcome,
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.patiently(|stream| stream.write(bytes))?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    fn asked(&mut self) -> io::Result<Result<Asked, Answer>> {
        let (mut head, mut length) = ([0; HEAD_BYTES_MAX], 0);
        loop {
            length += self.patiently(|stream| stream.read(&mut head[length..]))?;
            if let Some(asked) = parse(&head[..length]) {
                return Ok(asked);
            }
        }
    }
}

/// The request, or why it is refused; none while bytes are missing.
fn parse(head: &[u8]) -> Option<Result<Asked, Answer>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    Some(match request.parse(head) {
        Ok(Status::Partial) if head.len() < HEAD_BYTES_MAX => return None,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => Err(Answer::text(
            431,
            format!("a head has at most {HEAD_BYTES_MAX} bytes, {HEADERS_MAX} lines\n"),
        )),
        Err(error) => Err(Answer::text(400, format!("{error}\n"))),
        Ok(Status::Complete(_)) => match request.method {
            Some(method @ ("GET" | "HEAD")) => {
                let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
                Ok(Asked { path: path.to_owned(), wants_body: method == "GET" })
            }
            _ => Err(Answer::text(405, "only GET\n").with("Allow", "GET, HEAD")),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn serve(patience: Duration, body: usize) -> (SocketAddr, Accepting) {
        let mut server = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        server.patience = patience;
        let address = server.address();
        let page = move |path: &str| match path {
            "/" => Answer::text(200, "page".repeat(body)).with("X-Page", "yes"),
            _ => Answer::text(404, "none\n"),
        };
        (address, server.serve(page).expect("a thread"))
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.write_all(request).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    #[test]
    fn requests_get_their_answer_whatever_they_say() {
        let (address, _serving) = serve(Duration::from_secs(60), 2);
        let whole = ask(address, b"GET /?now HTTP/1.1\r\nHost: here\r\n\r\n");
        assert_eq!(
            whole,
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\
             Content-Type: text/plain; charset=utf-8\r\nX-Page: yes\r\n\r\npagepage"
        );
        let head = ask(address, b"HEAD / HTTP/1.0\r\n\r\n");
        assert!(head.contains("Content-Length: 8\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let status = |request: &[u8]| ask(address, request).split(' ').nth(1).expect("a status").to_owned();
        let huge = "Content-Length: 18446744073709551615\r\nExpect: 100-continue\r\n\r\n";
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(3 * HEAD_BYTES_MAX));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        for (request, expected) in [
            ("GET /other HTTP/1.1\r\n\r\n", "404"),
            (&format!("GET / HTTP/1.1\r\n{huge}"), "200"),
            (&format!("POST / HTTP/1.1\r\n{huge}body"), "405"),
            ("GET / HTTP/1.1\r\nContent-Length: -1\r\nTransfer-Encoding: chunked\r\n\r\n", "200"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
            ("\u{16}\u{3}\u{1}", "400"),
            ("GET  HTTP/1.1\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nno header\r\n\r\n", "400"),
            (&long, "431"),
            (&many, "431"),
        ] {
            assert_eq!(status(request.as_bytes()), expected, "{request:.60}");
        }
        // A program that leaves in the middle of its head gets none.
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.write_all(b"GET / HT").expect("sent");
        stream.shutdown(Shutdown::Write).expect("the end");
        assert_eq!(stream.read(&mut [0; 10]).expect("the end"), 0);
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n"), "200");
    }

    #[test]
    fn a_slow_program_keeps_others_waiting_for_a_moment_only() {
        let (address, serving) = serve(Duration::from_millis(200), 16 << 20);
        let get = b"GET / HTTP/1.1\r\n\r\n";
        let silent = TcpStream::connect(address).expect("a connection");
        // It asks for 64 MiB, and reads nothing.
        let mut greedy = TcpStream::connect(address).expect("a connection");
        greedy.write_all(get).expect("sent");
        // It sends a byte at a time, until the other side ends it.
        let mut slow = TcpStream::connect(address).expect("a connection");
        while slow.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(ask(address, b"GET /other HTTP/1.1\r\n\r\n").contains("404"));
        drop((silent, greedy, serving));
    }

    #[test]
    fn the_end_waits_for_no_connection() {
        let (address, serving) = serve(Duration::from_secs(3600), 1);
        let connections: Vec<_> =
            (0..20).map(|_| TcpStream::connect(address).expect("a connection")).collect();
        drop(serving);
        assert!(TcpStream::connect(address).is_err());
        drop(connections);
    }
}
