//! The page sizes of a database: in use, and to make room for.

use super::superblock::Superblock;
use crate::ids::{ByClass, SizeClass};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageSizes {
    /// Class of the catalog, and the default of tables.
    pub(crate) own: SizeClass,
    /// Other classes in use.
    pub(crate) others: ByClass<bool>,
    pub(crate) most: Option<SizeClass>,
    pub(crate) most_values: Option<SizeClass>,
}

impl PageSizes {
    pub(crate) fn of(superblock: &Superblock) -> PageSizes {
        let own = SizeClass::of_bytes(superblock.page_bytes.into()).expect("the superblock was checked");
        PageSizes { others: superblock.page_ids_end.map(|end| end > 1), ..PageSizes::one(own) }
    }

    pub(crate) fn one(own: SizeClass) -> PageSizes {
        PageSizes { own, others: [false; SizeClass::COUNT], most: None, most_values: None }
    }

    pub(crate) fn in_use(&self) -> impl Iterator<Item = SizeClass> {
        SizeClass::all().filter(|&class| class == self.own || self.others[class.index()])
    }

    pub(crate) fn largest_used(&self) -> SizeClass {
        self.in_use().last().expect("its own is in use")
    }

    /// Largest node class that needs room. Settings for value pages count too, up to the largest
    /// node.
    pub(crate) fn largest_node(&self) -> SizeClass {
        let wanted = self.in_use().chain(self.most).chain(self.most_values);
        wanted.map(|class| class.min(SizeClass::LARGEST_NODE)).max().expect("its own is in use")
    }

    /// Largest class for values alone that needs room.
    pub(crate) fn largest_for_values(&self) -> Option<SizeClass> {
        self.in_use().chain(self.most_values).filter(|class| class.is_for_values()).max()
    }

    pub(crate) fn with_values(mut self, own: SizeClass, most: SizeClass) -> PageSizes {
        SizeClass::all()
            .filter(|class| (own..=most).contains(class))
            .for_each(|class| self.others[class.index()] = true);
        self
    }
}
