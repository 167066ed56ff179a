//! Splitting and merging nodes, growing and shrinking the root.
//!
//! A split makes the content of a new right node and names the *separator*; the left node is then changed by
//! [`truncate`], which is what the log records of it. Nothing is inserted here: the tree inserts again once the
//! parent knows the separator, and splits again in the rare case that it still does not fit. That ends, because
//! every split leaves fewer entries, and one record always fits into an empty leaf, three separators into an
//! empty inner node.
//!
//! Where to split: in the middle by bytes, counting the entry that is about to come, at the shortest separator
//! near it (Bayer and Unterauer, "Prefix B-trees"). Loads in ascending order would leave every leaf half full, so
//! an entry behind all others of the last leaf goes to a new leaf by itself, or with the one before it, and the old one stays full. The same
//! holds in other leaves if the entry before it is the one written last, which the entries' timestamps tell; and
//! mirrored, for descending loads.
//!
//! That halves fit: a separator is no longer than what the removed entries of the left half shared with the prefix
//! and their suffixes, nor longer by more than one byte than what those of the right half do; so a fence grows by
//! less than the entries' headers and slots release. Only a split at an end, which moves none or all of the entries, must be
//! checked to fit.

use std::ops::Range;

use super::edit::{self, Shape, damaged};
use super::inner;
use super::node::{
    BODY, Body, Fences, INNER, KIND, LEAF, LEVEL, LEVEL_MAX, Node, SHARED, SLOT, align8, common,
    entry_header, fence_limit, slots_at,
};
use crate::MAX_KEY_BYTES;
use crate::error::Result;
use crate::ids::PageId;

/// The shortest key that is above `left` and not above `right`; `left` must be below `right`.
pub(crate) fn separator_between(left: &[u8], right: &[u8]) -> Vec<u8> {
    right[..right.len().min(common(left, right) + 1)].to_vec()
}

/// Splits the node in `page` to make room for `key`, a record with a value of `value_length` bytes for a leaf, a
/// separator for an inner node. Fills `right` as page `right_id`. Returns the separator; the caller inserts it with
/// `right_id` into the parent and truncates the left node to it.
pub(crate) fn split(
    page: &[u8],
    key: &[u8],
    value_length: usize,
    right_id: PageId,
    right: &mut [u8],
) -> Result<Vec<u8>> {
    let shape = Shape::of(page)?;
    let separator = if shape.kind == LEAF {
        leaf_separator(page, &shape, key, value_length)?
    } else {
        inner_separator(page, &shape, key)?
    };
    upper_part(page, &separator, right_id, right)?;
    Ok(separator)
}

/// Drops everything at and above `separator`, which becomes the upper fence. An inner node must have it as a
/// separator: it has moved up, and its child has become the right node's leftmost one.
pub(crate) fn truncate(page: &mut [u8], separator: &[u8]) -> Result<()> {
    let (end, _) = cut_at(page, separator)?;
    let old = page.to_vec();
    let node = Node::new(&old[..]);
    let lower = node.fences().lower;
    let leftmost = if node.is_leaf() { PageId::NONE } else { node.child_at(0) };
    edit::init(page, node.kind(), node.level_byte(), node.page(), &lower, Some(separator), leftmost);
    copy_entries(page, node, 0..end)
}

/// Fills `right` with what [`truncate`] drops.
fn upper_part(page: &[u8], separator: &[u8], right_id: PageId, right: &mut [u8]) -> Result<()> {
    let (end, start) = cut_at(page, separator)?;
    let node = Node::new(page);
    let upper = node.fences().upper;
    let leftmost = if node.is_leaf() { PageId::NONE } else { node.child_at(end + 1) };
    edit::init(right, node.kind(), node.level_byte(), right_id, separator, upper.as_deref(), leftmost);
    copy_entries(right, node, start..node.count())
}

/// Where the left part ends and where the right part starts. Verifies that `separator` can cut this node.
fn cut_at(page: &[u8], separator: &[u8]) -> Result<(usize, usize)> {
    Shape::of(page)?;
    let node = Node::new(page);
    let fences = node.fences();
    let within = node.contains(separator) && (node.kind() == INNER || fences.lower.as_slice() < separator);
    if !within || separator.is_empty() || separator.len() > MAX_KEY_BYTES {
        return Err(damaged(page, "a node cut at a separator outside its fences"));
    }
    let (index, found) = node.lower_bound(separator);
    match (node.is_leaf(), found) {
        (true, _) => Ok((index, index)),
        (false, true) => Ok((index, index + 1)),
        (false, false) => Err(damaged(page, "an inner node cut at a separator it does not have")),
    }
}

fn copy_entries(to: &mut [u8], from: Node<&[u8]>, range: Range<usize>) -> Result<()> {
    let mut key = Vec::new();
    for index in range {
        key.clear();
        from.append_key(index, &mut key);
        edit::append(to, &key, &from.body(index))?;
    }
    Ok(())
}

/// A leaf about to be split, with the record to come already in its place: item `position` is that record.
struct Candidates<'a> {
    node: Node<&'a [u8]>,
    key: &'a [u8],
    position: usize,
    replaces: bool,
    /// `before[i]`: bytes of slots and entries of items 0 to i - 1.
    before: Vec<usize>,
    /// Bytes of everything else on the left page, and on the right, but for the separator.
    left_rest: usize,
    right_rest: usize,
    page_bytes: usize,
}

impl<'a> Candidates<'a> {
    fn new(page: &'a [u8], shape: &Shape, key: &'a [u8], value_length: usize) -> Self {
        let node = Node::new(page);
        let (position, replaces) = node.lower_bound(key);
        let suffix_length = key.len().saturating_sub(node.prefix());
        let coming = SLOT + align8(entry_header(LEAF) + suffix_length + value_length);
        let mut sizes: Vec<usize> = (0..node.count()).map(|index| SLOT + node.entry_bytes(index)).collect();
        if replaces {
            sizes[position] = coming;
        } else {
            sizes.insert(position, coming);
        }
        let mut before = vec![0];
        before.extend(sizes.iter().scan(0, |sum, size| {
            *sum += size;
            Some(*sum)
        }));
        let Fences { lower, upper } = node.fences();
        let rest = |fence: usize| slots_at(LEAF) + align8(fence);
        let (left_rest, right_rest) = (rest(lower.len()), rest(upper.map_or(0, |upper| upper.len())));
        Self { node, key, position, replaces, before, left_rest, right_rest, page_bytes: shape.page_bytes }
    }

    fn items(&self) -> usize {
        self.before.len() - 1
    }

    fn item_key(&self, item: usize) -> Vec<u8> {
        match item.cmp(&self.position) {
            std::cmp::Ordering::Less => self.node.key(item),
            std::cmp::Ordering::Equal => self.key.to_vec(),
            std::cmp::Ordering::Greater => self.node.key(item - usize::from(!self.replaces)),
        }
    }

    /// How far from the middle a split before `item` is, in bytes.
    fn imbalance(&self, item: usize) -> usize {
        (2 * self.before[item]).abs_diff(self.before[self.items()])
    }

    /// The separator of a split before `item`, if both halves fit with it.
    fn separator(&self, item: usize) -> Option<Vec<u8>> {
        let separator = separator_between(&self.item_key(item - 1), &self.item_key(item));
        let (left, all) = (self.before[item], self.before[self.items()]);
        let fence = align8(separator.len());
        let fits = self.left_rest + left + fence <= self.page_bytes
            && self.right_rest + all - left + fence <= self.page_bytes;
        fits.then_some(separator)
    }

    /// Whether the record to come continues an ascending or a descending load: the separator of the split if so, before the record or behind
    /// it. A leaf that is full to the last bytes has no room for that fence; then one record goes with the one to come. Else it would be
    /// halved, and every leaf of a load in which all are as full.
    fn load_separator(&self) -> Option<Vec<u8>> {
        let written = |index: usize| self.node.entry(index).timestamp;
        let count = self.node.count();
        if self.replaces || count == 0 {
            return None;
        }
        let newest = |index: usize| (0..count).all(|other| written(other) <= written(index));
        let at_end = |is_end: bool, index: usize| is_end || newest(index);
        if self.position == count && at_end(self.node.is_last(), count - 1) {
            return [count, count - 1]
                .into_iter()
                .filter(|&item| item > 0)
                .find_map(|item| self.separator(item));
        }
        if self.position == 0 && at_end(self.node.is_first(), 0) {
            return [1, 2].into_iter().filter(|&item| item <= count).find_map(|item| self.separator(item));
        }
        None
    }
}

fn leaf_separator(page: &[u8], shape: &Shape, key: &[u8], value_length: usize) -> Result<Vec<u8>> {
    let candidates = Candidates::new(page, shape, key, value_length);
    let items = candidates.items();
    if items < 2 {
        return Err(damaged(page, "a leaf to be split that has room"));
    }
    if let Some(separator) = candidates.load_separator() {
        return Ok(separator);
    }
    let middle = (1..items).min_by_key(|&item| candidates.imbalance(item)).unwrap_or(1);
    let near = items / 16;
    let shortest = (middle.saturating_sub(near).max(1)..=(middle + near).min(items - 1))
        .filter_map(|item| Some((candidates.separator(item)?, candidates.imbalance(item))))
        .min_by_key(|(separator, imbalance)| (separator.len(), *imbalance));
    if let Some((separator, _)) = shortest {
        return Ok(separator);
    }
    let fitting = (1..items)
        .filter_map(|item| Some((candidates.separator(item)?, candidates.imbalance(item))))
        .min_by_key(|(_, imbalance)| *imbalance);
    if let Some((separator, _)) = fitting {
        return Ok(separator);
    }
    // No split makes room for this record. Halve what is there; that always fits, and then there is more room.
    let node = candidates.node;
    if node.count() < 2 {
        return Err(damaged(page, "one record that leaves no room in its leaf"));
    }
    let half = node.count() / 2;
    Ok(separator_between(&node.key(half - 1), &node.key(half)))
}

fn inner_separator(page: &[u8], shape: &Shape, key: &[u8]) -> Result<Vec<u8>> {
    let node = Node::new(page);
    let count = shape.count;
    if count == 0 {
        return Err(damaged(page, "an inner node to be split that has room"));
    }
    let (position, _) = node.lower_bound(key);
    if position == count && node.is_last() {
        return Ok(node.key(count - 1));
    }
    if position == 0 && node.is_first() {
        return Ok(node.key(0));
    }
    // The separator that moves up belongs to neither half.
    let sizes: Vec<usize> = (0..count).map(|index| SLOT + node.entry_bytes(index)).collect();
    let all: usize = sizes.iter().sum();
    let imbalances: Vec<usize> = sizes
        .iter()
        .scan(0, |left, size| {
            let imbalance = (2 * *left + size).abs_diff(all);
            *left += size;
            Some(imbalance)
        })
        .collect();
    let middle = (0..count).min_by_key(|&index| imbalances[index]).unwrap_or(0);
    let near = count / 16;
    let best = (middle.saturating_sub(near)..=(middle + near).min(count - 1))
        .min_by_key(|&index| (node.slot(index).length(), imbalances[index]))
        .unwrap_or(middle);
    Ok(node.key(best))
}

/// Whether `left` and its right sibling fit into one node. `separator` is the parent's between them.
pub(crate) fn can_merge(left: &[u8], right: &[u8], separator: &[u8]) -> bool {
    let (left_node, right_node) = (Node::new(left), Node::new(right));
    if left_node.kind() != right_node.kind()
        || left_node.level() != right_node.level()
        || left.len() != right.len()
    {
        return false;
    }
    let (lower, upper) = (left_node.fences().lower, right_node.fences().upper);
    let prefix = upper.as_deref().map_or(0, |upper| common(&lower, upper));
    let kind = left_node.kind();
    let entries = |node: Node<&[u8]>| -> usize {
        (0..node.count())
            .map(|index| {
                let suffix = (node.prefix() + node.slot(index).length()).saturating_sub(prefix);
                SLOT + node.body(index).bytes(suffix)
            })
            .sum()
    };
    let pulled_down = match kind {
        INNER => SLOT + align8(entry_header(INNER) + separator.len().saturating_sub(prefix)),
        _ => 0,
    };
    let fences = align8(lower.len()) + align8(upper.map_or(0, |upper| upper.len()));
    slots_at(kind) + fences + entries(left_node) + pulled_down + entries(right_node) <= left.len()
}

/// Merges the right sibling into `left`; in inner nodes the parent's separator comes down between them. The caller
/// has asked [`can_merge`], removes the separator from the parent, and frees the right page.
pub(crate) fn merge(left: &mut [u8], right: &[u8], separator: &[u8]) -> Result<()> {
    Shape::of(left)?;
    Shape::of(right)?;
    let old = left.to_vec();
    let (left_node, right_node) = (Node::new(&old[..]), Node::new(right));
    let (kind, level) = (left_node.kind(), left_node.level_byte());
    let cut = &separator[..separator.len().min(fence_limit(kind, old.len()))];
    let adjoin = left_node.fences().upper.as_deref() == Some(cut) && right_node.fences().lower == cut;
    if !adjoin
        || kind != right_node.kind()
        || left_node.level() != right_node.level()
        || old.len() != right.len()
    {
        return Err(damaged(right, "nodes to be merged are not neighbours"));
    }
    let (lower, upper) = (left_node.fences().lower, right_node.fences().upper);
    let leftmost = if kind == LEAF { PageId::NONE } else { left_node.child_at(0) };
    edit::init(left, kind, level, left_node.page(), &lower, upper.as_deref(), leftmost);
    copy_entries(left, left_node, 0..left_node.count())?;
    if kind == INNER {
        edit::append(left, separator, &Body::Inner { child: right_node.child_at(0) })?;
    }
    copy_entries(left, right_node, 0..right_node.count())
}

/// Splits a root that has no room: its content goes to two new pages, and the root, one level higher, keeps its
/// page id. All three are new content of their pages.
pub(crate) fn grow_root(
    root: &mut [u8],
    key: &[u8],
    value_length: usize,
    left: (PageId, &mut [u8]),
    right: (PageId, &mut [u8]),
) -> Result<Vec<u8>> {
    let node = Node::new(&root[..]);
    if node.level() >= LEVEL_MAX {
        return Err(damaged(root, "a tree too high"));
    }
    let (id, level) = (node.page(), node.level_byte() + 1);
    let separator = split(root, key, value_length, right.0, right.1)?;
    let (left_id, left) = left;
    let leftmost = if node.is_leaf() { PageId::NONE } else { node.child_at(0) };
    let (end, _) = cut_at(root, &separator)?;
    edit::init(left, node.kind(), node.level_byte(), left_id, &[], Some(&separator), leftmost);
    copy_entries(left, node, 0..end)?;
    inner::init(root, level, id, &[], None, left_id);
    edit::append(root, &separator, &Body::Inner { child: right.0 })?;
    Ok(separator)
}

/// Takes the content of the root's only child into the root, which keeps its page id; the caller frees the child.
pub(crate) fn shrink_root(root: &mut [u8], child: &[u8]) -> Result<()> {
    let (node, below) = (Node::new(&root[..]), Node::new(child));
    let alone = !node.is_leaf() && node.count() == 0 && node.child_at(0) == below.page();
    if !alone || root.len() != child.len() || !below.is_first() || !below.is_last() {
        return Err(damaged(root, "a root to be replaced by a child that is not its only one"));
    }
    root[BODY..].copy_from_slice(&child[BODY..]);
    root[KIND] = child[KIND];
    root[LEVEL] = child[LEVEL];
    edit::put_u16(root, SHARED, below.shared());
    Ok(())
}

/// Whether a node has so few entries that merging it with a neighbour should be tried. Fences do not count: two
/// long ones would make an empty leaf look well filled.
pub(crate) fn is_underfull(page: &[u8]) -> bool {
    let node = Node::new(page);
    let Fences { lower, upper } = node.fences();
    let fences = align8(lower.len()) + align8(upper.map_or(0, |upper| upper.len()));
    node.used_bytes().saturating_sub(fences) < page.len() / 4
}

/// The free bytes of a page, to be cut out of its image: the gap of a node (all free bytes, after a split, a merge
/// or [`edit::compact`]), or what an overflow page does not use. Empty for other pages.
pub(crate) fn gap(page: &[u8]) -> Range<usize> {
    match Shape::of(page) {
        Ok(shape) => shape.slots_end()..shape.heap,
        Err(_) => super::overflow::unused(page),
    }
}
