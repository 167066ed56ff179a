//! Simulations against models, other forms of the trace, and sums of parts.

use super::*;
use crate::trace::{Format, Trace};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Skewed: small numbers come more often.
    fn block(&mut self, blocks: u64) -> u64 {
        let share = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (share.powi(2) * blocks as f64) as u64
    }
}

/// A database trace with four relations and a query every 500 requests.
fn pgt(seed: u64, requests: usize) -> String {
    use std::fmt::Write as _;
    let mut random = Random(seed);
    let mut text = String::from("R 0 a r\nR 1 b i\nR 2 c r\nR 3 d r\n");
    for index in 0..requests {
        if index % 500 == 0 {
            writeln!(text, "Q {index} {} 1 q{} 1,2", index / 500, index % 3).unwrap();
        }
        let write = if random.next().is_multiple_of(4) { "w" } else { "r" };
        let query = if random.next().is_multiple_of(50) { -1 } else { (index / 500) as i64 };
        writeln!(text, "{write} {index} {} {} {query}", random.next() % 4, random.block(700)).unwrap();
    }
    text
}

fn run(simulation: &Simulation, text: &str, format: &str) -> Result<Report, SimError> {
    let format: Format = format.parse().unwrap();
    let bytes: std::sync::Arc<[u8]> = text.as_bytes().into();
    let mut open = || Ok(Trace::new("sample", std::io::Cursor::new(bytes.clone()), format, 4096));
    simulation.run(&mut open, true, &|_| {})
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Blocks and writes of a `pgt` trace.
fn accesses(text: &str) -> Vec<((u64, u64), bool)> {
    let lines = text.lines().filter(|line| line.starts_with(['r', 'w']));
    let number = |line: &str, at: usize| line.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
    lines.map(|line| ((number(line, 2), number(line, 3)), line.starts_with('w'))).collect()
}

/// A plain LRU list.
fn lru(accesses: &[((u64, u64), bool)], capacity: usize) -> (Counts, u64) {
    let mut list: Vec<((u64, u64), bool)> = Vec::new();
    let mut counts = Counts::default();
    for (block, write) in accesses {
        counts.requests += 1;
        let mut dirty = *write;
        if let Some(at) = list.iter().position(|(held, _)| held == block) {
            counts.hits += 1;
            counts.write_hits += u64::from(*write);
            dirty |= list.remove(at).1;
        } else {
            counts.write_misses += u64::from(*write);
            counts.admissions += 1;
            counts.write_admissions += u64::from(*write);
            if list.len() == capacity {
                counts.evictions += 1;
                counts.write_backs += u64::from(list.remove(0).1);
            }
        }
        list.push((*block, dirty));
    }
    (counts, list.iter().filter(|(_, dirty)| *dirty).count() as u64)
}

#[test]
fn lru_does_what_a_list_does_at_every_size() {
    let text = pgt(1, 6000);
    let accesses = accesses(&text);
    let sizes = [1, 2, 7, 100, 500, 1000];
    let simulation = sizes
        .iter()
        .fold(Simulation::new(), |simulation, size| simulation.cache(name("lru"), Size::Blocks(*size)))
        .curve(name("lru"));
    let report = run(&simulation, &text, "pgt").unwrap();
    for (result, size) in report.results.iter().zip(sizes) {
        let (counts, dirty) = lru(&accesses, size);
        assert_eq!((result.counts, result.dirty_at_end), (counts, dirty), "{size} blocks");
        assert_eq!(result.cache_blocks, size);
    }
    for point in &report.curves[0].points {
        let (counts, _) = lru(&accesses, point.cache_blocks);
        assert_eq!(point.miss_ratio, counts.miss_ratio(), "{} blocks", point.cache_blocks);
    }
}

#[test]
fn curves_of_other_policies_are_what_their_caches_do() {
    let text = pgt(2, 4000);
    let report = run(&Simulation::new().curve(name("fifo")), &text, "pgt").unwrap();
    let points = &report.curves[0].points;
    let simulation = points.iter().fold(Simulation::new(), |simulation, point| {
        simulation.cache(name("fifo"), Size::Blocks(point.cache_blocks))
    });
    let single = run(&simulation.threads(1), &text, "pgt").unwrap();
    assert!(points.len() > 10);
    for (point, result) in points.iter().zip(&single.results) {
        assert_eq!(point.miss_ratio, result.counts.miss_ratio());
    }
    assert!(points.is_sorted_by(|a, b| a.cache_blocks < b.cache_blocks));
}

#[test]
fn streamed_is_as_loaded_whatever_the_sizes() {
    // Several chunks.
    let text = pgt(3, 200_000);
    let absolute = Simulation::new()
        .cache(name("lru"), Size::Blocks(300))
        .cache(name("fifo"), Size::Blocks(1000))
        .parts(true, true);
    let relative = absolute.clone().cache(name("lru"), "12.5%".parse().unwrap()).curve(name("lru"));
    for simulation in [absolute, relative] {
        let loaded = run(&simulation, &text, "pgt").unwrap();
        let streamed = run(&simulation.clone().loaded_requests_max(100_000), &text, "pgt").unwrap();
        assert_eq!(loaded.summary.requests, 200_000);
        assert_eq!(streamed.summary.footprint, loaded.summary.footprint);
        for (a, b) in loaded.results.iter().zip(&streamed.results) {
            assert_eq!((a.counts, a.cache_blocks, &a.queries), (b.counts, b.cache_blocks, &b.queries));
            assert_eq!(a.relations, b.relations);
        }
        assert_eq!(loaded.results.len(), streamed.results.len());
        let points = |report: &Report| report.curves.iter().map(|c| c.points.clone()).collect::<Vec<_>>();
        assert_eq!(points(&loaded), points(&streamed));
    }
}

#[test]
fn every_policy_is_run_and_none_misses_less_than_belady() {
    let text = pgt(6, 30_000);
    let simulation = crate::policy::NAMES.iter().fold(Simulation::new(), |simulation, policy| {
        ["1%", "20%"]
            .iter()
            .fold(simulation, |simulation, size| simulation.cache(name(policy), size.parse().unwrap()))
    });
    let report = run(&simulation, &text, "pgt").unwrap();
    let belady = |size: Size| {
        let found = report.results.iter().find(|r| r.policy.needs_future() && r.size == size);
        found.unwrap().counts.misses()
    };
    for result in &report.results {
        let Counts { requests, hits, admissions, evictions, write_backs, .. } = result.counts;
        assert_eq!(requests, 30_000);
        assert!(admissions <= requests - hits, "{}", result.policy);
        assert!(admissions - evictions <= result.cache_blocks as u64, "{}", result.policy);
        assert!(write_backs <= evictions && result.dirty_at_end <= admissions - evictions);
        assert!(result.counts.misses() >= belady(result.size), "{}", result.policy);
    }
}

/// Eleven requests in a cache of two blocks, followed by hand.
#[test]
fn baselines_do_what_was_worked_out_by_hand() {
    let text = "10,r\n11,r\n10,w\n12,r\n13,w\n10,r\n12,w\n11,r\n12,r\n10,r\n12,r\n";
    let simulation = ["opencas", "memory-mode", "lru"]
        .iter()
        .fold(Simulation::new(), |simulation, policy| simulation.cache(name(policy), Size::Blocks(2)));
    let report = run(&simulation, text, "csv").unwrap();
    let opencas = Counts {
        requests: 11,
        hits: 5,
        write_hits: 2,
        // 13 bypasses the cache.
        write_misses: 1,
        admissions: 5,
        evictions: 3,
        written_through: 2,
        ..Counts::default()
    };
    // 10 and 12 have the first slot, 11 and 13 the other; with a choice the last request would hit.
    let memory_mode = Counts {
        requests: 11,
        hits: 2,
        write_hits: 1,
        write_misses: 2,
        admissions: 9,
        write_admissions: 2,
        evictions: 7,
        write_backs: 3,
        conflict_misses: 1,
        ..Counts::default()
    };
    let found: Vec<Counts> = report.results.iter().map(|result| result.counts).collect();
    assert_eq!(found[..2], [opencas, memory_mode]);
    assert!(report.results.iter().take(2).all(|result| result.dirty_at_end == 0));
    assert_eq!((found[2].written_through, found[2].conflict_misses), (0, 0));
}

#[test]
fn a_direct_mapped_cache_as_large_as_the_footprint_has_no_conflicts() {
    let text = pgt(8, 20_000);
    let simulation = Simulation::new().parts(true, true);
    let simulation = simulation.cache(name("memory-mode"), "100%".parse().unwrap());
    let simulation = simulation.cache(name("memory-mode"), "10%".parse().unwrap());
    let report = run(&simulation, &text, "pgt").unwrap();
    let [all, some] = [0, 1].map(|index| &report.results[index]);
    assert_eq!((all.counts.misses(), all.counts.conflict_misses), (report.summary.footprint as u64, 0));
    assert!(some.counts.conflict_misses > 0 && some.counts.evictions > 0);
    let sum = some.relations.iter().fold(Counts::default(), |sum, part| sum.plus(&part.counts));
    assert_eq!(sum, some.counts);
}

#[test]
fn parts_add_up_to_the_whole() {
    let text = pgt(4, 20_000);
    let simulation = Simulation::new().cache(name("lru"), "10%".parse().unwrap()).parts(true, true);
    let report = run(&simulation, &text, "pgt").unwrap();
    let result = &report.results[0];
    for (parts, numbers) in [(&result.queries, 41), (&result.relations, 4)] {
        assert_eq!(parts.len(), numbers);
        let sum = parts.iter().fold(Counts::default(), |sum, part| sum.plus(&part.counts));
        assert_eq!(sum, result.counts);
    }
    let accesses = accesses(&text);
    for part in &result.relations {
        let of_it = accesses.iter().filter(|((relation, _), _)| Some(*relation as u32) == part.number);
        assert_eq!(part.counts.requests, of_it.count() as u64);
    }
    assert_eq!(result.queries[0].number, None);
    assert_eq!(report.summary.queries.len(), 40);
    let sizes: Vec<u32> = report.summary.relation_blocks.iter().map(|(relation, _)| *relation).collect();
    assert_eq!(sizes, [0, 1, 2, 3]);
}

#[test]
fn a_sample_is_near_the_whole() {
    use std::fmt::Write as _;
    let mut random = Random(5);
    let mut text = String::new();
    for _ in 0..300_000 {
        writeln!(text, "{} 1 0 0", random.block(40_000)).unwrap();
    }
    let simulation = Simulation::new().curve(name("lru")).curve(name("fifo"));
    let whole = run(&simulation, &text, "lis").unwrap();
    for share in [0.5, 0.1] {
        let sample = run(&simulation.clone().sample(share), &text, "lis").unwrap();
        assert_eq!(sample.summary.requests, 300_000);
        let footprint = sample.summary.footprint as f64 / whole.summary.footprint as f64;
        assert!((footprint - 1.0).abs() < 0.05, "{footprint}");
        for (curve, estimate) in whole.curves.iter().zip(&sample.curves) {
            // From one percent on: a sample of a few blocks says nothing.
            let points = curve.points.iter().filter(|p| p.cache_blocks * 100 >= whole.summary.footprint);
            let errors = points.map(|point| {
                let nearest =
                    estimate.points.iter().min_by_key(|p| p.cache_blocks.abs_diff(point.cache_blocks));
                (nearest.unwrap().miss_ratio - point.miss_ratio).abs()
            });
            let errors: Vec<f64> = errors.collect();
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            assert!(mean < 0.02, "{} at {share}: {mean}", curve.policy);
        }
    }
}

#[test]
fn what_cannot_be_is_said() {
    let text = "1 10 0 0\n";
    let of = |size: Size| run(&Simulation::new().cache(name("lru"), size), text, "lis").unwrap_err();
    assert!(matches!(of(Size::Blocks(11)), SimError::BeyondFootprint { footprint: 10, .. }));
    let small: Size = "1%".parse().unwrap();
    assert!(of(small).to_string().contains("1% has no blocks: the trace has 10"));
    let simulation = Simulation::new().cache(name("lru"), Size::Blocks(1));
    assert!(matches!(run(&simulation, "", "lis"), Err(SimError::Empty)));
    assert!(matches!(run(&simulation, "R 1 a r\n", "pgt"), Err(SimError::Empty)));
    assert!(matches!(run(&simulation, "1 x", "lis"), Err(SimError::Trace(_))));
    let streamed = Simulation::new().cache(name("lru"), Size::Blocks(200_001)).loaded_requests_max(10);
    let long = "0 100000 0 0\n100000 100000 0 1\n";
    assert!(matches!(run(&streamed, long, "lis"), Err(SimError::BeyondFootprint { footprint: 200_000, .. })));
    let malformed_late = format!("{long}x\n");
    assert!(matches!(run(&streamed, &malformed_late, "lis"), Err(SimError::Trace(_))));
    let belady = Simulation::new().cache(name("belady"), Size::Blocks(1)).loaded_requests_max(10);
    let error = run(&belady, long, "lis").unwrap_err();
    assert!(error.to_string().starts_with("belady needs the whole trace in memory"), "{error}");
    let relative = Simulation::new().cache(name("lru"), small).loaded_requests_max(10);
    let mut open = || Ok(Trace::new("pipe", long.as_bytes(), "lis".parse().unwrap(), 4096));
    let error = relative.run(&mut open, false, &|_| {}).unwrap_err();
    assert!(matches!(error, SimError::TooLong { .. }) && error.to_string().contains("1% of the footprint"));
}

#[test]
fn distances_of_a_short_trace_are_as_counted_by_hand() {
    // a b c b a a d: distances -, -, -, 2, 3, 1, -
    let report = run(&Simulation::new().curve(name("lru")), "0\n1\n2\n1\n0\n0\n3\n", "csv").unwrap();
    let misses: Vec<f64> = report.curves[0].points.iter().map(|point| point.miss_ratio * 7.0).collect();
    assert_eq!(misses.iter().map(|ratio| ratio.round()).collect::<Vec<_>>(), [6.0, 5.0, 4.0, 4.0]);
}

#[test]
fn sizes_are_exact_and_refused_by_reason() {
    for (text, blocks) in [("0.1%", 186), ("33.3%", 62231), ("100%", 186_880), ("7", 7)] {
        let size: Size = text.parse().unwrap();
        assert_eq!((size.blocks(186_880, 4096).unwrap(), size.to_string()), (blocks, text.to_owned()));
    }
    for text in ["", "%", "x", "-1", "1.5", "1e3", "0", "0%", "0.0%", "101%", "1.%", "99999999999", "5 %"] {
        assert!(text.parse::<Size>().is_err(), "{text}");
    }
}

#[test]
fn sizes_in_bytes_are_whole_blocks() {
    for (text, blocks, shown) in [
        ("1MiB", 128, "1MiB"),
        ("1.5MiB", 192, "1536KiB"),
        ("16383B", 1, "16383B"),
        ("1GiB", 131_072, "1GiB"),
    ] {
        let size: Size = text.parse().unwrap();
        assert_eq!((size.blocks(186_880, 8192).unwrap(), size.to_string()), (blocks, shown.to_owned()));
    }
    for (text, reason) in [("0B", "0 bytes"), ("64MB", "MiB"), ("1.0001B", "whole number"), ("5x", "unit")] {
        let error = text.parse::<Size>().unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
    let of = |size: &str, block_bytes| {
        let simulation = Simulation::new().cache(name("lru"), size.parse().unwrap()).block_bytes(block_bytes);
        run(&simulation, "0 10 0 0\n", "lis")
    };
    assert_eq!(of("8KiB", 512).unwrap_err().to_string().matches("8KiB, 16 blocks").count(), 1);
    assert!(
        of("8KiB", 16_384).unwrap_err().to_string().contains("8KiB has no blocks: a block has 16384 bytes")
    );
    assert_eq!(of("8KiB", 1024).unwrap().results[0].cache_blocks, 8);
}

/// Point queries of one table: 60,000 reads of 8,000 blocks by Zipf's law of .9, with a query
/// before every `reads` of them, or none.
fn point_queries(seed: u64, reads: usize) -> String {
    use std::fmt::Write as _;
    let mut random = Random(seed);
    let mut text = String::from("R 0 t r\n");
    for index in 0..60_000 {
        if reads > 0 && index % reads == 0 {
            writeln!(text, "Q {index} {} 1 point 0", index / reads).unwrap();
        }
        let share = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let rank = (share.powf(1.0 / (1.0 - 0.9)) * 8000.0) as u64;
        // Hot blocks are scattered.
        writeln!(text, "r {index} 0 {} 0", rank * 4999 % 8000).unwrap();
    }
    text
}

#[test]
fn short_queries_do_not_empty_the_cache() {
    for seed in 1..=3 {
        let policies = ["heuristicdb", "heuristicdb-eager", "heuristicdb-paper"];
        let caches = policies
            .iter()
            .fold(Simulation::new(), |all, policy| all.cache(name(policy), Size::Blocks(1600)));
        let untold = run(&caches, &point_queries(seed, 0), "pgt").unwrap();
        for reads in [1, 4, 50] {
            let told = run(&caches, &point_queries(seed, reads), "pgt").unwrap();
            let (paper, others) = told.results.split_last().unwrap();
            for (told, untold) in others.iter().zip(&untold.results) {
                let (with, without) = (&told.counts, &untold.counts);
                let what =
                    format!("{}, seed {seed}, {reads} reads a query: {with:?}, {without:?}", told.policy);
                assert!(50 * with.hits >= 49 * without.hits, "{what}");
                assert!(10 * with.admissions <= 11 * without.admissions, "{what}");
            }
            // The paper's rule judges one query, even of one lookup.
            let without = &untold.results[2].counts;
            assert!(reads > 1 || 4 * paper.counts.hits < 3 * without.hits, "{paper:?}");
        }
    }
}

#[test]
fn streamed_is_as_loaded_for_policies_that_know_relations() {
    let text = pgt(8, 150_000);
    let policies = ["heuristicdb", "heuristicdb-paper", "auto", "small-bypass:1000+lru"];
    let simulation = policies
        .iter()
        .fold(Simulation::new(), |simulation, policy| simulation.cache(name(policy), Size::Blocks(300)));
    let loaded = run(&simulation, &text, "pgt").unwrap();
    let short = simulation.loaded_requests_max(70_000);
    let streamed = run(&short, &text, "pgt").unwrap();
    for (a, b) in loaded.results.iter().zip(&streamed.results) {
        assert_eq!(a.counts, b.counts, "{}", a.policy);
    }
    let mut pipe =
        || Ok(Trace::new("pipe", std::io::Cursor::new(text.clone()), "pgt".parse().unwrap(), 4096));
    let error = short.run(&mut pipe, false, &|_| {}).unwrap_err();
    assert!(error.to_string().contains("heuristicdb, which is told the sizes"), "{error}");
}

#[test]
fn a_shard_without_caches_reads_a_long_trace_to_its_end() {
    let text = "0 100000 0 0\n".repeat(70);
    let report = run(&Simulation::new().loaded_requests_max(10), &text, "lis").unwrap();
    assert_eq!((report.summary.requests, report.results.len()), (7_000_000, 0));
}

#[test]
fn names_take_bounded_memory() {
    /// An endless line.
    struct Again(Vec<u8>, usize);
    impl std::io::Read for Again {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let bytes = buffer.len().min(self.0.len() - self.1);
            buffer[..bytes].copy_from_slice(&self.0[self.1..self.1 + bytes]);
            self.1 = (self.1 + bytes) % self.0.len();
            Ok(bytes)
        }
    }
    let query = format!("Q 0 0 1 q {}1\n", "1,".repeat(500_000)).into_bytes();
    let relation = format!("R 1 {} r\n", "a".repeat(1_000_000)).into_bytes();
    for line in [query, relation] {
        let mut open = || Ok(Trace::new("t", Again(line.clone(), 0), "pgt".parse().unwrap(), 4096));
        let error = Simulation::new().run(&mut open, true, &|_| {}).unwrap_err();
        assert!(matches!(error, SimError::TooMany { .. }), "{error}");
    }
}

#[test]
fn requests_of_the_trace_are_counted_beside_those_for_a_block() {
    let simulation = Simulation::new().cache(name("lru"), Size::Blocks(1));
    let summary = run(&simulation, "0 3 0 0\n7 1 0 1\n", "lis").unwrap().summary;
    assert_eq!((summary.trace_requests, summary.requests), (2, 4));
}

#[test]
fn samples_that_say_nothing_are_refused() {
    let of = |text: &str, blocks: usize, share: f64| {
        let simulation = Simulation::new().cache(name("lru"), Size::Blocks(blocks)).sample(share);
        run(&simulation.curve(name("fifo")), text, "lis")
    };
    assert!(matches!(of("1 1 0 0\n", 1, 1e-9), Err(SimError::EmptySample { .. })));
    assert!(matches!(
        of("0 10000 0 0\n", 4, 0.1),
        Err(SimError::NoBlocksInSample { blocks: 4, footprint: 9_000..11_000, .. })
    ));
    let report = of("0 10000 0 0\n", 100, 0.01).unwrap();
    assert!(report.curves[0].points[0].cache_blocks >= 50);
}
