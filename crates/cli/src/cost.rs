//! What a hierarchy costs, by the prices of the profiles (`docs/profiles.md`), and which hierarchies cost the same.
//!
//! A price is dollars for 10^9 bytes. DRAM is priced as the profile `dram`, and so are NUMA nodes, whose chips are those of DRAM, and
//! files that are in main memory; a simulated tier as its profile; files on a disk as [`DISK`], whatever the disk is, since none says what
//! it cost, and so is the file of a block cache; a simulated one as its profile. What is priced is what was asked for: the whole budget of
//! DRAM, frames or not, the frames of the middle tier, the blocks that the cache may hold, and the bytes that the files take.
//!
//! **Equal cost.** Spitfire (SIGMOD 2021, sections 6.6 and 6.7) and the CXL paper (HardBD & Active 2024, section IV) hold three [`Shape`]s
//! against each other. The files are the same in all, so memory has to cost the same. In a middle-store hierarchy pages are used where
//! they are, in the middle tier, and DRAM is what an engine cannot do without: it is counted.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use terrace::{CacheKind, Middle, MiddleKind};
use terrace_block::Profile;

use crate::failure::{Failure, Outcome};
use crate::units::show_size;

/// The profile by which DRAM is priced.
const DRAM: &str = "dram";
/// And files on a disk.
const DISK: &str = "nvme-flash";
/// Bytes of a gigabyte in prices.
const GIGABYTE: f64 = 1e9;

/// What a configuration costs, and of what that is the sum.
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

/// What one tier costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Part {
    /// The profile by which it is priced; null for a tier that is not there, or whose memory is not told.
    pub profile: Option<String>,
    pub bytes: u64,
    /// For 10^9 bytes.
    pub dollars_per_gb: f64,
    pub dollars: f64,
}

impl Cost {
    /// Of so many bytes of DRAM, middle tier and files. `kind` is what the middle tier is; DRAM that is a cache before it is DRAM, too.
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

    /// The same with a block cache of `bytes` bytes.
    pub fn with_cache(self, kind: &CacheKind, bytes: u64) -> Outcome<Cost> {
        let cache = match kind {
            CacheKind::Simulated(profile) => Part::of(bytes, profile),
            _ => Part::of(bytes, &named(DISK)?),
        };
        Ok(Cost { cache, ..self })
    }

    /// The sum; none if there is something whose price is not known.
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

/// By which profile a middle tier is priced.
fn profile_of(kind: &MiddleKind) -> Outcome<Profile> {
    match kind {
        MiddleKind::Simulated(profile) => Ok(profile.clone()),
        _ => named(DRAM),
    }
}

/// Which tiers a hierarchy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Pages are in DRAM or in the store: Spitfire's DRAM-SSD, the CXL paper's local memory.
    DramStore,
    /// Pages are in the middle tier, and used there, or in the store: Spitfire's NVM-SSD, the CXL paper's far memory.
    MiddleStore,
    /// Pages are in either or both, or in the store.
    ThreeTiers,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 3] = [Shape::DramStore, Shape::MiddleStore, Shape::ThreeTiers];

    /// Its name on the command line.
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
                "there is no hierarchy {text:?}; there are dram-store, middle-store and three-tiers, and local-store and far-store, \
                 which are the first two"
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

/// What is given of hierarchies that are to cost the same.
#[derive(Clone, Debug)]
pub struct EqualCost {
    /// Of which shape the price is.
    pub base: Shape,
    /// Bytes of DRAM: those of the base, or of three tiers where the base is middle-store, which has `least_dram_bytes`.
    pub dram_bytes: u64,
    /// The middle tier: that of the base, or of three tiers where the base has none.
    pub middle: Middle,
    /// What a middle-store hierarchy cannot do without.
    pub least_dram_bytes: u64,
}

impl EqualCost {
    /// The sizes of each shape, in the order of [`Shape::ALL`].
    ///
    /// # Errors
    /// Which price leaves nothing for which tier.
    pub fn sizes(&self) -> Outcome<[Sizes; 3]> {
        let (near, profile) = (named(DRAM)?.price_per_gb(), profile_of(self.middle.kind())?);
        let (far, what) = (profile.price_per_gb(), self.middle.kind());
        if profile.dram_cache_bytes() > 0 {
            return Err(Failure::Usage(format!(
                "--equal-cost: {what} has DRAM before it, which none of the three hierarchies has; leave dram_cache_bytes out of the profile"
            )));
        }
        if far <= 0.0 {
            return Err(Failure::Usage(format!(
                "--equal-cost: {what} costs nothing, so any size of it costs as much"
            )));
        }
        let (dram, middle, least) = (self.dram_bytes, self.middle.bytes(), self.least_dram_bytes);
        // Times a gigabyte; what is not a whole byte is cut off.
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
                "--equal-cost: three-tiers would have {} of DRAM, and {} are the least; change --dram or --middle",
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

    /// Whichever shape is given, the three cost the same, to a byte of each.
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
