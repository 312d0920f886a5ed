//! The TLS handshake with a client, and how a failed one is logged and counted: with Envoy's texts where Envoy defines
//! them, and plain ones where Envoy passes on BoringSSL's.

use std::io;
use std::sync::Arc;

use evenkeel_filters::{ConnectionInfo, Hello};
use evenkeel_runtime_config::hcm::Codec;
use evenkeel_runtime_config::listener::{FilterChain, Listener, Terminal, TrafficDirection};
use evenkeel_tls::{ClientHello, DownstreamTls, FailedHandshake, HandshakeError, SanMismatch, Session};
use evenkeel_upstream::alpn::MULTIPLEXED_HTTP1;
use evenkeel_upstream::conn::burst;
use evenkeel_upstream::stream::Stream;
use tokio::net::TcpStream;

use super::inspect::{self, Inspected, NoHello};
use crate::stats::listener_ssl::Counter;

/// A failed handshake, for logging and counting.
pub(super) struct Failure {
    /// `%DOWNSTREAM_TRANSPORT_FAILURE_REASON%`; empty when the client just disconnected, or the handshake timed out.
    pub(super) reason: String,
    /// The negotiated parameters, including the peer certificate that was rejected.
    pub(super) session: Session,
    pub(super) blame: Blame,
}

/// How a failed handshake is counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Blame {
    /// `listener.ADDRESS.ssl.`
    Tls(Counter),
    /// `downstream_cx_transport_socket_connect_timeout`.
    Timeout,
    /// `downstream_context_secrets_not_ready`.
    Secret,
    /// None: the connection ended.
    Other,
}

/// Accepts a TLS connection, within the chain's handshake timeout. `info` gets what the client asks for, whether the
/// handshake succeeds or not.
pub(super) async fn accept(
    stream: TcpStream,
    (listener, chain, tls): (&Listener, &FilterChain, &DownstreamTls),
    inspected: Inspected,
    info: &mut ConnectionInfo,
) -> Result<Stream, Failure> {
    let multiplexed = takes_multiplexed(listener.direction, chain, tls);
    let accepting = Box::pin(shake(stream, tls, inspected, multiplexed, info));
    match tokio::time::timeout(chain.handshake_timeout, accepting).await {
        Ok(accepted) => accepted,
        Err(_) => Err(Failure { reason: String::new(), session: Session::default(), blame: Blame::Timeout }),
    }
}

/// Notes the name that a client asks for, and the protocols that it offers.
pub(super) fn note_hello(info: &mut ConnectionInfo, hello: &ClientHello) {
    info.view.server_name = hello.server_name().map(Arc::from);
    info.hello = Hello::Tls(hello.alpn().iter().map(|name| String::from_utf8_lossy(name).into()).collect());
}

/// Whether clients of ours may multiplex HTTP/1.1 requests on a connection: only where a sidecar accepts connections of
/// its mesh, authenticated by mutual TLS. A gateway's clients are not sidecars, and other protocols than HTTP cannot be
/// multiplexed.
fn takes_multiplexed(direction: TrafficDirection, chain: &FilterChain, tls: &DownstreamTls) -> bool {
    direction == TrafficDirection::Inbound
        && tls.identifies_clients()
        && matches!(&chain.terminal, Terminal::Http(hcm) if hcm.codec != Codec::Http1)
}

async fn shake(
    stream: TcpStream,
    tls: &DownstreamTls,
    inspected: Inspected,
    multiplexed: bool,
    info: &mut ConnectionInfo,
) -> Result<Stream, Failure> {
    let hello = match inspected.hello {
        Some(hello) => hello,
        None => {
            let hello = inspect::client_hello(&stream, inspected.bytes).await?;
            note_hello(info, &hello);
            hello
        }
    };
    let preferred = multiplexed.then_some(MULTIPLEXED_HTTP1);
    let accepting = Box::pin(tls.accept_preferring(*hello, stream, preferred));
    let accepted = burst::ahead_of(accepting).await.map_err(|failed| Failure::from(*failed))?;
    Ok(Stream::Tls(Box::new(accepted)))
}

impl From<FailedHandshake> for Failure {
    fn from(failed: FailedHandshake) -> Self {
        let FailedHandshake { error, session } = failed;
        let (blame, words) = match &error {
            HandshakeError::Io(error) => io_failure(error),
            HandshakeError::SecretMissing(_) => {
                let reason = "TLS error: Secret is not supplied by SDS".to_owned();
                return Self { reason, session, blame: Blame::Secret };
            }
            HandshakeError::NoPeerCertificate => {
                let words = "peer did not provide required client certificate";
                (Blame::Tls(Counter::fail_verify_no_cert), words.to_owned())
            }
            HandshakeError::PeerNames(mismatch) => (Blame::Tls(Counter::fail_verify_san), names(mismatch)),
            HandshakeError::PeerCertificate(reason) => {
                (Blame::Tls(Counter::fail_verify_error), format!("verify cert failed: {reason}"))
            }
            HandshakeError::ResumedExpired => {
                (Blame::Tls(Counter::fail_verify_error), format!("verify cert failed: {error}"))
            }
            HandshakeError::Protocol(error) => (Blame::Tls(Counter::connection_error), error.to_string()),
            HandshakeError::Config(_) | HandshakeError::Alert(_) => {
                (Blame::Tls(Counter::connection_error), error.to_string())
            }
        };
        Self { reason: framed(&words), session, blame }
    }
}

impl From<NoHello> for Failure {
    fn from(error: NoHello) -> Self {
        let (blame, words) = match &error {
            NoHello::Socket(error) => io_failure(error),
            NoHello::Http | NoHello::Other | NoHello::TooLarge => {
                (Blame::Tls(Counter::connection_error), error.to_string())
            }
        };
        Self { reason: framed(&words), session: Session::default(), blame }
    }
}

/// A client that closes its connection is not counted as a TLS error.
fn io_failure(error: &io::Error) -> (Blame, String) {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => (Blame::Other, String::new()),
        io::ErrorKind::InvalidData => (Blame::Tls(Counter::connection_error), error.to_string()),
        _ => {
            // The system's message, without the number that Rust appends.
            let text = error.to_string();
            (Blame::Other, text.split(" (os error").next().unwrap_or_default().to_owned())
        }
    }
}

fn names(mismatch: &SanMismatch) -> String {
    format!("verify cert failed: SAN matcher, certificate SANs are [{}]", mismatch.presented().join(", "))
}

/// Adds the markers that Envoy puts around messages of its TLS library, since log parsers look for them.
fn framed(words: &str) -> String {
    match words {
        "" => String::new(),
        words => format!("TLS_error:|{words}:TLS_error_end"),
    }
}

/// `%CONNECTION_TERMINATION_DETAILS%` of a handshake that timed out.
pub(super) const TIMED_OUT: &str = "transport socket timeout was reached";

#[cfg(test)]
mod tests {
    use evenkeel_tls::{SdsSecret, SdsServer};

    use super::*;

    #[test]
    fn failures_that_no_client_can_bring_about_have_their_reason() {
        let check = |error: HandshakeError, reason: &str, counted: &str| {
            let failure = Failure::from(FailedHandshake { error, session: Session::default() });
            assert_eq!((failure.reason.as_str(), format!("{:?}", failure.blame).as_str()), (reason, counted));
        };
        let secret = SdsSecret { name: "default".into(), server: SdsServer::Ads };
        check(HandshakeError::SecretMissing(secret), "TLS error: Secret is not supplied by SDS", "Secret");
        check(
            HandshakeError::ResumedExpired,
            "TLS_error:|verify cert failed: the peer resumed a session whose certificate has expired:TLS_error_end",
            "Tls(fail_verify_error)",
        );
        let system = |number| HandshakeError::Io(io::Error::from_raw_os_error(number));
        check(system(libc::ECONNRESET), "TLS_error:|Connection reset by peer:TLS_error_end", "Other");
        check(system(libc::ETIMEDOUT), "TLS_error:|Connection timed out:TLS_error_end", "Other");
        check(HandshakeError::Io(io::ErrorKind::UnexpectedEof.into()), "", "Other");
        let large = io::Error::new(io::ErrorKind::InvalidData, "too large");
        check(HandshakeError::Io(large), "TLS_error:|too large:TLS_error_end", "Tls(connection_error)");
    }
}
