//! Collections of traces with columns of their own, with or without a header.
//!
//! | name      | collection                            | units                         |
//! |-----------|---------------------------------------|-------------------------------|
//! | `msr`     | Microsoft Research Cambridge, 2007    | bytes, Windows file time      |
//! | `alibaba` | Alibaba block traces, 2020            | bytes, microseconds           |
//! | `tencent` | Tencent block storage, 2018           | sectors of 512 bytes, seconds |
//! | `systor`  | virtual desktops, SYSTOR '17          | bytes, seconds                |
//!
//! Sources are the collections' own descriptions. In `systor`, a request without a response has no
//! operation; such requests are skipped.

use super::columns::Measure::{Bytes, Sectors};
use super::columns::Role::{self, Device, Length, Operation, OperationIfKnown, Start, Time, Unused, Write};
use super::columns::{Ticks, plain};
use super::fields::Fields;

#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: &'static str,
    header: &'static str,
    pub(super) roles: &'static [Role],
    /// Whether a line without a header can be of no other format.
    fits: fn(&Fields) -> bool,
}

pub(super) static MSR: Known = Known {
    name: "msr",
    header: "timestamp,hostname,disknumber,type,offset,size,responsetime",
    roles: &[Time(Ticks::WindowsFileTime), Device, Device, Operation, Start(Bytes), Length(Bytes), Unused],
    fits: |fields| {
        // A file time of this century has 18 digits.
        fields.get(0).len() == 18
            && [0, 2, 4, 5, 6].into_iter().all(|index| is_number(fields.get(index)))
            && is_any(fields.get(3), &["read", "write"])
    },
};

pub(super) static ALIBABA: Known = Known {
    name: "alibaba",
    header: "deviceid,opcode,offset,length,timestamp",
    roles: &[Device, Operation, Start(Bytes), Length(Bytes), Time(Ticks::Microseconds)],
    fits: |fields| {
        // A Unix time in microseconds has 16 digits.
        fields.get(4).len() == 16
            && [0, 2, 3, 4].into_iter().all(|index| is_number(fields.get(index)))
            && is_any(fields.get(1), &["r", "w"])
    },
};

pub(super) static TENCENT: Known = Known {
    name: "tencent",
    header: "timestamp,offset,size,iotype,volumeid",
    roles: &[Time(Ticks::Seconds), Start(Sectors), Length(Sectors), Write, Device],
    // Five numbers tell no units: this needs a header or its name.
    fits: |_| false,
};

pub(super) static SYSTOR: Known = Known {
    name: "systor",
    header: "timestamp,response,iotype,lun,offset,size",
    roles: &[Time(Ticks::Seconds), Unused, OperationIfKnown, Device, Start(Bytes), Length(Bytes)],
    fits: |_| false,
};

impl PartialEq for Known {
    fn eq(&self, other: &Known) -> bool {
        self.name == other.name
    }
}

impl Eq for Known {}

impl Known {
    /// Whether the line is the header.
    pub(super) fn is_header(&self, fields: &Fields) -> bool {
        let mut names = self.header.split(',');
        fields.iter().all(|field| names.next().is_some_and(|name| plain(field) == name.as_bytes()))
            && names.next().is_none()
    }

    /// The format of a first line, if it can be of no other.
    pub(super) fn of(fields: &Fields) -> Option<&'static Known> {
        let fits = |known: &&Known| {
            let has_columns = fields.count() == known.roles.len();
            has_columns && (known.is_header(fields) || (known.fits)(fields))
        };
        [&MSR, &ALIBABA, &TENCENT, &SYSTOR].into_iter().find(fits)
    }
}

/// Why the columns of a line without a header are unknown.
pub(super) fn unnamed(fields: &Fields) -> &'static str {
    let is_tencent = fields.count() == TENCENT.roles.len()
        && fields.iter().all(is_number)
        && fields.get(0).len() == 10
        && is_any(fields.get(3), &["0", "1"]);
    match is_tencent {
        true => "no header; --format tencent reads Tencent's, which have five such numbers",
        false => "no header",
    }
}

fn is_number(field: &[u8]) -> bool {
    !field.is_empty() && field.iter().all(u8::is_ascii_digit)
}

fn is_any(field: &[u8], words: &[&str]) -> bool {
    words.iter().any(|word| field.eq_ignore_ascii_case(word.as_bytes()))
}
