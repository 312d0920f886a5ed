//! Holds requests and connections until the control plane has sent the resources they need.
//!
//! The time limit of an answer is enforced elsewhere: the control thread gives a name up when no answer comes in time,
//! and the next configuration says so. The timeout here only guards against a control thread that hangs.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::Duration;

use evenkeel_runtime_config::Demand;
use evenkeel_runtime_config::demand::DEFAULT_HOLD;
use evenkeel_upstream::turn;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout_at;

/// Maximum number of requests and connections held by a worker; further ones proceed with the current configuration.
pub(crate) const MAX_HELD: usize = 1024;
/// Capacity of the queue of demands from all workers to the control thread.
pub(crate) const MAX_DEMANDS: usize = 4096;
/// Longest hold when the control thread does not respond at all: three answers in sequence, plus a second.
const LONGEST_HOLD: Duration = Duration::from_secs(3 * DEFAULT_HOLD.as_secs() + 1);

/// Why a request or connection is not held any longer although no answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldError {
    /// Too many are held already.
    Overflow,
    /// No answer came in time.
    TimedOut,
}

/// The requests and connections that a worker holds.
pub(super) struct Holds {
    count: Cell<usize>,
    /// Notified when a new configuration is in force.
    configured: Notify,
    /// Requests to the control plane for missing resources.
    demands: mpsc::Sender<Demand>,
}

/// One of those that are held.
struct HoldSlot<'h>(&'h Cell<usize>);

impl Holds {
    /// None yet. Demands go to the control thread.
    pub(super) fn new(demands: mpsc::Sender<Demand>) -> Self {
        Self { count: Cell::new(0), configured: Notify::new(), demands }
    }

    /// Tells those that are held that a new configuration is in force.
    pub(super) fn configured(&self) {
        self.configured.notify_waiters();
    }

    /// Asks for what the configuration in force lacks, and waits until `missing` returns nothing.
    pub(super) async fn hold(&self, missing: impl Fn() -> Vec<Demand>) -> Result<(), HoldError> {
        let _slot = self.enter().ok_or(HoldError::Overflow)?;
        let deadline = turn::now() + LONGEST_HOLD;
        let mut asked = HashSet::new();
        loop {
            // Registered before the configuration is read, so a new one that arrives in between wakes it.
            let configured = self.configured.notified();
            let missing = missing();
            if missing.is_empty() {
                return Ok(());
            }
            for demand in missing {
                if asked.insert(demand.clone()) {
                    self.demands.try_send(demand).map_err(|_| HoldError::Overflow)?;
                }
            }
            timeout_at(deadline, configured).await.map_err(|_| HoldError::TimedOut)?;
        }
    }

    fn enter(&self) -> Option<HoldSlot<'_>> {
        let count = self.count.get();
        (count < MAX_HELD).then(|| {
            self.count.set(count + 1);
            HoldSlot(&self.count)
        })
    }
}

impl Drop for HoldSlot<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
