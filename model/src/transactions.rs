//! Transactions that commit, splits and merges, and undo.

use crate::disk::{ABSENT, CHUNK_PAGES, Content, Kind, MappingWord, Record};
use crate::flags::Flag;
use crate::world::{Committed, Freed, Outcome, Transaction, World};

/// Log space that new work leaves to the checkpoint, which makes room.
const LEFT_TO_CHECKPOINT: u32 = 5;

/// Records that a transaction of `writes` changes may need from now on: the rest of its changes,
/// compensations of all, and an end record.
fn reservation(writes: usize, written: usize) -> u32 {
    (2 * writes - written + 1) as u32
}

impl World {
    /// Log space that transactions and losers have reserved.
    pub fn reserved(&self) -> u32 {
        let work = &self.life.work;
        let running = work.transactions.iter().filter(|running| running.commit.is_none());
        let losers = work.losers.iter().filter(|loser| loser.end.is_none());
        running.map(|one| reservation(one.writes.len(), one.written)).sum::<u32>()
            + losers.map(|loser| loser.undo.len() as u32 + 1).sum::<u32>()
    }

    /// Begins the commit of a transaction that writes `key`, and another one if it differs.
    pub fn begin(&mut self, key: usize, second: usize) -> Outcome {
        let work = &self.life.work;
        let running = work.transactions.iter().filter(|running| running.commit.is_none());
        let is_busy = running.clone().count() >= 2;
        let is_locked =
            |key| running.clone().any(|running| running.writes.iter().any(|write| write.0 == key));
        let is_free = !is_busy && !is_locked(key) && !is_locked(second);
        if !self.life.is_open || !is_free || !self.may_append(reservation(2, 0) + LEFT_TO_CHECKPOINT) {
            return Ok(false);
        }
        self.transactions_begun += 1;
        let id = self.transactions_begun;
        let mut writes = vec![(key, id * 2)];
        if second != key {
            writes.push((second, id * 2 + 1));
        }
        let first = self.life.log.tail;
        self.note(|| format!("T{id} begins to commit {writes:?}"));
        let transaction = Transaction { id, writes, written: 0, first, commit: None, unapplied: None };
        self.life.work.transactions.push(transaction);
        Ok(true)
    }

    fn has_to_write(&self, at: usize) -> Option<(usize, u16)> {
        let transaction = self.life.work.transactions.get(at)?;
        if transaction.commit.is_some() || transaction.unapplied.is_some() {
            return None;
        }
        transaction.writes.get(transaction.written).copied()
    }

    /// Writes the next key: latch, draw the LSN, change, stamp, unlatch.
    pub fn change(&mut self, at: usize) -> Outcome {
        if self.life.work.restructuring.is_some() || !self.may_append_reserved() {
            return Ok(false);
        }
        let Some((key, after)) = self.has_to_write(at) else { return Ok(false) };
        let page = self.leaf_of(key)?;
        let mut content = self.content(page)?;
        let before = content.values[key];
        if before == ABSENT {
            return Err(format!("key {key} is missing in page {page}"));
        }
        let transaction = self.life.work.transactions[at].id;
        let record = self.append(Kind::Update { transaction, page, key, before, after });
        self.life.work.transactions[at].written += 1;
        self.note(|| format!("T{transaction} appends record {}: page {page}, key {key}", record.lsn));
        if self.lacks(Flag::AppendBeforeLatching) {
            self.life.work.transactions[at].unapplied = Some(record);
        } else {
            content.values[key] = after;
            content.lsn = record.lsn;
            self.put(page, content);
        }
        Ok(true)
    }

    /// Applies a record that was appended without the latch (a planted bug).
    pub fn apply_late(&mut self, at: usize) -> Outcome {
        if self.life.work.restructuring.is_some() || at >= self.life.work.transactions.len() {
            return Ok(false);
        }
        let Some(record) = self.life.work.transactions[at].unapplied.take() else { return Ok(false) };
        if let Kind::Update { key, after, .. } = record.kind {
            let page = self.leaf_of(key)?;
            let mut content = self.content(page)?;
            content.values[key] = after;
            content.lsn = content.lsn.max(record.lsn);
            self.put(page, content);
            let rec_lsn = &mut self.life.pages.rec_lsn[page];
            *rec_lsn = (*rec_lsn).min(record.lsn);
        }
        self.note(|| format!("record {} is applied", record.lsn));
        Ok(true)
    }

    /// Appends the commit record.
    pub fn commit(&mut self, at: usize) -> Outcome {
        let Some(transaction) = self.life.work.transactions.get(at) else { return Ok(false) };
        let is_written = transaction.written == transaction.writes.len() && transaction.unapplied.is_none();
        if transaction.commit.is_some() || !is_written || !self.may_append_reserved() {
            return Ok(false);
        }
        let (id, writes) = (transaction.id, transaction.writes.clone());
        let record = self.append(Kind::Commit { transaction: id });
        self.life.work.transactions[at].commit = Some(record.lsn);
        let is_acknowledged = self.lacks(Flag::AcknowledgeEarly);
        self.history.push(Committed { transaction: id, writes, is_acknowledged, lsn: record.lsn });
        self.note(|| format!("T{id} appends commit record {}", record.lsn));
        Ok(true)
    }

    /// Appends the record of a split into page `fresh`, or of the merge that ends it.
    pub fn restructure(&mut self, fresh: usize) -> Outcome {
        let work = &self.life.work;
        let is_busy = work.restructuring.is_some();
        let is_late = work.transactions.iter().any(|transaction| transaction.unapplied.is_some());
        if !self.life.is_open || is_busy || is_late || !self.may_append(1 + LEFT_TO_CHECKPOINT) {
            return Ok(false);
        }
        let right = self.content(0)?.right;
        let is_split = right == 0;
        let page = if is_split { fresh } else { right };
        let is_claimed = self.life.images.iter().any(|image| image.page == page);
        if is_claimed && !self.lacks(Flag::FreeClaimedPage) {
            return Ok(false);
        }
        // A freed page keeps its id until that is durable.
        let is_held = self.life.freed.iter().any(|freed| freed.page == page);
        if is_split && (self.life.pages.words[page].is_allocated || is_held) {
            return Ok(false);
        }
        let [_, _, third, fourth] = self.content(if is_split { 1 } else { page })?.values;
        let values = [third, fourth];
        let record =
            self.append(if is_split { Kind::Split { page, values } } else { Kind::Merge { page, values } });
        if !self.lacks(Flag::ChunkDirtyInForce) && !self.lacks(Flag::FreeLeavesChunkClean) {
            self.dirty_chunk(page, record.lsn);
        }
        let what = if is_split { "split allocates" } else { "merge frees" };
        self.note(|| format!("record {}: a {what} page {page}", record.lsn));
        self.life.work.restructuring = Some(record);
        Ok(true)
    }

    /// Applies it to all its pages.
    pub fn apply_restructuring(&mut self) -> Outcome {
        let Some(record) = self.life.work.restructuring.take() else { return Ok(false) };
        match record.kind {
            Kind::Split { page, values } => self.apply_split(record, page, values)?,
            Kind::Merge { page, values } => self.apply_merge(record, page, values)?,
            _ => unreachable!("only splits and merges restructure"),
        }
        if !self.lacks(Flag::FreeLeavesChunkClean)
            && let Some(page) = record.kind.maps()
        {
            self.dirty_chunk(page, record.lsn);
        }
        self.note(|| format!("record {} is applied", record.lsn));
        Ok(true)
    }

    /// Changes the root and the first leaf.
    fn change_both(&mut self, lsn: u32, right: usize, values: [u16; 2]) -> Result<(), String> {
        let root = self.content(0)?;
        self.put(0, Content { lsn, right, ..root });
        let leaf = self.content(1)?;
        let [first, second, ..] = leaf.values;
        self.put(1, Content { lsn, values: [first, second, values[0], values[1]], ..leaf });
        Ok(())
    }

    fn apply_split(&mut self, record: Record, page: usize, values: [u16; 2]) -> Result<(), String> {
        self.change_both(record.lsn, page, [ABSENT; 2])?;
        let pages = &mut self.life.pages;
        pages.words[page] = MappingWord::UNWRITTEN;
        pages.dram[page] = Some(new_leaf(record.lsn, values));
        pages.rec_lsn[page] = record.lsn;
        pages.changes[page] = vec![record.lsn];
        self.life.chunks.last[page / CHUNK_PAGES] = record.lsn;
        Ok(())
    }

    fn apply_merge(&mut self, record: Record, page: usize, values: [u16; 2]) -> Result<(), String> {
        self.change_both(record.lsn, 0, values)?;
        if let Some(frame) = self.life.pages.frame_of[page] {
            self.end_sealing(frame);
        }
        let forgets = self.lacks(Flag::ForgetFreedRecLsn);
        let pages = &mut self.life.pages;
        let mut block = std::mem::replace(&mut pages.words[page], MappingWord::FREE).block;
        let rec_lsn = std::mem::take(&mut pages.rec_lsn[page]);
        pages.changes[page].clear();
        pages.dram[page] = None;
        self.life.chunks.last[page / CHUNK_PAGES] = record.lsn;
        if self.lacks(Flag::ReuseFreedBlock)
            && let Some(block) = block.take()
        {
            self.life.taken[block] = false;
        }
        let rec_lsn = if forgets { 0 } else { rec_lsn };
        self.life.freed.push(Freed { page, block, rec_lsn, lsn: record.lsn });
        Ok(())
    }

    /// Undoes the highest change of the losers, or ends one.
    pub fn undo(&mut self) -> Outcome {
        if self.life.is_open || !self.may_append_reserved() {
            return Ok(false);
        }
        let losers = self.life.work.losers.iter().enumerate().filter(|(_, loser)| loser.end.is_none());
        let highest = losers
            .max_by_key(|(at, loser)| (loser.undo.last().map_or(0, |undo| undo.0), std::cmp::Reverse(*at)));
        let Some((at, loser)) = highest else { return Ok(false) };
        let transaction = loser.transaction;
        let Some((_, key, value)) = self.life.work.losers[at].undo.pop() else {
            let end = if self.lacks(Flag::NoEndRecordAfterUndo) {
                self.life.log.tail - 1
            } else {
                self.append(Kind::End { transaction }).lsn
            };
            self.life.work.losers[at].end = Some(end);
            self.note(|| format!("recovery ends T{transaction} at {end}"));
            if end <= self.life.log.durable {
                self.absorb_durable();
            }
            return Ok(true);
        };
        let page = self.leaf_of(key)?;
        let mut content = self.content(page)?;
        let next = self.life.work.losers[at].undo.last().map_or(0, |undo| undo.0);
        let record = self.append(Kind::Compensation { transaction, page, key, value, next });
        content.values[key] = value;
        content.lsn = record.lsn;
        self.put(page, content);
        self.note(|| format!("recovery appends compensation {} for T{transaction}, key {key}", record.lsn));
        Ok(true)
    }

    /// Whether a page has an image in flight that must not meet another.
    pub fn is_claimed(&self, page: usize, by_cleaner: bool) -> bool {
        self.life.images.iter().any(|image| {
            let two = self.lacks(Flag::TwoImagesInFlight) && image.by_cleaner != by_cleaner;
            let reborn = self.lacks(Flag::FreeClaimedPage) && self.life.pages.words[page].block.is_none();
            image.page == page && !two && !reborn
        })
    }
}

/// The page that a split makes.
pub fn new_leaf(lsn: u32, values: [u16; 2]) -> Content {
    Content { lsn, right: 0, values: [ABSENT, ABSENT, values[0], values[1]] }
}
