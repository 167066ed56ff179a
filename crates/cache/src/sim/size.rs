//! Cache sizes: blocks, bytes, or a fraction of the footprint.

use std::fmt;
use std::str::FromStr;

use terrace_io::units;

/// Resolution of a fraction: parts of one percent.
pub(super) const PERCENT_PARTS: u64 = 1_000_000_000;

/// The size of a cache.
///
/// ```
/// use terrace_cache::sim::Size;
///
/// assert_eq!("5%".parse::<Size>().unwrap().blocks(275_171, 4096).unwrap(), 13_758);
/// assert_eq!("0.1%".parse::<Size>().unwrap().blocks(186_880, 4096).unwrap(), 186);
/// assert_eq!(".1%".parse::<Size>(), "0.1%".parse());
/// assert_eq!("500".parse::<Size>().unwrap().blocks(1000, 4096).unwrap(), 500);
/// assert_eq!("1MiB".parse::<Size>().unwrap().blocks(1000, 4096).unwrap(), 256);
/// assert!("500".parse::<Size>().unwrap().blocks(499, 4096).is_err());
/// assert!("0".parse::<Size>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Blocks, at least one.
    Blocks(usize),
    /// Bytes, rounded down to blocks.
    Bytes(u64),
    /// Parts in 10^11 of the footprint, rounded down; at most all of it.
    Share(u64),
}

impl Size {
    /// Whether it depends on the footprint.
    pub fn is_relative(&self) -> bool {
        matches!(self, Size::Share(_))
    }

    /// The size in a sentence: `1 block`, `500 blocks`, `5%`.
    pub fn words(&self) -> String {
        match self {
            Size::Blocks(1) => "1 block".to_owned(),
            Size::Blocks(blocks) => format!("{blocks} blocks"),
            size => size.to_string(),
        }
    }

    /// The size as requested, and in blocks if that differs.
    pub(super) fn words_with(&self, blocks: usize) -> String {
        match self {
            Size::Blocks(_) => self.words(),
            size => format!("{size}, {}", Size::Blocks(blocks).words()),
        }
    }

    /// The size in blocks of `block_bytes` bytes, if it does not depend on the footprint.
    pub(super) fn fixed_blocks(&self, block_bytes: u32) -> Option<usize> {
        match self {
            Size::Blocks(blocks) => Some(*blocks),
            Size::Bytes(bytes) => Some((bytes / u64::from(block_bytes.max(1))) as usize),
            Size::Share(_) => None,
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Blocks(blocks) => write!(f, "{blocks}"),
            Size::Bytes(bytes) => {
                let units = [(30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")];
                let unit = units.into_iter().find(|(shift, _)| bytes % (1 << shift) == 0);
                let (shift, unit) = unit.unwrap_or((0, "B"));
                write!(f, "{}{unit}", bytes >> shift)
            }
            Size::Share(parts) => {
                let (whole, fraction) = (parts / PERCENT_PARTS, parts % PERCENT_PARTS);
                let fraction = format!("{fraction:09}");
                match fraction.trim_end_matches('0') {
                    "" => write!(f, "{whole}%"),
                    fraction => write!(f, "{whole}.{fraction}%"),
                }
            }
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || {
            format!(
                "{text:?} is no size of a cache; write blocks, such as 5000, bytes, such as 64MiB, or a share of the footprint, such as 10%"
            )
        };
        let Some(percent) = text.strip_suffix('%') else {
            let has_unit = text.ends_with(|letter: char| letter.is_ascii_alphabetic());
            if has_unit && text.starts_with(|letter: char| letter.is_ascii_digit()) {
                return match units::size(text)? {
                    0 => Err("a cache of 0 bytes; it must have at least 1 block".to_owned()),
                    bytes => Ok(Size::Bytes(bytes)),
                };
            }
            let blocks: u32 = text.parse().map_err(|_| wrong())?;
            return match blocks {
                0 => Err("a cache of 0 blocks; it must have at least 1".to_owned()),
                blocks => Ok(Size::Blocks(blocks as usize)),
            };
        };
        let (whole, fraction) = match percent.split_once('.') {
            Some(("", fraction)) => ("0", fraction),
            Some(parts) => parts,
            None => (percent, "0"),
        };
        let digits =
            |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) {
            return Err(wrong());
        }
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let fraction: u64 = format!("{fraction:0<9}").parse().map_err(|_| wrong())?;
        match whole * PERCENT_PARTS + fraction {
            0 => Err("a cache of 0 % of the footprint; it must have at least 1 block".to_owned()),
            parts if parts > 100 * PERCENT_PARTS => Err(format!("{text} is more than the footprint")),
            parts => Ok(Size::Share(parts)),
        }
    }
}
