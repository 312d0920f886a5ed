//! One flush: reads all metrics once, and passes each sink its part.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_runtime_config::stats_sinks::{MetricsService, StatsSink, Statsd};
use evenkeel_stats::{Registry, TaggedSample};
use evenkeel_xds::pb::io::prometheus::client::MetricFamily;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::change::Previous;
use super::statsd::Datagrams;
use super::{Counters, metrics, stats_sinks};

/// Maximum wait for room in the socket's buffer, for each datagram.
const SEND_LIMIT: Duration = Duration::from_millis(100);

/// All sinks of the flushing thread.
pub(super) struct Flusher {
    registry: Arc<Registry>,
    counters: Counters,
    servers: Vec<Server>,
    services: Vec<Service>,
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

impl Flusher {
    pub(super) fn new(registry: Arc<Registry>, counters: Counters) -> Self {
        Self { registry, counters, servers: Vec::new(), services: Vec::new() }
    }

    /// Adds a sink. `start` starts the task of a service.
    pub(super) fn add(
        &mut self,
        sink: &StatsSink,
        start: impl FnOnce(&Arc<MetricsService>) -> mpsc::Sender<Vec<MetricFamily>>,
    ) {
        let previous = Previous::default();
        match sink {
            StatsSink::Statsd(config) => self.servers.push(Server { config: config.clone(), socket: None, previous }),
            StatsSink::MetricsService(config) => {
                self.services.push(Service { config: Arc::clone(config), previous, snapshots: start(config) });
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
        self.previous.update(samples, |sample, change| datagrams.add(prefix, &sample.full_name, &change));
        datagrams.finish();
        dropped
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
