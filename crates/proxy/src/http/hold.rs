//! A request that waits for what the control plane has not been asked for before (`envoy.filters.http.on_demand`).

use evenkeel_runtime_config::Demand;

use super::phases::Life;
use crate::stats::http::Counter;
use crate::worker::Unheld;

impl Life<'_> {
    /// Waits for an answer. Afterwards the configuration has it, or the request goes on without.
    pub(super) async fn hold(&mut self, demand: Demand) {
        let worker = &self.origin.worker;
        let stats = &self.origin.manager.http;
        stats.inc(Counter::on_demand_attempt);
        let missing = |config: &evenkeel_runtime_config::Config| match config.answers(&demand) {
            true => Vec::new(),
            false => vec![demand.clone()],
        };
        match worker.hold(missing).await {
            Ok(()) if worker.generation().shared.config.has(&demand) => stats.inc(Counter::on_demand_success),
            Ok(()) => stats.inc(Counter::on_demand_missing),
            Err(Unheld::TimedOut) => {
                stats.inc(Counter::on_demand_timeout);
                self.request.unheld = true;
            }
            Err(Unheld::Overflow) => {
                stats.inc(Counter::on_demand_overflow);
                self.request.unheld = true;
            }
        }
    }
}
