//! Slots in lists by access frequency, for LFU, LFRU and HeuristicDB.
//!
//! Every present frequency has a list of slots, most recently used first; lists are linked in
//! ascending order (HeuristicDB, section 5.2 and figure 3a):
//!
//! ```text
//! lowest -> 1: [c, a] <-> 2: [d] <-> 7: [b, e]
//! ```
//!
//! A hit moves a slot to the next list in constant time. The coldest slot is the last of the first
//! list. An insertion walks from the lowest list; returning blocks are cold, so the walk is short.

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Towards the most recently used.
    previous: u32,
    next: u32,
    list: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    frequency: u32,
    front: u32,
    back: u32,
    lower: u32,
    higher: u32,
}

/// The order of slots in merged lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// Frequent slots leave first: they must prove themselves again (HeuristicDB, section 5.2).
    HotFirst,
    /// Frequent slots leave last.
    HotLast,
}

#[derive(Clone, Debug)]
pub(crate) struct FrequencyLists {
    nodes: Vec<Node>,
    lists: Vec<List>,
    free_lists: Vec<u32>,
    lowest: u32,
}

impl FrequencyLists {
    pub fn new(slots: usize) -> Self {
        let mut lists =
            FrequencyLists { nodes: Vec::new(), lists: Vec::new(), free_lists: Vec::new(), lowest: NIL };
        lists.grow(slots);
        lists
    }

    pub fn grow(&mut self, slots: usize) {
        if self.nodes.len() < slots {
            self.nodes.resize(slots, Node { previous: NIL, next: NIL, list: NIL });
        }
    }

    pub fn frequency(&self, slot: u32) -> u32 {
        self.lists[self.nodes[slot as usize].list as usize].frequency
    }

    /// The least recently used slot of the lowest frequency, with that frequency.
    pub fn coldest(&self) -> Option<(u32, u32)> {
        let list = self.lists.get(self.lowest as usize)?;
        Some((list.back, list.frequency))
    }

    /// Puts the unlisted `slot` in front of the list of `frequency`.
    pub fn insert(&mut self, slot: u32, frequency: u32) {
        let (mut lower, mut higher) = (NIL, self.lowest);
        while higher != NIL && self.lists[higher as usize].frequency <= frequency {
            lower = higher;
            higher = self.lists[higher as usize].higher;
        }
        let list = self.list_after(lower, frequency);
        self.push_front(slot, list);
    }

    pub fn remove(&mut self, slot: u32) {
        let list = self.unlink(slot);
        self.free_if_empty(list);
    }

    /// Puts the unlisted `to` in place of `from`.
    pub fn substitute(&mut self, from: u32, to: u32) {
        let node =
            std::mem::replace(&mut self.nodes[from as usize], Node { previous: NIL, next: NIL, list: NIL });
        match node.previous {
            NIL => self.lists[node.list as usize].front = to,
            previous => self.nodes[previous as usize].next = to,
        }
        match node.next {
            NIL => self.lists[node.list as usize].back = to,
            next => self.nodes[next as usize].previous = to,
        }
        self.nodes[to as usize] = node;
    }

    /// Moves `slot` to the front of the next frequency's list.
    pub fn increment(&mut self, slot: u32) {
        let list = self.unlink(slot);
        let frequency = self.lists[list as usize].frequency.saturating_add(1);
        let higher = self.lists[list as usize].higher;
        let lower =
            if higher != NIL && self.lists[higher as usize].frequency == frequency { higher } else { list };
        let next = self.list_after(lower, frequency);
        self.push_front(slot, next);
        self.free_if_empty(list);
    }

    /// Applies the monotonic `new` to all frequencies; `among` orders merged lists. Linear in the
    /// number of slots.
    pub fn renumber(&mut self, among: Among, new: impl Fn(u32) -> u32) {
        let mut groups: Vec<(u32, Vec<Vec<u32>>)> = Vec::new();
        let mut list = self.lowest;
        while list != NIL {
            let List { frequency, front, higher, .. } = self.lists[list as usize];
            let mut slots = Vec::new();
            let mut slot = front;
            while slot != NIL {
                slots.push(slot);
                slot = self.nodes[slot as usize].next;
            }
            let frequency = new(frequency);
            match groups.last_mut() {
                Some((last, lists)) if *last == frequency => lists.push(slots),
                _ => groups.push((frequency, vec![slots])),
            }
            list = higher;
        }
        self.lists.clear();
        self.free_lists.clear();
        self.lowest = NIL;
        let mut lower = NIL;
        for (frequency, lists) in groups {
            lower = self.list_after(lower, frequency);
            // Pushes slots from back to front, each list in its own order.
            let mut push =
                |slots: Vec<u32>| slots.into_iter().rev().for_each(|slot| self.push_front(slot, lower));
            match among {
                Among::HotFirst => lists.into_iter().rev().for_each(&mut push),
                Among::HotLast => lists.into_iter().for_each(&mut push),
            }
        }
    }

    /// The list of `frequency`: `lower` itself, or a new one after it. NIL is before the lowest.
    fn list_after(&mut self, lower: u32, frequency: u32) -> u32 {
        if lower != NIL && self.lists[lower as usize].frequency == frequency {
            return lower;
        }
        let higher = if lower == NIL { self.lowest } else { self.lists[lower as usize].higher };
        let list = List { frequency, front: NIL, back: NIL, lower, higher };
        let index = match self.free_lists.pop() {
            Some(index) => {
                self.lists[index as usize] = list;
                index
            }
            None => {
                self.lists.push(list);
                self.lists.len() as u32 - 1
            }
        };
        match lower {
            NIL => self.lowest = index,
            lower => self.lists[lower as usize].higher = index,
        }
        if higher != NIL {
            self.lists[higher as usize].lower = index;
        }
        index
    }

    fn push_front(&mut self, slot: u32, list: u32) {
        let head = &mut self.lists[list as usize];
        let next = std::mem::replace(&mut head.front, slot);
        if next == NIL {
            head.back = slot;
        } else {
            self.nodes[next as usize].previous = slot;
        }
        self.nodes[slot as usize] = Node { previous: NIL, next, list };
    }

    /// Returns the former list of `slot`, possibly empty.
    fn unlink(&mut self, slot: u32) -> u32 {
        let Node { previous, next, list } = self.nodes[slot as usize];
        let head = &mut self.lists[list as usize];
        match previous {
            NIL => head.front = next,
            previous => self.nodes[previous as usize].next = next,
        }
        match next {
            NIL => head.back = previous,
            next => self.nodes[next as usize].previous = previous,
        }
        self.nodes[slot as usize].list = NIL;
        list
    }

    fn free_if_empty(&mut self, list: u32) {
        let List { front, lower, higher, .. } = self.lists[list as usize];
        if front != NIL {
            return;
        }
        match lower {
            NIL => self.lowest = higher,
            lower => self.lists[lower as usize].higher = higher,
        }
        if higher != NIL {
            self.lists[higher as usize].lower = lower;
        }
        self.free_lists.push(list);
    }
}

#[cfg(test)]
mod tests {
    use super::{Among, FrequencyLists};

    fn order(mut lists: FrequencyLists) -> Vec<(u32, u32)> {
        std::iter::from_fn(|| {
            let coldest = lists.coldest()?;
            lists.remove(coldest.0);
            Some(coldest)
        })
        .collect()
    }

    fn sample() -> FrequencyLists {
        let mut lists = FrequencyLists::new(5);
        lists.insert(0, 1);
        lists.insert(1, 7);
        lists.insert(2, 1);
        lists.insert(3, 1);
        lists.insert(4, 6);
        lists.increment(3);
        lists.increment(4);
        lists
    }

    #[test]
    fn the_coldest_is_the_least_recently_used_of_the_lowest_frequency() {
        assert_eq!(order(sample()), [(0, 1), (2, 1), (3, 2), (1, 7), (4, 7)]);
    }

    #[test]
    fn a_reset_puts_hot_slots_where_the_query_wants_them() {
        let mut lists = sample();
        lists.renumber(Among::HotFirst, |_| 1);
        assert_eq!(order(lists), [(1, 1), (4, 1), (3, 1), (0, 1), (2, 1)]);
        let mut lists = sample();
        lists.renumber(Among::HotLast, |frequency| frequency / 2);
        assert_eq!(order(lists), [(0, 0), (2, 0), (3, 1), (1, 3), (4, 3)]);
    }
}
