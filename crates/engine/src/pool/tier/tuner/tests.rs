//! The search on workloads given by formulas.

use super::*;

/// Throughput by policy, `[dr, dw, nr, nw]`.
type Workload = (&'static str, fn([f64; 4]) -> f64);

/// Base-10 logarithm; 0 counts as .0001.
fn order(probability: f64) -> f64 {
    probability.max(0.0001).log10()
}

/// Shapes from papers, and some hard ones: operations per second by policy.
const WORKLOADS: [Workload; 8] = [
    // Spitfire, figures 6 and 7: best at .01, worse at 0, worst at 1, more so for DRAM.
    ("lazy", |[dr, _, nr, _]| {
        1e9 / (2000.0 + 300.0 * (order(dr) + 2.0).powi(2) + 200.0 * (order(nr) + 2.0).powi(2))
    }),
    // The working set fits in DRAM: the more promotion the better (Spitfire, section 3.1).
    ("eager", |[dr, dw, nr, _]| 1e9 / (500.0 + 1000.0 * (1.0 - dr) + 500.0 * (1.0 - dw) + 50.0 * nr)),
    // DRAM of an eighth: nothing should move (Spitfire, figure 9). 0 beats every small number.
    ("never", |[dr, dw, _, _]| if dr + dw == 0.0 { 1e6 } else { 8e5 / (1.0 + dr + dw) }),
    // Reads and writes want opposite policies.
    ("mixed", |[dr, dw, nr, nw]| {
        1e9 / (1000.0 + 400.0 * (dr - 1.0).abs() + 400.0 * dw + 300.0 * nr + 300.0 * (1.0 - nw))
    }),
    // Each tier helps only as far as the other does not replace it.
    ("coupled", |[dr, _, nr, _]| 1e9 / (1000.0 + 800.0 * (dr - nr).abs() + 200.0 * dr)),
    // A cliff beside the optimum.
    (
        "cliff",
        |[dr, _, nr, nw]| {
            if nr < 0.05 { 2e5 } else { 1e9 / (1000.0 + 2000.0 * nr + 100.0 * dr + 100.0 * nw) }
        },
    ),
    ("flat", |_| 123.0),
    // Very low throughput.
    ("slow", |[dr, dw, nr, nw]| 0.01 / (1.0 + dr + dw + nr + nw)),
];

/// The best of 25 policies, each with one D and one N.
fn best(workload: fn([f64; 4]) -> f64) -> f64 {
    let values = [0.0, 0.01, 0.1, 0.5, 1.0];
    let all = values.iter().flat_map(|&d| values.iter().map(move |&n| workload([d, d, n, n])));
    all.fold(0.0, f64::max)
}

/// Nearly normal with deviation 1: the sum of twelve uniform draws.
fn normal(random: &mut SmallRng) -> f64 {
    (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
}

/// Runs until a policy is held and returns it.
fn search(tuner: &mut Tuner, workload: fn([f64; 4]) -> f64, noise: f64, random: &mut SmallRng) -> Policy {
    for _ in 0..Tuner::SEARCH_EPOCHS_MAX {
        let throughput = workload(tuner.policy().probabilities()) * (1.0 + noise * normal(random));
        tuner.epoch(throughput);
        if tuner.is_holding() {
            return tuner.policy();
        }
    }
    panic!("nothing is held after {} epochs", Tuner::SEARCH_EPOCHS_MAX);
}

#[test]
fn a_loss_is_accepted_at_first_and_not_at_last() {
    let mut random = SmallRng::seed_from_u64(1);
    let more = cost(0.95) - cost(1.0);
    let mut accepted =
        |temperature| (0..10_000).filter(|_| accepts(more, temperature, random.random())).count();
    assert!(accepted(TEMPERATURE_FIRST) > 9_000);
    assert!(accepted(TEMPERATURE_LAST) < 100);
    // In between the outcome is random.
    assert!((2_000..8_000).contains(&accepted(0.5)));
    assert!((0..1000).all(|_| accepts(-0.001, TEMPERATURE_LAST, random.random())), "a gain always is");
}

#[test]
fn a_search_has_the_epochs_that_it_says() {
    let cooling = (TEMPERATURE_LAST / TEMPERATURE_FIRST).ln() / ALPHA.ln();
    assert_eq!(ANNEALING_EPOCHS, 2 + cooling.floor() as u32);
    let mut tuner = Tuner::new(Policy::EAGER, 3);
    let epochs = (1..).find(|_| {
        tuner.epoch(1000.0);
        tuner.is_holding()
    });
    assert!(epochs.unwrap() <= Tuner::SEARCH_EPOCHS_MAX);
    assert_eq!((tuner.epochs(), tuner.searches()), (u64::from(epochs.unwrap()), 1));
}

/// Within 3 % of the best of twenty-five policies, from every start.
#[test]
fn a_search_ends_near_the_best() {
    for (name, workload) in WORKLOADS {
        for start in [Policy::EAGER, Policy::LAZY, Policy::HYMEM] {
            for seed in 0..20 {
                let mut random = SmallRng::seed_from_u64(seed);
                let found = search(&mut Tuner::new(start, seed), workload, 0.0, &mut random);
                let share = workload(found.probabilities()) / best(workload);
                assert!(share > 0.97, "{name} from {start}, seed {seed}: {found} has {share}");
            }
        }
    }
}

/// With 2 % noise per epoch, a search still ends within 5 %.
#[test]
fn a_search_stands_noise() {
    for (name, workload) in WORKLOADS {
        for seed in 0..20 {
            let mut random = SmallRng::seed_from_u64(seed);
            let found = search(&mut Tuner::new(Policy::EAGER, seed), workload, 0.02, &mut random);
            let share = workload(found.probabilities()) / best(workload);
            assert!(share > 0.95, "{name}, seed {seed}: {found} has {share}");
        }
    }
}

#[test]
fn a_run_is_the_same_each_time() {
    let run = |seed| {
        let mut tuner = Tuner::new(Policy::EAGER, seed);
        (0..200).map(|_| tuner.epoch(WORKLOADS[0].1(tuner.policy().probabilities()))).collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn a_shift_begins_a_new_search_and_nothing_else_does() {
    let lazy = WORKLOADS[0].1;
    // Three times as fast under every policy.
    let eager = |policy| 3.0 * WORKLOADS[1].1(policy);
    for seed in 0..10 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut tuner = Tuner::new(Policy::EAGER, seed);
        let held = search(&mut tuner, lazy, 0.01, &mut random);
        for _ in 0..500 {
            assert_eq!(tuner.epoch(lazy(held.probabilities()) * random.random_range(0.98..1.02)), held);
        }
        // The load changes under the held policy.
        let told = (0..10).find(|_| {
            tuner.epoch(eager(tuner.policy().probabilities()));
            !tuner.is_holding()
        });
        assert!(told.is_some_and(|epochs| epochs < 5), "seed {seed}: {told:?}");
        assert_eq!(tuner.searches(), 2);
        let found = search(&mut tuner, eager, 0.0, &mut random);
        let share = eager(found.probabilities()) / best(eager);
        assert!(share > 0.97, "seed {seed}: {found} has {share}");
    }
}

#[test]
fn an_epoch_in_which_nothing_ran_is_no_epoch() {
    let mut tuner = Tuner::new(Policy::LAZY, 1);
    tuner.epoch(1000.0);
    let policy = tuner.policy();
    for nothing in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(tuner.epoch(nothing), policy);
    }
    assert_eq!(tuner.epochs(), 1);
}

#[test]
fn a_search_begins_with_the_policy_that_it_is_given() {
    for policy in [Policy::EAGER, Policy::LAZY, Policy::HYMEM, Policy::LAZY_CXL] {
        assert_eq!(Tuner::new(policy, 0).policy(), policy);
    }
    assert_eq!(
        Tuner::new(Policy::new(0.11, 0.9, 0.0004, 0.0006).unwrap(), 0).policy().probabilities(),
        [0.1, 1.0, 0.0, 0.001]
    );
}
