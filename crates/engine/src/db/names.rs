//! Handles of tables, by name.

use std::sync::Arc;

use super::core::Shared;
use super::options::TableOptions;
use super::table::Table;
use crate::config::{class_of, value_class_of};
use crate::error::{Error, Result};
use crate::txn::catalog::location_of;
use crate::txn::tables::check_name;

impl Shared {
    pub(crate) fn new_table(self: &Arc<Self>, name: &str, options: &TableOptions) -> Result<Table> {
        check_name(name)?;
        let class = options.page_size.map_or(Ok(self.pool.class()), class_of)?;
        let compression = options.compression.unwrap_or(self.settings.compression);
        let values = options.value_page_size_max.map_or(Ok(class), |bytes| value_class_of(bytes, class))?;
        let compression = compression.check(class.max(values).page_bytes())?;
        self.tables.create(self, name, (class, values), compression, || {
            if values > class {
                self.budget.check_value_pages(&self.pool, class, values)?;
            }
            self.budget.use_class(&self.pool, class)
        })?;
        self.after_commit();
        self.table(name)
    }

    pub(crate) fn table(self: &Arc<Self>, name: &str) -> Result<Table> {
        loop {
            let location = location_of(self, name)?.ok_or_else(|| Error::TableNotFound(name.to_owned()))?;
            let state = self.tables.state_of(self, name, location)?;
            // A later drop or rename finds this state. An earlier one has changed the catalog.
            if location_of(self, name)? == Some(location) {
                return Ok(Table::new(Arc::clone(self), state));
            }
        }
    }

    pub(crate) fn rename_table(&self, from: &str, to: &str) -> Result<()> {
        check_name(to)?;
        self.tables.rename(self, from, to)?;
        self.after_commit();
        Ok(())
    }

    pub(crate) fn drop_table(&self, name: &str) -> Result<()> {
        self.tables.drop(self, name)?;
        self.collector.ring();
        self.after_commit();
        Ok(())
    }
}
