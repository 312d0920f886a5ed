//! Sinks of statistics (`stats_sinks` of the bootstrap): every `stats_flush_interval`, all metrics go to StatsD servers, metrics
//! services and collectors of OpenTelemetry.
//!
//! A separate thread reads the registry and encodes datagrams and messages ([`flush`]); it sends the former, and the control
//! thread the latter ([`service`]). No worker takes part.

mod change;
mod flush;
mod metrics;
mod otlp;
mod otlp_http;
mod otlp_message;
mod service;
mod statsd;

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_runtime_config::stats_sinks::StatsSinks;
use evenkeel_stats::{ScopeName, SharedWriter, layout};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use self::flush::Flusher;
use crate::access_log::LogHandle;
use crate::state::Shared;

layout! {
    /// `stats_sinks.`
    pub mod stats_sinks {
        counters {
            /// Metrics that no StatsD server got, because their datagrams could not be sent.
            statsd_dropped,
            /// Flushes that were left out because a metrics service had not read those before.
            metrics_service_skipped,
            /// Metric families that no metrics service got, because its stream had ended or could not be opened.
            metrics_service_dropped,
            /// Flushes that were left out because a collector of OpenTelemetry had not taken those before.
            open_telemetry_skipped,
            /// Metrics that no collector of OpenTelemetry got, because it refused them or could not be reached.
            open_telemetry_dropped,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

/// The counters, for the threads that take part.
type Counters = Arc<SharedWriter<stats_sinks::Stats>>;

/// How long the last flush may take when the process ends.
const LAST_FLUSH: Duration = Duration::from_secs(1);

/// The sinks of this process.
pub(crate) struct Sinks(Rc<Flushes>);

struct Flushes {
    flusher: Arc<Mutex<Flusher>>,
    shared: Shared,
    log: LogHandle,
}

impl Sinks {
    /// Makes the sinks, and starts their tasks; `None` without sinks.
    pub(crate) fn start(sinks: &StatsSinks, node: &Node, shared: &Shared, log: LogHandle) -> Option<Self> {
        if sinks.sinks.is_empty() {
            return None;
        }
        let registry = Arc::clone(&shared.state.borrow().registry);
        let scope = registry.scope(ScopeName::plain("stats_sinks."));
        let counters: Counters = Arc::new(SharedWriter::of(scope.writer()));
        let mut flusher = Flusher::new(registry, Arc::clone(&counters));
        for sink in &sinks.sinks {
            flusher.add(sink, node, shared);
        }
        let flusher = Arc::new(Mutex::new(flusher));
        let flushes = Rc::new(Flushes { flusher, shared: shared.clone(), log });
        tokio::task::spawn_local(Rc::clone(&flushes).keep(sinks.interval));
        Some(Self(flushes))
    }

    /// Flushes a last time, as the process ends.
    pub(crate) async fn finish(self) {
        _ = tokio::time::timeout(LAST_FLUSH, self.0.flush()).await;
    }
}

impl Flushes {
    async fn keep(self: Rc<Self>, interval: Duration) {
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.flush().await;
        }
    }

    async fn flush(&self) {
        {
            let state = self.shared.state.borrow();
            state.publish_gauges();
            state.stats.publish_dropped(self.log.dropped_lines());
        }
        let (flusher, (done, wait)) = (Arc::clone(&self.flusher), oneshot::channel::<()>());
        // A new thread each time: a permanent one would also keep the memory that a flush takes.
        let thread = std::thread::Builder::new().name("stats-flush".to_owned()).spawn(move || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            flusher.lock().unwrap_or_else(PoisonError::into_inner).flush(now);
            drop(done);
        });
        match thread {
            // It ends without an answer.
            Ok(_) => _ = wait.await,
            Err(error) => tracing::warn!(%error, "statistics not flushed: no thread"),
        }
    }
}
