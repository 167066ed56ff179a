//! Page images on disk: where they are, how they are vouched for, and which space is free.

pub(crate) mod image;
pub(crate) mod page;
pub(crate) mod place;
pub(crate) mod space;
pub(crate) mod superblock;
