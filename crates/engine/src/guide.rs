//! Compiles and runs the examples of `docs/guide`.

#[doc = include_str!("../../../docs/guide/first-steps.md")]
struct FirstSteps;

#[doc = include_str!("../../../docs/guide/tables.md")]
struct Tables;

#[doc = include_str!("../../../docs/guide/transactions.md")]
struct Transactions;

#[doc = include_str!("../../../docs/guide/durability.md")]
struct Durability;

#[doc = include_str!("../../../docs/guide/ranges.md")]
struct Ranges;

#[doc = include_str!("../../../docs/guide/snapshots.md")]
struct Snapshots;

#[doc = include_str!("../../../docs/guide/many-reads.md")]
struct ManyReads;

#[doc = include_str!("../../../docs/guide/memory.md")]
struct Memory;

#[doc = include_str!("../../../docs/guide/operation.md")]
struct Operation;

#[doc = include_str!("../../../docs/guide/backup.md")]
struct Backup;

#[doc = include_str!("../../../docs/guide/pages.md")]
struct Pages;
