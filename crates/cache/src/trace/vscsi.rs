//! `.vscsi`: VMware's records of virtual SCSI commands, versions 1 and 2, little-endian.
//!
//! | content              | bytes, version 1 | bytes, version 2 |
//! |----------------------|------------------|------------------|
//! | serial number        | 0..4             | 4..8             |
//! | length in bytes      | 4..8             | 8..12            |
//! | segments of memory   | 8..12            | 12..16           |
//! | SCSI command         | 12..14           | 0..2             |
//! | 0, version           | 14..16           | 2..4             |
//! | first sector         | 16..24           | 16..24           |
//! | time in microseconds | 24..32           | 24..32           |
//! | response time        |                  | 32..40           |
//!
//! Commands other than reads and writes are skipped. The source is libCacheSim, which reads the
//! CloudPhysics traces.

use super::input::Input;
use super::parse::{ParseError, Parsed, Span, malformed, scsi_writes, sector_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

pub(super) struct Vscsi {
    block_bytes: u64,
    /// Known after the first record.
    version: Option<Version>,
}

impl Vscsi {
    pub(super) fn new(block_bytes: u64) -> Vscsi {
        Vscsi { block_bytes, version: None }
    }

    pub(super) fn parse(&mut self, input: &mut Input) -> Result<Parsed, ParseError> {
        let Some(record) = input.record::<32>()? else { return Ok(Parsed::End) };
        let found = version(&record);
        match (self.version, found) {
            (_, None) => return Err(malformed("neither version 1 nor version 2 of vscsi")),
            (Some(before), Some(found)) if before != found => {
                return Err(malformed("another version of vscsi than the records before"));
            }
            _ => self.version = found,
        }
        let (command, length) = match found {
            Some(Version::Two) => {
                if input.rest::<8>()?.is_none() {
                    return Err(malformed("it ends after 32 of its 40 bytes"));
                }
                (word(&record[..2]), word(&record[8..12]))
            }
            _ => (word(&record[12..14]), word(&record[4..8])),
        };
        let Some(write) = scsi_writes(command).filter(|_| length > 0) else { return Ok(Parsed::Nothing) };
        let start = sector_bytes(word(&record[16..24]))?;
        let span = Span::of_bytes(start, length, self.block_bytes)?;
        Ok(Parsed::Span(span.written(write).at(Some(word(&record[24..32])))))
    }
}

/// The version of a record. In the other version, the byte is the top of a serial number or of a
/// count of segments, which is 0 in all but endless traces.
fn version(record: &[u8; 32]) -> Option<Version> {
    match (record[15], record[3]) {
        (1, _) => Some(Version::One),
        (_, 2) => Some(Version::Two),
        _ => None,
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
