//! One connection from accept to its terminal filter: original destination, logical listener, PROXY protocol, protocol
//! detection, filter chain, TLS.

use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_runtime_config::hcm::Codec;
use evenkeel_runtime_config::listener::{FilterChain, Listener, Terminal};
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity};
use evenkeel_tls::{DownstreamTls, PeerCertificate, Session};
use pem::{EncodeConfig, LineEnding, Pem};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::access_log::Record;
use crate::alpn::MULTIPLEXED_HTTP1;
use crate::conn::Buffer;
use crate::listener::detect::{Ends, detect};
use crate::listener::inspect::{self, InspectError, Inspected};
use crate::listener::original_dst::original_destination;
use crate::listener::proxy_protocol;
use crate::response_flags::ResponseFlags;
use crate::stats::{listener, listener_worker};
use crate::stream::Stream;
use crate::tcp::Ahead;
use crate::worker::{Accepted, ConnectionStats, Registration, Worker};
use crate::{http, tcp};

/// A connection that a filter chain has taken.
pub(crate) struct Downstream {
    pub(crate) stream: Stream,
    /// Read already, to be used first.
    pub(crate) input: Buffer,
    /// What matchers, filters and logs may know of it.
    pub(crate) view: ConnectionView,
    pub(crate) chain: Arc<FilterChain>,
    pub(crate) id: u64,
    /// Peer address as text, for `x-forwarded-for`.
    pub(crate) peer_text: Box<str>,
}

/// Serves a connection to its end.
pub(crate) async fn serve(worker: &Rc<Worker>, accepted: Accepted, id: u64, registration: &Registration) {
    let generation = worker.generation();
    let Some(bound) = generation.shared.bound.get(&accepted.listener).cloned() else { return };
    let stats = generation.connection_stats(worker, accepted.listener);
    let _counted = Counted::new(&stats);
    let Some((destination, redirected)) = destination(&accepted, &bound) else { return };
    let logical = match redirected && bound.use_original_dst {
        true => generation.shared.listener_of_destination(destination).cloned(),
        false => None,
    };
    // A logical listener counts the connection too; the worker was chosen before and stays.
    let logical_stats = logical.as_ref().map(|logical| generation.connection_stats(worker, logical.address));
    let _logical_counted = logical_stats.as_ref().map(Counted::new);
    let listener = logical.unwrap_or(bound);
    drop(generation);
    let Accepted { stream, peer, seat, .. } = accepted;
    // The seat lives as long as the connection.
    let _seat = seat;
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    let ends = Ends { direct: peer, remote: peer, destination };
    // Boxed, for it is large and over before the connection's long life begins.
    let established = Box::pin(establish(worker, stream, ends, listener, &stats, id)).await;
    let terminal: Pin<Box<dyn Future<Output = ()> + '_>> = match established {
        None => return,
        Some((downstream, ahead)) => match &downstream.chain.terminal {
            Terminal::Http(hcm) => {
                let hcm = Arc::clone(hcm);
                Box::pin(http::serve(worker, downstream, hcm, registration))
            }
            Terminal::Tcp(proxy) => {
                let proxy = Arc::clone(proxy);
                Box::pin(tcp::serve(worker, downstream, proxy, ahead))
            }
        },
    };
    terminal.await;
}

/// The address the client dialled, and whether a redirect brought it here.
fn destination(accepted: &Accepted, bound: &Listener) -> Option<(SocketAddr, bool)> {
    let local = accepted.stream.local_addr().ok()?;
    let original = match bound.listener_filters.original_dst {
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
    stats: &ConnectionStats,
    id: u64,
) -> Option<(Downstream, Option<Box<Ahead>>)> {
    let mut inspected = Inspected::default();
    let mut tlvs = None;
    if let Some(filter) = &listener.listener_filters.proxy_protocol {
        let reading = proxy_protocol::read(worker, &stream, filter, &mut inspected);
        let header = within(listener.listener_filters.timeout, Box::pin(reading)).await;
        let header = header.map_err(|error| refuse(stats, &error)).ok()?;
        if let Some((remote, destination)) = header.as_ref().and_then(|header| header.addresses) {
            (ends.remote, ends.destination) = (remote, destination);
        }
        tlvs = header.and_then(|header| proxy_protocol::passed_through(header.tlvs, filter));
    }
    let detected = detect(worker, &stream, &listener, ends, inspected).await;
    let detected = detected.map_err(|error| refuse(stats, &error)).ok()?;
    let Some(chain) = detected.chain else {
        stats.listener.inc(listener::Counter::no_filter_chain_match);
        log_unmatched(worker, &listener, ends, id);
        return None;
    };
    let inspected = detected.inspected;
    let server_name = inspected.hello.as_ref().and_then(|hello| hello.server_name()).map(Arc::from);
    let (stream, input) = match &chain.tls {
        Some(tls) => {
            let accepting = accept_tls(stream, tls, inspected, takes_multiplexed(&chain));
            match tokio::time::timeout(chain.handshake_timeout, Box::pin(accepting)).await {
                Ok(Ok(stream)) => {
                    stats.listener.inc(listener::Counter::ssl_handshake);
                    (stream, Buffer::default())
                }
                Ok(Err(error)) => {
                    stats.listener.inc(listener::Counter::ssl_connection_error);
                    tracing::debug!(peer = %ends.direct, listener = %listener.name, error, "TLS handshake failed");
                    return None;
                }
                Err(_) => {
                    stats.listener.inc(listener::Counter::ssl_connection_error);
                    return None;
                }
            }
        }
        None => {
            let bytes = inspected.hello.map_or(inspected.bytes, |hello| hello.into_bytes());
            (Stream::Tcp(stream), Buffer::with(&bytes))
        }
    };
    let forwards_cert = matches!(&chain.terminal, Terminal::Http(hcm) if hcm.client_cert_details.cert);
    let view = ConnectionView { tlvs, ..connection_view(&stream, ends, server_name, forwards_cert) };
    let peer_text = ends.remote.ip().to_canonical().to_string().into();
    Some((Downstream { stream, input, view, chain, id, peer_text }, detected.ahead))
}

/// Runs a listener filter within the listener's time.
async fn within<T>(
    limit: Option<Duration>,
    filter: impl Future<Output = Result<T, InspectError>>,
) -> Result<T, InspectError> {
    match limit {
        None => filter.await,
        Some(limit) => tokio::time::timeout(limit, filter).await.unwrap_or(Err(InspectError::Timeout)),
    }
}

fn refuse(stats: &ConnectionStats, error: &InspectError) {
    stats.listener.inc(match error {
        InspectError::Timeout => listener::Counter::downstream_pre_cx_timeout,
        _ => listener::Counter::downstream_listener_filter_error,
    });
}

/// Whether clients of ours may share a connection for many HTTP/1.1 requests. In front of anything but HTTP they may not.
fn takes_multiplexed(chain: &FilterChain) -> bool {
    matches!(&chain.terminal, Terminal::Http(hcm) if hcm.codec != Codec::Http1)
}

async fn accept_tls(
    stream: TcpStream,
    tls: &DownstreamTls,
    inspected: Inspected,
    multiplexed: bool,
) -> Result<Stream, String> {
    let hello = match inspected.hello {
        Some(hello) => hello,
        None => inspect::client_hello(&stream, inspected.bytes).await.map_err(|error| error.to_string())?,
    };
    let preferred = multiplexed.then_some(MULTIPLEXED_HTTP1);
    let accepting = Box::pin(tls.accept_preferring(*hello, stream, preferred));
    let accepted = accepting.await.map_err(|error| error.to_string())?;
    Ok(Stream::Tls(Box::new(accepted)))
}

fn connection_view(stream: &Stream, ends: Ends, server_name: Option<Arc<str>>, forwards_cert: bool) -> ConnectionView {
    let session = stream.session().map(|session| &**session);
    ConnectionView {
        server_name: session.and_then(|session| session.server_name.as_deref().map(Arc::from)).or(server_name),
        tls: session.is_some(),
        peer: session.and_then(|session| Some(Arc::new(identity(session.peer.as_deref()?, session, forwards_cert)))),
        ..plain_view(ends)
    }
}

/// A connection before anything but its ends is known.
pub(super) fn plain_view(ends: Ends) -> ConnectionView {
    ConnectionView { direct_remote: ends.direct, ..ConnectionView::plaintext(ends.remote, ends.destination) }
}

fn identity(peer: &PeerCertificate, session: &Session, forwards_cert: bool) -> PeerIdentity {
    let leaf = peer.chain.first().filter(|_| forwards_cert);
    PeerIdentity {
        uri_sans: peer.uri_sans.clone(),
        dns_sans: peer.dns_sans.clone(),
        subject: peer.subject.clone(),
        sha256: peer.sha256_hex(),
        local_uri_sans: session.local.as_ref().map(|local| local.uri_sans.clone()).unwrap_or_default(),
        cert_pem_urlencoded: leaf.map(|leaf| pem_urlencoded(leaf)),
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

fn log_unmatched(worker: &Worker, listener: &Listener, ends: Ends, id: u64) {
    let mut record = Record::new(SystemTime::now());
    record.flags = ResponseFlags::NO_ROUTE_FOUND;
    record.response_code_details = "filter_chain_not_found";
    record.downstream_local_address = Some(ends.destination);
    record.downstream_remote_address = Some(ends.remote);
    record.downstream_direct_remote_address = Some(ends.direct);
    record.connection_id = id;
    for log in &listener.access_logs {
        worker.log.borrow_mut().write(log, &record);
    }
}

/// A connection as the listener's statistics see it.
struct Counted {
    stats: Rc<ConnectionStats>,
    started: Instant,
}

impl Counted {
    fn new(stats: &Rc<ConnectionStats>) -> Self {
        stats.listener.inc(listener::Counter::downstream_cx_total);
        stats.listener.shift(listener::Gauge::downstream_cx_active, 1);
        stats.worker.inc(listener_worker::Counter::downstream_cx_total);
        stats.worker.shift(listener_worker::Gauge::downstream_cx_active, 1);
        Self { stats: Rc::clone(stats), started: Instant::now() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let stats = &self.stats;
        stats.listener.inc(listener::Counter::downstream_cx_destroy);
        stats.listener.shift(listener::Gauge::downstream_cx_active, -1);
        stats.worker.shift(listener_worker::Gauge::downstream_cx_active, -1);
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        stats.listener.record(listener::Histogram::downstream_cx_length_ms, millis);
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
