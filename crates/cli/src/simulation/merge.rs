//! Merges the shards of a simulation.
//!
//! Each shard prints its caches with their positions in command-line order. Merging restores that
//! order, so the object equals that of an unsharded run, except for times. Parts of different
//! traces, duplicate parts and missing parts are errors.

use std::fs::File;
use std::io::{Read, Take};
use std::path::{Path, PathBuf};

use terrace_common::failure::{Failure, Outcome};

use super::found::{CacheFound, Found};

/// Size limit of a shard's output.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Reads and merges the outputs of all shards.
pub fn merge(files: &[PathBuf]) -> Outcome<Found> {
    let mut parts = Vec::new();
    for path in files {
        parts.push((path, read(path)?));
    }
    join(parts)
}

fn read(path: &Path) -> Outcome<Found> {
    let failed = |error: &dyn std::fmt::Display| Failure::file("reading the shard", path, error);
    let file = File::open(path).map_err(|error| failed(&error))?;
    let mut text = String::new();
    let mut limited: Take<File> = file.take(FILE_BYTES_MAX + 1);
    if limited.read_to_string(&mut text).map_err(|error| failed(&error))? as u64 > FILE_BYTES_MAX {
        return Err(failed(&format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    let found: Found = serde_json::from_str(&text)
        .map_err(|error| failed(&format!("not the output of simulate --json: {error}")))?;
    match has_ratios(&found) {
        true => Ok(found),
        false => Err(failed(&"a miss ratio in it is not between 0 and 1")),
    }
}

/// Whether all miss ratios are in range, so that they can be drawn.
fn has_ratios(found: &Found) -> bool {
    let parts = |result: &CacheFound| {
        let parts = result.queries.iter().chain(&result.relations);
        parts.map(|part| part.miss_ratio).chain([result.miss_ratio]).collect::<Vec<f64>>()
    };
    let ratios = found.results.iter().flat_map(parts);
    let points = found.curves.iter().flat_map(|curve| curve.points.iter().map(|(_, ratio)| *ratio));
    let knees = found.curves.iter().filter_map(|curve| Some(curve.knee?.miss_ratio));
    ratios.chain(points).chain(knees).all(|ratio| (0.0..=1.0).contains(&ratio))
}

fn join(parts: Vec<(&PathBuf, Found)>) -> Outcome<Found> {
    let mut seen: Vec<u32> = Vec::new();
    let mut all: Option<Found> = None;
    for (path, part) in parts {
        let refuse = |why: String| Failure::file("joining the shard", path, why);
        let Some([number, of]) = part.shard else {
            return Err(refuse("it is not a shard; make it with simulate --shard I/N --json".to_owned()));
        };
        if !(1..=of).contains(&number) {
            return Err(refuse(format!("it is part {number} of {of}, which does not exist")));
        }
        if seen.contains(&number) {
            return Err(refuse(format!("part {number} appears twice")));
        }
        seen.push(number);
        let Some(all) = &mut all else {
            all = Some(part);
            continue;
        };
        // Directories of the trace may differ between machines.
        let same = Path::new(&all.trace).file_name() == Path::new(&part.trace).file_name()
            && (all.requests, all.writes, all.footprint, all.block_bytes, all.sample)
                == (part.requests, part.writes, part.footprint, part.block_bytes, part.sample);
        if !same || all.shard.map(|[_, of]| of) != Some(of) {
            return Err(refuse("it belongs to another trace or another number of parts".to_owned()));
        }
        all.results.extend(part.results);
        all.curves.extend(part.curves);
        all.seconds += part.seconds;
    }
    let mut all = all.ok_or_else(|| Failure::Usage("--merge needs the outputs of all shards".to_owned()))?;
    let of = all.shard.take().map_or(0, |[_, of]| of);
    if let Some(missing) = (1..=of).find(|part| !seen.contains(part)) {
        return Err(Failure::Work(format!(
            "part {missing} of {of} is missing; give the outputs of all parts"
        )));
    }
    all.results.sort_by_key(|result| result.index);
    all.curves.sort_by_key(|curve| curve.index);
    match is_whole(&all) {
        true => Ok(all),
        false => Err(Failure::Work(
            "the parts come from different command lines; give the parts of one simulation".to_owned(),
        )),
    }
}

/// Whether the parts add up to one command line: every policy at every size, in order, and one
/// curve per policy.
fn is_whole(all: &Found) -> bool {
    let Found { results, curves, .. } = all;
    let sizes = results.iter().take_while(|result| result.policy == results[0].policy).count();
    let caches = results.iter().enumerate().all(|(index, result)| {
        let (row, column) = (&results[index - index % sizes], &results[index % sizes]);
        let first = &results[0];
        result.index == index
            && result.policy == row.policy
            && (&result.size, result.cache_blocks) == (&column.size, column.cache_blocks)
            && result.cost.is_some() == first.cost.is_some()
            && result.queries.is_empty() == first.queries.is_empty()
            && result.relations.is_empty() == first.relations.is_empty()
    });
    let whole_rows = sizes == 0 || results.len().is_multiple_of(sizes);
    caches && whole_rows && curves.iter().enumerate().all(|(index, curve)| curve.index == index)
}

#[cfg(test)]
mod tests {
    use super::super::found::{CostFound, CurveFound, KneeFound};
    use super::*;

    /// A part of a run with two policies at two sizes.
    fn part(number: u32, of: u32, indices: &[usize]) -> Found {
        let result = |index: &usize| CacheFound {
            index: *index,
            policy: ["lru", "arc"][index / 2].to_owned(),
            size: (index % 2 + 1).to_string(),
            ..CacheFound::default()
        };
        Found {
            trace: "t".into(),
            requests: 9,
            shard: Some([number, of]),
            results: indices.iter().map(result).collect(),
            ..Found::default()
        }
    }

    fn joined(parts: Vec<Found>) -> Outcome<Found> {
        let path = PathBuf::from("p.json");
        join(parts.into_iter().map(|part| (&path, part)).collect())
    }

    #[test]
    fn parts_come_together_in_the_order_of_the_command_line() {
        let all = joined(vec![part(2, 2, &[1, 3]), part(1, 2, &[0, 2])]).unwrap();
        let order: Vec<usize> = all.results.iter().map(|result| result.index).collect();
        assert_eq!((order, all.shard, all.requests), (vec![0, 1, 2, 3], None, 9));
        let elsewhere = Found { trace: "/another/place/t".into(), ..part(1, 2, &[0, 2]) };
        assert_eq!(joined(vec![elsewhere, part(2, 2, &[1, 3])]).unwrap().results.len(), 4);
    }

    #[test]
    fn ratios_that_are_none_are_refused() {
        let curve = CurveFound { points: vec![(1, 0.5), (2, 1.0)], ..CurveFound::default() };
        assert!(has_ratios(&Found { curves: vec![curve.clone()], ..part(1, 1, &[0]) }));
        for ratio in [1e308, -0.1, f64::NAN] {
            let mut points = curve.clone();
            points.points[0].1 = ratio;
            assert!(!has_ratios(&Found { curves: vec![points], ..part(1, 1, &[0]) }));
            let knee = Some(KneeFound { miss_ratio: ratio, ..KneeFound::default() });
            let bent = CurveFound { knee, ..curve.clone() };
            assert!(!has_ratios(&Found { curves: vec![bent], ..part(1, 1, &[0]) }));
            let mut results = part(1, 1, &[0]);
            results.results[0].miss_ratio = ratio;
            assert!(!has_ratios(&results));
        }
    }

    #[test]
    fn ratios_are_joined_to_the_last_digit() {
        for numerator in 1..2000u64 {
            let ratio = numerator as f64 / 914_145.0;
            let text = serde_json::to_string(&CacheFound { miss_ratio: ratio, ..CacheFound::default() });
            let read: CacheFound = serde_json::from_str(&text.unwrap()).unwrap();
            assert_eq!(read.miss_ratio, ratio);
        }
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let other = Found { requests: 8, ..part(2, 2, &[]) };
        let rewritten = Found { writes: 1, ..part(2, 2, &[]) };
        let renamed = Found { trace: "u".into(), ..part(2, 2, &[]) };
        let (mut priced, mut resized) = (part(2, 2, &[1, 3]), part(2, 2, &[1, 3]));
        priced.results[0].cost = Some(CostFound::default());
        resized.results[1].size = "7".to_owned();
        let whole = Found { shard: None, ..part(1, 1, &[]) };
        for (parts, reason) in [
            (vec![part(1, 2, &[]), part(1, 2, &[])], "twice"),
            (vec![part(1, 2, &[])], "part 2 of 2 is missing"),
            (vec![part(1, 2, &[]), other], "another trace"),
            (vec![part(1, 2, &[]), rewritten], "another trace"),
            (vec![part(1, 2, &[]), renamed], "another trace"),
            (vec![part(1, 2, &[]), part(2, 3, &[])], "another number"),
            (vec![part(1, 2, &[0, 2]), part(2, 2, &[1])], "different command lines"),
            (vec![part(1, 2, &[0, 2]), part(2, 2, &[1, 2])], "different command lines"),
            (vec![part(1, 2, &[0, 2]), priced], "different command lines"),
            (vec![part(1, 2, &[0, 2]), resized], "different command lines"),
            (vec![part(3, 2, &[])], "part 3 of 2"),
            (vec![whole], "not a shard"),
            (vec![], "--merge"),
        ] {
            let error = joined(parts).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}
