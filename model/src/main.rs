//! `terrace-model SECONDS [FLAG[,FLAG]]...`: random lives for a time, with these flags each.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, io};

use terrace_model::flags::{self, Flags};
use terrace_model::{scripts, search};

const USAGE: &str = "terrace-model SECONDS [FLAG[,FLAG]]...   random lives; - is the protocol as designed,
                                         no FLAG means it and each flag in turn
terrace-model flags                      lists the flags
terrace-model script FLAG                prints the steps of a flag's script";

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match started(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

fn started(arguments: &[String]) -> Result<(), String> {
    let Some(first) = arguments.first() else { return Err(USAGE.to_owned()) };
    match (first.as_str(), arguments.get(1)) {
        ("flags", _) => {
            for flag in flags::ALL {
                println!("{:26} rule {:2}: {}", flag.name(), flag.rule(), flag.what());
            }
            Ok(())
        }
        ("script", Some(name)) => script(name),
        _ => {
            let seconds: f64 = first.parse().map_err(|_| USAGE.to_owned())?;
            let limit = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
            let seed = match env::var("TERRACE_SEED") {
                Ok(seed) => seed.parse().map_err(|_| format!("TERRACE_SEED is {seed}, not a number"))?,
                Err(_) => 1,
            };
            for flags in sets(&arguments[1..])? {
                lives(flags, limit, seed);
            }
            Ok(())
        }
    }
}

fn sets(names: &[String]) -> Result<Vec<Flags>, String> {
    if names.is_empty() {
        let each = flags::ALL.iter().map(|&flag| Flags::of(&[flag]));
        return Ok([Flags::STRICT].into_iter().chain(each).collect());
    }
    names.iter().map(|names| Flags::parse(names)).collect()
}

/// Runs random lives, and prints the shortest that loses data.
fn lives(flags: Flags, limit: Duration, seed: u64) {
    const ENOUGH: u64 = 25;
    let since = Instant::now();
    let found = search::search(flags, seed, |found| since.elapsed() < limit && found.losing < ENOUGH);
    let search::Findings { runs, steps, crashes, losing, .. } = found;
    println!("{flags}: {losing} of {runs} runs lose data; {steps} steps, {crashes} crashes, seed {seed}");
    if let Some(actions) = search::shortest(flags, &found) {
        print_run(flags, &actions);
    }
    // A reader of a pipe sees each set at once.
    let _ = io::Write::flush(&mut io::stdout());
}

fn script(name: &str) -> Result<(), String> {
    let flags = Flags::parse(name)?;
    let script = scripts::all().into_iter().find(|script| script.flags() == flags);
    let script = script.ok_or_else(|| format!("{name} has no script"))?;
    print_run(flags, &script.actions);
    Ok(())
}

fn print_run(flags: Flags, actions: &[terrace_model::actions::Action]) {
    let (outcome, world) = search::run(flags, actions, true);
    println!("  {actions:?}");
    for (number, line) in (1..).zip(world.trace.unwrap_or_default()) {
        println!("  {number:3} {line}");
    }
    println!("  {outcome:?}");
}
