//! How much of a cache is believed that was left without a close.
//!
//! What was written and not synced outlives a kill of the process, if the machine goes on and the devices are its own. Then the
//! order of writes alone makes sure that a block is right, and nearly all of the cache is warm. A device that can lose unsynced writes
//! by itself, such as a network disk whose server is switched off, makes a kill the same as a power cut: only what was synced, and is not
//! marked as written since, may be used ([`CacheConfig::power_cycle`](super::CacheConfig::power_cycle)).

use std::fmt;
use std::str::FromStr;

use super::CacheConfig;
use crate::Directory;

/// How much of a cache is believed after its process died.
///
/// ```
/// use terrace_block::{CacheTrust, MemoryDirectory};
///
/// let trust: CacheTrust = "auto".parse()?;
/// assert_eq!((trust, trust.to_string().as_str()), (CacheTrust::default(), "auto"));
/// // Nothing is known of a directory in memory.
/// assert_eq!(trust.power_cycle(&[&MemoryDirectory::new()]), None);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheTrust {
    /// `Written` where the slow device and the cache are in local directories ([`Directory::is_local`]), else `Synced`.
    #[default]
    Auto,
    /// All that was written, as long as the machine was not switched on anew.
    Written,
    /// What was synced.
    Synced,
}

impl CacheTrust {
    /// What [`CacheConfig::power_cycle`] is to be for devices in `directories`.
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
