//! A trace in memory: chunks of requests with interned blocks.
//!
//! Blocks get dense numbers in order of appearance, so per-block state is an array. The trace's
//! reader numbers them once; all caches share the chunks. A request takes 12 bytes: the number with
//! bits for writes and continuations, and the trace's own block number, which few policies read.
//! Rare changes, of queries and hints, are [`Mark`]s between requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::trace::{Event, Query, Relation, Request, Trace};

use super::decode::Decoded;
use super::error::SimError;

/// Requests per chunk, except the last.
pub(super) const CHUNK_REQUESTS: usize = 1 << 16;

/// The bit of a number that marks a write.
const WRITE: u32 = 1 << 31;

/// The bit that marks a further block of the same request.
const CONTINUES: u32 = 1 << 30;

/// Most distinct blocks of a trace.
pub(super) const FOOTPRINT_MAX: usize = CONTINUES as usize - 1;

/// An event between two requests.
#[derive(Clone, Debug)]
pub(super) enum Mark {
    /// A query arrives, with its relations.
    Arrives(Arc<Query>),
    /// A query has ended: its process runs another.
    Ends(u32),
    /// The query of the following requests, if any.
    Current(Option<u32>),
}

#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Block number, and whether it is written.
    numbers: Vec<u32>,
    /// The trace's own block number.
    blocks: Vec<u64>,
    /// Each before the request of that index, in order.
    pub(super) marks: Vec<(usize, Mark)>,
    /// Blocks numbered by the end of this chunk.
    pub(super) footprint: usize,
    /// Whether upper halves of blocks are relations.
    pub(super) has_relations: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Interned {
    pub(super) number: u32,
    /// The trace's own block number.
    pub(super) block: u64,
    pub(super) write: bool,
    /// Belongs to the request before.
    pub(super) continues: bool,
}

impl Chunk {
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

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
    /// The sampled fraction, and the bound of sampled hashes; none for all blocks.
    sample: Option<(f64, u64)>,
    query: Option<u32>,
    /// The current request has a sampled block.
    any_of_request: bool,
    relations: Vec<Relation>,
    /// Blocks by relation: one more than the last page used.
    relation_blocks: BTreeMap<u32, u64>,
    has_relations: bool,
    requests: u64,
    trace_requests: u64,
    writes: u64,
    queries: Vec<Arc<Query>>,
    running: HashMap<u64, u32, FixedState>,
    /// Bytes of stored queries and relations.
    names_bytes: usize,
}

/// Most queries and relations, which are stored until the end.
const NAMES_MAX: usize = 1 << 20;

/// Most bytes of stored queries and relations: 256 MiB.
const NAMES_BYTES_MAX: usize = 1 << 28;

impl Chunks {
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
            trace_requests: 0,
            writes: 0,
            queries: Vec::new(),
            running: HashMap::default(),
            names_bytes: 0,
        }
    }

    /// Restarts with the same trace, reopened. Blocks keep their numbers.
    pub(super) fn again(self, trace: Trace) -> Chunks {
        let share = self.sample.map(|(share, _)| share);
        Chunks { numbers: self.numbers, ..Chunks::new(trace, share) }
    }

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
        self.trace_requests += u64::from(!request.continues);
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
        // The first sampled block of a request begins it.
        let continues = std::mem::replace(&mut self.any_of_request, true);
        let bits = if request.write { WRITE } else { 0 } | if continues { CONTINUES } else { 0 };
        chunk.numbers.push(number | bits);
        chunk.blocks.push(request.block);
        Ok(())
    }

    pub(super) fn has_relations(&self) -> bool {
        self.has_relations
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    pub(super) fn summary(&self) -> Summary {
        let share = self.sample.map_or(1.0, |(share, _)| share);
        Summary {
            requests: self.requests,
            trace_requests: self.trace_requests,
            writes: self.writes,
            footprint: (self.numbers.len() as f64 / share).round() as usize,
            relations: self.relations.clone(),
            relation_blocks: self.relation_blocks.iter().map(|(number, blocks)| (*number, *blocks)).collect(),
            queries: self.queries.clone(),
        }
    }
}

/// A hash with independent neighbours and a fixed sample: the finalizer of SplitMix64 (Steele, Lea
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

/// A summary of a trace.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Requests for one block each.
    pub requests: u64,
    /// Requests of the trace, each for one block or several.
    pub trace_requests: u64,
    /// Writes among those for one block.
    pub writes: u64,
    /// Distinct blocks, estimated from a sample.
    pub footprint: usize,
    /// The named relations.
    pub relations: Vec<Relation>,
    /// The used relations with minimum sizes: one more than the last block used.
    pub relation_blocks: Vec<(u32, u64)>,
    /// The queries in order of arrival.
    pub queries: Vec<Arc<Query>>,
}
