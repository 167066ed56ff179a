//! Verifies a tree: every node sound, every child as its parent says, every long value whole.
//!
//! The walk goes from leaf to leaf like a scan. Each path consists of copies that belonged
//! together, so the tree may change meanwhile: every reported problem existed at one instant. The
//! walk skips the subtree of an unsound page.
//!
//! **Each page once.** The lower bound of a node never moves: a split makes a new right node, and a
//! merge takes in the right sibling. So the walk first meets a node when its cursor equals the
//! node's lower bound. On a path to a higher cursor, the node was met before, or was created behind
//! the walk. Entries below the cursor, in a leaf after a merge, were seen already.

use super::chain::{chain_pages, verify_value};
use super::node::check;
use super::node::overflow::Reference;
use super::node::{INNER, LEAF, Node, fence_limit};
use super::smo::OTHER_SIZE;
use super::tree::{Seek, Tree, child, copy, retry};
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::pool::{Pool, Retry};

/// An event of a tree walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// A page of the tree or of a long value.
    Page(PageId),
    /// A page and its problem.
    Problem(PageId, String),
}

struct Visited {
    id: PageId,
    is_new: bool,
    problem: Option<String>,
    /// The copy of a sound leaf.
    leaf: Option<Vec<u8>>,
}

/// The path to one leaf, or to an unsound page.
struct Path {
    nodes: Vec<Visited>,
    next: Option<Vec<u8>>,
}

/// What a parent says about its child.
#[derive(Default)]
struct Expected {
    level: Option<u8>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

/// Walks the tree and shows every page and every problem to `visit`. Includes long values. An error
/// is a failure to read, not damage.
pub(crate) fn verify(tree: Tree, pool: &Pool, visit: &mut dyn FnMut(Met)) -> Result<()> {
    walk(tree, pool, visit, true)
}

/// [`verify`] for a tree that is being released.
pub(crate) fn verify_released(tree: Tree, pool: &Pool, visit: &mut dyn FnMut(Met)) -> Result<()> {
    walk(tree, pool, visit, false)
}

fn walk(tree: Tree, pool: &Pool, visit: &mut dyn FnMut(Met), strict: bool) -> Result<()> {
    let mut cursor = Vec::new();
    loop {
        pool.meanwhile();
        let path = retry(tree.root, || path(tree, pool, &cursor, strict))?;
        for node in path.nodes {
            if node.is_new {
                visit(Met::Page(node.id));
                if let Some(problem) = node.problem {
                    visit(Met::Problem(node.id, problem));
                }
            }
            if let Some(page) = node.leaf {
                verify_values(tree, pool, &page, &cursor, strict, visit)?;
            }
        }
        match path.next {
            Some(next) if next > cursor => cursor = next,
            _ => return Ok(()),
        }
    }
}

fn path(tree: Tree, pool: &Pool, cursor: &[u8], strict: bool) -> Result<Path, Retry> {
    let mut nodes = Vec::new();
    let mut expected = Expected::default();
    let (mut id, mut parent) = (tree.root, None);
    loop {
        let is_new = expected.lower == cursor;
        let read = match &parent {
            Some(parent) => child(pool, parent, id),
            None => pool.read(id),
        };
        let read = read.and_then(|guard| copy(&guard).map(|page| (guard, page)));
        let (guard, page) = match read {
            Ok(read) => read,
            Err(Retry::Fail(Error::Corrupt { what, .. })) => {
                nodes.push(Visited { id, is_new, problem: Some(what), leaf: None });
                return Ok(Path { nodes, next: expected.upper });
            }
            Err(stop) => return Err(stop),
        };
        let is_long = || if page.len() == tree.page_bytes() { Ok(()) } else { Err(OTHER_SIZE.to_owned()) };
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
    tree: Tree,
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
        // A partly freed value is shorter than its reference says.
        let mut page_met = |id| visit(Met::Page(id));
        let verified = match strict {
            true => verify_value(pool, reference, &mut page_met),
            false => chain_pages(pool, reference.head, &mut page_met),
        };
        match verified {
            Ok(()) => {}
            Err(Error::Corrupt { page, what, .. }) => {
                // The value may have been replaced and freed during the read. If the same commit's
                // value is still there, it was not.
                let now = tree.get_into(pool, &node.key(index), &mut again)?;
                if now.is_some_and(|(timestamp, _)| timestamp == entry.timestamp) && again == value {
                    visit(Met::Problem(page.map_or(reference.head, PageId), what));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
