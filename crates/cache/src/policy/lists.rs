//! Doubly linked lists of slots, by index.
//!
//! A policy's lists share one array of links, eight bytes per slot, so moves allocate nothing.
//! Every list is a ring through its own sentinel, before the slots in the array, so linking has no
//! branches. A slot is in at most one list; outside of lists its links are undefined.

/// Neighbours in a ring: the front of a list is `next` of its sentinel.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// Reserves room for `len` items, and a 32nd more: doubling would leave up to half unused.
fn reserve_little<T>(items: &mut Vec<T>, len: usize) {
    if len > items.capacity() {
        items.reserve_exact((len - items.len()).max(items.len() / 32).max(16));
    }
}

/// Pushes `item` with little unused room.
pub(crate) fn push_exact<T>(items: &mut Vec<T>, item: T) {
    reserve_little(items, items.len() + 1);
    items.push(item);
}

#[derive(Clone, Debug)]
pub(crate) struct Lists<const L: usize> {
    links: Vec<Link>,
    lengths: [usize; L],
}

impl<const L: usize> Lists<L> {
    pub fn new(slots: usize) -> Self {
        let mut lists = Lists { links: Vec::with_capacity(L + slots), lengths: [0; L] };
        lists.links.extend((0..L as u32).map(|sentinel| Link { previous: sentinel, next: sentinel }));
        lists.grow(slots);
        lists
    }

    pub fn grow(&mut self, slots: usize) {
        if self.links.len() < L + slots {
            reserve_little(&mut self.links, L + slots);
            self.links.resize(L + slots, Link { previous: 0, next: 0 });
        }
    }

    #[inline]
    pub fn len(&self, list: usize) -> usize {
        self.lengths[list]
    }

    #[inline]
    fn link(&mut self, previous: u32, node: u32, next: u32) {
        self.links[node as usize] = Link { previous, next };
        self.links[previous as usize].next = node;
        self.links[next as usize].previous = node;
    }

    /// Puts the unlisted `slot` at the front of `list`.
    #[inline]
    pub fn push_front(&mut self, list: usize, slot: u32) {
        let next = self.links[list].next;
        self.link(list as u32, slot + L as u32, next);
        self.lengths[list] += 1;
    }

    /// Puts the unlisted `slot` at the back of `list`.
    #[inline]
    pub fn push_back(&mut self, list: usize, slot: u32) {
        let previous = self.links[list].previous;
        self.link(previous, slot + L as u32, list as u32);
        self.lengths[list] += 1;
    }

    /// Removes `slot` from its `list`.
    #[inline]
    pub fn unlink(&mut self, list: usize, slot: u32) {
        let Link { previous, next } = self.links[L + slot as usize];
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
        self.lengths[list] -= 1;
    }

    /// Puts the unlisted `to` in place of `from`, in any list.
    #[inline]
    pub fn substitute(&mut self, from: u32, to: u32) {
        let Link { previous, next } = self.links[L + from as usize];
        self.link(previous, to + L as u32, next);
    }

    /// Moves `slot` to the front of its `list`.
    #[inline]
    pub fn move_to_front(&mut self, list: usize, slot: u32) {
        self.unlink(list, slot);
        self.push_front(list, slot);
    }

    #[inline]
    pub fn front(&self, list: usize) -> Option<u32> {
        self.links[list].next.checked_sub(L as u32)
    }

    #[inline]
    pub fn back(&self, list: usize) -> Option<u32> {
        self.links[list].previous.checked_sub(L as u32)
    }

    /// The neighbour of `slot` towards the front.
    #[inline]
    pub fn before(&self, slot: u32) -> Option<u32> {
        self.links[L + slot as usize].previous.checked_sub(L as u32)
    }

    #[inline]
    pub fn pop_back(&mut self, list: usize) -> Option<u32> {
        let slot = self.back(list)?;
        self.unlink(list, slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::Lists;

    #[test]
    fn slots_keep_their_order_in_two_lists() {
        let mut lists = Lists::<2>::new(5);
        for slot in 0..4 {
            lists.push_front(0, slot);
        }
        lists.move_to_front(0, 1);
        lists.unlink(0, 3);
        lists.push_back(1, 3);
        assert_eq!((lists.front(0), lists.back(0), lists.before(0)), (Some(1), Some(0), Some(2)));
        assert_eq!((lists.front(1), lists.back(1), lists.before(3)), (Some(3), Some(3), None));
        lists.substitute(2, 4);
        let order: Vec<_> = std::iter::from_fn(|| lists.pop_back(0)).collect();
        assert_eq!(order, [0, 4, 1]);
        assert_eq!((lists.len(0), lists.len(1)), (0, 1));
    }
}
