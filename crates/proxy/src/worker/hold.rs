//! Requests and connections that wait until the control plane has said what they need.
//!
//! Nothing here has a timer of its own for the answer: the control thread gives a name up when no answer comes in time, and
//! the configuration it hands out then says so. The one below is for a control thread that hangs.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::Duration;

use evenkeel_runtime_config::demand::DEFAULT_HOLD;
use evenkeel_runtime_config::{Config, Demand};
use tokio::time::{Instant, timeout_at};

use super::Worker;

/// Requests and connections one worker holds at a time; further ones go on with what is known.
pub(crate) const MAX_HELD: usize = 1024;
/// Demands of all workers on their way to the control thread.
pub(crate) const MAX_DEMANDS: usize = 4096;
/// How long something is held if the control thread says nothing at all: three answers one after the other, and a bit.
const LONGEST_HOLD: Duration = Duration::from_secs(3 * DEFAULT_HOLD.as_secs() + 1);

/// Why something is not held any longer without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldError {
    /// Too much is held already.
    Overflow,
    /// No answer came.
    TimedOut,
}

/// What is held now.
#[derive(Debug, Default)]
pub(crate) struct Held(Cell<usize>);

struct Place<'h>(&'h Held);

impl Held {
    fn enter(&self) -> Option<Place<'_>> {
        let held = self.0.get();
        (held < MAX_HELD).then(|| {
            self.0.set(held + 1);
            Place(self)
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - 1);
    }
}

impl Worker {
    /// Waits until the configuration leaves nothing unanswered, and asks for what it does not say.
    pub(crate) async fn hold(&self, unanswered: impl Fn(&Config) -> Vec<Demand>) -> Result<(), HoldError> {
        let _place = self.held.enter().ok_or(HoldError::Overflow)?;
        let deadline = Instant::now() + LONGEST_HOLD;
        let mut asked = HashSet::new();
        loop {
            // Taken before the look at the configuration: a newer one that comes in between wakes it.
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
