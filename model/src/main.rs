//! `terrace-model SECONDS [FLAG[,FLAG]]...`: random lives, with these flags each.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, io};

use terrace_model::flags::{self, Flags};
use terrace_model::{scripts, search};

const USAGE: &str = "terrace-model SECONDS [FLAG[,FLAG]]...  random lives; - is the protocol as designed,
                                        no FLAG means it and each flag in turn
terrace-model RUNSr [FLAG[,FLAG]]...    the same for a number of runs
terrace-model flags                     lists the flags
terrace-model script FLAG[,FLAG]        prints the steps of a script

TERRACE_SEED=N begins with another seed than 1.";

/// Runs that lose data, after which a search ends.
const ENOUGH: u64 = 25;

/// When a search ends.
#[derive(Clone, Copy)]
enum Limit {
    Time(Duration),
    Runs(u64),
}

impl Limit {
    fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('r') {
            Some(runs) => runs.parse().ok().map(Limit::Runs),
            None => Duration::try_from_secs_f64(text.parse().ok()?).ok().map(Limit::Time),
        }
    }
}

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
            let limit = Limit::parse(first).ok_or(USAGE)?;
            let seed = match env::var("TERRACE_SEED") {
                Ok(seed) => seed.parse().map_err(|_| format!("TERRACE_SEED is {seed}, not a number"))?,
                Err(_) => 1,
            };
            for flags in sets(&arguments[1..])? {
                lives(flags, limit, seed, arguments.len() > 1);
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

/// Runs random lives; prints the shortest that loses data if that is wanted.
fn lives(flags: Flags, limit: Limit, seed: u64, prints: bool) {
    let since = Instant::now();
    let found = search::search(flags, seed, |found| {
        let goes_on = match limit {
            Limit::Time(limit) => since.elapsed() < limit,
            Limit::Runs(runs) => found.runs < runs,
        };
        goes_on && found.losing < ENOUGH
    });
    let search::Findings { runs, steps, crashes, losing, .. } = found;
    println!("{flags}: {losing} of {runs} runs lose data; {steps} steps, {crashes} crashes, seed {seed}");
    if prints && let Some(actions) = search::shortest(flags, &found) {
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
