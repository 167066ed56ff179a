//! The format of a trace, from a file's ending or a given name.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::event::BLOCK_BYTES;
use super::known::{ALIBABA, Known, MSR, SYSTOR, TENCENT};

/// The endings, without `.zst` and `.gz`. The first of a format is its name.
const ENDINGS: [(&str, Kind); 13] = [
    ("lis", Kind::Lis),
    ("u32le", Kind::U32Le),
    ("csv", Kind::Csv),
    ("pgt", Kind::Pgt),
    ("oracleGeneral", Kind::OracleGeneral),
    ("blktrace", Kind::BlkTrace),
    ("msr", Kind::Known(&MSR)),
    ("alibaba", Kind::Known(&ALIBABA)),
    ("tencent", Kind::Known(&TENCENT)),
    ("systor", Kind::Known(&SYSTOR)),
    ("vscsi", Kind::Vscsi),
    ("fio", Kind::Fio),
    ("iolog", Kind::Fio),
];

/// The last endings of compressed files.
const COMPRESSED: [(&str, Compression); 2] = [(".zst", Compression::Zstandard), (".gz", Compression::Gzip)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Zstandard,
    Gzip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lis,
    U32Le,
    Csv,
    Known(&'static Known),
    Pgt,
    OracleGeneral,
    BlkTrace,
    Vscsi,
    Fio,
}

/// The format of a trace.
///
/// ```
/// use std::path::Path;
/// use terrace_cache::trace::Format;
///
/// let format = Format::of(Path::new("traces/pg_tpch.pgt.zst")).unwrap();
/// assert_eq!(format, "pgt.zst".parse().unwrap());
/// assert_eq!(format.to_string(), "pgt.zst");
/// assert!(Format::of(Path::new("trace.bin")).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    pub(super) kind: Kind,
    pub(super) compression: Compression,
}

impl Format {
    /// The default block size in bytes: a PostgreSQL page for `.pgt`, else [`BLOCK_BYTES`].
    pub fn block_bytes(&self) -> u32 {
        match self.kind {
            Kind::Pgt => 8192,
            _ => BLOCK_BYTES,
        }
    }

    /// Whether blocks are a database's pages, whose size the trace does not tell.
    pub fn is_of_pages(&self) -> bool {
        matches!(self.kind, Kind::Pgt)
    }

    /// This format, compressed as the file's ending tells if the format tells no compression.
    pub fn for_file(self, path: &Path) -> Format {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match self.compression {
            Compression::None => Format { compression: uncompressed(name).1, ..self },
            _ => self,
        }
    }

    /// Whether [`Columns`](super::Columns) can name its columns: only those of `.csv`.
    pub fn has_columns(&self) -> bool {
        self.kind == Kind::Csv
    }

    /// The format of a file's ending.
    pub fn of(path: &Path) -> Result<Format, UnknownFormat> {
        let unknown = || UnknownFormat { text: path.display().to_string(), is_file: true };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(unknown)?;
        let (stem, compression) = uncompressed(name);
        let ending = stem.rsplit_once('.').map(|(_, ending)| ending).ok_or_else(unknown)?;
        find(ending).map(|kind| Format { kind, compression }).ok_or_else(unknown)
    }
}

fn uncompressed(name: &str) -> (&str, Compression) {
    let mut stems = COMPRESSED.iter().filter_map(|(ending, how)| Some((name.strip_suffix(ending)?, *how)));
    stems.next().unwrap_or((name, Compression::None))
}

fn find(ending: &str) -> Option<Kind> {
    let found = ENDINGS.iter().find(|(known, _)| known.eq_ignore_ascii_case(ending));
    found.map(|(_, kind)| *kind)
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Format, UnknownFormat> {
        let (ending, compression) = uncompressed(text.trim_start_matches('.'));
        let kind = find(ending).ok_or_else(|| UnknownFormat { text: text.to_owned(), is_file: false })?;
        Ok(Format { kind, compression })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = ENDINGS.iter().find(|(_, kind)| *kind == self.kind);
        let ending = ending.map_or("", |(ending, _)| *ending);
        let compressed = COMPRESSED.iter().find(|(_, how)| *how == self.compression);
        write!(f, "{ending}{}", compressed.map_or("", |(ending, _)| *ending))
    }
}

/// An unknown ending or name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFormat {
    text: String,
    is_file: bool,
}

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = ENDINGS.iter().map(|(ending, _)| *ending).collect();
        let known = known.join(" ");
        match self.is_file {
            true => write!(
                f,
                "the ending of {} does not tell a trace's format; the formats are {known}, each also with \
                 .zst or .gz; name one with --format",
                self.text
            ),
            false => write!(
                f,
                "{:?} is no format of traces; the formats are {known}, each also with .zst or .gz",
                self.text
            ),
        }
    }
}

impl std::error::Error for UnknownFormat {}
