//! `--config FILE`: flags from a TOML file.
//!
//! A file may set any flag by its name without dashes: `dram = "64MiB"`, `threads = 2`, `json =
//! true`, `store = "/data/db"`. The settings are inserted before the command line's flags and
//! parsed with them, so the file needs no grammar of its own. A setting is dropped if the command
//! line has the same flag or a conflicting one, lists included. One file can serve several
//! commands: flags of other commands are skipped, unknown names are errors.
//!
//! Flags of a middle tier without such a tier are an error on the command line. A file may contain
//! them for commands that have one.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use toml::Value;

use terrace_common::failure::{Failure, Outcome};
use terrace_common::tiers::{OF_MIDDLE, is_middle_in_environment};

/// Size limit of a configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Inserts the settings of the `--config` file into `arguments` (program name first).
pub fn expand(root: &Command, mut arguments: Vec<OsString>) -> Outcome<Vec<OsString>> {
    let Some((command, depth)) = running(root, &arguments) else { return Ok(arguments) };
    // A command that this build lacks reports that itself.
    if command.is_hide_set() {
        return Ok(arguments);
    }
    let said: BTreeSet<String> = names(&arguments[depth..]).map(str::to_owned).collect();
    if let Some(path) = path_given(&arguments) {
        let flags = flags_of(&read(&path)?, root, command, &said, &path)?;
        arguments.splice(depth..depth, flags);
    }
    check_middle(command, &said, &arguments[depth..])?;
    Ok(arguments)
}

/// Names of the flags in `arguments`.
fn names(arguments: &[OsString]) -> impl Iterator<Item = &str> {
    let flags = arguments.iter().take_while(|argument| *argument != "--");
    let flags = flags.filter_map(|argument| argument.to_str()?.strip_prefix("--"));
    flags.map(|flag| flag.split_once('=').map_or(flag, |(name, _)| name))
}

/// Rejects middle-tier flags `said` on the command line if `all` flags name no such tier.
fn check_middle(command: &Command, said: &BTreeSet<String>, all: &[OsString]) -> Outcome {
    let has_middle = |name: &str| command.get_arguments().any(|argument| argument.get_long() == Some(name));
    let is_there = || names(all).any(|name| name == "middle" || name == "help") || is_middle_in_environment();
    match OF_MIDDLE.iter().find(|name| said.contains(**name)) {
        Some(name) if has_middle("middle") && !is_there() => {
            Err(Failure::Usage(format!("--{name} needs a middle tier; add --middle, or leave out --{name}")))
        }
        _ => Ok(()),
    }
}

fn path_given(arguments: &[OsString]) -> Option<PathBuf> {
    let mut found = None;
    let mut arguments = arguments.iter().take_while(|argument| *argument != "--");
    while let Some(argument) = arguments.next() {
        if argument == "--config" {
            found = arguments.next().map(PathBuf::from);
        } else if let Some(path) = argument.to_str().and_then(|text| text.strip_prefix("--config=")) {
            found = Some(PathBuf::from(path));
        }
    }
    found
}

/// The command in `arguments`, and the number of words that name it.
fn running<'a>(root: &'a Command, arguments: &[OsString]) -> Option<(&'a Command, usize)> {
    let mut command = root;
    let mut depth = 1;
    while command.has_subcommands() {
        let name: &OsStr = arguments.get(depth)?;
        command = command.find_subcommand(name)?;
        depth += 1;
    }
    Some((command, depth))
}

fn read(path: &Path) -> Outcome<toml::Table> {
    let name = terrace_common::escape::path(path);
    let refuse = |why: String| Failure::Usage(format!("--config {name}: {why}"));
    let file = fs::File::open(path).map_err(|error| refuse(error.to_string()))?;
    let mut text = String::new();
    // Do not trust the reported length: a device reports 0 and never ends.
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    if read.map_err(|error| refuse(error.to_string()))? as u64 > FILE_BYTES_MAX {
        return Err(refuse(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    text.parse::<toml::Table>().map_err(|error| refuse(format!("not valid TOML: {error}")))
}

fn flags_of(
    table: &toml::Table,
    root: &Command,
    command: &Command,
    said: &BTreeSet<String>,
    path: &Path,
) -> Outcome<Vec<OsString>> {
    let known = flag_names(root);
    let mut flags = Vec::new();
    for (key, value) in table {
        let refuse = |why: String| {
            Failure::Usage(format!("--config {}: {key:?} {why}", terrace_common::escape::path(path)))
        };
        if key == "config" || !known.contains(key.as_str()) {
            return Err(refuse("is not a flag; see --help".to_owned()));
        }
        let Some(argument) = command.get_arguments().find(|a| a.get_long() == Some(key.as_str())) else {
            continue;
        };
        if said.iter().any(|name| excludes(command, name, argument)) {
            continue;
        }
        let is_switch = !argument.get_action().takes_values();
        match (value, is_switch) {
            (Value::Boolean(true), true) => flags.push(format!("--{key}").into()),
            (Value::Boolean(false), true) => {}
            (_, true) => return Err(refuse("is a switch; write true or false".to_owned())),
            (value, false) => {
                let text = text_of(value)
                    .ok_or_else(|| refuse("must be a string, a number, or an array of those".to_owned()))?;
                flags.push(format!("--{key}={text}").into());
            }
        }
    }
    Ok(flags)
}

/// Whether flag `name` on the command line excludes a file's `argument`: it is the same flag or
/// conflicts with it.
fn excludes(command: &Command, name: &str, argument: &Arg) -> bool {
    let conflicts = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|conflict| conflict.get_id() == other.get_id())
    };
    let said = command.get_arguments().find(|argument| argument.get_long() == Some(name));
    said.is_some_and(|said| {
        said.get_id() == argument.get_id() || conflicts(said, argument) || conflicts(argument, said)
    })
}

/// A value in command-line syntax.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Array(items) => Some(items.iter().map(text_of).collect::<Option<Vec<_>>>()?.join(",")),
        Value::Boolean(_) | Value::Datetime(_) | Value::Table(_) => None,
    }
}

fn flag_names(command: &Command) -> BTreeSet<&str> {
    let own = command.get_arguments().filter(|a| !a.is_hide_set()).filter_map(|a| a.get_long());
    own.chain(command.get_subcommands().flat_map(flag_names)).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn expanded(toml: &str, line: &str) -> Outcome<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("c.toml");
        fs::write(&file, toml).unwrap();
        let mut arguments: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        arguments.push(OsString::from(format!("--config={}", file.display())));
        let all = expand(&crate::args::Cli::command(), arguments)?;
        Ok(all[..all.len() - 1].iter().map(|a| a.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    #[cfg(feature = "lab")]
    fn settings_come_before_the_flags_and_those_given_twice_are_the_command_lines() {
        let toml = "dram = \"64MiB\"\nthreads = 2\njson = true\n";
        let arguments = expanded(toml, "terrace bench ycsb --threads 4").unwrap();
        assert_eq!(arguments, ["terrace", "bench", "ycsb", "--dram=64MiB", "--json", "--threads", "4"]);
    }

    /// A list in the file would extend the command line's list, and a conflict would be an error.
    #[test]
    fn what_the_command_line_says_leaves_no_room_for_the_files() {
        let toml = "policy = [\"lru\", \"arc\"]\nsize = \"10%\"\n";
        let arguments = expanded(toml, "terrace simulate t.lis --policy=sieve --size 20%").unwrap();
        assert_eq!(arguments, ["terrace", "simulate", "t.lis", "--policy=sieve", "--size", "20%"]);
        let arguments = expanded("json = true", "terrace stat --prometheus db").unwrap();
        assert_eq!(arguments, ["terrace", "stat", "--prometheus", "db"]);
    }

    #[test]
    #[cfg(feature = "lab")]
    fn an_engine_on_the_command_line_leaves_no_room_for_the_files() {
        let arguments = expanded("engine = \"redb\"", "terrace bench ycsb --compare terrace,redb").unwrap();
        assert_eq!(arguments, ["terrace", "bench", "ycsb", "--compare", "terrace,redb"]);
        let arguments = expanded("compare = \"redb\"", "terrace bench ycsb --engine redb").unwrap();
        assert_eq!(arguments, ["terrace", "bench", "ycsb", "--engine", "redb"]);
    }

    /// `TERRACE_MIDDLE` sets a middle tier for everything, so nothing is refused then.
    #[test]
    fn flags_of_a_middle_tier_that_is_not_there_are_refused_but_for_those_of_a_file() {
        for flag in OF_MIDDLE {
            let refused = expanded("", &format!("terrace demo --{flag}=1"));
            if !is_middle_in_environment() {
                let error = refused.unwrap_err();
                assert!(error.code() == 2 && error.to_string().contains(flag), "{error}");
            }
            expanded("", &format!("terrace demo --{flag} 1 --middle=numa:0,1MiB")).unwrap();
            expanded("middle = \"numa:0,1MiB\"", &format!("terrace demo --{flag} 1")).unwrap();
            let value = if flag == "mini-pages" { "true" } else { "1" };
            expanded(&format!("{flag} = {value}"), "terrace demo").unwrap();
        }
        expanded("", "terrace simulate t.lis --policy=lru").unwrap();
    }

    #[test]
    fn flags_of_other_commands_are_passed_over() {
        let arguments = expanded("threads = 2\ndram = 5\n", "terrace stat db").unwrap();
        assert_eq!(arguments, ["terrace", "stat", "--dram=5", "db"]);
    }

    #[test]
    fn unknown_names_and_wrong_types_are_refused_by_name() {
        for toml in ["drum = 1", "victim = true", "config = \"x\"", "json = 1", "[dram]\nx = 1", "dram = "] {
            let error = expanded(toml, "terrace demo").unwrap_err();
            assert_eq!(error.code(), 2, "{toml}");
            let name = toml.trim_start_matches('[').split([' ', ']']).next().unwrap();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let arguments = ["terrace", "demo", "--config", "/no/such.toml"].map(OsString::from).to_vec();
        let error = expand(&crate::args::Cli::command(), arguments).unwrap_err();
        assert!(error.to_string().contains("/no/such.toml"));
    }
}
