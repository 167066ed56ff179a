//! Parsed contents and errors of each format.

mod columns;
mod files;

use std::sync::atomic::Ordering;

use super::*;

/// The frames in sequence, each compressed.
fn compressed(frames: &[&[u8]]) -> Vec<u8> {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    frames.iter().flat_map(|frame| compress_to_vec(*frame, CompressionLevel::Fastest)).collect()
}

fn read(text: impl AsRef<[u8]>, format: &str) -> Result<Vec<Event>, TraceError> {
    let bytes = text.as_ref().to_vec();
    Trace::new("sample", io::Cursor::new(bytes), format.parse()?, 4096).collect()
}

/// Blocks and whether each is written.
fn accesses(text: impl AsRef<[u8]>, format: &str) -> Vec<(u64, bool)> {
    let request = |event| match event {
        Event::Request(request) => Some((request.block, request.write)),
        _ => None,
    };
    read(text, format).unwrap().into_iter().filter_map(request).collect()
}

#[track_caller]
fn refused(text: impl AsRef<[u8]>, format: &str, line: &str, reason: &str) {
    let error = read(text, format).unwrap_err();
    assert!(matches!(error, TraceError::Malformed { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("sample") && text.contains(line) && text.contains(reason), "{text}");
}

#[test]
fn lis_lines_are_spans() {
    assert_eq!(accesses("5 3 0 0\n\n9 1 0 1", "lis"), [5, 6, 7, 9].map(|block| (block, false)));
    refused("1 1 0 0\n1 x 0 1\n", "lis", "line 2", "\"x\"");
    refused("1 1 0\n", "lis", "line 1", "missing");
    refused("1 1 0 0 0\n", "lis", "line 1", "four fields");
    refused("1 0 0 0\n", "lis", "line 1", "no blocks");
    refused("1 99999999999 0 0\n", "lis", "line 1", "at most");
    refused("18446744073709551615 2 0 0\n", "lis", "line 1", "beyond");
    refused("18446744073709551616 1 0 0\n", "lis", "line 1", "2^64");
    refused("-1 1 0 0\n", "lis", "line 1", "whole number");
}

#[test]
fn u32le_is_numbers_alone() {
    let bytes: Vec<u8> = [7u32, 0, u32::MAX].iter().flat_map(|block| block.to_le_bytes()).collect();
    assert_eq!(accesses(&bytes, "u32le"), [7, 0, u64::from(u32::MAX)].map(|block| (block, false)));
    refused(&bytes[..10], "u32le", "record 3", "after 2 of its 4 bytes");
    // Records across two buffers.
    let long: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    let blocks = accesses(compressed(&[&long[..3], &long[3..]]), "u32le.zst");
    assert!(blocks.iter().zip(0..).all(|((block, _), index)| *block == index) && blocks.len() == 200_000);
}

#[test]
fn csv_reads_the_dialect_of_cloud_physics() {
    let text = "version,time,op,size,lbn\n1,5,2a,512,16\n1,9,28,8193,15\n1,9,28,0,8\n";
    let written = [(2, true)];
    let read_blocks = [1, 2, 3, 1].map(|block| (block, false));
    assert_eq!(accesses(text, "csv"), [&written[..], &read_blocks].concat());
    let events = read(text, "csv").unwrap();
    assert!(matches!(events[0], Event::Request(Request { time_us: Some(5), .. })));
}

#[test]
fn csv_reads_plain_columns_in_any_order_and_none() {
    assert_eq!(accesses("op, block ,note\nW,5,x\nread,6,\n", "csv"), [(5, true), (6, false)]);
    assert_eq!(accesses("offset,size\n4095,2\n", "csv"), [(0, false), (1, false)]);
    assert_eq!(accesses("3\n4\n", "csv"), [(3, false), (4, false)]);
    assert_eq!(accesses("3,w\n4,r\n", "csv"), [(3, true), (4, false)]);
    // A byte-order mark, SCSI operations of any address length, times with a fraction.
    assert_eq!(accesses("\u{feff}block,op\n5,w\n", "csv"), [(5, true)]);
    assert_eq!(accesses("\u{feff}5\n", "csv"), [(5, false)]);
    let scsi = "op,block\n88,1\n8A,2\n08,3\n0a,4\na8,5\naa,6\n";
    let codes: Vec<bool> = accesses(scsi, "csv").into_iter().map(|(_, write)| write).collect();
    assert_eq!(codes, [false, true, false, true, false, true]);
    let events = read("time,block\n17.5,1\n", "csv").unwrap();
    assert!(matches!(events[0], Event::Request(Request { time_us: Some(17), .. })));
}

#[test]
fn csv_refuses_by_line() {
    refused("time,op\n1,r\n", "csv", "line 1", "no column for the position");
    refused("block,lbn\n", "csv", "line 1", "2 columns for the position");
    refused("block,op,rw\n", "csv", "line 1", "2 columns for the operation");
    refused("block,op\n1,2f\n", "csv", "line 2", "2f");
    refused("block,op\n1\n", "csv", "line 2", "fewer");
    refused("block\n1,2\n", "csv", "line 2", "more");
    refused("block\n\u{feff}1\n", "csv", "line 2", "block");
    refused("block,time\n1,0.x\n", "csv", "line 2", "time");
    refused("block,time\n1,5.\n", "csv", "line 2", "time");
    refused("lbn\n36028797018963968\n", "csv", "line 2", "beyond");
    refused("offset,size\n0,99999999999\n", "csv", "line 2", "at most");
    refused("offset,size\n18446744073709551615,4096\n", "csv", "line 2", "beyond");
    refused(",".repeat(300), "csv", "line 1", "columns");
}

#[test]
fn pgt_has_relations_and_queries() {
    let text = "# comment\nR 3 orders r\nQ 10 0 77 q6 3,4\nr 11 3 5 0\nw 12 3 6 -1\nQ 13 1 77 q7\n";
    let events = read(text, "pgt").unwrap();
    let request = |write, page: u32, query, time_us| {
        let block = 3 << 32 | u64::from(page);
        let (relation, time_us) = (Some(3), Some(time_us));
        Event::Request(Request { block, write, relation, query, time_us, continues: false })
    };
    let query = |number, template: &str, time_us, relations: &[u32]| {
        let (template, relations) = (template.to_owned(), relations.to_vec());
        Event::Query(Box::new(Query { number, time_us, process: 77, template, relations }))
    };
    assert_eq!(
        events,
        [
            Event::Relation(Box::new(Relation { number: 3, name: "orders".into(), kind: "r".into() })),
            query(0, "q6", 10, &[3, 4]),
            request(false, 5, Some(0), 11),
            request(true, 6, None, 12),
            query(1, "q7", 13, &[]),
        ]
    );
    refused("x 1 2 3 4\n", "pgt", "line 1", "\"x\"");
    refused("\nr 1 2 4294967296 4\n", "pgt", "line 2", "2^32");
    refused("r 1 2147483648 1 4\n", "pgt", "line 1", "2^31");
    refused("r 1 2 3 -2\n", "pgt", "line 1", "-2");
    refused("r 1 2 3\n", "pgt", "line 1", "query is missing");
    refused("r 1 2 3 4 5\n", "pgt", "line 1", "follows");
    refused("Q 1 2 3 q6 1,,2\n", "pgt", "line 1", "relation of the query");
    refused(b"R 1 \xff r\n", "pgt", "line 1", "UTF-8");
}

#[test]
fn oracle_general_has_records_of_24_bytes() {
    let record = |time: u32, object: u64| {
        let (time, object) = (time.to_le_bytes(), object.to_le_bytes());
        [&time[..], &object, &4096u32.to_le_bytes(), &(-1i64).to_le_bytes()].concat()
    };
    let bytes = [record(2, 70_000_000_000), record(3, u64::MAX)].concat();
    let events = read(&bytes, "oracleGeneral").unwrap();
    let Event::Request(first) = &events[0] else { panic!("{events:?}") };
    assert_eq!((first.block, first.time_us, first.write), (70_000_000_000, Some(2_000_000), false));
    assert_eq!(events.len(), 2);
    refused(&bytes[..30], "oracleGeneral", "record 2", "after 6 of its 24 bytes");
}

#[test]
fn blktrace_counts_what_was_queued() {
    let text = "\
  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  Q   W 16 + 8 [kjournald]
  8,0    3        3     1.5           697  Q  RA 9 + 16 [postgres]
  8,16   0        1     2.000000000   698  Q   R 0 + 8 [cat]
  8,0    3        4     2.1           697  Q FWS [kjournald]
  8,0    3        5     2.2           697  Q   D 64 + 8 [fstrim]
  8,0    3        6     2.3           697  C   W 16 + 8 [0]

CPU3 (8,0):
 Reads Queued:           2,       12KiB
";
    let second = 1 << 48;
    assert_eq!(accesses(text, "blktrace"), [(2, true), (1, false), (2, false), (3, false), (second, false)]);
    let events = read(text, "blktrace").unwrap();
    assert!(matches!(events[1], Event::Request(Request { time_us: Some(1_500_000), .. })));
    refused(
        "8,0 1 2 0.1 3 D R 0 + 8 [a]\n8,0 1 3 0.2 3 C R 0 + 8 [0]\n",
        "blktrace",
        "line 3",
        "only 2 other actions",
    );
    assert_eq!(read("", "blktrace").unwrap().len(), 0);
    refused("hello\n", "blktrace", "line 1", "device");
    refused("8,0 1 2 x 3 Q R 0 + 8 [a]\n", "blktrace", "line 1", "time");
    refused("8,0 1 2 0.0 3 Q R 0 - 8 [a]\n", "blktrace", "line 1", "`+`");
    refused("8,0 1 2 0.0 3 Q R 18446744073709551615 + 8 [a]\n", "blktrace", "line 1", "16 EiB");
}

#[test]
fn compressed_frames_follow_one_another() {
    let skipped = [&0x184d_2a50u32.to_le_bytes()[..], &5u32.to_le_bytes(), b"extra"].concat();
    let parts = [compressed(&[b"10 2 0 0\n7 "]), skipped, compressed(&[b"1 0 1\n"])];
    assert_eq!(accesses(parts.concat(), "lis.zst"), [10, 11, 7].map(|block| (block, false)));
    let whole = compressed(&[b"10 2 0 0\n"]);
    refused(&whole[..whole.len() - 3], "lis.zst", "line 1", "damaged");
    refused(b"10 2 0 0\n", "lis.zst", "line 1", "the data are not compressed by Zstandard");
    refused([&whole[..], b"more"].concat(), "lis.zst", "line", "no frame begins after another");
    refused(&parts.concat()[..parts[0].len() + 10], "lis.zst", "line", "inside a frame");
}

#[test]
fn a_changed_checksum_is_noticed() {
    // `printf '1 1 0 0\n' | zstd --check`
    let mut frame = b"\x28\xb5\x2f\xfd\x04\x58\x41\x00\x00\x31 1 0 0\n".to_vec();
    let end = frame.len();
    frame.extend_from_slice(&[0; 4]);
    refused(&frame, "lis.zst", "line", "checksum");
    frame[end..].copy_from_slice(&CHECKSUM);
    assert_eq!(accesses(&frame, "lis.zst"), [(1, false)]);
}

/// The checksum of the frame above.
const CHECKSUM: [u8; 4] = [0x56, 0xdb, 0x54, 0xb0];

#[test]
fn a_line_without_end_is_refused() {
    refused(vec![b'1'; LINE_BYTES_MAX + 2], "lis", "line 1", "longer");
}

#[test]
fn a_trace_ends_after_its_first_error() {
    let mut trace = Trace::new("t", &b"1 1 0 0\nx\n1 1 0 0\n"[..], "lis".parse().unwrap(), 4096);
    assert!(trace.next().unwrap().is_ok());
    assert!(trace.next().unwrap().is_err());
    assert!(trace.next().is_none());
    assert_eq!(trace.bytes_read().load(Ordering::Relaxed), 18);
}

#[test]
fn files_are_opened_by_their_ending() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.LIS");
    std::fs::write(&path, "3 1 0 0\n").unwrap();
    assert_eq!(Trace::open(&path, None, 4096).unwrap().count(), 1);
    let error = Trace::open(&directory.path().join("b.lis"), None, 4096).map(|_| ()).unwrap_err();
    assert!(matches!(error, TraceError::Io { .. }) && error.to_string().contains("b.lis"));
    let error = Trace::open(&directory.path().join("b.bin"), None, 4096).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("--format") && error.to_string().contains("oracleGeneral"));
}
