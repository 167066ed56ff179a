//! Redo: base contents, and the changes that they lack.

use crate::disk::{ABSENT, Content, Disk, Image, Kind, MappingWord, PAGES, Record};
use crate::flags::{Flag, Flags};
use crate::recovery::Analysis;
use crate::transactions::new_leaf;

/// Pages after redo.
#[derive(Debug)]
pub(crate) struct Redo {
    pub(crate) contents: [Option<Content>; PAGES],
    /// The frame that a page is based on, with the LSN that it has there.
    pub(crate) frames: [Option<(usize, u32)>; PAGES],
    pub(crate) rec_lsn: [u32; PAGES],
    pub(crate) changes: [Vec<u32>; PAGES],
}

/// Chooses base contents and redoes the log. A one-pass recovery (a planted bug) reads a base when
/// the first record of its page comes.
pub(crate) fn redo(
    disk: &Disk,
    flags: Flags,
    analysis: &Analysis,
    adopted: [Option<(usize, Content)>; PAGES],
) -> Result<Redo, String> {
    let mut redo = Redo {
        contents: adopted.map(|adopted| adopted.map(|(_, content)| content)),
        frames: adopted.map(|adopted| adopted.map(|(frame, content)| (frame, content.lsn))),
        rec_lsn: [0; PAGES],
        changes: Default::default(),
    };
    let one_pass = flags.has(Flag::BaseThroughOldMapping);
    let mut is_read = [false; PAGES];
    let mut words = analysis.chunk_words;
    if !one_pass {
        for page in 0..PAGES {
            redo.read_base(disk, page, analysis.words[page])?;
        }
    }
    for record in &analysis.records {
        if one_pass {
            analysis.apply_to(&mut words, record, flags);
        }
        // Redo must not need this: only a planted bug reads the page that a merge frees.
        let source = match record.kind {
            Kind::Merge { page, .. } => redo.contents[page],
            _ => None,
        };
        for page in pages_of(record.kind) {
            if one_pass && !std::mem::replace(&mut is_read[page], true) {
                redo.read_base(disk, page, words[page])?;
            }
            redo.apply(flags, analysis, record, page, source)?;
        }
    }
    for page in 0..PAGES {
        if one_pass {
            redo.read_base(disk, page, analysis.words[page])?;
        }
        if !analysis.words[page].is_allocated {
            redo.rec_lsn[page] = 0;
            redo.changes[page].clear();
        } else if redo.contents[page].is_none() {
            return Err(format!("page {page} is allocated and has no base"));
        }
    }
    Ok(redo)
}

fn pages_of(kind: Kind) -> Vec<usize> {
    match kind {
        Kind::Update { page, .. } | Kind::Compensation { page, .. } => vec![page],
        Kind::Split { page, .. } | Kind::Merge { page, .. } => vec![0, 1, page],
        _ => Vec::new(),
    }
}

impl Redo {
    fn read_base(&mut self, disk: &Disk, page: usize, word: MappingWord) -> Result<(), String> {
        let Some(block) = word.block.filter(|_| word.is_allocated && self.contents[page].is_none()) else {
            return Ok(());
        };
        let Image { page: found, content, is_torn } = disk.blocks[block].get();
        if is_torn || found != page || content.lsn != word.check {
            return Err(format!(
                "recovery reads block {block} as page {page} LSN {}: it has page {found} LSN {}, torn {is_torn}",
                word.check, content.lsn
            ));
        }
        self.contents[page] = Some(content);
        Ok(())
    }

    fn apply(
        &mut self,
        flags: Flags,
        analysis: &Analysis,
        record: &Record,
        page: usize,
        source: Option<Content>,
    ) -> Result<(), String> {
        let ignores = flags.has(Flag::RedoIgnoresAllocation);
        let is_outlived = !analysis.words[page].is_allocated || record.lsn < analysis.born[page];
        if is_outlived && !ignores {
            return Ok(());
        }
        match record.kind {
            Kind::Merge { page: freed, .. } if freed == page => {
                if ignores {
                    self.forget(page);
                }
                return Ok(());
            }
            Kind::Split { page: fresh, values } if fresh == page => {
                self.note_change(flags, page, record.lsn);
                if self.contents[page].is_none_or(|content| content.lsn < record.lsn) {
                    self.contents[page] = Some(new_leaf(record.lsn, values));
                    if ignores {
                        self.rec_lsn[page] = record.lsn;
                        self.changes[page] = vec![record.lsn];
                    }
                }
                return Ok(());
            }
            _ => {}
        }
        let Some(content) = self.contents[page] else {
            return Err(format!("page {page} has no base for record {}", record.lsn));
        };
        self.note_change(flags, page, record.lsn);
        if content.lsn < record.lsn {
            let changed = changed(flags, record, page, content, source)?;
            self.contents[page] = Some(Content { lsn: record.lsn, ..changed });
        }
        Ok(())
    }

    /// The image lacks the change, or may lack it: nobody knows the LSN of the image below a frame.
    fn note_change(&mut self, flags: Flags, page: usize, lsn: u32) {
        let lacks = self.contents[page].is_none_or(|content| content.lsn < lsn);
        let is_on_frame = self.frames[page].is_some() && !flags.has(Flag::RedoLeavesClean);
        if lacks || is_on_frame {
            if self.rec_lsn[page] == 0 {
                self.rec_lsn[page] = lsn;
            }
            self.changes[page].push(lsn);
        }
    }

    fn forget(&mut self, page: usize) {
        self.contents[page] = None;
        self.frames[page] = None;
        self.rec_lsn[page] = 0;
        self.changes[page].clear();
    }
}

/// `content` with the record's change.
fn changed(
    flags: Flags,
    record: &Record,
    page: usize,
    mut content: Content,
    source: Option<Content>,
) -> Result<Content, String> {
    match record.kind {
        Kind::Update { key, after, .. } => content.values[key] = after,
        Kind::Compensation { key, value, .. } if !flags.has(Flag::CompensationNotRedone) => {
            content.values[key] = value;
        }
        Kind::Split { page: fresh, .. } if page == 0 => content.right = fresh,
        Kind::Split { .. } => content.values[2..].fill(ABSENT),
        Kind::Merge { .. } if page == 0 => content.right = 0,
        Kind::Merge { .. } if flags.has(Flag::MergeReadsSource) => {
            let source =
                source.ok_or_else(|| format!("merge {} needs the page that it freed", record.lsn))?;
            content.values[2..].copy_from_slice(&source.values[2..]);
        }
        Kind::Merge { values, .. } => content.values[2..].copy_from_slice(&values),
        _ => {}
    }
    Ok(content)
}
