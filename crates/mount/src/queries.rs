//! Queries that run now and what they read: hints for HeuristicDB (SYSTOR'21, section 4).

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use terrace_cache::policy::Relation;

#[derive(Debug)]
struct Running {
    /// Its number for the cache, which no other query of any client has.
    number: u64,
    /// Sorted.
    relations: Vec<Relation>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QueryChange {
    Ended(u64),
    Began(u64, Vec<Relation>),
}

#[derive(Debug, Default)]
struct Known {
    clients: u64,
    queries: u64,
    /// By the client and its own number of the query.
    running: HashMap<(u64, u64), Running>,
}

/// The queries of all clients.
#[derive(Debug, Default)]
pub(crate) struct Queries(Mutex<Known>);

impl Queries {
    pub fn number_client(&self) -> u64 {
        let mut known = self.0.lock();
        known.clients += 1;
        known.clients
    }

    /// What has changed, if `now` are all queries of the client: those that ended come first.
    pub fn replace(&self, client: u64, now: &BTreeMap<u64, Vec<Relation>>) -> Vec<QueryChange> {
        let mut known = self.0.lock();
        let mut changes = Vec::new();
        known.running.retain(|&(whose, query), running| {
            let goes_on = whose != client || now.get(&query) == Some(&running.relations);
            if !goes_on {
                changes.push(QueryChange::Ended(running.number));
            }
            goes_on
        });
        for (&query, relations) in now {
            if !known.running.contains_key(&(client, query)) {
                known.queries += 1;
                let number = known.queries;
                changes.push(QueryChange::Began(number, relations.clone()));
                known.running.insert((client, query), Running { number, relations: relations.clone() });
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_reach_the_cache() {
        use QueryChange::{Began, Ended};
        let queries = Queries::default();
        let (first, second) = (queries.number_client(), queries.number_client());
        let list = |list: &[(u64, &[u32])]| {
            let relations = |numbers: &[u32]| numbers.iter().copied().map(Relation).collect::<Vec<_>>();
            list.iter().map(|&(query, numbers)| (query, relations(numbers))).collect::<BTreeMap<_, _>>()
        };
        let (one, two) = (vec![Relation(1)], vec![Relation(1), Relation(2)]);
        assert_eq!(queries.replace(first, &list(&[(7, &[1])])), [Began(1, one.clone())]);
        assert_eq!(queries.replace(first, &list(&[(7, &[1])])), []);
        // Another client's query 7 is another query.
        assert_eq!(queries.replace(second, &list(&[(7, &[1])])), [Began(2, one)]);
        assert_eq!(queries.replace(first, &list(&[(7, &[1, 2])])), [Ended(1), Began(3, two)]);
        assert_eq!(queries.replace(first, &list(&[])), [Ended(3)]);
        assert_eq!(queries.replace(second, &list(&[])), [Ended(2)]);
        assert!(queries.0.lock().running.is_empty());
    }
}
