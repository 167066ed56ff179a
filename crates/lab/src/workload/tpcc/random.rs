//! Random values as TPC-C defines them (clauses 2.1.6 and 4.3.2).

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Scale;
use super::rows::{Address, CustomerId, ItemId};

/// Syllables of last names (clause 4.3.2.3).
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
/// Last names.
const NAMES: u32 = 1000;
/// Differences of the constants for last names between load and run that clause 2.1.6.1 excludes.
const EXCLUDED: [u32; 2] = [96, 112];

/// The constants of the uneven distribution (clause 2.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Constants {
    last_name_load: u32,
    last_name_run: u32,
    customer: u32,
    item: u32,
}

impl Constants {
    fn new(seed: u64) -> Constants {
        let mut random = SmallRng::seed_from_u64(seed);
        let last_name_load = random.random_range(0..=136);
        let difference = loop {
            let difference = random.random_range(65..=119);
            if !EXCLUDED.contains(&difference) {
                break difference;
            }
        };
        Constants {
            last_name_load,
            last_name_run: last_name_load + difference,
            customer: random.random_range(0..=1023),
            item: random.random_range(0..=8191),
        }
    }
}

/// A source of random values.
#[derive(Clone, Debug)]
pub struct Random {
    source: SmallRng,
    constants: Constants,
    scale: Scale,
}

impl Random {
    /// A source for one thread. Threads with the same `seed` share the constants.
    pub fn new(scale: Scale, seed: u64, thread: u64) -> Random {
        let source =
            SmallRng::seed_from_u64(seed ^ thread.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Random { source, constants: Constants::new(seed), scale }
    }

    /// A value from `low` to `high`, all alike.
    pub fn within(&mut self, low: u32, high: u32) -> u32 {
        self.source.random_range(low..=high)
    }

    /// Whether an event with this percentage occurs.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.within(1, 100) <= percent
    }

    /// A value from `low` to `high`, some far more often than others.
    fn uneven(&mut self, a: u32, c: u32, low: u32, high: u32) -> u32 {
        let bits = self.within(0, a) | self.within(low, high);
        (bits + c) % (high - low + 1) + low
    }

    /// A customer of a district.
    pub fn customer(&mut self) -> CustomerId {
        self.uneven(1023, self.constants.customer, 1, self.scale.customers)
    }

    /// An item.
    pub fn item(&mut self) -> ItemId {
        self.uneven(8191, self.constants.item, 1, self.scale.items)
    }

    /// An item, all alike.
    pub fn any_item(&mut self) -> ItemId {
        self.within(1, self.scale.items)
    }

    /// The last name of a customer that a transaction asks for; at least one customer has it.
    pub fn last_name(&mut self) -> String {
        let highest = NAMES.min(self.scale.customers) - 1;
        last_name(self.uneven(255, self.constants.last_name_run, 0, highest))
    }

    /// The last name of `customer` in the initial population: the first thousand have all of them.
    pub fn last_name_of(&mut self, customer: CustomerId) -> String {
        match customer <= NAMES {
            true => last_name(customer - 1),
            false => last_name(self.uneven(255, self.constants.last_name_load, 0, NAMES - 1)),
        }
    }

    /// Letters and digits, as many as a value from `low` to `high` says.
    pub fn text(&mut self, low: u32, high: u32) -> String {
        const CHARACTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        (0..self.within(low, high))
            .map(|_| CHARACTERS[self.source.random_range(0..CHARACTERS.len())] as char)
            .collect()
    }

    /// This many digits.
    pub fn digits(&mut self, count: u32) -> String {
        (0..count).map(|_| (b'0' + self.within(0, 9) as u8) as char).collect()
    }

    /// From 26 to 50 characters; "ORIGINAL" is among them in one of ten.
    pub fn data(&mut self) -> String {
        let mut text = self.text(26, 50);
        if self.percent(10) {
            let at = self.within(0, text.len() as u32 - ORIGINAL.len() as u32) as usize;
            text.replace_range(at..at + ORIGINAL.len(), ORIGINAL);
        }
        text
    }

    /// An address.
    pub fn address(&mut self) -> Address {
        Address {
            street_1: self.text(10, 20),
            street_2: self.text(10, 20),
            city: self.text(10, 20),
            state: self.text(2, 2),
            zip: self.digits(4) + "11111",
        }
    }

    /// A permutation of the customers' numbers.
    pub fn permutation(&mut self) -> Vec<CustomerId> {
        let mut numbers: Vec<CustomerId> = (1..=self.scale.customers).collect();
        for at in (1..numbers.len()).rev() {
            numbers.swap(at, self.source.random_range(0..=at));
        }
        numbers
    }
}

/// The mark of original goods (clause 4.3.3.1).
pub const ORIGINAL: &str = "ORIGINAL";

/// The last name with this number, below 1,000.
fn last_name(number: u32) -> String {
    [number / 100, number / 10 % 10, number % 10].map(|digit| SYLLABLES[digit as usize]).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(customers: u32) -> Random {
        Random::new(Scale { warehouses: 1, items: 1000, customers }, 7, 0)
    }

    /// Clause 4.3.2.3 has this example.
    #[test]
    fn names_are_made_of_syllables() {
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        assert_eq!(last_name(40), "BARPRESBAR");
    }

    #[test]
    fn constants_of_load_and_run_differ_as_asked() {
        for seed in 0..1000 {
            let Constants { last_name_load, last_name_run, .. } = Constants::new(seed);
            let difference = last_name_run - last_name_load;
            assert!(
                (65..=119).contains(&difference) && !EXCLUDED.contains(&difference),
                "{seed}: {difference}"
            );
            assert!(last_name_run <= 255, "{seed}");
        }
    }

    #[test]
    fn uneven_values_stay_within_bounds_and_are_uneven() {
        let mut random = random(3000);
        let mut counts = vec![0u32; 3001];
        for _ in 0..300_000 {
            counts[random.customer() as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        counts.sort_unstable();
        let (median, most) = (counts[1500], counts[3000]);
        assert!(median > 0 && most > 10 * median, "{most} {median}");
    }

    #[test]
    fn every_name_that_is_asked_for_is_that_of_a_customer() {
        for customers in [1, 2, 30, 999, 1000, 3000] {
            let mut random = random(customers);
            let names: Vec<_> = (1..=customers).map(|customer| random.last_name_of(customer)).collect();
            for _ in 0..200 {
                let name = random.last_name();
                assert!(names.contains(&name), "{customers}: {name}");
            }
        }
    }

    #[test]
    fn values_repeat_with_the_seed_and_differ_between_threads() {
        let draw = |thread| {
            let mut random = Random::new(Scale { warehouses: 1, items: 9, customers: 9 }, 1, thread);
            (random.text(20, 20), random.permutation())
        };
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
        let mut permutation = draw(3).1;
        permutation.sort_unstable();
        assert_eq!(permutation, (1..=9).collect::<Vec<_>>());
    }

    #[test]
    fn one_in_ten_is_original() {
        let mut random = random(10);
        let data: Vec<_> = (0..2000).map(|_| random.data()).collect();
        let original = data.iter().filter(|data| data.contains(ORIGINAL)).count();
        assert!((140..260).contains(&original), "{original}");
        assert!(data.iter().all(|data| (26..=50).contains(&data.len())));
    }
}
