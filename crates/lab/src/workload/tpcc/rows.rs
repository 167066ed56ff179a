//! The rows of TPC-C, and its tables with their keys (clause 1.3).

use serde::{Deserialize, Serialize};
use terrace::Postcard;

use super::access::Rows;

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
/// Key of an order.
pub type OrderKey = (WarehouseId, DistrictId, OrderId);
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

/// The tables' numbers, with the types of their keys and rows.
pub const WAREHOUSE: Rows<WarehouseId, Postcard<Warehouse>> = Rows::at(0);
pub const WAREHOUSE_PAID: Rows<WarehouseId, Money> = Rows::at(1);
pub const DISTRICT: Rows<(WarehouseId, DistrictId), Postcard<District>> = Rows::at(2);
pub const DISTRICT_PAID: Rows<(WarehouseId, DistrictId), Money> = Rows::at(3);
pub const CUSTOMER: Rows<(WarehouseId, DistrictId, CustomerId), Postcard<Customer>> = Rows::at(4);
/// Customers by last name, then first name.
pub const CUSTOMER_BY_NAME: Rows<NameKey, ()> = Rows::at(5);
pub const HISTORY: Rows<HistoryKey, Postcard<History>> = Rows::at(6);
pub const NEW_ORDER: Rows<OrderKey, ()> = Rows::at(7);
pub const ORDER: Rows<OrderKey, Postcard<Order>> = Rows::at(8);
/// Orders of a customer, in order of their numbers.
pub const ORDER_BY_CUSTOMER: Rows<(WarehouseId, DistrictId, CustomerId, OrderId), ()> = Rows::at(9);
pub const ORDER_LINE: Rows<(WarehouseId, DistrictId, OrderId, u8), Postcard<OrderLine>> = Rows::at(10);
pub const ITEM: Rows<ItemId, Postcard<Item>> = Rows::at(11);
pub const STOCK: Rows<(WarehouseId, ItemId), Postcard<Stock>> = Rows::at(12);
