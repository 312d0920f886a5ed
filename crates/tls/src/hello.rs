//! Reads the ClientHello before a filter chain is chosen: filter chains match on its server name and ALPN.

use std::fmt;

use rustls::SignatureScheme;
use rustls::server::{Accepted, Acceptor};

/// Maximum size of a ClientHello, in bytes of TLS records; Envoy's default `max_client_hello_size`.
pub const MAX_CLIENT_HELLO_BYTES: usize = 16 * 1024;

/// Collects a connection's first bytes until they show a ClientHello or something else.
///
/// No socket is involved: the listener pushes what it read. The bytes are kept, because the filter chain may pass them
/// on unchanged.
pub struct ClientHelloReader {
    /// Boxed, because it is large and moves with every push.
    acceptor: Box<Acceptor>,
    bytes: Vec<u8>,
    /// Number of `bytes` that the acceptor has processed.
    taken: usize,
}

/// The result of inspecting a connection's first bytes.
#[derive(Debug)]
pub enum Inspection {
    /// More bytes are needed.
    NeedMore(ClientHelloReader),
    /// This is not TLS; these are the bytes.
    NotTls(Vec<u8>),
    /// The ClientHello is longer than [`MAX_CLIENT_HELLO_BYTES`]; the connection must be closed.
    TooLarge,
    /// A whole ClientHello.
    Hello(Box<ClientHello>),
}

/// A ClientHello, and what is needed to continue the handshake.
pub struct ClientHello {
    server_name: Option<String>,
    alpn: Vec<Vec<u8>>,
    verifies_ecdsa: bool,
    accepted: Accepted,
    bytes: Vec<u8>,
    taken: usize,
}

impl Default for ClientHelloReader {
    fn default() -> Self {
        Self::new()
    }
}

impl ClientHelloReader {
    /// A reader that has no bytes yet.
    pub fn new() -> Self {
        Self { acceptor: Box::default(), bytes: Vec::new(), taken: 0 }
    }

    /// Takes the connection's next bytes, in pieces of any size.
    pub fn push(mut self, bytes: &[u8]) -> Inspection {
        self.bytes.extend_from_slice(bytes);
        if !may_be_tls(&self.bytes) {
            return Inspection::NotTls(self.bytes);
        }
        loop {
            let mut rest = self.bytes.get(self.taken..).unwrap_or_default();
            if rest.is_empty() {
                return if self.bytes.len() < MAX_CLIENT_HELLO_BYTES {
                    Inspection::NeedMore(self)
                } else {
                    Inspection::TooLarge
                };
            }
            // A full buffer and a malformed record are treated alike, as in Envoy: no ClientHello was found.
            match self.acceptor.read_tls(&mut rest) {
                Ok(count) if count > 0 => self.taken += count,
                _ => return Inspection::NotTls(self.bytes),
            }
            match self.acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    return Inspection::Hello(Box::new(ClientHello::new(accepted, self.bytes, self.taken)));
                }
                Err(_) => return Inspection::NotTls(self.bytes),
            }
        }
    }

    /// The bytes pushed so far, for a connection that ended or timed out.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl ClientHello {
    fn new(accepted: Accepted, bytes: Vec<u8>, taken: usize) -> Self {
        let hello = accepted.client_hello();
        let server_name = hello.server_name().map(str::to_ascii_lowercase);
        let alpn = hello.alpn().into_iter().flatten().map(<[u8]>::to_vec).collect();
        let verifies_ecdsa = hello.signature_schemes().contains(&SignatureScheme::ECDSA_NISTP256_SHA256);
        Self { server_name, alpn, verifies_ecdsa, accepted, bytes, taken }
    }

    /// Returns the server name in the ClientHello, in lower case.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The application protocols offered, preferred first.
    pub fn alpn(&self) -> &[Vec<u8>] {
        &self.alpn
    }

    /// Whether the client verifies signatures of ECDSA P-256 keys.
    pub(crate) fn verifies_ecdsa(&self) -> bool {
        self.verifies_ecdsa
    }

    /// The received bytes, for a filter chain that does not terminate TLS.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The parsed ClientHello, and the bytes after it that rustls has not taken.
    pub(crate) fn into_parts(self) -> (Accepted, Vec<u8>) {
        (self.accepted, self.bytes.get(self.taken..).unwrap_or_default().to_vec())
    }
}

/// Whether the bytes can be the beginning of a record with a handshake message (RFC 8446 section 5.1) that is a
/// ClientHello (section 4).
fn may_be_tls(bytes: &[u8]) -> bool {
    let expect = |index: usize, wanted: u8| bytes.get(index).is_none_or(|byte| *byte == wanted);
    expect(0, 22) && expect(1, 3) && expect(5, 1)
}

impl fmt::Debug for ClientHelloReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientHelloReader").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alpn: Vec<_> = self.alpn.iter().map(|protocol| String::from_utf8_lossy(protocol)).collect();
        f.debug_struct("ClientHello")
            .field("server_name", &self.server_name)
            .field("alpn", &alpn)
            .finish_non_exhaustive()
    }
}
