//! Reads of a chain of old versions.
//!
//! A change of a part of an inline value keeps the bytes that it overwrote. With the value after
//! the change, which is that of the next newer version or of the leaf's entry, they are the value
//! before. So a read takes the nearest whole value above and puts back the parts below it, the
//! newest first. Offsets are those in the value, as its entry may move in the page.
//!
//! A leaf was read before the chain, which may have newer parts by now. To put them back leaves its
//! entry as it is. Changes that are not of a part keep the whole value, and the parts below it
//! belong to that.
//!
//! Collection drops what was superseded at or before the oldest snapshot, so a snapshot finds all
//! versions between its own and the entry.
//!
//! Every [`WHOLE_EVERY`]th version of a chain has a whole value, if it is for snapshots. A read in
//! a long history finds it by its depth.

use super::arena::Arena;
use super::record::Header;
use super::version::{Link, OldValue, OldVersion};
use crate::planted::{Bug, planted};
use crate::{TableId, Timestamp};

/// Versions from one whole value to the next, in a chain of one key.
pub(super) const WHOLE_EVERY: u64 = 128;

/// A read of a key at time `at`.
#[derive(Clone, Copy)]
pub(super) struct Read<'a> {
    pub(super) table: TableId,
    pub(super) key: &'a [u8],
    pub(super) at: Timestamp,
    /// The leaf's inline value or a part of it, if it has one: newer than `at`, and read before.
    pub(super) value: Option<&'a OldValue<&'a [u8]>>,
}

#[derive(Clone, Copy)]
pub(super) struct Chain<'a> {
    arena: &'a Arena,
    head: Link,
}

impl<'a> Chain<'a> {
    pub(super) fn new(arena: &'a Arena, head: Link) -> Chain<'a> {
        Chain { arena, head }
    }

    /// The version that `read` asks for, if it is not in the leaf.
    pub(super) fn version(self, read: Read<'_>) -> Option<OldVersion> {
        let (link, header) = match self.lowest_above(read.at) {
            Some(found) if self.is_of(found, read) => found,
            Some(_) => self.lowest_of(read)?,
            None => return None,
        };
        let version =
            if header.is_part() { self.rebuild((link, header), read) } else { self.arena.version(link) };
        // Written after `at`: the right version was dropped, and the snapshot given up.
        version.filter(|version| version.timestamp <= read.at)
    }

    fn is_of(self, (link, header): (Link, Header), read: Read<'_>) -> bool {
        !header.is_retracted() && self.arena.is_of(link, read.table, read.key)
    }

    /// The lowest version superseded above `at`, of any key.
    pub(super) fn lowest_above(self, at: Timestamp) -> Option<(Link, Header)> {
        self.lowest_where(|header| header.superseded_at > at)
    }

    /// The lowest version with a property that all above it have too.
    pub(super) fn lowest_where(self, is_above: impl Fn(&Header) -> bool) -> Option<(Link, Header)> {
        let above = |link: Link| self.arena.header(link).filter(&is_above);
        let mut found = (self.head, above(self.head)?);
        loop {
            let next = [found.1.jump, found.1.below].into_iter().find_map(|link| Some((link, above(link)?)));
            match next {
                Some(next) => found = next,
                None => return Some(found),
            }
        }
    }

    /// One key's lowest version superseded above a time, for shared chains.
    #[cold]
    fn lowest_of(self, read: Read<'_>) -> Option<(Link, Header)> {
        let mut found = None;
        let mut link = self.head;
        while let Some(header) = self.arena.header(link).filter(|header| header.superseded_at > read.at) {
            if self.is_of((link, header), read) {
                found = Some((link, header));
            }
            link = header.below;
        }
        found
    }

    /// The version `lowest`, which has a part. `None` if one above it was dropped.
    #[cold]
    fn rebuild(self, lowest: (Link, Header), read: Read<'_>) -> Option<OldVersion> {
        let mut above = WHOLE_EVERY;
        loop {
            let depth = lowest.1.depth.saturating_add(above);
            let Some((start, _)) = self.lowest_where(|header| header.depth >= depth) else {
                return self.rebuild_to(lowest.0, read);
            };
            let behind = Chain { head: start, ..self };
            let version = behind.rebuild_to(lowest.0, Read { value: None, ..read });
            if version.is_some() {
                return version;
            }
            above = above.saturating_mul(2);
        }
    }

    /// Rebuilds the version `lowest`. `None` if nothing in the chain has a whole value.
    pub(super) fn rebuild_to(self, lowest: Link, read: Read<'_>) -> Option<OldVersion> {
        let mut value = read.value.map(OldValue::to_owned);
        let (mut link, mut parts) = (self.head, Vec::new());
        let timestamp = loop {
            let header = self.arena.header(link)?;
            if self.is_of((link, header), read) {
                let version = self.arena.version(link)?;
                match version.value {
                    OldValue::Part { at, bytes } => parts.push((at, bytes)),
                    _ if planted(Bug::WholeValueBetween) && value.is_some() => {}
                    whole => {
                        parts.clear();
                        value = Some(whole);
                    }
                }
                if link == lowest {
                    break version.timestamp;
                }
            }
            link = header.below;
        };
        if planted(Bug::OldestPartFirst) {
            parts.reverse();
        }
        let mut value = value?;
        let are_inside = parts.iter().all(|(at, bytes)| value.overwrite(*at, bytes));
        debug_assert!(are_inside, "a part of another value");
        are_inside.then_some(OldVersion { timestamp, value })
    }
}
