//! Merges a tree scan with the transaction's own changes, in key order.
//!
//! Both sides can be walked from either end. Each end keeps the entry it took from a side but has
//! not returned. When a side runs dry for one end, it takes the last entry from the other end. For
//! a key on both sides the own change wins; an own deletion hides the key.

use std::cmp::Ordering;

use super::Key;
use super::write_set::{NewValue, OwnRange, Write};
use crate::Result;
use crate::planted::{Bug, planted};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Merged<V> {
    Base(V),
    /// Written by this transaction.
    Own(NewValue),
}

/// A tree scan merged with a transaction's own changes.
#[derive(Debug)]
pub(crate) struct MergedRange<B, V> {
    base: B,
    own: OwnRange,
    front: Held<V>,
    back: Held<V>,
}

/// The entries one end has taken from either side.
#[derive(Debug)]
struct Held<V> {
    base: Option<(Vec<u8>, V)>,
    own: Option<(Key, Write)>,
}

impl<V> Held<V> {
    const NOTHING: Self = Held { base: None, own: None };

    /// Takes the next entry; `toward` says which of two keys this end meets first.
    fn take(&mut self, toward: Ordering) -> Step<V> {
        let order = match (&self.base, &self.own) {
            (None, None) => return Step::End,
            (Some(_), None) => toward,
            (None, Some(_)) => toward.reverse(),
            (Some((base, _)), Some((own, _))) => base[..].cmp(own),
        };
        if order == toward {
            return Step::from_base(self.base.take());
        }
        let hidden = if order == Ordering::Equal { self.base.take() } else { None };
        let own = self.own.take();
        if planted(Bug::ReadOwnStaleVersion) && hidden.is_some() {
            return Step::from_base(hidden);
        }
        match own {
            Some((key, Write::Put(value))) => Step::Entry(key.to_vec(), Merged::Own(value)),
            Some((_, Write::Delete)) => Step::Hidden,
            None => Step::End,
        }
    }
}

enum Step<V> {
    Entry(Vec<u8>, Merged<V>),
    Hidden,
    End,
}

impl<V> Step<V> {
    fn from_base(entry: Option<(Vec<u8>, V)>) -> Self {
        entry.map_or(Step::End, |(key, value)| Step::Entry(key, Merged::Base(value)))
    }
}

impl<B, V> MergedRange<B, V>
where
    B: DoubleEndedIterator<Item = Result<(Vec<u8>, V)>>,
{
    /// Merges `own` into `base`; both cover the same range of one table.
    pub(crate) fn new(base: B, own: OwnRange) -> Self {
        MergedRange { base, own, front: Held::NOTHING, back: Held::NOTHING }
    }

    pub(crate) fn base_mut(&mut self) -> &mut B {
        &mut self.base
    }
}

impl<B, V> Iterator for MergedRange<B, V>
where
    B: DoubleEndedIterator<Item = Result<(Vec<u8>, V)>>,
{
    type Item = Result<(Vec<u8>, Merged<V>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.front.base.is_none() {
                self.front.base = match self.base.next() {
                    Some(Err(error)) => return Some(Err(error)),
                    Some(Ok(entry)) => Some(entry),
                    None => self.back.base.take(),
                };
            }
            if self.front.own.is_none() {
                self.front.own = self.own.next().or_else(|| self.back.own.take());
            }
            match self.front.take(Ordering::Less) {
                Step::Entry(key, value) => return Some(Ok((key, value))),
                Step::Hidden => {}
                Step::End => return None,
            }
        }
    }
}

impl<B, V> DoubleEndedIterator for MergedRange<B, V>
where
    B: DoubleEndedIterator<Item = Result<(Vec<u8>, V)>>,
{
    fn next_back(&mut self) -> Option<Self::Item> {
        loop {
            if self.back.base.is_none() {
                self.back.base = match self.base.next_back() {
                    Some(Err(error)) => return Some(Err(error)),
                    Some(Ok(entry)) => Some(entry),
                    None => self.front.base.take(),
                };
            }
            if self.back.own.is_none() {
                self.back.own = self.own.next_back().or_else(|| self.front.own.take());
            }
            match self.back.take(Ordering::Greater) {
                Step::Entry(key, value) => return Some(Ok((key, value))),
                Step::Hidden => {}
                Step::End => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound;

    use proptest::prelude::*;

    use super::super::write_set::WriteSet;
    use super::*;
    use crate::{Error, TableId};

    const TABLE: TableId = TableId(1);

    fn value(merged: Merged<u8>) -> u8 {
        match merged {
            Merged::Base(value) => value,
            Merged::Own(NewValue::Inline(bytes)) => bytes[0],
            Merged::Own(NewValue::Overflow(_)) => unreachable!("no overflow values in this test"),
        }
    }

    proptest! {
        #[test]
        fn merging_equals_applying_the_changes(
            base in prop::collection::btree_map(0u8..30, 0u8..100, 0..20),
            changes in prop::collection::vec((0u8..30, prop::option::of(100u8..200)), 0..20),
            low in 0u8..31, high in 0u8..31,
            from_the_back in prop::collection::vec(any::<bool>(), 60),
        ) {
            let mut writes = WriteSet::default();
            let mut model: BTreeMap<u8, u8> = base.clone();
            for (key, change) in changes {
                match change {
                    Some(value) => {
                        writes.put(TABLE, &[key], NewValue::inline(&[value]));
                        model.insert(key, value);
                    }
                    None => {
                        writes.delete(TABLE, &[key]);
                        model.remove(&key);
                    }
                }
            }
            let (low, high) = (low.min(high), low.max(high));
            let own = writes.range(TABLE, (Bound::Included(&[low]), Bound::Excluded(&[high])));
            let tree = base.range(low..high).map(|(&key, &value)| Ok((vec![key], value)));
            let mut merged = MergedRange::new(tree, own);
            let mut expected = model.range(low..high).map(|(&key, &value)| (key, value));
            for back in from_the_back {
                let (got, expected) = if back {
                    (merged.next_back(), expected.next_back())
                } else {
                    (merged.next(), expected.next())
                };
                let got = got.map(|entry| entry.map(|(key, merged)| (key[0], value(merged))).unwrap());
                prop_assert_eq!(got, expected);
            }
        }
    }

    #[test]
    fn an_error_of_the_tree_is_passed_on() {
        let mut writes = WriteSet::default();
        writes.put(TABLE, b"z", NewValue::inline(b"1"));
        let own = writes.range(TABLE, (Bound::Unbounded, Bound::Unbounded));
        let tree = vec![Ok((b"a".to_vec(), 1u8)), Err(Error::SnapshotTooOld)];
        let mut merged = MergedRange::new(tree.into_iter(), own);
        assert!(merged.next().unwrap().is_ok());
        assert!(merged.next().unwrap().is_err());
    }

    #[test]
    fn the_planted_bug_shows_the_tree_below_an_own_write() {
        let mut writes = WriteSet::default();
        writes.put(TABLE, b"a", NewValue::inline(&[2]));
        crate::planted::plant(Some(Bug::ReadOwnStaleVersion));
        let own = writes.range(TABLE, (Bound::Unbounded, Bound::Unbounded));
        let mut merged = MergedRange::new(vec![Ok((b"a".to_vec(), 1u8))].into_iter(), own);
        let (seen, looked_up) = (merged.next().unwrap().unwrap().1, writes.get(TABLE, b"a"));
        crate::planted::plant(None);
        assert_eq!((value(seen), looked_up), (1, None));
    }
}
