//! Whether a tree is one: every node sound by itself, every child where its parent says, every long value whole.
//!
//! The walk goes from leaf to leaf as a scan does, each time by a path of copies that belonged together, so it may
//! run while the tree changes: what it reports was wrong at one instant. A page that is not sound is reported and
//! what is below it skipped; the walk goes on behind it.
//!
//! **Each page once.** The lower bound of a node never moves: a split makes a new node to the right, a merge takes the
//! right neighbour in. The walk's cursor goes through the lower bounds of all leaves there are when it comes to them. So it
//! first comes to a node, and to the nodes above that begin with it, when the cursor is its lower bound; on a path to
//! a higher cursor the node was met before, or has come into being behind the walk. Entries below the cursor, which a
//! leaf may have taken over from one that was walked, were seen there.

use super::chain::{chain_pages, verify_value};
use super::check;
use super::node::{INNER, LEAF, Node, fence_limit};
use super::overflow::Reference;
use super::smo::OTHER_SIZE;
use super::tree::{Seek, Tree, child, copy, retry};
use crate::buffer::{Pool, Stop};
use crate::error::{Error, Result};
use crate::ids::PageId;

/// What a walk over a tree comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// A page of the tree or of one of its long values.
    Page(PageId),
    /// What is wrong with a page.
    Problem(PageId, String),
}

/// A node on a path, and what is wrong with it.
struct Visited {
    id: PageId,
    /// Whether the walk comes to it for the first time.
    is_new: bool,
    problem: Option<String>,
    /// The copy, of a sound leaf.
    leaf: Option<Vec<u8>>,
}

/// The way to one leaf, or to the unsound page in its place.
struct Path {
    nodes: Vec<Visited>,
    /// Where the next one begins.
    next: Option<Vec<u8>>,
}

/// What a node's parent says about it.
#[derive(Default)]
struct Expected {
    level: Option<u8>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

impl Tree {
    /// Walks the whole tree and calls `visit` with every page, those of long values included, and with what is wrong. An
    /// error is a failure to look, not damage.
    pub(crate) fn verify(&self, pool: &Pool, visit: &mut dyn FnMut(Met)) -> Result<()> {
        self.walk(pool, visit, true)
    }

    /// As [`Tree::verify`], for a tree that is being released.
    pub(crate) fn verify_released(&self, pool: &Pool, visit: &mut dyn FnMut(Met)) -> Result<()> {
        self.walk(pool, visit, false)
    }

    fn walk(&self, pool: &Pool, visit: &mut dyn FnMut(Met), strict: bool) -> Result<()> {
        let mut cursor = Vec::new();
        loop {
            pool.meanwhile();
            let path = retry(self.root, || self.path(pool, &cursor, strict))?;
            for node in path.nodes {
                if node.is_new {
                    visit(Met::Page(node.id));
                    if let Some(problem) = node.problem {
                        visit(Met::Problem(node.id, problem));
                    }
                }
                if let Some(page) = node.leaf {
                    self.verify_values(pool, &page, &cursor, strict, visit)?;
                }
            }
            match path.next {
                Some(next) if next > cursor => cursor = next,
                _ => return Ok(()),
            }
        }
    }

    fn path(&self, pool: &Pool, cursor: &[u8], strict: bool) -> Result<Path, Stop> {
        let mut nodes = Vec::new();
        let mut expected = Expected::default();
        let (mut id, mut parent) = (self.root, None);
        loop {
            let is_new = expected.lower == cursor;
            let read = match &parent {
                Some(parent) => child(pool, parent, id),
                None => pool.read(id),
            };
            let read = read.and_then(|guard| copy(&guard).map(|page| (guard, page)));
            let (guard, page) = match read {
                Ok(read) => read,
                Err(Stop::Fail(Error::Corrupt { what, .. })) => {
                    nodes.push(Visited { id, is_new, problem: Some(what), leaf: None });
                    return Ok(Path { nodes, next: expected.upper });
                }
                Err(stop) => return Err(stop),
            };
            let is_long =
                || if page.len() == self.page_bytes() { Ok(()) } else { Err(OTHER_SIZE.to_owned()) };
            let checked = check::check(&page).and_then(|()| is_long());
            if let Err(problem) = checked.and_then(|()| expected.verify(id, &page, strict)) {
                nodes.push(Visited { id, is_new, problem: Some(problem), leaf: None });
                return Ok(Path { nodes, next: expected.upper });
            }
            let node = Node::new(&page[..]);
            if node.is_leaf() {
                nodes.push(Visited { id, is_new, problem: None, leaf: Some(page) });
                return Ok(Path { nodes, next: expected.upper });
            }
            nodes.push(Visited { id, is_new, problem: None, leaf: None });
            let index = Seek::At(cursor).child_index(&node);
            expected.level = Some(node.level() - 1);
            if let Some(before) = index.checked_sub(1) {
                expected.lower = node.key(before);
            }
            if index < node.count() {
                expected.upper = Some(node.key(index));
            }
            id = node.child_at(index);
            parent = Some(guard);
        }
    }

    fn verify_values(
        &self,
        pool: &Pool,
        page: &[u8],
        cursor: &[u8],
        strict: bool,
        visit: &mut dyn FnMut(Met),
    ) -> Result<()> {
        let node = Node::new(page);
        let mut again = Vec::new();
        for index in 0..node.count() {
            let entry = node.entry(index);
            if !entry.is_overflow() || node.key(index).as_slice() < cursor {
                continue;
            }
            let value = &page[entry.value_at..entry.value_at + entry.value_length];
            let Some(reference) = Reference::decode(value) else { continue };
            // A value being freed is shorter than its reference says.
            let mut page_met = |id| visit(Met::Page(id));
            let verified = match strict {
                true => verify_value(pool, reference, &mut page_met),
                false => chain_pages(pool, reference.head, &mut page_met),
            };
            match verified {
                Ok(()) => {}
                Err(Error::Corrupt { page, what, .. }) => {
                    // The value may have been replaced and freed while its pages were read. If it is still the one that
                    // the same commit has written, it was not.
                    let now = self.get_into(pool, &node.key(index), &mut again)?;
                    if now.is_some_and(|(timestamp, _)| timestamp == entry.timestamp) && again == value {
                        visit(Met::Problem(page.map_or(reference.head, PageId), what));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Expected {
    fn verify(&self, id: PageId, page: &[u8], strict: bool) -> Result<(), String> {
        let node = Node::new(page);
        let fences = node.fences();
        let kind = node.kind();
        let limit = fence_limit(kind, page.len());
        let cut = |fence: &'_ [u8]| fence.len().min(limit);
        if kind != LEAF && kind != INNER {
            return Err(format!("a page of kind {kind} in place of a node"));
        }
        if node.page() != id {
            return Err(format!("it says it is page {}", node.page()));
        }
        if self.level.is_some_and(|level| level != node.level()) {
            return Err(format!("level {} under a node of another level", node.level()));
        }
        if fences.lower != self.lower[..cut(&self.lower)] {
            return Err("its lower fence differs from its parent's separator".into());
        }
        let upper = self.upper.as_deref().map(|upper| &upper[..cut(upper)]);
        if strict && fences.upper.as_deref() != upper {
            return Err("its upper fence differs from its parent's separator".into());
        }
        Ok(())
    }
}
