//! Each directed script loses data without its rules, and only then.

use terrace_model::flags::Flags;
use terrace_model::scripts;
use terrace_model::search::run;
use terrace_model::world::World;

/// Every script, even if one before it fails.
fn failures(check: impl Fn(&scripts::Script) -> Result<(), String>) {
    let all = scripts::all();
    let wrong: Vec<_> =
        all.iter().filter_map(|script| Some((script.flags(), check(script).err()?))).collect();
    for (flags, sentence) in &wrong {
        println!("{flags}: {sentence}");
    }
    assert!(wrong.is_empty(), "{} of {} scripts", wrong.len(), all.len());
}

#[test]
fn scripts_lose_data_without_their_rules() {
    failures(|script| match run(script.flags(), &script.actions, false).0 {
        Ok(()) if !script.without.is_empty() => Err("nothing is lost".to_owned()),
        _ => Ok(()),
    });
}

#[test]
fn scripts_lose_nothing_with_all_rules() {
    failures(|script| run(Flags::STRICT, &script.actions, false).0);
}

#[test]
fn each_of_two_rules_suffices() {
    failures(|script| match script.without {
        [_] | [] => Ok(()),
        several => several.iter().try_for_each(|&flag| {
            run(Flags::of(&[flag]), &script.actions, false).0.map_err(|lost| format!("{flag:?}: {lost}"))
        }),
    });
}

#[test]
fn every_step_of_a_script_is_possible() {
    failures(|script| {
        let mut world = World::new(script.flags(), true);
        for (at, &action) in script.actions.iter().enumerate() {
            match world.step(action) {
                Ok(true) => {}
                Ok(false) => return Err(format!("step {at} is not possible: {action:?}")),
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    });
}
