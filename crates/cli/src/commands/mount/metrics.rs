//! Statistics of a mount by HTTP: a live page, Prometheus, JSON.

use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use serde::Serialize;
use terrace_common::escape;
use terrace_common::failure::{Failure, Outcome};
use terrace_mount::{MountRelation, MountStats, Watch};
use tiny_http::{Header, Method, Request, Response, Server};

use crate::args::MountArgs;

const PAGE: &str = include_str!("metrics.html");
/// Relations in the JSON, those with most misses.
const RELATIONS_MAX: usize = 100;

/// What the page asks for once a second.
#[derive(Serialize)]
struct Snapshot<'a> {
    source: &'a str,
    mountpoint: &'a str,
    /// Since the page is served.
    seconds: f64,
    stats: MountStats,
    relations: Vec<MountRelation>,
}

/// An address that listens.
pub(super) struct Page {
    server: Arc<Server>,
    address: SocketAddr,
}

/// A page that is served until it is dropped.
pub(super) struct Served {
    page: Page,
    thread: Option<JoinHandle<()>>,
}

/// What the requests are answered from.
struct Answers {
    watch: Watch,
    begun: Instant,
    source: String,
    mountpoint: String,
}

fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).expect("a constant header")
}

impl Page {
    /// Listens at an address; port 0 takes a free one.
    pub fn bind(address: SocketAddr) -> Outcome<Page> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::Work(format!("statistics cannot be served at {address}: {error}"))
        };
        let server = Server::http(address).map_err(|error| failed(&error))?;
        let address = server.server_addr().to_ip().ok_or_else(|| failed(&"it has no port"))?;
        Ok(Page { server: Arc::new(server), address })
    }

    /// Answers requests in a thread.
    pub fn serve(self, watch: Watch, args: &MountArgs) -> Outcome<Served> {
        let answers = Answers {
            watch,
            begun: Instant::now(),
            source: escape::path(&args.source).to_string(),
            mountpoint: escape::path(&args.mountpoint).to_string(),
        };
        let server = Arc::clone(&self.server);
        let serve = move || {
            // Ends when the server is unblocked.
            for request in server.incoming_requests() {
                answers.answer(request);
            }
        };
        let thread = thread::Builder::new().name("statistics".to_owned()).spawn(serve);
        let thread = thread.map_err(|error| Failure::Work(format!("starting a thread: {error}")))?;
        Ok(Served { page: self, thread: Some(thread) })
    }
}

impl Served {
    pub fn address(&self) -> SocketAddr {
        self.page.address
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.page.server.unblock();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by its thread.
            let _ = thread.join();
        }
    }
}

impl Answers {
    fn answer(&self, request: Request) {
        let response = match (request.method(), request.url().split('?').next()) {
            (Method::Get | Method::Head, Some(path)) => self.page(path),
            _ => plain(405, "only GET\n").with_header(header("Allow", "GET, HEAD")),
        };
        // The program that asked may have gone.
        let _ = request.respond(response);
    }

    fn page(&self, path: &str) -> Response<Cursor<Vec<u8>>> {
        match path {
            "/" => Response::from_string(PAGE)
                .with_header(header("Content-Type", "text/html; charset=utf-8"))
                .with_header(header(
                    "Content-Security-Policy",
                    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
                )),
            "/metrics" => Response::from_string(self.watch.stats().prometheus(&self.watch.relations()))
                .with_header(header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")),
            "/stats.json" => {
                let mut relations = self.watch.relations();
                relations.truncate(RELATIONS_MAX);
                let (source, mountpoint) = (&self.source, &self.mountpoint);
                let (stats, seconds) = (self.watch.stats(), self.begun.elapsed().as_secs_f64());
                let snapshot = Snapshot { source, mountpoint, seconds, stats, relations };
                match serde_json::to_string(&snapshot) {
                    Ok(text) => Response::from_string(text)
                        .with_header(header("Content-Type", "application/json"))
                        .with_header(header("Cache-Control", "no-store")),
                    Err(error) => plain(500, &format!("{error}\n")),
                }
            }
            _ => plain(404, "there are /, /metrics and /stats.json\n"),
        }
    }
}

fn plain(code: u16, text: &str) -> Response<Cursor<Vec<u8>>> {
    Response::from_string(text).with_status_code(code)
}
