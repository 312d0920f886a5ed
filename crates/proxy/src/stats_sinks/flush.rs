//! One flush: reads all metrics once, and passes each sink its part.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evenkeel_runtime_config::stats_sinks::{MetricsService, OtlpMetrics, StatsSink, Statsd};
use evenkeel_stats::{Registry, TaggedSample};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::io::prometheus::client::MetricFamily;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::change::Previous;
use super::otlp_message::{Batch, Moments};
use super::statsd::{Datagrams, Series};
use super::{Counters, metrics, otlp, service, stats_sinks};
use crate::state::Shared;

/// Maximum wait for room in the socket's buffer, for each datagram.
const SEND_LIMIT: Duration = Duration::from_millis(100);

/// All sinks of the flushing thread.
pub(super) struct Flusher {
    registry: Arc<Registry>,
    counters: Counters,
    servers: Vec<Server>,
    services: Vec<Service>,
    collectors: Vec<Collector>,
    /// When totals began to count, since 1970.
    start: Duration,
}

struct Server {
    config: Statsd,
    socket: Option<UdpSocket>,
    previous: Previous,
}

struct Service {
    config: Arc<MetricsService>,
    previous: Previous,
    /// To the task that sends.
    snapshots: mpsc::Sender<Vec<MetricFamily>>,
}

struct Collector {
    config: Arc<OtlpMetrics>,
    previous: Previous,
    /// The last flush that it got, since 1970.
    last: Duration,
    /// To the task that sends.
    batches: mpsc::Sender<Batch>,
}

impl Flusher {
    pub(super) fn new(registry: Arc<Registry>, counters: Counters) -> Self {
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (servers, services, collectors) = (Vec::new(), Vec::new(), Vec::new());
        Self { registry, counters, servers, services, collectors, start }
    }

    /// Adds a sink, and starts the task of a service or collector. `node`: this proxy.
    pub(super) fn add(&mut self, sink: &StatsSink, node: &Node, shared: &Shared) {
        let previous = Previous::default();
        match sink {
            StatsSink::Statsd(config) => self.servers.push(Server { config: config.clone(), socket: None, previous }),
            StatsSink::MetricsService(config) => {
                let snapshots = service::start(config, node, shared, &self.counters);
                self.services.push(Service { config: Arc::clone(config), previous, snapshots });
            }
            StatsSink::OpenTelemetry(config) => {
                let batches = otlp::start(config, shared, &self.counters);
                self.collectors.push(Collector { config: Arc::clone(config), previous, last: self.start, batches });
            }
        }
    }

    /// Flushes. `now`: since 1970.
    pub(super) fn flush(&mut self, now: Duration) {
        self.registry.expire(Instant::now());
        let samples = self.registry.tagged_samples();
        for server in &mut self.servers {
            let dropped = server.flush(&samples);
            self.counters.add(stats_sinks::Counter::statsd_dropped, dropped);
        }
        for service in &mut self.services {
            if !service.flush(&samples, now) {
                self.counters.add(stats_sinks::Counter::metrics_service_skipped, 1);
            }
        }
        for collector in &mut self.collectors {
            if !collector.flush(&samples, self.start, now) {
                self.counters.add(stats_sinks::Counter::open_telemetry_skipped, 1);
            }
        }
    }
}

impl Server {
    /// Sends all metrics, and says how many could not be sent.
    fn flush(&mut self, samples: &[TaggedSample]) -> u64 {
        if self.socket.is_none() {
            self.socket = socket(&self.config).inspect_err(|error| tracing::warn!(%error, "no socket for StatsD")).ok();
        }
        let (mut dropped, address) = (0, self.config.address);
        let mut datagrams = Datagrams::new(|datagram: &[u8], metrics| {
            let sent = self.socket.as_ref().is_some_and(|socket| socket.send_to(datagram, address).is_ok());
            dropped += if sent { 0 } else { metrics };
        });
        let prefix = &self.config.prefix;
        let tagged = self.config.tags;
        self.previous.update(samples, |sample, change| datagrams.add(prefix, &series(tagged, sample), &change));
        datagrams.finish();
        dropped
    }
}

/// The series of a metric: its full name, or one without its tags, and these.
fn series(tagged: bool, sample: &TaggedSample) -> Series<'_> {
    if tagged {
        let tags = sample.labels.iter().map(|(name, value)| (metrics::tag_name(name), value.as_str()));
        Series { name: &sample.name, tags: tags.collect() }
    } else {
        Series { name: &sample.full_name, tags: Vec::new() }
    }
}

fn socket(config: &Statsd) -> std::io::Result<UdpSocket> {
    let any = if config.address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.set_write_timeout(Some(SEND_LIMIT))?;
    Ok(socket)
}

impl Service {
    /// Passes all metrics to the task; returns false if it has not sent the former ones, in which case the increase is sent
    /// later.
    fn flush(&mut self, samples: &[TaggedSample], now: Duration) -> bool {
        let place = match self.snapshots.try_reserve() {
            Ok(place) => place,
            Err(TrySendError::Full(())) => return false,
            // The process ends.
            Err(TrySendError::Closed(())) => return true,
        };
        let (mut families, config) = (Vec::new(), &self.config);
        self.previous.update(samples, |sample, change| metrics::add(config, sample, &change, now, &mut families));
        place.send(families);
        true
    }
}

impl Collector {
    /// As [`Service::flush`].
    fn flush(&mut self, samples: &[TaggedSample], start: Duration, now: Duration) -> bool {
        let place = match self.batches.try_reserve() {
            Ok(place) => place,
            Err(TrySendError::Full(())) => return false,
            // The process ends.
            Err(TrySendError::Closed(())) => return true,
        };
        let at = Moments { start, last: self.last, now };
        let (mut batch, config) = (Batch::default(), &self.config);
        self.previous.update(samples, |sample, change| batch.add(config, sample, &change, at));
        place.send(batch);
        self.last = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_stats::{ScopeName, layout};

    use super::super::otlp_message::tests::{config, counts};
    use super::*;

    layout! {
        /// A test scope.
        pub mod test {
            counters { calls }
            gauges {}
            histograms {}
            statuses None
        }
    }

    /// What a flush could not hand over comes with the next one, which says since when it counts.
    #[test]
    fn an_increase_counts_from_the_last_flush_that_was_taken() {
        let registry = Registry::new();
        let writer = registry.scope::<test::Stats>(ScopeName::plain("t.")).writer();
        let (batches, mut taken) = mpsc::channel(1);
        let nanos = Duration::from_nanos;
        let mut collector = Collector { config: config(true), previous: Previous::default(), last: nanos(1), batches };
        let mut flush = |calls, now| {
            writer.add(test::Counter::calls, calls);
            collector.flush(&registry.tagged_samples(), nanos(1), nanos(now))
        };
        assert!(flush(5, 10));
        assert!(!flush(2, 20), "the one before waits");
        assert!(!flush(1, 30));
        let mut next = || taken.try_recv().map(|batch| counts(&batch)).expect("a batch");
        assert_eq!(next(), [(Some(5), 1)]);
        assert!(flush(4, 40));
        assert_eq!(next(), [(Some(7), 10)]);
        assert!(flush(1, 50));
        assert_eq!(next(), [(Some(1), 40)]);
    }
}
