//! Batches of reads: what is in the cache in one batch of the fast device, what is not in one of the slow device.
//!
//! This is for reads of one whole block each, as an engine makes when it reads ahead. Other reads of a batch, of which several requests
//! may begin in one (`request.rs`), and those that find their block in somebody's hands, are done one by one afterwards.

use super::index::{State, Word};
use super::placement::Found;
use super::request::{Request, Starts};
use super::{Bypass, Cached, checksum};
use crate::Read;
use crate::device::check_read;
use crate::policy::Access;

/// A read of one whole block, and what it is about to be.
struct One<'r, 'a> {
    read: &'r mut Read<'a>,
    access: Access,
}

impl Cached {
    /// Does all reads and leaves their results in them.
    pub(super) fn read_ranges(&self, reads: &mut [Read<'_>], starts: Starts<'_>) {
        let (mut hits, mut misses, mut singles) = (Vec::new(), Vec::new(), Vec::new());
        for read in reads {
            let length = self.length_for(read.offset, read.buffer.len());
            read.result = check_read(self.slow.name(), self.alignment, length, read.offset, read.buffer);
            if read.result.is_err() {
                continue;
            }
            let piece = self.piece(read.offset, read.buffer.len().max(1));
            if piece.length != read.buffer.len() || piece.length != self.block_bytes() {
                singles.push(read);
                continue;
            }
            let access = self.access(piece.block, false);
            match self.index.find(piece.block) {
                Some((slot, word)) if word.is_verified() => {
                    let route = self.balance.route(self.recent.look_ups());
                    match route.below && !word.is_dirty() {
                        true => singles.push(read),
                        false => hits.push((One { read, access }, slot, word)),
                    }
                }
                Some(_) => singles.push(read),
                None => misses.push(One { read, access }),
            }
        }
        self.read_hits(hits, &mut singles);
        self.read_misses(misses, &mut singles);
        for read in singles {
            read.result = self.read_range(read.offset, read.buffer, starts);
        }
    }

    fn read_hits<'r, 'a>(
        &self,
        mut hits: Vec<(One<'r, 'a>, u32, Word)>,
        singles: &mut Vec<&'r mut Read<'a>>,
    ) {
        let mut batch: Vec<_> = hits
            .iter_mut()
            .map(|(one, slot, _)| Read::new(self.slot_offset(*slot), &mut *one.read.buffer))
            .collect();
        self.fast.read_batch(&mut batch);
        let results: Vec<_> = batch.into_iter().map(|read| read.result.is_ok()).collect();
        for ((One { read, access }, slot, word), is_read) in hits.into_iter().zip(results) {
            let is_right =
                is_read && (!self.must_verify(word) || checksum(read.buffer) == self.index.checksum(slot));
            // What went wrong shows again, and is seen to, when it is read by itself.
            if !is_right || !self.index.is_unchanged(slot, word) {
                singles.push(read);
                continue;
            }
            self.recent.count_hit();
            self.recent.count_whole();
            self.note(slot, access);
            read.result = Ok(());
        }
    }

    fn read_misses<'r, 'a>(&self, misses: Vec<One<'r, 'a>>, singles: &mut Vec<&'r mut Read<'a>>) {
        if misses.is_empty() {
            return;
        }
        let mut fetches: Vec<(&'r mut Read<'a>, Option<u32>)> = Vec::with_capacity(misses.len());
        {
            let mut placement = self.placement.lock();
            placement.hits(&self.index, &mut self.recent.lane().waiting());
            for One { read, access } in misses {
                let admitted = match placement.find(&self.index, access.block) {
                    // Also one of this very batch, which must not wait for itself.
                    Found::Slot(_, word) if word.state() != State::Writing => {
                        singles.push(read);
                        continue;
                    }
                    Found::Slot(..) | Found::BeingWritten => Err(Bypass::InUse),
                    Found::Nothing => self.admit_read(&mut placement, access, &mut Request::default()),
                };
                self.counters.requests_missed.add(1);
                fetches.push((read, self.count_miss(admitted)));
            }
        }
        let mut batch: Vec<_> =
            fetches.iter_mut().map(|(read, _)| Read::new(read.offset, &mut *read.buffer)).collect();
        self.slow.read_batch(&mut batch);
        let results: Vec<_> = batch.into_iter().map(|read| read.result).collect();
        let (mut fetched, mut failed) = (Vec::new(), Vec::new());
        for ((read, slot), result) in fetches.iter_mut().zip(results) {
            match (slot, &result) {
                (Some(slot), Ok(())) => fetched.push((*slot, &*read.buffer)),
                (Some(slot), Err(_)) => failed.push(*slot),
                (None, _) => {}
            }
            read.result = result;
        }
        self.publish(&fetched);
        self.drop_fetched(&failed);
    }
}
