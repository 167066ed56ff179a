//! What `PRAGMA terrace_stats` says of a cache: one JSON object, whose keys `docs/sqlite.md` explains.
//!
//! Names of tables come from the file, and reasons name devices, so both are escaped.

use std::fmt::Write;

use terrace_block::{Bypass, CacheStats, RelationStats, Start};

use crate::database::InUse;
use crate::relations::RelationMap;

/// What the cache does not know of itself.
pub(crate) struct Around<'a> {
    /// How often it was emptied because others had changed the database.
    pub emptied: u64,
    /// Why it began with nothing, if that is not for itself to say.
    pub cold: Option<&'a str>,
    pub relations: &'a RelationMap,
}

/// The object.
pub(crate) fn of_cache(in_use: &InUse, around: &Around<'_>) -> String {
    let cached = &in_use.cached;
    let (stats, policy) = (cached.stats(), cached.config().policy.to_string());
    let mut object = Object::new();
    object.text("policy", Some(&policy));
    object.number("block_bytes", in_use.page_bytes as u64);
    counts(&mut object, &stats);
    object.number("emptied", around.emptied);
    start(&mut object, &stats.start, around.cold);
    object.raw("is_aside", stats.is_aside);
    object.raw("in_service", stats.out_of_service.is_none());
    object.text("out_of_service", stats.out_of_service.as_deref());
    let relations: Vec<_> =
        cached.relation_stats().iter().map(|of| of_relation(of, around.relations)).collect();
    object.raw("relations", format_args!("[{}]", relations.join(",")));
    object.end()
}

fn counts(object: &mut Object, stats: &CacheStats) {
    for (name, count) in [
        ("capacity_blocks", stats.capacity_blocks),
        ("resident_blocks", stats.resident_blocks),
        ("hits", stats.hits),
        ("below", stats.below),
        ("misses", stats.misses),
    ] {
        object.number(name, count);
    }
    object.raw("hit_ratio", format_args!("{:.4}", stats.hit_ratio()));
    for (name, count) in [
        ("requests_whole", stats.requests_whole),
        ("requests_part", stats.requests_part),
        ("requests_missed", stats.requests_missed),
        ("write_hits", stats.write_hits),
        ("write_misses", stats.write_misses),
        ("admissions", stats.admissions),
        ("evictions", stats.evictions),
        ("invalidations", stats.invalidations),
        ("written_bytes", stats.fast_written_bytes),
        ("damaged", stats.damaged),
        ("fallbacks", stats.fallbacks),
        ("errors", stats.fast_errors),
    ] {
        object.number(name, count);
    }
    let mut bypasses = Object::new();
    for reason in Bypass::ALL {
        bypasses.number(&reason.name().replace('-', "_"), stats.bypassed(reason));
    }
    object.raw("bypasses", bypasses.end());
}

/// What the cache began with. One that is new to itself may stand where another was set aside.
fn start(object: &mut Object, start: &Start, cold: Option<&str>) {
    let (name, kept, dropped, reason) = match start {
        Start::Warm { kept, dropped } => ("warm", *kept, *dropped, None),
        Start::Cold(reason) => ("cold", 0, 0, Some(cold.unwrap_or(reason))),
        _ => (if cold.is_some() { "cold" } else { "new" }, 0, 0, cold),
    };
    object.text("start", Some(name));
    object.number("kept", kept);
    object.number("dropped", dropped);
    object.text("cold", reason);
}

fn of_relation(of: &RelationStats, relations: &RelationMap) -> String {
    let mut object = Object::new();
    let root = of.relation.map(|relation| relation.0);
    let named = root.and_then(|root| relations.name(root));
    match root {
        Some(root) => object.number("root", root.into()),
        None => object.raw("root", "null"),
    }
    object.text("name", named.as_ref().map(|root| root.name.as_str()));
    match &named {
        Some(root) => object.raw("is_index", root.is_index),
        None => object.raw("is_index", "null"),
    }
    for (name, count) in
        [("hits", of.hits), ("misses", of.misses), ("writes", of.writes), ("admissions", of.admissions)]
    {
        object.number(name, count);
    }
    object.end()
}

/// A JSON object in the making.
struct Object(String);

impl Object {
    fn new() -> Object {
        Object("{".to_owned())
    }

    /// A value that is JSON already.
    fn raw(&mut self, name: &str, value: impl std::fmt::Display) {
        let comma = if self.0.len() > 1 { "," } else { "" };
        write!(self.0, r#"{comma}"{name}":{value}"#).expect("a string takes it");
    }

    fn number(&mut self, name: &str, value: u64) {
        self.raw(name, value);
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        self.raw(name, value.map_or("null".to_owned(), quoted));
    }

    fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// As a JSON string (RFC 8259, section 7).
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            // Control characters of the second kind, too: the answer may be shown on a terminal.
            letter if letter.is_control() => {
                write!(quoted, "\\u{:04x}", u32::from(letter)).expect("a string takes it");
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let mut object = Object::new();
        object.text("name", Some("a\"b\\c\nd\u{9b}é"));
        object.text("none", None);
        object.number("count", 3);
        assert_eq!(object.end(), "{\"name\":\"a\\\"b\\\\c\\u000ad\\u009bé\",\"none\":null,\"count\":3}");
    }

    #[test]
    fn a_cache_where_another_was_set_aside_is_cold() {
        let told = |from: &Start, cold| {
            let mut object = Object::new();
            start(&mut object, from, cold);
            object.end()
        };
        let aside = Some("it is not a cache");
        assert!(told(&Start::New, aside).starts_with(r#"{"start":"cold""#));
        assert!(told(&Start::New, aside).ends_with(r#""cold":"it is not a cache"}"#));
        assert!(told(&Start::New, None).starts_with(r#"{"start":"new""#));
        let warm = told(&Start::Warm { kept: 2, dropped: 1 }, None);
        assert_eq!(warm, r#"{"start":"warm","kept":2,"dropped":1,"cold":null}"#);
    }
}
