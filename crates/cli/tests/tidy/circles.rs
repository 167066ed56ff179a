//! Check: the files of a package import each other in no circle.
//!
//! File A imports file B if A names an item that B defines: in a `use`, or in a path in code. The
//! edge leads to the file that defines the item, through any re-exports. Declarations of modules,
//! re-exports, methods called without a path, and test code make no edge.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::Finding;
use crate::names::{Names, Target};
use crate::outline::{Mention, Outline};
use crate::sources::{ModulePath, Sources};

/// Why one file imports another: the first line that does, and what it names.
#[derive(Clone, Debug)]
pub struct Reason {
    pub line: usize,
    pub name: String,
}

/// Files, each with those that it imports.
pub type Graph = BTreeMap<String, BTreeMap<String, Reason>>;

/// The imports between files of the same package, over all packages.
pub fn graph(sources: &Sources) -> Graph {
    let names = Names::of(sources);
    let mut graph = Graph::new();
    for (file, rust, outer) in sources.product() {
        let mut edges = BTreeMap::new();
        let mut known = BTreeSet::new();
        for (scope, path, line) in named(&rust.outline) {
            // Most paths are there many times, and the first line is enough.
            if known.insert((scope, path)) {
                let mut module = outer.clone();
                module.segments.extend(scope.iter().cloned());
                add(&names, &file.path, &module, path, line, &mut edges);
            }
        }
        graph.insert(file.path.clone(), edges);
    }
    graph
}

/// All paths that make edges, by line.
fn named(outline: &Outline) -> Vec<(&[String], &[String], usize)> {
    let imports = outline.imports.iter().filter(|import| !import.is_reexport && import.name.is_some());
    let imports = imports.map(|import| (&import.scope[..], &import.path[..], import.line));
    let mention = |mention: &'_ Mention| mention.line;
    let mentions = outline.mentions.iter().map(|found| (&found.scope[..], &found.path[..], mention(found)));
    let mut named: Vec<_> = imports.chain(mentions).collect();
    named.sort_by_key(|(_, _, line)| *line);
    named
}

fn add(
    names: &Names,
    file: &str,
    module: &ModulePath,
    path: &[String],
    line: usize,
    edges: &mut BTreeMap<String, Reason>,
) {
    for target in names.resolve(module, path) {
        let Target::Item { file: defining, name, .. } = target else { continue };
        if defining != file {
            edges.entry(defining).or_insert(Reason { line, name });
        }
    }
}

/// Paths of this package that lead nowhere: the graph lacks what they import.
fn unresolved(sources: &Sources) -> Vec<Finding> {
    let names = Names::of(sources);
    let mut findings = Vec::new();
    for (file, rust, outer) in sources.product() {
        for (scope, path, line) in named(&rust.outline) {
            let mut module = outer.clone();
            module.segments.extend(scope.iter().cloned());
            let is_inside = path.len() > 1 && ["crate", "self", "super"].contains(&path[0].as_str());
            if is_inside && names.resolve(&module, path).is_empty() {
                findings.push(Finding::at(&file.path, line, format!("{} leads nowhere", path.join("::"))));
            }
        }
    }
    findings
}

pub fn findings(sources: &Sources) -> Vec<Finding> {
    let graph = graph(sources);
    let components = components(&graph);
    components.iter().map(|component| finding(&graph, component)).collect()
}

fn finding(graph: &Graph, component: &BTreeSet<&str>) -> Finding {
    let circle = shortest_circle(graph, component);
    let line = |from: &str, to: &str| &graph[from][to];
    let first = line(circle[0], circle[1]).line;
    let steps: Vec<_> = circle
        .windows(2)
        .map(|pair| {
            let reason = line(pair[0], pair[1]);
            format!("{}:{} names {} of {}", pair[0], reason.line, reason.name, pair[1])
        })
        .collect();
    let members: Vec<_> = component.iter().copied().collect();
    let sentence = format!(
        "{} files import each other in circles; a shortest one: {}; all: {}",
        component.len(),
        steps.join(", "),
        members.join(" ")
    );
    Finding::at(circle[0], first, sentence)
}

/// Strongly connected components of more than one file, the largest first.
fn components(graph: &Graph) -> Vec<BTreeSet<&str>> {
    // Kosaraju's: a depth-first order, then searches against the edges in reverse order.
    let mut against: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, edges) in graph {
        for to in edges.keys() {
            against.entry(to).or_default().push(from);
        }
    }
    let along =
        |file: &str| graph.get(file).into_iter().flat_map(|edges| edges.keys().map(String::as_str)).collect();
    let mut seen = BTreeSet::new();
    let mut order = Vec::new();
    for file in graph.keys() {
        order.extend(finished(file, &mut seen, &along));
    }
    let back = |file: &str| against.get(file).cloned().unwrap_or_default();
    let mut seen = BTreeSet::new();
    let mut components: Vec<BTreeSet<_>> = Vec::new();
    for file in order.into_iter().rev() {
        components.push(finished(file, &mut seen, &back).into_iter().collect());
    }
    components.retain(|component| component.len() > 1);
    components.sort_by_key(|component| std::cmp::Reverse(component.len()));
    components
}

/// Unseen files that can be reached from `start`, in the order in which a depth-first search leaves
/// them.
fn finished<'g>(
    start: &'g str,
    seen: &mut BTreeSet<&'g str>,
    next: &impl Fn(&str) -> Vec<&'g str>,
) -> Vec<&'g str> {
    let mut order = Vec::new();
    let mut stack = vec![(start, false)];
    while let Some((file, is_left)) = stack.pop() {
        if is_left {
            order.push(file);
        } else if seen.insert(file) {
            stack.push((file, true));
            stack.extend(next(file).into_iter().map(|file| (file, false)));
        }
    }
    order
}

/// A shortest circle inside a component; its first file is also its last.
fn shortest_circle<'g>(graph: &'g Graph, component: &BTreeSet<&'g str>) -> Vec<&'g str> {
    let circles = component.iter().filter_map(|start| circle_through(graph, start));
    circles.min_by_key(Vec::len).expect("a component has a circle")
}

fn circle_through<'g>(graph: &'g Graph, start: &'g str) -> Option<Vec<&'g str>> {
    let mut from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(file) = queue.pop_front() {
        for next in graph.get(file)?.keys() {
            if next == start {
                let mut circle = vec![start, file];
                while circle[circle.len() - 1] != start {
                    circle.push(from[circle[circle.len() - 1]]);
                }
                circle.reverse();
                return Some(circle);
            }
            if !from.contains_key(next.as_str()) {
                from.insert(next, file);
                queue.push_back(next);
            }
        }
    }
    None
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    crate::holds("circles", findings(Sources::repository()));
}

#[test]
fn every_path_leads_to_a_file() {
    crate::holds("paths", unresolved(Sources::repository()));
}

#[test]
fn a_path_that_leads_nowhere_is_noticed() {
    let text =
        "mod a { pub struct A; }\nuse self::a::A;\nuse crate::b::B;\nid!(Made);\nuse crate::Made as M;\n";
    let found = unresolved(&Sources::seeded(&[("crates/a/src/lib.rs", text)]));
    assert_eq!(found[0].to_string(), "crates/a/src/lib.rs:3: crate::b::B leads nowhere");
    assert_eq!(found.len(), 1);
}

#[test]
fn a_circle_is_noticed() {
    let sources = Sources::seeded(&[
        ("crates/a/src/lib.rs", "mod pool;\nmod frames;\npub use pool::Pool;\n"),
        ("crates/a/src/pool.rs", "use crate::frames::Frames;\npub struct Pool(Frames);\nfn f() {}\n"),
        // Through a re-export, in the call of a macro.
        (
            "crates/a/src/frames.rs",
            "pub struct Frames;\nfn f() {\n    println!(\"{}\", super::Pool::x());\n}\n",
        ),
    ]);
    let found = findings(&sources);
    assert_eq!(found.len(), 1);
    assert!(found[0].sentence.contains("frames.rs:3 names Pool of crates/a/src/pool.rs"), "{found:?}");
    assert!(found[0].sentence.contains("pool.rs:1 names Frames of crates/a/src/frames.rs"), "{found:?}");
}

#[test]
fn a_circle_through_globs_and_a_parent_is_noticed() {
    let sources = Sources::seeded(&[
        ("crates/a/src/main.rs", "mod pool;\n"),
        ("crates/a/src/pool.rs", "mod frames;\nuse frames::Frames;\nuse std::fmt;\npub const N: u32 = 1;\n"),
        ("crates/a/src/pool/frames.rs", "use super::*;\npub struct Frames;\nstatic M: u32 = N;\n"),
    ]);
    assert_eq!(findings(&sources).len(), 1);
}

#[test]
fn declarations_re_exports_and_tests_are_no_circle() {
    let sources = Sources::seeded(&[
        ("crates/a/src/lib.rs", "mod pool;\npub use pool::{Pool, frames};\npub struct Top;\n"),
        ("crates/a/src/pool.rs", "pub mod frames;\n#[cfg(test)]\nmod tests;\npub struct Pool;\n"),
        (
            "crates/a/src/pool/frames.rs",
            "use crate::Top;\nuse super::Pool;\n#[cfg(test)]\nmod tests { use super::super::tests::T; }\n",
        ),
        ("crates/a/src/pool/tests.rs", "use crate::pool::frames::F;\npub struct T;\n"),
    ]);
    assert!(findings(&sources).is_empty(), "{:?}", findings(&sources));
}
