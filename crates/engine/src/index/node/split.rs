//! Splits and merges nodes, grows and shrinks the root.
//!
//! A split fills a new right node and names the *separator*; [`truncate`] then changes the left
//! node, which is all that the log records of it. The tree then retries its insert, and may split
//! again. That ends: every split leaves fewer entries, one record always fits into an empty leaf,
//! and three separators into an empty inner node.
//!
//! The split point is the middle by bytes, new entry included, at the shortest separator nearby
//! (Bayer and Unterauer, "Prefix B-trees"). For ascending loads, an entry behind all others of the
//! last leaf moves to a new leaf, alone or with its predecessor. In other leaves this applies if
//! the predecessor was written last, by timestamp; mirrored for descending loads.
//!
//! Halves fit: a fence grows by less than the headers and slots of the removed entries release.
//! Only a split at an end, which moves all or no entries, needs a check.

use std::ops::Range;

use super::edit::{self, Shape, damaged};
use super::inner;
use super::layout::{
    BODY, Body, Fences, INNER, KIND, LEAF, LEVEL, LEVEL_MAX, Node, SHARED, SLOT, align8, common,
    entry_header, fence_limit, slots_at,
};
use crate::error::Result;
use crate::ids::MAX_KEY_BYTES;
use crate::ids::PageId;

/// The shortest key above `left` and not above `right`, where `left` < `right`.
pub(crate) fn separator_between(left: &[u8], right: &[u8]) -> Vec<u8> {
    right[..right.len().min(common(left, right) + 1)].to_vec()
}

/// Splits the node in `page` to make room for `key`: a record with a value of `value_length` bytes,
/// or a separator. Fills `right` as page `right_id`. Returns the separator, which the caller
/// inserts into the parent, and to which it truncates the left node.
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

/// Drops everything at and above `separator`, the new upper fence. An inner node must contain that
/// separator: it moves up, and its child becomes the right node's leftmost.
pub(crate) fn truncate(page: &mut [u8], separator: &[u8]) -> Result<()> {
    let (end, _) = cut_at(page, separator)?;
    let old = page.to_vec();
    let node = Node::new(&old[..]);
    let lower = node.fences().lower;
    let leftmost = if node.is_leaf() { PageId::NONE } else { node.child_at(0) };
    edit::init(page, node.kind(), node.level_byte(), node.page(), &lower, Some(separator), leftmost);
    copy_entries(page, node, 0..end)
}

/// Fills `right` with the part that [`truncate`] drops.
fn upper_part(page: &[u8], separator: &[u8], right_id: PageId, right: &mut [u8]) -> Result<()> {
    let (end, start) = cut_at(page, separator)?;
    let node = Node::new(page);
    let upper = node.fences().upper;
    let leftmost = if node.is_leaf() { PageId::NONE } else { node.child_at(end + 1) };
    edit::init(right, node.kind(), node.level_byte(), right_id, separator, upper.as_deref(), leftmost);
    copy_entries(right, node, start..node.count())
}

/// The end of the left part and the start of the right part. Verifies that `separator` can cut this
/// node.
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

/// A leaf to split with the new record in place, as item `position`.
struct Candidates<'a> {
    node: Node<&'a [u8]>,
    key: &'a [u8],
    position: usize,
    replaces: bool,
    /// `before[i]`: bytes of slots and entries of items 0 to i - 1.
    before: Vec<usize>,
    /// Bytes of everything else on each page, without the separator.
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

    fn imbalance(&self, item: usize) -> usize {
        (2 * self.before[item]).abs_diff(self.before[self.items()])
    }

    /// The separator of a split before `item`, if both halves fit.
    fn separator(&self, item: usize) -> Option<Vec<u8>> {
        let separator = separator_between(&self.item_key(item - 1), &self.item_key(item));
        let (left, all) = (self.before[item], self.before[self.items()]);
        let fence = align8(separator.len());
        let fits = self.left_rest + left + fence <= self.page_bytes
            && self.right_rest + all - left + fence <= self.page_bytes;
        fits.then_some(separator)
    }

    /// The separator, if the new record continues an ordered load. A completely full leaf has no
    /// room for that fence; then one neighbour moves along. Otherwise a load would halve every such
    /// leaf.
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
    // No split makes room for this record. Halving always fits, and makes more room.
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
    // The separator moves up and belongs to neither half.
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

/// Whether `left` and its right sibling fit into one node. `separator` is the parent's.
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

/// Merges the right sibling into `left`; inner nodes also take the parent's separator. The caller
/// has asked [`can_merge`], removes the separator and frees the right page.
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

/// Splits a full root: its content goes to two new pages, and the root keeps its page id, one level
/// higher.
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

/// Moves the only child's content into the root, which keeps its page id; the caller frees the
/// child.
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

/// Whether a node has few enough entries to try a merge. Fences do not count: two long ones would
/// make an empty leaf look full.
pub(crate) fn is_underfull(page: &[u8]) -> bool {
    let node = Node::new(page);
    let Fences { lower, upper } = node.fences();
    let fences = align8(lower.len()) + align8(upper.map_or(0, |upper| upper.len()));
    node.used_bytes().saturating_sub(fences) < page.len() / 4
}

/// The free bytes to cut out of a page's image: a node's gap (all free bytes, after a split, a
/// merge or [`edit::compact`]) or an overflow page's unused end. Empty for other pages.
pub(crate) fn gap(page: &[u8]) -> Range<usize> {
    match Shape::of(page) {
        Ok(shape) => shape.slots_end()..shape.heap,
        Err(_) => super::overflow::unused(page),
    }
}
