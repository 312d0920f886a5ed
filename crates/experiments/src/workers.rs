//! How evenly the workers of sidecars share connections, requests and CPU time.

use std::collections::BTreeMap;

use crate::error::BenchError;
use crate::manifests::{CLIENT, service};
use crate::metric::{self, Values};
use crate::processes::Usage;
use crate::setup::Setup;
use crate::testbed::{COMMAND_LIMIT, Place, Testbed};

/// The page of a sidecar with the counters of its workers; it is the same for Evenkeel and Envoy.
const PAGE: &str = "http://127.0.0.1:15000/stats?filter=worker_";
/// The listeners that take redirected connections, as their statistics name them. Envoy
/// counts an outbound connection at the listener that it hands it to.
const OUTBOUND: &[&str] = &["listener.0.0.0.0_15001.", "listener.0.0.0.0_8080."];
const INBOUND: &[&str] = &["listener.0.0.0.0_15006."];

/// Counts by worker.
type ByWorker = BTreeMap<u32, u64>;

/// Counters of one sidecar.
#[derive(Debug, Clone, Default, PartialEq)]
struct Side {
    connections: ByWorker,
    requests: ByWorker,
}

/// The counters of the caller's sidecar and of the first service's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    client: Option<Side>,
    server: Option<Side>,
}

impl Counts {
    /// Reads the pages of the sidecars that there are.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn read(testbed: &Testbed<'_>, setup: &Setup) -> Result<Self, BenchError> {
        let (namespace, first) = (setup.namespace(), service(1));
        let side = |workload: &str, listeners: &[&str]| {
            let place = Place { namespace: &namespace, workload };
            let page = testbed.spawn(&place, &["load", "curl", PAGE].map(str::to_owned))?.output(COMMAND_LIMIT)?;
            Ok::<_, BenchError>(Side::parse(&page, listeners))
        };
        let client = setup.sidecars.at_client().then(|| side(CLIENT, OUTBOUND)).transpose()?;
        let server = setup.sidecars.at_server().then(|| side(&first, INBOUND)).transpose()?;
        Ok(Self { client, server })
    }

    /// What was counted since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        let side = |now: &Option<Side>, before: &Option<Side>| {
            now.as_ref().map(|now| now.since(before.as_ref().unwrap_or(&Side::default())))
        };
        Self { client: side(&self.client, &earlier.client), server: side(&self.server, &earlier.server) }
    }

    /// Adds the largest worker's share, relative to the mean, of connections, requests and CPU time. `used` is the time
    /// of the caller's sidecar and of the services' sidecars.
    pub fn evenness(&self, used: &[Usage; 2], values: &mut Values) {
        let sides = [("client", &self.client, &used[0]), ("server", &self.server, &used[1])];
        for (name, side, usage) in sides {
            let Some(side) = side else { continue };
            let busy: Vec<f64> = usage.workers.values().map(|time| time.as_secs_f64()).collect();
            let counts = |counts: &ByWorker| counts.values().map(|count| *count as f64).collect::<Vec<_>>();
            for (what, shares) in
                [("connections", counts(&side.connections)), ("requests", counts(&side.requests)), ("busy", busy)]
            {
                if let Some(ratio) = max_over_mean(&shares) {
                    metric::set(values, &format!("{what}_max_mean_{name}"), ratio);
                }
            }
            let most = side.connections.values().max().copied().unwrap_or_default();
            metric::set(values, &format!("connections_most_{name}"), most as f64);
        }
    }
}

impl Side {
    /// Reads the lines `NAME: VALUE` of a page.
    fn parse(page: &str, listeners: &[&str]) -> Self {
        let mut side = Self::default();
        for line in page.lines() {
            let Some((name, value)) = line.split_once(": ") else { continue };
            let Ok(value) = value.trim().parse::<u64>() else { continue };
            let connections = |listener: &&str| worker(name, listener, "downstream_cx_total");
            if let Some(worker) = listeners.iter().find_map(connections) {
                // Evenkeel counts an outbound connection at both listeners.
                let count = side.connections.entry(worker).or_default();
                *count = value.max(*count);
            } else if let Some(worker) = worker(name, "workers.", "downstream_rq_total") {
                side.requests.insert(worker, value);
            }
        }
        side
    }

    fn since(&self, earlier: &Self) -> Self {
        let difference = |now: &ByWorker, before: &ByWorker| {
            let each = now.iter().map(|(worker, count)| {
                (*worker, count.saturating_sub(before.get(worker).copied().unwrap_or_default()))
            });
            each.collect()
        };
        Self {
            connections: difference(&self.connections, &earlier.connections),
            requests: difference(&self.requests, &earlier.requests),
        }
    }
}

/// The number in `PREFIXworker_N.COUNTER`.
fn worker(name: &str, prefix: &str, counter: &str) -> Option<u32> {
    let (number, found) = name.strip_prefix(prefix)?.strip_prefix("worker_")?.split_once('.')?;
    (found == counter).then(|| number.parse().ok())?
}

/// `None` without workers, or if none has done anything.
pub fn max_over_mean(shares: &[f64]) -> Option<f64> {
    let (sum, max) = (shares.iter().sum::<f64>(), shares.iter().copied().fold(0.0, f64::max));
    (sum > 0.0).then(|| max * shares.len() as f64 / sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_workers_are_those_of_the_listener() {
        let page = "HTTP/1.1 200 OK\nlistener.0.0.0.0_15006.worker_0.downstream_cx_total: 4\n\
                    listener.0.0.0.0_15006.worker_1.downstream_cx_total: 2\n\
                    listener.0.0.0.0_15006.worker_1.downstream_cx_active: 9\n\
                    listener.0.0.0.0_15021.worker_0.downstream_cx_total: 8\n\
                    workers.worker_0.downstream_rq_total: 70\nserver.worker_0.watchdog_miss: 0\nworkers.worker_x.y: 1\n";
        let handed_over = "listener.0.0.0.0_15001.worker_0.downstream_cx_total: 1\n\
                           listener.0.0.0.0_8080.worker_0.downstream_cx_total: 7\n";
        assert_eq!(Side::parse(handed_over, OUTBOUND).connections, BTreeMap::from([(0, 7)]));
        let side = Side::parse(page, INBOUND);
        assert_eq!(side.connections, BTreeMap::from([(0, 4), (1, 2)]));
        assert_eq!(side.requests, BTreeMap::from([(0, 70)]));
    }

    #[test]
    fn evenness_is_the_largest_share_over_the_mean() {
        let check = |shares: &[f64], expected: Option<f64>| assert_eq!(max_over_mean(shares), expected, "{shares:?}");
        check(&[], None);
        check(&[0.0, 0.0], None);
        check(&[5.0, 5.0], Some(1.0));
        // The published case: one worker had 11.5 thousand connections, and the others about one thousand each.
        check(&[11.5, 1.0, 1.0, 1.0], Some(11.5 * 4.0 / 14.5));
    }
}
