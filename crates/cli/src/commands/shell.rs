//! `terrace completions` and `terrace man`: files for shells and for `man`.

use std::fs;
use std::io::Write;

use clap::{Command, CommandFactory};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::output::print;

use crate::args::{Cli, CompletionsArgs, ManArgs};

/// The command line without hidden flags and commands, which completions would show.
fn visible(command: &Command) -> Command {
    let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    let shown = Command::new(command.get_name().to_owned()).propagate_version(true);
    let shown = command.get_about().into_iter().fold(shown, |shown, about| shown.about(about.clone()));
    let version = command.get_version().map(str::to_owned);
    let shown = version.into_iter().fold(shown, Command::version);
    shown.args(flags.cloned()).subcommands(commands.map(visible))
}

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs, output: &mut dyn Write) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(&Cli::command()), "terrace", &mut script);
    output.write_all(&script).and_then(|()| output.flush()).map_err(Failure::output)
}

/// Prints the manual page of the program, or writes the pages of all commands.
pub fn man(args: &ManArgs, output: &mut dyn Write) -> Outcome {
    let Some(folder) = &args.directory else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
        return rendered
            .and_then(|()| output.write_all(&page))
            .and_then(|()| output.flush())
            .map_err(Failure::output);
    };
    let failed = |error| Failure::file("writing manual pages to", folder, error);
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?;
    print(output, format_args!("manual pages are in {}\n", terrace_common::escape::path(folder)))
}
