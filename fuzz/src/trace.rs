//! Block traces with wrong field values, and invalid Zstandard frames.

use std::io::Cursor;

use terrace_cache::sim::{Simulation, Size};
use terrace_cache::trace::{Columns, Event, Trace};

use crate::choices::Choices;

/// Limit of events read; one request may make a million.
const EVENTS_MAX: usize = 1 << 21;
/// Longer traces are read but not simulated, since a simulation keeps state per block.
const SIMULATED_MAX: usize = 1 << 16;

const FORMATS: [&str; 12] = [
    "lis",
    "u32le",
    "csv",
    "pgt",
    "oracleGeneral",
    "blktrace",
    "msr",
    "alibaba",
    "tencent",
    "systor",
    "vscsi",
    "fio",
];
/// Columns of `.csv`, right for few of the traces.
const COLUMNS: [&str; 4] =
    ["block", "time_s,device,op,offset,size", "device=4,block=2,blocks", "sector=lbn,-,op"];
const USUAL: [u64; 8] = [0, 1, 7, 4096, 1 << 20, (1 << 20) + 1, 1 << 31, 1 << 48];

/// A trace of any format, compressed or not, built field by field.
pub fn trace_fields(input: &[u8]) {
    let mut choices = Choices(input);
    let name = choices.pick(&FORMATS).expect("there are some");
    let is_compressed = choices.byte().is_multiple_of(3);
    let mut bytes = Vec::new();
    while !choices.is_over() && bytes.len() < 4096 {
        line(name, &mut choices, &mut bytes);
    }
    let mut format = name.to_owned();
    if is_compressed {
        format += ".zst";
        let mut choices = Choices(input);
        bytes = frames(&bytes, &mut choices);
    }
    let columns = (choices.byte().is_multiple_of(4)).then(|| choices.pick(&COLUMNS)).flatten();
    read(&bytes, &format, columns);
}

fn read(bytes: &[u8], format: &str, columns: Option<&str>) {
    let format = format.parse().expect("a format");
    let columns: Option<Columns> = columns.map(|columns| columns.parse().expect("columns"));
    let open = || {
        let trace = Trace::new("hostile", Cursor::new(bytes.to_vec()), format, 4096);
        let mut trace = match &columns {
            Some(columns) => trace.columns(columns.clone()),
            None => trace,
        };
        assert!(trace.notes().iter().all(|note| !note.is_empty()));
        trace
    };
    let mut events = 0;
    for event in open().take(EVENTS_MAX) {
        match event {
            // Requests must match the documented ranges.
            Ok(Event::Request(request)) => assert!(request.relation.is_none_or(|number| number < 1 << 31)),
            Ok(_) => {}
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        events += 1;
    }
    if events <= SIMULATED_MAX {
        let simulation = Simulation::new().threads(1).parts(true, true);
        let simulation = simulation.cache("lru".parse().expect("a policy"), Size::Blocks(1));
        // An error is acceptable.
        let _ = simulation.run(&mut || Ok(open()), true, &|_| {});
    }
}

/// A decimal number; sometimes invalid or endless.
fn field(choices: &mut Choices<'_>) -> String {
    match choices.byte() % 24 {
        0 => "-1".to_owned(),
        1 => "18446744073709551616".to_owned(),
        2 => "9".repeat(1 + choices.below(400)),
        3 => "1e9".to_owned(),
        4 => format!("{}.{}", choices.number(&USUAL), "7".repeat(choices.below(300))),
        5 => String::new(),
        6 => "\u{0}\u{ff}x".to_owned(),
        _ => choices.number(&USUAL).to_string(),
    }
}

/// Mostly a small number, so that only one field of a line is wrong.
fn sane(choices: &mut Choices<'_>) -> String {
    if choices.byte().is_multiple_of(8) { field(choices) } else { choices.byte().to_string() }
}

/// A record of `.vscsi`, whose version is mostly that of the others.
fn command(choices: &mut Choices<'_>) -> Vec<u8> {
    let command = [0x28u16, 0x2a, 0x8a, 0x12][usize::from(choices.byte() % 4)];
    let mut record = (choices.number(&USUAL) as u32 & 0xff_ffff).to_le_bytes().to_vec();
    record.extend((choices.number(&USUAL) as u32).to_le_bytes());
    record.extend(1u32.to_le_bytes());
    record.extend(command.to_le_bytes());
    record.extend(if choices.byte().is_multiple_of(16) { [0, choices.byte()] } else { [0, 1] });
    record.extend(choices.number(&USUAL).to_le_bytes());
    record.extend(choices.number(&USUAL).to_le_bytes());
    record
}

/// A line of a collection of traces, or of fio's log.
fn columns_line(format: &str, choices: &mut Choices<'_>, is_first: bool) -> String {
    let operation = ["R", "W", "read", "Write", "", "0", "1", "x"][usize::from(choices.byte() % 8)];
    let quote = ["", "", "", "\""][usize::from(choices.byte() % 4)];
    let mut next = || sane(choices);
    let (a, b, c, d) = (next(), next(), next(), next());
    match format {
        "msr" => format!("{a}0,{quote}host{quote},{b},{operation},{c},{d},1"),
        "alibaba" => format!("{a},{operation},{quote}{b}{quote},{c},{d}"),
        "tencent" => format!("{a},{b},{c},{operation},{d}"),
        "systor" => format!("{a}.5,0.1,{operation},{b},{c},{d}{quote}"),
        _ if is_first => format!("fio version {} iolog", ["2", "3"][usize::from(choices.byte() % 2)]),
        _ => format!(
            "{a} file{b} {} {c} {d}",
            ["read", "write", "sync", "add"][usize::from(choices.byte() % 4)]
        ),
    }
}

fn line(format: &str, choices: &mut Choices<'_>, bytes: &mut Vec<u8>) {
    let mut next = || sane(choices);
    let text = match format {
        "u32le" => return bytes.extend_from_slice(&(choices.number(&USUAL) as u32).to_le_bytes()),
        "oracleGeneral" => {
            bytes.extend_from_slice(&(choices.number(&USUAL) as u32).to_le_bytes());
            bytes.extend_from_slice(&choices.number(&USUAL).to_le_bytes());
            bytes.extend_from_slice(&(choices.number(&USUAL) as u32).to_le_bytes());
            bytes.extend_from_slice(&choices.number(&USUAL).to_le_bytes());
            // Truncated.
            if choices.byte().is_multiple_of(32) {
                bytes.pop();
            }
            return;
        }
        "vscsi" => return bytes.extend(command(choices)),
        "msr" | "alibaba" | "tencent" | "systor" | "fio" => columns_line(format, choices, bytes.is_empty()),
        "lis" => format!("{} {} {} {}", next(), next(), next(), next()),
        "csv" if bytes.is_empty() => {
            let columns =
                ["block", "LBA", "offset", "\"Size\"", "op", "time_s", "disk", "host name", "other", ""];
            let count = 1 + choices.below(6);
            let names: Vec<&str> = (0..count).filter_map(|_| choices.pick(&columns)).collect();
            names.join(",")
        }
        "csv" => {
            let count = 1 + choices.below(6);
            let operations = ["r", "w", "28", "2a", "q"];
            let fields: Vec<String> = (0..count)
                .map(|_| match choices.byte() % 4 {
                    0 => choices.pick(&operations).unwrap_or("r").to_owned(),
                    _ => sane(choices),
                })
                .collect();
            fields.join(",")
        }
        "pgt" => match choices.byte() % 4 {
            0 => format!("R {} name r", sane(choices)),
            1 => format!(
                "Q {} {} {} q6 {},{}",
                sane(choices),
                sane(choices),
                sane(choices),
                sane(choices),
                sane(choices)
            ),
            2 => format!("r {} {} {} {}", sane(choices), sane(choices), sane(choices), sane(choices)),
            _ => format!("w {} {} {} -1", sane(choices), sane(choices), sane(choices)),
        },
        _ => {
            let (device, action) = (next(), ["Q", "Q", "D", "C"][usize::from(choices.byte() % 4)]);
            let what = ["R", "W", "RA", "FWS", "D", "N"][usize::from(choices.byte() % 6)];
            let (time, sector, count) = (field(choices), sane(choices), sane(choices));
            format!("{device},0 3 2 {time} 697 {action} {what} {sector} + {count} [a]")
        }
    };
    bytes.extend_from_slice(text.as_bytes());
    // Sometimes a line without an end.
    if !choices.byte().is_multiple_of(32) {
        bytes.push(b'\n');
    }
}

/// `content` in Zstandard frames with true or false headers and blocks.
fn frames(content: &[u8], choices: &mut Choices<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + choices.below(3) {
        match choices.byte() % 4 {
            // A skippable frame with a true or false length.
            0 => {
                bytes.extend_from_slice(&(0x184d_2a50u32 + u32::from(choices.byte() % 16)).to_le_bytes());
                bytes.extend_from_slice(&(choices.number(&[0, 3, 4]) as u32).to_le_bytes());
                bytes.extend_from_slice(b"skip");
            }
            // A valid frame with some bytes changed.
            1 | 2 => {
                let from = bytes.len();
                bytes.extend(ruzstd::encoding::compress_to_vec(
                    content,
                    ruzstd::encoding::CompressionLevel::Fastest,
                ));
                for _ in 0..choices.below(4) {
                    // Within the frame and first block headers, or anywhere.
                    let most = bytes.len() - from;
                    let end = if choices.byte().is_multiple_of(2) { most.min(24) } else { most };
                    let at = from + choices.below(end);
                    bytes[at] ^= 1 << (choices.byte() % 8);
                }
            }
            _ => frame(content, choices, &mut bytes),
        }
    }
    if choices.byte().is_multiple_of(8) {
        bytes.truncate(choices.below(bytes.len() + 1));
    }
    bytes
}

/// A frame built by field: any window and content size, all block kinds, true or false lengths.
fn frame(content: &[u8], choices: &mut Choices<'_>, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&0xfd2f_b528u32.to_le_bytes());
    let descriptor = choices.byte() & 0b1110_0100;
    bytes.push(descriptor);
    let is_single = descriptor & 0b0010_0000 != 0;
    if !is_single {
        bytes.push(choices.byte());
    }
    let size_bytes = match (descriptor >> 6, is_single) {
        (0, false) => 0,
        (0, true) => 1,
        (1, _) => 2,
        (2, _) => 4,
        _ => 8,
    };
    bytes.extend_from_slice(&choices.number(&[content.len() as u64]).to_le_bytes()[..size_bytes]);
    for number in 0..=choices.below(4) {
        let kind = u32::from(choices.byte() % 4);
        let size = choices.number(&[content.len() as u64, 1, 128 << 10]) as u32 & 0x1f_ffff;
        let is_last = u32::from(number == 3);
        bytes.extend_from_slice(&(size << 3 | kind << 1 | is_last).to_le_bytes()[..3]);
        let length = if kind == 1 { 1 } else { (size as usize).min(content.len()) };
        bytes.extend_from_slice(&content[..length.min(content.len())]);
    }
}
