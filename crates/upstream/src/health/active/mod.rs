//! Active health checks: one task per host on the control thread, for the whole process.
//!
//! To add a kind of check: a variant of `runtime_config::health_check::Probe`, a file here with a [`Check`] that probes
//! a host once, and a line in [`probers!`] below. Everything else (intervals, thresholds, timeouts, flags, statistics)
//! is here and in `session.rs`.

mod grpc;
mod http;
mod session;
mod tcp;
mod votes;

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::cluster::{Cluster, Endpoint};
use evenkeel_runtime_config::health_check::{HealthCheck, Probe};
use evenkeel_stats::Writer;
use tokio::time::{Instant, sleep, timeout};

use self::session::{Session, pause, some_of};
use super::super::connect::{ConnectError, connect};
use super::super::host::Host;
use super::super::shared::SharedCluster;
use super::host::HealthFlags;
use crate::alpn::WantedProtocol;
use crate::random::Random;
use crate::stream::Stream;

pub(super) use self::session::Verdict;
pub(super) use self::votes::Votes;

evenkeel_stats::layout! {
    /// `cluster.NAME.health_check.`, or `cluster.NAME.health_check.name.CHECK.`
    pub mod health_check_stats {
        counters { attempt, success, failure, passive_failure, network_failure, verify_cluster }
        gauges { healthy, degraded }
        histograms {}
        statuses None
    }
}

evenkeel_stats::layout! {
    /// `cluster.NAME.health_check.`, if the cluster has several checks.
    pub mod all_checks_stats {
        counters {}
        gauges { healthy, degraded }
        histograms {}
        statuses None
    }
}

use health_check_stats::{Counter, Gauge};

/// Maximum size of a response that is read, in bytes; a longer one fails the check.
const MAX_RESPONSE_BYTES: usize = 256 * 1024;

/// The target of a host's check.
pub(super) struct CheckTarget {
    cluster: Arc<Cluster>,
    host: Rc<Host>,
    /// The endpoint's own host name for health checks, if it has one.
    hostname: Box<str>,
    /// The protocol to negotiate by ALPN.
    wanted: WantedProtocol,
    reuse_connection: bool,
}

/// A kind of check.
trait Check: Sized {
    /// The request to send, and the expected response.
    type Probe: Clone;

    /// The protocol to negotiate with a host by ALPN.
    fn wanted(probe: &Self::Probe) -> WantedProtocol;

    /// A prober for one host.
    fn new(probe: Self::Probe) -> Self;

    /// Probes the host once. Dropping the future on timeout loses at most the connection it kept.
    async fn check(&mut self, target: &CheckTarget) -> Verdict;
}

/// The registry of check kinds, each under its name in [`Probe`].
macro_rules! probers {
    ($($name:ident => $check:ty,)*) => {
        /// A prober of any kind, with the connection it keeps.
        enum Prober {
            $($name($check),)*
        }

        impl Prober {
            fn wanted(probe: &Probe) -> WantedProtocol {
                match probe {
                    $(Probe::$name(probe) => <$check as Check>::wanted(probe),)*
                }
            }

            fn new(probe: &Probe) -> Self {
                match probe {
                    $(Probe::$name(probe) => Self::$name(<$check as Check>::new(probe.clone())),)*
                }
            }

            async fn check(&mut self, target: &CheckTarget) -> Verdict {
                match self {
                    $(Self::$name(prober) => Check::check(prober, target).await,)*
                }
            }
        }
    };
}

probers! {
    Http => http::Prober,
    Tcp => tcp::Prober,
    Grpc => grpc::Prober,
}

/// One health check of one host; runs while the host is to be checked.
pub(super) struct Checking {
    pub checks: Arc<[HealthCheck]>,
    /// The index of this check.
    pub index: usize,
    pub target: CheckTarget,
    pub votes: Rc<Votes>,
    pub shared: Arc<SharedCluster>,
    pub stats: Rc<Writer<health_check_stats::Stats>>,
    pub random: Rc<Random>,
    /// The host was not checked before.
    pub first: bool,
}

impl CheckTarget {
    /// The endpoint's own address, unless the check or the endpoint configures another for health checks.
    pub fn new(cluster: &Arc<Cluster>, check: &HealthCheck, endpoint: &Endpoint) -> Self {
        let mut place = endpoint.clone();
        if let Some(address) = &endpoint.check.address {
            place.address = address.clone();
        }
        if let (EndpointAddress::Socket(address), Some(port)) =
            (&mut place.address, endpoint.check.port.or(check.alt_port))
        {
            address.set_port(port);
        }
        let has = |labels: &[(Box<str>, Box<str>)], wanted: &[(Box<str>, Box<str>)]| {
            wanted.iter().all(|label| labels.contains(label))
        };
        let index = match &check.transport_labels {
            Some(criteria) => cluster.transport_matches.iter().position(|entry| has(criteria, &entry.labels)),
            None => endpoint.transport_index,
        };
        let matched = index.and_then(|index| cluster.transport_matches.get(index));
        let transport = matched.map_or(&cluster.transport, |matched| &matched.transport);
        Self {
            host: Host::new(&Arc::new(place), transport.clone()),
            hostname: endpoint.check.hostname.clone(),
            cluster: cluster.clone(),
            wanted: Prober::wanted(&check.probe),
            reuse_connection: check.reuse_connection,
        }
    }

    async fn connect(&self) -> Result<Stream, ConnectError> {
        connect(&self.cluster, &self.host, self.wanted, None).await
    }

    /// The authority to request: the endpoint's host name for checks, the check's, or the cluster's name, as in Envoy.
    fn authority<'a>(&'a self, configured: &'a str) -> &'a str {
        let candidates = [&*self.hostname, configured];
        candidates.into_iter().find(|name| !name.is_empty()).unwrap_or(&self.cluster.name)
    }
}

impl Checking {
    /// Runs until the host, having been removed by service discovery, fails a check.
    pub async fn run(self) {
        let Some(check) = self.checks.get(self.index) else { return };
        let (votes, health) = (&*self.votes, self.votes.health());
        let mut session = Session::new(votes.of(self.index).has(HealthFlags::FAILED_ACTIVE_HC), self.first);
        let mut prober = Prober::new(&check.probe);
        sleep(some_of(check.intervals.initial_jitter, &self.random)).await;
        loop {
            self.stats.inc(Counter::attempt);
            let verdict = match timeout(check.timeout, prober.check(&self.target)).await {
                Ok(verdict) => verdict,
                Err(_) => {
                    // The connection is in the middle of the unanswered check, so it is dropped.
                    prober = Prober::new(&check.probe);
                    Verdict::Timeout
                }
            };
            votes.note_exclusion();
            if votes.of(self.index).has(HealthFlags::FAILED_ACTIVE_HC) {
                session.note_failed();
            }
            let change = session.conclude(check, verdict);
            self.note(check, verdict, change.changed);
            if votes.cast(self.index, &change) {
                self.shared.health_changed();
            }
            // With several checks, one that passes must not uneject a host that fails another.
            let passed = self.checks.len() == 1 || !health.flags().has(HealthFlags::FAILED_ACTIVE_HC);
            if let (Verdict::Healthy { .. }, true, Some(outliers)) = (verdict, passed, self.shared.outliers())
                && outliers.passed_health_check(health, Instant::now())
            {
                self.shared.health_changed();
            }
            let gone = HealthFlags::PENDING_DYNAMIC_REMOVAL;
            if health.flags().has(gone) && health.flags().has(HealthFlags::FAILED_ACTIVE_HC) {
                return;
            }
            sleep(pause(&check.intervals, &change, self.shared.had_traffic(), &self.random)).await;
        }
    }

    /// Counts and logs a check's result.
    fn note(&self, check: &HealthCheck, verdict: Verdict, changed: bool) {
        let (cluster, host) = (&*self.target.cluster.name, &*self.target.host.label);
        let name = Some(&*check.name).filter(|name| !name.is_empty());
        let healthy = matches!(verdict, Verdict::Healthy { .. });
        self.stats.inc(if healthy { Counter::success } else { Counter::failure });
        if matches!(verdict, Verdict::NetworkFailure | Verdict::Timeout) {
            self.stats.inc(Counter::network_failure);
        }
        match (healthy, changed) {
            (true, true) => tracing::info!(cluster, host, name, "passes its health check"),
            (false, true) => tracing::warn!(cluster, host, name, ?verdict, "fails its health check"),
            (true, false) if check.always_log_success => tracing::info!(cluster, host, name, "passed a health check"),
            (false, false) if check.always_log_failures || self.first => {
                tracing::warn!(cluster, host, name, ?verdict, "failed a health check");
            }
            _ => {}
        }
    }
}

/// Sets the gauges of one check.
pub(super) fn publish<'h>(
    stats: &Writer<health_check_stats::Stats>,
    check: usize,
    hosts: impl Iterator<Item = &'h Votes>,
) {
    let excluded = HealthFlags::EXCLUDED_VIA_IMMEDIATE_HC_FAIL;
    let [healthy, degraded] = count(hosts.map(|votes| {
        if votes.health().flags().has(excluded) {
            votes.of(check).and(HealthFlags::FAILED_ACTIVE_HC)
        } else {
            votes.of(check)
        }
    }));
    stats.set(Gauge::healthy, healthy);
    stats.set(Gauge::degraded, degraded);
}

/// Sets the gauges of all checks combined.
pub(super) fn publish_all<'h>(stats: &Writer<all_checks_stats::Stats>, hosts: impl Iterator<Item = &'h Votes>) {
    let [healthy, degraded] = count(hosts.map(|votes| votes.health().flags()));
    stats.set(all_checks_stats::Gauge::healthy, healthy);
    stats.set(all_checks_stats::Gauge::degraded, degraded);
}

/// How many are healthy, and how many degraded.
fn count(hosts: impl Iterator<Item = HealthFlags>) -> [i64; 2] {
    hosts.fold([0, 0], |[healthy, degraded], flags| {
        [
            healthy + i64::from(!flags.has(HealthFlags::FAILED_ACTIVE_HC)),
            degraded + i64::from(flags.has(HealthFlags::DEGRADED_ACTIVE_HC)),
        ]
    })
}

/// Whether `text` contains all of `parts`, in order and without overlap.
fn holds_in_order(text: &[u8], parts: &[Vec<u8>]) -> bool {
    let mut rest = text;
    parts.iter().all(|part| {
        let found = if part.is_empty() { Some(0) } else { rest.windows(part.len()).position(|window| window == part) };
        match found {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_in_order() {
        let check = |text: &str, parts: &[&str], expected: bool| {
            let parts: Vec<Vec<u8>> = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
            assert_eq!(holds_in_order(text.as_bytes(), &parts), expected, "{text} {parts:?}");
        };
        check("", &[], true);
        check("", &["a"], false);
        check("+PONG\r\n", &["PO", "NG"], true);
        check("+PONG\r\n", &["NG", "PO"], false);
        check("aab", &["aa", "ab"], false);
    }
}
