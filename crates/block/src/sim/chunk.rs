//! A trace in memory: its requests in chunks, their blocks interned.
//!
//! Blocks get dense numbers in the order in which they are first seen, so that what a simulated cache knows of a block is
//! an element of an array. That happens once, by whoever reads the trace; all caches share the chunks. A request takes
//! 12 bytes: its number with a bit for writes and one for all but the first of several that are asked for together, and the block as the trace names it, which only policies that look at
//! places read. What changes seldom, the query and its hints, are [`Mark`]s between requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::trace::{Event, Query, Relation, Request, Trace};

use super::SimError;
use super::decode::Decoded;

/// Requests of a chunk, but for the last of a trace.
pub(super) const CHUNK_REQUESTS: usize = 1 << 16;

/// The bit of a number that says that the block is written.
const WRITE: u32 = 1 << 31;

/// The bit that says that the block was asked for together with the one before.
const CONTINUES: u32 = 1 << 30;

/// The most different blocks that a trace may have.
pub(super) const FOOTPRINT_MAX: usize = CONTINUES as usize - 1;

/// What happens between two requests.
#[derive(Clone, Debug)]
pub(super) enum Mark {
    /// A query arrives, and says what it will touch.
    Arrives(Arc<Query>),
    /// A query is over: its process runs another.
    Ends(u32),
    /// The requests from here on are of this query, or of none.
    Current(Option<u32>),
}

/// Consecutive requests of a trace.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Number of the block, and whether it is written.
    numbers: Vec<u32>,
    /// The block as the trace names it.
    blocks: Vec<u64>,
    /// Each before the request of that index, in their order.
    pub(super) marks: Vec<(usize, Mark)>,
    /// Blocks numbered up to the end of this chunk.
    pub(super) footprint: usize,
    /// Whether upper halves of blocks are relations.
    pub(super) has_relations: bool,
}

/// One request of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interned {
    /// The number of the block.
    pub(super) number: u32,
    /// The block as the trace names it.
    pub(super) block: u64,
    pub(super) write: bool,
    /// It was asked for together with the one before.
    pub(super) continues: bool,
}

impl Chunk {
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The requests of a range of indices.
    #[inline]
    pub(super) fn requests(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = Interned> {
        let pairs = self.numbers[range.clone()].iter().zip(&self.blocks[range]);
        pairs.map(|(word, block)| Interned {
            number: word & !(WRITE | CONTINUES),
            block: *block,
            write: word & WRITE != 0,
            continues: word & CONTINUES != 0,
        })
    }
}

/// Numbers blocks and cuts a trace into chunks.
pub(super) struct Chunks {
    events: Decoded,
    numbers: HashMap<u64, u32, FixedState>,
    /// Of the blocks simulated, and the hash below which a block is one; everything without a sample.
    sample: Option<(f64, u64)>,
    query: Option<u32>,
    /// A block of the latest request is in the sample.
    any_of_request: bool,
    relations: Vec<Relation>,
    /// Blocks of each relation: one more than the last page that was asked for.
    relation_blocks: BTreeMap<u32, u64>,
    has_relations: bool,
    requests: u64,
    writes: u64,
    queries: Vec<Arc<Query>>,
    /// The query that each process runs.
    running: HashMap<u64, u32, FixedState>,
    /// Bytes of what is kept of queries and relations.
    names_bytes: usize,
}

/// The most queries and relations a trace may have: what is kept of each stays until the end.
const NAMES_MAX: usize = 1 << 20;

/// The most bytes that queries and relations may take, with their names and lists, all together: 256 MiB.
const NAMES_BYTES_MAX: usize = 1 << 28;

impl Chunks {
    /// From the beginning of `trace`, of which a share of the blocks is taken.
    pub(super) fn new(trace: Trace, sample: Option<f64>) -> Chunks {
        Chunks {
            events: Decoded::new(trace),
            numbers: HashMap::default(),
            sample: sample.map(|share| (share, (share * u64::MAX as f64) as u64)),
            query: None,
            any_of_request: false,
            relations: Vec::new(),
            relation_blocks: BTreeMap::new(),
            has_relations: false,
            requests: 0,
            writes: 0,
            queries: Vec::new(),
            running: HashMap::default(),
            names_bytes: 0,
        }
    }

    /// Begins again with the same trace, opened anew. Blocks keep their numbers.
    pub(super) fn again(self, trace: Trace) -> Chunks {
        let share = self.sample.map(|(share, _)| share);
        Chunks { numbers: self.numbers, ..Chunks::new(trace, share) }
    }

    /// The next requests, or nothing after the last.
    pub(super) fn read(&mut self) -> Result<Option<Chunk>, SimError> {
        let mut chunk = Chunk {
            numbers: Vec::with_capacity(CHUNK_REQUESTS),
            blocks: Vec::with_capacity(CHUNK_REQUESTS),
            ..Chunk::default()
        };
        while chunk.len() < CHUNK_REQUESTS {
            match self.events.next().transpose()? {
                None => break,
                Some(Event::Request(request)) => self.request(&request, &mut chunk)?,
                Some(Event::Relation(relation)) => {
                    self.has_relations = true;
                    self.names_bytes += size_of::<Relation>() + relation.name.len() + relation.kind.len();
                    self.relations.push(*relation);
                    check(self.relations.len(), NAMES_MAX, "relations")?;
                    check(self.names_bytes, NAMES_BYTES_MAX, "bytes of relations and queries")?;
                }
                Some(Event::Query(query)) => {
                    let query: Arc<Query> = Arc::from(query);
                    let list_bytes = query.relations.len() * size_of::<u32>();
                    self.names_bytes += size_of::<Query>() + query.template.len() + list_bytes;
                    check(self.names_bytes, NAMES_BYTES_MAX, "bytes of relations and queries")?;
                    if let Some(ended) = self.running.insert(query.process, query.number) {
                        chunk.marks.push((chunk.len(), Mark::Ends(ended)));
                    }
                    self.queries.push(Arc::clone(&query));
                    check(self.queries.len(), NAMES_MAX, "queries")?;
                    chunk.marks.push((chunk.len(), Mark::Arrives(query)));
                }
            }
        }
        (chunk.footprint, chunk.has_relations) = (self.numbers.len(), self.has_relations);
        let is_empty = chunk.len() == 0 && chunk.marks.is_empty();
        Ok((!is_empty).then_some(chunk))
    }

    #[inline]
    fn request(&mut self, request: &Request, chunk: &mut Chunk) -> Result<(), SimError> {
        self.requests += 1;
        self.writes += u64::from(request.write);
        self.any_of_request &= request.continues;
        if let Some((_, limit)) = self.sample
            && scattered(request.block) > limit
        {
            return Ok(());
        }
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(request.block).or_insert(next);
        if number == next {
            check(self.numbers.len(), FOOTPRINT_MAX, "different blocks")?;
            if let Some(relation) = request.relation {
                let pages = (request.block & u64::from(u32::MAX)) + 1;
                let known = self.relation_blocks.entry(relation).or_default();
                *known = pages.max(*known);
                check(self.relation_blocks.len(), NAMES_MAX, "relations")?;
            }
        }
        if request.query != self.query {
            self.query = request.query;
            chunk.marks.push((chunk.len(), Mark::Current(request.query)));
        }
        self.has_relations |= request.relation.is_some();
        // Of a request whose first blocks are not in the sample the first that is begins it.
        let continues = std::mem::replace(&mut self.any_of_request, true);
        let bits = if request.write { WRITE } else { 0 } | if continues { CONTINUES } else { 0 };
        chunk.numbers.push(number | bits);
        chunk.blocks.push(request.block);
        Ok(())
    }

    /// Whether requests so far say which relation they are for.
    pub(super) fn has_relations(&self) -> bool {
        self.has_relations
    }

    /// Requests read so far, those that are not in the sample too.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// What was read so far comes to.
    pub(super) fn summary(&self) -> Summary {
        let share = self.sample.map_or(1.0, |(share, _)| share);
        Summary {
            requests: self.requests,
            writes: self.writes,
            footprint: (self.numbers.len() as f64 / share).round() as usize,
            relations: self.relations.clone(),
            relation_blocks: self.relation_blocks.iter().map(|(number, blocks)| (*number, *blocks)).collect(),
            queries: self.queries.clone(),
        }
    }
}

/// A hash of a block that makes neighbours independent, and the same sample everywhere: the finalizer of SplitMix64 (Steele, Lea
/// and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
fn scattered(block: u64) -> u64 {
    let mut word = block.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn check(count: usize, max: usize, what: &'static str) -> Result<(), SimError> {
    match count <= max {
        true => Ok(()),
        false => Err(SimError::TooMany { max, what }),
    }
}

/// What a trace comes to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Requests, each for one block.
    pub requests: u64,
    /// Those that write.
    pub writes: u64,
    /// Different blocks; an estimate where only a sample of them was looked at.
    pub footprint: usize,
    /// The relations that were named.
    pub relations: Vec<Relation>,
    /// The relations that were asked for, and how many blocks they have at least: one more than the last that was asked for.
    pub relation_blocks: Vec<(u32, u64)>,
    /// The queries that arrived, in their order.
    pub queries: Vec<Arc<Query>>,
}
