//! The workload's DNS proxy (Istio's "DNS proxying"): names of mesh services are answered from the name table the
//! control plane sends (NDS), everything else is forwarded to the resolvers the workload would have asked: in a cluster its
//! name server, which knows Services that are hidden from the workload, and records of other types.
//!
//! [`Table`] holds the names, [`answer`] turns one query into one response without I/O, [`Server`] owns the sockets.
//! A name that is another name of a host is answered with a CNAME and with what a query for that host gives.
//! With learned scope the agent begins with an empty table and asks the control plane for each name when it is first
//! looked up.

mod alias;
mod answer;
mod authority;
mod forward;
mod normal;
mod server;
mod table;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};

pub use alias::Chain;
pub use answer::{Outcome, addresses_in, answer, no_such_name, question};
pub use authority::{Authority, endpoint_name, reversed};
pub use forward::{Forwarder, Upstream, over_tcp, over_udp};
pub(crate) use normal::normal;
pub use server::{Server, ServerError};
pub use table::{AliasEntry, HostEntry, Known, SearchDomain, Table};

/// How long a query waits for the control plane to resolve a name.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Queries that wait at one time; further queries are answered as if the control plane were unreachable.
const MAX_HELD_QUERIES: usize = 256;

/// The values of names, by the name that was looked up; `None` if the mesh has no such name.
pub type Answers = HashMap<Box<str>, Option<Known>>;

/// The control plane is not connected, or it did not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unavailable;

/// The current name table; cheap to clone, replaced whole.
#[derive(Debug, Clone, Default)]
pub struct Names {
    table: Arc<RwLock<Arc<Table>>>,
    asking: Option<Arc<OnDemandLookups>>,
}

/// Requests to the control plane for names that the table does not have.
#[derive(Debug)]
struct OnDemandLookups {
    asks: mpsc::Sender<Box<str>>,
    asked: Mutex<Option<mpsc::Receiver<Box<str>>>>,
    connected: AtomicBool,
    changed: watch::Sender<()>,
    held: Semaphore,
}

impl Names {
    /// Makes a table whose names are requested when they are first looked up.
    pub fn learned(cluster_domain: &str) -> Self {
        let (asks, asked) = mpsc::channel(MAX_HELD_QUERIES);
        let asking = OnDemandLookups {
            asks,
            asked: Mutex::new(Some(asked)),
            connected: AtomicBool::new(false),
            changed: watch::Sender::new(()),
            held: Semaphore::new(MAX_HELD_QUERIES),
        };
        let names = Self { table: Arc::default(), asking: Some(Arc::new(asking)) };
        names.replace(Table::learned(Answers::new(), cluster_domain));
        names
    }

    /// Replaces the table.
    pub fn replace(&self, table: Table) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        if let Some(asking) = &self.asking {
            asking.changed.send_replace(());
        }
    }

    /// The table in force.
    pub fn current(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The queue of names to request from the control plane, for the task that does so.
    pub fn take_asked(&self) -> Option<mpsc::Receiver<Box<str>>> {
        self.asking.as_ref()?.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sets whether the control plane is connected. When it disconnects, waiting queries stop waiting.
    pub fn set_connected(&self, connected: bool) {
        if let Some(asking) = &self.asking {
            asking.connected.store(connected, Relaxed);
            asking.changed.send_replace(());
        }
    }

    /// Whether queries can be answered: the table is complete, or missing names can be requested.
    pub fn are_ready(&self) -> bool {
        match &self.asking {
            Some(asking) => asking.connected.load(Relaxed),
            None => !self.current().awaits_names(),
        }
    }

    /// Waits until the control plane has resolved a name.
    pub async fn learn(&self, name: &str) -> Result<(), Unavailable> {
        let Some(asking) = &self.asking else { return Ok(()) };
        let _held = asking.held.try_acquire().map_err(|_| Unavailable)?;
        let mut changed = asking.changed.subscribe();
        if !asking.connected.load(Relaxed) {
            return Err(Unavailable);
        }
        asking.asks.try_send(name.into()).map_err(|_| Unavailable)?;
        let answered = async {
            while !self.current().knows(name) {
                changed.changed().await.map_err(|_| Unavailable)?;
                if !asking.connected.load(Relaxed) {
                    return Err(Unavailable);
                }
            }
            Ok(())
        };
        tokio::time::timeout(ASK_TIMEOUT, answered).await.map_err(|_| Unavailable)?
    }
}
