//! Who is asking: the headers by which proxies tell each other about the client, sanitized and extended as Envoy's
//! connection manager does.

use std::net::{IpAddr, SocketAddr};

use evenkeel_http::{HeaderId, Headers, RequestHead};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::hcm::{ClientCertDetails, ForwardClientCert, StripPort};
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity};

use crate::random::Random;

/// Headers only a trusted, internal hop may set.
const INTERNAL: [HeaderId; 7] = [
    HeaderId::EnvoyRetryOn,
    HeaderId::EnvoyMaxRetries,
    HeaderId::EnvoyExpectedRqTimeoutMs,
    HeaderId::EnvoyForceTrace,
    HeaderId::EnvoyIpTags,
    HeaderId::EnvoyHedgeOnPerTryTimeout,
    HeaderId::EnvoyInternal,
];

/// The same without a well-known id.
const INTERNAL_NAMES: [&[u8]; 6] = [
    b"x-envoy-retry-grpc-on",
    b"x-envoy-retriable-status-codes",
    b"x-envoy-upstream-alt-stat-name",
    b"x-envoy-upstream-rq-timeout-ms",
    b"x-envoy-upstream-rq-per-try-timeout-ms",
    b"x-envoy-original-url",
];

/// Headers an edge proxy takes off besides.
const EDGE: [HeaderId; 3] =
    [HeaderId::EnvoyDecoratorOperation, HeaderId::EnvoyDownstreamServiceCluster, HeaderId::EnvoyDownstreamServiceNode];

/// Brings the request's headers into the form filters and upstreams may trust. Returns the client's address.
pub(super) fn identify(
    head: &mut RequestHead,
    hcm: &HttpConnectionManager,
    connection: &ConnectionView,
    peer_text: &str,
    random: &Random,
) -> SocketAddr {
    let direct = connection.remote;
    let (mut client, scheme) = (direct, if connection.tls { &b"https"[..] } else { b"http" });
    let headers = &mut head.headers;
    if hcm.use_remote_address {
        if hcm.xff_num_trusted_hops > 0
            && let Some(ip) = trusted_address(headers, hcm.xff_num_trusted_hops - 1)
        {
            client = SocketAddr::new(ip, 0);
        }
        if !hcm.skip_xff_append {
            headers.append_to_list(HeaderId::ForwardedFor, peer_text.as_bytes());
        }
        if hcm.xff_num_trusted_hops == 0 || !headers.contains(HeaderId::ForwardedProto) {
            headers.set(HeaderId::ForwardedProto, scheme);
        }
        EDGE.iter().for_each(|id| headers.remove(*id));
        let external = client.ip().to_canonical().to_string();
        headers.set(HeaderId::EnvoyExternalAddress, external.as_bytes());
    } else {
        if let Some(ip) = trusted_address(headers, hcm.xff_num_trusted_hops) {
            client = SocketAddr::new(ip, 0);
        }
        let valid = matches!(headers.get(HeaderId::ForwardedProto), Some(b"http" | b"https"));
        if !valid {
            headers.set(HeaderId::ForwardedProto, scheme);
        }
    }
    INTERNAL.iter().for_each(|id| headers.remove(*id));
    if headers.iter().any(|(id, name, _)| id == HeaderId::Other && name.starts_with(b"x-envoy-")) {
        INTERNAL_NAMES.iter().for_each(|name| headers.remove_name(name));
    }
    request_id(headers, hcm, random);
    client_certificate(headers, hcm, connection);
    if let Some(via) = &hcm.via {
        append_via(headers, via);
    }
    strip_port(head, hcm.strip_port, connection.local.port());
    client
}

/// The address that many trusted hops up the list of `x-forwarded-for`, from its end.
fn trusted_address(headers: &Headers, hops: u32) -> Option<IpAddr> {
    let list = headers.get(HeaderId::ForwardedFor)?;
    let entry = list.rsplit(|byte| *byte == b',').nth(usize::try_from(hops).ok()?)?;
    std::str::from_utf8(entry.trim_ascii()).ok()?.parse().ok()
}

/// Adds our name to `via`.
pub(super) fn append_via(headers: &mut Headers, via: &str) {
    let joined = match headers.get(HeaderId::Via) {
        Some(before) => [before, b", ", via.as_bytes()].concat(),
        None => via.as_bytes().to_vec(),
    };
    headers.set(HeaderId::Via, &joined);
}

fn request_id(headers: &mut Headers, hcm: &HttpConnectionManager, random: &Random) {
    if hcm.use_remote_address && !hcm.preserve_external_request_id {
        headers.remove(HeaderId::RequestId);
    }
    if hcm.generate_request_id && !headers.contains(HeaderId::RequestId) {
        headers.append_id(HeaderId::RequestId, &uuid(random));
    }
}

/// A random UUID (version 4).
fn uuid(random: &Random) -> [u8; 36] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bits = u128::from(random.next()) << 64 | u128::from(random.next());
    let bits = bits & !(0xf << 76 | 0b11 << 62) | 0x4 << 76 | 0b10 << 62;
    let mut text = [b'-'; 36];
    let mut nibble = 32;
    for (at, byte) in text.iter_mut().enumerate() {
        if !matches!(at, 8 | 13 | 18 | 23) {
            nibble -= 1;
            *byte = HEX[(bits >> (nibble * 4) & 0xf) as usize];
        }
    }
    text
}

/// `x-forwarded-client-cert` as `forward_client_cert_details` says.
fn client_certificate(headers: &mut Headers, hcm: &HttpConnectionManager, connection: &ConnectionView) {
    let mode = hcm.forward_client_cert;
    let Some(peer) = connection.peer.as_ref() else {
        if mode != ForwardClientCert::AlwaysForwardOnly {
            headers.remove(HeaderId::ForwardedClientCert);
        }
        return;
    };
    match mode {
        ForwardClientCert::Sanitize => headers.remove(HeaderId::ForwardedClientCert),
        ForwardClientCert::ForwardOnly | ForwardClientCert::AlwaysForwardOnly => {}
        ForwardClientCert::AppendForward => {
            headers.append_to_list(HeaderId::ForwardedClientCert, element(peer, hcm.client_cert_details).as_bytes());
        }
        ForwardClientCert::SanitizeSet => {
            headers.set(HeaderId::ForwardedClientCert, element(peer, hcm.client_cert_details).as_bytes());
        }
    }
}

/// Our element: `By=…;Hash=…;Cert="…";Chain="…";Subject="…";URI=…;DNS=…`.
fn element(peer: &PeerIdentity, details: ClientCertDetails) -> String {
    let mut parts: Vec<String> = peer.local_uri_sans.iter().map(|uri| format!("By={uri}")).collect();
    parts.push(format!("Hash={}", peer.sha256));
    if details.cert
        && let Some(pem) = &peer.cert_pem_urlencoded
    {
        parts.push(format!("Cert=\"{pem}\""));
    }
    if details.chain
        && let Some(pem) = &peer.chain_pem_urlencoded
    {
        parts.push(format!("Chain=\"{pem}\""));
    }
    if details.subject {
        parts.push(format!("Subject=\"{}\"", peer.subject.replace('\\', "\\\\").replace('"', "\\\"")));
    }
    if details.uri {
        // A peer without a URI is named by an empty one, as Envoy does.
        if peer.uri_sans.is_empty() {
            parts.push("URI=".to_owned());
        }
        parts.extend(peer.uri_sans.iter().map(|uri| format!("URI={uri}")));
    }
    if details.dns {
        parts.extend(peer.dns_sans.iter().map(|dns| format!("DNS={dns}")));
    }
    parts.join(";")
}

fn strip_port(head: &mut RequestHead, strip: StripPort, listener_port: u16) {
    if strip == StripPort::None || head.method() == b"CONNECT" {
        return;
    }
    let authority = head.authority();
    let host = evenkeel_runtime_config::route_match::without_port(authority);
    if host.len() == authority.len() {
        return;
    }
    let port = std::str::from_utf8(&authority[host.len() + 1..]).ok().and_then(|port| port.parse::<u16>().ok());
    if strip == StripPort::Any || port == Some(listener_port) {
        let host = host.to_vec();
        head.set_authority(&host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_version_and_variant() {
        let text = String::from_utf8(uuid(&Random::seeded(7)).to_vec()).expect("ASCII");
        let at = |index: usize| text.as_bytes()[index];
        assert_eq!((at(8), at(13), at(14), at(18), at(23)), (b'-', b'-', b'4', b'-', b'-'), "{text}");
        assert!(b"89ab".contains(&at(19)), "{text}");
    }

    #[test]
    fn counts_trusted_hops_from_the_end() {
        let mut headers = Headers::default();
        headers.append(b"x-forwarded-for", b"1.1.1.1, 2.2.2.2,3.3.3.3");
        let check = |hops, expected: Option<&str>| {
            assert_eq!(trusted_address(&headers, hops).map(|ip| ip.to_string()).as_deref(), expected, "{hops}");
        };
        check(0, Some("3.3.3.3"));
        check(2, Some("1.1.1.1"));
        check(3, None);
    }

    #[test]
    fn names_the_peer() {
        let peer = PeerIdentity {
            uri_sans: vec!["spiffe://a/ns/b/sa/c".into()],
            dns_sans: vec!["d".into()],
            subject: "CN=\"x\"".into(),
            sha256: "ab".into(),
            local_uri_sans: vec!["spiffe://me".into()],
            cert_pem_urlencoded: Some("PEM".into()),
            chain_pem_urlencoded: Some("PEMS".into()),
        };
        let all = ClientCertDetails { subject: true, cert: true, chain: true, dns: true, uri: true };
        assert_eq!(
            element(&peer, all),
            r#"By=spiffe://me;Hash=ab;Cert="PEM";Chain="PEMS";Subject="CN=\"x\"";URI=spiffe://a/ns/b/sa/c;DNS=d"#
        );
        let uri = ClientCertDetails { uri: true, ..ClientCertDetails::default() };
        assert_eq!(element(&peer, uri), "By=spiffe://me;Hash=ab;URI=spiffe://a/ns/b/sa/c");
    }
}
