//! The five transactions of TPC-C (clauses 2.4 to 2.8).
//!
//! A worker stands for the terminals of one warehouse. It draws the input of a transaction before
//! it begins, so that runs after a conflict have the same input. The two transactions that only
//! read use a snapshot, which conflicts with nothing.

use std::collections::BTreeSet;

use super::access::{Direction, Ended, Engine, Reads, Writes};
use super::load::is_brand;
use super::random::Random;
use super::rows::{self, Customer, CustomerId, DistrictId, History, ItemId, Money};
use super::rows::{NameKey, Order, OrderId, OrderLine, WarehouseId};
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
pub struct Worker<E> {
    engine: E,
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

impl<E: Engine> Worker<E> {
    /// Worker number `thread`, whose home is a warehouse by turns.
    pub fn new(engine: E, scale: Scale, mix: Mix, seed: u64, thread: u64) -> Worker<E> {
        let home = (thread % u64::from(scale.warehouses)) as WarehouseId + 1;
        Worker { engine, scale, home, random: Random::new(scale, seed, thread), mix, now: 0, runs: 0 }
    }

    /// Runs a transaction of a kind drawn from the mix.
    ///
    /// # Errors
    /// [`Ended::Missing`] and [`Ended::Failed`].
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

    /// Goes on in another database with the same rows.
    pub fn go_on_in(&mut self, engine: E) {
        self.engine = engine;
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
        let (home, now) = (self.home, self.now);
        let done = self.engine.update(|transaction| {
            self.runs += 1;
            new_order(transaction, (home, district, customer), &wanted, now)
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
        let now = self.now;
        self.engine.update(|transaction| {
            self.runs += 1;
            payment(transaction, paid_at, customer_at, &named, amount, now)
        })
    }

    /// Clause 2.6.
    fn order_status(&mut self) -> Result<()> {
        let (district, named) = (self.district(), self.named());
        self.runs += 1;
        let at = (self.home, district);
        self.engine.read(|snapshot| order_status(snapshot, at, &named)).map(|_| ())
    }

    /// Clause 2.7: each district in a transaction of its own.
    fn delivery(&mut self) -> Result<Outcome> {
        let carrier = self.random.within(1, 10) as u8;
        let mut outcome = Outcome::Committed(Kind::Delivery);
        for district in 1..=DISTRICTS {
            let (home, now) = (self.home, self.now);
            let delivered = self.engine.update(|transaction| {
                self.runs += 1;
                deliver(transaction, (home, district), carrier, now)
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
        let at = (self.home, district);
        self.engine.read(|snapshot| stock_level(snapshot, at, threshold)).map(|_| ())
    }
}

/// Enters an order and returns its number and what it costs, taxes and discount included.
fn new_order(
    transaction: &mut impl Writes,
    (home, district, customer): (WarehouseId, DistrictId, CustomerId),
    wanted: &[Wanted],
    now: u64,
) -> Result<(OrderId, Money)> {
    let warehouse_row = promised(rows::WAREHOUSE.get(transaction, home)?, "warehouse")?;
    let customer_row = promised(rows::CUSTOMER.get(transaction, (home, district, customer))?, "customer")?;
    let mut district_row = promised(rows::DISTRICT.get(transaction, (home, district))?, "district")?;
    let number = district_row.next_order;
    district_row.next_order += 1;
    let taxes = Money::from(warehouse_row.tax) + Money::from(district_row.tax);
    rows::DISTRICT.put(transaction, (home, district), &district_row)?;
    let order = Order {
        customer,
        entered: now,
        carrier: None,
        lines: wanted.len() as u8,
        is_local: wanted.iter().all(|wanted| wanted.supplier == home),
    };
    rows::ORDER.put(transaction, (home, district, number), &order)?;
    rows::ORDER_BY_CUSTOMER.put(transaction, (home, district, customer, number), ())?;
    rows::NEW_ORDER.put(transaction, (home, district, number), ())?;
    let mut sum = 0;
    for (line, wanted) in (1u8..).zip(wanted) {
        let Some(item) = rows::ITEM.get(transaction, wanted.item)? else {
            return Err(Ended::UnknownItem);
        };
        let stock_key = (wanted.supplier, wanted.item);
        let mut stock = promised(rows::STOCK.get(transaction, stock_key)?, "stock")?;
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
        rows::STOCK.put(transaction, stock_key, &stock)?;
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
        rows::ORDER_LINE.put(transaction, (home, district, number, line), &row)?;
    }
    let total = sum * (10_000 - Money::from(customer_row.discount)) * (10_000 + taxes) / 100_000_000;
    Ok((number, total))
}

/// Books a payment at the district `paid_at` by a customer of `customer_at`.
fn payment(
    transaction: &mut impl Writes,
    paid_at: (WarehouseId, DistrictId),
    customer_at: (WarehouseId, DistrictId),
    named: &Named,
    amount: Money,
    now: u64,
) -> Result<()> {
    let (warehouse, district) = paid_at;
    let warehouse_row = promised(rows::WAREHOUSE.get(transaction, warehouse)?, "warehouse")?;
    let district_row = promised(rows::DISTRICT.get(transaction, paid_at)?, "district")?;
    let sum = promised(rows::WAREHOUSE_PAID.get(transaction, warehouse)?, "warehouse's sum")?;
    rows::WAREHOUSE_PAID.put(transaction, warehouse, sum + amount)?;
    let sum = promised(rows::DISTRICT_PAID.get(transaction, paid_at)?, "district's sum")?;
    rows::DISTRICT_PAID.put(transaction, paid_at, sum + amount)?;

    let number = customer_of(transaction, customer_at, named)?;
    let key = (customer_at.0, customer_at.1, number);
    let mut customer: Customer = promised(rows::CUSTOMER.get(transaction, key)?, "customer")?;
    customer.balance -= amount;
    customer.paid += amount;
    customer.payments += 1;
    if customer.credit == "BC" {
        let (c_warehouse, c_district) = customer_at;
        let told = format!("{number} {c_district} {c_warehouse} {district} {warehouse} {amount} ");
        customer.data.insert_str(0, &told);
        customer.data.truncate(DATA_BYTES);
    }
    rows::CUSTOMER.put(transaction, key, &customer)?;
    let data = format!("{}    {}", warehouse_row.name, district_row.name);
    let row = History { warehouse, district, date: now, amount, data };
    rows::HISTORY.put(transaction, (key.0, key.1, key.2, customer.payments), &row)?;
    Ok(())
}

/// The number of a customer; that in the middle of those with a last name, rounded up.
fn customer_of(
    reads: &mut impl Reads,
    (warehouse, district): (WarehouseId, DistrictId),
    named: &Named,
) -> Result<CustomerId> {
    let last = match named {
        Named::Number(number) => return Ok(*number),
        Named::LastName(last) => last.as_str(),
    };
    let span = rows::CUSTOMER_BY_NAME.prefix((warehouse, district, last));
    let mut numbers = Vec::new();
    rows::CUSTOMER_BY_NAME.each(reads, &span, |key: NameKey, ()| numbers.push(key.4))?;
    promised(numbers.len().checked_sub(1).map(|last| numbers[last / 2]), "customer with a last name")
}

/// Returns the balance of a customer and the lines of the customer's last order.
fn order_status(
    snapshot: &mut impl Reads,
    (warehouse, district): (WarehouseId, DistrictId),
    named: &Named,
) -> Result<(Money, Vec<OrderLine>)> {
    let number = customer_of(snapshot, (warehouse, district), named)?;
    let customer = promised(rows::CUSTOMER.get(snapshot, (warehouse, district, number))?, "customer")?;
    let span = rows::ORDER_BY_CUSTOMER.prefix((warehouse, district, number));
    let last = rows::ORDER_BY_CUSTOMER.first(snapshot, &span, Direction::Descending)?;
    let Some(((.., order), ())) = last else {
        return Ok((customer.balance, Vec::new()));
    };
    promised(rows::ORDER.get(snapshot, (warehouse, district, order))?, "order")?;
    let span = rows::ORDER_LINE.prefix((warehouse, district, order));
    let mut lines = Vec::new();
    rows::ORDER_LINE.each(snapshot, &span, |_, line| lines.push(line))?;
    Ok((customer.balance, lines))
}

/// Delivers the oldest new order of a district and returns its number.
fn deliver(
    transaction: &mut impl Writes,
    (warehouse, district): (WarehouseId, DistrictId),
    carrier: u8,
    now: u64,
) -> Result<Option<OrderId>> {
    let span = rows::NEW_ORDER.prefix((warehouse, district));
    let oldest = rows::NEW_ORDER.first(transaction, &span, Direction::Ascending)?;
    let Some((key, ())) = oldest else { return Ok(None) };
    rows::NEW_ORDER.delete(transaction, key)?;
    let mut order: Order = promised(rows::ORDER.get(transaction, key)?, "order")?;
    order.carrier = Some(carrier);
    rows::ORDER.put(transaction, key, &order)?;
    let mut sum = 0;
    let span = rows::ORDER_LINE.prefix(key);
    for (line_key, mut line) in rows::ORDER_LINE.all(transaction, &span)? {
        line.delivered = Some(now);
        sum += line.amount;
        rows::ORDER_LINE.put(transaction, line_key, &line)?;
    }
    let customer_key = (warehouse, district, order.customer);
    let mut customer: Customer = promised(rows::CUSTOMER.get(transaction, customer_key)?, "customer")?;
    customer.balance += sum;
    customer.deliveries += 1;
    rows::CUSTOMER.put(transaction, customer_key, &customer)?;
    Ok(Some(key.2))
}

/// Counts the items of a district's last 20 orders whose stock is below `threshold`.
fn stock_level(
    snapshot: &mut impl Reads,
    (warehouse, district): (WarehouseId, DistrictId),
    threshold: i32,
) -> Result<usize> {
    let district_row = promised(rows::DISTRICT.get(snapshot, (warehouse, district))?, "district")?;
    let next = district_row.next_order;
    let first_of = |order| Some((warehouse, district, order, 0));
    let recent = rows::ORDER_LINE.span(first_of(next.saturating_sub(20)), first_of(next));
    let mut items = BTreeSet::new();
    rows::ORDER_LINE.each(snapshot, &recent, |_, line| _ = items.insert((warehouse, line.item)))?;
    let stocks = rows::STOCK.get_many(snapshot, &items)?;
    let mut low = 0;
    for stock in stocks {
        low += usize::from(promised(stock, "stock")?.quantity < threshold);
    }
    Ok(low)
}
