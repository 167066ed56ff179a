//! Statistics of a mount by HTTP: a live page, Prometheus, JSON.

use std::net::SocketAddr;
use std::time::Instant;

use serde::Serialize;
use terrace_common::escape;
use terrace_common::failure::{Failure, Outcome};
use terrace_mount::{MountRelation, MountStats, Watch};

use super::accept::Accepting;
use super::http::{Answer, Server};
use crate::args::MountArgs;

const PAGE: &str = include_str!("metrics.html");
/// The page needs nothing from elsewhere.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
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

/// A page that is not served yet.
pub(super) struct Page(Server);

/// What the requests are answered from.
struct Answers {
    watch: Watch,
    begun: Instant,
    source: String,
    mountpoint: String,
}

impl Page {
    /// Listens at an address; port 0 takes a free one.
    pub fn bind(address: SocketAddr) -> Outcome<Page> {
        let failed = |error| Failure::Work(format!("statistics cannot be served at {address}: {error}"));
        Server::bind(address).map(Page).map_err(failed)
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Answers requests in a thread until the result is dropped.
    pub fn serve(self, watch: Watch, args: &MountArgs) -> Outcome<Accepting> {
        let answers = Answers {
            watch,
            begun: Instant::now(),
            source: escape::path(&args.source).to_string(),
            mountpoint: escape::path(&args.mountpoint).to_string(),
        };
        let serving = self.0.serve(move |path| answers.page(path));
        serving.map_err(|error| Failure::Work(format!("starting a thread: {error}")))
    }
}

impl Answers {
    fn page(&self, path: &str) -> Answer {
        match path {
            "/" => Answer::new(200, "text/html; charset=utf-8", PAGE).with("Content-Security-Policy", POLICY),
            "/metrics" => {
                let text = self.watch.stats().prometheus(&self.watch.relations());
                Answer::new(200, "text/plain; version=0.0.4; charset=utf-8", text)
            }
            "/stats.json" => match self.json() {
                Ok(text) => Answer::new(200, "application/json", text).with("Cache-Control", "no-store"),
                Err(error) => Answer::text(500, format!("{error}\n")),
            },
            _ => Answer::text(404, "there are /, /metrics and /stats.json\n"),
        }
    }

    fn json(&self) -> serde_json::Result<String> {
        let mut relations = self.watch.relations();
        relations.truncate(RELATIONS_MAX);
        serde_json::to_string(&Snapshot {
            source: &self.source,
            mountpoint: &self.mountpoint,
            seconds: self.begun.elapsed().as_secs_f64(),
            stats: self.watch.stats(),
            relations,
        })
    }
}
