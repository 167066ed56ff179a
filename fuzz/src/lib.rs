//! The fuzz targets as plain functions, so that `cargo test` can run them too.
//!
//! - [`pages`]: a page file with mutated bytes, also of compressed images, and checksums recomputed
//!   up to the superblock;
//! - [`log`]: the log of a killed database, in the same way;
//! - [`operations`]: sequences of calls compared with a `BTreeMap`;
//! - [`caches`]: file and guard of a block cache, closed or with pending write-backs, in the same
//!   way;
//! - [`traces`]: a block trace of any format with mutated bytes, read and simulated;
//! - [`databases`], [`backups`], [`cache_fields`], [`trace_fields`]: the same kinds of files, with
//!   numbers set in structure fields and all checksums recomputed.
//!
//! A target fails by panicking, hanging, or exceeding the fuzzer's memory limit. An error is an
//! acceptable answer to a hostile file. Everything is in memory and single-threaded, so an input
//! replays exactly.

mod cache;
mod choices;
mod files;
mod model;
mod structure;
mod trace;

use std::sync::OnceLock;

pub use cache::{cache_fields, caches};
use files::Files;
pub use structure::{backups, databases};
use terrace_cache::sim::{Simulation, Size};
use terrace_cache::trace::Trace;
pub use trace::trace_fields;

/// Bytes per edit: position (three), how (one), value (eight).
const EDIT_BYTES: usize = 12;
/// Limit of edits per input.
const EDITS_MAX: usize = 32;

/// Applies the edits of `input` to `file`: flips a byte or sets a word.
fn edit(file: &mut [u8], input: &[u8]) {
    for edit in input.chunks_exact(EDIT_BYTES).take(EDITS_MAX) {
        let at = usize::from(edit[0]) << 16 | usize::from(edit[1]) << 8 | usize::from(edit[2]);
        let at = at % file.len();
        let value = &edit[4..];
        let length = [1, 2, 4, 8][usize::from(edit[3] & 3)].min(file.len() - at);
        let target = &mut file[at..at + length];
        if edit[3] & 4 == 0 {
            target.copy_from_slice(&value[..length]);
        } else {
            target.iter_mut().zip(value).for_each(|(byte, flip)| *byte ^= flip);
        }
    }
}

/// A closed database with a mutated page file. The first byte selects whether to recompute
/// checksums and whether pages are compressed.
pub fn pages(input: &[u8]) {
    static CLOSED: OnceLock<[Files; 2]> = OnceLock::new();
    let Some((&how, edits)) = input.split_first() else { return };
    let closed = CLOSED.get_or_init(|| [model::closed(false), model::closed(true)]);
    let mut files = closed[usize::from(how >> 1 & 1)].clone();
    edit(&mut files.pages, edits);
    if how & 1 == 0 {
        files.mend_pages();
    }
    model::use_hostile(&files);
}

/// A killed database with a mutated log. The first byte selects whether to recompute checksums.
pub fn log(input: &[u8]) {
    static KILLED: OnceLock<Files> = OnceLock::new();
    let Some((&how, edits)) = input.split_first() else { return };
    let mut files = KILLED.get_or_init(model::killed).clone();
    let from = files.log_start() as usize;
    // A short run leaves most of the ring unwritten, so edits go where records are.
    let (start, end) =
        if how & 2 == 0 { (from, (from + (64 << 10)).min(files.log.len())) } else { (0, files.log.len()) };
    edit(&mut files.log[start..end], edits);
    if how & 1 == 0 {
        files.mend_log();
    }
    model::use_hostile(&files);
}

/// Any calls, each compared with a map, over several restarts of the database.
pub fn operations(input: &[u8]) {
    model::operations(input);
}

/// A trace of each format; the last ones are compressed.
const TRACES: [(&str, &[u8]); 16] = [
    ("lis", b"10 2 0 0\n7 1 0 1\n10 9 0 2\n"),
    ("u32le", b"\x01\0\0\0\x02\0\0\0\x01\0\0\0"),
    ("csv", b"version,time,op,size,lbn\n1,5,2a,512,16\n1,9,28,8193,15\n"),
    ("pgt", b"R 3 orders r\nQ 10 0 77 q6 3,4\nr 11 3 5 0\nw 12 3 6 -1\n"),
    ("oracleGeneral", b"\x01\0\0\0\x07\0\0\0\0\0\0\0\0\x10\0\0\xff\xff\xff\xff\xff\xff\xff\xff"),
    ("blktrace", b"8,0 3 2 0.000001829 697 Q W 16 + 8 [a]\n8,0 3 3 1.5 697 Q RA 9 + 16 [b]\nCPU3 (8,0):\n"),
    ("csv", b"\"disk\",\"Request Size\",LBA,is_write\n\"a,b\",512,16,1\nc,8193,15,0\n"),
    ("csv", b"0,R,126703661056,4096,1577808000000046\n1,W,4096,8192,1577808000000426\n"),
    ("msr", b"128166372003061629,hm,0,Read,8192,4096,1331\n128166372016382155,hm,1,Write,1,9,2\n"),
    ("tencent", b"1538323200,16,9,1,1283\n1538323201,8,8,0,1284\n"),
    ("systor", b"Timestamp,Response,IOType,LUN,Offset,Size\n14.013118000,0.001,W,0,4096,8192\n15,,,0,0,1\n"),
    ("fio", b"fio version 2 iolog\na add\na write 4095 2\nb read 0 4096\na wait 1000 0\na close\n"),
    ("fio", b"fio version 3 iolog\n0 a add\n9 a write 4095 2\n12 b read 0 4096\n13 a sync 0 0\n"),
    (
        "vscsi",
        b"\x07\0\0\0\0\x10\0\0\x01\0\0\0\x28\0\0\x01\x08\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\
          \x08\0\0\0\x01\x10\0\0\x01\0\0\0\x2a\0\0\x01\x07\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0",
    ),
    ("lis.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x033T0T0P0\xe0\x02\x00\xb6/\xea\x1a\x08\x00\x00\x00"),
    ("lis.zst", b"\x28\xb5\x2f\xfd\x04\x58\x41\0\x001 1 0 0\n\x56\xdb\x54\xb0"),
];

/// A mutated trace. The first byte selects the trace; input beyond the edits is appended.
pub fn traces(input: &[u8]) {
    let Some((&which, edits)) = input.split_first() else { return };
    let (format, sample) = TRACES[usize::from(which) % TRACES.len()];
    let mut bytes = sample.to_vec();
    edit(&mut bytes, edits);
    bytes.extend_from_slice(edits.chunks_exact(EDIT_BYTES).remainder());
    let format = format.parse().expect("a format");
    // A request may cover a million blocks, but a trace has few.
    let simulation = Simulation::new()
        .threads(1)
        .cache("lru".parse().expect("a policy"), Size::Blocks(1))
        .parts(true, true);
    let mut open = || Ok(Trace::new("fuzzed", std::io::Cursor::new(bytes.clone()), format, 4096));
    // An error is acceptable.
    let _ = simulation.run(&mut open, true, &|_| {});
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_is_a_whole_trace() {
        for (format, sample) in TRACES {
            let trace = Trace::new("sample", sample, format.parse().expect("a format"), 4096);
            let events: Result<Vec<_>, _> = trace.collect();
            assert!(!events.expect(format).is_empty(), "{format}");
        }
    }
}
