//! Settings of the middle tier.

use std::sync::Arc;

use terrace_block::{Migrate, NodeSet, SimulatedMemory, Time};

use super::Builder;
use crate::backend::Backend;
use crate::buffer::{MiddleOptions, NodeOptions};
use crate::error::{Error, Result};
use crate::ids::SizeClass;
use crate::middle::{Middle, MiddleKind, nodes_of, with_room};
use crate::migration::{Choice, CleanVictims};

impl Builder {
    /// Memory between DRAM and the store, for pages of the database's own size ([`Builder::page_size`]) alone. Pages of other sizes, of
    /// tables or of long values, live in DRAM and the store; an event warns of them, and [`crate::MiddleStats::other_sizes`] counts
    /// them. The tier keeps its size until the database is closed: [`Db::set_dram`](crate::Db::set_dram) does not change it. It is no
    /// part of the budget ([`Builder::dram`]); what is known of its frames is. Default: what the environment variable `TERRACE_MIDDLE` says, or else none.
    pub fn middle(mut self, middle: Middle) -> Self {
        self.middle = Some(middle);
        self.no_middle = false;
        self
    }

    /// DRAM and the store alone, whatever the environment variable `TERRACE_MIDDLE` says.
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

    /// How pages move between DRAM, the middle tier and the store. Without a middle tier it means nothing. Default:
    /// [`Choice::Adaptive`].
    pub fn policy(mut self, policy: Choice) -> Self {
        self.policy = Some(policy);
        self
    }

    /// What is done with pages that leave DRAM and need not be written. Default: what the paper does that the policy is from
    /// ([`Choice::clean_victims`]).
    pub fn clean_victims(mut self, clean_victims: CleanVictims) -> Self {
        self.clean_victims = Some(clean_victims);
        self
    }

    /// Pages that an admission queue remembers, which decides in place of the probability `N_w` which pages go from DRAM to the
    /// middle tier. Default: half as many as the middle tier has frames with [`Choice::HyMem`], and none with other policies.
    pub fn admission_queue(mut self, pages: u64) -> Self {
        self.admission_queue = Some(pages);
        self
    }

    /// The NUMA nodes that frames in DRAM are on, page by page in turn: preferred when memory is first touched, refused at open where they
    /// have no room for the budget. What the system puts elsewhere all the same is counted in [`crate::Stats::misplaced_pages`]. Default:
    /// where the system puts it, as a rule on the node of the thread that touches it first.
    ///
    /// ```
    /// use terrace::{Backend, Db, MemoryDirectory};
    ///
    /// for backend in Backend::ALL {
    ///     let builder = Db::builder().directory(std::sync::Arc::new(MemoryDirectory::new())).dram(4 << 20);
    ///     let db = builder.backend(backend).dram_nodes("0".parse()?).open("")?;
    ///     assert_eq!(db.stats().misplaced_pages, 0);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dram_nodes(mut self, nodes: NodeSet) -> Self {
        self.dram_nodes = Some(nodes);
        self
    }

    /// How the memory of pages goes from the nodes of one tier to those of the other, with [`crate::Backend::Mapped`] and a middle tier
    /// of the kind [`crate::MiddleKind::Numa`]. Without both no memory moves, and [`Builder::open`] refuses it with
    /// [`crate::Error::Config`]. [`Migrate::Copy`] takes up to 64 KiB beside the budget for each thread. Default: [`Migrate::Batch`].
    ///
    /// ```
    /// use terrace::{Backend, Db, MemoryDirectory, Migrate};
    ///
    /// let builder = Db::builder().directory(std::sync::Arc::new(MemoryDirectory::new())).dram(4 << 20);
    /// let builder = builder.backend(Backend::Mapped).middle("numa:0,4MiB".parse()?);
    /// let db = builder.migrate(Migrate::Mbind).open("")?;
    /// assert_eq!(db.stats().middle.unwrap().memory_moves.pages, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn migrate(mut self, way: Migrate) -> Self {
        self.migrate = Some(way);
        self
    }

    /// The time in which accesses to simulated memory ([`crate::MiddleKind::Simulated`]) take as long as they would there. Default:
    /// the machine's, in which who accesses it waits.
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

    /// What a pool with pages of `class` is to be told of the middle tier, if there is one.
    pub(crate) fn middle_options(&self, class: SizeClass) -> Result<Option<MiddleOptions>> {
        let (middle, choice) = match &self.middle {
            Some(middle) => (middle.clone(), Choice::default()),
            None if self.no_middle => return Ok(None),
            None => match Middle::of_environment()? {
                Some(said) => said,
                None => return Ok(None),
            },
        };
        let choice = self.policy.unwrap_or(choice);
        middle.options(class, choice, self.clean_victims, self.admission_queue).map(Some)
    }

    fn middle_or_default(&self) -> Result<Option<Middle>> {
        match &self.middle {
            Some(middle) => Ok(Some(middle.clone())),
            None if self.no_middle => Ok(None),
            None => Ok(Middle::of_environment()?.map(|(middle, _)| middle)),
        }
    }

    /// What the memory of the middle tier costs, if there is one that is simulated.
    pub(crate) fn middle_memory(&self) -> Result<Option<Arc<SimulatedMemory>>> {
        let memory = |middle: Middle| match middle.kind() {
            MiddleKind::Simulated(profile) => {
                Some(Arc::new(SimulatedMemory::new(profile.clone(), self.simulated_time.clone())))
            }
            MiddleKind::Numa(_) => None,
        };
        Ok(self.middle_or_default()?.and_then(memory))
    }

    /// Refuses a way for memory to move where none does.
    pub(crate) fn check_migrate(&self) -> Result<()> {
        let Some(way) = self.migrate else { return Ok(()) };
        let refuse = |why: String| {
            let what = format!(
                "migrate is {way}, but {why}; memory moves with mapped pages and a middle tier numa:NODES"
            );
            Err(Error::Config(what))
        };
        match (self.middle_or_default()?, self.backend_or_default()?) {
            (None, _) => refuse("there is no middle tier".to_owned()),
            (Some(middle), Backend::Mapped) if matches!(middle.kind(), MiddleKind::Numa(_)) => Ok(()),
            (Some(_), Backend::Frames) => refuse("the back end is frames".to_owned()),
            (Some(middle), _) => refuse(format!("the middle tier is {}", middle.kind())),
        }
    }

    /// The nodes that the middle tier is on, for pages of `class`, if it is on any. They have room for it.
    pub(crate) fn middle_nodes(&self, class: SizeClass) -> Result<Option<NodeSet>> {
        Ok(self.middle_or_default()?.map(|middle| nodes_of(&middle, class)).transpose()?.flatten())
    }

    /// The nodes that memory is on: DRAM, of which `dram_bytes` are for frames, and the middle tier, which is on `middle`.
    pub(crate) fn node_options(&self, middle: Option<NodeSet>, dram_bytes: u64) -> Result<NodeOptions> {
        let dram = self.dram_nodes.as_ref().map(|nodes| with_room(nodes, dram_bytes, "the DRAM tier"));
        Ok(NodeOptions { dram: dram.transpose()?, middle, migrate: self.migrate.unwrap_or_default() })
    }
}
