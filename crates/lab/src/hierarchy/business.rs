//! TPC-C's transactions.
//!
//! Each transaction has another home. Computation is charged by the rows that a kind of transaction
//! touches ([`rows_of`]).

use terrace::Db;
use terrace_common::failure::{Failure, Outcome};
use terrace_io::{PAGE_NS, VirtualTime};

use super::noting::{Notes, Noting};
use super::versions::Versions;
use super::work::Work;
use crate::workload::tpcc::tables::Tables;
use crate::workload::tpcc::transactions::{Outcome as Ended, Worker};
use crate::workload::tpcc::{Kind, Mix, Scale};

/// Levels of the trees that matter.
const LEVELS: u64 = 3;

/// Rows that a transaction touches: those of its clause, and ten lines for an order.
fn rows_of(ended: Ended) -> u64 {
    match ended {
        Ended::Committed(Kind::NewOrder) | Ended::RolledBack => 47,
        Ended::Committed(Kind::Payment) => 12,
        Ended::Committed(Kind::OrderStatus) => 14,
        Ended::Committed(Kind::Delivery) | Ended::Skipped => 260,
        Ended::Committed(Kind::StockLevel) => 400,
    }
}

fn no_records() -> Failure {
    Failure::Work("a business has no records".into())
}

/// The workers, and the business.
pub(super) struct Business {
    tables: Tables,
    workers: Vec<Worker<Noting>>,
    versions: Option<(Versions, Notes)>,
    scale: Scale,
    /// Computation of an access to a row.
    nanoseconds: u64,
}

impl Business {
    pub(super) fn new(
        db: &Db,
        scale: Scale,
        workers: usize,
        seed: u64,
        operation_ns: u64,
        versions: bool,
    ) -> Outcome<Business> {
        let tables = Tables::existing(db)?;
        let versions = match versions {
            true => Some((Versions::open(db, scale.rows())?, Notes::default())),
            false => None,
        };
        let notes = versions.as_ref().map(|(_, notes)| notes.clone());
        let engine = Noting { tables: tables.clone(), notes };
        let worker = |number| Worker::new(engine.clone(), scale, Mix::default(), seed, number);
        Ok(Business {
            workers: (0..workers as u64).map(worker).collect(),
            versions,
            tables,
            scale,
            nanoseconds: operation_ns + LEVELS * PAGE_NS,
        })
    }
}

impl Work for Business {
    fn step(&mut self, worker: usize, time: &VirtualTime) -> Outcome {
        let own = &mut self.workers[worker];
        own.move_home();
        let ended = own.step()?;
        time.spend(worker, rows_of(ended) * self.nanoseconds);
        let Some((versions, notes)) = &mut self.versions else { return Ok(()) };
        notes.take().iter().try_for_each(|touched| match &touched.value {
            None => versions.note_read(&touched.key),
            Some(value) => versions.note_change(&touched.key, value),
        })
    }

    fn read_all(&self) -> Outcome {
        for table in self.tables.all() {
            table.iter().try_for_each(|entry| entry.map(drop))?;
        }
        self.versions.as_ref().map_or(Ok(()), |(versions, _)| versions.read_all())
    }

    fn scan(&mut self, _: usize, _: &VirtualTime, _: u64, _: u64, _: u64) -> Outcome {
        Err(no_records())
    }

    fn rewrite(&mut self) -> Outcome {
        Err(no_records())
    }

    fn reopen(&mut self, db: &Db) -> Outcome {
        self.tables = Tables::existing(db)?;
        if let Some((versions, _)) = &mut self.versions {
            *versions = Versions::open(db, self.scale.rows())?;
        }
        let notes = self.versions.as_ref().map(|(_, notes)| notes.clone());
        let engine = Noting { tables: self.tables.clone(), notes };
        self.workers.iter_mut().for_each(|worker| worker.go_on_in(engine.clone()));
        Ok(())
    }
}
