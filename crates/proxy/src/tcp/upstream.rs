//! The upstream side of a connection: made before or after the client has sent anything, and handed over with it.

use std::cell::Ref;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use evenkeel_filters::decide::{TcpDestination, tcp_destination};
use evenkeel_filters::format::{Record, UpstreamPeer};
use evenkeel_filters::network::Close;
use evenkeel_filters::peer_metadata::UPSTREAM;
use evenkeel_filters::{ConnectionInfo, ResponseFlags, StateObject, StreamInfo};
use evenkeel_http::ResponseHead;
use evenkeel_runtime_config::Config;
use evenkeel_runtime_config::cluster::Discovery;
use evenkeel_runtime_config::demand::DEFAULT_HOLD;
use evenkeel_runtime_config::listener::TcpProxy;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_stats::Writer;
use evenkeel_tls::Session;
use evenkeel_upstream::conn::Buffer;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::metadata_exchange::Exchanging;
use evenkeel_upstream::own::MAX_HOPS;
use evenkeel_upstream::stream::Stream;
use evenkeel_upstream::{ConnectTimes, Connection, Host, RequestGuard, Target, edge};
use tokio::time::Instant;

use super::relay::Remainder;
use super::tunnel::{self, TunnelStream};
use crate::clock::wall_clock;
use crate::connection_record::record_of_connection;
use crate::handover::{Half, TcpPart};
use crate::http::affinity::address_hash;
use crate::http::tcp_side::{self, TcpConnect};
use crate::http::{Failure, Opened, set_connect_times};
use crate::stats::tcp::Counter;
use crate::worker::Worker;
use evenkeel_upstream::turn;

/// `%CONNECTION_TERMINATION_DETAILS%` of a connection that has come back to this proxy too often.
const LOOP: &str = "proxy_loop";

/// The data about a connection that is logged and counted.
pub(super) struct Outcome {
    /// Its properties. Boxed: the futures of the connection's whole life hold it.
    pub(super) stream: Box<StreamInfo>,
    /// The counter for having no upstream, if the failure has one.
    pub(super) counter: Option<Counter>,
    /// The cluster connects to wherever the client dialled (`ORIGINAL_DST`).
    pub(super) original_dst: bool,
    /// Counters of the traffic with the server.
    pub(super) edge: Option<Rc<Writer<edge::Stats>>>,
    /// The server, and the TLS session with it. Not known of a connection that another process has made.
    peer: Option<(Rc<Host>, Option<Arc<Session>>)>,
    /// A side has reset the connection, or it was cut.
    pub(super) cut_off: bool,
}

/// The upstream side of a connection that is handed over; bytes read from the client stay with the client's side.
pub(crate) struct UpstreamHalf {
    pub(super) outcome: Outcome,
    pub(super) stream: Stream,
    pub(super) to_up: Half,
    pub(super) to_down: Remainder,
}

impl UpstreamHalf {
    /// Packs it for another process: the facts, the socket, and the bytes read from it. `from_client`: how many bytes read from the client
    /// are not yet written.
    pub(crate) fn pack(self, from_client: usize) -> (TcpPart, Stream, Buffer) {
        let Self { outcome, stream, to_up, to_down } = self;
        let text = |text: Option<Arc<str>>| text.map(|text| text.to_string());
        let (started, info) = (outcome.started(), *outcome.stream);
        let part = TcpPart {
            cluster: text(info.cluster_name),
            host: text(info.host),
            upstream_local: info.upstream_local,
            started_at: wall_clock(started),
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

/// The upstream of a connection.
#[allow(clippy::large_enum_variant, reason = "nearly all are connections")]
pub(super) enum Upstream {
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

    pub(super) fn travels(&self) -> bool {
        matches!(self, Self::Connection(connection) if matches!(connection.stream, Stream::Tcp(_)))
    }
}

/// The upstream side of a connection, made before or after its client has sent anything.
pub(crate) struct UpstreamSide {
    pub(super) outcome: Outcome,
    pub(super) upstream: Option<(Upstream, RequestGuard)>,
    /// Bytes already received from the upstream.
    pub(super) input: Buffer,
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
            outcome.edge = worker.edges.of_server(info, peer, turn::now()).cloned();
            if let Upstream::Connection(connection) = upstream
                && let Some(exchange) = connection.stream.layer::<Exchanging>()
            {
                outcome.stream.set_object(UPSTREAM, Rc::clone(exchange.peer()) as Rc<dyn StateObject>);
            }
            outcome.peer = Some((Rc::clone(upstream.host()), upstream.connect_times().session.clone()));
        }
        Box::new(Self { outcome, upstream, input })
    }

    /// The upstream side of a connection that filters close before there is an upstream.
    pub(super) fn refused(
        worker: &Worker,
        close: &Close,
        (view, stream): (&ConnectionView, &Stream),
        proxy: &TcpProxy,
    ) -> Box<Self> {
        let mut outcome = Outcome::new();
        let chosen = proxy.destination(view.server_name.as_ref(), worker.random.next());
        outcome.stream.cluster_name = chosen.map(|(cluster, _)| Arc::clone(cluster));
        outcome.closed_by(close);
        if close.reset {
            stream.reset_on_close();
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
    outcome.stream.service.clone_from(&cluster.config().service);
    outcome.original_dst = matches!(cluster.config().discovery, Discovery::OriginalDst(_));
    if worker.upstreams.own().hops_so_far(view) > MAX_HOPS {
        return refuse_loop(outcome, name);
    }
    let target = Target {
        original_dst: Some(view.local),
        dynamic: view.dynamic_host.as_deref(),
        hash: proxy.hash_source_ip.then(|| address_hash(view.remote.ip())),
        metadata_match,
        ..Target::default()
    };
    let tunneling = proxy.tunneling.as_ref();
    let connect = TcpConnect {
        cluster: &cluster,
        target,
        client: info,
        tunnel: tunneling.map(|tunneling| tunnel::request(tunneling, info)),
        attempts: proxy.max_connect_attempts.max(1),
        random: &worker.random,
    };
    let keep = |stream: &mut StreamInfo, response: &ResponseHead| {
        if let Some(tunneling) = tunneling {
            tunnel::keep_answer(stream, tunneling, response);
        }
    };
    let (opened, guard) = tcp_side::open(connect, &mut outcome.stream, keep).await.ok()?;
    // Again: what was not announced is noted by now.
    if worker.upstreams.own().hops(view) > MAX_HOPS {
        return refuse_loop(outcome, name);
    }
    let upstream = match opened {
        Opened::Connection(connection, received) => {
            *input = received;
            Upstream::Connection(connection)
        }
        Opened::Stream(stream, place) => Upstream::Tunnel(Box::new(TunnelStream::new(stream, place, tunneling))),
    };
    Some((upstream, guard))
}

/// The connection has come back to this proxy too often.
fn refuse_loop<T>(outcome: &mut Outcome, cluster: &str) -> Option<T> {
    outcome.fail(&Failure::Loop);
    outcome.stream.termination = LOOP.into();
    tracing::debug!(cluster, "a connection comes back to the proxy that forwards it");
    None
}

/// Waits for a cluster that was not requested from the control plane before (`on_demand`).
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
    pub(super) fn closed_by(&mut self, close: &Close) {
        self.stream.termination = close.details.clone();
        self.stream.flags |= close.flag.and_then(ResponseFlags::from_short_name).unwrap_or_default();
    }

    fn new() -> Self {
        Self::begun(turn::now())
    }

    pub(super) fn begun(start: Instant) -> Self {
        let stream = Box::new(StreamInfo::new(start.into_std()));
        Self { stream, counter: None, original_dst: false, edge: None, peer: None, cut_off: false }
    }

    /// Calls `f` with the record of the connection.
    pub(super) fn record<T>(&self, connection: &ConnectionInfo, f: impl FnOnce(&Record<'_>) -> T) -> T {
        let peer = self.peer.as_ref();
        let endpoint = peer.map(|(host, _)| Ref::map(host.endpoint(), |endpoint| &**endpoint));
        let session = peer.and_then(|(_, session)| session.as_deref());
        let upstream = endpoint.as_deref().map(|endpoint| UpstreamPeer { endpoint, session });
        f(&Record { upstream, cut_off: self.cut_off, ..record_of_connection(&self.stream, connection) })
    }

    pub(super) fn started(&self) -> Instant {
        Instant::from_std(self.stream.times.start())
    }

    /// Records a failure for the log and the statistics.
    pub(super) fn fail(&mut self, failure: &Failure) {
        let row = failure.row();
        self.stream.flags |= row.flags;
        self.counter = self.counter.or(row.tcp_counter);
    }
}
