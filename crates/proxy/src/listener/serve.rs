//! The way of a connection from accept to its terminal filter: original destination, logical listener, PROXY protocol,
//! protocol detection, filter chain match, TLS.

use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::network::Close;
use evenkeel_filters::{ConnectionInfo, NetworkFilters};
use evenkeel_runtime_config::hcm::ClientCertDetails;
use evenkeel_runtime_config::listener::{FilterChain, Listener, Terminal};
use evenkeel_runtime_config::view::PeerIdentity;
use evenkeel_runtime_config::{Config, HttpConnectionManager};
use evenkeel_tls::{PeerCertificate, Session};
use evenkeel_upstream::conn::Buffer;
use evenkeel_upstream::stream::Stream;
use pem::{EncodeConfig, LineEnding, Pem};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::balance::Seat;
use crate::listener::detect::detect;
use crate::listener::filtered::{self, Filtered};
use crate::listener::handshake::{self, Blame, Failure};
use crate::listener::inspect::{InspectError, Inspected};
use crate::listener::log;
use crate::listener::original_dst::original_destination;
use crate::listener::proxy_protocol;
use crate::listener::{adopt, moving};
use crate::stats::{
    http as http_stats, listener, listener_ssl, listener_ssl_factory, listener_worker, tcp as tcp_stats,
    worker as worker_stats,
};
use crate::tcp::UpstreamSide;
use crate::worker::{Cause, ConnectionStats, Delivery, Directive, HoldError, Registration, Worker};
use crate::{http, tcp};

/// A connection for which a filter chain has been chosen.
pub(crate) struct Downstream<S = Stream> {
    pub(crate) stream: S,
    /// Bytes already read from the stream, to be used first.
    pub(crate) input: Buffer,
    /// Metadata of the connection.
    pub(crate) info: Arc<ConnectionInfo>,
    /// Requests served on it so far.
    pub(crate) requests: u32,
    /// When it became idle, if it is: moving to another worker does not restart its idle timeout.
    pub(crate) idle_since: Option<Instant>,
    /// It was served before by another worker, or by the predecessor process, where it was counted and admitted.
    pub(crate) resumed: bool,
}

impl<S> Downstream<S> {
    /// The same connection over another stream type.
    pub(super) fn map<T>(self, map: impl FnOnce(S) -> T) -> Downstream<T> {
        let Self { stream, input, info, requests, idle_since, resumed } = self;
        Downstream { stream: map(stream), input, info, requests, idle_since, resumed }
    }
}

impl Downstream {
    /// The same connection, with its bytes passing through its network filters if these need to see them.
    pub(crate) fn filtered(mut self, connection: Option<Rc<filtered::Connection>>) -> Self {
        let Some(connection) = connection else { return self };
        let read = std::mem::take(&mut self.input);
        self.map(|stream| Filtered::over(stream, connection, &read))
    }
}

impl<T> Downstream<io::Result<T>> {
    /// The same connection if its stream is `Ok`, or else the error.
    pub(super) fn transpose(self) -> io::Result<Downstream<T>> {
        let Self { stream, input, info, requests, idle_since, resumed } = self;
        Ok(Downstream { stream: stream?, input, info, requests, idle_since, resumed })
    }
}

/// A connection's assignment: the seat on its worker, and its listeners.
pub(super) struct Placement {
    /// `None` once the connection has moved away.
    pub(super) seat: Option<Seat>,
    pub(super) bound: Arc<Listener>,
    /// The listener found by the original destination, if any.
    pub(super) logical: Option<Arc<Listener>>,
}

impl Placement {
    /// Moves the assignment to another worker; `None` when the cause no longer applies, and nothing changes.
    pub(super) fn move_to(&mut self, worker: usize, cause: Cause) -> Option<Self> {
        let mut seat = self.seat.take();
        let moved = seat.as_mut().is_none_or(|seat| match cause {
            Cause::Load => seat.move_to(worker),
            Cause::Count => seat.level_with(worker),
        });
        if !moved {
            self.seat = seat;
            return None;
        }
        Some(Self { seat, bound: Arc::clone(&self.bound), logical: self.logical.clone() })
    }

    /// The listener whose filter chains serve the connection.
    pub(super) fn listener(&self) -> &Arc<Listener> {
        self.logical.as_ref().unwrap_or(&self.bound)
    }
}

/// A connection being served by a filter chain.
pub(crate) struct Served<'w> {
    terminating: Terminating<'w>,
    placement: Placement,
    counted: Counted,
}

/// Serves until the connection ends (`None`), or has to move to another worker or process.
pub(crate) type Terminating<'w> = Pin<Box<dyn Future<Output = Option<Box<MovingConnection>>> + 'w>>;

/// An accepted connection on its way to its worker.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) stream: std::net::TcpStream,
    pub(super) peer: SocketAddr,
    /// The listener that accepted it.
    pub(super) bound: Arc<Listener>,
    pub(super) seat: Seat,
}

impl Delivery for Accepted {
    fn serve(self: Box<Self>, worker: &Rc<Worker>) {
        serve(worker, *self);
    }
}

/// Serves a newly accepted connection in a task of its own.
pub(super) fn serve(worker: &Rc<Worker>, connection: Accepted) {
    worker.stats.inc(worker_stats::Counter::downstream_cx_total);
    let id = worker.next_id();
    let (of, registration) = (Rc::clone(worker), worker.register(&connection.bound.name));
    let entry = Rc::clone(&registration);
    worker.start(&entry, async move {
        if let Some(mut served) = Box::pin(accepted(&of, connection, id, &registration)).await {
            served.serve_to_end(&of, &registration).await;
        }
    });
}

/// Serves a connection with a known filter chain in a task of its own.
pub(super) fn start<F>(worker: &Rc<Worker>, registration: Rc<Registration>, begin: F)
where
    F: for<'w> FnOnce(&'w Rc<Worker>, &'w Rc<Registration>) -> Option<Served<'w>> + 'static,
{
    let (of, entry) = (Rc::clone(worker), Rc::clone(&registration));
    worker.start(&entry, async move {
        if let Some(mut served) = begin(&of, &registration) {
            served.serve_to_end(&of, &registration).await;
        }
    });
}

/// Establishes a newly accepted connection up to its filter chain. Box this future: it is large, and it completes
/// before the long part of the connection's life begins.
async fn accepted<'w>(
    worker: &'w Rc<Worker>,
    accepted: Accepted,
    id: u64,
    registration: &'w Rc<Registration>,
) -> Option<Served<'w>> {
    let (destination, redirected) = destination(&accepted)?;
    let Accepted { stream, peer, bound, seat } = accepted;
    let logical = match redirected && bound.use_original_dst {
        true => listener_of_destination(worker, &bound, destination).await,
        false => None,
    };
    let placement = Placement { seat: Some(seat), bound, logical };
    let counted = Counted::new(worker, &placement);
    let stream = TcpStream::from_std(stream).ok()?;
    let listener = Arc::clone(placement.listener());
    let info = ConnectionInfo::new(id, counted.since.into_std(), peer, destination);
    let (downstream, upstream_side) = establish(worker, stream, info, listener, &counted).await?;
    Some(Served::new(worker, downstream, Arrival::New(upstream_side), (placement, counted), registration))
}

/// The listener for an original destination. If it has not been requested from the control plane yet, this waits for
/// the answer.
async fn listener_of_destination(worker: &Worker, bound: &Listener, destination: SocketAddr) -> Option<Arc<Listener>> {
    let missing = |config: &Config| config.unanswered_listeners(destination);
    let generation = worker.generation();
    if generation.shared.config.by_name && !missing(&generation.shared.config).is_empty() {
        let stats = generation.connection_stats(worker, bound.address);
        stats.listener.inc(listener::Counter::on_demand_attempt);
        let held = Box::pin(worker.hold(missing)).await;
        let found = worker.generation().shared.listener_of_destination(destination).is_some();
        stats.listener.inc(match held {
            Ok(()) if found => listener::Counter::on_demand_success,
            Ok(()) => listener::Counter::on_demand_missing,
            Err(HoldError::TimedOut) => listener::Counter::on_demand_timeout,
            Err(HoldError::Overflow) => listener::Counter::on_demand_overflow,
        });
    }
    let found = worker.generation().shared.listener_of_destination(destination).cloned();
    found.inspect(|listener| listener.mark_used())
}

impl<'w> Served<'w> {
    pub(super) fn new(
        worker: &'w Rc<Worker>,
        downstream: Downstream,
        arrival: Arrival,
        (placement, counted): (Placement, Counted),
        registration: &'w Rc<Registration>,
    ) -> Self {
        Self { terminating: terminal(worker, downstream, arrival, &placement, registration), placement, counted }
    }

    /// Serves the connection until it ends or has moved to another worker or process.
    pub(crate) async fn serve_to_end(&mut self, worker: &'w Rc<Worker>, registration: &'w Rc<Registration>) {
        while let Some(moving) = self.terminating.as_mut().await {
            let back = match moving.to {
                Directive::MoveTo(to, cause) => moving::send(worker, (to, cause), moving, &mut self.placement),
                _ => Box::pin(adopt::send(worker, moving, &mut self.placement)).await,
            };
            let Some(back) = back else {
                self.counted.moved_away = true;
                return;
            };
            registration.forget_order();
            self.terminating =
                terminal(worker, back.downstream, Arrival::Back(back.upstream), &self.placement, registration);
        }
    }
}

/// How a connection reaches its filter chain.
pub(super) enum Arrival {
    /// For the first time; a TCP proxy's upstream may have been connected ahead.
    New(Option<Box<UpstreamSide>>),
    /// After a move, or a failed attempt to move, with the upstream half of a TCP connection.
    Back(Option<Box<tcp::UpstreamHalf>>),
}

/// A connection that has to move, between two messages.
pub(crate) struct MovingConnection {
    pub(crate) downstream: Downstream,
    /// The upstream half of a TCP connection.
    pub(crate) upstream: Option<Box<tcp::UpstreamHalf>>,
    pub(crate) to: Directive,
}

/// Passes a connection to the terminal filter of its filter chain.
fn terminal<'w>(
    worker: &'w Rc<Worker>,
    downstream: Downstream,
    arrival: Arrival,
    placement: &Placement,
    registration: &'w Rc<Registration>,
) -> Terminating<'w> {
    let listener = placement.listener();
    let Some(chain) = downstream.info.chain.clone() else { return Box::pin(ready(None)) };
    registration.served_by(&chain, listener.direction);
    if let Some(limit) = worker.overload.request_limit(&listener.name) {
        registration.limit_requests(limit);
    }
    let filters = worker.generation().network_filters(worker, &chain);
    match &chain.terminal {
        Terminal::Http(hcm) => {
            let hcm = Arc::clone(hcm);
            http_terminal(worker, downstream, (Arc::clone(listener), hcm, filters), registration)
        }
        Terminal::Tcp(proxy) => {
            let configured = (Arc::clone(listener), Arc::clone(proxy));
            let downstream = Box::new(downstream);
            match arrival {
                Arrival::New(upstream_side) => {
                    Box::pin(tcp::serve(worker, downstream, configured, (filters, upstream_side), registration))
                }
                Arrival::Back(None) => {
                    Box::pin(tcp::serve(worker, downstream, configured, (filters, None), registration))
                }
                Arrival::Back(Some(upstream_half)) => {
                    Box::pin(tcp::resume(worker, downstream, configured, upstream_half, registration))
                }
            }
        }
    }
}

/// Passes a connection to its HTTP connection manager, if its network filters admit it.
fn http_terminal<'w>(
    worker: &'w Rc<Worker>,
    mut downstream: Downstream,
    (listener, hcm, filters): (Arc<Listener>, Arc<HttpConnectionManager>, Rc<NetworkFilters>),
    registration: &'w Rc<Registration>,
) -> Terminating<'w> {
    if downstream.resumed || filters.is_empty() {
        return http::serve(worker, downstream, hcm, registration);
    }
    if !filters.are_immediate() {
        return Box::pin(async move {
            match filtered::admit(worker, filters, &mut downstream.info).await {
                Ok(connection) => http::serve(worker, downstream.filtered(connection), hcm, registration).await,
                Err(close) => {
                    close_refused(worker, &listener, &downstream, &close);
                    None
                }
            }
        });
    }
    match filtered::admit_at_once(worker, &filters, &mut downstream.info) {
        Ok(()) => http::serve(worker, downstream, hcm, registration),
        Err(close) => Box::pin(async move {
            filtered::outwait(&close).await;
            close_refused(worker, &listener, &downstream, &close);
            None
        }),
    }
}

fn close_refused(worker: &Worker, listener: &Listener, downstream: &Downstream, close: &Close) {
    if close.reset {
        downstream.stream.reset_on_close();
    }
    log::refused(worker, listener, &downstream.info, close);
}

/// The address the client connected to, and whether a redirect changed it.
fn destination(accepted: &Accepted) -> Option<(SocketAddr, bool)> {
    let local = accepted.stream.local_addr().ok()?;
    let original = match accepted.bound.listener_filters.original_dst {
        true => original_destination(&accepted.stream, local),
        false => None,
    };
    let destination = original.unwrap_or(local);
    Some((destination, original.is_some_and(|original| original != local)))
}

/// PROXY protocol, protocol detection, filter chain match, TLS. `None` when the connection has to be closed; the reason
/// has been counted and logged.
async fn establish(
    worker: &Rc<Worker>,
    stream: TcpStream,
    mut info: ConnectionInfo,
    listener: Arc<Listener>,
    counted: &Counted,
) -> Option<(Downstream, Option<Box<UpstreamSide>>)> {
    let stats = &counted.bound;
    let mut inspected = Inspected::default();
    if let Some(filter) = &listener.listener_filters.proxy_protocol {
        let reading = proxy_protocol::read(worker, &stream, filter, &mut inspected);
        let header = within(listener.listener_filters.timeout, Box::pin(reading)).await;
        let header = header.map_err(|error| refuse(worker, stats, (&listener, &info), &error)).ok()?;
        if let Some((remote, local)) = header.as_ref().and_then(|header| header.addresses) {
            (info.view.remote, info.view.local) = (remote, local);
        }
        info.view.tlvs = header.and_then(|header| proxy_protocol::passed_through(header.tlvs, filter));
    }
    let detected = detect(worker, &stream, &listener, &info, inspected).await;
    let detected = detected.map_err(|error| refuse(worker, stats, (&listener, &info), &error)).ok()?;
    let Some(chain) = detected.chain else {
        stats.listener.inc(listener::Counter::no_filter_chain_match);
        log::unmatched(worker, &listener, &info);
        return None;
    };
    info.chain = Some(Arc::clone(&chain));
    let inspected = detected.inspected;
    let server_name = &mut info.view.server_name;
    *server_name = inspected.hello.as_ref().and_then(|hello| hello.server_name()).map(Arc::from);
    let (stream, input) = match &chain.tls {
        Some(tls) => match handshake::accept(stream, (&listener, &chain, tls), inspected, server_name).await {
            Ok(stream) => {
                count_handshake(worker, counted.serving(), &listener, &stream);
                complete(&mut info, &stream, &chain);
                (stream, Buffer::default())
            }
            Err(failure) => {
                refuse_handshake(worker, counted.serving(), (&listener, info), &chain, failure);
                return None;
            }
        },
        None => {
            let bytes = inspected.hello.map_or(inspected.bytes, |hello| hello.into_bytes());
            (Stream::Tcp(stream), Buffer::with(&bytes))
        }
    };
    let info = Arc::new(info);
    let downstream = Downstream { stream, input, info, requests: 0, idle_since: None, resumed: false };
    Some((downstream, detected.upstream_side))
}

/// Timeout for a PROXY protocol header on a listener without `listener_filters_timeout`. A header is sent before
/// anything else, in one piece.
const LONGEST_HEADER: Duration = Duration::from_secs(15);

/// Applies the listener's timeout to reading a PROXY protocol header.
async fn within<T>(
    limit: Option<Duration>,
    reading: impl Future<Output = Result<T, InspectError>>,
) -> Result<T, InspectError> {
    tokio::time::timeout(limit.unwrap_or(LONGEST_HEADER), reading).await.unwrap_or(Err(InspectError::Timeout))
}

/// Counts and logs a connection that was closed by a listener filter.
fn refuse(
    worker: &Worker,
    stats: &ConnectionStats,
    (listener, info): (&Listener, &ConnectionInfo),
    error: &InspectError,
) {
    stats.listener.inc(match error {
        InspectError::Timeout => listener::Counter::downstream_pre_cx_timeout,
        InspectError::Socket(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            listener::Counter::downstream_listener_filter_remote_close
        }
        _ => listener::Counter::downstream_listener_filter_error,
    });
    log::closed(worker, listener, info);
}

fn count_handshake(worker: &Worker, stats: &ConnectionStats, listener: &Listener, stream: &Stream) {
    let tls = stats.tls(worker, listener.address);
    tls.inc(listener_ssl::Counter::handshake);
    if stream.session().is_some_and(|session| session.peer.is_none()) {
        tls.inc(listener_ssl::Counter::no_certificate);
    }
}

/// Counts and logs a connection whose TLS handshake failed. As in Envoy, the terminal filter of its chain counts it,
/// too.
fn refuse_handshake(
    worker: &Worker,
    stats: &ConnectionStats,
    (listener, info): (&Listener, ConnectionInfo),
    chain: &FilterChain,
    failure: Failure,
) {
    match failure.blame {
        Blame::Tls(counter) => stats.tls(worker, listener.address).inc(counter),
        Blame::Timeout => stats.listener.inc(listener::Counter::downstream_cx_transport_socket_connect_timeout),
        Blame::Secret => {
            let factory = stats.tls_factory(worker, listener.address);
            factory.inc(listener_ssl_factory::Counter::downstream_context_secrets_not_ready);
        }
        Blame::Other => {}
    }
    let generation = worker.generation();
    match &chain.terminal {
        Terminal::Http(hcm) => {
            let manager = generation.manager(worker, hcm);
            manager.http.inc(http_stats::Counter::downstream_cx_total);
            manager.http.inc(http_stats::Counter::downstream_cx_ssl_total);
            manager.http.inc(http_stats::Counter::downstream_cx_destroy);
        }
        Terminal::Tcp(proxy) => {
            generation.tcp_stats(&proxy.stat_prefix).inc(tcp_stats::Counter::downstream_cx_total);
        }
    }
    let (peer, reason) = (info.view.direct_remote, &failure.reason);
    tracing::debug!(%peer, listener = %listener.name, reason, "TLS handshake failed");
    log::failed_handshake(worker, listener, info, chain, failure);
}

/// Adds the results of the TLS handshake, if there was one.
fn complete(info: &mut ConnectionInfo, stream: &Stream, chain: &FilterChain) {
    let Some(session) = stream.session() else { return };
    let forwarded = match &chain.terminal {
        Terminal::Http(hcm) => hcm.client_cert_details,
        Terminal::Tcp(_) => ClientCertDetails::default(),
    };
    let view = &mut info.view;
    view.tls = true;
    view.peer = session.peer.as_deref().map(|peer| Arc::new(identity(peer, session, forwarded)));
    if let Some(name) = &session.server_name {
        view.server_name = Some(name.as_str().into());
    }
    info.session = Some(Arc::clone(session));
}

fn identity(peer: &PeerCertificate, session: &Session, forwarded: ClientCertDetails) -> PeerIdentity {
    let leaf = peer.chain.first().filter(|_| forwarded.cert);
    let chain = || peer.chain.iter().map(|certificate| pem_urlencoded(certificate)).collect();
    PeerIdentity {
        uri_sans: peer.uri_sans.clone(),
        dns_sans: peer.dns_sans.clone(),
        subject: peer.subject.clone(),
        sha256: peer.sha256_hex(),
        local_uri_sans: session.local.as_ref().map(|local| local.uri_sans.clone()).unwrap_or_default(),
        cert_pem_urlencoded: leaf.map(|leaf| pem_urlencoded(leaf)),
        chain_pem_urlencoded: forwarded.chain.then(chain),
    }
}

/// A certificate as PEM, escaping the characters that Envoy escapes in `Cert=`.
fn pem_urlencoded(der: &[u8]) -> String {
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let text = pem::encode_config(&Pem::new("CERTIFICATE", der), lines);
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("%0A"),
            ' ' => escaped.push_str("%20"),
            '+' => escaped.push_str("%2B"),
            '/' => escaped.push_str("%2F"),
            '=' => escaped.push_str("%3D"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Counts a connection in the statistics of its listeners, including the logical listener.
pub(super) struct Counted {
    bound: Rc<ConnectionStats>,
    logical: Option<Rc<ConnectionStats>>,
    since: Instant,
    moved_away: bool,
}

impl Counted {
    /// A newly accepted connection.
    fn new(worker: &Worker, placement: &Placement) -> Self {
        let counted = Self::moved(worker, placement, Instant::now());
        for stats in counted.all() {
            stats.listener.inc(listener::Counter::downstream_cx_total);
            stats.worker.inc(listener_worker::Counter::downstream_cx_total);
        }
        counted
    }

    /// A connection that was already counted by another worker or process.
    pub(super) fn moved(worker: &Worker, placement: &Placement, since: Instant) -> Self {
        let generation = worker.generation();
        let stats = |listener: &Arc<Listener>| generation.connection_stats(worker, listener.address);
        let (bound, logical) = (stats(&placement.bound), placement.logical.as_ref().map(stats));
        let counted = Self { bound, logical, since, moved_away: false };
        counted.shift(1);
        counted
    }

    fn shift(&self, by: i64) {
        for stats in self.all() {
            stats.listener.shift(listener::Gauge::downstream_cx_active, by);
            stats.worker.shift(listener_worker::Gauge::downstream_cx_active, by);
        }
    }

    /// Statistics of the listener whose filter chain serves the connection.
    fn serving(&self) -> &ConnectionStats {
        self.logical.as_deref().unwrap_or(&self.bound)
    }

    fn all(&self) -> impl Iterator<Item = &ConnectionStats> {
        std::iter::once(&*self.bound).chain(self.logical.as_deref())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shift(-1);
        if self.moved_away {
            return;
        }
        let millis = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        for stats in self.all() {
            stats.listener.inc(listener::Counter::downstream_cx_destroy);
            stats.listener.record(listener::Histogram::downstream_cx_length_ms, millis);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_escaped_pem() {
        // Bytes whose base64 has every character that is escaped: `++//` and padding, and a second line.
        let mut der = vec![0xfb, 0xef, 0xff];
        der.resize(49, 0);
        assert_eq!(
            pem_urlencoded(&der),
            format!(
                "-----BEGIN%20CERTIFICATE-----%0A%2B%2B%2F%2F{}%0AAA%3D%3D%0A-----END%20CERTIFICATE-----%0A",
                "A".repeat(60)
            )
        );
    }
}
