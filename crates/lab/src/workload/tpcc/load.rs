//! The initial population of TPC-C (clause 4.3.3.1).

use terrace_common::failure::Outcome;

use super::access::{Engine, Writes};
use super::random::{ORIGINAL, Random};
use super::rows::{self, Customer, CustomerId, District, DistrictId, History, Item, Money, Order};
use super::rows::{OrderLine, Stock, Warehouse, WarehouseId};
use super::{DISTRICTS, Scale};

/// Source of random values for the load; workers have the numbers from 0.
const SOURCE: u64 = u64::MAX - 1;
/// Rows of a table that one transaction loads.
const ROWS: u32 = 100;
/// What each customer has paid at first.
const PAID: Money = 1000;

/// Loads all rows into empty tables. `done` is called after the items, and after each warehouse.
///
/// # Errors
/// Those of the engine, and those that `done` returns.
pub fn load<E: Engine>(engine: &E, scale: Scale, seed: u64, mut done: impl FnMut(u32) -> Outcome) -> Outcome {
    let mut load = Load { engine, scale, random: Random::new(scale, seed, SOURCE) };
    load.items()?;
    done(0)?;
    for warehouse in 1..=scale.warehouses {
        load.warehouse(warehouse)?;
        done(warehouse)?;
    }
    Ok(())
}

struct Load<'a, E> {
    engine: &'a E,
    scale: Scale,
    random: Random,
}

impl<E: Engine> Load<'_, E> {
    /// Calls `row` for the numbers from 1 to `last`, [`ROWS`] in each transaction. A transaction
    /// that runs again draws other values.
    fn rows(
        &mut self,
        last: u32,
        mut row: impl FnMut(&mut E::Transaction<'_>, &mut Random, u32) -> Outcome,
    ) -> Outcome {
        let mut first = 1;
        while first <= last {
            let end = last.min(first.saturating_add(ROWS - 1));
            self.engine.update(|transaction| {
                Ok((first..=end).try_for_each(|number| row(transaction, &mut self.random, number))?)
            })?;
            first = end + 1;
        }
        Ok(())
    }

    fn items(&mut self) -> Outcome {
        self.rows(self.scale.items, |transaction, random, number| {
            let item = Item {
                image: random.within(1, 10_000),
                name: random.text(14, 24),
                price: random.within(100, 10_000).into(),
                data: random.data(),
            };
            rows::ITEM.put(transaction, number, &item)
        })
    }

    fn warehouse(&mut self, warehouse: WarehouseId) -> Outcome {
        let paid = PAID * Money::from(self.scale.customers);
        self.rows(1, |transaction, random, _| {
            let row = Warehouse {
                name: random.text(6, 10),
                address: random.address(),
                tax: random.within(0, 2000) as u16,
            };
            rows::WAREHOUSE.put(transaction, warehouse, &row)?;
            rows::WAREHOUSE_PAID.put(transaction, warehouse, paid * Money::from(DISTRICTS))
        })?;
        self.rows(self.scale.items, |transaction, random, number| {
            let stock = Stock {
                quantity: random.within(10, 100) as i32,
                districts: (0..DISTRICTS).map(|_| random.text(24, 24)).collect(),
                sold: 0,
                orders: 0,
                remote: 0,
                data: random.data(),
            };
            rows::STOCK.put(transaction, (warehouse, number), &stock)
        })?;
        for district in 1..=DISTRICTS {
            let next_order = self.scale.customers + 1;
            self.rows(1, |transaction, random, _| {
                let row = District {
                    name: random.text(6, 10),
                    address: random.address(),
                    tax: random.within(0, 2000) as u16,
                    next_order,
                };
                rows::DISTRICT.put(transaction, (warehouse, district), &row)?;
                rows::DISTRICT_PAID.put(transaction, (warehouse, district), paid)
            })?;
            self.rows(self.scale.customers, |transaction, random, number| {
                customer(transaction, random, (warehouse, district, number))
            })?;
            let buyers = self.random.permutation();
            let first_new = self.scale.first_new_order();
            self.rows(self.scale.customers, |transaction, random, number| {
                let (buyer, is_new) = (buyers[number as usize - 1], number >= first_new);
                order(transaction, random, (warehouse, district, number), buyer, is_new)
            })?;
        }
        Ok(())
    }
}

/// Loads a customer and the payment that the customer has made.
fn customer(
    transaction: &mut impl Writes,
    random: &mut Random,
    key: (WarehouseId, DistrictId, CustomerId),
) -> Outcome {
    let (warehouse, district, number) = key;
    let row = Customer {
        first: random.text(8, 16),
        middle: "OE".into(),
        last: random.last_name_of(number),
        address: random.address(),
        phone: random.digits(16),
        since: 0,
        credit: if random.percent(10) { "BC" } else { "GC" }.into(),
        credit_limit: 5_000_000,
        discount: random.within(0, 5000) as u16,
        balance: -PAID,
        paid: PAID,
        payments: 1,
        deliveries: 0,
        data: random.text(300, 500),
    };
    let history = History { warehouse, district, date: 0, amount: PAID, data: random.text(12, 24) };
    rows::HISTORY.put(transaction, (warehouse, district, number, row.payments), &history)?;
    let by_name = (warehouse, district, row.last.as_str(), row.first.as_str(), number);
    rows::CUSTOMER_BY_NAME.put(transaction, by_name, ())?;
    rows::CUSTOMER.put(transaction, key, &row)
}

/// Loads an order with its lines. One that is new has no carrier, and its goods have prices.
fn order(
    transaction: &mut impl Writes,
    random: &mut Random,
    key: (WarehouseId, DistrictId, u32),
    buyer: CustomerId,
    is_new: bool,
) -> Outcome {
    let (warehouse, district, number) = key;
    let order = Order {
        customer: buyer,
        entered: 0,
        carrier: (!is_new).then(|| random.within(1, 10) as u8),
        lines: random.within(5, 15) as u8,
        is_local: true,
    };
    for line in 1..=order.lines {
        let row = OrderLine {
            item: random.any_item(),
            supplier: warehouse,
            delivered: (!is_new).then_some(0),
            quantity: 5,
            amount: if is_new { random.within(1, 999_999).into() } else { 0 },
            district_info: random.text(24, 24),
        };
        rows::ORDER_LINE.put(transaction, (warehouse, district, number, line), &row)?;
    }
    if is_new {
        rows::NEW_ORDER.put(transaction, key, ())?;
    }
    rows::ORDER_BY_CUSTOMER.put(transaction, (warehouse, district, buyer, number), ())?;
    rows::ORDER.put(transaction, key, &order)
}

/// Whether goods of this item count as brand goods: item and stock are original.
pub fn is_brand(item: &Item, stock: &Stock) -> bool {
    item.data.contains(ORIGINAL) && stock.data.contains(ORIGINAL)
}
