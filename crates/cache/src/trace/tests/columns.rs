//! Columns of `.csv` by header, by list and by collection.

use super::*;

/// The upper half of a block's number on the `index`-th device.
fn on(index: u64, block: u64) -> u64 {
    index << 48 | block
}

/// A trace with `columns`, from blocks of 4096 bytes.
fn given(text: &str, columns: &str) -> Trace {
    let bytes = io::Cursor::new(text.as_bytes().to_vec());
    Trace::new("sample", bytes, "csv".parse().unwrap(), 4096).columns(columns.parse().unwrap())
}

fn given_accesses(text: &str, columns: &str) -> Vec<(u64, bool)> {
    let request = |event| match event {
        Ok(Event::Request(request)) => (request.block, request.write),
        other => panic!("{other:?}"),
    };
    given(text, columns).map(request).collect()
}

fn notes(text: &str, format: &str) -> Vec<String> {
    let bytes = io::Cursor::new(text.as_bytes().to_vec());
    Trace::new("sample", bytes, format.parse().unwrap(), 4096).notes()
}

fn times(text: &str, format: &str) -> Vec<Option<u64>> {
    let time = |event| match event {
        Event::Request(request) => request.time_us,
        other => panic!("{other:?}"),
    };
    read(text, format).unwrap().into_iter().map(time).collect()
}

const ALIBABA: &str = "\
0,R,126703661056,4096,1577808000000046
1,W,19496058880,8192,1577808000000426
0,W,4096,4096,1577808000000494
1,R,4096,4096,1577808000000553
";

const MSR: &str = "\
128166372003061629,hm,0,Read,8192,4096,1331
128166372016382155,hm,1,Write,8192,4096,2326
128166372026382245,hm,1,Read,12288,4097,100
";

#[test]
fn alibaba_has_volumes_and_writes_with_and_without_header() {
    let expected = [
        (126_703_661_056 / 4096, false),
        (on(1, 19_496_058_880 / 4096), true),
        (on(1, 19_496_058_880 / 4096 + 1), true),
        (1, true),
        (on(1, 1), false),
    ];
    let headed = format!("device_id,opcode,offset,length,timestamp\n{ALIBABA}");
    for (text, format) in [(ALIBABA, "csv"), (ALIBABA, "alibaba"), (&headed, "csv"), (&headed, "alibaba")] {
        assert_eq!(accesses(text, format), expected, "{format}: {text}");
        assert_eq!(times(text, format)[0], Some(1_577_808_000_000_046));
    }
    assert_eq!(notes(ALIBABA, "csv"), ["read as alibaba, by the form of its first line"]);
    assert!(notes(ALIBABA, "alibaba").is_empty() && notes(&headed, "csv").is_empty());
    refused("0,X,0,1,1\n", "alibaba", "line 1", "operation");
    refused(format!("{ALIBABA}0,R,0,1\n"), "csv", "line 5", "fewer than the 5");
}

#[test]
fn msr_keeps_disks_apart_with_and_without_header() {
    let expected = [(2, false), (on(1, 2), true), (on(1, 3), false), (on(1, 4), false)];
    let headed = format!("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n{MSR}");
    for (text, format) in [(MSR, "csv"), (MSR, "msr"), (&headed, "csv"), (&headed, "msr")] {
        assert_eq!(accesses(text, format), expected, "{format}: {text}");
        // Units of 100 nanoseconds.
        assert_eq!(times(text, format)[0], Some(12_816_637_200_306_162));
    }
    // Disks of the same number on two hosts, and names that are equal only when joined.
    let hosts = "128166372003061629,a1,1,Read,0,1,1\n128166372003061629,a,11,Read,0,1,1\n";
    assert_eq!(accesses(hosts, "msr"), [(0, false), (on(1, 0), false)]);
    refused("Timestamp,Hostname,Disk,Type,Offset,Size,ResponseTime\n", "msr", "line 1", "the time");
}

#[test]
fn tencent_counts_in_sectors_and_needs_its_name_or_header() {
    let text = "1538323200,16,9,1,1283\n1538323201,8,8,0,1284\n1538323201,8,8,0,1283\n";
    let expected = [(2, true), (3, true), (on(1, 1), false), (1, false)];
    let headed = format!("Timestamp,Offset,Size,IOType,VolumeID\n{text}");
    for (text, format) in [(text, "tencent"), (&headed, "csv"), (&headed, "tencent")] {
        assert_eq!(accesses(text, format), expected, "{format}: {text}");
        assert_eq!(times(text, format)[0], Some(1_538_323_200_000_000));
    }
    refused(text, "csv", "line 1", "--format tencent");
    refused("1538323200,16,9,2,1283\n", "tencent", "line 1", "0 and 1");
}

#[test]
fn systor_skips_requests_without_a_response() {
    let text = "Timestamp,Response,IOType,LUN,Offset,Size\n\
                1456135200.013118000,0.001,W,0,4096,8192\n\
                1456135202.5,,,0,0,4096\n\
                1456135203.000001000,0.001,R,4,4096,4096\n";
    for format in ["csv", "systor"] {
        assert_eq!(accesses(text, format), [(1, true), (2, true), (on(1, 1), false)]);
        assert_eq!(times(text, format)[0], Some(1_456_135_200_013_118));
    }
    refused("1456135200.0,0.1,x,0,0,1\n", "systor", "line 1", "operation");
}

#[test]
fn headers_have_synonyms_in_any_writing() {
    for header in [
        "offset,size,op",
        "Offset (bytes),Request Size,IO_Type",
        "byte_offset,LENGTH,Opcode",
        "\"start-offset\",len,operation type",
    ] {
        assert_eq!(accesses(format!("{header}\n4095,2,w\n"), "csv"), [(0, true), (1, true)], "{header}");
    }
    for (header, block) in [("LBA", 1), ("start_sector", 1), ("Page Number", 8), ("ObjID", 8)] {
        assert_eq!(accesses(format!("{header},is_write\n8,1\n9,0\n"), "csv")[0], (block, true), "{header}");
    }
    assert_eq!(accesses("lba,sectors\n7,2\n", "csv"), [(0, false), (1, false)]);
    assert_eq!(accesses("block,blocks\n7,2\n", "csv"), [(7, false), (8, false)]);
    for (operations, write) in
        [(["R", "read", "Rd", "rs", "0x28"], false), (["W", "Write", "WR", "ws", "0x8A"], true)]
    {
        for operation in operations {
            assert_eq!(accesses(format!("block,op\n5,{operation}\n"), "csv"), [(5, write)], "{operation}");
        }
    }
    for operation in ["", "x", "0", "1", "+8", "028", "40", "readwrite"] {
        refused(format!("block,op\n5,{operation}\n"), "csv", "line 2", "the operation");
    }
    for device in ["disk", "Volume_ID", "LUN", "dev", "Host Name"] {
        let text = format!("{device},block\nsda,5\nsdb,5\nsda,6\n");
        assert_eq!(accesses(text, "csv"), [(5, false), (on(1, 5), false), (6, false)], "{device}");
    }
    for (header, micros) in [("time_s", 1_500_000), ("time_ms", 1500), ("ts", 1), ("filetime", 0)] {
        assert_eq!(times(&format!("{header},block\n1.5,0\n"), "csv"), [Some(micros)], "{header}");
    }
}

#[test]
fn fields_may_be_in_quotes() {
    let text = "\"block\",\"op\",\"disk\"\n\"5\",\"W\",\"a,b\"\n6,r,\"a\"\"b\"\n7,r,\"a,b\"\n";
    assert_eq!(accesses(text, "csv"), [(5, true), (on(1, 6), false), (7, false)]);
    refused("block,disk\n1,\"a\n2,b\"\n", "csv", "line 2", "quote");
    refused("block\n1\r2\n", "csv", "line 2", "carriage return");
}

#[test]
fn unused_columns_are_named() {
    let text = "version,time,lbn,Queue Depth\n1,1,8,3\n";
    let reads = "no column tells reads from writes, so all requests count as reads";
    assert_eq!(notes(text, "csv"), ["columns that are not used: \"version\", \"Queue Depth\"", reads]);
    // The size of an object is no count of blocks.
    let told = notes("obj_id,size,op\n1,9000,r\n", "csv");
    assert_eq!(told[..1], ["columns that are not used: \"size\""]);
    assert!(told.len() == 2 && told[1].contains("--columns block,size"), "{told:?}");
    assert_eq!(accesses("obj_id,size,op\n1,9000,r\n", "csv"), [(1, false)]);
    assert!(notes("block,op\n1,r\n", "csv").is_empty());
    // Notes take no event from the trace.
    let mut trace = given("5\n6\n", "block");
    assert!(trace.notes().is_empty() && trace.notes().is_empty());
    assert_eq!(trace.count(), 2);
    let mut broken = given("5\nx\n", "block");
    assert!(broken.notes().is_empty());
    assert!(broken.next().unwrap().is_ok() && broken.next().unwrap().is_err() && broken.next().is_none());
}

#[test]
fn a_list_of_columns_names_them_by_number_or_name() {
    let plain = "17,sda,0,x,4096,4097\n18,sdb,1,x,4096,1\n";
    let expected = [(1, false), (2, false), (on(1, 1), true)];
    assert_eq!(given_accesses(plain, "time_s,device,write,-,offset,size"), expected);
    assert_eq!(given_accesses(plain, "device=2,write,offset=5,size"), expected);
    // A first line without a number for the position is a header.
    let headed = format!("when,where,what,why,from,bytes\n{plain}");
    assert_eq!(given_accesses(&headed, "time_s,device,write,-,offset,size"), expected);
    assert_eq!(given_accesses(&headed, "offset=From,size=BYTES,write=what,device=where"), expected);
    // Blocks of the trace's own, and their bytes.
    assert_eq!(given_accesses("3,2\n", "block,blocks"), [(3, false), (4, false)]);
    assert_eq!(given_accesses("3,4097\n", "block,size"), [(3, false), (4, false)]);
    for (text, columns, reason) in [
        (plain, "block=7", "names number 7"),
        (plain, "offset=Ofset", "no column \"Ofset\""),
        (&headed, "offset=from,size=5", "two roles"),
        ("a,b\n1,2\n3,x\n", "block,blocks", "line 3"),
    ] {
        let error = given(text, columns).find_map(Result::err).unwrap().to_string();
        assert!(error.contains(reason) && !error.contains("name them"), "{columns}: {error}");
    }
}

#[test]
fn wrong_lists_of_columns_are_refused() {
    for (columns, reason) in [
        ("", "no role"),
        ("time,op", "no column for the position"),
        ("block,offset", "2 columns for the position"),
        ("block,op,write", "2 columns for the operation"),
        ("block,size,sectors", "2 columns for the size"),
        ("block,time,time_s", "2 columns for the time"),
        ("block,lba", "\"lba\" is no role"),
        ("block=0", "1 to 256"),
        ("block=257", "1 to 256"),
        ("block=", "no column"),
        ("time=when,block", "block follows a column by name"),
    ] {
        let error = columns.parse::<Columns>().unwrap_err();
        assert!(error.contains(reason), "{columns}: {error}");
    }
}

#[test]
fn unknown_columns_are_refused_with_advice() {
    for (text, listed) in [
        ("when,where,what\n1,2,3\n", "\"when\", \"where\", \"what\""),
        ("0,20941264,8192,W,0.551706\n", "\"20941264\""),
        ("ts,address,len\n1,2,3\n", "\"address\""),
    ] {
        refused(text, "csv", "line 1", listed);
        refused(text, "csv", "line 1", "--columns");
        refused(text, "csv", "line 1", "--format");
    }
    for text in ["block;op\n1;r\n", "block\top\n1\tr\n"] {
        refused(text, "csv", "line 1", "columns are separated by commas");
    }
    // A named format has its columns before the first line.
    refused("128166372003061629,hm,0\n", "msr", "line 1", "fewer than the 7 fields of msr");
    refused("block,op\n1\n", "csv", "line 2", "fewer than the 2 fields of the first line");
    // 1 is a write in some traces and a read in others.
    refused("offset,iotype\n0,1\n", "csv", "line 2", "--columns write=N");
    refused("disk,block\na,281474976710656\n", "csv", "line 2", "2^48");
    refused(format!("disk,block\n{},1\n", "a".repeat(1025)), "csv", "line 2", "1024 bytes");
    let devices: String = (0..=65_536).map(|device| format!("{device},1\n")).collect();
    refused(format!("disk,block\n{devices}"), "csv", "line 65538", "65536 devices");
}
