//! The files that the checks read: the repository, or a few seeded in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs, thread};

use crate::comments::{self, Lexed};
use crate::outline::{self, Outline};

/// Folders that hold no source of ours.
const SKIPPED: &[&str] = &["target", ".git", "corpus", "artifacts"];
/// Expressions nest deeply where the parser is not optimised.
const STACK_BYTES: usize = 64 << 20;

/// A text file, with what was found in it if it is Rust.
pub struct Source {
    /// Path below the root, with `/`.
    pub path: String,
    pub text: String,
    pub rust: Option<Rust>,
}

/// A Rust file, lexed and parsed.
pub struct Rust {
    pub lexed: Lexed,
    pub outline: Outline,
    /// The module that the file is, if it is below `crates/*/src`.
    pub module: Option<ModulePath>,
    /// Whether it is compiled for tests only.
    pub is_test: bool,
}

/// A module of a package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModulePath {
    /// Folder below `crates`.
    pub package: String,
    pub segments: Vec<String>,
}

impl Source {
    pub fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }

    /// Whether the file is below `crates/*/src` and not compiled for tests only.
    pub fn product(&self) -> Option<(&Rust, &ModulePath)> {
        let rust = self.rust.as_ref()?;
        let module = rust.module.as_ref()?;
        (!rust.is_test).then_some((rust, module))
    }
}

/// All files that a check reads.
pub struct Sources {
    pub files: Vec<Source>,
    /// Every file and folder, also those that are not read.
    pub paths: BTreeSet<String>,
}

impl Sources {
    /// The repository: the one of this package, or the one that `TERRACE_TIDY_ROOT` names.
    pub fn repository() -> &'static Self {
        static REPOSITORY: OnceLock<Sources> = OnceLock::new();
        REPOSITORY.get_or_init(|| {
            let root = env::var_os("TERRACE_TIDY_ROOT").map(PathBuf::from);
            let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
            let sources = Self::read(&root);
            assert!(sources.files.len() > 100, "the walk has missed the sources");
            sources
        })
    }

    /// Files with these paths and texts.
    pub fn seeded(files: &[(&str, &str)]) -> Self {
        let texts = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let paths = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        Self::new(texts, paths)
    }

    fn read(root: &Path) -> Self {
        let mut folders = vec![root.to_owned()];
        let (mut texts, mut paths) = (Vec::new(), BTreeSet::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder of the repository can be read") {
                let path = entry.expect("an entry can be read").path();
                let below = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if path.is_dir() {
                    if !SKIPPED.contains(&name.as_str()) {
                        paths.insert(below);
                        folders.push(path);
                    }
                    continue;
                }
                if is_read_by_people(&name) {
                    texts.push((below.clone(), fs::read_to_string(&path).expect("sources are text")));
                }
                paths.insert(below);
            }
        }
        texts.sort();
        Self::new(texts, paths)
    }

    fn new(texts: Vec<(String, String)>, paths: BTreeSet<String>) -> Self {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let mut parts: Vec<Vec<(String, String)>> = vec![Vec::new(); count];
        // Neighbours are of a kind: dealt out in turn, each thread gets as much to parse.
        for (index, text) in texts.into_iter().enumerate() {
            parts[index % count].push(text);
        }
        let parse = |part: Vec<(String, String)>| {
            thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn(move || part.into_iter().map(|(path, text)| source(path, text)).collect::<Vec<_>>())
                .expect("a thread starts")
        };
        let threads: Vec<_> = parts.into_iter().map(parse).collect();
        let parsed = threads.into_iter().flat_map(|thread| thread.join().expect("sources can be parsed"));
        let mut files: Vec<_> = parsed.collect();
        files.sort_by(|left, right| left.path.cmp(&right.path));
        part_programs(&mut files);
        mark_test_files(&mut files);
        Self { files, paths }
    }

    /// Files that are part of a package's code: below `crates/*/src`, without tests.
    pub fn product(&self) -> impl Iterator<Item = (&Source, &Rust, &ModulePath)> {
        self.files.iter().filter_map(|file| file.product().map(|(rust, module)| (file, rust, module)))
    }

    /// Folders below `crates` that hold a package.
    pub fn packages(&self) -> BTreeSet<&str> {
        self.product().map(|(_, _, module)| module.package.as_str()).collect()
    }

    pub fn rust(&self) -> impl Iterator<Item = (&Source, &Rust)> {
        self.files.iter().filter_map(|file| file.rust.as_ref().map(|rust| (file, rust)))
    }

    pub fn markdown(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|file| file.is_markdown())
    }

    /// The text of the one file whose path ends with `name`.
    pub fn text(&self, name: &str) -> Option<&str> {
        let ending = format!("/{name}");
        let found = self.files.iter().find(|file| file.path == name || file.path.ends_with(&ending));
        found.map(|file| file.text.as_str())
    }
}

fn is_read_by_people(name: &str) -> bool {
    let endings = [".rs", ".toml", ".md", ".html", ".css", ".js", ".yml"];
    name == "run" || endings.iter().any(|ending| name.ends_with(ending))
}

fn source(path: String, text: String) -> Source {
    let rust = path.ends_with(".rs").then(|| Rust {
        lexed: comments::lex(&text),
        outline: outline::of(&path, &text),
        module: module_of(&path),
        is_test: false,
    });
    Source { path, text, rust }
}

/// The module of a file below `crates/*/src`, by its path.
fn module_of(path: &str) -> Option<ModulePath> {
    let (package, rest) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let mut segments: Vec<_> = rest.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    let is_root = segments.len() == 1 && ["lib", "main"].contains(&segments[0].as_str());
    if is_root || segments.last().is_some_and(|name| name == "mod") {
        segments.pop();
    }
    Some(ModulePath { package: package.to_owned(), segments })
}

/// Gives a program beside a library a module of its own: both are roots.
fn part_programs(files: &mut [Source]) {
    let libraries: BTreeSet<_> = files.iter().filter_map(|file| file.path.strip_suffix("/lib.rs")).collect();
    let programs: BTreeSet<_> = libraries.into_iter().map(|folder| format!("{folder}/main.rs")).collect();
    for file in files.iter_mut().filter(|file| programs.contains(&file.path)) {
        if let Some(module) = file.rust.as_mut().and_then(|rust| rust.module.as_mut()) {
            module.segments.push("main".to_owned());
        }
    }
}

/// Marks files whose `mod` declaration, or that of a module above them, is for tests only.
fn mark_test_files(files: &mut [Source]) {
    let mut tests: BTreeMap<ModulePath, bool> = BTreeMap::new();
    for file in files.iter() {
        let Some(rust) = &file.rust else { continue };
        let Some(module) = &rust.module else { continue };
        if rust.outline.is_test {
            tests.insert(module.clone(), true);
        }
        for declared in &rust.outline.modules {
            let mut inner = module.clone();
            inner.segments.extend(declared.path.iter().cloned());
            *tests.entry(inner).or_insert(true) &= declared.in_test;
        }
    }
    for file in files {
        let Some(rust) = &mut file.rust else { continue };
        let Some(mut module) = rust.module.clone() else { continue };
        rust.is_test = rust.outline.is_test;
        while !module.segments.is_empty() {
            rust.is_test |= tests.get(&module).copied().unwrap_or(false);
            module.segments.pop();
        }
    }
}
