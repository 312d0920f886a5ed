//! The workload's DNS proxy (Istio's "DNS proxying"): names of mesh services are answered from the name table the
//! control plane sends (NDS), everything else is forwarded to the resolvers the workload would have asked.
//!
//! [`Table`] holds the names, [`answer`] turns one query into one response without I/O, [`Server`] owns the sockets.

mod answer;
mod forward;
mod server;
mod table;

use std::sync::{Arc, RwLock};

pub use answer::{Outcome, answer};
pub use forward::Forwarder;
pub use server::{Server, ServerError};
pub use table::{HostEntry, SearchDomain, Table};

/// The current name table; cheap to clone, replaced whole.
#[derive(Debug, Clone, Default)]
pub struct Names(Arc<RwLock<Arc<Table>>>);

impl Names {
    /// Puts a new table in place of the one before.
    pub fn replace(&self, table: Table) {
        *self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Arc::new(table);
    }

    /// The table in force.
    pub fn current(&self) -> Arc<Table> {
        self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}
