//! Splits lines of comma-separated fields, of which some may be in quotes.

use csv_core::{ReadRecordResult, Reader};

use super::columns::COLUMNS_MAX;
use super::parse::{ParseError, malformed};

pub(super) struct Fields {
    reader: Reader,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
}

impl Fields {
    pub(super) fn new() -> Fields {
        Fields { reader: Reader::new(), bytes: Vec::new(), ends: vec![0; COLUMNS_MAX + 1], count: 0 }
    }

    /// Splits `line`, which is not empty.
    pub(super) fn split(&mut self, line: &[u8]) -> Result<(), ParseError> {
        // With a byte more, the end of the line fits too.
        if self.bytes.len() <= line.len() {
            self.bytes.resize(line.len() + 1, 0);
        }
        let (result, _, length, count) = self.reader.read_record(line, &mut self.bytes, &mut self.ends);
        let result = match result {
            ReadRecordResult::InputEmpty => {
                let (result, _, _, more) =
                    self.reader.read_record(b"\n", &mut self.bytes[length..], &mut self.ends[count..]);
                self.count = count + more;
                result
            }
            ReadRecordResult::Record => {
                return Err(malformed(
                    "a carriage return within the line; if this is no text, name its format",
                ));
            }
            result => result,
        };
        match result {
            ReadRecordResult::Record if self.count <= COLUMNS_MAX => Ok(()),
            ReadRecordResult::InputEmpty => Err(malformed("a quote that does not end within the line")),
            _ => Err(malformed(format!("more than {COLUMNS_MAX} columns"))),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// A field without the blanks around it.
    pub(super) fn get(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes[start..self.ends[index]].trim_ascii()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.count).map(|index| self.get(index))
    }
}
