//! The database as a process has it, on devices that outlive the process.

use crate::disk::{BLOCKS, CHUNK_PAGES, Content, Disk, FRAMES, KEYS, MappingWord, PAGES, Record};
use crate::flags::{Flag, Flags};

/// Whether a step was possible, or how the database broke its promise.
pub type Outcome = Result<bool, String>;

/// Parts of the page table.
pub const CHUNKS: usize = PAGES / CHUNK_PAGES;

/// What a process is given beside its files: the middle tier, the log ring in persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Devices {
    Neither,
    Tier,
    /// The middle tier with all frames but the last.
    SmallTier,
    Ring,
    Both,
}

impl Devices {
    /// Whether the middle tier is there.
    pub fn has_tier(self) -> bool {
        self.frames() > 0
    }

    /// Its frames.
    pub fn frames(self) -> usize {
        match self {
            Devices::Tier | Devices::Both => FRAMES,
            Devices::SmallTier => FRAMES - 1,
            Devices::Neither | Devices::Ring => 0,
        }
    }

    /// Whether the ring is there.
    pub fn has_ring(self) -> bool {
        matches!(self, Devices::Ring | Devices::Both)
    }

    /// These, and the ring.
    pub fn and_ring(self) -> Self {
        if self.has_tier() { Devices::Both } else { Devices::Ring }
    }
}

/// What the process knows of a frame's seal word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Seal {
    /// After recovery, of a frame that was not adopted.
    Unknown,
    /// And that is durable.
    Unsealed,
    Sealed,
}

/// The part of a frame's header that is in DRAM.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Frame {
    pub page: Option<usize>,
    pub lsn: u32,
    pub seal: Seal,
    /// The body is durable.
    pub is_fenced: bool,
    /// Page and LSN are in the header, the seal word is next.
    pub is_sealing: bool,
}

impl Frame {
    /// A frame that holds no page.
    pub fn empty(seal: Seal) -> Self {
        Self { page: None, lsn: 0, seal, is_fenced: false, is_sealing: false }
    }
}

/// How far an image in flight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Progress {
    Written,
    Synced,
    /// The mapping record's LSN.
    Appended(u32),
}

/// An image in flight; its page is claimed.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ImageInFlight {
    pub page: usize,
    pub block: usize,
    pub old_block: Option<usize>,
    pub content: Content,
    pub progress: Progress,
    pub by_cleaner: bool,
}

/// A chunk's image in flight.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ChunkInFlight {
    pub is_synced: bool,
    pub slot: usize,
}

/// A transaction in its commit.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Transaction {
    pub id: u16,
    pub writes: Vec<(usize, u16)>,
    pub written: usize,
    pub first: u32,
    /// LSN of its commit record.
    pub commit: Option<u32>,
    /// Appended and not applied (a planted bug).
    pub unapplied: Option<Record>,
}

/// A transaction that recovery undoes.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Loser {
    pub transaction: u16,
    /// LSN, key, value before.
    pub undo: Vec<(u32, usize, u16)>,
    pub first: u32,
    /// LSN of its end record.
    pub end: Option<u32>,
}

/// A page that was freed by a record that may not be durable.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Freed {
    pub page: usize,
    pub block: Option<usize>,
    pub rec_lsn: u32,
    pub lsn: u32,
}

/// A superblock that is written and not synced.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PendingSuperblock {
    pub cut: u32,
    pub capacity: u32,
}

/// A log that doubles.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Growth {
    pub to: u32,
    /// The copies are durable.
    pub is_synced: bool,
}

/// A backup that runs.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Backup {
    pub cut: u32,
    /// The mapping when it began, current to `current_to`.
    pub words: [MappingWord; PAGES],
    pub current_to: u32,
    /// End of the durable log when it began.
    pub log_end: u32,
    pub copies: [Option<crate::disk::Image>; PAGES],
    /// Blocks freed meanwhile.
    pub withheld: Vec<usize>,
}

/// A finished backup.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Archive {
    pub superblock: crate::disk::Superblock,
    pub words: [MappingWord; PAGES],
    pub current_to: u32,
    pub images: [Option<crate::disk::Image>; PAGES],
    pub log: Vec<Record>,
    pub history: Vec<Committed>,
}

/// A copy of the files, without tier and ring.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct FileCopy {
    pub disk: Disk,
    pub history: Vec<Committed>,
}

/// The log of a life.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Log {
    /// The next LSN.
    pub tail: u32,
    /// The persistent watermark: acknowledge, seal, put in force, cut.
    pub durable: u32,
    /// The filed watermark: room in the ring. Without a ring it follows `durable`.
    pub filed: u32,
    /// Written to the file, and not synced.
    pub file_written: u32,
    pub epoch: u32,
    pub epoch_first: u32,
    pub cut: u32,
    pub capacity: u32,
    /// Drawn and not filled.
    pub unfilled: Vec<Record>,
    /// The next record is not filled at once.
    pub holds_next: bool,
    pub growth: Option<Growth>,
    pub has_ring: bool,
}

/// The page table's chunks of a life.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Chunks {
    /// First record that the image lacks; 0 for none.
    pub dirty: [u32; CHUNKS],
    /// Last record in the words in DRAM.
    pub last: [u32; CHUNKS],
    pub in_flight: [Option<ChunkInFlight>; CHUNKS],
    pub version: [u32; CHUNKS],
    pub slot: [usize; CHUNKS],
}

/// What ends with the process.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Life {
    pub is_open: bool,
    pub is_closing: bool,
    /// Stopped within a step: only its end may follow.
    pub is_dying: bool,
    pub log: Log,
    pub timeline: u32,
    /// Its number.
    pub number: u32,
    /// The ring has no older life any more.
    pub is_ring_claimed: bool,
    pub generation: u32,
    pub superblock_slot: usize,
    pub pending: Option<PendingSuperblock>,
    pub names_ring: bool,
    pub is_epoch_synced: bool,
    pub computed_cut: Option<u32>,
    pub has_tier: bool,
    /// Frames that may be used.
    pub frames_used: usize,
    /// Frames that recovery did not adopt are durably unsealed.
    pub are_others_unsealed: bool,
    pub is_tier_epoch_set: bool,
    pub frames: [Frame; FRAMES],
    pub pages: Pages,
    pub chunks: Chunks,
    pub images: Vec<ImageInFlight>,
    pub freed: Vec<Freed>,
    pub taken: [bool; BLOCKS],
    pub work: Work,
    pub backup: Option<Backup>,
}

/// Pages in a life.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Pages {
    /// In force.
    pub words: [MappingWord; PAGES],
    pub dram: [Option<Content>; PAGES],
    pub frame_of: [Option<usize>; PAGES],
    /// First change that the image lacks; 0 for a clean page.
    pub rec_lsn: [u32; PAGES],
    /// All changes that the image lacks.
    pub changes: [Vec<u32>; PAGES],
}

impl Default for MappingWord {
    fn default() -> Self {
        Self::FREE
    }
}

/// Work on pages.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Work {
    pub transactions: Vec<Transaction>,
    /// A split or merge that is appended and not applied.
    pub restructuring: Option<Record>,
    pub losers: Vec<Loser>,
}

/// A transaction with a commit record.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Committed {
    pub transaction: u16,
    pub writes: Vec<(usize, u16)>,
    pub is_acknowledged: bool,
    pub lsn: u32,
}

/// A process and its devices, and what must never be lost.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct World {
    pub disk: Disk,
    pub life: Life,
    pub flags: Flags,
    /// In the order of commit records.
    pub history: Vec<Committed>,
    pub transactions_begun: u16,
    pub archive: Option<Archive>,
    /// The database's files as they were once.
    pub copy: Option<FileCopy>,
    /// Timelines begun.
    pub timelines: u32,
    /// Lives begun.
    pub lives: u32,
    /// The last one that wrote to the ring.
    pub ring_life: u32,
    pub crashes: u64,
    /// One line per step, if wanted.
    pub trace: Option<Vec<String>>,
}

impl World {
    /// A new database, opened with the middle tier and without a ring.
    pub fn new(flags: Flags, is_traced: bool) -> Self {
        let disk = Disk::new();
        let words = [MappingWord::at(0, 0), MappingWord::at(1, 0), MappingWord::FREE, MappingWord::FREE];
        let pages = Pages { words, ..Pages::default() };
        let mut taken = [false; BLOCKS];
        taken[..2].fill(true);
        let superblock = disk.superblocks[1].get();
        let log = Log::at_recovery(&superblock, 0, false);
        let life = Life {
            is_open: true,
            is_closing: false,
            is_dying: false,
            log,
            timeline: superblock.timeline,
            number: superblock.life,
            is_ring_claimed: true,
            generation: superblock.generation,
            superblock_slot: 1,
            pending: None,
            names_ring: false,
            is_epoch_synced: true,
            computed_cut: None,
            has_tier: true,
            frames_used: FRAMES,
            are_others_unsealed: true,
            is_tier_epoch_set: true,
            frames: [Frame::empty(Seal::Unsealed); FRAMES],
            pages,
            chunks: Chunks { version: [1; CHUNKS], ..Chunks::default() },
            images: Vec::new(),
            freed: Vec::new(),
            taken,
            work: Work::default(),
            backup: None,
        };
        Self {
            disk,
            life,
            flags,
            history: Vec::new(),
            transactions_begun: 0,
            archive: None,
            copy: None,
            timelines: 1,
            lives: 1,
            ring_life: 0,
            crashes: 0,
            trace: is_traced.then(Vec::new),
        }
    }

    /// Whether the rule is left out.
    pub fn lacks(&self, flag: Flag) -> bool {
        self.flags.has(flag)
    }

    /// Adds a line to the trace.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(line());
        }
    }

    /// The present content of a page.
    ///
    /// # Errors
    /// The image that the mapping word means is not in its block.
    pub fn content(&self, page: usize) -> Result<Content, String> {
        let pages = &self.life.pages;
        if let Some(content) = pages.dram[page] {
            return Ok(content);
        }
        if let Some(frame) = pages.frame_of[page] {
            return Ok(self.disk.body(frame, self.life.frames[frame].lsn));
        }
        match self.image(page, pages.words[page])? {
            Some(content) => Ok(content),
            None => Err(format!("page {page} has no image")),
        }
    }

    /// The image that a mapping word means; none if it has none.
    ///
    /// # Errors
    /// It is not in its block.
    pub fn image(&self, page: usize, word: MappingWord) -> Result<Option<Content>, String> {
        let Some(block) = word.block else { return Ok(None) };
        let image = self.disk.blocks[block].get();
        if image.is_torn || image.page != page || image.content.lsn != word.check {
            let (found, lsn, is_torn) = (image.page, image.content.lsn, image.is_torn);
            return Err(format!(
                "block {block} should have page {page} LSN {}: has page {found} LSN {lsn}, torn {is_torn}",
                word.check
            ));
        }
        Ok(Some(image.content))
    }

    /// The leaf that has a key.
    ///
    /// # Errors
    /// As for [`World::content`].
    pub fn leaf_of(&self, key: usize) -> Result<usize, String> {
        let root = self.content(0)?;
        Ok(if key >= KEYS / 2 && root.right != 0 { root.right } else { 1 })
    }

    /// Changes a page under its exclusive latch, where it is.
    pub fn put(&mut self, page: usize, content: Content) {
        let pages = &mut self.life.pages;
        if pages.rec_lsn[page] == 0 {
            pages.rec_lsn[page] = content.lsn;
        }
        pages.changes[page].push(content.lsn);
        let frame = pages.frame_of[page];
        if let Some(frame) = frame {
            self.end_sealing(frame);
        }
        match frame {
            Some(frame) if self.life.pages.dram[page].is_none() => self.fill_frame(frame, page, content),
            _ => self.life.pages.dram[page] = Some(content),
        }
    }

    /// Gives a block back, unless a backup may read it.
    pub fn free_block(&mut self, block: usize) {
        let withholds = !self.lacks(Flag::BackupReadsFreedBlocks);
        match &mut self.life.backup {
            Some(backup) if withholds => backup.withheld.push(block),
            _ => self.life.taken[block] = false,
        }
    }

    /// Takes a free block.
    pub fn take_block(&mut self) -> Option<usize> {
        let block = self.life.taken.iter().position(|taken| !taken)?;
        self.life.taken[block] = true;
        Some(block)
    }

    /// Whether nothing may be appended yet, or any more.
    pub fn is_blocked(&self) -> bool {
        let life = &self.life;
        let epoch = life.is_epoch_synced || self.lacks(Flag::AppendBeforeEpochSync);
        let tier = !life.has_tier || life.is_tier_epoch_set || self.lacks(Flag::AppendBeforeTierEpoch);
        let ring = !life.log.has_ring || life.is_ring_claimed;
        !epoch || !tier || !ring || life.is_closing
    }

    /// Acts on a durable end that has moved.
    pub fn absorb_durable(&mut self) {
        let durable = self.life.log.durable;
        let (done, waiting) = self.life.freed.iter().copied().partition(|freed| freed.lsn <= durable);
        let done: Vec<Freed> = done;
        self.life.freed = waiting;
        for freed in done {
            if let Some(block) = freed.block {
                self.free_block(block);
            }
            if let Some(frame) = self.life.pages.frame_of[freed.page].take() {
                if !self.lacks(Flag::KeepSealOfFreed) {
                    self.unseal(frame);
                }
                self.life.frames[frame] = Frame::empty(self.life.frames[frame].seal);
            }
        }
        self.life.work.losers.retain(|loser| loser.end.is_none_or(|end| end > durable));
        if self.life.is_open {
            let early = self.lacks(Flag::AcknowledgeEarly);
            for committed in &mut self.history {
                committed.is_acknowledged |= committed.lsn <= durable || early;
            }
        }
        self.life.work.transactions.retain(|transaction| transaction.commit.is_none_or(|lsn| lsn > durable));
    }
}
