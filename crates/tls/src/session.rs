//! The parameters negotiated in a handshake.

use std::sync::Arc;

use crate::peer::PeerCertificate;

/// The result of a handshake: the negotiated parameters and the peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Session {
    /// The verified certificate of the peer, if it presented one.
    pub peer: Option<Arc<PeerCertificate>>,
    /// Why the client's certificate does not verify, if it was accepted even so (`ACCEPT_UNTRUSTED`): `peer` is `None`.
    pub untrusted: Option<Arc<str>>,
    /// The certificate shown to the peer.
    pub local: Option<Arc<PeerCertificate>>,
    /// Server name sent by the client, in lower case.
    pub server_name: Option<String>,
    /// The application protocol agreed on.
    pub alpn: Option<Vec<u8>>,
    /// `TLSv1.2` or `TLSv1.3`, as Envoy logs it.
    pub version: &'static str,
    /// OpenSSL name of the cipher suite, as Envoy logs it.
    pub cipher: &'static str,
    /// The group of the key exchange, by rustls's name: `X25519MLKEM768`, `X25519`, `secp256r1`…; empty if there was none.
    pub group: &'static str,
    /// An earlier session was resumed.
    pub resumed: bool,
}
