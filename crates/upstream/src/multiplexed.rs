//! Upstream connections that carry many requests at once.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_http::h2::{OpenError, Reason};
use evenkeel_http::{Framing, RequestHead, Underscores, Version};
use evenkeel_runtime_config::alpn::AlpnOverrides;
use evenkeel_runtime_config::cluster::{Transport, UpstreamProtocol};
use evenkeel_runtime_config::http2::Http2Options;
use evenkeel_runtime_config::overload::PrematureResets;
use evenkeel_runtime_config::route::Priority;
use evenkeel_runtime_config::view::ConnectionView;

use super::cluster::Cluster;
use super::connection::Connection;
use super::host::Host;
use super::open::{ConnectTimes, Established};
use super::pool::AcquireError;
use super::shared_pools::{Choice, Connecting, Multiplexed, Peer};
use super::stats::cluster::Counter;
use crate::alpn::{Negotiated, WantedProtocol, leads_to_sidecar, negotiated};
use crate::h2::{self, Client, Limits, Reset, ResetBy};
use crate::turn;

/// Limit for a response's head in bytes if the cluster sets none; Envoy's default over HTTP/2.
const MAX_RESPONSE_HEAD_BYTES: usize = 60 * 1024;

/// The requirements of a request on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Not an idle connection: one was just closed by the peer under this request.
    Fresh,
    /// A connection that the request can take over.
    Tunnel,
}

/// The connection for one request.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
pub enum PooledConnection {
    /// An exclusive connection.
    Http1(Connection),
    /// A stream on a shared connection.
    Http2(StreamSlot),
}

/// The right to open one stream on a shared connection.
#[derive(Debug)]
pub struct StreamSlot {
    connection: Rc<Multiplexed>,
    /// The host it connects to.
    pub host: Rc<Host>,
    /// The connection has carried requests before.
    pub reused: bool,
}

impl PooledConnection {
    /// The host it connects to.
    pub fn host(&self) -> &Rc<Host> {
        match self {
            Self::Http1(connection) => &connection.host,
            Self::Http2(place) => &place.host,
        }
    }

    /// The local address; `None` for Unix sockets.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Http1(connection) => connection.local_addr(),
            Self::Http2(place) => place.local_addr(),
        }
    }

    /// Returns when the connection was made, for any request.
    pub fn connect_times(&self) -> &ConnectTimes {
        match self {
            Self::Http1(connection) => connection.connect_times(),
            Self::Http2(place) => place.connect_times(),
        }
    }

    /// Whether the connection has served a request before.
    pub fn reused(&self) -> bool {
        match self {
            Self::Http1(connection) => connection.reused,
            Self::Http2(place) => place.reused,
        }
    }
}

impl StreamSlot {
    /// A slot on one of the host's connections with room.
    fn on(host: &Rc<Host>, wanted: WantedProtocol, choice: Choice) -> Option<Self> {
        let (connection, reused) = host.multiplexed.of(wanted).place(choice)?;
        Some(Self { connection, host: host.clone(), reused })
    }

    /// Waits until it may be worth trying again to open a stream: the peer changed its limits, or a connection came or went.
    pub async fn changed(&self) {
        self.connection.client.changed().await;
    }

    /// The local address; `None` for Unix sockets.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.connection.local
    }

    /// When the connection was made.
    pub fn connect_times(&self) -> &ConnectTimes {
        &self.connection.times
    }

    /// Sends a request's head. `https` selects `:scheme`; `end`: the request has no body.
    pub fn open(&self, head: &RequestHead, https: bool, framing: Framing, end: bool) -> Result<h2::Stream, Reset> {
        let refused = |error: OpenError| {
            let reason = match error {
                OpenError::ExtendedConnect => Reason::HTTP_1_1_REQUIRED,
                _ => Reason::REFUSED_STREAM,
            };
            Reset { reason, by: ResetBy::Local, unprocessed: true }
        };
        self.connection.client.open(head, https, framing, end).map_err(refused)
    }
}

/// The host of an authority, without its port (Envoy's `parseAuthority`).
fn server_name(authority: &str) -> &str {
    if let Some((address, _)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match authority.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

impl Cluster {
    /// The protocol to use with `host` for a request that came in over `downstream`.
    fn wanted(&self, host: &Host, downstream: Version) -> WantedProtocol {
        let config = self.config.borrow();
        let shared = || match &host.transport {
            // HTTP/2 has no capitals.
            _ if config.http.preserve_header_case => WantedProtocol::Http1,
            Transport::Tls(tls)
                if leads_to_sidecar(host.alpn().as_ref().map_or(tls.alpn(), |alpn| alpn.http1_or(tls.alpn()))) =>
            {
                WantedProtocol::SharedHttp1
            }
            _ => WantedProtocol::Http1,
        };
        match &config.http.protocol {
            UpstreamProtocol::Http1 => shared(),
            UpstreamProtocol::Http2(_) => WantedProtocol::Http2,
            UpstreamProtocol::Downstream(_) if downstream == Version::Http2 => WantedProtocol::Http2,
            UpstreamProtocol::Downstream(_) => shared(),
            UpstreamProtocol::Auto(_) => WantedProtocol::Either,
        }
    }

    /// The host with the connections for requests with this authority, and with the ALPN protocols that a filter offers for them: another
    /// one than `host` if its TLS connections depend on these (`auto_sni`, Istio's `istio.alpn`), and those of `host` are for others.
    pub fn called(&self, host: &Rc<Host>, authority: &[u8], alpn: Option<&Arc<AlpnOverrides>>) -> Rc<Host> {
        let config = self.config.borrow();
        let names_server = config.http.names_server();
        if (!names_server && alpn.is_none()) || !matches!(host.transport, Transport::Tls(_)) {
            return host.clone();
        }
        let alpn = alpn.filter(|_| !config.keeps_alpn);
        let authority = names_server.then(|| String::from_utf8_lossy(authority));
        if authority.is_none() && alpn.is_none() && host.is_for_any() {
            return host.clone();
        }
        host.for_requests(authority.as_deref().map(server_name), alpn)
    }

    /// A connection to `host` that is available immediately. Never waits.
    pub fn try_acquire(&self, host: &Rc<Host>, downstream: Version) -> Option<PooledConnection> {
        self.ready(host, self.wanted(host, downstream))
    }

    fn ready(&self, host: &Rc<Host>, wanted: WantedProtocol) -> Option<PooledConnection> {
        if wanted != WantedProtocol::Http1
            && let Some(place) = StreamSlot::on(host, wanted, Choice::Best)
        {
            return Some(PooledConnection::Http2(place));
        }
        match wanted {
            WantedProtocol::Http2 => None,
            WantedProtocol::Bytes | WantedProtocol::Http1 | WantedProtocol::SharedHttp1 | WantedProtocol::Either => {
                self.reuse(host).map(PooledConnection::Http1)
            }
        }
    }

    /// A slot on a connection that was avoided in favour of a new one, which cannot be made.
    fn pressed(&self, host: &Rc<Host>, wanted: WantedProtocol) -> Option<PooledConnection> {
        let shared = wanted != WantedProtocol::Http1;
        shared.then(|| StreamSlot::on(host, wanted, Choice::Any)).flatten().map(PooledConnection::Http2)
    }

    /// A connection to `host` for a request that came in over `downstream`: an existing one, else a new one, else the
    /// next that has room. The latter applies at `max_connections`, and while a connection is being made that may carry
    /// more than one request.
    pub async fn acquire(
        &self,
        host: &Rc<Host>,
        downstream: Version,
        priority: Priority,
    ) -> Result<PooledConnection, AcquireError> {
        self.acquire_wanted(host, self.wanted(host, downstream), priority).await
    }

    /// As [`Cluster::acquire`], for a request with special requirements.
    pub async fn acquire_for(
        &self,
        host: &Rc<Host>,
        downstream: Version,
        need: Need,
        priority: Priority,
    ) -> Result<PooledConnection, AcquireError> {
        let wanted = self.wanted(host, downstream);
        match (need, wanted) {
            (_, WantedProtocol::Http2) => self.acquire_wanted(host, wanted, priority).await,
            (Need::Tunnel, _) | (Need::Fresh, WantedProtocol::Bytes | WantedProtocol::Http1) => {
                self.connect(host).await.map(PooledConnection::Http1)
            }
            (Need::Fresh, WantedProtocol::SharedHttp1 | WantedProtocol::Either) => {
                if let Some(place) = StreamSlot::on(host, wanted, Choice::Best) {
                    return Ok(PooledConnection::Http2(place));
                }
                let permit = self.unshared_room(host)?;
                Ok(self.begin(host, wanted, self.establish(host, permit, wanted, None).await?))
            }
        }
    }

    /// A connection that names the client to `host` (PROXY protocol), and so serves this request only.
    pub async fn acquire_naming(
        &self,
        host: &Rc<Host>,
        downstream: Version,
        client: &ConnectionView,
    ) -> Result<PooledConnection, AcquireError> {
        let wanted = self.wanted(host, downstream);
        let room = self.unshared_room(host)?;
        Ok(self.begin(host, wanted, self.establish(host, room, wanted, Some(client)).await?))
    }

    /// Whether requests may come back unprocessed: many share a connection, and its end is not caused by any of them.
    pub fn may_refuse(&self) -> bool {
        let config = self.config.borrow();
        let to_sidecars = || matches!(&config.transport, Transport::Tls(tls) if leads_to_sidecar(tls.alpn()));
        config.http.protocol != UpstreamProtocol::Http1 || to_sidecars()
    }

    async fn acquire_wanted(
        &self,
        host: &Rc<Host>,
        wanted: WantedProtocol,
        priority: Priority,
    ) -> Result<PooledConnection, AcquireError> {
        if let Some(upstream) = self.ready(host, wanted) {
            return Ok(upstream);
        }
        self.use_pool(host, priority)?;
        let _pending = self.begin_pending(priority)?;
        let pool = host.multiplexed.of(wanted);
        loop {
            let may_share = match wanted {
                WantedProtocol::Bytes | WantedProtocol::Http1 => false,
                WantedProtocol::Http2 => true,
                WantedProtocol::SharedHttp1 | WantedProtocol::Either => pool.peer.get() != Peer::OneAtATime,
            };
            if may_share && (pool.connecting.get() > 0 || pool.is_settling()) {
                pool.changed.notified().await;
            } else {
                let room = match self.try_room(host, priority) {
                    Some(room) => Some(room),
                    None => match self.pressed(host, wanted) {
                        Some(place) => return Ok(place),
                        None => self.room_or(host, priority, pool.changed.notified()).await,
                    },
                };
                if let Some(room) = room {
                    let _connecting = Connecting::new(pool);
                    return match self.establish(host, room, wanted, None).await {
                        Ok(made) => Ok(self.begin(host, wanted, made)),
                        Err(error) => self.pressed(host, wanted).ok_or(error.into()),
                    };
                }
            }
            if let Some(upstream) = self.ready(host, wanted) {
                return Ok(upstream);
            }
        }
    }

    /// Puts a new connection to use: for one request at a time, or for many at once.
    fn begin(&self, host: &Rc<Host>, wanted: WantedProtocol, made: Established) -> PooledConnection {
        let pool = host.multiplexed.of(wanted);
        let agreed = made.stream.session().and_then(|session| session.alpn.as_deref());
        let Negotiated::Http2(_) = negotiated(agreed, wanted) else {
            pool.peer.set(Peer::OneAtATime);
            self.stats().inc(Counter::upstream_cx_http1_total);
            return PooledConnection::Http1(Connection::new(made, host.clone()));
        };
        pool.peer.set(Peer::Many);
        self.stats().inc(Counter::upstream_cx_http2_total);
        let config = self.config();
        let default = Http2Options::default();
        let options = match &config.http.protocol {
            UpstreamProtocol::Http1 => &default,
            UpstreamProtocol::Http2(options)
            | UpstreamProtocol::Downstream(options)
            | UpstreamProtocol::Auto(options) => options,
        };
        let limits = Limits {
            underscores: Underscores::Allow,
            max_head_bytes: config.http.max_response_headers_bytes.unwrap_or(MAX_RESPONSE_HEAD_BYTES),
            max_headers: config.http.max_headers_count,
            head_timeout: None,
            idle_timeout: config.http.idle_timeout,
            drain_timeout: std::time::Duration::ZERO,
            flush_timeout: None,
            premature_resets: PrematureResets::default(),
        };
        let Established { stream, open } = made;
        let (local, times, epoch) = (open.local, open.times.clone(), open.epoch);
        let stats = self.http2_stats();
        let ended = move |broken| {
            if broken {
                open.shared.stats.inc(Counter::upstream_cx_protocol_error);
            }
            drop(open);
        };
        let connection = Rc::new(Multiplexed {
            client: Client::start(stream, options, limits, stats, Rc::clone(&pool.changed), ended),
            left: Cell::new(config.http.max_requests_per_connection.map(|most| most.saturating_sub(1))),
            used: Cell::new(true),
            epoch,
            local,
            times,
            until: config.http.max_connection_duration.map(|limit| turn::now() + limit),
        });
        // A connection made for one client, or for a configuration or host that is gone, serves only the request it was made for.
        let lasting = !host.removed.get()
            && !host.names_clients()
            && connection.epoch == self.epoch.get()
            && connection.left.get() != Some(0);
        if lasting {
            pool.connections.borrow_mut().push(Rc::clone(&connection));
        }
        PooledConnection::Http2(StreamSlot { connection, host: host.clone(), reused: false })
    }
}
