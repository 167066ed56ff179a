//! Resolution of paths to the files that define what they name, within one package.

use std::collections::{BTreeMap, BTreeSet};

use crate::outline::{Import, Kind};
use crate::sources::{ModulePath, Sources};

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    Module(ModulePath),
    /// An item, by the file and the module that define it.
    Item {
        file: String,
        module: ModulePath,
        name: String,
    },
}

#[derive(Default)]
struct Module<'s> {
    file: String,
    definitions: BTreeMap<String, Kind>,
    imports: Vec<&'s Import>,
    modules: BTreeSet<String>,
}

/// The modules of all packages, without those of tests.
pub struct Names<'s> {
    modules: BTreeMap<ModulePath, Module<'s>>,
}

/// Modules whose imports are being followed for a name.
type Seen = BTreeSet<(ModulePath, String)>;

fn inner(module: &ModulePath, scope: &[String]) -> ModulePath {
    let mut inner = module.clone();
    inner.segments.extend(scope.iter().cloned());
    inner
}

impl<'s> Names<'s> {
    pub fn of(sources: &'s Sources) -> Self {
        let mut names = Self { modules: BTreeMap::new() };
        for (file, rust, outer) in sources.product() {
            let outline = &rust.outline;
            names.module(&file.path, outer);
            for declared in outline.modules.iter().filter(|module| !module.in_test) {
                let (name, around) = declared.path.split_last().expect("a module has a name");
                names.module(&file.path, &inner(outer, around)).modules.insert(name.clone());
                if declared.is_inline {
                    names.module(&file.path, &inner(outer, &declared.path));
                }
            }
            for definition in &outline.definitions {
                let module = names.module(&file.path, &inner(outer, &definition.scope));
                let known = module.definitions.entry(definition.name.clone()).or_insert(definition.kind);
                if *known == Kind::Guess {
                    *known = definition.kind;
                }
            }
            for import in &outline.imports {
                names.module(&file.path, &inner(outer, &import.scope)).imports.push(import);
            }
        }
        names
    }

    fn module(&mut self, file: &str, path: &ModulePath) -> &mut Module<'s> {
        let module = self.modules.entry(path.clone()).or_default();
        if module.file.is_empty() {
            file.clone_into(&mut module.file);
        }
        module
    }

    /// What `path`, which stands in `module`, leads to. Several if a name means a type and a
    /// function.
    pub fn resolve(&self, module: &ModulePath, path: &[String]) -> Vec<Target> {
        self.follow(module, path, &mut Seen::new())
    }

    /// The one type that `path` leads to.
    pub fn resolve_type(&self, module: &ModulePath, path: &[String]) -> Option<(ModulePath, String)> {
        self.resolve(module, path).into_iter().find_map(|target| match target {
            Target::Item { module, name, .. } => Some((module, name)),
            Target::Module(_) => None,
        })
    }

    fn follow(&self, module: &ModulePath, path: &[String], seen: &mut Seen) -> Vec<Target> {
        let Some((first, rest)) = path.split_first() else { return Vec::new() };
        let mut base = module.clone();
        let mut targets = match first.as_str() {
            "crate" => {
                base.segments.clear();
                vec![Target::Module(base)]
            }
            "self" => vec![Target::Module(base)],
            "super" => {
                base.segments.pop();
                vec![Target::Module(base)]
            }
            name => self.look(module, name, seen),
        };
        for segment in rest {
            let mut next = Vec::new();
            for target in targets {
                match target {
                    Target::Module(mut module) if segment == "super" => {
                        module.segments.pop();
                        next.push(Target::Module(module));
                    }
                    Target::Module(module) => next.extend(self.look(&module, segment, seen)),
                    // A variant, a constant or a function of it.
                    item @ Target::Item { .. } => next.push(item),
                }
            }
            targets = next;
        }
        targets.sort();
        targets.dedup();
        targets
    }

    /// What `name` means in `module`.
    fn look(&self, path: &ModulePath, name: &str, seen: &mut Seen) -> Vec<Target> {
        if !seen.insert((path.clone(), name.to_owned())) {
            return Vec::new();
        }
        let targets =
            self.modules.get(path).map_or(Vec::new(), |module| self.look_in(module, path, name, seen));
        seen.remove(&(path.clone(), name.to_owned()));
        targets
    }

    fn look_in(&self, module: &Module, path: &ModulePath, name: &str, seen: &mut Seen) -> Vec<Target> {
        let item = || {
            let (file, module) = (module.file.clone(), path.clone());
            Target::Item { file, module, name: name.to_owned() }
        };
        let mut targets = Vec::new();
        let definition = module.definitions.get(name);
        if definition.is_some_and(|kind| *kind != Kind::Guess) {
            targets.push(item());
        }
        if module.modules.contains(name) {
            targets.push(Target::Module(inner(path, &[name.to_owned()])));
        }
        for import in module.imports.iter().filter(|import| import.name.as_deref() == Some(name)) {
            targets.extend(self.follow(path, &import.path, seen));
        }
        if targets.is_empty() {
            for import in module.imports.iter().filter(|import| import.name.is_none()) {
                for target in self.follow(path, &import.path, seen) {
                    match target {
                        Target::Module(module) if module != *path => {
                            targets.extend(self.look(&module, name, seen))
                        }
                        _ => {}
                    }
                }
            }
        }
        if targets.is_empty() && definition.is_some() {
            targets.push(item());
        }
        targets
    }
}
