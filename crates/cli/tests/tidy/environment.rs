//! Check: no library reads an environment variable. The command does, and tells the library.

use std::collections::BTreeSet;

use crate::Finding;
use crate::sources::Sources;

/// What the command is made of besides its program.
const COMMAND: &[&str] = &["common", "lab"];

/// Packages with a library and no program.
fn libraries(sources: &Sources) -> BTreeSet<&str> {
    let is_there =
        |package: &str, root: &str| sources.paths.contains(&format!("crates/{package}/src/{root}.rs"));
    let is_library =
        |package: &&str| is_there(package, "lib") && !is_there(package, "main") && !COMMAND.contains(package);
    sources.packages().into_iter().filter(is_library).collect()
}

fn reads(path: &[String]) -> bool {
    let names = ["var", "var_os", "vars", "vars_os"];
    path.windows(2).any(|pair| pair[0] == "env" && names.contains(&pair[1].as_str()))
}

pub fn findings(sources: &Sources) -> Vec<Finding> {
    let libraries = libraries(sources);
    let mut findings = Vec::new();
    for (file, rust, module) in sources.product() {
        if !libraries.contains(module.package.as_str()) {
            continue;
        }
        let imports = rust.outline.imports.iter().map(|import| (&import.path, import.line));
        let mentions = rust.outline.mentions.iter().map(|mention| (&mention.path, mention.line));
        for (path, line) in imports.chain(mentions).filter(|(path, _)| reads(path)) {
            findings.push(Finding::at(&file.path, line, format!("a library reads {}", path.join("::"))));
        }
    }
    findings
}

#[test]
fn no_library_reads_the_environment() {
    crate::holds("environment", findings(Sources::repository()));
}

#[test]
fn a_read_of_the_environment_is_noticed() {
    let sources = Sources::seeded(&[
        (
            "crates/a/src/lib.rs",
            "fn f() {\n    std::env::var(\"A\");\n}\n#[cfg(test)]\nfn g() { std::env::var(\"A\"); }\n",
        ),
        ("crates/b/src/main.rs", "fn f() { std::env::var(\"A\"); }\n"),
        ("crates/c/src/lib.rs", "use std::env;\nfn f() {\n    assert!(env::var_os(\"A\"));\n}\n"),
    ]);
    let found: Vec<_> = findings(&sources).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "crates/a/src/lib.rs:2: a library reads std::env::var",
            "crates/c/src/lib.rs:3: a library reads env::var_os"
        ]
    );
}
