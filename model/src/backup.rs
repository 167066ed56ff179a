//! Backups, and copies of the files. A backup is a copy of images that need not be of one moment,
//! and a log that ends above all of them.

use crate::cell::Cell;
use crate::disk::{BLOCKS, Disk, Image, Kind, NO_PAGE, PAGES, Record, Superblock, chunks_of};
use crate::flags::Flag;
use crate::world::{Archive, Backup, Devices, FileCopy, Outcome, World};

impl World {
    /// Begins a backup: notes where images are, and holds the cut.
    pub fn begin_backup(&mut self) -> Outcome {
        let life = &self.life;
        let is_busy = life.backup.is_some() || life.log.growth.is_some() || life.is_closing;
        if !life.is_open || is_busy || life.work.restructuring.is_some() {
            return Ok(false);
        }
        let cut = self.cut_now().max(life.log.cut);
        let (words, current_to, log_end) = (life.pages.words, life.log.tail - 1, life.log.durable);
        self.life.backup =
            Some(Backup { cut, words, current_to, log_end, copies: [None; PAGES], withheld: Vec::new() });
        self.note(|| format!("a backup begins: cut {cut}"));
        Ok(true)
    }

    /// Looks up again where the image of a page is. Images of a backup need not be of one moment.
    pub fn look_up_image(&mut self, page: usize) -> Outcome {
        let word = self.life.pages.words[page];
        let Some(backup) = &mut self.life.backup else { return Ok(false) };
        let noted = &mut backup.words[page];
        let is_newer = noted.is_allocated && word.block.is_some() && *noted != word;
        if !is_newer || backup.copies[page].is_some() {
            return Ok(false);
        }
        *noted = word;
        self.note(|| format!("the backup finds page {page} in another block"));
        Ok(true)
    }

    /// Copies the image of a page.
    pub fn copy_image(&mut self, page: usize) -> Outcome {
        let Some(backup) = &mut self.life.backup else { return Ok(false) };
        let Some(block) = backup.words[page].block.filter(|_| backup.copies[page].is_none()) else {
            return Ok(false);
        };
        backup.copies[page] = Some(self.disk.blocks[block].get());
        self.note(|| format!("the backup copies page {page} from block {block}"));
        Ok(true)
    }

    /// Copies the log, and ends the backup.
    pub fn end_backup(&mut self) -> Outcome {
        let Some(backup) = &self.life.backup else { return Ok(false) };
        let log = &self.life.log;
        let is_copied =
            (0..PAGES).all(|page| backup.words[page].block.is_none() || backup.copies[page].is_some());
        let end = if self.lacks(Flag::BackupEndsLogEarly) { backup.log_end } else { log.durable };
        let is_early = end < backup.current_to && !self.lacks(Flag::BackupEndsLogEarly);
        let is_filed = log.filed >= end || self.lacks(Flag::BackupReadsUnfiled);
        if !is_copied || is_early || !is_filed {
            return Ok(false);
        }
        let superblock = Superblock {
            generation: 1,
            cut: backup.cut,
            epoch: log.epoch,
            epoch_first: log.epoch_first,
            log_end: 0,
            capacity: log.capacity,
            timeline: self.life.timeline,
            life: self.life.number,
            names_ring: false,
            is_torn: false,
        };
        let mut records = Vec::new();
        for lsn in backup.cut..=end {
            let slot = self.disk.log[(lsn % log.capacity) as usize].get();
            let Some(record) = slot.filter(|record| record.lsn == lsn) else { break };
            // Records about blocks do not concern the copy.
            let is_mapping = matches!(record.kind, Kind::Mapping { .. });
            records.push(Record { kind: if is_mapping { Kind::Nothing } else { record.kind }, ..record });
        }
        let Some(backup) = self.life.backup.take() else { return Ok(false) };
        backup.withheld.iter().for_each(|&block| self.life.taken[block] = false);
        self.archive = Some(Archive {
            superblock: Superblock { log_end: backup.cut + records.len() as u32 - 1, ..superblock },
            words: backup.words,
            current_to: backup.current_to,
            images: backup.copies,
            log: records,
            history: self.history.clone(),
        });
        self.note(|| format!("the backup ends with log to {end}"));
        Ok(true)
    }

    /// Makes the database of the last backup, in the stead of the present one. Middle tier and
    /// ring remain as they are.
    pub fn restore(&mut self, devices: Devices) -> Outcome {
        let Some(archive) = &self.archive else { return Ok(false) };
        let mut superblock = archive.superblock;
        self.timelines += 1;
        if !self.flags.has(Flag::RestoreKeepsTimeline) {
            superblock.timeline = self.timelines;
        }
        let mut disk = Disk::new();
        for record in &archive.log {
            disk.log[(record.lsn % superblock.capacity) as usize] = Cell::new(Some(*record));
        }
        disk.log_length = Cell::new(superblock.capacity);
        let unused = Image { is_torn: true, page: NO_PAGE, ..disk.blocks[0].get() };
        disk.blocks = vec![Cell::new(unused); BLOCKS];
        for (word, image) in archive.words.iter().zip(archive.images) {
            if let (Some(block), Some(image)) = (word.block, image) {
                disk.blocks[block] = Cell::new(image);
            }
        }
        disk.chunks = chunks_of(&archive.words);
        for chunk in disk.chunks.iter_mut().flatten() {
            let content = chunk.get();
            *chunk = Cell::new(crate::disk::Chunk { current_to: archive.current_to, ..content });
        }
        disk.superblocks = [0, 1].map(|generation| Cell::new(Superblock { generation, ..superblock }));
        let old = std::mem::take(&mut self.disk);
        self.disk = disk.with_memory_of(old);
        self.history = archive.history.clone();
        self.note(|| format!("the backup is restored, timeline {}", superblock.timeline));
        self.recover(devices)?;
        Ok(true)
    }

    /// Copies the files at one moment, without tier and ring.
    pub fn copy_files(&mut self) -> Outcome {
        self.copy = Some(FileCopy { disk: self.disk.copy_of_files(), history: self.history.clone() });
        self.note(|| "the files are copied".to_owned());
        Ok(true)
    }

    /// Puts the copy in the stead of the present files. If it names the ring, that must be of its
    /// life; but within a life nobody notices that the ring has gone on, so that is left out.
    pub fn put_back(&mut self, devices: Devices) -> Outcome {
        let Some(copy) = &self.copy else { return Ok(false) };
        let (superblock, _) = copy.disk.newest_superblock()?;
        let is_present = superblock.life == self.ring_life && !self.lacks(Flag::PutBackWithinLife);
        if superblock.names_ring && (is_present || !self.is_ring_of(&superblock)) {
            return Ok(false);
        }
        let (disk, history) = (copy.disk.clone(), copy.history.clone());
        let old = std::mem::take(&mut self.disk);
        self.disk = disk.with_memory_of(old);
        self.history = history;
        self.note(|| "THE COPY OF THE FILES IS PUT BACK".to_owned());
        self.recover(devices)?;
        Ok(true)
    }
}
