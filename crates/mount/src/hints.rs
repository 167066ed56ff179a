//! What clients say of running queries, passed to the cache.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use terrace_cache::policy::Relation;

use crate::tree::Tree;

/// What one client says of the queries that run now. Dropping it ends them.
///
/// Policies that know queries, such as `heuristicdb`, keep blocks of their tables.
#[derive(Debug)]
pub struct QueryHints {
    tree: Arc<Tree>,
    client: u64,
}

impl QueryHints {
    pub(crate) fn new(tree: &Arc<Tree>) -> QueryHints {
        QueryHints { tree: Arc::clone(tree), client: tree.queries.number_client() }
    }

    /// These queries run now, and no others of this client: a number of its own for each, and the
    /// files that it reads, relative to the directory.
    ///
    /// A file counts as its table or index. Files that were not cached so far are left out, so say
    /// it again, such as a few times a second.
    pub fn replace(&self, running: &[(u64, Vec<PathBuf>)]) {
        let Some(cache) = &self.tree.cache else { return };
        let mut now = BTreeMap::<u64, Vec<Relation>>::new();
        for (query, files) in running {
            let relations = now.entry(*query).or_default();
            relations.extend(files.iter().filter_map(|file| cache.relation_of(file)));
            relations.sort_unstable();
            relations.dedup();
        }
        // A query of which nothing is known would tell the policy nothing, and look like a new one.
        now.retain(|_, relations| !relations.is_empty());
        for change in self.tree.queries.replace(self.client, &now) {
            cache.note_query(&change);
        }
    }
}

impl Drop for QueryHints {
    fn drop(&mut self) {
        self.replace(&[]);
    }
}
