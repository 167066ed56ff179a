//! Commits are serializable in the order of their timestamps, in every interleaving.

use terrace_model::commits::{cases, explore};

#[test]
fn commits_are_serializable_in_the_order_of_timestamps() {
    for case in cases() {
        let ends = explore(&case.programs, true);
        println!("{}: {ends:?}", case.name);
        assert_eq!((ends.unserializable, ends.out_of_order), (0, 0), "{}", case.name);
    }
}

#[test]
fn scans_that_ignore_inserts_in_flight_see_phantoms() {
    let wrong = |name| {
        let case = cases().into_iter().find(|case| case.name == name).expect("there is such a case");
        let ends = explore(&case.programs, false);
        ends.unserializable + ends.out_of_order
    };
    assert!(wrong("a scan and an insert") > 0);
    assert!(wrong("two scans and two inserts") > 0);
}
