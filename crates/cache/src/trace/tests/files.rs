//! Formats of other programs, and gzip.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// A record of version 1.
fn one(command: u16, length: u32, sector: u64, time: u64) -> Vec<u8> {
    let mut record = [7u32.to_le_bytes(), length.to_le_bytes(), 2u32.to_le_bytes()].concat();
    record.extend([command, 0x0100].iter().flat_map(|word| word.to_le_bytes()));
    record.extend([sector, time].iter().flat_map(|word| word.to_le_bytes()));
    record
}

/// A record of version 2.
fn two(command: u16, length: u32, sector: u64, time: u64) -> Vec<u8> {
    let mut record: Vec<u8> = [command, 0x0200].iter().flat_map(|word| word.to_le_bytes()).collect();
    record.extend([7, length, 2].iter().flat_map(|word: &u32| word.to_le_bytes()));
    record.extend([sector, time, 99].iter().flat_map(|word: &u64| word.to_le_bytes()));
    record
}

#[test]
fn vscsi_has_two_versions() {
    for record in [one, two] {
        let commands = [
            record(0x28, 4096, 8, 5_000_000),
            record(0x2a, 4097, 7, 6),
            record(0x12, 36, 0, 7),
            record(0x8a, 512, 1 << 40, 8),
            record(0x35, 0, 0, 9),
            record(0x88, 0, 0, 9),
        ];
        let bytes = commands.concat();
        let far = (1 << 40) / 8;
        assert_eq!(accesses(&bytes, "vscsi"), [(1, false), (0, true), (1, true), (far, true)]);
        let events = read(&bytes, "vscsi").unwrap();
        assert!(matches!(events[0], Event::Request(Request { time_us: Some(5_000_000), .. })));
        refused(&bytes[..bytes.len() - 3], "vscsi", "record 6", "it ends after");
        refused(record(0x28, 512, u64::MAX, 0), "vscsi", "record 1", "16 EiB");
    }
    // Version 2 without its last eight bytes; records of both versions; neither.
    refused(&two(0x28, 512, 0, 0)[..32], "vscsi", "record 1", "32 of its 40");
    refused([one(0x28, 512, 0, 0), two(0x28, 512, 0, 0)].concat(), "vscsi", "record 2", "another version");
    refused([0; 40], "vscsi", "record 1", "neither version");
    assert_eq!(read("", "vscsi").unwrap().len(), 0);
}

#[test]
fn fio_logs_have_two_versions() {
    let second = "fio version 2 iolog\n\
                  /dev/sda add\n/dev/sdb add\n/dev/sda open\n\
                  /dev/sda write 4095 2\n/dev/sdb read 0 4096\n\
                  /dev/sda wait 1000 0\n/dev/sda sync 0 0\n/dev/sda trim 0 4096\n/dev/sda read 0 0\n\
                  /dev/sda close\n";
    let expected = [(0, true), (1, true), (1 << 48, false)];
    assert_eq!(accesses(second, "fio"), expected);
    let lines = second.lines().skip(1).enumerate().map(|(time, line)| format!("{} {line}\n", time * 10));
    let third = format!("fio version 3 iolog\n{}", lines.collect::<String>());
    assert_eq!(accesses(&third, "fio"), expected);
    let events = read(&third, "iolog").unwrap();
    assert!(matches!(events[0], Event::Request(Request { time_us: Some(30), .. })));
    refused("/dev/sda read 0 1\n", "fio", "line 1", "fio version 2 iolog");
    refused("fio version 4 iolog\n", "fio", "line 1", "fio version 3 iolog");
    refused("fio version 2 iolog\n\na erase 0 1\n", "fio", "line 3", "erase");
    refused("fio version 2 iolog\na read 0\n", "fio", "line 2", "length is missing");
    refused("fio version 2 iolog\na read 0 1 2\n", "fio", "line 2", "follows");
    refused("fio version 3 iolog\na read 0 1\n", "fio", "line 2", "the time");
    refused("fio version 2 iolog\na\n", "fio", "line 2", "action is missing");
    refused("fio version 2 iolog\na read 18446744073709551615 2\n", "fio", "line 2", "16 EiB");
}

#[test]
fn gzip_members_follow_one_another() {
    let parts = [gzip(b"10 2 0 0\n7 "), gzip(b""), gzip(b"1 0 1\n")].concat();
    assert_eq!(accesses(&parts, "lis.gz"), [10, 11, 7].map(|block| (block, false)));
    let whole = gzip(b"10 2 0 0\n");
    // Cut in the header, the data and the checksum; a changed checksum; no gzip; bytes behind it.
    for cut in [1, 12, whole.len() - 3] {
        refused(&whole[..cut], "lis.gz", "line", "damaged");
    }
    let mut changed = whole.clone();
    changed[whole.len() - 8] ^= 1;
    refused(&changed, "lis.gz", "line", "damaged");
    refused(b"10 2 0 0\n", "lis.gz", "line 1", "damaged");
    refused([&whole[..], b"more"].concat(), "lis.gz", "line", "damaged");
    for (format, read) in [("csv", "csv.gz"), ("msr", "msr.gz"), ("lis", "lis.gz")] {
        refused(
            gzip(b"1\n"),
            format,
            "line 1",
            &format!("compressed by gzip; read them with --format {read}"),
        );
    }
    refused(super::compressed(&[b"1\n"]), "csv", "line 1", "by Zstandard; read them with --format csv.zst");
    // The length of a decompressed line is bounded.
    refused(gzip(&vec![b'1'; LINE_BYTES_MAX + 2]), "lis.gz", "line 1", "longer");
}

#[test]
fn the_ending_tells_the_compression_of_a_named_format() {
    let directory = tempfile::tempdir().unwrap();
    let csv: Format = "csv".parse().unwrap();
    for (name, bytes) in [
        ("a.trace.gz", gzip(b"3\n4\n")),
        ("a.trace.zst", compressed(&[b"3\n4\n"])),
        ("a.trace", b"3\n4\n".to_vec()),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let events: Result<Vec<Event>, TraceError> = Trace::open(&path, Some(csv), 4096).unwrap().collect();
        assert_eq!(events.unwrap().len(), 2, "{name}");
    }
    for name in ["csv.gz", "msr.zst", "vscsi", "fio.gz"] {
        assert_eq!(name.parse::<Format>().unwrap().to_string(), name);
    }
    assert_eq!("iolog".parse::<Format>().unwrap().to_string(), "fio");
}
