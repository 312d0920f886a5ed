//! ALPN: which protocols are offered to upstreams, and which codec a negotiated protocol selects.
//!
//! Between two Evenkeel proxies, many HTTP/1.1 requests share one connection. It is framed as HTTP/2, but what it
//! carries is HTTP/1.1: routes, logs and the protocol towards the application are chosen as if the request had come in
//! over HTTP/1.1. A client signals support by offering [`MULTIPLEXED_HTTP1`] before Istio's `istio-http/1.1`, and a
//! server by choosing it, which only a sidecar's inbound listener does, and only for clients authenticated by their
//! certificates. Every other server skips protocols it does not know, so the connection is what it would have been
//! without this extension.

use evenkeel_http::Version;
use evenkeel_runtime_config::alpn::AlpnOverrides;

/// HTTP/2 frames that carry HTTP/1.1 messages.
pub const MULTIPLEXED_HTTP1: &[u8] = b"evenkeel-h2-http/1.1";
/// The ALPN protocol that Istio sidecars offer each other for HTTP/1.1.
const MESH_HTTP1: &[u8] = b"istio-http/1.1";
/// The ALPN protocol that Istio sidecars offer each other for HTTP/2.
pub const MESH_HTTP2: &[u8] = b"istio-h2";
/// The ALPN protocol of connections that begin with an exchange of metadata.
const PEER_EXCHANGE: &[u8] = b"istio-peer-exchange";
const HTTP1: &[u8] = b"http/1.1";
/// HTTP/2 (RFC 9113).
pub const HTTP2: &[u8] = b"h2";

/// The protocol wanted on a new upstream connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedProtocol {
    /// Any bytes.
    Bytes,
    /// HTTP/1.1, one request at a time.
    Http1,
    /// HTTP/1.1; in HTTP/2 frames if the peer supports that.
    SharedHttp1,
    /// HTTP/2.
    Http2,
    /// HTTP/2, or HTTP/1.1 if the peer prefers that.
    Either,
}

/// The protocol negotiated on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Negotiated {
    /// HTTP/1 as it is on the wire.
    Http1,
    /// HTTP/2 frames, which carry messages of this version.
    Http2(Version),
}

/// The ALPN protocols to offer, given `all` that the TLS context configures, and what a filter says instead.
pub fn offered<'a>(all: &'a [Vec<u8>], overrides: Option<&'a AlpnOverrides>, wanted: WantedProtocol) -> Vec<&'a [u8]> {
    let Some(overrides) = overrides else { return offer(all, wanted) };
    match wanted {
        // The filter's protocols are those of this version.
        WantedProtocol::Http2 | WantedProtocol::Either if !overrides.http2.is_empty() => {
            overrides.http2.iter().map(Vec::as_slice).collect()
        }
        WantedProtocol::Http1 | WantedProtocol::SharedHttp1 => offer(overrides.http1_or(all), wanted),
        WantedProtocol::Bytes | WantedProtocol::Http2 | WantedProtocol::Either => offer(all, wanted),
    }
}

/// The ALPN protocols to offer, given `all` that the TLS context configures.
pub fn offer(all: &[Vec<u8>], wanted: WantedProtocol) -> Vec<&[u8]> {
    let configured = all.iter().map(Vec::as_slice);
    match wanted {
        _ if configured.len() == 0 => match wanted {
            WantedProtocol::Bytes => Vec::new(),
            WantedProtocol::Http1 | WantedProtocol::SharedHttp1 => vec![HTTP1],
            WantedProtocol::Http2 => vec![HTTP2],
            WantedProtocol::Either => vec![HTTP2, HTTP1],
        },
        WantedProtocol::SharedHttp1 => {
            let configured = configured.filter(|protocol| *protocol != PEER_EXCHANGE);
            std::iter::once(MULTIPLEXED_HTTP1).chain(configured).collect()
        }
        // Does what Istio's ALPN filter does; that filter is not needed here.
        WantedProtocol::Http2 => {
            let to_sidecar = leads_to_sidecar(all);
            let of_http2 = |protocol| if protocol == MESH_HTTP1 { MESH_HTTP2 } else { protocol };
            let configured = configured.filter(|protocol| !to_sidecar || *protocol != PEER_EXCHANGE);
            configured.map(of_http2).chain(to_sidecar.then_some(HTTP2)).collect()
        }
        // Our own control plane lists the protocol of connections beside those of requests: see `translate::clusters`.
        WantedProtocol::Http1 if leads_to_sidecar(all) => {
            configured.filter(|protocol| *protocol != PEER_EXCHANGE).collect()
        }
        // A receiver would take bytes for HTTP. Istio offers these protocols from its ALPN filter, so only for requests.
        WantedProtocol::Bytes if configured.len() > 1 => {
            configured.filter(|protocol| ![MESH_HTTP1, MESH_HTTP2].contains(protocol)).collect()
        }
        WantedProtocol::Bytes | WantedProtocol::Http1 | WantedProtocol::Either => configured.collect(),
    }
}

/// Whether the TLS context says that HTTP/1.1 goes to another sidecar, which may be an Evenkeel one.
pub fn leads_to_sidecar(configured: &[Vec<u8>]) -> bool {
    configured.iter().any(|protocol| protocol == MESH_HTTP1)
}

/// The protocol of a connection on which ALPN agreed on `agreed`.
pub fn negotiated(agreed: Option<&[u8]>, wanted: WantedProtocol) -> Negotiated {
    match (wanted, agreed) {
        (WantedProtocol::SharedHttp1, Some(MULTIPLEXED_HTTP1)) => Negotiated::Http2(Version::Http11),
        (WantedProtocol::Http2, _) | (WantedProtocol::Either, Some(HTTP2 | MESH_HTTP2)) => {
            Negotiated::Http2(Version::Http2)
        }
        _ => Negotiated::Http1,
    }
}

/// The protocol a client speaks, by what was negotiated with it; `None` if that leaves it open. Only a client that is
/// `known` by a certificate can be an Evenkeel proxy, whatever the context's own list says.
pub fn negotiated_by_client(agreed: Option<&[u8]>, known: bool) -> Option<Negotiated> {
    match agreed? {
        MULTIPLEXED_HTTP1 if known => Some(Negotiated::Http2(Version::Http11)),
        HTTP2 | MESH_HTTP2 => Some(Negotiated::Http2(Version::Http2)),
        HTTP1 | MESH_HTTP1 | b"http/1.0" | b"istio-http/1.0" => Some(Negotiated::Http1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered() {
        let check = |configured: &[&str], wanted: WantedProtocol, expected: &str| {
            let configured: Vec<_> = configured.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
            let offered: Vec<_> = offer(&configured, wanted).into_iter().map(String::from_utf8_lossy).collect();
            assert_eq!(offered.join(","), expected, "{wanted:?}");
        };
        check(&[], WantedProtocol::Bytes, "");
        check(&["istio-http/1.1", "istio"], WantedProtocol::Bytes, "istio");
        check(&["istio-h2", "istio", "h2"], WantedProtocol::Bytes, "istio,h2");
        check(&["istio"], WantedProtocol::Bytes, "istio");
        check(&[], WantedProtocol::Http1, "http/1.1");
        check(&[], WantedProtocol::Http2, "h2");
        check(&[], WantedProtocol::Either, "h2,http/1.1");
        check(&["istio-http/1.1", "istio"], WantedProtocol::SharedHttp1, "evenkeel-h2-http/1.1,istio-http/1.1,istio");
        check(&["istio-http/1.1", "istio"], WantedProtocol::Http1, "istio-http/1.1,istio");
        check(&["istio-http/1.1", "istio"], WantedProtocol::Http2, "istio-h2,istio,h2");
        check(&["foo"], WantedProtocol::Either, "foo");
        let ours = ["istio-http/1.1", "istio-peer-exchange", "istio"];
        check(&ours, WantedProtocol::Bytes, "istio-peer-exchange,istio");
        check(&ours, WantedProtocol::Http1, "istio-http/1.1,istio");
        check(&ours, WantedProtocol::SharedHttp1, "evenkeel-h2-http/1.1,istio-http/1.1,istio");
        check(&ours, WantedProtocol::Http2, "istio-h2,istio,h2");
        check(&["istio-peer-exchange", "istio"], WantedProtocol::Http1, "istio-peer-exchange,istio");
    }

    #[test]
    fn what_a_filter_offers_instead() {
        let list =
            |text: &str| -> Vec<Vec<u8>> { text.split(',').map(|protocol| protocol.as_bytes().to_vec()).collect() };
        let istio = AlpnOverrides { http1: list("istio-http/1.1,istio,http/1.1"), http2: list("istio-h2,istio,h2") };
        let configured = list("istio-peer-exchange,istio");
        let check = |overrides: &AlpnOverrides, wanted: WantedProtocol, expected: &str| {
            let offered = offered(&configured, Some(overrides), wanted);
            let offered: Vec<_> = offered.into_iter().map(String::from_utf8_lossy).collect();
            assert_eq!(offered.join(","), expected, "{wanted:?}");
        };
        check(&istio, WantedProtocol::Bytes, "istio-peer-exchange,istio");
        check(&istio, WantedProtocol::Http1, "istio-http/1.1,istio,http/1.1");
        check(&istio, WantedProtocol::SharedHttp1, "evenkeel-h2-http/1.1,istio-http/1.1,istio,http/1.1");
        check(&istio, WantedProtocol::Http2, "istio-h2,istio,h2");
        check(&istio, WantedProtocol::Either, "istio-h2,istio,h2");
        check(&AlpnOverrides::default(), WantedProtocol::Http1, "istio-peer-exchange,istio");
        check(&AlpnOverrides::default(), WantedProtocol::Http2, "istio-peer-exchange,istio");
    }

    #[test]
    fn what_is_spoken_then() {
        let check = |wanted, agreed: Option<&str>, expected| {
            assert_eq!(negotiated(agreed.map(str::as_bytes), wanted), expected, "{wanted:?} {agreed:?}");
        };
        check(WantedProtocol::SharedHttp1, Some("evenkeel-h2-http/1.1"), Negotiated::Http2(Version::Http11));
        check(WantedProtocol::SharedHttp1, Some("istio-http/1.1"), Negotiated::Http1);
        check(WantedProtocol::SharedHttp1, Some("h2"), Negotiated::Http1);
        check(WantedProtocol::SharedHttp1, None, Negotiated::Http1);
        check(WantedProtocol::Http2, None, Negotiated::Http2(Version::Http2));
        check(WantedProtocol::Either, Some("h2"), Negotiated::Http2(Version::Http2));
        check(WantedProtocol::Either, None, Negotiated::Http1);
        assert_eq!(negotiated_by_client(Some(b"istio"), true), None);
        assert_eq!(negotiated_by_client(Some(b"h2"), false), Some(Negotiated::Http2(Version::Http2)));
        assert_eq!(negotiated_by_client(Some(MULTIPLEXED_HTTP1), true), Some(Negotiated::Http2(Version::Http11)));
        assert_eq!(negotiated_by_client(Some(MULTIPLEXED_HTTP1), false), None);
    }
}
