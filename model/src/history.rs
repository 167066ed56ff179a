//! The promise: each acknowledged transaction is whole after recovery, any other is absent or
//! whole. Transactions are ordered, so the state found is that after some of the first ones.

use crate::disk::KEYS;
use crate::world::{Outcome, World};

impl World {
    /// Opens the recovered database, and compares it with what was promised.
    pub fn open(&mut self) -> Outcome {
        let is_undone = self.life.work.losers.iter().all(|loser| loser.end.is_some());
        if self.life.is_open || !is_undone || self.is_blocked() {
            return Ok(false);
        }
        let mut found = [0; KEYS];
        for (key, value) in found.iter_mut().enumerate() {
            let page = self.leaf_of(key)?;
            if !self.life.pages.words[page].is_allocated {
                return Err(format!("page {page} of key {key} is not allocated"));
            }
            *value = self.content(page)?.values[key];
        }
        let acknowledged = self.history.iter().rposition(|one| one.is_acknowledged).map_or(0, |at| at + 1);
        let mut state = [0; KEYS];
        let mut visible = (state == found).then_some(0);
        for (at, committed) in self.history.iter().enumerate() {
            for &(key, value) in &committed.writes {
                state[key] = value;
            }
            if state == found {
                visible = Some(at + 1);
            }
        }
        match visible {
            None => Err(format!("{found:?} is the state after no transaction of {:?}", self.history)),
            Some(visible) if visible < acknowledged => {
                Err(format!("lost: {visible} of {acknowledged} acknowledged transactions, {found:?}"))
            }
            Some(visible) => {
                self.history.truncate(visible);
                self.history.iter_mut().for_each(|one| one.is_acknowledged = true);
                self.life.is_open = true;
                self.note(|| format!("opened: {visible} transactions"));
                Ok(true)
            }
        }
    }
}
