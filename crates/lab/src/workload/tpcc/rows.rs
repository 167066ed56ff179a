//! The rows of TPC-C, and its tables with their keys (clause 1.3).

use serde::{Deserialize, Serialize};
use terrace::{Db, Postcard, Result, Table, TableOptions, TypedTable};

/// Number of a warehouse, from 1.
pub type WarehouseId = u32;
/// Number of a district in its warehouse, from 1.
pub type DistrictId = u8;
/// Number of a customer in its district, from 1.
pub type CustomerId = u32;
/// Number of an order in its district, from 1.
pub type OrderId = u32;
/// Number of an item, from 1.
pub type ItemId = u32;
/// Cents.
pub type Money = i64;
/// Key of a payment: the customer, and the payment's number for this customer.
pub type HistoryKey = (WarehouseId, DistrictId, CustomerId, u32);
/// Key of the index of customers: last name, first name, number.
pub type NameKey = (WarehouseId, DistrictId, String, String, CustomerId);

/// An address.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Address {
    pub street_1: String,
    pub street_2: String,
    pub city: String,
    pub state: String,
    pub zip: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Warehouse {
    pub name: String,
    pub address: Address,
    /// In ten-thousandths.
    pub tax: u16,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct District {
    pub name: String,
    pub address: Address,
    /// In ten-thousandths.
    pub tax: u16,
    pub next_order: OrderId,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Customer {
    pub first: String,
    pub middle: String,
    pub last: String,
    pub address: Address,
    pub phone: String,
    pub since: u64,
    /// "BC" is bad credit: each payment adds to `data`.
    pub credit: String,
    pub credit_limit: Money,
    /// In ten-thousandths.
    pub discount: u16,
    pub balance: Money,
    pub paid: Money,
    pub payments: u32,
    pub deliveries: u32,
    pub data: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct History {
    pub warehouse: WarehouseId,
    pub district: DistrictId,
    pub date: u64,
    pub amount: Money,
    pub data: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Order {
    pub customer: CustomerId,
    pub entered: u64,
    /// The carrier, once delivered.
    pub carrier: Option<u8>,
    pub lines: u8,
    pub is_local: bool,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct OrderLine {
    pub item: ItemId,
    pub supplier: WarehouseId,
    pub delivered: Option<u64>,
    pub quantity: u8,
    pub amount: Money,
    pub district_info: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Item {
    pub image: u32,
    pub name: String,
    pub price: Money,
    pub data: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Stock {
    pub quantity: i32,
    /// 24 letters for each district.
    pub districts: Vec<String>,
    pub sold: u64,
    pub orders: u32,
    pub remote: u32,
    pub data: String,
}

/// The tables.
#[derive(Clone, Debug)]
pub struct Tables {
    pub warehouse: TypedTable<WarehouseId, Postcard<Warehouse>>,
    pub warehouse_paid: TypedTable<WarehouseId, i64>,
    pub district: TypedTable<(WarehouseId, DistrictId), Postcard<District>>,
    pub district_paid: TypedTable<(WarehouseId, DistrictId), i64>,
    pub customer: TypedTable<(WarehouseId, DistrictId, CustomerId), Postcard<Customer>>,
    /// Customers by last name, then first name.
    pub customer_by_name: TypedTable<NameKey, ()>,
    pub history: TypedTable<HistoryKey, Postcard<History>>,
    pub new_order: TypedTable<(WarehouseId, DistrictId, OrderId), ()>,
    pub order: TypedTable<(WarehouseId, DistrictId, OrderId), Postcard<Order>>,
    /// Orders of a customer, in order of their numbers.
    pub order_by_customer: TypedTable<(WarehouseId, DistrictId, CustomerId, OrderId), ()>,
    pub order_line: TypedTable<(WarehouseId, DistrictId, OrderId, u8), Postcard<OrderLine>>,
    pub item: TypedTable<ItemId, Postcard<Item>>,
    pub stock: TypedTable<(WarehouseId, ItemId), Postcard<Stock>>,
}

/// The tables' names in the database.
pub const NAMES: [&str; 13] = [
    "tpcc.warehouse",
    "tpcc.warehouse_paid",
    "tpcc.district",
    "tpcc.district_paid",
    "tpcc.customer",
    "tpcc.customer_by_name",
    "tpcc.history",
    "tpcc.new_order",
    "tpcc.order",
    "tpcc.order_by_customer",
    "tpcc.order_line",
    "tpcc.item",
    "tpcc.stock",
];

impl Tables {
    /// Opens the tables, created with `options` where they are missing.
    ///
    /// # Errors
    /// Those of opening and creating a table.
    pub fn open(db: &Db, options: &TableOptions) -> Result<Tables> {
        Tables::with(|name| match db.open_table(name) {
            Err(terrace::Error::TableNotFound(_)) => db.create_table_with(name, options),
            found => found,
        })
    }

    /// Opens the tables of an earlier load.
    ///
    /// # Errors
    /// Those of opening a table.
    pub fn existing(db: &Db) -> Result<Tables> {
        Tables::with(|name| db.open_table(name))
    }

    /// Makes the tables of those that `table` gives for [`NAMES`].
    fn with(mut table: impl FnMut(&str) -> Result<Table>) -> Result<Tables> {
        let mut names = NAMES.into_iter();
        let mut next = || table(names.next().expect("each table has a name"));
        Ok(Tables {
            warehouse: next()?.typed(),
            warehouse_paid: next()?.typed(),
            district: next()?.typed(),
            district_paid: next()?.typed(),
            customer: next()?.typed(),
            customer_by_name: next()?.typed(),
            history: next()?.typed(),
            new_order: next()?.typed(),
            order: next()?.typed(),
            order_by_customer: next()?.typed(),
            order_line: next()?.typed(),
            item: next()?.typed(),
            stock: next()?.typed(),
        })
    }
}
