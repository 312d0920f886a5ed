//! One connection from accept to its terminal filter: original destination, logical listener, PROXY protocol, protocol
//! detection, filter chain, TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::hcm::ClientCertDetails;
use evenkeel_runtime_config::listener::{FilterChain, Listener, Terminal};
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity};
use evenkeel_runtime_config::{Config, HttpConnectionManager};
use evenkeel_tls::{PeerCertificate, Session};
use evenkeel_upstream::conn::Buffer;
use evenkeel_upstream::stream::Stream;
use pem::{EncodeConfig, LineEnding, Pem};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::balance::Seat;
use crate::listener::detect::{Ends, detect};
use crate::listener::handshake::{self, Blame, Failure};
use crate::listener::inspect::{InspectError, Inspected};
use crate::listener::log::{self, Young};
use crate::listener::original_dst::original_destination;
use crate::listener::proxy_protocol;
use crate::listener::{adopt, filtered, moving};
use crate::stats::{
    http as http_stats, listener, listener_ssl, listener_ssl_factory, listener_worker, tcp as tcp_stats,
};
use crate::tcp::Ahead;
use crate::worker::{Accepted, Cause, ConnectionStats, Directive, HoldError, Registration, Worker};
use crate::{http, tcp};

/// A connection that a filter chain has taken.
pub(crate) struct Downstream<S = Stream> {
    pub(crate) stream: S,
    /// Read already, to be used first.
    pub(crate) input: Buffer,
    /// What matchers, filters and logs may know of it.
    pub(crate) view: ConnectionView,
    pub(crate) chain: Arc<FilterChain>,
    pub(crate) id: u64,
    /// Peer address as text, for `x-forwarded-for`.
    pub(crate) peer_text: Box<str>,
    /// When it was accepted.
    pub(crate) since: Instant,
    /// Requests served on it so far.
    pub(crate) requests: u32,
    /// Since when it has waited for the next one, if it does: its time does not begin anew on another worker.
    pub(crate) idle_since: Option<Instant>,
    /// Another worker served it before: it was counted and let in there.
    pub(crate) resumed: bool,
}

impl<S> Downstream<S> {
    /// The same connection over another stream.
    pub(super) fn map<T>(self, map: impl FnOnce(S) -> T) -> Downstream<T> {
        let Self { stream, input, view, chain, id, peer_text, since, requests, idle_since, resumed } = self;
        let stream = map(stream);
        Downstream { stream, input, view, chain, id, peer_text, since, requests, idle_since, resumed }
    }
}

impl<T> Downstream<io::Result<T>> {
    /// The same connection, if it has a stream.
    pub(super) fn transpose(self) -> io::Result<Downstream<T>> {
        let Self { stream, input, view, chain, id, peer_text, since, requests, idle_since, resumed } = self;
        Ok(Downstream { stream: stream?, input, view, chain, id, peer_text, since, requests, idle_since, resumed })
    }
}

/// A connection's place: the worker that is charged with it, and the listeners that took it.
pub(super) struct Placement {
    /// `None` once the connection has left.
    pub(super) seat: Option<Seat>,
    pub(super) bound: Arc<Listener>,
    /// Where its original destination led it.
    pub(super) logical: Option<Arc<Listener>>,
}

impl Placement {
    /// The same place on another worker, and this one keeps none; unless there is no cause for that any more.
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

/// A connection that a filter chain serves.
pub(crate) struct Served<'w> {
    terminating: Terminating<'w>,
    placement: Placement,
    counted: Counted,
}

/// Serves until the connection ends, or is to go on elsewhere.
pub(crate) type Terminating<'w> = Pin<Box<dyn Future<Output = Option<Box<Leaving>>> + 'w>>;

/// Takes a connection just accepted as far as its filter chain. The future is large, and over before the connection's long
/// life begins: box it.
pub(crate) async fn accepted<'w>(
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
    let ends = Ends { direct: peer, remote: peer, destination };
    let (downstream, ahead) = establish(worker, stream, ends, listener, &counted, id).await?;
    Some(Served::new(worker, downstream, Arrival::New(ahead), (placement, counted), registration))
}

/// The listener that an original destination leads to; one that was not asked for before is waited for.
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

    /// Serves the connection until it ends or has gone to another worker.
    pub(crate) async fn serve_to_end(&mut self, worker: &'w Rc<Worker>, registration: &'w Rc<Registration>) {
        while let Some(leaving) = self.terminating.as_mut().await {
            let back = match leaving.to {
                Directive::MoveTo(to, cause) => moving::send(worker, (to, cause), leaving, &mut self.placement),
                _ => Box::pin(adopt::send(worker, leaving, &mut self.placement)).await,
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

/// How a connection comes to its filter chain.
pub(super) enum Arrival {
    /// For the first time; a TCP proxy may have connected ahead.
    New(Option<Box<Ahead>>),
    /// After it was elsewhere, with the other side of a TCP connection.
    Back(Option<Box<tcp::UpstreamHalf>>),
}

/// A connection that is to go on elsewhere, between two messages.
pub(crate) struct Leaving {
    pub(crate) downstream: Downstream,
    /// The other side of a TCP connection.
    pub(crate) upstream: Option<Box<tcp::UpstreamHalf>>,
    pub(crate) to: Directive,
}

/// Hands a connection to the last filter of the chain that has taken it.
fn terminal<'w>(
    worker: &'w Rc<Worker>,
    downstream: Downstream,
    arrival: Arrival,
    placement: &Placement,
    registration: &'w Rc<Registration>,
) -> Terminating<'w> {
    let listener = placement.listener();
    registration.served_by(&downstream.chain, listener.direction);
    if let Some(limit) = worker.overload.request_limit(&listener.name) {
        registration.limit_requests(limit);
    }
    match &downstream.chain.terminal {
        Terminal::Http(hcm) => {
            let hcm = Arc::clone(hcm);
            http_terminal(worker, downstream, (Arc::clone(listener), hcm), registration)
        }
        Terminal::Tcp(proxy) => {
            let configured = (Arc::clone(listener), Arc::clone(proxy));
            match arrival {
                Arrival::New(ahead) => Box::pin(tcp::serve(worker, downstream, configured, ahead, registration)),
                Arrival::Back(None) => Box::pin(tcp::serve(worker, downstream, configured, None, registration)),
                Arrival::Back(Some(upstream_half)) => {
                    Box::pin(tcp::resume(worker, downstream, configured, upstream_half, registration))
                }
            }
        }
    }
}

/// Hands a connection to its connection manager, if its network filters let it in.
fn http_terminal<'w>(
    worker: &'w Rc<Worker>,
    mut downstream: Downstream,
    (listener, hcm): (Arc<Listener>, Arc<HttpConnectionManager>),
    registration: &'w Rc<Registration>,
) -> Terminating<'w> {
    let filters = worker.generation().network_filters(worker, &downstream.chain);
    if downstream.resumed || filters.is_empty() {
        return http::serve(worker, downstream, hcm, registration);
    }
    if !filters.are_immediate() {
        return Box::pin(async move {
            match filtered::admit(worker, filters, downstream).await {
                (downstream, Ok(())) => http::serve(worker, downstream, hcm, registration).await,
                (downstream, Err(close)) => {
                    log::refused(worker, &listener, &downstream, &close);
                    None
                }
            }
        });
    }
    match filters.admit(&mut downstream.view, &**worker, Instant::now().into_std()) {
        Ok(()) => http::serve(worker, downstream, hcm, registration),
        Err(close) => Box::pin(async move {
            filtered::refuse(&close, &downstream).await;
            log::refused(worker, &listener, &downstream, &close);
            None
        }),
    }
}

/// The address the client dialled, and whether a redirect brought it here.
fn destination(accepted: &Accepted) -> Option<(SocketAddr, bool)> {
    let local = accepted.stream.local_addr().ok()?;
    let original = match accepted.bound.listener_filters.original_dst {
        true => original_destination(&accepted.stream, local),
        false => None,
    };
    let destination = original.unwrap_or(local);
    Some((destination, original.is_some_and(|original| original != local)))
}

/// PROXY protocol, detection, filter chain, TLS. `None` when the connection is to be closed; why was counted and logged.
async fn establish(
    worker: &Rc<Worker>,
    stream: TcpStream,
    mut ends: Ends,
    listener: Arc<Listener>,
    counted: &Counted,
    id: u64,
) -> Option<(Downstream, Option<Box<Ahead>>)> {
    let stats = &counted.bound;
    let young = Young { ends, id, since: counted.since, listener: &listener };
    let mut inspected = Inspected::default();
    let mut tlvs = None;
    if let Some(filter) = &listener.listener_filters.proxy_protocol {
        let reading = proxy_protocol::read(worker, &stream, filter, &mut inspected);
        let header = within(listener.listener_filters.timeout, Box::pin(reading)).await;
        let header = header.map_err(|error| refuse(worker, stats, young, &error)).ok()?;
        if let Some((remote, destination)) = header.as_ref().and_then(|header| header.addresses) {
            (ends.remote, ends.destination) = (remote, destination);
        }
        tlvs = header.and_then(|header| proxy_protocol::passed_through(header.tlvs, filter));
    }
    let detected = detect(worker, &stream, &listener, ends, inspected).await;
    let young = Young { ends, ..young };
    let detected = detected.map_err(|error| refuse(worker, stats, young, &error)).ok()?;
    let Some(chain) = detected.chain else {
        stats.listener.inc(listener::Counter::no_filter_chain_match);
        log::unmatched(worker, young);
        return None;
    };
    let inspected = detected.inspected;
    let mut server_name = inspected.hello.as_ref().and_then(|hello| hello.server_name()).map(Arc::from);
    let (stream, input) = match &chain.tls {
        Some(tls) => match handshake::accept(stream, (&listener, &chain, tls), inspected, &mut server_name).await {
            Ok(stream) => {
                count_handshake(worker, counted.serving(), young, &stream);
                (stream, Buffer::default())
            }
            Err(failure) => {
                refuse_handshake(worker, counted.serving(), young, &chain, server_name.as_ref(), &failure);
                return None;
            }
        },
        None => {
            let bytes = inspected.hello.map_or(inspected.bytes, |hello| hello.into_bytes());
            (Stream::Tcp(stream), Buffer::with(&bytes))
        }
    };
    let forwarded = match &chain.terminal {
        Terminal::Http(hcm) => hcm.client_cert_details,
        Terminal::Tcp(_) => ClientCertDetails::default(),
    };
    let view = ConnectionView { tlvs, ..connection_view(&stream, ends, server_name, forwarded) };
    let peer_text = ends.remote.ip().to_canonical().to_string().into();
    let since = counted.since;
    let downstream =
        Downstream { stream, input, view, chain, id, peer_text, since, requests: 0, idle_since: None, resumed: false };
    Some((downstream, detected.ahead))
}

/// How long a PROXY protocol header may take where the listener sets its filters no time. It is sent before anything else, in one piece.
const LONGEST_HEADER: Duration = Duration::from_secs(15);

/// Reads a PROXY protocol header within the listener's time.
async fn within<T>(
    limit: Option<Duration>,
    reading: impl Future<Output = Result<T, InspectError>>,
) -> Result<T, InspectError> {
    tokio::time::timeout(limit.unwrap_or(LONGEST_HEADER), reading).await.unwrap_or(Err(InspectError::Timeout))
}

/// Counts and logs a connection that a listener filter has closed.
fn refuse(worker: &Worker, stats: &ConnectionStats, young: Young<'_>, error: &InspectError) {
    stats.listener.inc(match error {
        InspectError::Timeout => listener::Counter::downstream_pre_cx_timeout,
        InspectError::Socket(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            listener::Counter::downstream_listener_filter_remote_close
        }
        _ => listener::Counter::downstream_listener_filter_error,
    });
    log::closed(worker, young);
}

fn count_handshake(worker: &Worker, stats: &ConnectionStats, young: Young<'_>, stream: &Stream) {
    let tls = stats.tls(worker, young.listener.address);
    tls.inc(listener_ssl::Counter::handshake);
    if stream.session().is_some_and(|session| session.peer.is_none()) {
        tls.inc(listener_ssl::Counter::no_certificate);
    }
}

/// Counts and logs a connection whose TLS handshake failed. As in Envoy the last filter of its chain counts it, too.
fn refuse_handshake(
    worker: &Worker,
    stats: &ConnectionStats,
    young: Young<'_>,
    chain: &FilterChain,
    server_name: Option<&Arc<str>>,
    failure: &Failure,
) {
    match failure.blame {
        Blame::Tls(counter) => stats.tls(worker, young.listener.address).inc(counter),
        Blame::Timeout => stats.listener.inc(listener::Counter::downstream_cx_transport_socket_connect_timeout),
        Blame::Secret => {
            let factory = stats.tls_factory(worker, young.listener.address);
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
    let (peer, reason) = (young.ends.direct, &failure.reason);
    tracing::debug!(%peer, listener = %young.listener.name, reason, "TLS handshake failed");
    log::failed_handshake(worker, young, chain, server_name, failure);
}

fn connection_view(
    stream: &Stream,
    ends: Ends,
    server_name: Option<Arc<str>>,
    forwarded: ClientCertDetails,
) -> ConnectionView {
    let session = stream.session().map(|session| &**session);
    ConnectionView {
        server_name: session.and_then(|session| session.server_name.as_deref().map(Arc::from)).or(server_name),
        tls: session.is_some(),
        peer: session.and_then(|session| Some(Arc::new(identity(session.peer.as_deref()?, session, forwarded)))),
        ..plain_view(ends)
    }
}

/// A connection before anything but its ends is known.
pub(super) fn plain_view(ends: Ends) -> ConnectionView {
    ConnectionView { direct_remote: ends.direct, ..ConnectionView::plaintext(ends.remote, ends.destination) }
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

/// A certificate as PEM, with the characters escaped that Envoy escapes in `Cert=`.
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

/// A connection as the statistics of its listeners see it. A logical listener counts it too.
pub(super) struct Counted {
    bound: Rc<ConnectionStats>,
    logical: Option<Rc<ConnectionStats>>,
    since: Instant,
    moved_away: bool,
}

impl Counted {
    /// A connection just accepted.
    fn new(worker: &Worker, placement: &Placement) -> Self {
        let counted = Self::moved(worker, placement, Instant::now());
        for stats in counted.all() {
            stats.listener.inc(listener::Counter::downstream_cx_total);
            stats.worker.inc(listener_worker::Counter::downstream_cx_total);
        }
        counted
    }

    /// A connection that another worker counted before.
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

    /// The listener whose filter chain serves the connection.
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
