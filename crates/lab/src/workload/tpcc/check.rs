//! The consistency conditions of TPC-C (clause 3.3.2), in one snapshot.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound::{self, Excluded, Included, Unbounded};

use terrace::{Db, Result, Snapshot};

use super::rows::{CustomerId, DistrictId, HistoryKey, Money, Order, OrderId, Tables, WarehouseId};
use super::{DISTRICTS, Scale};

/// A condition that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The condition's number: 3.3.2.N.
    pub condition: u8,
    /// Which rows break it.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "consistency condition 3.3.2.{} does not hold: {}", self.condition, self.what)
    }
}

/// When the conditions are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Directly after the load, where condition 11 holds too.
    Loaded,
    /// Later.
    Running,
}

impl Moment {
    /// How many conditions hold then.
    pub fn conditions(self) -> u8 {
        match self {
            Moment::Loaded => 12,
            Moment::Running => 11,
        }
    }
}

/// Checks all conditions and returns those that do not hold, each once.
///
/// # Errors
/// Those of reading.
pub fn check(db: &Db, tables: &Tables, scale: Scale, moment: Moment) -> Result<Vec<Broken>> {
    let mut check = Check { tables, snapshot: db.snapshot(), scale, moment, findings: Findings::default() };
    let mut booked = Booked::new();
    for warehouse in 1..=scale.warehouses {
        check.warehouse(warehouse, &mut booked)?;
    }
    check.booked(&booked)?;
    Ok(check.findings.0.into_values().collect())
}

/// Payments by the district that booked them, which need not be the customer's.
type Booked = BTreeMap<(WarehouseId, DistrictId), Money>;

struct Check<'a> {
    tables: &'a Tables,
    snapshot: Snapshot,
    scale: Scale,
    moment: Moment,
    findings: Findings,
}

impl Check<'_> {
    /// All conditions of a warehouse, but those of payments booked by its districts, which customers
    /// of other warehouses make too. These payments are added to `booked`.
    fn warehouse(&mut self, warehouse: WarehouseId, booked: &mut Booked) -> Result<()> {
        let (tables, snapshot) = (self.tables, self.snapshot.clone());
        let mut customers = Customers::default();
        for entry in tables.history.at(&snapshot).range(self.history(warehouse)) {
            let ((of, district, customer, _), row) = entry?;
            *booked.entry((row.warehouse, row.district)).or_default() += row.amount;
            if of == warehouse {
                customers.paid(district, customer, row.amount);
            }
        }
        for district in 1..=DISTRICTS {
            let at = (warehouse, district);
            let orders = self.orders(at)?;
            self.lines(at, &orders, &mut customers)?;
        }
        for entry in tables.customer.at(&snapshot).prefix((warehouse,)) {
            let ((_, district, number), row) = entry?;
            let (at, (delivered, paid)) = ((warehouse, district), customers.of(district, number));
            let told = format!("the balance of customer {number}");
            self.findings.equal(10, at, &told, Some(row.balance), Some(delivered - paid));
            let told = format!("balance and payments of customer {number}");
            self.findings.equal(12, at, &told, Some(row.balance + row.paid), Some(delivered));
        }
        Ok(())
    }

    /// The keys of a warehouse's customers in `history`. With the first and the last warehouse are
    /// those of warehouses that do not exist.
    fn history(&self, warehouse: WarehouseId) -> (Bound<HistoryKey>, Bound<HistoryKey>) {
        let first_of = |warehouse| (warehouse, 0, 0, 0);
        let from = if warehouse == 1 { Unbounded } else { Included(first_of(warehouse)) };
        let is_last = warehouse == self.scale.warehouses;
        (from, if is_last { Unbounded } else { Excluded(first_of(warehouse + 1)) })
    }

    /// Conditions 1, 8 and 9, with the payments of all customers.
    fn booked(&mut self, booked: &Booked) -> Result<()> {
        let (tables, snapshot) = (self.tables, self.snapshot.clone());
        for warehouse in 1..=self.scale.warehouses {
            let mut districts = 0;
            for district in 1..=DISTRICTS {
                let at = (warehouse, district);
                let paid = tables.district_paid.at(&snapshot).get(at)?;
                districts += paid.unwrap_or(0);
                let own = booked.get(&at).copied().unwrap_or(0);
                self.findings.equal(9, at, "the district's payments", paid, Some(own));
            }
            let paid = tables.warehouse_paid.at(&snapshot).get(warehouse)?;
            let own = booked.range((warehouse, 0)..(warehouse + 1, 0)).map(|(_, amount)| amount).sum();
            let at = (warehouse, 0);
            self.findings.equal(1, at, "the sums of the districts", paid, Some(districts));
            self.findings.equal(8, at, "the payments", paid, Some(own));
        }
        Ok(())
    }

    /// Conditions 2, 3, 5 and 11 for the orders of a district, which it returns.
    fn orders(&mut self, at: (WarehouseId, DistrictId)) -> Result<BTreeMap<OrderId, Order>> {
        let (tables, snapshot) = (self.tables, &self.snapshot);
        let orders = tables.order.at(snapshot).prefix(at).map(|entry| entry.map(|(key, row)| (key.2, row)));
        let orders: BTreeMap<OrderId, Order> = orders.collect::<Result<_>>()?;
        let new = tables.new_order.at(snapshot).prefix(at).map(|entry| entry.map(|(key, ())| key.2));
        let new: Vec<OrderId> = new.collect::<Result<_>>()?;
        let next = tables.district.at(snapshot).get(at)?.map(|row| row.next_order);
        self.findings.orders(at, next, &orders, &new);
        if self.moment == Moment::Loaded {
            let found = orders.len() as i64 - new.len() as i64;
            let wanted = i64::from(self.scale.first_new_order()) - 1;
            self.findings.equal(11, at, "orders that are not new", Some(found), Some(wanted));
        }
        Ok(orders)
    }

    /// Conditions 4, 6 and 7 for the lines of a district's orders.
    fn lines(
        &mut self,
        at: (WarehouseId, DistrictId),
        orders: &BTreeMap<OrderId, Order>,
        customers: &mut Customers,
    ) -> Result<()> {
        let (mut lines, mut all) = (BTreeMap::new(), 0i64);
        for entry in self.tables.order_line.at(&self.snapshot).prefix(at) {
            let ((_, district, order, number), line) = entry?;
            *lines.entry(order).or_insert(0u32) += 1;
            all += 1;
            let row = orders.get(&order);
            if line.delivered.is_some() != row.is_some_and(|row| row.carrier.is_some()) {
                self.findings.add(7, at, format!("line {number} of order {order} has another state than it"));
            }
            if let (Some(_), Some(row)) = (line.delivered, row) {
                customers.delivered(district, row.customer, line.amount);
            }
        }
        let wanted = orders.values().map(|row| i64::from(row.lines)).sum();
        self.findings.equal(4, at, "lines of all orders", Some(all), Some(wanted));
        for (order, row) in orders {
            let count = lines.get(order).copied().unwrap_or(0);
            if count != u32::from(row.lines) {
                self.findings.add(6, at, format!("order {order} has {count} lines, not {}", row.lines));
            }
        }
        Ok(())
    }
}

/// What the customers of a warehouse got and paid.
#[derive(Default)]
struct Customers(BTreeMap<(DistrictId, CustomerId), (Money, Money)>);

impl Customers {
    fn delivered(&mut self, district: DistrictId, customer: CustomerId, amount: Money) {
        self.0.entry((district, customer)).or_default().0 += amount;
    }

    fn paid(&mut self, district: DistrictId, customer: CustomerId, amount: Money) {
        self.0.entry((district, customer)).or_default().1 += amount;
    }

    /// Cents of goods delivered, and cents paid.
    fn of(&self, district: DistrictId, customer: CustomerId) -> (Money, Money) {
        self.0.get(&(district, customer)).copied().unwrap_or_default()
    }
}

/// The first finding for each condition.
#[derive(Default)]
struct Findings(BTreeMap<u8, Broken>);

impl Findings {
    fn add(&mut self, condition: u8, (warehouse, district): (WarehouseId, DistrictId), what: String) {
        let of = match district {
            0 => format!("warehouse {warehouse}"),
            _ => format!("warehouse {warehouse}, district {district}"),
        };
        self.0.entry(condition).or_insert_with(|| Broken { condition, what: format!("{of}: {what}") });
    }

    fn equal(
        &mut self,
        condition: u8,
        at: (WarehouseId, DistrictId),
        what: &str,
        found: Option<i64>,
        wanted: Option<i64>,
    ) {
        if found != wanted {
            let show = |value: Option<i64>| value.map_or("no row".into(), |value| value.to_string());
            self.add(condition, at, format!("{what}: {}, not {}", show(found), show(wanted)));
        }
    }

    /// The conditions 2, 3 and 5 for the orders of a district. Without a new order, only the first
    /// half of condition 2 says anything.
    fn orders(
        &mut self,
        at: (WarehouseId, DistrictId),
        next: Option<OrderId>,
        orders: &BTreeMap<OrderId, Order>,
        new: &[OrderId],
    ) {
        let last = next.map(|next| i64::from(next) - 1);
        let highest = orders.keys().next_back().map_or(0, |&order| i64::from(order));
        self.equal(2, at, "the number of the last order", last, Some(highest));
        if let (Some(&first_new), Some(&last_new)) = (new.first(), new.last()) {
            self.equal(2, at, "the number of the last new order", Some(last_new.into()), last);
            let span = i64::from(last_new) - i64::from(first_new) + 1;
            self.equal(3, at, "new orders", Some(new.len() as i64), Some(span));
        }
        for (order, row) in orders {
            if row.carrier.is_none() != new.binary_search(order).is_ok() {
                self.add(5, at, format!("order {order} is new and has a carrier, or neither"));
            }
        }
        for order in new {
            if !orders.contains_key(order) {
                self.add(5, at, format!("new order {order} is no order"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrace::{MemoryDirectory, TableOptions};

    use super::super::load::load;
    use super::super::rows::History;
    use super::super::transactions::{Outcome, Worker};
    use super::super::{Kind, Mix};
    use super::*;

    const SCALE: Scale = Scale { warehouses: 2, items: 60, customers: 30 };

    fn business() -> (Db, Tables) {
        let db = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(16 << 20).open("").unwrap();
        let tables = Tables::open(&db, &TableOptions::new()).unwrap();
        load::<terrace::Error>(&db, &tables, SCALE, 1, |_| Ok(())).unwrap();
        (db, tables)
    }

    fn numbers(db: &Db, tables: &Tables, moment: Moment) -> Vec<u8> {
        check(db, tables, SCALE, moment).unwrap().iter().map(|broken| broken.condition).collect()
    }

    #[test]
    fn all_conditions_hold_after_the_load_and_after_each_kind_of_transaction() {
        let (db, tables) = business();
        assert_eq!(check(&db, &tables, SCALE, Moment::Loaded).unwrap(), []);
        for (number, mix) in
            ["100,0,0,0,0", "0,100,0,0,0", "0,0,100,0,0", "0,0,0,100,0", "0,0,0,0,100", "45,43,4,4,4"]
                .into_iter()
                .enumerate()
        {
            let mut worker = Worker::new(&db, &tables, SCALE, mix.parse().unwrap(), 9, number as u64);
            let done: Vec<_> = (0..300).map(|_| worker.step().unwrap()).collect();
            assert_eq!(check(&db, &tables, SCALE, Moment::Running).unwrap(), [], "{mix}");
            match mix {
                "100,0,0,0,0" => {
                    let refused = done.iter().filter(|&&outcome| outcome == Outcome::RolledBack).count();
                    assert!((1..20).contains(&refused), "{refused} of 300");
                }
                "0,0,0,100,0" => assert_eq!(done[299], Outcome::Skipped, "all orders are delivered"),
                "45,43,4,4,4" => assert!(done.contains(&Outcome::Committed(Kind::NewOrder))),
                _ => assert!(done.iter().all(|outcome| matches!(outcome, Outcome::Committed(_)))),
            }
        }
        assert!(numbers(&db, &tables, Moment::Loaded).contains(&11), "it holds after the load only");
    }

    #[test]
    fn threads_together_keep_the_conditions() {
        let (db, tables) = business();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (db, tables) = (&db, &tables);
                scope.spawn(move || {
                    let mut worker = Worker::new(db, tables, SCALE, Mix::default(), 4, thread);
                    (0..300).for_each(|_| _ = worker.step().unwrap());
                });
            }
        });
        assert_eq!(check(&db, &tables, SCALE, Moment::Running).unwrap(), []);
    }

    fn payment_at(warehouse: WarehouseId, district: DistrictId) -> History {
        History { warehouse, district, date: 0, amount: 1, data: String::new() }
    }

    /// The conditions that a change of some rows breaks.
    type Case<'a> = (&'a [u8], &'a dyn Fn(&Tables));

    /// Each condition is broken by hand in the last district, and reported by its number.
    #[test]
    fn each_condition_is_found_broken_by_its_number() {
        let at = (2, 10);
        let order = (2, 10, 5);
        let cases: [Case<'_>; 14] = [
            (&[1, 8], &|t| t.warehouse_paid.put(2, t.warehouse_paid.get(2).unwrap().unwrap() + 1).unwrap()),
            (&[1, 9], &|t| t.district_paid.put(at, t.district_paid.get(at).unwrap().unwrap() - 1).unwrap()),
            (&[2], &|t| {
                let mut row = t.district.get(at).unwrap().unwrap();
                row.next_order += 1;
                t.district.put(at, &row).unwrap();
            }),
            (&[3, 5], &|t| assert!(t.new_order.delete((2, 10, 25)).unwrap())),
            (&[4, 6], &|t| assert!(t.order_line.delete((2, 10, 25, 1)).unwrap())),
            (&[5, 7], &|t| {
                let mut row = t.order.get(order).unwrap().unwrap();
                row.carrier = None;
                t.order.put(order, &row).unwrap();
            }),
            (&[4, 6], &|t| {
                let mut row = t.order.get(order).unwrap().unwrap();
                row.lines += 1;
                t.order.put(order, &row).unwrap();
            }),
            (&[7], &|t| {
                let mut row = t.order_line.get((2, 10, 5, 1)).unwrap().unwrap();
                row.delivered = None;
                t.order_line.put((2, 10, 5, 1), &row).unwrap();
            }),
            (&[8, 9, 10], &|t| {
                let mut row = t.history.get((2, 10, 30, 1)).unwrap().unwrap();
                row.amount += 1;
                t.history.put((2, 10, 30, 1), &row).unwrap();
            }),
            // Payments of customers of warehouses that do not exist.
            (&[8, 9], &|t| t.history.put((0, 1, 1, 1), &payment_at(2, 10)).unwrap()),
            (&[8, 9], &|t| t.history.put((3, 10, 1, 1), &payment_at(1, 1)).unwrap()),
            (&[10, 12], &|t| {
                let mut row = t.customer.get((2, 10, 30)).unwrap().unwrap();
                row.balance += 1;
                t.customer.put((2, 10, 30), &row).unwrap();
            }),
            (&[12], &|t| {
                let mut row = t.customer.get((2, 10, 30)).unwrap().unwrap();
                row.paid -= 1;
                t.customer.put((2, 10, 30), &row).unwrap();
            }),
            (&[2, 3, 5], &|t| t.new_order.put((2, 10, 32), ()).unwrap()),
        ];
        for (wanted, break_it) in cases {
            let (db, tables) = business();
            break_it(&tables);
            assert_eq!(numbers(&db, &tables, Moment::Running), wanted);
        }
    }

    #[test]
    fn an_order_too_few_after_the_load_breaks_condition_11() {
        let (db, tables) = business();
        assert!(tables.order.delete((1, 3, 4)).unwrap());
        assert!(numbers(&db, &tables, Moment::Loaded).contains(&11));
        let broken = check(&db, &tables, SCALE, Moment::Loaded).unwrap();
        let told = broken.iter().find(|broken| broken.condition == 11).unwrap().to_string();
        assert!(
            told.contains("3.3.2.11")
                && told.contains("warehouse 1, district 3: orders that are not new: 20, not 21"),
            "{told}"
        );
    }
}
