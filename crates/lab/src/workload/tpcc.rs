//! TPC-C: an order-entry business, revision 5.11 of the specification.
//!
//! | module | contents |
//! |---|---|
//! | `access` | the trait of an engine, and typed access to its tables |
//! | `tables` | Terrace's implementation of it; those of others are in `peers` |
//! | `rows` | the rows, and the tables with their keys |
//! | `random` | the specification's random values (clause 2.1.6, 4.3) |
//! | `load` | the initial population (clause 4.3.3) |
//! | `transactions` | the five transactions (clause 2) |
//! | `check` | the twelve consistency conditions (clause 3.3.2) |
//!
//! It differs from the specification where its rules concern terminals: there are no think times,
//! and a delivery runs at once. Money is in cents. The year-to-date sums of warehouses and
//! districts have tables of their own, which clause 1.4.7 permits: every payment changes them, and
//! every new order reads the rest of the row. Two tables serve as secondary indexes.

pub mod access;
pub mod check;
pub mod load;
pub mod random;
pub mod rows;
pub mod tables;
pub mod transactions;

#[cfg(test)]
mod crash_tests;

use std::fmt;
use std::str::FromStr;

/// Districts of a warehouse.
pub const DISTRICTS: u8 = 10;

/// The size of the business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scale {
    /// Warehouses, numbered from 1.
    pub warehouses: u32,
    /// Items, and rows of stock in each warehouse; 100,000 in the specification.
    pub items: u32,
    /// Customers of each district, and its orders at first; 3,000 in the specification.
    pub customers: u32,
}

impl Scale {
    /// Warehouses of 1 MiB at first, where the specification's have about 100.
    pub fn small(warehouses: u32) -> Scale {
        Scale { warehouses, items: 1200, customers: 36 }
    }

    /// Bytes of an average row, key included: 700 of a customer, 330 of stock, 70 of a line.
    pub const ROW_BYTES: u64 = 100;

    /// About how many rows of [`Scale::ROW_BYTES`] the initial population is.
    pub fn rows(&self) -> u64 {
        let orders = u64::from(self.customers) * u64::from(DISTRICTS);
        u64::from(self.warehouses) * (u64::from(self.items) * 4 + orders * 18) + u64::from(self.items)
    }

    /// The lowest number of a first order that is not delivered: 30 % of them are new.
    pub fn first_new_order(&self) -> u32 {
        self.customers - self.customers * 3 / 10 + 1
    }
}

/// The kinds of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

impl Kind {
    /// All kinds, in the order of a [`Mix`].
    pub const ALL: [Kind; 5] =
        [Kind::NewOrder, Kind::Payment, Kind::OrderStatus, Kind::Delivery, Kind::StockLevel];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::NewOrder => "new_order",
            Kind::Payment => "payment",
            Kind::OrderStatus => "order_status",
            Kind::Delivery => "delivery",
            Kind::StockLevel => "stock_level",
        }
    }
}

/// Percent of each kind, in the order of [`Kind::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix([u8; 5]);

impl Default for Mix {
    /// The specification's least shares of the others (clause 5.2.3); the rest are new orders.
    fn default() -> Mix {
        Mix([45, 43, 4, 4, 4])
    }
}

impl Mix {
    /// The kind at `percent`, which is below 100.
    pub fn at(&self, percent: u8) -> Kind {
        let mut left = percent;
        for (kind, share) in Kind::ALL.into_iter().zip(self.0) {
            match left.checked_sub(share) {
                None => return kind,
                Some(rest) => left = rest,
            }
        }
        unreachable!("the shares of a mix are 100 % together")
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        let shares: Option<Vec<u8>> = text.split(',').map(|share| share.parse().ok()).collect();
        let shares = shares.and_then(|shares| <[u8; 5]>::try_from(shares).ok());
        match shares {
            Some(shares) if shares.iter().map(|&share| u32::from(share)).sum::<u32>() == 100 => {
                Ok(Mix(shares))
            }
            _ => Err("not five percentages with the sum 100, such as 45,43,4,4,4: new orders, payments, \
                      order statuses, deliveries, stock levels"
                .into()),
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [orders, payments, statuses, deliveries, levels] = self.0;
        write!(f, "{orders},{payments},{statuses},{deliveries},{levels}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_gives_each_kind_its_share() {
        let mix = Mix::default();
        let count = |kind| (0..100).filter(|&percent| mix.at(percent) == kind).count();
        assert_eq!(Kind::ALL.map(count), [45, 43, 4, 4, 4]);
        let mix: Mix = "0,100,0,0,0".parse().unwrap();
        assert!((0..100).all(|percent| mix.at(percent) == Kind::Payment));
        assert_eq!(mix.to_string(), "0,100,0,0,0");
    }

    #[test]
    fn a_mix_that_is_not_a_hundred_is_refused() {
        for text in ["", "45,43,4,4", "45,43,4,4,5", "45,43,4,4,4,0", "a,43,4,4,4", "255,255,255,255,100"] {
            let error = text.parse::<Mix>().unwrap_err();
            assert!(error.contains("sum 100"), "{text}: {error}");
        }
    }

    #[test]
    fn three_in_ten_of_the_first_orders_are_new() {
        let scale = |customers| Scale { warehouses: 1, items: 10, customers };
        assert_eq!(scale(3000).first_new_order(), 2101);
        assert_eq!(scale(10).first_new_order(), 8);
        assert_eq!(scale(1).first_new_order(), 2);
    }
}
