//! The numbers everything else is named by. Newtypes, so that a page is never passed where a log position is meant.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Zero means "none" for every one of these numbers.
            pub const NONE: Self = Self(0);

            /// Whether this is [`Self::NONE`].
            pub fn is_none(self) -> bool {
                self.0 == 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// A page of the database. Ids are dense, start at 1, and are used again after a page is freed.
    PageId
}
id! {
    /// A log sequence number: the byte offset of a record in the endless stream of the log.
    Lsn
}
id! {
    /// A commit timestamp, which is also the transaction's id in the log. Never issued twice, not even across crashes.
    Timestamp
}
id! {
    /// A table. Ids are never used again.
    TableId
}
