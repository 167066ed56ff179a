//! Why a batch reads a page.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadReason {
    /// A thread waits for it.
    Wanted,
    /// Read ahead: an access is likely.
    Ahead,
    /// Wanted, and passed once by the sweep.
    Overdue,
}

impl ReadReason {
    pub(crate) fn encode(read_reason: Option<ReadReason>) -> u64 {
        match read_reason {
            None => 0,
            Some(ReadReason::Wanted) => 1,
            Some(ReadReason::Ahead) => 2,
            Some(ReadReason::Overdue) => 3,
        }
    }

    pub(crate) fn decode(word: u64) -> Option<ReadReason> {
        match word {
            0 => None,
            1 => Some(ReadReason::Wanted),
            2 => Some(ReadReason::Ahead),
            _ => Some(ReadReason::Overdue),
        }
    }
}
