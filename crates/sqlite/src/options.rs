//! The URI parameters of the VFS; `docs/sqlite.md` lists them.
//!
//! SQLite itself uses the names `cache` and `mode`.

use std::path::PathBuf;
use std::time::Duration;

use terrace_cache::CacheTrust;
use terrace_io::{Limits, units};

/// Minimum and default size of a cache, in bytes.
const CACHE_BYTES_MIN: u64 = 1 << 20;
const CACHE_BYTES_DEFAULT: u64 = 256 << 20;

/// A block: less is a slip of the unit.
const WRITE_BUDGET_MIN: u64 = 4096;

/// Maximum latency: a second.
const LATENCY_US_MAX: u64 = 1_000_000;

/// The parameters that need `block_cache`.
const OF_CACHE: [&str; 8] = [
    "block_cache_size",
    "block_cache_policy",
    "block_cache_mode",
    "block_cache_io",
    "block_cache_hints",
    "block_cache_trust",
    "block_cache_write_budget",
    "block_cache_latency_us",
];

/// Names without their beginning. SQLite's own `mode` and `cache` are none.
const WITHOUT_BEGIN: [(&str, &str); 8] = [
    ("size", "block_cache_size"),
    ("capacity", "block_cache_size"),
    ("policy", "block_cache_policy"),
    ("io", "block_cache_io"),
    ("hints", "block_cache_hints"),
    ("trust", "block_cache_trust"),
    ("writebudget", "block_cache_write_budget"),
    ("dir", "block_cache"),
];

/// Short names, like which a name of another VFS may be that differs in two letters.
const SHORT: [&str; 2] = ["time", "trace"];

/// The others.
const OTHERS: [&str; 2] = ["latency_us", "operations_per_second"];

/// How the names of the cache's parameters begin, in letters alone.
const BEGIN: &str = "blockcache";

/// Letters in which a misspelt name differs.
const SLIPS_MAX: usize = 2;

/// Parameters of a URI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Options {
    pub cache: Option<CacheOptions>,
    pub trace: Option<PathBuf>,
    pub limits: Option<Slowness>,
}

/// Parameters of the cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CacheOptions {
    pub directory: PathBuf,
    pub bytes: u64,
    pub policy: Option<String>,
    pub around: bool,
    /// Through the kernel's page cache.
    pub buffered: bool,
    /// Hides queries from the policy.
    pub no_hints: bool,
    /// Simulated latency of the cache device.
    pub latency_us: Option<u64>,
    /// How much is trusted after a kill.
    pub trust: CacheTrust,
    /// Bytes per day that may be written to the cache device.
    pub write_budget: Option<u64>,
}

/// Simulated speed of the database's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slowness {
    pub latency_us: u64,
    pub operations_per_second: Option<u64>,
    /// Time is counted, not waited for.
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

/// Refuses names that begin like ours, or differ from one of ours in few letters, and the words of
/// ours without their beginning, such as `cache_size`.
///
/// Other names may be those of another VFS below.
///
/// # Errors
/// A sentence with the name and the known ones.
pub(crate) fn check_names(names: impl IntoIterator<Item = String>) -> Result<(), String> {
    let is_known = |name: &str| {
        name == "block_cache" || OF_CACHE.contains(&name) || OTHERS.contains(&name) || SHORT.contains(&name)
    };
    let like = |name: &str| {
        let near = |ours: &str, slips: usize| strsim::damerau_levenshtein(name, ours) <= slips;
        let is_begin = |ours: &str| name.len() >= SHORT[0].len() && ours.starts_with(name);
        let long = OTHERS.into_iter().find(|ours| near(ours, SLIPS_MAX) || is_begin(ours));
        long.or_else(|| SHORT.into_iter().find(|ours| near(ours, 1)))
    };
    for name in names.into_iter().filter(|name| !is_known(name)) {
        let letters = name.to_ascii_lowercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "");
        let begin = letters.get(..BEGIN.len()).unwrap_or(&letters);
        if strsim::damerau_levenshtein(begin, BEGIN) <= SLIPS_MAX {
            // SQLite's log cuts a message after 210 bytes.
            let endings = OF_CACHE.map(|known| known.trim_start_matches("block_cache"));
            return Err(format!(
                "unknown parameter {name:?}; of the cache are block_cache, alone or with {}",
                endings.join(" ")
            ));
        }
        let ours = like(&name).or_else(|| {
            let last = letters.trim_start_matches("block").trim_start_matches("cache");
            WITHOUT_BEGIN.into_iter().find(|(word, _)| *word == last).map(|(_, ours)| ours)
        });
        if let Some(ours) = ours {
            return Err(format!("unknown parameter {name:?}; did you mean {ours}?"));
        }
    }
    Ok(())
}

impl Options {
    /// Reads the parameters by name.
    ///
    /// # Errors
    /// A sentence that names the parameter.
    pub fn parse(parameter: impl Fn(&str) -> Option<String>) -> Result<Options, String> {
        let latency_of = |name: &str| match parameter(name).map(|text| number(name, &text)).transpose()? {
            Some(latency) if latency > LATENCY_US_MAX => {
                Err(format!("{name} is {latency}; the maximum is {LATENCY_US_MAX}"))
            }
            latency => Ok(latency),
        };
        let cache = match parameter("block_cache") {
            Some(directory) if directory.is_empty() => {
                return Err("block_cache is empty; it must name a directory".to_owned());
            }
            Some(directory) => Some(CacheOptions {
                directory: PathBuf::from(directory),
                bytes: parameter("block_cache_size").map_or(Ok(CACHE_BYTES_DEFAULT), |text| size(&text))?,
                write_budget: parameter("block_cache_write_budget").map(|text| budget(&text)).transpose()?,
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
                if let Some(name) = OF_CACHE.iter().find(|name| parameter(name).is_some()) {
                    return Err(format!("{name} needs block_cache"));
                }
                None
            }
        };
        let latency_us = latency_of("latency_us")?;
        let operations = parameter("operations_per_second");
        let operations = operations.map(|text| number("operations_per_second", &text)).transpose()?;
        if operations == Some(0) {
            return Err("operations_per_second must be at least 1".to_owned());
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

/// Whether a parameter is the second word; the default is the first.
fn second_of(
    name: &str,
    parameter: impl Fn(&str) -> Option<String>,
    words: [&str; 2],
) -> Result<bool, String> {
    match parameter(name) {
        None => Ok(false),
        Some(text) if text == words[0] => Ok(false),
        Some(text) if text == words[1] => Ok(true),
        Some(other) => Err(format!("{name} is {other:?}; expected {} or {}", words[0], words[1])),
    }
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{name} is {text:?}; expected a whole number"))
}

/// Bytes per day.
fn budget(text: &str) -> Result<u64, String> {
    match units::size(text).map_err(|wrong| format!("block_cache_write_budget: {wrong}"))? {
        bytes if bytes >= WRITE_BUDGET_MIN => Ok(bytes),
        _ => Err(format!(
            "block_cache_write_budget is {text:?}; it is in bytes per day, such as 50GiB, and at least 4KiB"
        )),
    }
}

/// Size of a cache, in bytes.
fn size(text: &str) -> Result<u64, String> {
    match units::size(text).map_err(|wrong| format!("block_cache_size: {wrong}"))? {
        bytes if bytes >= CACHE_BYTES_MIN => Ok(bytes),
        _ => Err(format!("block_cache_size is {text:?}; the minimum is 1MiB")),
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
        assert_eq!(cache.write_budget, None);
        let budget = parse("block_cache=/c&block_cache_write_budget=1.5GiB").expect("correct parameters");
        assert_eq!(budget.cache.expect("a cache").write_budget, Some(3 << 29));
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
            ("block_cache=/c&block_cache_write_budget=much", "block_cache_write_budget"),
            ("block_cache=/c&block_cache_write_budget=50", "50GiB"),
            ("block_cache_write_budget=1GiB", "block_cache_write_budget needs block_cache"),
            ("latency_us=x", "latency_us"),
            ("latency_us=1000001", "latency_us"),
            ("operations_per_second=0", "operations_per_second"),
        ] {
            let why = parse(query).expect_err(query);
            assert!(why.contains(named), "{query}: {why}");
        }
    }

    #[test]
    fn an_unknown_name_of_the_cache_is_refused_with_the_known_ones() {
        let check = |name: &str| check_names([name.to_owned()]);
        let of_sqlite = [
            "vfs",
            "cache",
            "mode",
            "psow",
            "nolock",
            "immutable",
            "modeof",
            "key",
            "_busy_timeout",
            "block",
        ];
        for name in
            of_sqlite.into_iter().chain(["trace", "time", "block_cache"]).chain(OTHERS).chain(OF_CACHE)
        {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for (name, ours) in [
            ("latency_u", "latency_us"),
            ("latency", "latency_us"),
            ("operation_per_second", "operations_per_second"),
            ("trac", "trace"),
            ("tme", "time"),
            ("size", "block_cache_size"),
            ("cache_size", "block_cache_size"),
            ("cachesize", "block_cache_size"),
            ("block_size", "block_cache_size"),
            ("capacity", "block_cache_size"),
            ("policy", "block_cache_policy"),
            ("hints", "block_cache_hints"),
            ("Cache_Policy", "block_cache_policy"),
            ("write_budget", "block_cache_write_budget"),
        ] {
            assert!(check(name).expect_err(name).ends_with(&format!("did you mean {ours}?")));
        }
        for name in [
            "block_cache_sise",
            "block_cache_",
            "block_cachesize",
            "Block_Cache",
            "block_cache_Size",
            "blockcache",
            "block-cache-size",
            "blokc_cache",
        ] {
            let why = check(name).expect_err(name);
            assert!(why.contains(&format!("{name:?}")), "{why}");
            let endings = OF_CACHE.map(|word| word.trim_start_matches("block_cache"));
            assert!(endings.iter().all(|ending| why.contains(ending)), "{why}");
            assert!("terrace: ".len() + why.len() < 210, "SQLite's log cuts it: {why}");
        }
    }
}
