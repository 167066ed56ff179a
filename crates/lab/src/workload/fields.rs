//! Values made of fields, as YCSB's records are: ten of 100 bytes.
//!
//! Each field proves itself like a value ([`values`]), with a version of its own. So a field can be
//! read and changed alone, and a mixed-up one is found.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use terrace_common::values;

/// How much of a value an operation touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Touch {
    /// All of it.
    #[default]
    All,
    /// Reads and updates touch one field.
    One,
}

/// The fields of each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fields {
    count: usize,
    bytes: usize,
}

impl Fields {
    /// Bytes of a value.
    pub fn value_bytes(self) -> usize {
        self.count * self.bytes
    }

    /// The field that the operation with this version touches; all are equally likely.
    pub fn pick(self, version: u64) -> usize {
        (values::mix(version) % self.count as u64) as usize
    }

    /// Where a field is in its value.
    pub fn range(self, field: usize) -> Range<usize> {
        field * self.bytes..(field + 1) * self.bytes
    }

    /// Fills `content` with one field of key `number`.
    pub fn fill_one(self, number: u64, field: usize, version: u64, content: &mut Vec<u8>) {
        values::fill(seed(number, field), version, self.bytes, content);
    }

    /// Whether `content` is this field of key `number`, at any version.
    pub fn check_one(self, number: u64, field: usize, content: &[u8]) -> bool {
        values::check(seed(number, field), self.bytes, content)
    }

    /// Fills `value` with all fields of key `number`; `one` is scratch memory.
    pub fn fill(self, number: u64, version: u64, one: &mut Vec<u8>, value: &mut Vec<u8>) {
        value.clear();
        for field in 0..self.count {
            self.fill_one(number, field, version, one);
            value.extend_from_slice(one);
        }
    }

    /// Whether every field of `value` is one of key `number`.
    pub fn check(self, number: u64, value: &[u8]) -> bool {
        let right = |field| self.check_one(number, field, &value[self.range(field)]);
        value.len() == self.value_bytes() && (0..self.count).all(right)
    }
}

/// The fields of a value and how many are touched, for the head of a report.
pub fn told(fields: Option<&str>, touch: Touch) -> String {
    match (fields, touch) {
        (None, _) => String::new(),
        (Some(fields), Touch::All) => format!(" ({fields})"),
        (Some(fields), Touch::One) => format!(" ({fields}, one field touched)"),
    }
}

/// Numbers apart for each field of each key.
fn seed(number: u64, field: usize) -> u64 {
    values::mix(number) ^ values::mix(!(field as u64))
}

impl FromStr for Fields {
    type Err = String;

    fn from_str(text: &str) -> Result<Fields, String> {
        let parsed = text.split_once('x').and_then(|(count, bytes)| {
            let (count, bytes) = (count.parse::<usize>().ok()?, bytes.parse::<usize>().ok()?);
            let value_bytes = count.checked_mul(bytes)?;
            (value_bytes > 0 && value_bytes <= terrace::MAX_VALUE_BYTES).then_some(Fields { count, bytes })
        });
        parsed
            .ok_or_else(|| format!("{text:?} is not COUNTxBYTES, such as 10x100, of at most 1 GiB together"))
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.count, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_prove_themselves_each_with_its_version() {
        let fields: Fields = "10x100".parse().unwrap();
        let (mut value, mut one) = (Vec::new(), Vec::new());
        fields.fill(7, 3, &mut one, &mut value);
        assert_eq!(value.len(), 1000);
        assert!(fields.check(7, &value) && !fields.check(8, &value));
        fields.fill_one(7, 4, 99, &mut one);
        value[fields.range(4)].copy_from_slice(&one);
        assert!(fields.check(7, &value), "of two versions");
        assert!(fields.check_one(7, 4, &value[400..500]) && !fields.check_one(7, 3, &value[400..500]));
        value[fields.range(3)].copy_from_slice(&one);
        assert!(!fields.check(7, &value), "a field in the place of another");
    }

    #[test]
    fn every_field_is_touched_as_often() {
        let fields: Fields = "10x100".parse().unwrap();
        let mut counts = [0; 10];
        (0..10_000).for_each(|version| counts[fields.pick(1 << 48 | version)] += 1);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn names_round_trip_and_others_are_refused() {
        assert_eq!("3x20".parse::<Fields>().unwrap().to_string(), "3x20");
        for text in ["", "10", "x", "0x10", "10x0", "10x", "1x2x3", "-1x5", "9999999999x9999999999"] {
            assert!(text.parse::<Fields>().is_err(), "{text}");
        }
    }
}
