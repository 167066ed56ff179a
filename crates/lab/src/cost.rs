//! The cost of a hierarchy by the prices of the profiles (`docs/profiles.md`), and hierarchies of
//! equal cost.
//!
//! Prices are dollars per 10^9 bytes. DRAM, NUMA nodes (also DRAM chips) and files in memory have
//! the price of profile `dram`. Simulated tiers and caches have that of their profile. Files on a
//! disk, including a block cache's file, have that of [`DISK`], since no disk states its price. The
//! amount is what was requested: the whole DRAM budget, the middle tier's frames, the cache's
//! blocks, and the size of the files.
//!
//! **Equal cost.** Spitfire (SIGMOD 2021, sections 6.6 and 6.7) and the CXL paper (HardBD & Active
//! 2024, section IV) compare three [`Shape`]s. All have the same files, so their memory must cost
//! the same. A middle-store hierarchy accesses pages in the middle tier; the DRAM that the engine
//! still needs is counted.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use terrace::{CacheKind, Middle, MiddleKind};
use terrace_io::Profile;

use terrace_common::failure::{Failure, Outcome};
use terrace_common::units::show_size;

/// The profile that prices DRAM.
const DRAM: &str = "dram";
/// The profile that prices files on a disk.
const DISK: &str = "nvme-flash";
/// Bytes per gigabyte in prices.
const GIGABYTE: f64 = 1e9;

/// The cost of a configuration, by part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Always dollars.
    pub unit: &'static str,
    pub dram: Part,
    pub middle: Part,
    /// The block cache under the page file.
    pub cache: Part,
    /// Page file and log.
    pub store: Part,
}

/// The cost of one tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Part {
    /// The pricing profile; null for a missing tier or unknown memory.
    pub profile: Option<String>,
    pub bytes: u64,
    /// Dollars per 10^9 bytes.
    pub dollars_per_gb: f64,
    pub dollars: f64,
}

impl Cost {
    /// The cost of these bytes of DRAM, middle tier (of `kind`) and files. DRAM used as a cache
    /// costs the same.
    pub fn of(
        dram_bytes: u64,
        kind: Option<&MiddleKind>,
        middle_bytes: u64,
        store_bytes: u64,
        is_on_disk: bool,
    ) -> Outcome<Cost> {
        let store = named(if is_on_disk { DISK } else { DRAM })?;
        let (middle, before) = match kind {
            Some(kind) => {
                let profile = profile_of(kind)?;
                (Part::of(middle_bytes, &profile), profile.dram_cache_bytes())
            }
            None => (Part { bytes: middle_bytes, ..Part::default() }, 0),
        };
        Ok(Cost {
            unit: "dollars",
            dram: Part::of(dram_bytes.saturating_add(before), &named(DRAM)?),
            middle,
            cache: Part::default(),
            store: Part::of(store_bytes, &store),
        })
    }

    /// Adds a block cache of `bytes` bytes.
    pub fn with_cache(self, kind: &CacheKind, bytes: u64) -> Outcome<Cost> {
        let cache = match kind {
            CacheKind::Simulated(profile) => Part::of(bytes, profile),
            _ => Part::of(bytes, &named(DISK)?),
        };
        Ok(Cost { cache, ..self })
    }

    /// The total, unless a price is unknown.
    pub fn dollars(&self) -> Option<f64> {
        let is_known = self.middle.profile.is_some() || self.middle.bytes == 0;
        is_known.then_some(self.dram.dollars + self.middle.dollars + self.cache.dollars + self.store.dollars)
    }
}

impl Part {
    fn of(bytes: u64, profile: &Profile) -> Part {
        let dollars_per_gb = profile.price_per_gb();
        Part {
            profile: Some(profile.name().to_owned()),
            bytes,
            dollars_per_gb,
            dollars: bytes as f64 / GIGABYTE * dollars_per_gb,
        }
    }
}

fn named(name: &str) -> Outcome<Profile> {
    Profile::named(name).map_err(|error| Failure::Work(error.to_string()))
}

fn profile_of(kind: &MiddleKind) -> Outcome<Profile> {
    match kind {
        MiddleKind::Simulated(profile) => Ok(profile.clone()),
        _ => named(DRAM),
    }
}

/// The tiers of a hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// DRAM and store: Spitfire's DRAM-SSD, the CXL paper's local memory.
    DramStore,
    /// Middle tier, accessed in place, and store: Spitfire's NVM-SSD, the CXL paper's far memory.
    MiddleStore,
    /// DRAM, middle tier and store.
    ThreeTiers,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Shape; 3] = [Shape::DramStore, Shape::MiddleStore, Shape::ThreeTiers];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Shape::DramStore => "dram-store",
            Shape::MiddleStore => "middle-store",
            Shape::ThreeTiers => "three-tiers",
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Shape, String> {
        match text {
            "dram-store" | "local-store" => Ok(Shape::DramStore),
            "middle-store" | "far-store" => Ok(Shape::MiddleStore),
            "three-tiers" => Ok(Shape::ThreeTiers),
            _ => Err(format!(
                "unknown hierarchy {text:?}; use dram-store (or local-store), middle-store (or far-store) or three-tiers"
            )),
        }
    }
}

/// Bytes of DRAM and of the middle tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub dram_bytes: u64,
    pub middle_bytes: u64,
}

/// Input for hierarchies of equal cost.
#[derive(Clone, Debug)]
pub struct EqualCost {
    /// The shape that sets the price.
    pub base: Shape,
    /// DRAM of the base. If the base is middle-store, DRAM of three tiers; the base then has
    /// `least_dram_bytes`.
    pub dram_bytes: u64,
    /// Middle tier of the base, or of three tiers if the base has none.
    pub middle: Middle,
    /// Minimum DRAM of a middle-store hierarchy.
    pub least_dram_bytes: u64,
}

impl EqualCost {
    /// The sizes of each shape, in the order of [`Shape::ALL`].
    ///
    /// # Errors
    /// If the price leaves nothing for a tier.
    pub fn sizes(&self) -> Outcome<[Sizes; 3]> {
        let (near, profile) = (named(DRAM)?.price_per_gb(), profile_of(self.middle.kind())?);
        let (far, what) = (profile.price_per_gb(), self.middle.kind());
        if profile.dram_cache_bytes() > 0 {
            return Err(Failure::Usage(format!(
                "--equal-cost: {what} has a DRAM cache, which none of the three hierarchies has; omit dram_cache_bytes from the profile"
            )));
        }
        if far <= 0.0 {
            return Err(Failure::Usage(format!(
                "--equal-cost: {what} is free, so no size of it matches a price"
            )));
        }
        let (dram, middle, least) = (self.dram_bytes, self.middle.bytes(), self.least_dram_bytes);
        // Prices here are times a gigabyte; fractions of a byte are dropped.
        let price = |sizes: Sizes| sizes.dram_bytes as f64 * near + sizes.middle_bytes as f64 * far;
        let price = match self.base {
            Shape::DramStore => price(Sizes { dram_bytes: dram, middle_bytes: 0 }),
            Shape::MiddleStore => price(Sizes { dram_bytes: least, middle_bytes: middle }),
            Shape::ThreeTiers => price(Sizes { dram_bytes: dram, middle_bytes: middle }),
        };
        let left = |for_what: &str, taken_bytes: u64, taken_price: f64, per_byte: f64| {
            let left = (price - taken_bytes as f64 * taken_price) / per_byte;
            match left >= 1.0 {
                true => Ok(left as u64),
                false => Err(Failure::Usage(format!(
                    "--equal-cost: {} of {for_what} would cost more than {} does; change --dram or --middle",
                    show_size(taken_bytes),
                    self.base
                ))),
            }
        };
        let three = match self.base {
            Shape::DramStore => Sizes {
                dram_bytes: left("the middle tier of three-tiers", middle, far, near)?,
                middle_bytes: middle,
            },
            Shape::MiddleStore => {
                Sizes { dram_bytes: dram, middle_bytes: left("the DRAM of three-tiers", dram, near, far)? }
            }
            Shape::ThreeTiers => Sizes { dram_bytes: dram, middle_bytes: middle },
        };
        let in_place = Sizes {
            dram_bytes: least,
            middle_bytes: left("the least DRAM of middle-store", least, near, far)?,
        };
        if three.dram_bytes < least {
            return Err(Failure::Usage(format!(
                "--equal-cost: three-tiers would have {} of DRAM, but needs at least {}; change --dram or --middle",
                show_size(three.dram_bytes),
                show_size(least)
            )));
        }
        Ok([Sizes { dram_bytes: (price / near) as u64, middle_bytes: 0 }, in_place, three])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(base: Shape, dram: u64, middle: &str, least: u64) -> Outcome<[Sizes; 3]> {
        let middle = middle.parse().unwrap();
        EqualCost { base, dram_bytes: dram << 20, middle, least_dram_bytes: least << 20 }.sizes()
    }

    #[test]
    fn a_configuration_costs_what_its_parts_do() {
        let optane: MiddleKind = "simulated:optane".parse().unwrap();
        let cost = Cost::of(2_000_000_000, Some(&optane), 4_000_000_000, 10_000_000_000, true).unwrap();
        assert_eq!(cost.dollars(), Some(20.0 + 18.0 + 2.0));
        assert_eq!(cost.store.profile.as_deref(), Some("nvme-flash"));
        assert_eq!(cost.cache, Part::default());
        for (kind, profile, dollars) in
            [("simulated:optane", "optane", 9.0), ("file:/fast/cache", "nvme-flash", 0.4)]
        {
            let cached = cost.clone().with_cache(&kind.parse().unwrap(), 2_000_000_000).unwrap();
            assert_eq!((cached.cache.profile.as_deref(), cached.cache.dollars), (Some(profile), dollars));
            assert_eq!(cached.dollars(), Some(40.0 + dollars));
        }
        let in_memory = Cost::of(1_000_000_000, None, 0, 1_000_000_000, false).unwrap();
        assert_eq!((in_memory.dollars(), in_memory.middle.profile.clone()), (Some(20.0), None));
        let untold = Cost::of(1, None, 1, 1, true).unwrap();
        assert_eq!(untold.dollars(), None, "a middle tier of unknown kind");
        let memory_mode = Profile::named("optane").unwrap().with_dram_cache_bytes(1_000_000_000);
        let memory_mode = MiddleKind::Simulated(memory_mode);
        let cost = Cost::of(1_000_000_000, Some(&memory_mode), 2_000_000_000, 0, true).unwrap();
        assert_eq!((cost.dram.dollars, cost.dollars()), (20.0, Some(29.0)), "its DRAM is DRAM");
        let node: MiddleKind = "numa:0".parse().unwrap();
        assert_eq!(Cost::of(0, Some(&node), 1_000_000_000, 0, true).unwrap().dollars(), Some(10.0));
    }

    /// Every base gives equal cost, to a byte of each tier.
    #[test]
    fn shapes_cost_the_same_whichever_is_given() {
        for (base, dram, middle) in [
            (Shape::ThreeTiers, 64, "simulated:optane,192MiB"),
            (Shape::DramStore, 150, "simulated:optane,192MiB"),
            (Shape::MiddleStore, 64, "simulated:optane,330MiB"),
            (Shape::ThreeTiers, 16, "simulated:cxl-2024,32MiB"),
        ] {
            let sizes = equal(base, dram, middle, 2).unwrap();
            let kind = middle.parse::<Middle>().unwrap().kind().clone();
            let dollars = sizes.map(|Sizes { dram_bytes, middle_bytes }| {
                Cost::of(dram_bytes, Some(&kind), middle_bytes, 0, true).unwrap().dollars().unwrap()
            });
            assert!(
                dollars.iter().all(|cost| (cost - dollars[0]).abs() < 2.0 * 10.0 / GIGABYTE),
                "{dollars:?}"
            );
            assert_eq!((sizes[0].middle_bytes, sizes[1].dram_bytes), (0, 2 << 20));
        }
        let sizes = equal(Shape::ThreeTiers, 64, "simulated:optane,192MiB", 2).unwrap();
        assert_eq!(sizes[0].dram_bytes >> 20, 150);
        assert_eq!(sizes[1].middle_bytes >> 20, 329);
        assert_eq!(sizes[2], Sizes { dram_bytes: 64 << 20, middle_bytes: 192 << 20 });
    }

    #[test]
    fn what_the_price_leaves_nothing_for_is_refused() {
        for (base, dram, middle, least, named) in [
            (Shape::DramStore, 10, "simulated:optane,64MiB", 2, "the middle tier of three-tiers"),
            (Shape::DramStore, 30, "simulated:optane,64MiB", 2, "three-tiers would have"),
            (Shape::MiddleStore, 64, "simulated:optane,64MiB", 2, "the DRAM of three-tiers"),
            (Shape::ThreeTiers, 4, "simulated:optane,4MiB", 16, "the least DRAM of middle-store"),
        ] {
            let error = equal(base, dram, middle, least).unwrap_err();
            assert_eq!(error.code(), 2);
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn memory_mode_is_none_of_the_shapes() {
        let profile = Profile::named("optane").unwrap().with_dram_cache_bytes(1 << 20);
        let middle = Middle::new(MiddleKind::Simulated(profile), 8 << 20);
        let equal = EqualCost { base: Shape::ThreeTiers, dram_bytes: 8 << 20, middle, least_dram_bytes: 1 };
        assert_eq!(equal.sizes().unwrap_err().code(), 2);
    }

    #[test]
    fn shapes_are_named_as_in_either_paper() {
        for shape in Shape::ALL {
            assert_eq!(shape.name().parse(), Ok(shape));
        }
        assert_eq!("local-store".parse(), Ok(Shape::DramStore));
        assert_eq!("far-store".parse(), Ok(Shape::MiddleStore));
        assert!("two-tiers".parse::<Shape>().unwrap_err().contains("dram-store"));
    }
}
