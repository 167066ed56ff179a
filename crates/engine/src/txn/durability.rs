//! When a commit returns to its caller.

/// When a commit returns.
///
/// ```
/// use terrace::{Db, Durability, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20);
/// let db = builder.durability(Durability::Buffered).open("")?;
/// let table = db.create_table("events")?;
/// table.put(b"1", b"not yet durable")?;
/// db.flush()?; // now it is
/// # Ok::<(), terrace::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Once it is durable: it survives a power cut.
    #[default]
    Sync,
    /// At once, visible to others before it is durable.
    ///
    /// A crash may lose the latest commits, each as a whole. It never loses one that returned
    /// before a surviving one began.
    Buffered,
}
