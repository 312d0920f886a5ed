//! Counts connections, and closes those over the limit.

use std::sync::Arc;

use evenkeel_runtime_config::connection_limit::ConnectionLimit;
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_stats::{ScopeName, Writer, layout};

use crate::network::{Close, ConnectionContext, ConnectionFacts, Decision, End, Filter, Hooks, Setup};
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

layout! {
    /// `connection_limit.PREFIX.`
    pub mod stats {
        counters { limited_connections }
        gauges { active_connections }
        histograms {}
        statuses None
    }
}

/// `envoy.filters.network.connection_limit`.
#[derive(Debug)]
pub struct NetworkFilter {
    config: Arc<ConnectionLimit>,
    counts: Writer<stats::Stats>,
}

impl Filter for NetworkFilter {
    type Config = ConnectionLimit;
    type State = ();

    fn verdict(_: &ConnectionLimit) -> FilterVerdict<'_> {
        FilterVerdict::Outside
    }

    fn new(config: Arc<ConnectionLimit>, setup: &Setup<'_>) -> Self {
        let counts = setup.registry.scope(ScopeName::tagged(
            "connection_limit",
            "envoy_connection_limit_prefix",
            &config.stat_prefix,
        ));
        Self { config, counts: counts.writer() }
    }

    fn hooks(&self) -> Hooks {
        if self.config.enabled { Hooks::NEW_CONNECTION.and(Hooks::COMPLETE) } else { Hooks::default() }
    }

    fn new_connection(&self, (): &mut (), _: &mut ConnectionContext<'_>) -> Decision {
        self.counts.shift(stats::Gauge::active_connections, 1);
        if self.config.connections.enter_anyway() {
            return Decision::Continue;
        }
        self.counts.inc(stats::Counter::limited_connections);
        Decision::Close(Close::new("").after(self.config.delay))
    }

    fn explain(config: &ConnectionLimit, _: &ConnectionView, _: &mut DynamicMetadata) -> Option<Remark> {
        let text = format!("at most {} connections at a time; further ones are closed", config.connections.most());
        config.enabled.then_some(Remark::ByState(text))
    }

    fn complete(&self, (): &mut (), _: &End, _: &mut ConnectionFacts) {
        self.config.connections.leave();
        self.counts.shift(stats::Gauge::active_connections, -1);
    }
}
