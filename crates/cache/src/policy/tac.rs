//! TAC, temperature-aware caching (Canim et al., VLDB 2010; HeuristicDB, section 2.2).
//!
//! It admits only randomly accessed blocks of hot regions, and evicts from a colder region. A
//! region is a run of blocks of one relation. A random access warms it by one; a sequential one
//! does not, and is not admitted. Temperatures are halved at intervals. The paper gives no values
//! of its settings; see [`TacSettings`].

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;

use super::streams::Streams;
use super::{Access, Policy, Relation, Slot};

/// The parameters of TAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TacSettings {
    /// Blocks per region: 32, the extent of the paper's prototype.
    pub region_blocks: u64,
    /// Most blocks skipped within a run: 64.
    pub band_blocks: u64,
    /// Lookups between halvings, in multiples of the capacity: 10.
    pub reset_capacities: u64,
}

impl Default for TacSettings {
    fn default() -> TacSettings {
        TacSettings { region_blocks: 32, band_blocks: 64, reset_capacities: 10 }
    }
}

#[derive(Clone, Debug, Default)]
struct Region {
    /// As of this many halvings.
    temperature: u32,
    halvings: u64,
    /// First in, first out.
    slots: Vec<u32>,
}

impl Region {
    /// The temperature after `halvings`, no earlier than its last update.
    fn temperature(&self, halvings: u64) -> u32 {
        (u64::from(self.temperature) >> (halvings - self.halvings).min(32)) as u32
    }

    fn set(&mut self, temperature: u32, halvings: u64) {
        (self.temperature, self.halvings) = (temperature, halvings);
    }
}

/// The TAC policy. Memory: about 64 bytes per region ever seen.
///
/// ```
/// use terrace_cache::policy::{Access, Policy, Tac, TacSettings};
///
/// let mut tac = Tac::new(2, TacSettings::default());
/// tac.miss(Access::read(1000));
/// assert!(tac.admits(Access::read(1000)));
/// tac.miss(Access::read(1001));
/// assert!(!tac.admits(Access::read(1001)), "it continues a run");
/// ```
#[derive(Clone, Debug)]
pub struct Tac {
    settings: TacSettings,
    streams: Streams,
    numbers: HashMap<(Option<Relation>, u64), u32, FixedState>,
    regions: Vec<Region>,
    /// Halvings so far. Regions without resident blocks apply them on access.
    halvings: u64,
    /// Temperature and number of regions with resident blocks.
    resident: BTreeSet<(u32, u32)>,
    region_of_slot: Vec<u32>,
    len: usize,
    capacity: usize,
    /// Lookups since the last halving.
    look_ups: u64,
    /// The last lookup continued a run.
    sequential: bool,
}

impl Tac {
    /// For `capacity` blocks.
    pub fn new(capacity: usize, settings: TacSettings) -> Tac {
        Tac {
            settings,
            streams: Streams::new(settings.band_blocks),
            numbers: HashMap::default(),
            regions: Vec::new(),
            halvings: 0,
            resident: BTreeSet::new(),
            region_of_slot: vec![0; capacity],
            len: 0,
            capacity,
            look_ups: 0,
            sequential: false,
        }
    }

    fn region(&mut self, access: Access) -> u32 {
        let key = (access.relation, access.offset / self.settings.region_blocks);
        *self.numbers.entry(key).or_insert_with(|| {
            self.regions.push(Region::default());
            self.regions.len() as u32 - 1
        })
    }

    fn warm(&mut self, access: Access) {
        self.look_ups += 1;
        if self.look_ups >= self.settings.reset_capacities * self.capacity as u64 {
            self.cool();
        }
        self.sequential = access.read_ahead || self.streams.run(access) > 0;
        if self.sequential {
            return;
        }
        let number = self.region(access);
        let region = &mut self.regions[number as usize];
        let before = region.temperature(self.halvings);
        let after = before.saturating_add(1);
        region.set(after, self.halvings);
        if !region.slots.is_empty() {
            self.resident.remove(&(before, number));
            self.resident.insert((after, number));
        }
    }

    /// Halves all temperatures, one step per region with resident blocks.
    fn cool(&mut self) {
        self.look_ups = 0;
        self.halvings += 1;
        let resident = std::mem::take(&mut self.resident);
        self.resident = resident.into_iter().map(|(temperature, number)| (temperature / 2, number)).collect();
    }

    fn temperature(&self, number: u32) -> u32 {
        self.regions[number as usize].temperature(self.halvings)
    }
}

impl Policy for Tac {
    fn hit(&mut self, _: Slot, access: Access) {
        self.warm(access);
    }

    fn miss(&mut self, access: Access) {
        self.warm(access);
    }

    fn admits(&mut self, access: Access) -> bool {
        if self.sequential {
            return false;
        }
        let number = self.region(access);
        let coldest = self.resident.first().map_or(0, |&(temperature, _)| temperature);
        self.len < self.capacity || self.temperature(number) > coldest
    }

    fn victim(&mut self, _: Access) -> Option<Slot> {
        let slot = self.coldest()?;
        self.remove(slot);
        Some(slot)
    }

    fn coldest(&self) -> Option<Slot> {
        let &(_, number) = self.resident.first()?;
        self.regions[number as usize].slots.first().copied().map(Slot)
    }

    fn insert(&mut self, access: Access, slot: Slot) {
        let number = self.region(access);
        self.region_of_slot[slot.index()] = number;
        self.regions[number as usize].slots.push(slot.0);
        self.resident.insert((self.temperature(number), number));
        self.len += 1;
    }

    fn remove(&mut self, slot: Slot) {
        let number = self.region_of_slot[slot.index()];
        let region = &mut self.regions[number as usize];
        region.slots.retain(|&other| other != slot.0);
        if region.slots.is_empty() {
            self.resident.remove(&(self.temperature(number), number));
        }
        self.len -= 1;
    }

    /// Moves to another region, without a lookup.
    fn renamed(&mut self, slot: Slot, access: Access) {
        self.remove(slot);
        self.insert(access, slot);
    }

    fn moved(&mut self, from: Slot, to: Slot, _: Access) {
        let number = self.region_of_slot[from.index()];
        self.region_of_slot[to.index()] = number;
        let slots = &mut self.regions[number as usize].slots;
        slots.iter_mut().filter(|slot| **slot == from.0).for_each(|slot| *slot = to.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.region_of_slot.resize(capacity.max(self.region_of_slot.len()), 0);
    }
}
