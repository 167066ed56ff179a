//! Random lives: runs them, and shortens one that loses data.

use std::time::{Duration, Instant};

use crate::actions::Action;
use crate::cell::Random;
use crate::flags::Flags;
use crate::generator::Generator;
use crate::world::{Devices, World};

/// Steps tried for each step taken, at most.
const TRIES: usize = 12;
/// Findings to choose the shortest of.
const SHORTENED_MAX: usize = 8;
/// For the shortening of all findings together.
const SHORTENING: Duration = Duration::from_secs(6);

/// What random runs found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Runs, each of several lives.
    pub runs: u64,
    /// Steps taken.
    pub steps: u64,
    /// Kills and power cuts.
    pub crashes: u64,
    /// Runs that lost data.
    pub losing: u64,
    /// Their steps, of the first ones.
    pub kept: Vec<Vec<Action>>,
}

/// Runs a sequence of steps; steps that are not possible are passed. Then the database is opened,
/// the power cut, and it is opened again.
pub fn run(flags: Flags, actions: &[Action], is_traced: bool) -> (Result<(), String>, World) {
    let mut world = World::new(flags, is_traced);
    let outcome = run_in(&mut world, actions);
    (outcome, world)
}

fn run_in(world: &mut World, actions: &[Action]) -> Result<(), String> {
    for &action in actions {
        world.step(action)?;
    }
    world.finish()?;
    world.step(Action::Cut(0, Devices::Both))?;
    world.finish()
}

/// One random run: steps that were possible, and whether it lost data.
fn random_run(flags: Flags, random: Random, findings: &mut Findings) {
    let mut generator = Generator::new(flags, random);
    let length = 40 + generator.random().below(260) as usize;
    let mut world = World::new(flags, false);
    let mut taken = Vec::new();
    let mut has_lost = false;
    for _ in 0..length * TRIES {
        if taken.len() == length || has_lost {
            break;
        }
        let action = generator.next_action();
        match world.step(action) {
            Ok(false) => {}
            Ok(true) => taken.push(action),
            Err(_) => {
                taken.push(action);
                has_lost = true;
            }
        }
    }
    findings.steps += taken.len() as u64;
    findings.crashes += world.crashes;
    // Two ends: nothing that was not synced persists, or a part.
    for cut in [0, generator.random().bits()] {
        if !has_lost {
            let mut longer = taken.clone();
            longer.push(Action::Cut(cut, Devices::Both));
            if run(flags, &longer, false).0.is_err() {
                has_lost = true;
                taken = longer;
            }
        }
    }
    if has_lost {
        findings.losing += 1;
        if findings.kept.len() < SHORTENED_MAX {
            findings.kept.push(taken);
        }
    }
}

/// Runs random lives until `goes_on` says no.
pub fn search(flags: Flags, seed: u64, mut goes_on: impl FnMut(&Findings) -> bool) -> Findings {
    let mut findings = Findings::default();
    let mut random = Random(seed);
    while goes_on(&findings) {
        findings.runs += 1;
        random_run(flags, Random(random.bits()), &mut findings);
    }
    findings
}

/// The shortest sequence that still loses data, of what `findings` kept.
pub fn shortest(flags: Flags, findings: &Findings) -> Option<Vec<Action>> {
    let since = Instant::now();
    let mut shortest: Option<Vec<Action>> = None;
    for found in &findings.kept {
        if shortest.is_some() && since.elapsed() > SHORTENING {
            break;
        }
        let short = shorten(flags, found.clone());
        if shortest.as_ref().is_none_or(|best| short.len() < best.len()) {
            shortest = Some(short);
        }
    }
    shortest
}

fn loses(flags: Flags, actions: &[Action]) -> bool {
    run(flags, actions, false).0.is_err()
}

/// Leaves out steps while data are still lost.
fn shorten(flags: Flags, mut actions: Vec<Action>) -> Vec<Action> {
    loop {
        let before = actions.clone();
        let mut width = actions.len() / 2;
        while width >= 1 {
            let mut at = 0;
            while at + width <= actions.len() {
                let mut fewer = actions.clone();
                fewer.drain(at..at + width);
                if loses(flags, &fewer) {
                    actions = fewer;
                } else {
                    at += (width / 2).max(1);
                }
            }
            width /= 2;
        }
        for at in 0..actions.len() {
            for simpler in simpler(actions[at]) {
                let mut other = actions.clone();
                other[at] = simpler;
                if loses(flags, &other) {
                    actions = other;
                    break;
                }
            }
        }
        if actions == before {
            return actions;
        }
    }
}

/// Simpler steps of the same kind.
fn simpler(action: Action) -> Vec<Action> {
    use Action::{Begin, Cut, Kill};
    match action {
        Cut(cut, devices) => {
            let cuts = (0..2).filter(|simple| cut > *simple).map(|simple| Cut(simple, devices));
            [Kill(devices)].into_iter().chain(cuts).collect()
        }
        Begin(key, second) if key != second => vec![Begin(key, key), Begin(second, second)],
        _ => Vec::new(),
    }
}
