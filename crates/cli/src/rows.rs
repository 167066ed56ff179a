//! Records in files: the formats of `load` and `dump`.
//!
//! **`dump`** writes one JSON object per line, `{"key": K, "value": V}`. K and V are strings, or
//! `{"base64": "..."}` for bytes that are not UTF-8. `load --format jsonl` reads this back byte for
//! byte.
//!
//! **Other files.** With `--key MEMBER`, each JSON line is one record: the member is the key, the
//! line the value. A CSV file has a header line. Its key is the column named by `--key`, or the
//! first one; its value is the row as a JSON object in column order.
//!
//! Files are streamed, so they may exceed memory. A length limit per line rejects files without
//! line ends. Every error names file and line.

use std::cell::Cell;
use std::io::{self, BufRead, Read, Write};
use std::rc::Rc;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use terrace_common::escape::{self, Bytes};
use terrace_common::failure::{Failure, Outcome};

use crate::args::Format;

/// Limit of a line or row. A value of 64 MiB fits in any encoding.
pub const LINE_BYTES_MAX: u64 = 512 << 20;

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// The records of `input`; errors call it `name`.
pub fn read<'a>(
    input: impl Read + 'a,
    name: &str,
    format: Format,
    key: Option<&str>,
) -> Outcome<Box<dyn Iterator<Item = Outcome<Record>> + 'a>> {
    read_bounded(input, name, format, key, LINE_BYTES_MAX)
}

fn read_bounded<'a>(
    input: impl Read + 'a,
    name: &str,
    format: Format,
    key: Option<&str>,
    line_bytes_max: u64,
) -> Outcome<Box<dyn Iterator<Item = Outcome<Record>> + 'a>> {
    let key = key.map(str::to_owned);
    let name = name.to_owned();
    Ok(match format {
        Format::Jsonl => {
            let input = io::BufReader::with_capacity(1 << 16, input);
            Box::new(JsonLines { input, name, key, line: 0, line_bytes_max, text: Vec::new(), failed: false })
        }
        Format::Csv => Box::new(CsvRows::new(input, name, key, line_bytes_max)?),
    })
}

/// Writes one record in `dump` format.
pub fn write(output: &mut impl Write, key: &[u8], value: &[u8]) -> Outcome {
    #[derive(Serialize)]
    struct Line<'a> {
        key: Bytes<'a>,
        value: Bytes<'a>,
    }
    let line = Line { key: key.into(), value: value.into() };
    serde_json::to_writer(&mut *output, &line).map_err(|error| Failure::output(error.into()))?;
    output.write_all(b"\n").map_err(Failure::output)
}

struct JsonLines<R> {
    input: R,
    name: String,
    key: Option<String>,
    line: u64,
    line_bytes_max: u64,
    text: Vec<u8>,
    failed: bool,
}

impl<R: BufRead> JsonLines<R> {
    /// Reads the next non-blank line.
    fn read_line(&mut self) -> Result<bool, String> {
        loop {
            self.text.clear();
            self.line += 1;
            // One extra byte distinguishes a line that fits from one that is too long.
            let mut bounded = (&mut self.input).take(self.line_bytes_max + 1);
            let length = bounded.read_until(b'\n', &mut self.text).map_err(|error| error.to_string())?;
            if length as u64 > self.line_bytes_max {
                return Err(format!("is longer than {} bytes", self.line_bytes_max));
            }
            if length == 0 {
                return Ok(false);
            }
            if !self.text.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn record(&self) -> Result<Record, String> {
        let line = self.text.trim_ascii();
        let parsed: Value =
            serde_json::from_slice(line).map_err(|error| format!("is not valid JSON: {error}"))?;
        let Value::Object(mut members) = parsed else { return Err("is not a JSON object".to_owned()) };
        match &self.key {
            Some(name) => {
                let key = match members.remove(name) {
                    Some(Value::Number(number)) => number.to_string().into_bytes(),
                    Some(value) => {
                        escape::from_json(value).map_err(|why| format!("member {name:?}: {why}"))?
                    }
                    None => return Err(format!("has no member {name:?}, which --key asks for")),
                };
                Ok((key, line.to_vec()))
            }
            None => {
                let mut bytes = |name: &str| match members.remove(name) {
                    Some(value) => escape::from_json(value).map_err(|why| format!("member {name:?}: {why}")),
                    None => Err(format!("has no member {name:?}; name the key's member with --key")),
                };
                let record = (bytes("key")?, bytes("value")?);
                match members.keys().next() {
                    None => Ok(record),
                    Some(other) => Err(format!(
                        "has a member {other:?} besides \"key\" and \"value\"; name the key's member with --key"
                    )),
                }
            }
        }
    }
}

impl<R: BufRead> Iterator for JsonLines<R> {
    type Item = Outcome<Record>;

    fn next(&mut self) -> Option<Outcome<Record>> {
        if self.failed {
            return None;
        }
        let outcome = match self.read_line() {
            Ok(false) => return None,
            Ok(true) => self.record(),
            Err(why) => Err(why),
        };
        self.failed = outcome.is_err();
        Some(outcome.map_err(|why| at_line(&self.name, self.line, &why)))
    }
}

struct CsvRows<R> {
    reader: csv::Reader<Bounded<R>>,
    header: csv::ByteRecord,
    row: csv::ByteRecord,
    key: usize,
    name: String,
    room: Rc<Cell<u64>>,
    row_bytes_max: u64,
    failed: bool,
}

impl<R: Read> CsvRows<R> {
    fn new(input: R, name: String, key: Option<String>, row_bytes_max: u64) -> Outcome<CsvRows<R>> {
        let room = Rc::new(Cell::new(row_bytes_max));
        let bounded = Bounded { input, room: room.clone() };
        let mut reader = csv::ReaderBuilder::new().from_reader(bounded);
        let header = reader.byte_headers().map_err(|error| at_line(&name, 1, &csv_reason(&error)))?.clone();
        let key = match &key {
            None => 0,
            Some(wanted) => {
                header.iter().position(|column| column == wanted.as_bytes()).ok_or_else(|| {
                    let columns: Vec<String> =
                        header.iter().map(|column| escape::bytes(column).to_owned()).collect();
                    Failure::Work(format!("{name} has no column {wanted:?}; it has {}", columns.join(", ")))
                })?
            }
        };
        Ok(CsvRows {
            reader,
            header,
            row: csv::ByteRecord::new(),
            key,
            name,
            room,
            row_bytes_max,
            failed: false,
        })
    }

    fn record(&self) -> Result<Record, String> {
        let key = self.row.get(self.key).ok_or("is empty")?.to_vec();
        let value =
            serde_json::to_vec(&Row { header: &self.header, row: &self.row }).map_err(|e| e.to_string())?;
        Ok((key, value))
    }
}

impl<R: Read> Iterator for CsvRows<R> {
    type Item = Outcome<Record>;

    fn next(&mut self) -> Option<Outcome<Record>> {
        if self.failed {
            return None;
        }
        self.room.set(self.row_bytes_max);
        let line = self.reader.position().line();
        let outcome = match self.reader.read_byte_record(&mut self.row) {
            Ok(false) => return None,
            Ok(true) => {
                let line = self.row.position().map_or(line, csv::Position::line);
                self.record().map_err(|why| at_line(&self.name, line, &why))
            }
            Err(error) => {
                let line = error.position().map_or(line, csv::Position::line);
                Err(at_line(&self.name, line, &csv_reason(&error)))
            }
        };
        self.failed = outcome.is_err();
        Some(outcome)
    }
}

/// A CSV row as a JSON object in column order.
struct Row<'a> {
    header: &'a csv::ByteRecord,
    row: &'a csv::ByteRecord,
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.row.len()))?;
        for (column, field) in self.header.iter().zip(self.row) {
            map.serialize_entry(&String::from_utf8_lossy(column), &Bytes::from(field))?;
        }
        map.end()
    }
}

/// Fails after reading more than its room; finishing a row renews the room.
struct Bounded<R> {
    input: R,
    room: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        match self.room.get().checked_sub(read as u64) {
            Some(room) => self.room.set(room),
            // One read may complete many rows, so fail only if no room was left before.
            None if self.room.get() > 0 => self.room.set(0),
            None => return Err(io::Error::other("is longer than allowed; is a closing quote missing?")),
        }
        Ok(read)
    }
}

fn csv_reason(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("has {len} columns where the header has {expected_len}")
        }
        csv::ErrorKind::Io(error) => error.to_string(),
        _ => error.to_string(),
    }
}

fn at_line(name: &str, line: u64, why: &str) -> Failure {
    Failure::Work(format!("{name}, line {line}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8], format: Format, key: Option<&str>) -> Outcome<Vec<Record>> {
        read(text, "file", format, key)?.collect()
    }

    fn text(records: Vec<Record>) -> Vec<(String, String)> {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        records.into_iter().map(|(key, value)| (text(key), text(value))).collect()
    }

    #[test]
    fn dumped_records_are_read_back_byte_for_byte() {
        let records: Vec<Record> = vec![
            (b"plain".to_vec(), b"value".to_vec()),
            (b"".to_vec(), b"".to_vec()),
            (b"\xff\x00\n\"\\".to_vec(), (0..=255).collect()),
            ("{\"base64\": \"x\"}\u{2028}".into(), b"\r\n\t\x1b".to_vec()),
        ];
        let mut file = Vec::new();
        records.iter().for_each(|(key, value)| write(&mut file, key, value).unwrap());
        assert_eq!(file.split(|byte| *byte == b'\n').count(), records.len() + 1);
        assert_eq!(all(&file, Format::Jsonl, None).unwrap(), records);
    }

    #[test]
    fn lines_of_others_keep_their_text() {
        let file = b"{\"id\": 7, \"b\": [1, 2]}\r\n\n  {\"id\":\"x\"}";
        let records = text(all(file, Format::Jsonl, Some("id")).unwrap());
        assert_eq!(records[0], ("7".to_owned(), "{\"id\": 7, \"b\": [1, 2]}".to_owned()));
        assert_eq!(records[1], ("x".to_owned(), "{\"id\":\"x\"}".to_owned()));
    }

    #[test]
    fn csv_rows_become_objects_in_column_order() {
        let file = b"z,a\n1,\"two, \"\"2\"\"\nlines\"\n3,\n";
        let records = text(all(file, Format::Csv, None).unwrap());
        assert_eq!(records[0], ("1".to_owned(), r#"{"z":"1","a":"two, \"2\"\nlines"}"#.to_owned()));
        assert_eq!(records[1].1, r#"{"z":"3","a":""}"#);
        assert_eq!(all(file, Format::Csv, Some("a")).unwrap()[1].0, b"");
        assert_eq!(all(b"a\n\xff\n", Format::Csv, None).unwrap()[0].0, b"\xff");
        assert!(all(b"", Format::Csv, None).unwrap().is_empty());
    }

    #[test]
    fn malformed_lines_are_named() {
        let cases: [(&[u8], Format, Option<&str>, &str); 10] = [
            (b"{\"key\":\"a\",\"value\":\"b\"}\n{", Format::Jsonl, None, "file, line 2: is not valid JSON"),
            (b"\n\n[]", Format::Jsonl, None, "line 3: is not a JSON object"),
            (b"{\"key\":\"a\"}", Format::Jsonl, None, "no member \"value\""),
            (b"{\"key\":\"a\",\"value\":1}", Format::Jsonl, None, "expected a string"),
            (b"{\"key\":\"a\",\"value\":\"\",\"x\":1}", Format::Jsonl, None, "\"x\" besides"),
            (b"{\"a\":1}", Format::Jsonl, Some("id"), "no member \"id\""),
            (b"{\"id\":[]}", Format::Jsonl, Some("id"), "member \"id\": expected"),
            (b"{\"key\":\"\xff\"}", Format::Jsonl, None, "line 1: is not valid JSON"),
            (b"a,b\n1,2\n3\n", Format::Csv, None, "line 3: has 1 columns where the header has 2"),
            (b"a,b\n1,2\n", Format::Csv, Some("c"), "no column \"c\"; it has a, b"),
        ];
        for (file, format, key, expected) in cases {
            let error = all(file, format, key).unwrap_err();
            assert_eq!(error.code(), 1);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn endless_lines_are_refused_and_reading_stops_at_the_first_error() {
        let endless = io::repeat(b'x');
        let mut rows = read_bounded(endless, "f", Format::Jsonl, None, 1000).unwrap();
        assert!(rows.next().unwrap().unwrap_err().to_string().contains("longer than 1000"));
        assert!(rows.next().is_none());
        let endless = (&b"a\n1\n\"2\n"[..]).chain(io::repeat(b'x'));
        let mut rows = read_bounded(endless, "f", Format::Csv, None, 100_000).unwrap();
        assert_eq!(rows.next().unwrap().unwrap().0, b"1");
        let error = rows.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("quote"), "{error}");
        assert!(rows.next().is_none());
    }

    #[test]
    fn a_line_of_just_the_greatest_length_is_read() {
        let line = b"{\"key\":\"a\",\"value\":\"b\"}\n";
        let mut rows = read_bounded(&line[..], "f", Format::Jsonl, None, line.len() as u64).unwrap();
        assert!(rows.next().unwrap().is_ok());
    }
}
