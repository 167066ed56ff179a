//! Batches of reads: one batch per device.
//!
//! They consist of reads of one whole block, as in read-ahead. Other reads, perhaps of several
//! requests (`request.rs`), and reads of blocks in use are done one by one afterwards.

use super::checksum::checksum;
use super::index::{State, Word};
use super::placement::Found;
use super::read::Reads;
use super::request::{Request, Starts};
use super::stats::Bypass;
use crate::policy::Access;
use terrace_io::Read;

struct One<'r, 'a> {
    read: &'r mut Read<'a>,
    access: Access,
}

impl Reads {
    pub fn read_batch_of(&self, reads: &mut [Read<'_>], starts: &[u64]) {
        if self.service.is_out_of_service() {
            if !self.service.is_stranded() {
                self.blocks.slow.read_batch(reads);
                let read = reads.iter().filter(|read| read.result.is_ok());
                let blocks =
                    read.map(|read| self.blocks.shape.blocks_in(read.offset, read.buffer.len())).sum();
                return self.blocks.count_unserved(&self.blocks.counters.misses, blocks);
            }
            // One by one, because dirty blocks come from the cache or fail.
            for read in reads {
                read.result = self.read_at(read.offset, read.buffer);
            }
            return;
        }
        self.read_ranges(reads, Starts(starts));
    }

    fn read_ranges(&self, reads: &mut [Read<'_>], starts: Starts<'_>) {
        let (mut hits, mut misses, mut singles) = (Vec::new(), Vec::new(), Vec::new());
        for read in reads {
            read.result = self.blocks.check_read(read.offset, read.buffer);
            if read.result.is_err() {
                continue;
            }
            let piece = self.blocks.shape.piece(read.offset, read.buffer.len().max(1));
            if piece.length != read.buffer.len() || piece.length != self.blocks.shape.block_bytes() {
                singles.push(read);
                continue;
            }
            let access = self.blocks.access(piece.block, false);
            match self.blocks.index.find(piece.block) {
                Some((slot, word)) if word.is_verified() => {
                    let route = self.blocks.balance.route(self.blocks.recent.look_ups());
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
            .map(|(one, slot, _)| Read::new(self.blocks.shape.slot_offset(*slot), &mut *one.read.buffer))
            .collect();
        self.blocks.fast.read_batch(&mut batch);
        let results: Vec<_> = batch.into_iter().map(|read| read.result.is_ok()).collect();
        for ((One { read, access }, slot, word), is_read) in hits.into_iter().zip(results) {
            let is_right = is_read
                && (!self.blocks.must_verify(word)
                    || checksum(read.buffer) == self.blocks.index.checksum(slot));
            // Read it again by itself, which handles the error.
            if !is_right || !self.blocks.index.is_unchanged(slot, word) {
                singles.push(read);
                continue;
            }
            self.blocks.recent.count_hit();
            self.blocks.recent.count_whole();
            self.blocks.note(slot, access);
            read.result = Ok(());
        }
    }

    fn read_misses<'r, 'a>(&self, misses: Vec<One<'r, 'a>>, singles: &mut Vec<&'r mut Read<'a>>) {
        if misses.is_empty() {
            return;
        }
        let mut fetches: Vec<(&'r mut Read<'a>, Option<u32>)> = Vec::with_capacity(misses.len());
        {
            let mut placement = self.blocks.placement.lock();
            placement.hits(&self.blocks.index, &mut self.blocks.recent.lane().waiting());
            for One { read, access } in misses {
                let admitted = match placement.find(&self.blocks.index, access.block) {
                    // This includes a block of this batch, which must not wait for itself.
                    Found::Slot(_, word) if word.state() != State::Writing => {
                        singles.push(read);
                        continue;
                    }
                    Found::Slot(..) | Found::BeingWritten => Err(Bypass::InUse),
                    Found::Nothing => self.admit_read(&mut placement, access, &mut Request::default()),
                };
                self.blocks.counters.requests_missed.add(1);
                fetches.push((read, self.blocks.count_miss(admitted)));
            }
        }
        let mut batch: Vec<_> =
            fetches.iter_mut().map(|(read, _)| Read::new(read.offset, &mut *read.buffer)).collect();
        self.blocks.slow.read_batch(&mut batch);
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
