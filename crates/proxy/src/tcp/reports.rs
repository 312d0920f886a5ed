//! Reports of a connection to its filters: when it is open, at intervals while it lives, and when it has ended.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::network::Since;
use evenkeel_filters::peer_metadata::{DOWNSTREAM, UPSTREAM};
use evenkeel_filters::{ConnectionInfo, NetworkFilters, StateObject};
use evenkeel_upstream::turn;
use tokio::time::sleep_until;

use super::relay::Relayed;
use super::upstream::Outcome;
use crate::worker::Worker;

/// The reports of one connection.
pub(super) struct Reports {
    info: Arc<ConnectionInfo>,
    filters: Rc<NetworkFilters>,
    interval: Duration,
    reported: Cell<Relayed>,
    /// It is open, which is not reported yet.
    unreported: Cell<bool>,
}

impl Reports {
    /// The reports of a connection; `None`: no filter of its chain wants any.
    pub(super) fn of(worker: &Worker, info: &Arc<ConnectionInfo>) -> Option<Self> {
        let chain = info.chain.as_ref().filter(|chain| !chain.network_filters.is_empty())?;
        let filters = worker.generation().network_filters(chain);
        let interval = filters.report_interval()?;
        Some(Self { info: Arc::clone(info), filters, interval, reported: Cell::default(), unreported: Cell::default() })
    }

    /// Reports that the connection was opened. If its peer is still to tell who it is, that is reported later, as in Istio: reports name it.
    pub(super) fn opened(&self, outcome: &Outcome) {
        self.unreported.set(true);
        if is_settled(outcome) {
            self.report(outcome, self.since(self.reported.get()));
        }
    }

    /// The connection continues here after these bytes, which others have reported.
    pub(super) fn resumed(&self, relayed: Relayed) {
        self.reported.set(relayed);
    }

    /// Reports what it has done until it is handed over.
    pub(super) fn left(&self, outcome: &Outcome) {
        self.report(outcome, self.since(relayed(outcome)));
    }

    /// Reports that it has ended.
    pub(super) fn closed(&self, outcome: &Outcome) {
        self.report(outcome, Since { closed: true, ..self.since(relayed(outcome)) });
    }

    /// Runs the relay of the connection, and reports its progress meanwhile.
    pub(super) async fn during<T>(
        &self,
        outcome: &Outcome,
        progress: &Cell<Relayed>,
        relay: impl Future<Output = T>,
    ) -> T {
        let mut relay = pin!(relay);
        let mut next = turn::now() + self.interval;
        loop {
            tokio::select! {
                biased;
                ended = &mut relay => return ended,
                () = sleep_until(next) => {}
            }
            next += self.interval;
            if is_settled(outcome) {
                self.report(outcome, self.since(progress.get()));
            }
        }
    }

    fn since(&self, relayed: Relayed) -> Since {
        let before = self.reported.replace(relayed);
        Since {
            opened: self.unreported.take(),
            received: relayed.received.saturating_sub(before.received),
            sent: relayed.sent.saturating_sub(before.sent),
            ..Since::default()
        }
    }

    fn report(&self, outcome: &Outcome, since: Since) {
        if since != Since::default() {
            outcome.record(&self.info, |record| self.filters.report(record, &since));
        }
    }
}

/// Whether it is known who both ends are, as far as they tell.
fn is_settled(outcome: &Outcome) -> bool {
    let object = |key| outcome.stream.object(key);
    [DOWNSTREAM, UPSTREAM].into_iter().filter_map(object).all(StateObject::is_settled)
}

fn relayed(outcome: &Outcome) -> Relayed {
    Relayed { received: outcome.stream.bytes_received, sent: outcome.stream.bytes_sent }
}
