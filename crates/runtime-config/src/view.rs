//! What routing and filters may inspect of a request and its connection. The proxy implements [`RequestView`] on its
//! own head representation; tests and the simulator implement it on plain maps.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use crate::cookie;
use crate::dynamic_forward_proxy::DynamicHost;
use crate::dynamic_metadata::DynamicMetadata;
use crate::proxy_protocol::Tlv;

/// The request head as matchers see it.
pub trait RequestView {
    /// `:method`.
    fn method(&self) -> &[u8];
    /// `:path`: path and query, after normalization.
    fn path(&self) -> &[u8];
    /// `:authority`.
    fn authority(&self) -> &[u8];
    /// `:scheme`: `http` or `https`.
    fn scheme(&self) -> &[u8];
    /// All values of a lower-case header name joined with `,`; `None` when it is absent.
    /// Names that start with `:` are the pseudo headers above.
    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>>;
    /// Whether any value of this header is `wanted`. Each value is tested separately: the joined value is something
    /// that nobody sent, and a further line in front would hide one. `None` when the header is absent.
    fn any_value(&self, name: &str, wanted: impl FnMut(&[u8]) -> bool) -> Option<bool>
    where
        Self: Sized;
    /// Dynamic metadata that filters have set for the request.
    fn dynamic_metadata(&self) -> Option<&DynamicMetadata> {
        None
    }
    /// The value of a cookie, without surrounding quotes.
    fn cookie(&self, name: &str) -> Option<Vec<u8>> {
        let lines = self.header("cookie")?;
        cookie::find(std::iter::once(&*lines), name).map(<[u8]>::to_vec)
    }
}

/// The downstream connection as matchers and filters see it; fixed for the life of the connection.
#[derive(Debug, Clone)]
pub struct ConnectionView {
    /// Peer address of the socket (`direct_remote_ip`).
    pub direct_remote: SocketAddr,
    /// The client: the socket's peer, or the source in a PROXY protocol header.
    pub remote: SocketAddr,
    /// TLVs of the PROXY protocol header, as far as they may be passed on.
    pub tlvs: Option<Arc<[Tlv]>>,
    /// Address the client connected to (the original destination if redirected).
    pub local: SocketAddr,
    /// SNI of the ClientHello.
    pub server_name: Option<Arc<str>>,
    /// Whether the connection uses TLS.
    pub tls: bool,
    /// The application protocol that the TLS handshake agreed on.
    pub application_protocol: Option<Arc<[u8]>>,
    /// Names in the verified peer certificate; `None` without a client certificate.
    pub peer: Option<Arc<PeerIdentity>>,
    /// Dynamic metadata that network filters had set when they admitted the connection; rarely any.
    pub metadata: Option<Arc<DynamicMetadata>>,
    /// The host that a network filter has resolved (`sni_dynamic_forward_proxy`).
    pub dynamic_host: Option<Arc<DynamicHost>>,
    /// How often the connection has come back to this proxy, which has made it; 0: it is somebody else's. Set when it is first asked for.
    pub own_hops: OnceLock<u8>,
}

impl ConnectionView {
    /// Creates a plaintext connection of which only the addresses are known.
    pub fn plaintext(remote: SocketAddr, local: SocketAddr) -> Self {
        Self {
            direct_remote: remote,
            remote,
            tlvs: None,
            local,
            server_name: None,
            tls: false,
            application_protocol: None,
            peer: None,
            metadata: None,
            dynamic_host: None,
            own_hops: OnceLock::new(),
        }
    }
}

/// Names and digest of a verified peer certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerIdentity {
    /// URI SANs in order (the SPIFFE ID first in a mesh).
    pub uri_sans: Vec<String>,
    /// DNS SANs in order.
    pub dns_sans: Vec<String>,
    /// Subject as an RFC 2253 string, empty in SPIFFE certificates.
    pub subject: String,
    /// Lower-case hex SHA-256 of the leaf certificate's DER.
    pub sha256: String,
    /// The URI SANs of the certificate presented to the peer (`By=` of XFCC).
    pub local_uri_sans: Vec<String>,
    /// The leaf as URL-encoded PEM, for XFCC `Cert=`; filled only when the filter chain asks for it.
    pub cert_pem_urlencoded: Option<String>,
    /// The whole chain, encoded likewise, for XFCC `Chain=`.
    pub chain_pem_urlencoded: Option<String>,
}

impl PeerIdentity {
    /// The DNS SANs that can be names of hosts. Whoever may choose the DNS names of a certificate must not be able to choose
    /// an identity with them (`spiffe://…`), so the others are no names to policies and authorization services.
    pub fn host_names(&self) -> impl Iterator<Item = &String> {
        self.dns_sans.iter().filter(|name| evenkeel_tls::is_host_name(name))
    }
}

/// A request as plain data, for explanations and tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlainRequest {
    /// `:method`.
    pub method: String,
    /// `:path`.
    pub path: String,
    /// `:authority`.
    pub authority: String,
    /// `:scheme`.
    pub scheme: String,
    /// Lower-case names and values, in order.
    pub headers: Vec<(String, String)>,
}

impl PlainRequest {
    /// A plain-HTTP request without further headers.
    pub fn new(method: &str, authority: &str, path: &str) -> Self {
        Self {
            method: method.into(),
            path: path.into(),
            authority: authority.into(),
            scheme: "http".into(),
            headers: Vec::new(),
        }
    }

    /// Adds one more header.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_ascii_lowercase(), value.into()));
        self
    }
}

impl RequestView for PlainRequest {
    fn method(&self) -> &[u8] {
        self.method.as_bytes()
    }

    fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }

    fn authority(&self) -> &[u8] {
        self.authority.as_bytes()
    }

    fn scheme(&self) -> &[u8] {
        self.scheme.as_bytes()
    }

    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        match name {
            ":method" => return Some(self.method().into()),
            ":path" => return Some(self.path().into()),
            ":authority" | "host" => return Some(self.authority().into()),
            ":scheme" => return Some(self.scheme().into()),
            _ => {}
        }
        let mut values = self.headers.iter().filter(|(header, _)| header == name).map(|(_, value)| value.as_str());
        let first = values.next()?;
        let joined = values.fold(first.to_owned(), |joined, value| joined + "," + value);
        Some(joined.into_bytes().into())
    }

    fn any_value(&self, name: &str, mut wanted: impl FnMut(&[u8]) -> bool) -> Option<bool> {
        if name.starts_with(':') || name == "host" {
            return self.header(name).map(|value| wanted(&value));
        }
        let mut values = self.headers.iter().filter(|(header, _)| header == name).map(|(_, value)| value).peekable();
        values.peek()?;
        Some(values.any(|value| wanted(value.as_bytes())))
    }
}
