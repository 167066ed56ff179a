//! Profiles in users' own files.
//!
//! A file is TOML with the keys of [`KEYS`]; with `base = "NAME"`, missing keys come from that
//! profile. Files are untrusted: length, keys and numbers have bounds, and an error names file, key
//! and reason.
//!
//! ```toml
//! base = "optane"
//! random_read_ns = 400
//! read_share_by_writers = [0.5, 0.3]
//! ```

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::{Table, Value};

use super::profile::{CACHE_BYTES_MAX, Profile};

const FILE_BYTES_MAX: u64 = 64 << 10;
/// Most writers that a profile distinguishes.
const SHARES_MAX: usize = 64;

/// Minimum, maximum and description of a number.
struct Bounds {
    least: f64,
    most: f64,
    unit: &'static str,
}

const LATENCY: Bounds = Bounds { least: 0.0, most: 1e9, unit: "nanoseconds" };
const BANDWIDTH: Bounds = Bounds { least: 1e-6, most: 1e6, unit: "10^9 bytes a second" };
const SHARE: Bounds = Bounds { least: 1e-3, most: 1.0, unit: "of the bandwidth" };
const PRICE: Bounds = Bounds { least: 0.0, most: 1e6, unit: "dollars a gigabyte" };
const CYCLES: Bounds = Bounds { least: 1.0, most: 1e18, unit: "cycles" };
const GRAIN: Bounds = Bounds { least: 1.0, most: 1_048_576.0, unit: "bytes" };
const CACHE: Bounds = Bounds { least: 0.0, most: CACHE_BYTES_MAX as f64, unit: "bytes" };

/// The keys of a file, with whether they are optional without a base.
const KEYS: [(&str, bool); 21] = [
    ("sequential_read_ns", false),
    ("random_read_ns", false),
    ("sequential_write_ns", false),
    ("random_write_ns", false),
    ("sequential_read_gb_s", false),
    ("random_read_gb_s", false),
    ("sequential_write_gb_s", false),
    ("random_write_gb_s", false),
    ("core_read_gb_s", true),
    ("core_write_gb_s", true),
    ("write_share_by_writers", true),
    ("read_share_by_writers", true),
    ("granularity_bytes", false),
    ("persistent", false),
    ("price_per_gb", false),
    ("endurance_cycles", false),
    ("cache_bytes", true),
    ("dram_cache_bytes", true),
    ("counts_lines", true),
    ("write_back_ns", true),
    ("fence_ns", true),
];

impl Profile {
    /// Reads a profile from a file.
    ///
    /// # Errors
    /// What the system reports, or `InvalidData` with the key and the reason; always with the file.
    pub fn load(path: &Path) -> io::Result<Profile> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
            .map_err(failed)?;
        let stem = path.file_stem().map_or(Cow::Borrowed("profile"), |stem| stem.to_string_lossy());
        let profile = Profile::parse(&text, &stem).map_err(failed)?;
        Ok(Profile { file: Some(path.into()), ..profile })
    }

    /// Parses the text of a profile file; `name` is the default name.
    ///
    /// ```
    /// use terrace_io::Profile;
    ///
    /// let slower = Profile::parse("base = 'optane'\nrandom_read_ns = 400", "slower").unwrap();
    /// assert_eq!(slower.name(), "slower");
    /// let error = Profile::parse("base = 'optane'\nrandom_read_ns = -1", "wrong").unwrap_err();
    /// assert!(error.to_string().contains("random_read_ns"));
    /// ```
    ///
    /// # Errors
    /// `InvalidData` with the key and the reason.
    pub fn parse(text: &str, name: &str) -> io::Result<Profile> {
        parse(text, name).map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
        let (latency, gb_s) = (&mut self.latency_ns, &mut self.gb_s);
        let (number, bounds) = match key {
            "sequential_read_ns" => (&mut latency[0][0], LATENCY),
            "random_read_ns" => (&mut latency[0][1], LATENCY),
            "sequential_write_ns" => (&mut latency[1][0], LATENCY),
            "random_write_ns" => (&mut latency[1][1], LATENCY),
            "sequential_read_gb_s" => (&mut gb_s[0][0], BANDWIDTH),
            "random_read_gb_s" => (&mut gb_s[0][1], BANDWIDTH),
            "sequential_write_gb_s" => (&mut gb_s[1][0], BANDWIDTH),
            "random_write_gb_s" => (&mut gb_s[1][1], BANDWIDTH),
            "write_back_ns" => (&mut self.write_back_ns, LATENCY),
            "fence_ns" => (&mut self.fence_ns, LATENCY),
            "price_per_gb" => (&mut self.price_per_gb, PRICE),
            "endurance_cycles" => (&mut self.endurance_cycles, CYCLES),
            "write_share_by_writers" => {
                self.write_share_by_writers = shares(value)?.into();
                return Ok(());
            }
            "read_share_by_writers" => {
                self.read_share_by_writers = shares(value)?.into();
                return Ok(());
            }
            "persistent" => {
                self.persistent = value.as_bool().ok_or_else(|| wrong("true or false", value))?;
                return Ok(());
            }
            "counts_lines" => {
                self.counts_lines = value.as_bool().ok_or_else(|| wrong("true or false", value))?;
                return Ok(());
            }
            "core_read_gb_s" | "core_write_gb_s" => {
                self.core_gb_s[usize::from(key == "core_write_gb_s")] = within(value, &BANDWIDTH)? as f32;
                return Ok(());
            }
            "granularity_bytes" => {
                let bytes = whole(value, &GRAIN)?;
                if !bytes.is_power_of_two() {
                    return Err(format!("{bytes} is not a power of two"));
                }
                self.granularity_bytes = bytes as u32;
                return Ok(());
            }
            "cache_bytes" => {
                self.cache_bytes = whole(value, &CACHE)? as u32;
                return Ok(());
            }
            "dram_cache_bytes" => {
                self.dram_cache_bytes = whole(value, &CACHE)? as u32;
                return Ok(());
            }
            _ => {
                let keys = KEYS.map(|(key, _)| key).join(", ");
                return Err(format!("there is no such key; there are base, name, {keys}"));
            }
        };
        *number = within(value, &bounds)?;
        Ok(())
    }
}

fn parse(text: &str, name: &str) -> Result<Profile, String> {
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("longer than {FILE_BYTES_MAX} bytes; this is no profile"));
    }
    let table: Table = text.parse().map_err(|error| format!("not TOML: {error}"))?;
    let at = |key: &str, what: String| format!("{key}: {what}");
    let string = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(Value::String(string)) => Ok(Some(string.as_str())),
        Some(other) => Err(at(key, wrong("a name in quotes", other))),
    };
    let base = string("base")?;
    let mut profile = match base {
        Some(base) => Profile::named(base).map_err(|error| at("base", error.to_string()))?,
        None => NOTHING,
    };
    profile.name = string("name")?.unwrap_or(name).to_owned().into();
    for (key, value) in table.iter().filter(|(key, _)| !["base", "name"].contains(&key.as_str())) {
        profile.set(key, value).map_err(|what| at(&key.escape_debug().to_string(), what))?;
    }
    let missing =
        KEYS.iter().find(|(key, optional)| !optional && base.is_none() && !table.contains_key(*key));
    match missing {
        Some((key, _)) => Err(at(key, "is missing, and there is no base to take it from".to_owned())),
        None => Ok(profile),
    }
}

/// The defaults without a base.
const NOTHING: Profile = Profile {
    name: Cow::Borrowed(""),
    file: None,
    latency_ns: [[0.0; 2]; 2],
    gb_s: [[1.0; 2]; 2],
    core_gb_s: [f32::INFINITY; 2],
    write_share_by_writers: Cow::Borrowed(&[]),
    read_share_by_writers: Cow::Borrowed(&[]),
    granularity_bytes: 1,
    persistent: false,
    price_per_gb: 0.0,
    endurance_cycles: 1.0,
    cache_bytes: 0,
    counts_lines: false,
    joins_writes: false,
    move_ns: 0,
    dram_cache_bytes: 0,
    page_cache: None,
    write_back_ns: 0.0,
    fence_ns: 0.0,
};

fn wrong(wanted: &str, value: &Value) -> String {
    format!("{wanted} is wanted, not a value of kind {}", value.type_str())
}

fn within(value: &Value, bounds: &Bounds) -> Result<f64, String> {
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        other => return Err(wrong("a number", other)),
    };
    let Bounds { least, most, unit } = bounds;
    // False for NaN as well.
    if (*least..=*most).contains(&number) {
        return Ok(number);
    }
    Err(format!("{number} {unit} is not between {least} and {most}"))
}

fn whole(value: &Value, bounds: &Bounds) -> Result<u64, String> {
    match value {
        // Within the bounds it is exact, and not negative.
        Value::Integer(_) => Ok(within(value, bounds)? as u64),
        other => Err(wrong("a whole number", other)),
    }
}

fn shares(value: &Value) -> Result<Vec<f64>, String> {
    let list = value.as_array().ok_or_else(|| wrong("a list of numbers for 1, 2, ... writers", value))?;
    if list.len() > SHARES_MAX {
        return Err(format!("{} numbers; at most {SHARES_MAX} are told apart", list.len()));
    }
    list.iter().map(|share| within(share, &SHARE)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::profile::{Direction, Pattern};
    use super::*;

    fn whole_file() -> String {
        "name = \"mine\"\nsequential_read_ns = 100\nrandom_read_ns = 200.5\nsequential_write_ns = 300\nrandom_write_ns = 400\n\
         sequential_read_gb_s = 10\nrandom_read_gb_s = 5\nsequential_write_gb_s = 4\nrandom_write_gb_s = 2\n\
         granularity_bytes = 256\npersistent = true\nprice_per_gb = 4.5\nendurance_cycles = 1e6\n"
            .to_owned()
    }

    #[test]
    fn a_whole_file_needs_no_base() {
        let profile = Profile::parse(&whole_file(), "file").unwrap();
        assert_eq!(profile.name(), "mine");
        assert_eq!(profile.latency_ns(Direction::Read, Pattern::Random), 200.5);
        assert_eq!(profile.latency_ns(Direction::Write, Pattern::Sequential), 300.0);
        assert_eq!(profile.gb_s(Direction::Write, Pattern::Random), 2.0);
        assert_eq!((profile.granularity_bytes(), profile.cache_bytes()), (256, 0));
        assert!(profile.is_persistent());
        assert_eq!(profile.share(Direction::Read, 5), 1.0);
        for (key, _) in KEYS.iter().filter(|(_, optional)| !optional) {
            let without: String = whole_file()
                .lines()
                .filter(|line| !line.starts_with(key))
                .fold(String::new(), |text, line| text + line + "\n");
            let error = Profile::parse(&without, "file").unwrap_err();
            assert!(error.to_string().contains(key), "{key}: {error}");
        }
    }

    #[test]
    fn a_base_gives_what_is_left_out() {
        let text =
            "base = \"optane\"\nread_share_by_writers = [0.5, 0.25]\ncache_bytes = 0\ncounts_lines = true";
        let (profile, optane) = (Profile::parse(text, "file").unwrap(), Profile::named("optane").unwrap());
        assert_eq!(profile.name(), "file");
        assert_eq!(profile.latency_ns, optane.latency_ns);
        assert_eq!(
            [0, 1, 2, 9].map(|writers| profile.share(Direction::Read, writers)),
            [1.0, 0.5, 0.25, 0.25]
        );
        assert!(profile.cache_bytes() == 0 && profile.counts_lines());
        assert_eq!((profile.write_back_ns(), profile.fence_ns()), (1.4, 62.0));
        let slow = Profile::parse("base = \"optane\"\nfence_ns = 500\nwrite_back_ns = 0", "slow").unwrap();
        assert_eq!((slow.write_back_ns(), slow.fence_ns()), (0.0, 500.0));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key() {
        for (line, words) in [
            ("base = 1", ["base", "integer"]),
            ("base = \"tape\"", ["base", "optane"]),
            ("name = true", ["name", "boolean"]),
            ("speed = 1", ["speed", "random_read_ns"]),
            ("\"\\u001b[2J\" = 1", ["\\u{1b}", "no such key"]),
            ("random_read_ns = -1", ["random_read_ns", "between"]),
            ("random_read_ns = nan", ["random_read_ns", "between"]),
            ("random_read_ns = inf", ["random_read_ns", "between"]),
            ("random_read_ns = \"fast\"", ["random_read_ns", "string"]),
            ("random_read_ns = [1]", ["random_read_ns", "array"]),
            ("random_read_gb_s = 0", ["random_read_gb_s", "between"]),
            ("granularity_bytes = 100", ["granularity_bytes", "power of two"]),
            ("granularity_bytes = 64.0", ["granularity_bytes", "whole"]),
            ("granularity_bytes = 0", ["granularity_bytes", "between"]),
            ("granularity_bytes = 2097152", ["granularity_bytes", "between"]),
            ("cache_bytes = -1", ["cache_bytes", "between"]),
            ("cache_bytes = 9223372036854775807", ["cache_bytes", "between"]),
            ("fence_ns = -1", ["fence_ns", "between"]),
            ("write_back_ns = 1e10", ["write_back_ns", "between"]),
            ("persistent = 1", ["persistent", "true or false"]),
            ("write_share_by_writers = 1", ["write_share_by_writers", "list"]),
            ("write_share_by_writers = [1, 0]", ["write_share_by_writers", "between"]),
            ("read_share_by_writers = [1.1]", ["read_share_by_writers", "between"]),
            ("endurance_cycles = 0", ["endurance_cycles", "between"]),
            ("random_read_ns = 1\nrandom_read_ns = 2", ["not TOML", "random_read_ns"]),
            ("= 3", ["not TOML", "1"]),
            ("[random_read_ns]", ["random_read_ns", "table"]),
        ] {
            let text =
                if line.starts_with("base") { line.to_owned() } else { format!("base = \"dram\"\n{line}") };
            let error = Profile::parse(&text, "file").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{line}: {error}");
        }
        let many = format!("base = \"dram\"\nread_share_by_writers = [{}]", "1,".repeat(65));
        assert!(Profile::parse(&many, "file").unwrap_err().to_string().contains("64"));
    }

    #[test]
    fn errors_of_a_file_name_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slow.toml");
        let find = || Profile::find(path.to_str().unwrap());
        assert!(find().unwrap_err().to_string().contains("slow.toml"));
        std::fs::write(&path, "base = \"dram\"\nrandom_read_ns = 1e10").unwrap();
        let error = find().unwrap_err().to_string();
        assert!(error.contains("slow.toml") && error.contains("random_read_ns"), "{error}");
        std::fs::write(&path, "base = \"dram\"\nrandom_read_ns = 1e3").unwrap();
        assert_eq!(find().unwrap().name(), "slow");
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(find().unwrap_err().to_string().contains("slow.toml"));
        std::fs::write(&path, "#".repeat(FILE_BYTES_MAX as usize + 1)).unwrap();
        assert!(find().unwrap_err().to_string().contains("longer"));
    }

    /// Slightly damaged files give errors or profiles within bounds, never a panic.
    #[test]
    fn damaged_files_give_errors_or_profiles_within_bounds() {
        let mut state = 1u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let (mut good, mut bad) = (0, 0);
        for _ in 0..5000 {
            let mut bytes = whole_file().into_bytes();
            for _ in 0..=draw(3) {
                let at = draw(bytes.len());
                match draw(3) {
                    0 => bytes[at] = b"0123456789-e.,=\n[]\"#xX"[draw(22)],
                    1 => drop(bytes.remove(at)),
                    _ => bytes.truncate(at + 1),
                }
            }
            let Ok(text) = String::from_utf8(bytes) else { continue };
            match Profile::parse(&text, "damaged") {
                Err(_) => bad += 1,
                Ok(profile) => {
                    good += 1;
                    for (direction, pattern) in
                        [(Direction::Read, Pattern::Random), (Direction::Write, Pattern::Sequential)]
                    {
                        let time = profile.time_of(direction, pattern, 1 << 40);
                        assert!(time < Duration::from_secs(1 << 40), "{text}");
                    }
                }
            }
        }
        assert!(good > 100 && bad > 100, "{good} {bad}");
    }
}
