//! The TCP proxy: connects to a host of a cluster, and relays bytes in both directions.

pub(crate) mod relay;
mod tunnel;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use evenkeel_filters::decide::{TcpDestination, tcp_destination};
use evenkeel_filters::network::Close;
use evenkeel_filters::{ConnectionInfo, NetworkFilters, ResponseFlags, StreamInfo};
use evenkeel_runtime_config::Config;
use evenkeel_runtime_config::cluster::Discovery;
use evenkeel_runtime_config::demand::DEFAULT_HOLD;
use evenkeel_runtime_config::listener::{FilterChain, Listener, TcpProxy};
use evenkeel_runtime_config::route::Priority;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_upstream::conn::Buffer;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::conn::deadline::after;
use evenkeel_upstream::stream::Stream;
use evenkeel_upstream::{
    AcquireError, ConnectError, ConnectTimes, Connection, EdgeCounts, Host, Outcome as HostOutcome, RequestGuard,
    Target,
};
use tokio::time::Instant;

use crate::access_log::record_of_connection;
use crate::handover::{Half, TcpPart};
use crate::http::affinity::address_hash;
use crate::http::{Failure, set_connect_times};
use crate::listener::filtered::{self, Filtered};
use crate::listener::{Downstream, MovingConnection};
use crate::stats::tcp::{Counter, Gauge};
use crate::worker::{Directive, Registration, TcpStats, Worker};
use relay::{End, Ending, Relay, Remainder};
use tunnel::{Tunnel, TunnelError, TunnelStream};

/// What is logged and counted about a connection.
struct Outcome {
    /// Its properties. Boxed: the futures of the connection's whole life hold it.
    stream: Box<StreamInfo>,
    /// The counter for having no upstream, if the failure has one.
    counter: Option<Counter>,
    /// The cluster connects to wherever the client dialled (`ORIGINAL_DST`).
    original_dst: bool,
    /// What is counted of the traffic with the server.
    edge: Option<Rc<EdgeCounts>>,
}

/// Serves a connection to its end. `upstream_side`: the upstream side, if it was connected while the client was silent. Returns the
/// connection if it is handed over. The future keeps what it holds for the connection's whole life, and its arguments twice: large
/// arguments are boxed, and so are calls that end early.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    mut downstream: Box<Downstream>,
    (listener, proxy): (Arc<Listener>, Arc<TcpProxy>),
    (filters, upstream_side): (Rc<NetworkFilters>, Option<Box<UpstreamSide>>),
    registration: &Rc<Registration>,
) -> Option<Box<MovingConnection>> {
    let stats = worker.generation().tcp_stats(&proxy.stat_prefix);
    let _counted = Counted::new(&stats);
    let mut upstream_side = match upstream_side {
        Some(upstream_side) => upstream_side,
        None => match Box::pin(admit(worker, filters, &mut downstream.info)).await {
            Ok(connection) => {
                *downstream = downstream.filtered(connection);
                Box::pin(UpstreamSide::connect(worker, &downstream.info, &proxy)).await
            }
            Err(close) => UpstreamSide::refused(worker, &close, &downstream, &proxy),
        },
    };
    if let Some((to_up, to_down)) = relay(&mut downstream, &mut upstream_side, &proxy, &stats, registration).await
        && let UpstreamSide { outcome, upstream: Some((Upstream::Connection(connection), _)), .. } = *upstream_side
    {
        let upstream = Some(Box::new(UpstreamHalf { outcome, stream: connection.stream, to_up, to_down }));
        return Some(Box::new(MovingConnection { downstream: *downstream, upstream, to: Directive::HandOver }));
    }
    end_filters(&mut downstream, &mut upstream_side.outcome);
    end(worker, &downstream, (&listener, &proxy), &stats, &upstream_side.outcome);
    None
}

/// Calls the chain's filters, as [`filtered::admit`] does; most of them decide at once.
async fn admit(
    worker: &Rc<Worker>,
    filters: Rc<NetworkFilters>,
    info: &mut Arc<ConnectionInfo>,
) -> Result<Option<Rc<filtered::Connection>>, Close> {
    if !filters.are_immediate() {
        return filtered::admit(worker, filters, info).await;
    }
    if let Err(close) = filtered::admit_at_once(worker, &filters, info) {
        filtered::delay_close(&close).await;
        return Err(close);
    }
    Ok(None)
}

/// Continues a connection that was handed over by another process, or whose hand-over failed.
pub(crate) async fn resume(
    worker: &Rc<Worker>,
    mut downstream: Box<Downstream>,
    (listener, proxy): (Arc<Listener>, Arc<TcpProxy>),
    mut upstream: Box<UpstreamHalf>,
    registration: &Rc<Registration>,
) -> Option<Box<MovingConnection>> {
    let stats = worker.generation().tcp_stats(&proxy.stat_prefix);
    let _counted = Counted::resumed(&stats);
    registration.set_travels(true);
    let UpstreamHalf { outcome, stream, to_up, to_down } = &mut *upstream;
    let from_client = Remainder { buffer: std::mem::take(&mut downstream.input), half: *to_up };
    let from_upstream = Remainder { buffer: std::mem::take(&mut to_down.buffer), half: to_down.half };
    let mut relay = Relay::resume(&mut downstream.stream, from_client, stream, from_upstream);
    if run(&mut relay, &proxy, &stats, outcome, registration).await {
        let rest = relay.part();
        (downstream.input, *to_up, *to_down) = (rest.0.buffer, rest.0.half, rest.1);
        return Some(Box::new(MovingConnection {
            downstream: *downstream,
            upstream: Some(upstream),
            to: Directive::HandOver,
        }));
    }
    end(worker, &downstream, (&listener, &proxy), &stats, outcome);
    None
}

/// Ends the connection's filters, and takes over what they report about it.
fn end_filters(downstream: &mut Downstream, outcome: &mut Outcome) {
    if let Some(filtered) = downstream.stream.layer::<Filtered>() {
        let connection = Rc::clone(filtered.connection());
        connection.complete();
        connection.leave(&mut downstream.info);
        if let Some(close) = connection.closed() {
            outcome.closed_by(close);
        }
    }
    if let Some(metadata) = &downstream.info.view.metadata {
        outcome.stream.metadata.clone_from(metadata);
    }
}

fn end(
    worker: &Worker,
    downstream: &Downstream,
    configured: (&Listener, &TcpProxy),
    stats: &TcpStats,
    outcome: &Outcome,
) {
    outcome.counter.into_iter().for_each(|counter| stats.inc(counter));
    stats.add(Counter::downstream_cx_rx_bytes_total, outcome.stream.bytes_received);
    stats.add(Counter::downstream_cx_tx_bytes_total, outcome.stream.bytes_sent);
    let (received, sent, now) = (outcome.stream.bytes_received, outcome.stream.bytes_sent, Instant::now());
    let own = worker.edges.of_client(&downstream.info, now);
    for edge in own.iter().chain(&outcome.edge) {
        edge.bytes(received, sent, now);
    }
    log(worker, downstream, configured, outcome);
}

/// The upstream side of a connection that is handed over; bytes read from the client stay with the client's side.
pub(crate) struct UpstreamHalf {
    outcome: Outcome,
    stream: Stream,
    to_up: Half,
    to_down: Remainder,
}

impl UpstreamHalf {
    /// Packs it for another process: the facts, the socket, and the bytes read from it. `from_client`: how many bytes read from the client
    /// are not yet written.
    pub(crate) fn pack(self, from_client: usize) -> (TcpPart, Stream, Buffer) {
        let Self { outcome, stream, to_up, to_down } = self;
        let text = |text: Option<Arc<str>>| text.map(|text| text.to_string());
        let (started, info) = (outcome.started(), *outcome.stream);
        let now = SystemTime::now();
        let part = TcpPart {
            cluster: text(info.cluster_name),
            host: text(info.host),
            upstream_local: info.upstream_local,
            started_at: now.checked_sub(started.elapsed()).unwrap_or(now),
            attempts: info.attempts,
            to_upstream: Half { held: from_client, ..to_up },
            to_downstream: to_down.half,
        };
        (part, stream, to_down.buffer)
    }

    /// Unpacks what another process has packed.
    pub(crate) fn unpack(part: &TcpPart, stream: Stream, from_upstream: Buffer, started: Instant) -> Self {
        let text = |text: &Option<String>| text.as_deref().map(Arc::from);
        let mut outcome = Outcome::begun(started);
        let info = &mut outcome.stream;
        (info.cluster_name, info.host) = (text(&part.cluster), text(&part.host));
        (info.upstream_local, info.attempts) = (part.upstream_local, part.attempts);
        Self {
            outcome,
            stream,
            to_up: part.to_upstream,
            to_down: Remainder { buffer: from_upstream, half: part.to_downstream },
        }
    }
}

/// Whether the chain's filters admit a connection, as far as they can decide that before there is one.
pub(crate) fn admits(worker: &Rc<Worker>, chain: &Arc<FilterChain>, view: &ConnectionView) -> bool {
    let filters = worker.generation().network_filters(worker, chain);
    filters.are_immediate() && filters.admit(view, &**worker, Instant::now().into_std()).1.is_ok()
}

/// The upstream of a connection.
#[allow(clippy::large_enum_variant, reason = "nearly all are connections")]
enum Upstream {
    /// A connection of its own.
    Connection(Connection),
    /// A stream of a shared connection.
    Tunnel(Box<TunnelStream>),
}

impl Upstream {
    fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Connection(connection) => connection.local_addr(),
            Self::Tunnel(tunnel) => tunnel.local_addr(),
        }
    }

    fn host(&self) -> &Rc<Host> {
        match self {
            Self::Connection(connection) => &connection.host,
            Self::Tunnel(tunnel) => tunnel.host(),
        }
    }

    fn connect_times(&self) -> &ConnectTimes {
        match self {
            Self::Connection(connection) => connection.connect_times(),
            Self::Tunnel(tunnel) => tunnel.connect_times(),
        }
    }

    fn travels(&self) -> bool {
        matches!(self, Self::Connection(connection) if matches!(connection.stream, Stream::Tcp(_)))
    }
}

/// The upstream side of a connection, made before or after its client has sent anything.
pub(crate) struct UpstreamSide {
    outcome: Outcome,
    upstream: Option<(Upstream, RequestGuard)>,
    /// Bytes already received from the upstream.
    input: Buffer,
}

/// Whether the server of a silent client speaks first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstByte {
    /// The server has sent something.
    Arrived,
    /// The server closed without sending anything, or there is none.
    Never,
    /// The address the client dialled cannot be reached; but what the client sends may lead it to another.
    Unknown,
}

impl UpstreamSide {
    /// Connects to a host of the proxy's cluster.
    pub(crate) async fn connect(worker: &Rc<Worker>, info: &ConnectionInfo, proxy: &TcpProxy) -> Box<Self> {
        let mut outcome = Outcome::new();
        let mut input = Buffer::default();
        let upstream = connect(worker, info, proxy, &mut outcome, &mut input).await;
        if let Some((upstream, _)) = &upstream {
            outcome.stream.upstream_local = upstream.local_addr();
            set_connect_times(&mut outcome.stream.times, upstream.connect_times());
            let peer = (&**upstream.host(), upstream.connect_times());
            outcome.edge = worker.edges.of_server(info, peer, Instant::now()).cloned();
        }
        Box::new(Self { outcome, upstream, input })
    }

    /// The upstream side of a connection that filters close before there is an upstream.
    fn refused(worker: &Worker, close: &Close, downstream: &Downstream, proxy: &TcpProxy) -> Box<Self> {
        let mut outcome = Outcome::new();
        let chosen = proxy.destination(downstream.info.view.server_name.as_ref(), worker.random.next());
        outcome.stream.cluster_name = chosen.map(|(cluster, _)| Arc::clone(cluster));
        outcome.closed_by(close);
        if close.reset {
            downstream.stream.reset_on_close();
        }
        Box::new(Self { outcome, upstream: None, input: Buffer::default() })
    }

    /// Waits for the server to send something.
    pub(crate) fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<FirstByte> {
        match &mut self.upstream {
            None if self.outcome.original_dst => Poll::Ready(FirstByte::Unknown),
            None => Poll::Ready(FirstByte::Never),
            Some(_) if !self.input.is_empty() => Poll::Ready(FirstByte::Arrived),
            Some((upstream, _)) => {
                let filled = match upstream {
                    Upstream::Connection(connection) => self.input.poll_fill(&mut connection.stream, BLOCK_BYTES, cx),
                    Upstream::Tunnel(tunnel) => self.input.poll_fill(&mut **tunnel, BLOCK_BYTES, cx),
                };
                match ready!(filled) {
                    Ok(0) | Err(_) => Poll::Ready(FirstByte::Never),
                    Ok(_) => Poll::Ready(FirstByte::Arrived),
                }
            }
        }
    }
}

/// Relays until the connection ends, if it has an upstream. `Some`: it is handed over, with this left to do.
async fn relay(
    downstream: &mut Downstream,
    upstream_side: &mut UpstreamSide,
    proxy: &TcpProxy,
    stats: &TcpStats,
    registration: &Registration,
) -> Option<(Half, Remainder)> {
    let UpstreamSide { outcome, upstream, input } = upstream_side;
    let (upstream, _) = upstream.as_mut()?;
    registration.set_travels(matches!(downstream.stream, Stream::Tcp(_)) && upstream.travels());
    let (from_client, from_upstream) = (std::mem::take(&mut downstream.input), std::mem::take(input));
    match upstream {
        Upstream::Connection(connection) => {
            let mut relay = Relay::new(&mut downstream.stream, from_client, &mut connection.stream, from_upstream);
            if !run(&mut relay, proxy, stats, outcome, registration).await {
                return None;
            }
            let (to_up, to_down) = relay.part();
            downstream.input = to_up.buffer;
            Some((to_up.half, to_down))
        }
        Upstream::Tunnel(tunnel) => {
            let mut relay = Relay::new(&mut downstream.stream, from_client, &mut **tunnel, from_upstream);
            // The shared connection is not handed over, and neither is a stream of it.
            _ = run(&mut relay, proxy, stats, outcome, registration).await;
            outcome.stream.tunnel_trailers = tunnel.take_trailers();
            None
        }
    }
}

/// Relays until the connection ends, or is to be handed over: `true`.
async fn run<U: End>(
    relay: &mut Relay<'_, U>,
    proxy: &TcpProxy,
    stats: &TcpStats,
    outcome: &mut Outcome,
    registration: &Registration,
) -> bool {
    let until = after(outcome.started(), proxy.max_downstream_connection_duration);
    let ending = relay.run(proxy.idle_timeout, until, registration).await;
    (outcome.stream.bytes_received, outcome.stream.bytes_sent) = (relay.upstream_bytes(), relay.downstream_bytes());
    match ending {
        Ending::Leaves => return true,
        Ending::Closed | Ending::Failed => {}
        Ending::UpstreamReset => outcome.fail(&Failure::UpstreamReset),
        Ending::Cut => outcome.stream.termination = "connection_cut".into(),
        Ending::Idle => {
            // Envoy has no flag for this.
            stats.inc(Counter::idle_timeout);
        }
        Ending::Expired => {
            stats.inc(Counter::max_downstream_connection_duration);
            outcome.stream.flags |= ResponseFlags::DURATION_TIMEOUT;
        }
    }
    false
}

/// Connects to a host of the chosen cluster, in `max_connect_attempts` attempts at most.
async fn connect(
    worker: &Rc<Worker>,
    info: &ConnectionInfo,
    proxy: &TcpProxy,
    outcome: &mut Outcome,
    input: &mut Buffer,
) -> Option<(Upstream, RequestGuard)> {
    let view = &info.view;
    let generation = worker.generation();
    let destination = tcp_destination(&generation.shared.config, proxy, view, worker.random.next());
    drop(generation);
    let TcpDestination { cluster: name, metadata_match, demand } = destination?;
    outcome.stream.cluster_name = Some(Arc::clone(name));
    if demand.is_some() {
        demand_cluster(worker, proxy, name).await;
    }
    let Some(cluster) = worker.upstreams.cluster(name) else {
        outcome.fail(&Failure::NoCluster(0));
        return None;
    };
    outcome.original_dst = matches!(cluster.config().discovery, Discovery::OriginalDst(_));
    for _ in 0..proxy.max_connect_attempts.max(1) {
        let target = Target {
            original_dst: Some(view.local),
            dynamic: view.dynamic_host.as_deref(),
            hash: proxy.hash_source_ip.then(|| address_hash(view.remote.ip())),
            metadata_match,
            ..Target::default()
        };
        let host = cluster.pick(&target).map_err(|error| outcome.fail(&error.into())).ok()?;
        outcome.stream.host = Some(Arc::clone(&host.label));
        let Ok(guard) = cluster.begin_request(&host, Priority::Default) else {
            outcome.fail(&Failure::Overflow);
            return None;
        };
        outcome.stream.attempts += 1;
        let door = cluster.on_behalf_of(&host, info.source());
        let connected = match &proxy.tunneling {
            None => cluster.connect_tcp(&door, view).await.map(Upstream::Connection).map_err(TunnelError::from),
            Some(tunneling) => {
                tunnel::open(&cluster, &door, info, tunneling, &mut outcome.stream).await.map(|tunnel| match tunnel {
                    Tunnel::Connection(connection, said) => {
                        *input = said;
                        Upstream::Connection(connection)
                    }
                    Tunnel::Stream(stream) => Upstream::Tunnel(stream),
                })
            }
        };
        match connected {
            Ok(upstream) => {
                cluster.report(&host, HostOutcome::ConnectedFinally);
                return Some((upstream, guard));
            }
            Err(TunnelError::Acquire(AcquireError::Overflow(_))) => {
                outcome.fail(&Failure::Overflow);
                return None;
            }
            Err(error) => {
                let timeout = matches!(error, TunnelError::Acquire(AcquireError::Connect(ConnectError::Timeout(_))));
                // The flags stay, even if the next attempt succeeds.
                outcome.fail(&if timeout { Failure::ConnectTimeout } else { Failure::Connect(String::new()) });
                host.count_failure(timeout);
                cluster.report(&host, if timeout { HostOutcome::TimedOut } else { HostOutcome::ConnectFailed });
                outcome.stream.transport_failure = error.reason();
                tracing::debug!(host = %host.label, %error, "connecting upstream failed");
            }
        }
    }
    outcome.stream.flags |= ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED;
    None
}

/// Waits for a cluster that the control plane was not asked for before (`on_demand`).
async fn demand_cluster(worker: &Rc<Worker>, proxy: &TcpProxy, name: &Arc<str>) {
    let missing = |config: &Config| config.unanswered_cluster(name).into_iter().collect();
    let stats = worker.generation().tcp_stats(&proxy.stat_prefix);
    stats.inc(Counter::on_demand_cluster_attempt);
    let limit = proxy.on_demand.map_or(DEFAULT_HOLD, |asked| asked.timeout);
    let held = tokio::time::timeout(limit, Box::pin(worker.hold(missing))).await;
    stats.inc(match held {
        Ok(Ok(())) if worker.upstreams.cluster(name).is_some() => Counter::on_demand_cluster_success,
        Ok(Ok(())) => Counter::on_demand_cluster_missing,
        Ok(Err(_)) | Err(_) => Counter::on_demand_cluster_timeout,
    });
}

impl Outcome {
    /// A filter has closed the connection.
    fn closed_by(&mut self, close: &Close) {
        self.stream.termination = close.details.clone();
        self.stream.flags |= close.flag.and_then(ResponseFlags::from_short_name).unwrap_or_default();
    }

    fn new() -> Self {
        Self::begun(Instant::now())
    }

    fn begun(start: Instant) -> Self {
        Self { stream: Box::new(StreamInfo::new(start.into_std())), counter: None, original_dst: false, edge: None }
    }

    fn started(&self) -> Instant {
        Instant::from_std(self.stream.times.start())
    }

    /// Notes a failure for the log and the statistics.
    fn fail(&mut self, failure: &Failure) {
        let row = failure.row();
        self.stream.flags |= row.flags;
        self.counter = self.counter.or(row.tcp_counter);
    }
}

/// Writes the listener's log lines, then the proxy's own.
fn log(worker: &Worker, downstream: &Downstream, (listener, proxy): (&Listener, &TcpProxy), outcome: &Outcome) {
    if proxy.access_logs.is_empty() && listener.access_logs.is_empty() {
        return;
    }
    let record = record_of_connection(&outcome.stream, &downstream.info);
    let mut log = worker.log.borrow_mut();
    let all = listener.access_logs.iter().chain(&proxy.access_logs);
    all.for_each(|access_log| log.write(access_log, &record));
}

/// Counts a connection as long as it lives.
struct Counted(Rc<TcpStats>);

impl Counted {
    fn new(stats: &Rc<TcpStats>) -> Self {
        stats.inc(Counter::downstream_cx_total);
        Self::resumed(stats)
    }

    /// A connection that another worker or process has counted in the totals.
    fn resumed(stats: &Rc<TcpStats>) -> Self {
        stats.shift(Gauge::downstream_cx_active, 1);
        Self(Rc::clone(stats))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.shift(Gauge::downstream_cx_active, -1);
    }
}
