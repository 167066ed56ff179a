//! The parameters of a database's URI that are ours.
//!
//! | parameter               | meaning                                                                                   |
//! |-------------------------|--------------------------------------------------------------------------------------------|
//! | `block_cache`           | the directory of the cache, on the faster device; one for each database                    |
//! | `block_cache_size`      | how much it holds, in bytes or with `KiB`, `MiB`, `GiB`; 256 MiB by default                |
//! | `block_cache_policy`    | admission and eviction, as `terrace simulate` names them                                   |
//! | `block_cache_mode`      | `through` (the default) or `around`                                                        |
//! | `block_cache_io`        | `direct` (the default), around the kernel's page cache, or `buffered`, through it          |
//! | `block_cache_hints`     | `on` (the default) or `off`: whether a policy that goes by queries is told of them         |
//! | `block_cache_trust`     | `auto` (the default), `written` or `synced`: how much of the cache is believed after a kill |
//! | `trace`                 | a file to record the accesses in, `.pgt` or `.csv`                                         |
//! | `latency_us`            | makes the database's device slower: microseconds of each transfer and sync                 |
//! | `operations_per_second` | makes it slower: transfers that pass in a second                                           |
//! | `block_cache_latency_us`| makes the cache's device slower: microseconds of each transfer and sync                    |
//! | `time`                  | `waited` (the default) or `counted`: whether the slowness is waited for                    |
//!
//! `cache` and `mode` would be the obvious names, but are parameters of SQLite's own.

use std::path::PathBuf;
use std::time::Duration;

use terrace_block::{CacheTrust, Limits, units};

/// The least and the default size of a cache, in bytes.
const CACHE_BYTES_MIN: u64 = 1 << 20;
const CACHE_BYTES_DEFAULT: u64 = 256 << 20;

/// The longest latency that can be asked for: a second.
const LATENCY_US_MAX: u64 = 1_000_000;

/// What a URI asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Options {
    pub cache: Option<CacheOptions>,
    pub trace: Option<PathBuf>,
    pub limits: Option<Slowness>,
}

/// What it asks of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CacheOptions {
    pub directory: PathBuf,
    pub bytes: u64,
    pub policy: Option<String>,
    pub around: bool,
    /// Read through the kernel's page cache.
    pub buffered: bool,
    /// The policy is not told of queries.
    pub no_hints: bool,
    /// How slow its device is to be.
    pub latency_us: Option<u64>,
    /// How much of it is believed after its process died.
    pub trust: CacheTrust,
}

/// How slow the database's device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slowness {
    pub latency_us: u64,
    pub operations_per_second: Option<u64>,
    /// Time passes by being counted.
    pub is_counted: bool,
}

impl From<Slowness> for Limits {
    fn from(slowness: Slowness) -> Limits {
        Limits {
            latency: Duration::from_micros(slowness.latency_us),
            operations_per_second: slowness.operations_per_second,
            ..Limits::default()
        }
    }
}

impl Options {
    /// Reads the parameters by their names.
    ///
    /// # Errors
    /// A sentence that names the parameter.
    pub fn parse(parameter: impl Fn(&str) -> Option<String>) -> Result<Options, String> {
        let latency_of = |name: &str| match parameter(name).map(|text| number(name, &text)).transpose()? {
            Some(latency) if latency > LATENCY_US_MAX => {
                Err(format!("{name} is {latency}; it must not be more than {LATENCY_US_MAX}"))
            }
            latency => Ok(latency),
        };
        let cache = match parameter("block_cache") {
            Some(directory) if directory.is_empty() => {
                return Err("block_cache is empty; it names a directory".to_owned());
            }
            Some(directory) => Some(CacheOptions {
                directory: PathBuf::from(directory),
                bytes: parameter("block_cache_size").map_or(Ok(CACHE_BYTES_DEFAULT), |text| size(&text))?,
                policy: parameter("block_cache_policy"),
                around: second_of("block_cache_mode", &parameter, ["through", "around"])?,
                buffered: second_of("block_cache_io", &parameter, ["direct", "buffered"])?,
                no_hints: second_of("block_cache_hints", &parameter, ["on", "off"])?,
                latency_us: latency_of("block_cache_latency_us")?,
                trust: parameter("block_cache_trust").map_or(Ok(CacheTrust::Auto), |text| {
                    text.parse().map_err(|wrong| format!("block_cache_trust: {wrong}"))
                })?,
            }),
            None => {
                let without = [
                    "block_cache_size",
                    "block_cache_policy",
                    "block_cache_mode",
                    "block_cache_io",
                    "block_cache_hints",
                    "block_cache_latency_us",
                    "block_cache_trust",
                ];
                if let Some(name) = without.into_iter().find(|name| parameter(name).is_some()) {
                    return Err(format!("{name} is given without block_cache"));
                }
                None
            }
        };
        let latency_us = latency_of("latency_us")?;
        let operations = parameter("operations_per_second");
        let operations = operations.map(|text| number("operations_per_second", &text)).transpose()?;
        if operations == Some(0) {
            return Err("operations_per_second must not be 0".to_owned());
        }
        let is_counted = second_of("time", &parameter, ["waited", "counted"])?;
        let is_slow = latency_us.is_some() || operations.is_some() || is_counted;
        let limits = is_slow.then(|| Slowness {
            latency_us: latency_us.unwrap_or(0),
            operations_per_second: operations,
            is_counted,
        });
        Ok(Options { cache, trace: parameter("trace").map(PathBuf::from), limits })
    }
}

/// Whether a parameter is the second of two words; the first is meant where it is not given.
fn second_of(
    name: &str,
    parameter: impl Fn(&str) -> Option<String>,
    words: [&str; 2],
) -> Result<bool, String> {
    match parameter(name) {
        None => Ok(false),
        Some(text) if text == words[0] => Ok(false),
        Some(text) if text == words[1] => Ok(true),
        Some(other) => Err(format!("{name} is {other:?}; {} and {} are known", words[0], words[1])),
    }
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{name} is {text:?}, which is no whole number"))
}

/// A size of a cache, in bytes.
fn size(text: &str) -> Result<u64, String> {
    match units::size(text).map_err(|wrong| format!("block_cache_size: {wrong}"))? {
        bytes if bytes >= CACHE_BYTES_MIN => Ok(bytes),
        _ => Err(format!("block_cache_size is {text:?}; it must be at least 1MiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Options, String> {
        let pairs: Vec<_> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        Options::parse(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn parameters_are_read() {
        assert_eq!(parse("vfs=terrace"), Ok(Options::default()));
        let options = parse("block_cache=/c&block_cache_size=3MiB&trace=t.pgt&latency_us=5")
            .expect("correct parameters");
        let cache = options.cache.expect("a cache");
        assert_eq!((cache.bytes, cache.around, cache.policy), (3 << 20, false, None));
        assert_eq!(cache.trust, CacheTrust::Auto);
        let synced = parse("block_cache=/c&block_cache_trust=synced").expect("correct parameters");
        assert_eq!(synced.cache.expect("a cache").trust, CacheTrust::Synced);
        assert_eq!(options.trace, Some(PathBuf::from("t.pgt")));
        let fraction = parse("block_cache=/c&block_cache_size=1.5MiB").expect("a size as in every flag");
        assert_eq!(fraction.cache.expect("a cache").bytes, 3 << 19);
        assert_eq!(Limits::from(options.limits.expect("limits")).latency, Duration::from_micros(5));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (query, named) in [
            ("block_cache=", "block_cache"),
            ("block_cache_size=5MiB", "block_cache_size"),
            ("block_cache=/c&block_cache_size=5TB", "block_cache_size"),
            ("block_cache=/c&block_cache_size=64MB", "did you mean MiB?"),
            ("block_cache=/c&block_cache_size=1KiB", "block_cache_size"),
            ("block_cache=/c&block_cache_size=99999999999GiB", "block_cache_size"),
            ("block_cache=/c&block_cache_mode=back", "block_cache_mode"),
            ("block_cache=/c&block_cache_io=slow", "block_cache_io"),
            ("block_cache=/c&block_cache_trust=all", "block_cache_trust"),
            ("block_cache_trust=synced", "block_cache_trust"),
            ("latency_us=x", "latency_us"),
            ("latency_us=1000001", "latency_us"),
            ("operations_per_second=0", "operations_per_second"),
        ] {
            let why = parse(query).expect_err(query);
            assert!(why.contains(named), "{query}: {why}");
        }
    }
}
