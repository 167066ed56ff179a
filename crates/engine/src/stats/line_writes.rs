//! Write counts per line of the middle tier.

/// Write counts per 64-byte line of a simulated middle tier ([`crate::Db::line_writes`]).
///
/// A page that enters writes all lines of its frame.
///
/// ```
/// use terrace::{Db, MemoryDirectory};
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let builder = Db::builder().directory(directory).dram(4 << 20);
/// let builder = builder.middle("simulated:dram,8MiB".parse()?);
/// let db = builder.policy("0,0,1,1".parse()?).open("")?;
/// let table = db.create_table("t")?;
/// let before = db.line_writes().unwrap();
/// for value in 0..100u64 {
///     table.put("k", value.to_le_bytes())?;
/// }
/// let writes = db.line_writes().unwrap().since(&before);
/// assert!(writes.max() >= 90 && writes.total() >= writes.max());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineWrites(Vec<LinesOfSize>);

/// Line writes of the frames of one page size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinesOfSize {
    lines_per_page: u64,
    /// Per frame: writes of all lines.
    pages: Vec<u32>,
    /// Per frame: further writes of each line, if any.
    lines: Vec<Option<Box<[u32]>>>,
}

impl LinesOfSize {
    pub(crate) fn new(
        lines_per_page: u64,
        frames: impl Iterator<Item = (u32, Option<Box<[u32]>>)>,
    ) -> LinesOfSize {
        let (pages, lines) = frames.unzip();
        LinesOfSize { lines_per_page, pages, lines }
    }

    fn total(&self) -> u64 {
        let pages: u64 = self.pages.iter().map(|&count| u64::from(count)).sum();
        let lines = self.lines.iter().flatten().flat_map(|lines| lines.iter());
        pages * self.lines_per_page + lines.map(|&count| u64::from(count)).sum::<u64>()
    }

    fn max(&self) -> u64 {
        let most = |lines: &Option<Box<[u32]>>| lines.as_ref().and_then(|lines| lines.iter().max().copied());
        let by_frame = self.pages.iter().zip(&self.lines);
        by_frame
            .map(|(&pages, lines)| u64::from(pages) + u64::from(most(lines).unwrap_or(0)))
            .max()
            .unwrap_or(0)
    }

    fn since(&self, earlier: &LinesOfSize) -> LinesOfSize {
        // The frames of a size have no counts before its first write.
        if earlier.pages.is_empty() {
            return self.clone();
        }
        let less = |now: &[u32], before: &[u32]| -> Vec<u32> {
            now.iter().zip(before).map(|(now, before)| now.wrapping_sub(*before)).collect()
        };
        let lines = self.lines.iter().zip(&earlier.lines).map(|(now, before)| match (now, before) {
            (Some(now), Some(before)) => Some(less(now, before).into()),
            (now, _) => now.clone(),
        });
        LinesOfSize {
            lines_per_page: self.lines_per_page,
            pages: less(&self.pages, &earlier.pages),
            lines: lines.collect(),
        }
    }
}

impl LineWrites {
    /// `sizes`: of all page sizes, in order.
    pub(crate) fn new(sizes: Vec<LinesOfSize>) -> LineWrites {
        LineWrites(sizes)
    }

    /// Writes of all lines.
    pub fn total(&self) -> u64 {
        self.0.iter().map(LinesOfSize::total).sum()
    }

    /// Writes of the most-written line.
    pub fn max(&self) -> u64 {
        self.0.iter().map(LinesOfSize::max).max().unwrap_or(0)
    }

    /// Counts since `earlier`, line by line, of the same database.
    #[must_use]
    pub fn since(&self, earlier: &LineWrites) -> LineWrites {
        LineWrites(self.0.iter().zip(&earlier.0).map(|(now, before)| now.since(before)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes(frames: &[(u32, Option<&[u32]>)]) -> LineWrites {
        let frames = frames.iter().map(|&(pages, lines)| (pages, lines.map(Box::from)));
        LineWrites::new(vec![LinesOfSize::new(4, frames), LinesOfSize::default()])
    }

    #[test]
    fn a_page_writes_all_lines_and_the_most_are_those_of_one_line() {
        let now = writes(&[(2, None), (1, Some(&[0, 5, 0, 1])), (7, None)]);
        assert_eq!((now.total(), now.max()), (10 * 4 + 6, 7));
        let before = writes(&[(1, None), (0, Some(&[0, 1, 0, 1])), (6, None)]);
        let since = now.since(&before);
        assert_eq!((since.total(), since.max()), (3 * 4 + 4, 5));
        assert_eq!((writes(&[]).total(), writes(&[]).max()), (0, 0));
        let first = writes(&[(1, None), (0, None), (6, None)]);
        assert_eq!(now.since(&first).max(), 6, "lines of a frame that had none written");
    }

    #[test]
    fn lines_of_all_sizes_count() {
        let of_size =
            |lines, pages: &[u32]| LinesOfSize::new(lines, pages.iter().map(|&pages| (pages, None)));
        let before = LineWrites::new(vec![of_size(4, &[1, 2]), of_size(8, &[])]);
        let now = LineWrites::new(vec![of_size(4, &[1, 3]), of_size(8, &[5])]);
        assert_eq!((now.total(), now.max()), (4 * 4 + 5 * 8, 5));
        let since = now.since(&before);
        assert_eq!((since.total(), since.max()), (4 + 5 * 8, 5));
    }
}
