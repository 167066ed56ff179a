//! The persistent middle tier: frames that hold a page, sealing and unsealing.

use crate::disk::{Content, FRAMES, FrameHeader, TierHead};
use crate::flags::Flag;
use crate::world::{Frame, Outcome, Seal, World};

impl World {
    /// Makes a frame durably unsealed. That this was done is remembered in DRAM, not read from the
    /// header: a killed process may have left a header that is not durable.
    pub fn unseal(&mut self, frame: usize) {
        let header = self.disk.headers[frame].get();
        let is_known = self.life.frames[frame].seal == Seal::Unsealed;
        if is_known || (self.lacks(Flag::UnsealByHeader) && !header.is_sealed) {
            self.life.frames[frame].seal = Seal::Unsealed;
            return;
        }
        self.disk.headers[frame].set(FrameHeader { is_sealed: false, ..header });
        if !self.lacks(Flag::UnsealWithoutFence) {
            self.disk.headers[frame].sync();
        }
        self.life.frames[frame].seal = Seal::Unsealed;
        self.note(|| format!("frame {frame} is unsealed"));
    }

    /// The process stops between the store that unseals and its fence.
    pub fn die_unsealing(&mut self, frame: usize) -> Outcome {
        let header = self.disk.headers[frame].get();
        if !self.life.has_tier || !header.is_sealed {
            return Ok(false);
        }
        self.disk.headers[frame].set(FrameHeader { is_sealed: false, ..header });
        self.life.is_dying = true;
        self.note(|| format!("frame {frame}: unsealing is stored and not fenced"));
        Ok(true)
    }

    /// Unseals the page's frame if it is older than an image that comes into force.
    pub fn unseal_older(&mut self, page: usize, image_lsn: u32) {
        if let Some(frame) = self.life.pages.frame_of[page]
            && self.life.frames[frame].lsn < image_lsn
        {
            self.unseal(frame);
        }
    }

    /// The frame stops holding a page.
    fn empty_frame(&mut self, frame: usize) {
        if !self.lacks(Flag::KeepSealOfVacated) {
            self.unseal(frame);
        }
        self.life.frames[frame] = Frame::empty(self.life.frames[frame].seal);
    }

    /// Stores a page's content into a frame.
    pub fn fill_frame(&mut self, frame: usize, page: usize, content: Content) {
        self.unseal(frame);
        self.disk.set_body(frame, content);
        let sealing = self.life.frames[frame].is_sealing;
        let empty = Frame::empty(Seal::Unsealed);
        self.life.frames[frame] = Frame { page: Some(page), lsn: content.lsn, is_sealing: sealing, ..empty };
        self.life.pages.frame_of[page] = Some(frame);
    }

    /// The page is latched exclusively, so nobody seals its frame.
    pub fn end_sealing(&mut self, frame: usize) {
        if !self.lacks(Flag::SealWithoutLatch) {
            self.life.frames[frame].is_sealing = false;
        }
    }

    /// Moves a page from DRAM to a frame.
    pub fn demote(&mut self, page: usize, frame: usize) -> Outcome {
        let holder = self.life.frames[frame].page;
        let is_free = holder.is_none_or(|holder| holder == page);
        if frame >= self.life.frames_used || !is_free || self.life.work.restructuring.is_some() {
            return Ok(false);
        }
        let Some(content) = self.life.pages.dram[page] else { return Ok(false) };
        if let Some(old) = self.life.pages.frame_of[page].filter(|&old| old != frame) {
            self.empty_frame(old);
        }
        self.life.frames[frame].is_sealing = false;
        self.fill_frame(frame, page, content);
        self.life.pages.dram[page] = None;
        self.note(|| format!("page {page} LSN {} is demoted to frame {frame}", content.lsn));
        Ok(true)
    }

    /// Writes a body back and fences it.
    pub fn fence_body(&mut self, frame: usize) -> Outcome {
        let Frame { page, is_fenced, .. } = self.life.frames[frame];
        if page.is_none() || is_fenced {
            return Ok(false);
        }
        self.disk.bodies[frame].iter_mut().for_each(crate::cell::Cell::sync);
        self.life.frames[frame].is_fenced = true;
        self.note(|| format!("the body of frame {frame} is fenced"));
        Ok(true)
    }

    /// Begins to seal: writes page and LSN into the header, and fences it.
    pub fn write_header(&mut self, frame: usize) -> Outcome {
        let Frame { page, lsn, seal, is_fenced, is_sealing } = self.life.frames[frame];
        let Some(page) = page else { return Ok(false) };
        // Until then the tier names another life, which may come back with a copy of its files.
        let is_named = self.life.is_tier_epoch_set || self.lacks(Flag::SealBeforeTierLife);
        // Of a freed page there may be no newer copy above, though its image is newer.
        let is_live = self.life.pages.words[page].is_allocated || self.lacks(Flag::SealFreedPage);
        let is_ready = is_named
            && is_live
            && (is_fenced || self.lacks(Flag::SealBeforeBodyFence))
            && (lsn <= self.life.log.durable || self.lacks(Flag::SealBeforeDurable));
        // A copy above is newer if the page changed since. Then the image in force may be newer.
        let is_older = self.life.pages.dram[page].is_some_and(|content| content.lsn != lsn);
        if seal != Seal::Unsealed || is_sealing || !is_ready || (is_older && !self.lacks(Flag::SealOlderCopy))
        {
            return Ok(false);
        }
        let header = self.disk.headers[frame].get();
        if self.lacks(Flag::SealWordFirst) {
            self.disk.headers[frame].set(FrameHeader { is_sealed: true, ..header });
        } else {
            self.disk.headers[frame].set(FrameHeader { page, lsn, is_sealed: false });
            self.disk.headers[frame].sync();
        }
        self.life.frames[frame].is_sealing = true;
        self.note(|| format!("frame {frame}: header has page {page} LSN {lsn}"));
        Ok(true)
    }

    /// Stores the seal word, and fences it.
    pub fn seal(&mut self, frame: usize) -> Outcome {
        let Frame { page, lsn, is_sealing, .. } = self.life.frames[frame];
        let Some(page) = page.filter(|_| is_sealing) else { return Ok(false) };
        let header = match self.lacks(Flag::SealWordFirst) {
            true => FrameHeader { page, lsn, is_sealed: true },
            false => FrameHeader { is_sealed: true, ..self.disk.headers[frame].get() },
        };
        self.disk.headers[frame].set(header);
        self.disk.headers[frame].sync();
        let known = &mut self.life.frames[frame];
        known.is_sealing = false;
        known.seal = Seal::Sealed;
        if self.lacks(Flag::SealMovesRecLsn) {
            self.life.pages.changes[page].retain(|&change| change > lsn);
            self.life.pages.rec_lsn[page] = 0;
        }
        self.note(|| format!("frame {frame} is sealed: page {} LSN {}", header.page, header.lsn));
        Ok(true)
    }

    /// Drops a page's copy in a frame.
    pub fn vacate(&mut self, frame: usize) -> Outcome {
        let Some(page) = self.life.frames[frame].page else { return Ok(false) };
        let pages = &self.life.pages;
        let is_clean = pages.rec_lsn[page] == 0 && pages.words[page].block.is_some();
        if !pages.words[page].is_allocated || !(pages.dram[page].is_some() || is_clean) {
            return Ok(false);
        }
        self.empty_frame(frame);
        self.life.pages.frame_of[page] = None;
        self.note(|| format!("frame {frame} has no page any more (page {page})"));
        Ok(true)
    }

    /// Copies a page into DRAM.
    pub fn load(&mut self, page: usize) -> Outcome {
        let pages = &self.life.pages;
        let is_busy = self.life.work.restructuring.is_some() || pages.dram[page].is_some();
        if !pages.words[page].is_allocated || is_busy {
            return Ok(false);
        }
        self.life.pages.dram[page] = Some(self.content(page)?);
        self.note(|| format!("page {page} is loaded"));
        Ok(true)
    }

    /// Drops a copy in DRAM that the frame below, or the image, has too.
    pub fn drop_copy(&mut self, page: usize) -> Outcome {
        let pages = &self.life.pages;
        let Some(content) = pages.dram[page] else { return Ok(false) };
        let is_below = match pages.frame_of[page] {
            Some(frame) => self.life.frames[frame].lsn == content.lsn,
            None => pages.rec_lsn[page] == 0 && pages.words[page].block.is_some(),
        };
        if !is_below || self.life.work.restructuring.is_some() {
            return Ok(false);
        }
        self.life.pages.dram[page] = None;
        self.note(|| format!("the copy of page {page} in DRAM is dropped"));
        Ok(true)
    }

    /// After recovery: unseals all frames that it did not adopt.
    pub fn unseal_others(&mut self) -> Outcome {
        if !self.life.has_tier || self.life.are_others_unsealed {
            return Ok(false);
        }
        let frames = if self.lacks(Flag::KeepSealBeyondEnd) { self.life.frames_used } else { FRAMES };
        for frame in 0..frames {
            if self.life.frames[frame].page.is_none() && !self.lacks(Flag::KeepSealOfUnadopted) {
                self.unseal(frame);
            }
        }
        self.life.are_others_unsealed = true;
        self.note(|| "frames without a page are unsealed".to_owned());
        Ok(true)
    }

    /// After recovery: the tier is of this life. Its frames count from now on, so what must not
    /// count is unsealed before.
    pub fn set_tier_epoch(&mut self) -> Outcome {
        let life = &self.life;
        let is_early = !life.is_epoch_synced && !self.lacks(Flag::TierEpochFirst);
        let is_unsealed = life.are_others_unsealed || self.lacks(Flag::TierEpochBeforeUnsealing);
        if !life.has_tier || life.is_tier_epoch_set || is_early || !is_unsealed {
            return Ok(false);
        }
        let (epoch, life, timeline) = (life.log.epoch, life.number, life.timeline);
        self.disk.tier.set(TierHead { epoch, life, timeline });
        self.disk.tier.sync();
        self.life.is_tier_epoch_set = true;
        self.note(|| format!("the tier has epoch {epoch}"));
        Ok(true)
    }
}
