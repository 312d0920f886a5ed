//! The workload's DNS proxy (Istio's "DNS proxying"): names of mesh services are answered from the name table the
//! control plane sends (NDS), everything else is forwarded to the resolvers the workload would have asked.
//!
//! [`Table`] holds the names, [`answer`] turns one query into one response without I/O, [`Server`] owns the sockets. An
//! agent that learns its scope begins with an empty table, and asks for each name when it is first looked up.

mod answer;
mod forward;
mod server;
mod table;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};

pub use answer::{Outcome, answer};
pub use forward::{Forwarder, Upstream, over_tcp, over_udp};
pub use server::{Server, ServerError};
pub(crate) use table::normal;
pub use table::{HostEntry, SearchDomain, Table};

/// How long a query is held until the control plane has said what a name stands for.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Queries held at one time; beyond it a query is answered as if the control plane were away.
const MAX_HELD_QUERIES: usize = 256;

/// What names stand for, by the names they were looked up under; `None`: the mesh has no such name.
pub type Answers = HashMap<Box<str>, Option<Arc<[IpAddr]>>>;

/// The control plane cannot be asked, or did not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unavailable;

/// The current name table; cheap to clone, replaced whole.
#[derive(Debug, Clone, Default)]
pub struct Names {
    table: Arc<RwLock<Arc<Table>>>,
    asking: Option<Arc<OnDemandLookups>>,
}

/// How names are asked for that the table does not know.
#[derive(Debug)]
struct OnDemandLookups {
    asks: mpsc::Sender<Box<str>>,
    asked: Mutex<Option<mpsc::Receiver<Box<str>>>>,
    connected: AtomicBool,
    changed: watch::Sender<()>,
    held: Semaphore,
}

impl Names {
    /// Names that are asked for when they are first looked up.
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

    /// Puts a new table in place of the one before.
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

    /// Names to be asked for, for the one who asks.
    pub fn take_asked(&self) -> Option<mpsc::Receiver<Box<str>>> {
        self.asking.as_ref()?.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Says whether the control plane can be asked; when it goes away nobody waits for it.
    pub fn set_connected(&self, connected: bool) {
        if let Some(asking) = &self.asking {
            asking.connected.store(connected, Relaxed);
            asking.changed.send_replace(());
        }
    }

    /// Whether queries can be answered: all names are here, or can be asked for.
    pub fn are_ready(&self) -> bool {
        match &self.asking {
            Some(asking) => asking.connected.load(Relaxed),
            None => !self.current().awaits_names(),
        }
    }

    /// Waits until the table knows what a name stands for.
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
