//! Settings of the middle tier.

use std::path::Path;
use std::sync::Arc;

use terrace_io::{FileDirectory, Migrate, NodeSet, PersistentKind, SimulatedMemory, Time};

use super::Builder;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::middle::{Middle, MiddleKind, nodes_of, with_room};
use crate::migration::{Choice, CleanVictims, Migration};
use crate::pool::persistent::PersistentSource;
use crate::pool::{LINES_MAX, MiddleOptions, MiniPages, NodeOptions};

/// File of a simulated persistent middle tier, in the database's directory.
const MIDDLE: &str = "middle.terrace";

impl Builder {
    /// Adds a memory tier between DRAM and the store.
    ///
    /// Its bytes are divided among all page sizes in use, as those of DRAM are. A size that comes
    /// when the tier is full gets one frame, and more as its pages miss them. A page smaller than
    /// the database's own size ([`Builder::page_size`]) takes as many bytes as one of that
    /// ([`crate::MiddleClass::frame_bytes`]).
    ///
    /// A tier in a file ([`MiddleKind::Shm`], [`MiddleKind::Pmem`], and those simulated to stay)
    /// holds pages of the own size alone. Pages of other sizes, and of sizes without room for a
    /// page each, stay in DRAM and the store. A warning names each such size, and
    /// [`crate::MiddleStats::other_sizes`] counts the pages.
    ///
    /// Only frame headers are part of the budget ([`Builder::dram`]).
    /// [`Db::set_dram`](crate::Db::set_dram) does not resize it. Default: that of
    /// [`Builder::defaults_from`], else none.
    pub fn middle(mut self, middle: Middle) -> Self {
        self.middle = Some(middle);
        self.no_middle = false;
        self
    }

    /// Uses no middle tier, whatever [`Builder::defaults_from`] has found.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let db = Db::builder().directory(directory).dram(4 << 20).no_middle().open("")?;
    /// assert!(db.stats().middle.is_none());
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn no_middle(mut self) -> Self {
        self.middle = None;
        self.no_middle = true;
        self
    }

    /// Sets which pages move between the tiers, in place of [`Builder::policy`],
    /// [`Builder::clean_victims`] and [`Builder::admission_queue`].
    pub fn migration(mut self, migration: Migration) -> Self {
        self.migration = migration;
        self
    }

    /// Sets the migration policy of a middle tier. Default: [`Choice::Adaptive`].
    pub fn policy(mut self, policy: Choice) -> Self {
        self.migration.policy = Some(policy);
        self
    }

    /// Sets where clean pages evicted from DRAM go. Default: [`Choice::clean_victims`] of the
    /// policy.
    pub fn clean_victims(mut self, clean_victims: CleanVictims) -> Self {
        self.migration.clean_victims = Some(clean_victims);
        self
    }

    /// Sets the length of the admission queue, pages.
    ///
    /// The queue replaces the probability `N_w` of demotion. Default: half of the middle tier's
    /// frames with [`Choice::HyMem`], else no queue.
    pub fn admission_queue(mut self, pages: u64) -> Self {
        self.migration.admission_queue = Some(pages);
        self
    }

    /// Lets point reads load lines of `bytes` bytes from the middle tier instead of whole pages.
    ///
    /// A point read that promotes a leaf to DRAM then loads the lines that it touches. So does an
    /// update that keeps an entry's size. Any other access loads the rest. For small accesses to
    /// large pages, as by [`crate::Table::get_range`]. [`crate::MiddleStats::lines_loaded`] counts
    /// lines. `bytes` is 64, 128, 256 or 512, or 0 for whole pages. Default: that of
    /// [`Builder::defaults_from`], else 0.
    ///
    /// [`Builder::open`] refuses lines without a middle tier, if a page has more than 256 of them,
    /// and with [`crate::Backend::Mapped`] or `fifo-paper`, which keep one copy of a page.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(4 << 20).page_size(16 << 10);
    /// let db = builder.middle("simulated:dram,8MiB".parse()?).lines(64).open("")?;
    /// assert_eq!(db.stats().middle.unwrap().lines_loaded, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lines(mut self, bytes: u64) -> Self {
        self.lines = Some(bytes);
        self
    }

    /// Bytes of the lines of partial pages, if pages of `class` may be partial.
    ///
    /// # Errors
    /// [`Error::Config`] with the reason, unless the lines are a default.
    fn line_bytes(&self, class: SizeClass) -> Result<Option<u32>> {
        let Some(bytes) = self.lines.or(self.defaults.lines).filter(|&bytes| bytes > 0) else {
            return Ok(None);
        };
        let why = if ![64, 128, 256, 512].contains(&bytes) {
            "a line has 64, 128, 256 or 512 bytes".to_owned()
        } else if self.middle_or_default().is_none() {
            "there is no middle tier to load them from".to_owned()
        } else if self.backend_or_default() == Backend::Mapped {
            "a mapped page has one address in both tiers; use the back end frames".to_owned()
        } else if self.replacement.is_fifo_paper() {
            "fifo-paper keeps one copy of a page".to_owned()
        } else if class.page_bytes() > LINES_MAX * bytes as usize {
            format!("pages of {} bytes have more than {LINES_MAX} of them", class.page_bytes())
        } else {
            return Ok(Some(bytes as u32));
        };
        match self.lines {
            Some(_) => Err(Error::Config(format!("lines of {bytes} bytes: {why}"))),
            None => Ok(None),
        }
    }

    /// Keeps pages of which point reads want at most 16 lines in mini pages, several to a frame.
    ///
    /// More pages then have their hot lines in DRAM. A page that needs more lines gets a frame.
    /// Requires [`Builder::lines`], and pages and lines such that a frame has room for two mini
    /// pages; otherwise [`Builder::open`] fails with [`crate::Error::Config`]. Default: that of
    /// [`Builder::defaults_from`], else false.
    ///
    /// ```
    /// use terrace::{Db, MemoryDirectory};
    ///
    /// # let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(4 << 20).page_size(16 << 10);
    /// let builder = builder.middle("simulated:dram,8MiB".parse()?).lines(64);
    /// let db = builder.mini_pages(true).open("")?;
    /// assert_eq!(db.stats().middle.unwrap().promoted_mini, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mini_pages(mut self, mini_pages: bool) -> Self {
        self.minis = Some(mini_pages);
        self
    }

    /// Whether there are mini pages of `class`, with `lines` bytes a line.
    ///
    /// # Errors
    /// [`Error::Config`] with the reason, unless they are a default.
    fn has_minis(&self, class: SizeClass, lines: Option<u32>) -> Result<bool> {
        let why = match lines {
            _ if !self.minis.unwrap_or(self.defaults.minis) => return Ok(false),
            Some(bytes) if MiniPages::are_useful(class, bytes as usize) => return Ok(true),
            Some(bytes) => {
                let page_bytes = class.page_bytes();
                format!("a frame of {page_bytes} bytes has no room for two with lines of {bytes} bytes")
            }
            None => "they hold lines, and pages are whole".to_owned(),
        };
        match self.minis {
            Some(_) => Err(Error::Config(format!("mini pages: {why}"))),
            None => Ok(false),
        }
    }

    /// Interleaves DRAM frames over NUMA nodes, page by page.
    ///
    /// The nodes are preferred when memory is first touched. [`Builder::open`] fails if they lack
    /// room for the budget. [`crate::Stats::misplaced_pages`] counts pages that the system puts
    /// elsewhere. Default: the system's choice, normally the node of the thread that touches the
    /// page first.
    ///
    /// ```
    /// use terrace::{Backend, Db, MemoryDirectory};
    ///
    /// for backend in Backend::ALL {
    ///     let directory = std::sync::Arc::new(MemoryDirectory::new());
    ///     let builder = Db::builder().directory(directory).dram(4 << 20);
    ///     let db = builder.backend(backend).dram_nodes("0".parse()?).open("")?;
    ///     assert_eq!(db.stats().misplaced_pages, 0);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dram_nodes(mut self, nodes: NodeSet) -> Self {
        self.dram_nodes = Some(nodes);
        self
    }

    /// Sets how memory of pages moves between the nodes of two tiers.
    ///
    /// Requires [`crate::Backend::Mapped`] and a middle tier of kind [`crate::MiddleKind::Numa`];
    /// otherwise [`Builder::open`] fails with [`crate::Error::Config`]. [`Migrate::Copy`] takes up
    /// to 64 KiB per thread beyond the budget. Default: [`Migrate::Batch`].
    ///
    /// ```
    /// use terrace::{Backend, Db, MemoryDirectory, Migrate};
    ///
    /// let directory = std::sync::Arc::new(MemoryDirectory::new());
    /// let builder = Db::builder().directory(directory).dram(4 << 20);
    /// let builder = builder.backend(Backend::Mapped).middle("numa:0,4MiB".parse()?);
    /// let db = builder.migrate(Migrate::Mbind).open("")?;
    /// assert_eq!(db.stats().middle.unwrap().memory_moves.pages, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn migrate(mut self, way: Migrate) -> Self {
        self.migrate = Some(way);
        self
    }

    /// Sets the time in which simulated memory charges its accesses.
    ///
    /// See [`crate::MiddleKind::Simulated`]. Default: the machine's time; the accessing thread
    /// waits.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use terrace::{Db, MemoryDirectory, Mode, Time, VirtualTime};
    ///
    /// # let directory = Arc::new(MemoryDirectory::new());
    /// let time = Arc::new(VirtualTime::new(1));
    /// let builder = Db::builder().directory(directory).dram(4 << 20).mode(Mode::Inline);
    /// let builder = builder.middle("simulated:optane,8MiB".parse()?).policy("0,0,1,1".parse()?);
    /// let db = builder.simulated_time(Time::Virtual(Arc::clone(&time))).open("")?;
    /// db.create_table("t")?.put("k", "v")?;
    /// assert!(time.elapsed_ns() > 0, "pages are made in the middle tier, and changed there");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn simulated_time(mut self, time: Time) -> Self {
        self.simulated_time = time;
        self
    }

    /// Pool options of the middle tier for pages of `class`.
    pub(crate) fn middle_options(&self, class: SizeClass) -> Result<Option<MiddleOptions>> {
        let lines = self.line_bytes(class)?;
        let minis = self.has_minis(class, lines)?;
        let (middle, choice) = match &self.middle {
            Some(middle) => (middle.clone(), Choice::default()),
            None if self.no_middle => return Ok(None),
            None => match &self.defaults.middle {
                Some(found) => found.clone(),
                None => return Ok(None),
            },
        };
        let options = middle.options(class, self.migration.or_policy(choice))?;
        Ok(Some(MiddleOptions { lines, minis, ..options }))
    }

    fn middle_or_default(&self) -> Option<&Middle> {
        match &self.middle {
            Some(middle) => Some(middle),
            None if self.no_middle => None,
            None => self.defaults.middle.as_ref().map(|(middle, _)| middle),
        }
    }

    pub(crate) fn middle_memory(&self) -> Option<Arc<SimulatedMemory>> {
        let memory = |middle: &Middle| match middle.kind() {
            MiddleKind::Simulated(profile) => {
                Some(Arc::new(SimulatedMemory::new(profile.clone(), self.simulated_time.clone())))
            }
            _ => None,
        };
        self.middle_or_default().and_then(memory)
    }

    /// Where the middle tier lies, if it outlives the process and this opening may write.
    ///
    /// # Errors
    /// [`Error::Config`] with mapped pages, and for a file in a directory that cannot be opened.
    pub(crate) fn persistent_source(&self) -> Result<Option<PersistentSource>> {
        let Some(middle) = self.middle_or_default() else { return Ok(None) };
        let is_mapped = self.backend_or_default() == Backend::Mapped;
        let source = |directory, file: String, kind| {
            Ok(Some(PersistentSource { directory, file, kind, checks_bodies: true }))
        };
        match (middle.kind().file(), middle.kind()) {
            (Some(_), kind) if is_mapped => Err(Error::Config(format!(
                "the middle tier {kind} needs the back end frames: a mapped page has one address in both tiers"
            ))),
            _ if self.read_only || is_mapped => Ok(None),
            (Some((path, kind)), _) => {
                let refuse = |error| Error::Config(format!("the middle tier {}: {error}", path.display()));
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let directory = FileDirectory::open(folder.unwrap_or(Path::new("."))).map_err(refuse)?;
                let file = path.file_name().expect("checked when it was parsed").to_string_lossy();
                source(Some(Arc::new(directory)), file.into_owned(), kind)
            }
            (None, MiddleKind::Simulated(profile)) if profile.is_persistent() => {
                // A directory on a disk has no simulated memory.
                let directory = self.directory.clone().filter(|directory| !directory.is_local());
                source(directory, MIDDLE.to_owned(), PersistentKind::Simulated)
            }
            _ => Ok(None),
        }
    }

    /// Refuses a `migrate` setting where no memory moves.
    pub(crate) fn check_migrate(&self) -> Result<()> {
        let Some(way) = self.migrate else { return Ok(()) };
        let refuse = |why: String| {
            let what = format!(
                "migrate is {way}, but {why}; memory moves with mapped pages and a middle tier numa:NODES"
            );
            Err(Error::Config(what))
        };
        match (self.middle_or_default(), self.backend_or_default()) {
            (None, _) => refuse("there is no middle tier".to_owned()),
            (Some(middle), Backend::Mapped) if matches!(middle.kind(), MiddleKind::Numa(_)) => Ok(()),
            (Some(_), Backend::Frames) => refuse("the back end is frames".to_owned()),
            (Some(middle), _) => refuse(format!("the middle tier is {}", middle.kind())),
        }
    }

    pub(crate) fn middle_nodes(&self, class: SizeClass) -> Result<Option<NodeSet>> {
        Ok(self.middle_or_default().map(|middle| nodes_of(middle, class)).transpose()?.flatten())
    }

    /// NUMA nodes of DRAM, with `dram_bytes` for frames, and of the middle tier.
    pub(crate) fn node_options(&self, middle: Option<NodeSet>, dram_bytes: u64) -> Result<NodeOptions> {
        let dram = self.dram_nodes.as_ref().map(|nodes| with_room(nodes, dram_bytes, "the DRAM tier"));
        Ok(NodeOptions { dram: dram.transpose()?, middle, migrate: self.migrate.unwrap_or_default() })
    }
}
