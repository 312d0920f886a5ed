//! Holds requests and connections until the control plane has sent the resources they need.
//!
//! The time limit of an answer is enforced elsewhere: the control thread gives a name up when no answer comes in time,
//! and the next configuration says so. The timeout here only guards against a control thread that hangs.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::Duration;

use evenkeel_runtime_config::demand::DEFAULT_HOLD;
use evenkeel_runtime_config::{Config, Demand};
use tokio::time::timeout_at;

use super::Worker;
use evenkeel_upstream::turn;

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

/// Number of requests and connections held.
#[derive(Debug, Default)]
pub(crate) struct Held(Cell<usize>);

struct HoldSlot<'h>(&'h Held);

impl Held {
    fn enter(&self) -> Option<HoldSlot<'_>> {
        let held = self.0.get();
        (held < MAX_HELD).then(|| {
            self.0.set(held + 1);
            HoldSlot(self)
        })
    }
}

impl Drop for HoldSlot<'_> {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - 1);
    }
}

impl Worker {
    /// Asks for what the configuration lacks, and waits until `unanswered` returns nothing.
    pub(crate) async fn hold(&self, unanswered: impl Fn(&Config) -> Vec<Demand>) -> Result<(), HoldError> {
        let _slot = self.held.enter().ok_or(HoldError::Overflow)?;
        let deadline = turn::now() + LONGEST_HOLD;
        let mut asked = HashSet::new();
        loop {
            // Registered before the configuration is read, so a new one that arrives in between wakes it.
            let configured = self.configured.notified();
            let missing = unanswered(&self.generation().shared.config);
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
}
