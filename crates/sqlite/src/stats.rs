//! The JSON object that `PRAGMA terrace_stats` returns for a cache (keys: `docs/sqlite.md`).

use serde::Serialize;
use terrace_cache::{CacheStats, RelationStats, Start};

use crate::in_use::InUse;
use crate::relations::RelationMap;

/// Facts that the cache itself does not know.
pub(crate) struct Around<'a> {
    /// How often other programs' changes emptied it.
    pub emptied: u64,
    /// Why it started empty, if the cache itself cannot know.
    pub cold: Option<&'a str>,
    pub relations: &'a RelationMap,
}

/// The object: the statistics of the cache, and what the VFS adds.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    stats: CacheStats,
    capacity_blocks: u64,
    resident_blocks: u64,
    hit_ratio: f64,
    emptied: u64,
    start: &'static str,
    in_service: bool,
    relations: Vec<ToldRelation>,
}

#[derive(Serialize)]
struct ToldRelation {
    root: Option<u32>,
    name: Option<String>,
    is_index: Option<bool>,
    #[serde(flatten)]
    stats: RelationStats,
}

/// Whether reads come from a cache.
#[derive(Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "snake_case")]
pub(crate) enum CacheState {
    Cached,
    /// Not yet opened.
    Pending(&'static str),
    /// It rests, because its disk is the slower one.
    Aside(&'static str),
    /// There is none, or it is out of service.
    Uncached(String),
}

impl CacheState {
    /// The state of an open cache.
    pub fn of(in_use: &InUse) -> CacheState {
        let stats = in_use.cached.stats();
        match stats.out_of_service {
            Some(why) => CacheState::Uncached(why),
            None if stats.is_aside => CacheState::Aside("the cache's disk is the slower one"),
            None => CacheState::Cached,
        }
    }
}

pub(crate) fn of_cache(in_use: &InUse, around: &Around<'_>) -> String {
    let cached = &in_use.cached;
    let mut stats = cached.stats();
    let (start, cold) = start(&cached.start(), around.cold);
    stats.cold = cold;
    let relations = cached.relation_stats();
    json(&Told {
        capacity_blocks: stats.capacity_blocks(),
        resident_blocks: stats.resident_blocks(),
        hit_ratio: (stats.hit_ratio() * 1e4).round() / 1e4,
        emptied: around.emptied,
        start,
        in_service: stats.out_of_service.is_none(),
        relations: relations.iter().map(|of| of_relation(of, around.relations)).collect(),
        stats,
    })
}

/// How the cache started; a new one that replaces another counts as cold.
fn start(start: &Start, cold: Option<&str>) -> (&'static str, Option<String>) {
    match start {
        Start::Warm { .. } => ("warm", None),
        Start::Cold(reason) => ("cold", Some(cold.unwrap_or(reason).to_owned())),
        _ => (if cold.is_some() { "cold" } else { "new" }, cold.map(str::to_owned)),
    }
}

fn of_relation(of: &RelationStats, relations: &RelationMap) -> ToldRelation {
    let root = of.relation.map(|relation| relation.0);
    let (name, is_index) = match root.and_then(|root| relations.name(root)) {
        Some(root) => (Some(root.name), Some(root.is_index)),
        None => (None, None),
    };
    ToldRelation { root, name, is_index, stats: *of }
}

/// JSON without C1 control characters: a terminal may show the answer.
pub(crate) fn json(told: &(impl Serialize + ?Sized)) -> String {
    let text = serde_json::to_string(told).expect("it has no keys but names");
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if letter.is_control() => safe.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let told = json(&[Some("a\"b\\c\nd\u{9b}é"), None]);
        assert_eq!(told, "[\"a\\\"b\\\\c\\nd\\u009bé\",null]");
    }

    #[test]
    fn a_cache_where_another_was_set_aside_is_cold() {
        let aside = Some("it is not a cache");
        assert_eq!(start(&Start::New, aside), ("cold", aside.map(str::to_owned)));
        assert_eq!(start(&Start::New, None), ("new", None));
        assert_eq!(start(&Start::Warm { kept: 2, dropped: 1 }, None), ("warm", None));
    }
}
