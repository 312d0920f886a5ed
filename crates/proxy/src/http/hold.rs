//! Holds a request until the control plane has answered an on-demand subscription (`envoy.filters.http.on_demand`).

use evenkeel_runtime_config::Demand;
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use crate::stats::http::{Counter, Histogram};
use crate::worker::HoldError;

impl ActiveStream<'_> {
    /// Waits for the control plane's answer. Afterwards the configuration has the demanded resource, or the request continues
    /// without it.
    pub(super) async fn hold(&mut self, demand: Demand) {
        let worker = &self.conn.worker;
        let stats = &self.conn.manager.http;
        stats.inc(Counter::on_demand_attempt);
        let missing = |config: &evenkeel_runtime_config::Config| {
            if config.answers(&demand) { Vec::new() } else { vec![demand.clone()] }
        };
        let begin = turn::now();
        let held = worker.hold(missing).await;
        let end = turn::now();
        stats.record(Histogram::on_demand_time, u64::try_from((end - begin).as_millis()).unwrap_or(u64::MAX));
        // A request may be held twice: for its virtual host, then for a cluster.
        let times = &mut self.request.stream.times;
        times.set_first(TimePoint::HeldBegin, begin.into_std());
        times.set(TimePoint::HeldEnd, end.into_std());
        match held {
            Ok(()) if worker.generation().shared.config.has(&demand) => stats.inc(Counter::on_demand_success),
            Ok(()) => stats.inc(Counter::on_demand_missing),
            Err(HoldError::TimedOut) => {
                stats.inc(Counter::on_demand_timeout);
                self.request.hold_failed = true;
            }
            Err(HoldError::Overflow) => {
                stats.inc(Counter::on_demand_overflow);
                self.request.hold_failed = true;
            }
        }
    }
}
