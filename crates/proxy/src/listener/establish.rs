//! Establishes a connection up to its filter chain: PROXY protocol, protocol detection, filter chain match, TLS.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::{ConnectionInfo, Hello};
use evenkeel_runtime_config::hcm::ClientCertDetails;
use evenkeel_runtime_config::listener::{FilterChain, Listener, Terminal};
use evenkeel_runtime_config::view::PeerIdentity;
use evenkeel_tls::{PeerCertificate, Session, pem_urlencoded};
use evenkeel_upstream::conn::Buffer;
use evenkeel_upstream::stream::Stream;
use evenkeel_upstream::turn;
use tokio::net::TcpStream;

use super::connection::{Counted, Downstream};
use super::detect::detect;
use super::handshake::{self, Blame, Failure};
use super::inspect::{InspectError, Inspected};
use super::{log, proxy_protocol};
use crate::stats::{http as http_stats, listener, listener_ssl, listener_ssl_factory, tcp as tcp_stats};
use crate::tcp::UpstreamSide;
use crate::worker::{ConnectionStats, Worker};

/// PROXY protocol, protocol detection, filter chain match, TLS. `None` when the connection has to be closed; the reason
/// has been counted and logged.
pub(super) async fn establish(
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
        worker.edges.refused(&info, detected.inspected.hello.is_some(), turn::now());
        log::unmatched(worker, &listener, &info);
        return None;
    };
    info.chain = Some(Arc::clone(&chain));
    let inspected = detected.inspected;
    if let Some(protocol) = inspected.http {
        info.hello = Hello::Http(protocol);
    }
    if let Some(hello) = &inspected.hello {
        handshake::note_hello(&mut info, hello);
    }
    let (stream, input) = match &chain.tls {
        Some(tls) => match handshake::accept(stream, (&listener, &chain, tls), inspected, &mut info).await {
            Ok(stream) => {
                count_handshake(counted.serving(), &listener, &stream);
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

fn count_handshake(stats: &ConnectionStats, listener: &Listener, stream: &Stream) {
    let tls = stats.tls(&listener.address);
    tls.inc(listener_ssl::Counter::handshake);
    let Some(session) = stream.session() else { return };
    match (&session.peer, &session.untrusted) {
        (None, None) => tls.inc(listener_ssl::Counter::no_certificate),
        (_, None) => {}
        (_, Some(reason)) => {
            tls.inc(listener_ssl::Counter::fail_verify_error);
            tracing::debug!(listener = %listener.name, %reason, "a client with an untrusted certificate is not identified");
        }
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
        Blame::Tls(counter) => stats.tls(&listener.address).inc(counter),
        Blame::Timeout => stats.listener.inc(listener::Counter::downstream_cx_transport_socket_connect_timeout),
        Blame::Secret => {
            let factory = stats.tls_factory(&listener.address);
            factory.inc(listener_ssl_factory::Counter::downstream_context_secrets_not_ready);
        }
        Blame::Other => {}
    }
    worker.edges.refused(&info, matches!(info.hello, Hello::Tls(_)), turn::now());
    let generation = worker.generation();
    match &chain.terminal {
        Terminal::Http(hcm) => {
            let manager = generation.manager(&worker.reporters, hcm);
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
    let mut forwarded = match &chain.terminal {
        Terminal::Http(hcm) => hcm.client_cert_details,
        Terminal::Tcp(_) => ClientCertDetails::default(),
    };
    forwarded.cert |= chain.sends_certificate();
    let view = &mut info.view;
    view.tls = true;
    view.application_protocol = session.alpn.as_deref().map(Arc::from);
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
