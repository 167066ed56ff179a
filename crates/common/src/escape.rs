//! Makes text of unknown origin printable: keys, table names, paths.
//!
//! A key may contain terminal escape sequences. All output to a terminal or a log passes through
//! here, so it can neither move the cursor nor forge a line. JSON escapes by itself but cannot
//! carry invalid UTF-8; [`Bytes`] encodes that.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Bytes as one printable line. Control characters, backslashes and stray bytes become `\n`, `\\`,
/// `\xff`.
pub fn bytes(raw: &[u8]) -> String {
    let mut line = String::with_capacity(raw.len());
    for chunk in raw.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => line.push_str("\\\\"),
                '\n' => line.push_str("\\n"),
                '\r' => line.push_str("\\r"),
                '\t' => line.push_str("\\t"),
                // Bidirectional overrides reorder the visible text, so they count as control
                // characters.
                c if c.is_control() || is_reordering(c) => line.extend(c.escape_unicode()),
                c => line.push(c),
            }
        }
        for byte in chunk.invalid() {
            line.push_str(&format!("\\x{byte:02x}"));
        }
    }
    line
}

/// A message that may quote foreign text, with control characters escaped.
pub fn text(message: &str) -> String {
    message
        .chars()
        .flat_map(|c| match c {
            '\n' => vec!['\n'],
            c if c.is_control() || is_reordering(c) => c.escape_unicode().collect(),
            c => vec![c],
        })
        .collect()
}

/// A path, made printable.
pub fn path(path: &Path) -> String {
    bytes(path.as_os_str().as_bytes())
}

fn is_reordering(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Bytes in JSON: a string if valid UTF-8, else `{"base64": "..."}`. [`from_json`] is its inverse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes<'a>(pub Cow<'a, [u8]>);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
                map.end()
            }
        }
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(raw: &'a [u8]) -> Self {
        Bytes(Cow::Borrowed(raw))
    }
}

/// Reads the output of [`Bytes`]; the error names the expected form.
pub fn from_json(value: serde_json::Value) -> Result<Vec<u8>, String> {
    let expected = "expected a string or {\"base64\": \"...\"}";
    match value {
        serde_json::Value::String(text) => Ok(text.into_bytes()),
        serde_json::Value::Object(map) => match (map.len(), map.get("base64")) {
            (1, Some(serde_json::Value::String(text))) => {
                STANDARD.decode(text).map_err(|error| format!("bad base64: {error}"))
            }
            _ => Err(expected.to_owned()),
        },
        _ => Err(expected.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(bytes(b"a\x1b[31mb\n\t\\"), "a\\u{1b}[31mb\\n\\t\\\\");
        assert_eq!(bytes(b"\xff\x00"), "\\xff\\u{0}");
        assert_eq!(bytes("h\u{e9}\u{202e}".as_bytes()), "h\u{e9}\\u{202e}");
        assert_eq!(text("two\nlines\x07"), "two\nlines\\u{7}");
    }

    #[test]
    fn json_round_trips_any_bytes() {
        for raw in [&b""[..], b"plain", b"\xff\xfe\x00", b"{\"base64\": 1}", "\u{1b}\"".as_bytes()] {
            let json = serde_json::to_value(Bytes::from(raw)).unwrap();
            assert_eq!(from_json(json).unwrap(), raw);
        }
        assert!(from_json(serde_json::json!(1)).is_err());
        assert!(from_json(serde_json::json!({"base64": "*"})).is_err());
        assert!(from_json(serde_json::json!({"base64": "", "x": 1})).is_err());
    }
}
