//! The consistency conditions of TPC-C (clause 3.3.2), in one snapshot.

use std::collections::BTreeMap;
use std::fmt;

use terrace_common::failure::Outcome;

use super::access::{Engine, Reads, Span};
use super::rows::{self, CustomerId, DistrictId, Money, Order, OrderId, WarehouseId};
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

/// What the conditions were checked with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The conditions that do not hold, each once.
    pub broken: Vec<Broken>,
    /// Orders in the business.
    pub orders: u64,
}

/// Checks all conditions in one snapshot.
///
/// # Errors
/// Those of reading.
pub fn check<E: Engine>(engine: &E, scale: Scale, moment: Moment) -> Outcome<Checked> {
    engine.read(|snapshot| {
        let mut check = Check { snapshot, scale, moment, findings: Findings::default(), found: 0 };
        let mut booked = Booked::new();
        for warehouse in 1..=scale.warehouses {
            check.warehouse(warehouse, &mut booked)?;
        }
        check.booked(&booked)?;
        Ok(Checked { broken: check.findings.0.into_values().collect(), orders: check.found })
    })
}

/// Payments by the district that booked them, which need not be the customer's.
type Booked = BTreeMap<(WarehouseId, DistrictId), Money>;

struct Check<'a, R> {
    snapshot: &'a mut R,
    scale: Scale,
    moment: Moment,
    findings: Findings,
    /// Orders so far.
    found: u64,
}

impl<R: Reads> Check<'_, R> {
    /// All conditions of a warehouse, but those of payments that its districts have booked, which
    /// customers of other warehouses make too. Adds these payments to `booked`.
    fn warehouse(&mut self, warehouse: WarehouseId, booked: &mut Booked) -> Outcome {
        let mut customers = Customers::default();
        let span = self.history(warehouse);
        rows::HISTORY.each(self.snapshot, &span, |(of, district, customer, _), row| {
            *booked.entry((row.warehouse, row.district)).or_default() += row.amount;
            if of == warehouse {
                customers.paid(district, customer, row.amount);
            }
        })?;
        for district in 1..=DISTRICTS {
            let at = (warehouse, district);
            let orders = self.orders(at)?;
            self.lines(at, &orders, &mut customers)?;
        }
        let findings = &mut self.findings;
        let span = rows::CUSTOMER.prefix((warehouse,));
        rows::CUSTOMER.each(self.snapshot, &span, |(_, district, number), row| {
            let (at, (delivered, paid)) = ((warehouse, district), customers.of(district, number));
            let told = format!("the balance of customer {number}");
            findings.equal(10, at, &told, Some(row.balance), Some(delivered - paid));
            let told = format!("balance and payments of customer {number}");
            findings.equal(12, at, &told, Some(row.balance + row.paid), Some(delivered));
        })
    }

    /// The keys of a warehouse's customers in `history`. With the first and the last warehouse are
    /// those of warehouses that do not exist.
    fn history(&self, warehouse: WarehouseId) -> Span {
        let first_of = |warehouse| (warehouse, 0, 0, 0);
        let (is_first, is_last) = (warehouse == 1, warehouse == self.scale.warehouses);
        let from = (!is_first).then(|| first_of(warehouse));
        rows::HISTORY.span(from, (!is_last).then(|| first_of(warehouse + 1)))
    }

    /// Conditions 1, 8 and 9, with the payments of all customers.
    fn booked(&mut self, booked: &Booked) -> Outcome {
        for warehouse in 1..=self.scale.warehouses {
            let mut districts = 0;
            for district in 1..=DISTRICTS {
                let at = (warehouse, district);
                let paid = rows::DISTRICT_PAID.get(self.snapshot, at)?;
                districts += paid.unwrap_or(0);
                let own = booked.get(&at).copied().unwrap_or(0);
                self.findings.equal(9, at, "the district's payments", paid, Some(own));
            }
            let paid = rows::WAREHOUSE_PAID.get(self.snapshot, warehouse)?;
            let own = booked.range((warehouse, 0)..(warehouse + 1, 0)).map(|(_, amount)| amount).sum();
            let at = (warehouse, 0);
            self.findings.equal(1, at, "the sums of the districts", paid, Some(districts));
            self.findings.equal(8, at, "the payments", paid, Some(own));
        }
        Ok(())
    }

    /// Conditions 2, 3, 5 and 11 for the orders of a district, which it returns.
    fn orders(&mut self, at: (WarehouseId, DistrictId)) -> Outcome<BTreeMap<OrderId, Order>> {
        let (mut orders, mut new) = (BTreeMap::new(), Vec::new());
        let span = rows::ORDER.prefix(at);
        rows::ORDER.each(self.snapshot, &span, |key, row| _ = orders.insert(key.2, row))?;
        let span = rows::NEW_ORDER.prefix(at);
        rows::NEW_ORDER.each(self.snapshot, &span, |key, ()| new.push(key.2))?;
        let next = rows::DISTRICT.get(self.snapshot, at)?.map(|row| row.next_order);
        self.found += orders.len() as u64;
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
    ) -> Outcome {
        let (mut lines, mut all) = (BTreeMap::new(), 0i64);
        let (findings, span) = (&mut self.findings, rows::ORDER_LINE.prefix(at));
        rows::ORDER_LINE.each(self.snapshot, &span, |(_, district, order, number), line| {
            *lines.entry(order).or_insert(0u32) += 1;
            all += 1;
            let row = orders.get(&order);
            if line.delivered.is_some() != row.is_some_and(|row| row.carrier.is_some()) {
                findings.add(7, at, format!("line {number} of order {order} has another state than it"));
            }
            if let (Some(_), Some(row)) = (line.delivered, row) {
                customers.delivered(district, row.customer, line.amount);
            }
        })?;
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

    use terrace::{Db, MemoryDirectory, TableOptions};

    use super::super::load::load;
    use super::super::rows::History;
    use super::super::tables::{Tables, Within};
    use super::super::transactions::{Outcome as Ended, Worker};
    use super::super::{Kind, Mix};
    use super::*;

    const SCALE: Scale = Scale { warehouses: 2, items: 60, customers: 30 };

    fn business() -> Tables {
        let db = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(16 << 20).open("").unwrap();
        let tables = Tables::open(&db, &TableOptions::new()).unwrap();
        load(&tables, SCALE, 1, |_| Ok(())).unwrap();
        tables
    }

    fn broken(tables: &Tables, moment: Moment) -> Vec<Broken> {
        check(tables, SCALE, moment).unwrap().broken
    }

    fn numbers(tables: &Tables, moment: Moment) -> Vec<u8> {
        broken(tables, moment).iter().map(|broken| broken.condition).collect()
    }

    #[test]
    fn all_conditions_hold_after_the_load_and_after_each_kind_of_transaction() {
        let tables = business();
        assert_eq!(broken(&tables, Moment::Loaded), []);
        for (number, mix) in
            ["100,0,0,0,0", "0,100,0,0,0", "0,0,100,0,0", "0,0,0,100,0", "0,0,0,0,100", "45,43,4,4,4"]
                .into_iter()
                .enumerate()
        {
            let mut worker = Worker::new(tables.clone(), SCALE, mix.parse().unwrap(), 9, number as u64);
            let done: Vec<_> = (0..300).map(|_| worker.step().unwrap()).collect();
            assert_eq!(broken(&tables, Moment::Running), [], "{mix}");
            match mix {
                "100,0,0,0,0" => {
                    let refused = done.iter().filter(|&&outcome| outcome == Ended::RolledBack).count();
                    assert!((1..20).contains(&refused), "{refused} of 300");
                }
                "0,0,0,100,0" => assert_eq!(done[299], Ended::Skipped, "all orders are delivered"),
                "45,43,4,4,4" => assert!(done.contains(&Ended::Committed(Kind::NewOrder))),
                _ => assert!(done.iter().all(|outcome| matches!(outcome, Ended::Committed(_)))),
            }
        }
        assert!(numbers(&tables, Moment::Loaded).contains(&11), "it holds after the load only");
    }

    #[test]
    fn threads_together_keep_the_conditions() {
        let tables = business();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let tables = &tables;
                scope.spawn(move || {
                    let mut worker = Worker::new(tables.clone(), SCALE, Mix::default(), 4, thread);
                    (0..300).for_each(|_| _ = worker.step().unwrap());
                });
            }
        });
        assert_eq!(broken(&tables, Moment::Running), []);
    }

    fn payment_at(warehouse: WarehouseId, district: DistrictId) -> History {
        History { warehouse, district, date: 0, amount: 1, data: String::new() }
    }

    /// The conditions that a change of some rows breaks.
    type Case<'a> = (&'a [u8], &'a dyn Fn(&mut Within<'_>) -> Outcome);

    /// Each condition is broken by hand in the last district, and reported by its number.
    #[test]
    fn each_condition_is_found_broken_by_its_number() {
        let (at, order, customer) = ((2, 10), (2, 10, 5), (2, 10, 30));
        let cases: [Case<'_>; 14] = [
            (&[1, 8], &|t| {
                let cents = rows::WAREHOUSE_PAID.get(t, 2)?.unwrap();
                rows::WAREHOUSE_PAID.put(t, 2, cents + 1)
            }),
            (&[1, 9], &|t| {
                let cents = rows::DISTRICT_PAID.get(t, at)?.unwrap();
                rows::DISTRICT_PAID.put(t, at, cents - 1)
            }),
            (&[2], &|t| {
                let mut row = rows::DISTRICT.get(t, at)?.unwrap();
                row.next_order += 1;
                rows::DISTRICT.put(t, at, &row)
            }),
            (&[3, 5], &|t| rows::NEW_ORDER.delete(t, (2, 10, 25))),
            (&[4, 6], &|t| rows::ORDER_LINE.delete(t, (2, 10, 25, 1))),
            (&[5, 7], &|t| {
                let mut row = rows::ORDER.get(t, order)?.unwrap();
                row.carrier = None;
                rows::ORDER.put(t, order, &row)
            }),
            (&[4, 6], &|t| {
                let mut row = rows::ORDER.get(t, order)?.unwrap();
                row.lines += 1;
                rows::ORDER.put(t, order, &row)
            }),
            (&[7], &|t| {
                let mut row = rows::ORDER_LINE.get(t, (2, 10, 5, 1))?.unwrap();
                row.delivered = None;
                rows::ORDER_LINE.put(t, (2, 10, 5, 1), &row)
            }),
            (&[8, 9, 10], &|t| {
                let mut row = rows::HISTORY.get(t, (2, 10, 30, 1))?.unwrap();
                row.amount += 1;
                rows::HISTORY.put(t, (2, 10, 30, 1), &row)
            }),
            // Payments of customers of warehouses that do not exist.
            (&[8, 9], &|t| rows::HISTORY.put(t, (0, 1, 1, 1), payment_at(2, 10))),
            (&[8, 9], &|t| rows::HISTORY.put(t, (3, 10, 1, 1), payment_at(1, 1))),
            (&[10, 12], &|t| {
                let mut row = rows::CUSTOMER.get(t, customer)?.unwrap();
                row.balance += 1;
                rows::CUSTOMER.put(t, customer, &row)
            }),
            (&[12], &|t| {
                let mut row = rows::CUSTOMER.get(t, customer)?.unwrap();
                row.paid -= 1;
                rows::CUSTOMER.put(t, customer, &row)
            }),
            (&[2, 3, 5], &|t| rows::NEW_ORDER.put(t, (2, 10, 32), ())),
        ];
        for (wanted, break_it) in cases {
            let tables = business();
            tables.update(|transaction| Ok(break_it(transaction)?)).unwrap();
            assert_eq!(numbers(&tables, Moment::Running), wanted);
        }
    }

    #[test]
    fn an_order_too_few_after_the_load_breaks_condition_11() {
        let tables = business();
        tables.update(|transaction| Ok(rows::ORDER.delete(transaction, (1, 3, 4))?)).unwrap();
        assert!(numbers(&tables, Moment::Loaded).contains(&11));
        let broken = broken(&tables, Moment::Loaded);
        let told = broken.iter().find(|broken| broken.condition == 11).unwrap().to_string();
        assert!(
            told.contains("3.3.2.11")
                && told.contains("warehouse 1, district 3: orders that are not new: 20, not 21"),
            "{told}"
        );
    }
}
