//! The events of a trace.

/// Longest line of a text trace, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Most blocks per request.
pub const REQUEST_BLOCKS_MAX: u64 = 1 << 20;

/// Default block size in bytes, for formats with positions in bytes or sectors.
pub const BLOCK_BYTES: u32 = 4096;

/// One access to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The block. Adjacent blocks have adjacent numbers. With relations, the upper half is the
    /// relation, the lower half the page.
    pub block: u64,
    /// A write instead of a read.
    pub write: bool,
    /// The block's table or index.
    pub relation: Option<u32>,
    /// The query, if any; a checkpoint has none.
    pub query: Option<u32>,
    /// Microseconds since the trace's time zero.
    pub time_us: Option<u64>,
    /// Belongs to the multi-block request of the event before.
    pub continues: bool,
}

/// A table, an index or another file of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Its number in requests.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its kind: `r` a table, `i` an index, `t` a table of large values, `f` a map of free or
    /// visible pages.
    pub kind: String,
}

/// A query that arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Its number in requests.
    pub number: u32,
    /// Microseconds since the trace's time zero.
    pub time_us: u64,
    /// The process that runs it.
    pub process: u64,
    /// Its kind, such as `q6`.
    pub template: String,
    /// The relations that it will use.
    pub relations: Vec<u32>,
}

/// An event of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A read or write of a block.
    Request(Request),
    /// A relation, before requests to it.
    Relation(Box<Relation>),
    /// A query, before its requests.
    Query(Box<Query>),
}
