//! What outlives a process: log, page file, superblocks, middle tier and log ring.

use crate::cell::{Cell, PowerCut};

/// Pages: the root, a leaf, and two ids for a second leaf.
pub const PAGES: usize = 4;
/// Pages of one chunk of the page table.
pub const CHUNK_PAGES: usize = 2;
/// Keys of the database.
pub const KEYS: usize = 4;
/// Blocks for images; each holds one.
pub const BLOCKS: usize = 8;
/// Frames of the middle tier.
pub const FRAMES: usize = 2;
/// Records of one segment of the log, in which its space is reused.
pub const SEGMENT: u32 = 3;
/// Records of a new log.
pub const LOG_FIRST: u32 = 21;
/// Records of the log after it has doubled.
pub const LOG_LARGEST: u32 = 2 * LOG_FIRST;
/// Records of the log ring in persistent memory.
pub const RING: u32 = 7;
/// The value of a key that is in the other leaf.
pub const ABSENT: u16 = u16::MAX;
/// A page that is none.
pub const NO_PAGE: usize = 99;

/// The content of a page. Keys 2 and 3 move to the page `right` of the root by a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// LSN of the last change.
    pub lsn: u32,
    /// The second leaf; 0 for none.
    pub right: usize,
    /// By key.
    pub values: [u16; KEYS],
}

/// What a log record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Update {
        transaction: u16,
        page: usize,
        key: usize,
        before: u16,
        after: u16,
    },
    Commit {
        transaction: u16,
    },
    Compensation {
        transaction: u16,
        page: usize,
        key: usize,
        value: u16,
        next: u32,
    },
    End {
        transaction: u16,
    },
    Mapping {
        page: usize,
        block: usize,
        image_lsn: u32,
    },
    Split {
        page: usize,
        values: [u16; 2],
    },
    Merge {
        page: usize,
        values: [u16; 2],
    },
    /// A record without effect.
    Nothing,
    /// Half of the record persisted.
    Torn,
}

impl Kind {
    /// The page whose mapping it changes.
    pub fn maps(self) -> Option<usize> {
        match self {
            Kind::Mapping { page, .. } | Kind::Split { page, .. } | Kind::Merge { page, .. } => Some(page),
            _ => None,
        }
    }
}

/// A log record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub lsn: u32,
    /// Counted at each recovery.
    pub epoch: u32,
    /// What it says.
    pub kind: Kind,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// The page that it is of.
    pub page: usize,
    /// With the LSN.
    pub content: Content,
    /// Its checksum does not hold.
    pub is_torn: bool,
}

/// Where a page's image is. It has no LSN that could be compared, only a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingWord {
    /// Whether the page is allocated.
    pub is_allocated: bool,
    /// None if the page has no image.
    pub block: Option<usize>,
    /// Tells the image that is meant from others, as a checksum does. Its LSN serves for that.
    pub check: u32,
}

impl MappingWord {
    /// The word of a page that is free.
    pub const FREE: MappingWord = MappingWord { is_allocated: false, block: None, check: 0 };
    /// The word of an allocated page without an image.
    pub const UNWRITTEN: MappingWord = MappingWord { is_allocated: true, block: None, check: 0 };

    /// The word of a page with an image.
    pub fn at(block: usize, check: u32) -> Self {
        Self { is_allocated: true, block: Some(block), check }
    }
}

/// An image of a part of the page table.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// The newest counts.
    pub version: u32,
    /// It holds all records up to this LSN.
    pub current_to: u32,
    /// By page.
    pub words: [MappingWord; CHUNK_PAGES],
    /// Its checksum does not hold.
    pub is_torn: bool,
}

/// A superblock.
#[derive(Clone, Copy, Debug)]
pub struct Superblock {
    /// The newest counts.
    pub generation: u32,
    /// The log is read from here.
    pub cut: u32,
    /// Of the records from `epoch_first` on.
    pub epoch: u32,
    /// First LSN of the epoch.
    pub epoch_first: u32,
    /// The log was durable to this LSN.
    pub log_end: u32,
    /// Records of the log.
    pub capacity: u32,
    /// Changes when a backup is restored.
    pub timeline: u32,
    /// A random number of this life: copies of a database count the same epochs.
    pub life: u32,
    /// Whether the log's tail may be in a ring of persistent memory.
    pub names_ring: bool,
    /// Its checksum does not hold.
    pub is_torn: bool,
}

/// The first block of the middle tier's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierHead {
    /// Of the last life that the tier was attached in.
    pub epoch: u32,
    /// Number of that life.
    pub life: u32,
    /// Of the database.
    pub timeline: u32,
}

/// A life that the ring is of; it has room for two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RingLife {
    pub epoch: u32,
    pub life: u32,
    pub timeline: u32,
}

/// The header of a frame: one line of persistent memory.
#[derive(Clone, Copy, Debug)]
pub struct FrameHeader {
    /// Or [`NO_PAGE`].
    pub page: usize,
    /// LSN of the content.
    pub lsn: u32,
    /// The seal word.
    pub is_sealed: bool,
}

/// A line of a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Of the page, in the first line.
    pub right: usize,
    /// Of two keys.
    pub values: [u16; 2],
}

/// All devices.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Disk {
    pub log: Vec<Cell<Option<Record>>>,
    /// Records that the log's file has room for.
    pub log_length: Cell<u32>,
    pub blocks: Vec<Cell<Image>>,
    /// Two slots for each chunk.
    pub chunks: Vec<[Cell<Chunk>; 2]>,
    pub superblocks: [Cell<Superblock>; 2],
    pub tier: Cell<TierHead>,
    pub headers: Vec<Cell<FrameHeader>>,
    pub bodies: Vec<[Cell<Line>; 2]>,
    pub ring_lives: [Cell<Option<RingLife>>; 2],
    pub ring: Vec<Cell<Option<Record>>>,
}

const EMPTY: Content = Content { lsn: 0, right: 0, values: [ABSENT; KEYS] };

impl Disk {
    /// A new database: an empty root and one leaf with all keys.
    pub fn new() -> Self {
        let leaf = Content { values: [0; KEYS], ..EMPTY };
        let unused = Image { page: NO_PAGE, content: EMPTY, is_torn: true };
        let mut blocks = vec![Cell::new(unused); BLOCKS];
        let words = [MappingWord::at(0, 0), MappingWord::at(1, 0), MappingWord::FREE, MappingWord::FREE];
        for (page, content) in [EMPTY, leaf].into_iter().enumerate() {
            blocks[page] = Cell::new(Image { page, content, is_torn: false });
        }
        let superblock = Superblock {
            generation: 0,
            cut: 1,
            epoch: 1,
            epoch_first: 1,
            log_end: 0,
            capacity: LOG_FIRST,
            timeline: 1,
            life: 1,
            names_ring: false,
            is_torn: false,
        };
        let line = Cell::new(Line { right: 0, values: [0; 2] });
        Self {
            log: vec![Cell::new(None); LOG_LARGEST as usize],
            log_length: Cell::new(LOG_FIRST),
            blocks,
            chunks: chunks_of(&words),
            superblocks: [Cell::new(superblock), Cell::new(Superblock { generation: 1, ..superblock })],
            tier: Cell::new(TierHead { epoch: 1, life: 1, timeline: 1 }),
            headers: vec![Cell::new(FrameHeader { page: NO_PAGE, lsn: 0, is_sealed: false }); FRAMES],
            bodies: vec![[line.clone(), line]; FRAMES],
            ring_lives: [Cell::new(None), Cell::new(None)],
            ring: vec![Cell::new(None); RING as usize],
        }
    }

    /// The content of a frame's body.
    pub fn body(&self, frame: usize, lsn: u32) -> Content {
        let [first, second] = [0, 1].map(|line| self.bodies[frame][line].get());
        let values = [first.values[0], first.values[1], second.values[0], second.values[1]];
        Content { lsn, right: first.right, values }
    }

    /// Stores a content into a frame's body.
    pub fn set_body(&mut self, frame: usize, content: Content) {
        let [a, b, c, d] = content.values;
        self.bodies[frame][0].set(Line { right: content.right, values: [a, b] });
        self.bodies[frame][1].set(Line { right: 0, values: [c, d] });
    }

    /// Syncs the log's file.
    pub fn sync_log(&mut self) {
        self.log_length.sync();
        self.log.iter_mut().for_each(Cell::sync);
    }

    /// These files, with the persistent memory of `other`.
    pub fn with_memory_of(self, other: Disk) -> Self {
        let Disk { tier, headers, bodies, ring_lives, ring, .. } = other;
        Self { tier, headers, bodies, ring_lives, ring, ..self }
    }

    /// A copy of the files, of this moment. Its bytes are durable.
    pub fn copy_of_files(&self) -> Self {
        let mut copy = self.clone();
        copy.sync_log();
        copy.sync_pages();
        copy.superblocks.iter_mut().for_each(Cell::sync);
        copy
    }

    /// The newest valid superblock and its slot.
    ///
    /// # Errors
    /// There is none.
    pub fn newest_superblock(&self) -> Result<(Superblock, usize), String> {
        let [first, second] = [0, 1].map(|slot| self.superblocks[slot].get());
        match (first.is_torn, second.is_torn) {
            (true, true) => Err("both superblocks are torn".to_owned()),
            (false, false) if first.generation > second.generation => Ok((first, 0)),
            (false, true) => Ok((first, 0)),
            _ => Ok((second, 1)),
        }
    }

    /// Syncs the page file without the superblocks.
    pub fn sync_pages(&mut self) {
        self.blocks.iter_mut().for_each(Cell::sync);
        self.chunks.iter_mut().flatten().for_each(Cell::sync);
    }

    /// Loses what was not synced, as `cut` says.
    pub fn cut_power(&mut self, cut: PowerCut) {
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        for cell in &mut self.log {
            cell.cut_power(cut, next(), Some(|_| None));
        }
        for cell in &mut self.blocks {
            cell.cut_power(cut, next(), Some(|image| Image { is_torn: true, ..image }));
        }
        for cell in self.chunks.iter_mut().flatten() {
            cell.cut_power(cut, next(), Some(|chunk| Chunk { is_torn: true, ..chunk }));
        }
        for cell in &mut self.superblocks {
            cell.cut_power(cut, next(), Some(|superblock| Superblock { is_torn: true, ..superblock }));
        }
        for cell in &mut self.headers {
            cell.cut_power(cut, next(), None);
        }
        for cell in self.bodies.iter_mut().flatten() {
            cell.cut_power(cut, next(), None);
        }
        self.tier.cut_power(cut, next(), None);
        for cell in &mut self.ring_lives {
            cell.cut_power(cut, next(), None);
        }
        for cell in &mut self.ring {
            cell.cut_power(cut, next(), Some(torn));
        }
        self.log_length.cut_power(cut, next(), None);
        // A file that is short again has lost what was behind its end.
        let length = self.log_length.get() as usize;
        self.log[length..].iter_mut().for_each(|cell| *cell = Cell::new(None));
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

fn torn(record: Option<Record>) -> Option<Record> {
    record.map(|record| Record { kind: Kind::Torn, ..record })
}

/// Durable chunks with these mapping words.
pub fn chunks_of(words: &[MappingWord; PAGES]) -> Vec<[Cell<Chunk>; 2]> {
    let chunk = |words: &[MappingWord], version| {
        let words = [words[0], words[1]];
        Cell::new(Chunk { version, current_to: 0, words, is_torn: false })
    };
    words.chunks(CHUNK_PAGES).map(|words| [chunk(words, 1), chunk(words, 0)]).collect()
}
