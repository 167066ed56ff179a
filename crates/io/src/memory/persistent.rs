//! Memory whose bytes outlive the process, or the power: a file mapped as words.
//!
//! | kind                         | outlives                | a line is safe after            |
//! |------------------------------|-------------------------|---------------------------------|
//! | [`PersistentKind::Dax`]      | the process and a power cut | its write-back and a fence  |
//! | [`PersistentKind::Shm`]      | the process             | the store                       |
//! | [`PersistentKind::Simulated`]| what its directory says | as its directory says           |
//!
//! A store reaches the processor's cache, and later, in any order, the memory. For an order, write
//! lines back and fence before the next store:
//!
//! ```text
//!   note(lines) -> store words -> write_back(lines) -> fence -> store the words that vouch for them
//! ```
//!
//! After `kill -9` the kernel has every executed store, so a fence of shared memory binds only the
//! compiler.
//!
//! The file has one opener at a time, all of its space, and a fixed length: a touch beyond it would
//! kill the process (SIGBUS). So does a touch of a line that the hardware has lost.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use super::numa::nodes::NodeSet;
use super::region::Region;
use flush::Flush;
use mapping::SharedMapping;

pub(crate) mod flush;
pub(crate) mod mapping;

/// What the bytes of a [`PersistentMemory`] outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistentKind {
    /// A file on persistent memory, mapped with `MAP_SYNC`: outlives a power cut.
    Dax,
    /// A file on tmpfs: outlives the process, not a power cut.
    Shm,
    /// Memory of this process that plays the part, as long as its directory keeps it.
    Simulated,
}

impl PersistentKind {
    /// What the bytes outlive, for messages.
    pub fn outlives(self) -> &'static str {
        match self {
            PersistentKind::Dax => "the process and a power cut",
            PersistentKind::Shm => "the process, but no power cut",
            PersistentKind::Simulated => "what its simulated directory says",
        }
    }
}

/// Knows what a power cut may leave of a simulated memory.
pub(crate) trait Observer: fmt::Debug + Send + Sync {
    /// The present content of these bytes is one that their lines may persist with.
    fn note(&self, range: Range<usize>);

    /// The lines of these bytes are on their way to the memory.
    fn write_back(&self, range: Range<usize>) -> io::Result<()>;

    /// What the calling thread wrote back is durable.
    fn fence(&self) -> io::Result<()>;
}

/// What makes lines durable.
#[derive(Debug)]
enum Durability {
    /// Nothing has to.
    Stores,
    /// Instructions of the processor.
    Lines(Flush),
    /// A simulation.
    Observed(Box<dyn Observer>),
}

/// A file of words that outlive the process; opened by
/// [`Directory::open_memory`](crate::Directory::open_memory).
///
/// ```
/// use std::sync::atomic::Ordering;
/// use terrace_io::{Directory, MemoryDirectory, OpenMode};
///
/// let directory = MemoryDirectory::new();
/// let memory = directory.open_memory("frames", 8192, OpenMode::CreateNew)?;
/// memory.note(0..8);
/// memory.words(0..8)[0].store(7, Ordering::Relaxed);
/// memory.persist(0..8)?;
/// drop(memory);
/// let again = directory.open_memory("frames", 0, OpenMode::Write)?;
/// assert_eq!(again.len(), 8192);
/// assert_eq!(again.words(0..8)[0].load(Ordering::Relaxed), 7);
/// # std::io::Result::Ok(())
/// ```
pub struct PersistentMemory {
    name: String,
    kind: PersistentKind,
    mapping: Arc<SharedMapping>,
    durability: Durability,
    /// Keeps others out until this is dropped.
    _lock: Option<Box<dyn Send + Sync>>,
}

impl PersistentMemory {
    /// `bytes` zeros that die with the process, of kind [`PersistentKind::Simulated`]; `bytes` is
    /// rounded up to 4096.
    ///
    /// ```
    /// use terrace_io::{PersistentKind, PersistentMemory};
    ///
    /// let memory = PersistentMemory::anonymous("frames", 1 << 20)?;
    /// assert_eq!((memory.name(), memory.kind()), ("anonymous:frames", PersistentKind::Simulated));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes, `OutOfMemory`, or what the system reports.
    pub fn anonymous(name: &str, bytes: usize) -> io::Result<Arc<PersistentMemory>> {
        let mapping = SharedMapping::anonymous(name, bytes as u64)?;
        let name = format!("anonymous:{name}");
        Ok(Arc::new(Self::of(name, PersistentKind::Simulated, Arc::new(mapping), None)))
    }

    /// A memory whose stores need no help.
    pub(crate) fn of(
        name: String,
        kind: PersistentKind,
        mapping: Arc<SharedMapping>,
        lock: Option<Box<dyn Send + Sync>>,
    ) -> Self {
        Self { name, kind, mapping, durability: Durability::Stores, _lock: lock }
    }

    /// The same memory, with lines that this processor's instructions write back.
    pub(crate) fn flushed_by(self, flush: Flush) -> Self {
        Self { durability: Durability::Lines(flush), ..self }
    }

    /// The same memory, under a simulation's eyes.
    pub(crate) fn observed_by(self, observer: Box<dyn Observer>) -> Self {
        Self { durability: Durability::Observed(observer), ..self }
    }

    /// The path, or `simulated:NAME` and the like, for error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length in bytes, a multiple of 4096.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What the bytes outlive.
    pub fn kind(&self) -> PersistentKind {
        self.kind
    }

    /// The instruction that writes lines back, such as `clwb`; `None` if none is needed.
    pub fn instruction(&self) -> Option<&'static str> {
        match &self.durability {
            Durability::Lines(flush) => Some(flush.name()),
            Durability::Stores | Durability::Observed(_) => None,
        }
    }

    /// The bytes of `range` as words, through a mapping of the whole file.
    ///
    /// # Panics
    /// If the range is not aligned to 8 or not inside.
    #[inline]
    pub fn words(&self, range: Range<usize>) -> &[AtomicU64] {
        self.mapping.words(range)
    }

    /// Puts `range.len()` bytes of the file, from `at` on, behind the addresses of `range` in
    /// `region`, beside [`PersistentMemory::words`].
    ///
    /// They stay there until the region ends, and outlive this handle and [`Region::release`]. A
    /// forked process lacks them: a touch there kills it.
    ///
    /// # Errors
    /// `InvalidInput` for ranges that are not aligned to 4096 or not inside, or what the system
    /// reports.
    pub fn map_over(&self, region: &Region, range: Range<usize>, at: usize) -> io::Result<()> {
        self.mapping.map_over(region, range, at).map_err(|error| {
            let what = format!("{}: cannot be mapped over reserved memory: {error}", self.name);
            io::Error::new(error.kind(), what)
        })
    }

    /// Prefers one node, or interleaves several, for the file's pages, and moves those elsewhere.
    /// Returns how many stayed. Pages in a region stay too, so call this before
    /// [`PersistentMemory::map_over`].
    ///
    /// A new file gets its space when it is opened, so hold a
    /// [`PreferredNodes`](crate::PreferredNodes) then: this moves what it has.
    ///
    /// ```
    /// use terrace_io::{NodeSet, PersistentMemory};
    ///
    /// let memory = PersistentMemory::anonymous("frames", 1 << 20)?;
    /// let nodes: NodeSet = "0".parse().unwrap();
    /// assert_eq!(memory.bind_to(&nodes)?, 0);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`Region::bind_to`]; `Unsupported` for [`PersistentKind::Dax`], which is where its
    /// hardware is.
    pub fn bind_to(&self, nodes: &NodeSet) -> io::Result<usize> {
        if self.kind == PersistentKind::Dax {
            let what = format!("{}: persistent memory is on the node of its hardware", self.name);
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        self.mapping.bind_to(nodes)
    }

    /// Says that stores to `range` follow: a line of a simulated memory may persist with its
    /// content before them. Others ignore it.
    ///
    /// # Panics
    /// If the range is not inside, for a simulated memory.
    #[inline]
    pub fn note(&self, range: Range<usize>) {
        if let Durability::Observed(observer) = &self.durability {
            self.check(&range);
            observer.note(range);
        }
    }

    /// Sends each line of `range` to the memory, which has it after the next
    /// [`PersistentMemory::fence`] of this thread.
    ///
    /// # Errors
    /// Only from a simulated disk: "power lost", or a planned fault.
    ///
    /// # Panics
    /// If the range is not inside.
    #[inline]
    pub fn write_back(&self, range: Range<usize>) -> io::Result<()> {
        self.check(&range);
        match &self.durability {
            Durability::Stores => {}
            Durability::Lines(flush) => self.mapping.write_back(range, *flush),
            Durability::Observed(observer) => return observer.write_back(range),
        }
        Ok(())
    }

    /// Waits until the memory has all lines that this thread wrote back. Stores before it never
    /// move behind it.
    ///
    /// # Errors
    /// As [`PersistentMemory::write_back`].
    #[inline]
    pub fn fence(&self) -> io::Result<()> {
        compiler_fence(Ordering::SeqCst);
        match &self.durability {
            Durability::Stores => {}
            Durability::Lines(flush) => flush.fence(),
            Durability::Observed(observer) => observer.fence()?,
        }
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// [`PersistentMemory::write_back`], then [`PersistentMemory::fence`].
    ///
    /// # Errors
    /// As [`PersistentMemory::write_back`].
    #[inline]
    pub fn persist(&self, range: Range<usize>) -> io::Result<()> {
        self.write_back(range)?;
        self.fence()
    }

    #[inline]
    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{}: bytes {range:?} of {}",
            self.name,
            self.len()
        );
    }
}

impl fmt::Debug for PersistentMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PersistentMemory")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}
