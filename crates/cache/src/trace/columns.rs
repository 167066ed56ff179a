//! The columns of `.csv`: their meanings, their names in headers, and a list of them.

use std::str::FromStr;

/// Most columns of a trace.
pub(super) const COLUMNS_MAX: usize = 256;

/// The unit of a position or a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Bytes,
    Sectors,
    Blocks,
}

/// The unit of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ticks {
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
    /// Units of 100 nanoseconds.
    WindowsFileTime,
}

/// The meaning of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Time(Ticks),
    /// Of several, all together name the device.
    Device,
    /// A word or a SCSI command.
    Operation,
    /// As [`Operation`](Role::Operation), but a request without one is skipped.
    OperationIfKnown,
    /// 1 for a write, 0 for a read.
    Write,
    Start(Measure),
    Length(Measure),
    Unused,
}

use Measure::{Blocks, Bytes, Sectors};
use Role::{Device, Length, Operation, Start, Time, Unused, Write};

/// Names in headers, in small letters and without other characters. Names of unknown units, such as
/// `address`, are missing on purpose.
const NAMES: [(Role, &str); 14] = [
    (Time(Ticks::Seconds), "times|timesec|timeseconds|timestamps|timestampsec|timestampseconds|seconds"),
    (Time(Ticks::Milliseconds), "timems|timestampms|milliseconds"),
    (Time(Ticks::Microseconds), "time|timestamp|ts|timeus|timestampus|microseconds"),
    (Time(Ticks::Nanoseconds), "timens|timestampns|nanoseconds"),
    (
        Device,
        "device|dev|deviceid|devid|devicename|devicenumber|disk|diskid|diskno|disknum|disknumber|diskname\
         |drive|driveid|volume|volumeid|volumename|vol|volid|lun|lunid|host|hostname|hostid|server|serverid\
         |vm|vmid|namespace|nsid|asu|major|minor|file|fileid|filename|inode|ino",
    ),
    (
        Operation,
        "op|opcode|opname|optype|operation|operationtype|rw|rwtype|type|iotype|reqtype|requesttype\
         |accesstype|cmd|command|readwrite|readorwrite",
    ),
    (Write, "write|iswrite|writeflag"),
    (
        Start(Blocks),
        "block|blockid|blockno|blocknum|blocknumber|blk|blkno|page|pageid|pageno|pagenum|pagenumber|obj\
         |objid|object|objectid|key|offsetblocks",
    ),
    (
        Start(Sectors),
        "lbn|lba|sector|sectorno|sectornum|sectornumber|startsector|firstsector|startlba|slba|lbastart\
         |offsetsectors|logicalblockaddress|logicalblocknumber",
    ),
    (Start(Bytes), "offset|offsetbytes|byteoffset|startoffset|startbyte|fileoffset|diskoffset|logicaloffset"),
    (
        Length(Bytes),
        "size|length|len|bytes|sizebytes|lengthbytes|nbytes|numbytes|bytecount|iosize|iolength|iolen|reqsize\
         |requestsize|requestlength|transfersize|transferlength|datasize|datalength|objsize|objectsize",
    ),
    (Length(Sectors), "sectors|nsectors|nrsectors|numsectors|sectorcount|sizesectors|lengthsectors"),
    (Length(Blocks), "blocks|nblocks|numblocks|blockcount|sizeblocks|lengthblocks|pages|npages|pagecount"),
    (Time(Ticks::WindowsFileTime), "filetime|windowsfiletime"),
];

/// The roles of [`Columns`].
const ROLES: [(&str, Role); 15] = [
    ("time", Time(Ticks::Microseconds)),
    ("time_s", Time(Ticks::Seconds)),
    ("time_ms", Time(Ticks::Milliseconds)),
    ("time_ns", Time(Ticks::Nanoseconds)),
    ("filetime", Time(Ticks::WindowsFileTime)),
    ("device", Device),
    ("op", Operation),
    ("write", Write),
    ("block", Start(Blocks)),
    ("sector", Start(Sectors)),
    ("offset", Start(Bytes)),
    ("size", Length(Bytes)),
    ("sectors", Length(Sectors)),
    ("blocks", Length(Blocks)),
    ("-", Unused),
];

/// A name without differences of writing: `Disk Number` and `disk_number` are `disknumber`.
pub(super) fn plain(name: &[u8]) -> Vec<u8> {
    name.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(u8::to_ascii_lowercase).collect()
}

pub(super) fn role(name: &[u8]) -> Role {
    let name = plain(name);
    let is_name = |names: &str| names.split('|').any(|known| known.as_bytes() == name);
    NAMES.iter().find(|(_, names)| is_name(names)).map_or(Unused, |(role, _)| *role)
}

/// Whether a request has one position, and each other role at most once.
pub(super) fn check(roles: &[Role]) -> Result<(), String> {
    let count = |is: fn(&Role) -> bool| roles.iter().filter(|role| is(role)).count();
    match count(|role| matches!(role, Start(_))) {
        1 => {}
        0 => return Err("no column for the position: a block, an lbn or an offset".to_owned()),
        starts => return Err(format!("{starts} columns for the position")),
    }
    for (what, columns) in [
        ("size", count(|role| matches!(role, Length(_)))),
        ("operation", count(|role| matches!(role, Operation | Write))),
        ("time", count(|role| matches!(role, Time(_)))),
    ] {
        if columns > 1 {
            return Err(format!("{columns} columns for the {what}"));
        }
    }
    Ok(())
}

/// A column by its number or its name in the header.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    /// From 0.
    Number(usize),
    /// As given.
    Name(String),
}

/// The roles of the columns of a `.csv` trace.
///
/// A list of roles, of which each means the next column, `ROLE=N` the N-th, or `ROLE=NAME` that of
/// the header; `-` skips a column. Several `device` columns together name the device.
///
/// | role                                             | content                               |
/// |--------------------------------------------------|---------------------------------------|
/// | `block`, `sector` (of 512 bytes), `offset`       | position; `offset` in bytes           |
/// | `size`, `sectors`, `blocks`                      | length; `size` in bytes               |
/// | `op`                                             | `r`, `w` or a SCSI command            |
/// | `write`                                          | 1 for a write, 0 for a read           |
/// | `time`, `time_s`, `time_ms`, `time_ns`, `filetime` | `time` in µs, `filetime` in 100 ns  |
/// | `device`                                         | any text                              |
///
/// ```
/// use terrace_cache::trace::Columns;
///
/// assert!("time_s,device,op=5,offset=3,size".parse::<Columns>().is_ok());
/// assert!("time,op".parse::<Columns>().unwrap_err().contains("position"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns(Vec<(Role, Which)>);

impl Columns {
    /// Whether the first line must be a header.
    pub(super) fn has_names(&self) -> bool {
        self.0.iter().any(|(_, which)| matches!(which, Which::Name(_)))
    }

    /// The role of each of `fields`, the first line.
    pub(super) fn roles(&self, fields: &[Vec<u8>]) -> Result<Vec<Role>, String> {
        let mut roles = vec![Unused; fields.len()];
        for (role, which) in &self.0 {
            let index = match which {
                Which::Number(index) => *index,
                Which::Name(name) => fields
                    .iter()
                    .position(|field| plain(field) == plain(name.as_bytes()))
                    .ok_or_else(|| format!("no column {name:?} of --columns"))?,
            };
            let count = fields.len();
            let found = roles
                .get_mut(index)
                .ok_or_else(|| format!("{count} columns, and --columns names number {}", index + 1))?;
            if *found != Unused {
                return Err(format!("two roles of --columns for column {}", index + 1));
            }
            *found = *role;
        }
        Ok(roles)
    }
}

impl FromStr for Columns {
    type Err = String;

    fn from_str(text: &str) -> Result<Columns, String> {
        let known = ROLES.map(|(name, _)| name).join(" ");
        let mut columns = Vec::new();
        let mut next = Some(0);
        for item in text.split(',').map(str::trim) {
            let (name, which) =
                item.split_once('=').map_or((item, None), |(name, which)| (name, Some(which)));
            let role = ROLES.iter().find(|(role, _)| *role == name).map(|(_, role)| *role);
            let role =
                role.ok_or_else(|| format!("{name:?} is no role of a column; the roles are {known}"))?;
            let which = match which.map(|which| (which, which.parse::<usize>())) {
                None => Which::Number(next.ok_or_else(|| {
                    format!("{name} follows a column by name; write {name}=N or {name}=NAME")
                })?),
                Some((_, Ok(number))) if (1..=COLUMNS_MAX).contains(&number) => Which::Number(number - 1),
                Some((which, Err(_))) if !plain(which.as_bytes()).is_empty() => Which::Name(which.to_owned()),
                Some((which, _)) => {
                    return Err(format!(
                        "{which:?} is no column; write a name or a number from 1 to {COLUMNS_MAX}"
                    ));
                }
            };
            next = match &which {
                Which::Number(index) => Some(index + 1),
                Which::Name(_) => None,
            };
            if role != Unused {
                columns.push((role, which));
            }
        }
        check(&columns.iter().map(|(role, _)| *role).collect::<Vec<Role>>())?;
        Ok(Columns(columns))
    }
}

impl Role {
    /// The column's content in an error.
    pub(super) fn what(self) -> &'static str {
        match self {
            Time(_) => "the time",
            Device => "the device",
            Operation | Role::OperationIfKnown | Write => "the operation",
            Start(Blocks) => "the block",
            Start(Sectors) => "the sector",
            Start(Bytes) => "the offset",
            Length(_) => "the size",
            Unused => "an unused column",
        }
    }
}
