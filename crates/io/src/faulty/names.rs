//! The durable and the current names on a simulated disk.

use std::collections::BTreeMap;

use super::random::Random;

/// Index of a file's content; renaming keeps it.
pub(super) type FileNumber = usize;

type Map = BTreeMap<String, FileNumber>;

#[derive(Clone, Debug)]
enum Change {
    Add(String, FileNumber),
    Remove(String),
    Rename(String, String),
}

/// The map from names to files: current, durable, and the pending changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    current: Map,
    durable: Map,
    pending: Vec<Change>,
}

impl Names {
    pub(super) fn find(&self, name: &str) -> Option<FileNumber> {
        self.current.get(name).copied()
    }

    pub(super) fn files(&self) -> impl Iterator<Item = FileNumber> + '_ {
        self.current.values().copied()
    }

    pub(super) fn add(&mut self, name: &str, file: FileNumber) {
        self.change(Change::Add(name.to_owned(), file));
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.change(Change::Remove(name.to_owned()));
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        self.change(Change::Rename(from.to_owned(), to.to_owned()));
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.current, &change);
        self.pending.push(change);
    }

    pub(super) fn sync(&mut self) {
        if !self.pending.is_empty() {
            self.durable.clone_from(&self.current);
            self.pending.clear();
        }
    }

    /// One possible state after a power cut. Each change persists or not, as a prefix or, every
    /// other time, with gaps, since only a sync orders names.
    pub(super) fn survivor(&self, random: &mut Random) -> Names {
        let mut names = self.durable.clone();
        if !self.pending.is_empty() {
            let (gaps, kept) = (random.chance(50), random.below(self.pending.len() + 1));
            for (index, change) in self.pending.iter().enumerate() {
                if if gaps { random.chance(50) } else { index < kept } {
                    apply(&mut names, change);
                }
            }
        }
        Names { current: names.clone(), durable: names, pending: Vec::new() }
    }
}

/// Applies one change, unless a change that it depends on was lost.
fn apply(names: &mut Map, change: &Change) {
    match change {
        Change::Add(name, file) => {
            names.insert(name.clone(), *file);
        }
        Change::Remove(name) => {
            names.remove(name);
        }
        Change::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survivors(names: &Names) -> Vec<Vec<(String, FileNumber)>> {
        let mut seen: Vec<_> = (0..200)
            .map(|seed| names.survivor(&mut Random::new(seed)).current.into_iter().collect::<Vec<_>>())
            .collect();
        seen.sort();
        seen.dedup();
        seen
    }

    fn listing(names: &[(&str, FileNumber)]) -> Vec<(String, FileNumber)> {
        names.iter().map(|(name, file)| ((*name).to_owned(), *file)).collect()
    }

    #[test]
    fn a_rename_that_was_not_synced_is_whole_or_absent() {
        let mut names = Names::default();
        names.add("old", 0);
        names.add("new", 1);
        names.sync();
        names.rename("new", "old");
        assert_eq!(survivors(&names), [listing(&[("new", 1), ("old", 0)]), listing(&[("old", 1)])]);
    }

    #[test]
    fn a_synced_name_stays_and_an_unsynced_one_may_go() {
        let mut names = Names::default();
        names.add("kept", 0);
        names.sync();
        names.add("maybe", 1);
        assert_eq!(survivors(&names), [listing(&[("kept", 0)]), listing(&[("kept", 0), ("maybe", 1)])]);
    }
}
