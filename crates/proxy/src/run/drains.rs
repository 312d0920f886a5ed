//! The drains that are in progress while the process lives.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::admin_port::AdminPort;
use crate::admin::DrainListeners;
use crate::handover::Parcel;
use crate::pool::WorkerPool;
use crate::state::{Phase, Shared};
use crate::worker::DrainScope;

/// The drains in progress while the process lives, by the source of the order.
pub(super) struct Drains {
    shared: Shared,
    pool: Arc<WorkerPool>,
    /// How long a graceful drain continues to accept connections.
    after: Duration,
    /// Scope drained by `/drain_listeners`.
    listeners: DrainScope,
    /// Whether `/healthcheck/fail` is in effect.
    health_failed: bool,
    given_away: bool,
}

impl Drains {
    pub(super) fn new(shared: Shared, pool: Arc<WorkerPool>, after: Duration) -> Self {
        Self { shared, pool, after, listeners: DrainScope::None, health_failed: false, given_away: false }
    }

    /// Starts draining, as told by `/drain_listeners`.
    pub(super) fn begin(&mut self, DrainListeners { scope, graceful, skip_exit }: DrainListeners) {
        self.listeners = self.listeners.max(scope);
        self.settle();
        if !graceful {
            self.pool.stop_listening(scope);
        } else if !skip_exit {
            let (pool, after) = (self.pool.clone(), self.after);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(after).await;
                pool.stop_listening(scope);
            });
        }
    }

    /// As in Envoy: while the health check is failed, clients are asked to leave.
    pub(super) fn set_health(&mut self, failed: bool) {
        self.health_failed = failed;
        self.settle();
    }

    /// Hands connections and sockets to a successor, or (`None`) resumes as before.
    pub(super) fn hand_over_connections(&mut self, to: Option<mpsc::Sender<Parcel>>, admin: Option<&AdminPort>) {
        let given_away = to.is_some();
        if self.given_away == given_away {
            return;
        }
        self.given_away = given_away;
        if let Err(error) = self.pool.hand_over_connections(to) {
            tracing::error!(%error, "handover: cannot listen again");
        }
        match admin {
            Some(admin) if given_away => admin.close(),
            Some(admin) => _ = admin.serve().inspect_err(|error| tracing::error!(%error, "admin interface")),
            None => {}
        }
        self.settle();
    }

    fn settle(&self) {
        self.pool.drain(if self.health_failed { DrainScope::All } else { self.listeners });
        // Having handed connections over does not count as draining: health checks that still reach this process
        // succeed.
        let drains = self.health_failed || self.listeners == DrainScope::All;
        let phase = &mut self.shared.state.borrow_mut().phase;
        match (drains, *phase) {
            (true, _) => *phase = Phase::Draining,
            (false, Phase::Draining) => *phase = Phase::Live,
            (false, _) => {}
        }
    }
}
