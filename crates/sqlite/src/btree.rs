//! References in a database page: children, overflow pages, and roots in the schema.
//!
//! Format: SQLite's "Database File Format", sections 1.5 to 1.7 (b-tree pages, overflow), 2.1
//! (records) and 2.6 (schema). Pages may hold anything, so every offset is checked and nonsense is
//! skipped. The results are hints; correctness does not depend on them.

/// The file header, before the b-tree header of page 1.
const FILE_HEADER_BYTES: usize = 100;

/// Types of b-tree pages.
const INTERIOR_INDEX: u8 = 2;
const INTERIOR_TABLE: u8 = 5;
const LEAF_INDEX: u8 = 10;
const LEAF_TABLE: u8 = 13;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A page of the same tree.
    Child(u32),
    /// The first overflow page of a payload.
    Overflow(u32),
    /// The root of a table or index, from a schema entry.
    Root(Root),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub page: u32,
    pub name: String,
    pub is_index: bool,
}

/// Reports the references of a b-tree page.
///
/// `first` marks page 1 of the file; `usable` is its length without the reserved bytes; `schema`
/// marks a page of the schema tree.
pub(crate) fn references(
    page: &[u8],
    first: bool,
    usable: usize,
    schema: bool,
    mut found: impl FnMut(Reference),
) {
    let start = if first { FILE_HEADER_BYTES } else { 0 };
    let Some(&kind) = page.get(start) else { return };
    let (is_interior, is_index) = match kind {
        INTERIOR_INDEX => (true, true),
        INTERIOR_TABLE => (true, false),
        LEAF_INDEX => (false, true),
        LEAF_TABLE => (false, false),
        _ => return,
    };
    let Some(cells) = u16_at(page, start + 3) else { return };
    let pointers = start + if is_interior { 12 } else { 8 };
    if is_interior && let Some(last) = u32_at(page, start + 8) {
        found(Reference::Child(last));
    }
    // Bounds a damaged count by the room for cell pointers.
    for number in 0..usize::from(cells).min(page.len() / 2) {
        let Some(cell) = u16_at(page, pointers + 2 * number) else { return };
        let mut at = usize::from(cell);
        if is_interior {
            let Some(child) = u32_at(page, at) else { continue };
            found(Reference::Child(child));
            at += 4;
        }
        // Interior table cells have a key but no payload.
        if is_interior && !is_index {
            continue;
        }
        let Some((payload, after)) = varint(page, at) else { continue };
        at = after;
        if !is_index {
            let Some((_, after)) = varint(page, at) else { continue };
            at = after;
        }
        let Some(local) = local_bytes(payload, usable, is_index) else { continue };
        if local < payload
            && let Some(overflow) = u32_at(page, at.saturating_add(local as usize))
        {
            found(Reference::Overflow(overflow));
        }
        if schema
            && !is_index
            && let Some(root) = page.get(at..).and_then(schema_entry)
        {
            found(Reference::Root(root));
        }
    }
}

/// The next overflow page, 0 at the end of the chain.
pub(crate) fn next_overflow(page: &[u8]) -> u32 {
    u32_at(page, 0).unwrap_or(0)
}

/// Bytes of a payload on the b-tree page itself.
fn local_bytes(payload: u64, usable: usize, is_index: bool) -> Option<u64> {
    let usable = usable as u64;
    let room = usable.checked_sub(12)?;
    let most = if is_index { (room * 64 / 255).checked_sub(23)? } else { usable.checked_sub(35)? };
    if payload <= most {
        return Some(payload);
    }
    let least = (room * 32 / 255).checked_sub(23)?;
    let even = least + payload.checked_sub(least)? % (usable - 4);
    Some(if even <= most { even } else { least })
}

/// Reads `type, name, tbl_name, rootpage` of a schema record.
fn schema_entry(record: &[u8]) -> Option<Root> {
    let (header_bytes, mut at) = varint(record, 0)?;
    let mut body = usize::try_from(header_bytes).ok()?;
    let mut column = || {
        let (serial, after) = varint(record, at)?;
        at = after;
        let bytes = match serial {
            0..=4 => serial as usize,
            5 => 6,
            6 | 7 => 8,
            8 | 9 => 0,
            _ => usize::try_from(serial.checked_sub(12)? / 2).ok()?,
        };
        let value = record.get(body..body.checked_add(bytes)?)?;
        body += bytes;
        Some((serial, value))
    };
    let (_, kind) = column()?;
    let (_, name) = column()?;
    column()?;
    let (serial, number) = column()?;
    let page = match serial {
        1..=6 => number.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte)),
        9 => 1,
        // Views and triggers have no root.
        _ => return None,
    };
    let is_index = match kind {
        b"table" => false,
        b"index" => true,
        _ => return None,
    };
    let page = u32::try_from(page).ok().filter(|page| *page > 0)?;
    Some(Root { page, name: String::from_utf8_lossy(name).into_owned(), is_index })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Reads a varint; returns the value and its end.
fn varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for (number, byte) in bytes.get(at..)?.iter().take(9).enumerate() {
        if number == 8 {
            return Some((value << 8 | u64::from(*byte), at + 9));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, at + number + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn numbers_have_one_to_nine_bytes() {
        assert_eq!(varint(&[0x7f], 0), Some((127, 1)));
        assert_eq!(varint(&[0x81, 0x00], 0), Some((128, 2)));
        assert_eq!(varint(&[0xff; 9], 0), Some((u64::MAX, 9)));
        assert_eq!(varint(&[0xff; 8], 0), None);
        assert_eq!(varint(&[], 0), None);
    }

    #[test]
    fn a_record_of_the_schema_is_read() {
        let mut record = vec![6, 23, 15, 15, 1, 15];
        record.extend(b"tabletxt");
        record[1] = 13 + 2 * 5;
        record.truncate(6);
        record.extend(b"table");
        record.extend(b"a");
        record.extend(b"a");
        record.push(7);
        record.extend(b"-");
        let root = Root { page: 7, name: "a".to_owned(), is_index: false };
        assert_eq!(schema_entry(&record), Some(root));
        for length in 0..record.len() - 1 {
            assert_eq!(schema_entry(&record[..length]), None, "cut to {length} bytes");
        }
    }

    #[test]
    fn pages_may_hold_anything() {
        let mut random = SmallRng::seed_from_u64(1);
        for round in 0..20_000 {
            let mut page = vec![0u8; 512];
            random.fill(&mut page[..]);
            page[0] = [2, 5, 10, 13][round % 4];
            let mut count = 0;
            references(&page, false, 512, true, |_| count += 1);
            assert!(count <= 3 * 256 + 1, "round {round}: {count} references");
        }
    }
}
