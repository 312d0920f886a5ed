//! The TCP proxy: a connection to a host of a cluster, and bytes both ways.

pub(crate) mod relay;

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_runtime_config::listener::{TcpProxy, WeightedTcpCluster};
use tokio::time::Instant;

use crate::access_log::Record;
use crate::conn::deadline::after;
use crate::conn::{Buffer, Deadline};
use crate::listener::Downstream;
use crate::response_flags::ResponseFlags;
use crate::stats::tcp::{Counter, Gauge};
use crate::upstream::{AcquireError, ConnectError, Connection, RequestGuard, Target};
use crate::worker::{TcpStats, Worker};
use relay::{Ending, Relay};

/// What the log says of a connection.
struct Outcome {
    started: Instant,
    started_at: SystemTime,
    cluster: Option<Arc<str>>,
    host: Option<Arc<str>>,
    upstream_local: Option<std::net::SocketAddr>,
    flags: ResponseFlags,
    failure: String,
    termination: Cow<'static, str>,
    attempts: u32,
    received: u64,
    sent: u64,
}

/// Serves a connection to its end.
pub(crate) async fn serve(worker: &Rc<Worker>, mut downstream: Downstream, proxy: &TcpProxy) {
    let generation = worker.generation();
    let stats = generation.tcp_stats(&proxy.stat_prefix);
    let filters = generation.network_filters(worker, &downstream.chain);
    drop(generation);
    let _counted = Counted::new(&stats);
    let mut outcome = Outcome::new();
    match filters.on_connection(&downstream.view) {
        Err(closed) => outcome.termination = closed.details.into(),
        Ok(()) => Box::pin(relay(worker, &mut downstream, proxy, &stats, &mut outcome)).await,
    }
    stats.add(Counter::downstream_cx_rx_bytes_total, outcome.received);
    stats.add(Counter::downstream_cx_tx_bytes_total, outcome.sent);
    log(worker, &downstream, proxy, &outcome);
}

async fn relay(
    worker: &Rc<Worker>,
    downstream: &mut Downstream,
    proxy: &TcpProxy,
    stats: &TcpStats,
    outcome: &mut Outcome,
) {
    let until = after(Instant::now(), proxy.max_downstream_connection_duration);
    let Some((mut upstream, _guard)) = connect(worker, downstream, proxy, stats, outcome).await else { return };
    outcome.upstream_local = upstream.local_addr();
    let input = std::mem::take(&mut downstream.input);
    let mut deadline = Deadline::default();
    let mut relay = Relay::new(&mut downstream.stream, input, &mut upstream.stream, Buffer::default());
    let ending = relay.run(&mut deadline, proxy.idle_timeout, until).await;
    (outcome.received, outcome.sent) = (relay.upstream_bytes(), relay.downstream_bytes());
    match ending {
        Ending::Closed | Ending::Failed => {}
        Ending::Idle => {
            stats.inc(Counter::idle_timeout);
            outcome.flags |= ResponseFlags::STREAM_IDLE_TIMEOUT;
        }
        Ending::Expired => {
            stats.inc(Counter::max_downstream_connection_duration);
            outcome.flags |= ResponseFlags::DURATION_TIMEOUT;
        }
    }
}

/// A connection to a host of the chosen cluster, within the proxy's attempts.
async fn connect(
    worker: &Rc<Worker>,
    downstream: &Downstream,
    proxy: &TcpProxy,
    stats: &TcpStats,
    outcome: &mut Outcome,
) -> Option<(Connection, RequestGuard)> {
    let chosen = choose(&proxy.clusters, worker.random.next())?;
    outcome.cluster = Some(Arc::clone(&chosen.cluster));
    let Some(cluster) = worker.upstreams.cluster(&chosen.cluster) else {
        stats.inc(Counter::downstream_cx_no_route);
        outcome.flags |= ResponseFlags::NO_CLUSTER_FOUND;
        return None;
    };
    for _ in 0..proxy.max_connect_attempts.max(1) {
        outcome.attempts += 1;
        let target = Target { original_dst: Some(downstream.view.local), ..Target::default() };
        let Ok(host) = cluster.pick(&target) else {
            outcome.flags |= ResponseFlags::NO_HEALTHY_UPSTREAM;
            return None;
        };
        outcome.host = Some(Arc::clone(&host.label));
        let Ok(guard) = cluster.begin_request(&host) else {
            outcome.flags |= ResponseFlags::UPSTREAM_OVERFLOW;
            return None;
        };
        match cluster.connect(&host).await {
            Ok(connection) => return Some((connection, guard)),
            Err(AcquireError::Overflow(_)) => {
                outcome.flags |= ResponseFlags::UPSTREAM_OVERFLOW;
                return None;
            }
            Err(AcquireError::Connect(error)) => {
                host.count_failure(matches!(error, ConnectError::Timeout(_)));
                outcome.failure = error.to_string();
            }
        }
    }
    outcome.flags |= ResponseFlags::UPSTREAM_CONNECTION_FAILURE | ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED;
    None
}

fn choose(clusters: &[WeightedTcpCluster], random: u64) -> Option<&WeightedTcpCluster> {
    let total: u64 = clusters.iter().map(|cluster| u64::from(cluster.weight)).sum();
    let mut point = random % total.max(1);
    for cluster in clusters {
        match point.checked_sub(u64::from(cluster.weight)) {
            None => return Some(cluster),
            Some(rest) => point = rest,
        }
    }
    clusters.last()
}

impl Outcome {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            started_at: SystemTime::now(),
            cluster: None,
            host: None,
            upstream_local: None,
            flags: ResponseFlags::NONE,
            failure: String::new(),
            termination: "".into(),
            attempts: 0,
            received: 0,
            sent: 0,
        }
    }
}

fn log(worker: &Worker, downstream: &Downstream, proxy: &TcpProxy, outcome: &Outcome) {
    if proxy.access_logs.is_empty() {
        return;
    }
    let view = &downstream.view;
    let session = downstream.stream.session();
    let mut record = Record::new(outcome.started_at);
    record.duration = outcome.started.elapsed();
    record.flags = outcome.flags;
    record.connection_termination_details = &outcome.termination;
    record.bytes_received = outcome.received;
    record.bytes_sent = outcome.sent;
    record.upstream_host = outcome.host.as_deref();
    record.upstream_cluster = outcome.cluster.as_deref();
    record.upstream_local_address = outcome.upstream_local;
    record.upstream_transport_failure_reason = &outcome.failure;
    record.upstream_attempts = outcome.attempts;
    record.downstream_local_address = Some(view.local);
    record.downstream_remote_address = Some(view.direct_remote);
    record.downstream_direct_remote_address = Some(view.direct_remote);
    if let Some(peer) = &view.peer {
        record.downstream_peer_uri_sans = &peer.uri_sans;
        record.downstream_local_uri_sans = &peer.local_uri_sans;
        record.downstream_peer_subject = &peer.subject;
    }
    record.downstream_tls_version = session.map(|session| session.version);
    record.downstream_tls_cipher = session.map(|session| session.cipher);
    record.requested_server_name = view.server_name.as_deref();
    record.filter_chain_name = Some(&*downstream.chain.name).filter(|name| !name.is_empty());
    record.connection_id = downstream.id;
    let mut log = worker.log.borrow_mut();
    proxy.access_logs.iter().for_each(|access_log| log.write(access_log, &record));
}

/// A connection as the TCP proxy counts it.
struct Counted(Rc<TcpStats>);

impl Counted {
    fn new(stats: &Rc<TcpStats>) -> Self {
        stats.inc(Counter::downstream_cx_total);
        stats.shift(Gauge::downstream_cx_active, 1);
        Self(Rc::clone(stats))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.shift(Gauge::downstream_cx_active, -1);
    }
}
