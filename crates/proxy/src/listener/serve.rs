//! One connection from accept to its terminal filter: original destination, logical listener, inspectors, filter chain, TLS.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_runtime_config::listener::{ChainInput, FilterChain, Listener, Terminal};
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity};
use evenkeel_tls::{ClientHello, DownstreamTls, PeerCertificate, Session};
use pem::{EncodeConfig, LineEnding, Pem};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::access_log::Record;
use crate::conn::Buffer;
use crate::listener::inspect::{self, InspectError, Inspected};
use crate::listener::original_dst::original_destination;
use crate::response_flags::ResponseFlags;
use crate::stats::{listener, listener_worker};
use crate::stream::Stream;
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
    let Some(downstream) = establish(worker, stream, (peer, destination), listener, &stats, id).await else { return };
    let chain = Arc::clone(&downstream.chain);
    match &chain.terminal {
        Terminal::Http(hcm) => Box::pin(http::serve(worker, downstream, Arc::clone(hcm), registration)).await,
        Terminal::Tcp(proxy) => Box::pin(tcp::serve(worker, downstream, proxy)).await,
    }
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

/// Inspectors, filter chain, TLS. `None` when the connection is to be closed; why was counted and logged.
async fn establish(
    worker: &Rc<Worker>,
    mut stream: TcpStream,
    (peer, destination): (SocketAddr, SocketAddr),
    listener: Arc<Listener>,
    stats: &ConnectionStats,
    id: u64,
) -> Option<Downstream> {
    let inspected = match inspect::inspect(&mut stream, &listener.listener_filters, destination.port()).await {
        Ok(inspected) => inspected,
        Err(error) => {
            let counter = match error {
                InspectError::Timeout => listener::Counter::downstream_pre_cx_timeout,
                _ => listener::Counter::downstream_listener_filter_error,
            };
            stats.listener.inc(counter);
            return None;
        }
    };
    let Some(chain) = choose_chain(&listener, &inspected, peer, destination) else {
        stats.listener.inc(listener::Counter::no_filter_chain_match);
        log_unmatched(worker, &listener, peer, destination, id);
        return None;
    };
    let server_name = inspected.hello.as_ref().and_then(|hello| hello.server_name()).map(Arc::from);
    let (stream, input) = match &chain.tls {
        Some(tls) => {
            let accepting = accept_tls(stream, tls, inspected);
            match tokio::time::timeout(chain.handshake_timeout, Box::pin(accepting)).await {
                Ok(Ok(stream)) => {
                    stats.listener.inc(listener::Counter::ssl_handshake);
                    (stream, Buffer::default())
                }
                Ok(Err(error)) => {
                    stats.listener.inc(listener::Counter::ssl_connection_error);
                    tracing::debug!(%peer, listener = %listener.name, error, "TLS handshake failed");
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
    let view = connection_view(&stream, peer, destination, server_name, forwards_cert);
    let peer_text = peer.ip().to_canonical().to_string().into();
    Some(Downstream { stream, input, view, chain, id, peer_text })
}

fn choose_chain(
    listener: &Listener,
    inspected: &Inspected,
    peer: SocketAddr,
    destination: SocketAddr,
) -> Option<Arc<FilterChain>> {
    let hello = inspected.hello.as_deref();
    let offered: Vec<&str> =
        hello.iter().flat_map(|hello| hello.alpn()).filter_map(|protocol| std::str::from_utf8(protocol).ok()).collect();
    let plain: Vec<&str> = inspected.http.into_iter().collect();
    let input = ChainInput {
        destination,
        source: peer,
        direct_source: peer,
        server_name: hello.and_then(ClientHello::server_name),
        transport_protocol: if hello.is_some() { "tls" } else { "raw_buffer" },
        application_protocols: if hello.is_some() { &offered } else { &plain },
    };
    listener.find_filter_chain(&input).cloned()
}

async fn accept_tls(mut stream: TcpStream, tls: &DownstreamTls, inspected: Inspected) -> Result<Stream, String> {
    let hello = match inspected.hello {
        Some(hello) => hello,
        None => inspect::client_hello(&mut stream, &inspected.bytes).await.map_err(|error| error.to_string())?,
    };
    let accepted = Box::pin(tls.accept(*hello, stream)).await.map_err(|error| error.to_string())?;
    Ok(Stream::Tls(Box::new(accepted)))
}

fn connection_view(
    stream: &Stream,
    peer: SocketAddr,
    destination: SocketAddr,
    server_name: Option<Arc<str>>,
    forwards_cert: bool,
) -> ConnectionView {
    let session = stream.session().map(|session| &**session);
    ConnectionView {
        direct_remote: peer,
        local: destination,
        server_name: session.and_then(|session| session.server_name.as_deref().map(Arc::from)).or(server_name),
        tls: session.is_some(),
        peer: session.and_then(|session| Some(Arc::new(identity(session.peer.as_deref()?, session, forwards_cert)))),
    }
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

fn log_unmatched(worker: &Worker, listener: &Listener, peer: SocketAddr, destination: SocketAddr, id: u64) {
    let mut record = Record::new(SystemTime::now());
    record.flags = ResponseFlags::NO_ROUTE_FOUND;
    record.response_code_details = "filter_chain_not_found";
    record.downstream_local_address = Some(destination);
    record.downstream_remote_address = Some(peer);
    record.downstream_direct_remote_address = Some(peer);
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
