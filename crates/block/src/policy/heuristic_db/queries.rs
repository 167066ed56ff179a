//! The query profile queue (paper 002, section 5.1): the relations a query requires, and the hits since it began.
//!
//! The paper's queue has two places, one of which is the query being submitted; what has to be kept is the other. Queries
//! may run at the same time; a hit counts for the one submitted last.

use crate::policy::Relation;

/// What rule 6 wants done with the cached blocks when a query is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The cached blocks gave no hits, and the queries share these relations.
    Evict { hot: Vec<Relation> },
    /// All other cases.
    Demote,
}

/// The profile of the query submitted last, if there was one.
#[derive(Clone, Debug, Default)]
pub(super) struct Queries {
    last: Option<Profile>,
}

#[derive(Clone, Debug)]
struct Profile {
    relations: Vec<Relation>,
    hits: u64,
}

impl Queries {
    /// Counts a hit for the last query.
    pub fn hit(&mut self) {
        if let Some(last) = &mut self.last {
            last.hits += 1;
        }
    }

    /// A query that requires `relations` is submitted.
    pub fn begin(&mut self, relations: &[Relation]) -> Change {
        let submitted = Profile { relations: relations.to_vec(), hits: 0 };
        let Some(last) = self.last.replace(submitted) else { return Change::Demote };
        let hot: Vec<_> =
            relations.iter().copied().filter(|relation| last.relations.contains(relation)).collect();
        if last.hits == 0 && !hot.is_empty() { Change::Evict { hot } } else { Change::Demote }
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, Queries};
    use crate::policy::Relation;

    #[test]
    fn eviction_needs_no_hits_and_a_shared_relation() {
        let [a, b, c] = [1, 2, 3].map(Relation);
        let mut queries = Queries::default();
        queries.hit();
        assert_eq!(queries.begin(&[a, b]), Change::Demote, "nothing to compare with");
        assert_eq!(queries.begin(&[b, c]), Change::Evict { hot: vec![b] });
        queries.hit();
        assert_eq!(queries.begin(&[b, c]), Change::Demote, "a hit");
        assert_eq!(queries.begin(&[a]), Change::Demote, "nothing shared");
    }
}
