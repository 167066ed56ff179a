//! Checks: sizes of types. An inherent `impl` is in few files, has few methods; a struct has few
//! fields.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::names::Names;
use crate::sources::{ModulePath, Sources};

const FILES_MAX: usize = 4;
const METHODS_MAX: usize = 60;
const FIELDS_MAX: usize = 24;

/// A type: the module that defines it, and its name.
type Type = (ModulePath, String);

/// What the inherent `impl`s of one type have together.
#[derive(Default)]
struct Methods {
    /// By file: the first line, and how many methods.
    files: BTreeMap<String, (usize, usize)>,
    mutates: bool,
}

fn methods(sources: &Sources) -> BTreeMap<Type, Methods> {
    let names = Names::of(sources);
    let mut types: BTreeMap<Type, Methods> = BTreeMap::new();
    for (file, rust, outer) in sources.product() {
        for inherent in &rust.outline.inherents {
            let mut module = outer.clone();
            module.segments.extend(inherent.scope.iter().cloned());
            let name = inherent.path.last().cloned().unwrap_or_default();
            let found = names.resolve_type(&module, &inherent.path).unwrap_or((module, name));
            let methods = types.entry(found).or_default();
            let count = methods.files.entry(file.path.clone()).or_insert((inherent.line, 0));
            count.1 += inherent.methods;
            methods.mutates |= inherent.mutates;
        }
    }
    types
}

pub fn slices(sources: &Sources) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ((_, name), methods) in methods(sources) {
        let sum: usize = methods.files.values().map(|(_, count)| count).sum();
        if methods.files.len() > FILES_MAX || sum > METHODS_MAX {
            let (file, (line, _)) = methods.files.iter().max_by_key(|(_, (_, count))| count).expect("a file");
            let counts: Vec<_> =
                methods.files.iter().map(|(file, (line, count))| format!("{file}:{line} {count}")).collect();
            let sentence = format!(
                "`impl {name}` has {sum} methods in {} files (at most {METHODS_MAX} in {FILES_MAX}): {}",
                methods.files.len(),
                counts.join(", ")
            );
            findings.push((sum, Finding::at(file, *line, sentence)));
        }
    }
    findings.sort_by_key(|(sum, _)| std::cmp::Reverse(*sum));
    findings.into_iter().map(|(_, finding)| finding).collect()
}

/// Structs of too many fields, but for plain data.
///
/// Plain data is a list of values that belong together, such as statistics, options, or the
/// arguments of a command: all its fields are as open as `pub` or `pub(...)`, it derives `Clone` or
/// `Debug` (so its values can be copied or printed, which no latch or device can), and no inherent
/// method takes `&mut self`.
pub fn wide(sources: &Sources) -> Vec<Finding> {
    let mutating: BTreeSet<_> =
        methods(sources).into_iter().filter(|(_, methods)| methods.mutates).map(|(found, _)| found).collect();
    let mut findings = Vec::new();
    for (file, rust, outer) in sources.product() {
        for found in rust.outline.structs.iter().filter(|found| found.fields > FIELDS_MAX) {
            let mut module = outer.clone();
            module.segments.extend(found.scope.iter().cloned());
            let is_copied = ["Clone", "Debug"].iter().any(|name| found.derives.contains(*name));
            let is_changed = mutating.contains(&(module, found.name.clone()));
            if !(found.fields_are_open && is_copied && !is_changed) {
                let sentence = format!(
                    "`{}` has {} fields (at most {FIELDS_MAX}) and is no plain data",
                    found.name, found.fields
                );
                findings.push(Finding::at(&file.path, found.line, sentence));
            }
        }
    }
    findings
}

#[test]
fn no_impl_is_sliced_over_many_files() {
    crate::holds("slices", slices(Sources::repository()));
}

#[test]
fn a_sliced_impl_is_noticed() {
    let part = "use crate::Pool;\nimpl Pool { fn f(&self) {} }\n";
    let sources = Sources::seeded(&[
        ("crates/a/src/lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\nmod e;\npub struct Pool;\nimpl Pool {}\n"),
        ("crates/a/src/a.rs", part),
        ("crates/a/src/b.rs", part),
        ("crates/a/src/c.rs", part),
        // Another type of the same name, and a trait: neither counts.
        ("crates/a/src/d.rs", "struct Pool;\nimpl Pool {}\n"),
        ("crates/a/src/e.rs", "impl Clone for crate::Pool {}\n"),
    ]);
    assert!(slices(&sources).is_empty());
    let sources = Sources::seeded(&[
        ("crates/a/src/lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub struct Pool;\nimpl Pool {}\n"),
        ("crates/a/src/a.rs", part),
        ("crates/a/src/b.rs", part),
        ("crates/a/src/c.rs", part),
        ("crates/a/src/d.rs", part),
    ]);
    assert!(slices(&sources)[0].sentence.contains("has 4 methods in 5 files"));
}

#[test]
fn an_impl_of_many_methods_is_noticed() {
    let methods: String = (0..=METHODS_MAX).map(|number| format!("fn f{number}() {{}}\n")).collect();
    let text = format!("struct A;\nimpl A {{\n{methods}\n}}\n");
    assert_eq!(slices(&Sources::seeded(&[("crates/a/src/lib.rs", &text)])).len(), 1);
    let text = format!("struct A;\nimpl A {{\n#[cfg(test)]\n{methods}\n}}\n");
    assert!(slices(&Sources::seeded(&[("crates/a/src/lib.rs", &text)])).is_empty());
}

#[test]
fn no_struct_is_wide_but_plain_data() {
    crate::holds("fields", wide(Sources::repository()));
}

#[test]
fn a_wide_struct_is_noticed() {
    let fields = |open: &str| -> String {
        (0..=FIELDS_MAX).map(|number| format!("{open} f{number}: u8,\n")).collect()
    };
    let found = |text: &str| wide(&Sources::seeded(&[("crates/a/src/lib.rs", text)])).len();
    let (open, closed) = (fields("pub(crate)"), fields(""));
    assert_eq!(found(&format!("#[derive(Clone)] struct A {{ {open} }} impl A {{ fn f(&self) {{}} }}")), 0);
    assert_eq!(found(&format!("#[derive(Clone)] struct A {{ {closed} }}")), 1);
    assert_eq!(found(&format!("struct A {{ {open} }}")), 1);
    assert_eq!(
        found(&format!("#[derive(Debug)] struct A {{ {open} }} impl A {{ fn f(&mut self) {{}} }}")),
        1
    );
}
