//! How much of a cache is trusted after an end without a close.
//!
//! If a device can lose unsynced writes while the machine stays on, as a network disk can, a kill
//! counts as a power cut ([`CacheConfig::power_cycle`](super::CacheConfig::power_cycle)).

use std::fmt;
use std::str::FromStr;

use super::CacheConfig;
use terrace_io::Directory;

/// How much of a cache is trusted after its process died.
///
/// ```
/// use terrace_cache::CacheTrust;
/// use terrace_io::MemoryDirectory;
///
/// let trust: CacheTrust = "auto".parse()?;
/// assert_eq!((trust, trust.to_string().as_str()), (CacheTrust::default(), "auto"));
/// // Nothing is known of a directory in memory.
/// assert_eq!(trust.power_cycle(&[&MemoryDirectory::new()]), None);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheTrust {
    /// `Written` if slow device and cache are local ([`Directory::is_local`]), else `Synced`.
    #[default]
    Auto,
    /// All written blocks, unless the machine restarted.
    Written,
    /// Synced blocks only.
    Synced,
}

impl CacheTrust {
    /// The value of [`CacheConfig::power_cycle`] for devices in `directories`.
    pub fn power_cycle(self, directories: &[&dyn Directory]) -> Option<[u8; 16]> {
        let other = directories.iter().find(|directory| !directory.is_local());
        if let (CacheTrust::Auto, Some(directory)) = (self, other) {
            let directory = directory.name();
            tracing::info!(
                directory,
                "not known to be local: after a kill a cache is believed as far as it was synced"
            );
        }
        match self {
            CacheTrust::Auto => other.is_none().then(CacheConfig::machine_power_cycle).flatten(),
            CacheTrust::Written => CacheConfig::machine_power_cycle(),
            CacheTrust::Synced => None,
        }
    }
}

impl fmt::Display for CacheTrust {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            CacheTrust::Auto => "auto",
            CacheTrust::Written => "written",
            CacheTrust::Synced => "synced",
        })
    }
}

impl FromStr for CacheTrust {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [CacheTrust::Auto, CacheTrust::Written, CacheTrust::Synced];
        let found = all.into_iter().find(|trust| trust.to_string() == text);
        found.ok_or_else(|| format!("there is no trust \"{text}\"; there are auto, written and synced"))
    }
}
