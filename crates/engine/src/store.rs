//! Page images on disk: their location, verification and free space.

pub(crate) mod files;
pub(crate) mod image;
pub(crate) mod mapping_word;
pub(crate) mod names;
pub(crate) mod page;
pub(crate) mod page_sizes;
pub(crate) mod ring;
pub(crate) mod space;
pub(crate) mod superblock;
