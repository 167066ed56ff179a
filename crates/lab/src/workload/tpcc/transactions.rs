//! The five transactions of TPC-C (clauses 2.4 to 2.8).
//!
//! A worker stands for the terminals of one warehouse. It draws the input of a transaction before
//! it begins, so that runs after a conflict have the same input. The two transactions that only
//! read use a snapshot, which conflicts with nothing.

use std::collections::BTreeSet;

use terrace::{Db, Error, Snapshot, Transaction};
use terrace_common::failure::Failure;

use super::load::is_brand;
use super::random::Random;
use super::rows::{
    Customer, CustomerId, DistrictId, History, ItemId, Money, NameKey, Order, OrderId, OrderLine, Tables,
    WarehouseId,
};
use super::{DISTRICTS, Kind, Mix, Scale};

/// Most bytes of a customer's data with bad credit.
const DATA_BYTES: usize = 500;

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed(Kind),
    /// A new order with an unknown item, as one in a hundred has.
    RolledBack,
    /// A delivery without a new order in some district.
    Skipped,
}

/// Why a transaction ended without a commit.
#[derive(Debug)]
pub enum Ended {
    /// A new order names an item that does not exist, which rolls it back.
    UnknownItem,
    /// A row is missing that the rules of the tables promise.
    Missing(&'static str),
    /// The engine failed.
    Engine(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended::Engine(error)
    }
}

impl From<Ended> for Failure {
    fn from(ended: Ended) -> Failure {
        match ended {
            Ended::UnknownItem => Failure::Work("an order with an unknown item was not rolled back".into()),
            Ended::Missing(what) => Failure::Damaged(format!("TPC-C: a {what} is missing")),
            Ended::Engine(error) => error.into(),
        }
    }
}

type Result<T> = std::result::Result<T, Ended>;

/// How a transaction names a customer.
#[derive(Clone, Debug)]
enum Named {
    Number(CustomerId),
    LastName(String),
}

/// A line of a new order.
#[derive(Clone, Debug)]
struct Wanted {
    item: ItemId,
    supplier: WarehouseId,
    quantity: u8,
}

/// A thread that runs transactions.
#[derive(Debug)]
pub struct Worker<'a> {
    db: &'a Db,
    tables: &'a Tables,
    scale: Scale,
    home: WarehouseId,
    random: Random,
    mix: Mix,
    /// Transactions so far, for dates.
    now: u64,
    /// Runs of transactions, those after conflicts included.
    pub runs: u64,
}

/// A row that the rules of the tables promise.
fn promised<T>(row: Option<T>, what: &'static str) -> Result<T> {
    row.ok_or(Ended::Missing(what))
}

impl<'a> Worker<'a> {
    /// Worker number `thread`, whose home is a warehouse by turns.
    pub fn new(db: &'a Db, tables: &'a Tables, scale: Scale, mix: Mix, seed: u64, thread: u64) -> Worker<'a> {
        let home = (thread % u64::from(scale.warehouses)) as WarehouseId + 1;
        Worker { db, tables, scale, home, random: Random::new(scale, seed, thread), mix, now: 0, runs: 0 }
    }

    /// Runs a transaction of a kind drawn from the mix.
    ///
    /// # Errors
    /// [`Ended::Missing`] and [`Ended::Engine`].
    pub fn step(&mut self) -> Result<Outcome> {
        self.now += 1;
        let kind = self.mix.at(self.random.within(0, 99) as u8);
        match kind {
            Kind::NewOrder => return self.new_order(),
            Kind::Payment => self.payment()?,
            Kind::OrderStatus => self.order_status()?,
            Kind::Delivery => return self.delivery(),
            Kind::StockLevel => self.stock_level()?,
        }
        Ok(Outcome::Committed(kind))
    }

    /// Transactions of the engine that one with this outcome consists of.
    pub fn engine_transactions(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Committed(Kind::Delivery) | Outcome::Skipped => DISTRICTS.into(),
            Outcome::Committed(_) | Outcome::RolledBack => 1,
        }
    }

    /// Makes any warehouse the home.
    pub fn move_home(&mut self) {
        self.home = self.random.within(1, self.scale.warehouses);
    }

    fn district(&mut self) -> DistrictId {
        self.random.within(1, DISTRICTS.into()) as DistrictId
    }

    /// The home warehouse; with this percentage another, if there is one.
    fn warehouse(&mut self, remote_percent: u32) -> WarehouseId {
        if self.scale.warehouses == 1 || !self.random.percent(remote_percent) {
            return self.home;
        }
        let other = self.random.within(1, self.scale.warehouses - 1);
        other + WarehouseId::from(other >= self.home)
    }

    /// Six in ten customers are named, the others numbered (clauses 2.5.1.2 and 2.6.1.2).
    fn named(&mut self) -> Named {
        match self.random.percent(60) {
            true => Named::LastName(self.random.last_name()),
            false => Named::Number(self.random.customer()),
        }
    }

    /// Clause 2.4.
    fn new_order(&mut self) -> Result<Outcome> {
        let (district, customer) = (self.district(), self.random.customer());
        let is_refused = self.random.percent(1);
        let mut wanted: Vec<Wanted> = (0..self.random.within(5, 15))
            .map(|_| Wanted {
                item: self.random.item(),
                supplier: self.warehouse(1),
                quantity: self.random.within(1, 10) as u8,
            })
            .collect();
        if is_refused {
            wanted.last_mut().expect("there are five lines at least").item = self.scale.items + 1;
        }
        let (db, tables, home, now) = (self.db, self.tables, self.home, self.now);
        let done = db.update(|transaction| {
            self.runs += 1;
            new_order(tables, transaction, (home, district, customer), &wanted, now)
        });
        match done {
            Ok(_) => Ok(Outcome::Committed(Kind::NewOrder)),
            Err(Ended::UnknownItem) => Ok(Outcome::RolledBack),
            Err(ended) => Err(ended),
        }
    }

    /// Clause 2.5.
    fn payment(&mut self) -> Result<()> {
        let paid_at = (self.home, self.district());
        let customer_at = match self.warehouse(15) {
            home if home == self.home => paid_at,
            other => (other, self.district()),
        };
        let (named, amount) = (self.named(), Money::from(self.random.within(100, 500_000)));
        let (db, tables, now) = (self.db, self.tables, self.now);
        db.update(|transaction| {
            self.runs += 1;
            payment(tables, transaction, paid_at, customer_at, &named, amount, now)
        })
    }

    /// Clause 2.6.
    fn order_status(&mut self) -> Result<()> {
        let (district, named) = (self.district(), self.named());
        self.runs += 1;
        order_status(self.tables, &self.db.snapshot(), (self.home, district), &named).map(|_| ())
    }

    /// Clause 2.7: each district in a transaction of its own.
    fn delivery(&mut self) -> Result<Outcome> {
        let carrier = self.random.within(1, 10) as u8;
        let mut outcome = Outcome::Committed(Kind::Delivery);
        for district in 1..=DISTRICTS {
            let (db, tables, home, now) = (self.db, self.tables, self.home, self.now);
            let delivered = db.update(|transaction| {
                self.runs += 1;
                deliver(tables, transaction, (home, district), carrier, now)
            })?;
            if delivered.is_none() {
                outcome = Outcome::Skipped;
            }
        }
        Ok(outcome)
    }

    /// Clause 2.8.
    fn stock_level(&mut self) -> Result<()> {
        let (district, threshold) = (self.district(), self.random.within(10, 20) as i32);
        self.runs += 1;
        stock_level(self.tables, &self.db.snapshot(), (self.home, district), threshold).map(|_| ())
    }
}

/// Enters an order and returns its number and what it costs, taxes and discount included.
fn new_order(
    tables: &Tables,
    transaction: &Transaction,
    (home, district, customer): (WarehouseId, DistrictId, CustomerId),
    wanted: &[Wanted],
    now: u64,
) -> Result<(OrderId, Money)> {
    let warehouse_row = promised(tables.warehouse.within(transaction).get(home)?, "warehouse")?;
    let customer_row =
        promised(tables.customer.within(transaction).get((home, district, customer))?, "customer")?;
    let mut district_row = promised(tables.district.within(transaction).get((home, district))?, "district")?;
    let number = district_row.next_order;
    district_row.next_order += 1;
    let taxes = Money::from(warehouse_row.tax) + Money::from(district_row.tax);
    tables.district.within(transaction).put((home, district), &district_row)?;
    let order = Order {
        customer,
        entered: now,
        carrier: None,
        lines: wanted.len() as u8,
        is_local: wanted.iter().all(|wanted| wanted.supplier == home),
    };
    tables.order.within(transaction).put((home, district, number), &order)?;
    tables.order_by_customer.within(transaction).put((home, district, customer, number), ())?;
    tables.new_order.within(transaction).put((home, district, number), ())?;
    let mut sum = 0;
    for (line, wanted) in (1u8..).zip(wanted) {
        let Some(item) = tables.item.within(transaction).get(wanted.item)? else {
            return Err(Ended::UnknownItem);
        };
        let stocks = tables.stock.within(transaction);
        let mut stock = promised(stocks.get((wanted.supplier, wanted.item))?, "stock")?;
        let quantity = i32::from(wanted.quantity);
        stock.quantity -= quantity;
        if stock.quantity < 10 {
            stock.quantity += 91;
        }
        stock.sold += u64::from(wanted.quantity);
        stock.orders += 1;
        stock.remote += u32::from(wanted.supplier != home);
        let info = promised(stock.districts.get(usize::from(district) - 1), "text of a district")?.clone();
        // The terminal would show it.
        std::hint::black_box(is_brand(&item, &stock));
        stocks.put((wanted.supplier, wanted.item), &stock)?;
        let amount = Money::from(quantity) * item.price;
        sum += amount;
        let row = OrderLine {
            item: wanted.item,
            supplier: wanted.supplier,
            delivered: None,
            quantity: wanted.quantity,
            amount,
            district_info: info,
        };
        tables.order_line.within(transaction).put((home, district, number, line), &row)?;
    }
    let total = sum * (10_000 - Money::from(customer_row.discount)) * (10_000 + taxes) / 100_000_000;
    Ok((number, total))
}

/// Books a payment at the district `paid_at` by a customer of `customer_at`.
fn payment(
    tables: &Tables,
    transaction: &Transaction,
    paid_at: (WarehouseId, DistrictId),
    customer_at: (WarehouseId, DistrictId),
    named: &Named,
    amount: Money,
    now: u64,
) -> Result<()> {
    let (warehouse, district) = paid_at;
    let warehouse_row = promised(tables.warehouse.within(transaction).get(warehouse)?, "warehouse")?;
    let district_row = promised(tables.district.within(transaction).get(paid_at)?, "district")?;
    let sums = tables.warehouse_paid.within(transaction);
    sums.put(warehouse, promised(sums.get(warehouse)?, "warehouse's sum")? + amount)?;
    let sums = tables.district_paid.within(transaction);
    sums.put(paid_at, promised(sums.get(paid_at)?, "district's sum")? + amount)?;

    let number = match named {
        Named::Number(number) => *number,
        Named::LastName(last) => {
            let found = tables.customer_by_name.within(transaction).prefix((
                customer_at.0,
                customer_at.1,
                last.as_str(),
            ));
            in_the_middle(found)?
        }
    };
    let key = (customer_at.0, customer_at.1, number);
    let customers = tables.customer.within(transaction);
    let mut customer: Customer = promised(customers.get(key)?, "customer")?;
    customer.balance -= amount;
    customer.paid += amount;
    customer.payments += 1;
    if customer.credit == "BC" {
        let (c_warehouse, c_district) = customer_at;
        let told = format!("{number} {c_district} {c_warehouse} {district} {warehouse} {amount} ");
        customer.data.insert_str(0, &told);
        customer.data.truncate(DATA_BYTES);
    }
    customers.put(key, &customer)?;
    let data = format!("{}    {}", warehouse_row.name, district_row.name);
    let row = History { warehouse, district, date: now, amount, data };
    tables.history.within(transaction).put((key.0, key.1, key.2, customer.payments), &row)?;
    Ok(())
}

/// The customer in the middle of those found by a last name, rounded up.
fn in_the_middle(found: impl Iterator<Item = terrace::Result<(NameKey, ())>>) -> Result<CustomerId> {
    let numbers: Vec<CustomerId> =
        found.map(|entry| entry.map(|(key, ())| key.4)).collect::<terrace::Result<_>>()?;
    promised(numbers.len().checked_sub(1).map(|last| numbers[last / 2]), "customer with a last name")
}

/// Returns the balance of a customer and the lines of the customer's last order.
fn order_status(
    tables: &Tables,
    snapshot: &Snapshot,
    (warehouse, district): (WarehouseId, DistrictId),
    named: &Named,
) -> Result<(Money, Vec<OrderLine>)> {
    let number = match named {
        Named::Number(number) => *number,
        Named::LastName(last) => {
            in_the_middle(tables.customer_by_name.at(snapshot).prefix((warehouse, district, last.as_str())))?
        }
    };
    let customer = promised(tables.customer.at(snapshot).get((warehouse, district, number))?, "customer")?;
    let mut orders = tables.order_by_customer.at(snapshot).prefix((warehouse, district, number));
    let Some(last) = orders.next_back() else {
        return Ok((customer.balance, Vec::new()));
    };
    let ((.., order), ()) = last?;
    promised(tables.order.at(snapshot).get((warehouse, district, order))?, "order")?;
    let lines = tables.order_line.at(snapshot).prefix((warehouse, district, order));
    Ok((customer.balance, lines.map(|line| line.map(|(_, line)| line)).collect::<terrace::Result<_>>()?))
}

/// Delivers the oldest new order of a district and returns its number.
fn deliver(
    tables: &Tables,
    transaction: &Transaction,
    (warehouse, district): (WarehouseId, DistrictId),
    carrier: u8,
    now: u64,
) -> Result<Option<OrderId>> {
    let new_orders = tables.new_order.within(transaction);
    let Some(oldest) = new_orders.prefix((warehouse, district)).next() else { return Ok(None) };
    let (key, ()) = oldest?;
    new_orders.delete(key)?;
    let orders = tables.order.within(transaction);
    let mut order: Order = promised(orders.get(key)?, "order")?;
    order.carrier = Some(carrier);
    orders.put(key, &order)?;
    let lines = tables.order_line.within(transaction);
    let mut sum = 0;
    for entry in lines.prefix(key) {
        let (line_key, mut line) = entry?;
        line.delivered = Some(now);
        sum += line.amount;
        lines.put(line_key, &line)?;
    }
    let (customers, customer_key) =
        (tables.customer.within(transaction), (warehouse, district, order.customer));
    let mut customer: Customer = promised(customers.get(customer_key)?, "customer")?;
    customer.balance += sum;
    customer.deliveries += 1;
    customers.put(customer_key, &customer)?;
    Ok(Some(key.2))
}

/// Counts the items of a district's last 20 orders whose stock is below `threshold`.
fn stock_level(
    tables: &Tables,
    snapshot: &Snapshot,
    (warehouse, district): (WarehouseId, DistrictId),
    threshold: i32,
) -> Result<usize> {
    let district_row = promised(tables.district.at(snapshot).get((warehouse, district))?, "district")?;
    let next = district_row.next_order;
    let recent = (warehouse, district, next.saturating_sub(20), 0)..(warehouse, district, next, 0);
    let mut items = BTreeSet::new();
    for line in tables.order_line.at(snapshot).range(recent) {
        items.insert((warehouse, line?.1.item));
    }
    let stocks = tables.stock.at(snapshot).get_many(&items)?;
    let mut low = 0;
    for stock in stocks {
        low += usize::from(promised(stock, "stock")?.quantity < threshold);
    }
    Ok(low)
}
