//! Identifies the client: sanitizes and extends the headers by which proxies tell each other about it, as Envoy's
//! connection manager does.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

use evenkeel_http::{HeaderId, Headers, RequestHead};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::hcm::{Forwarded, StripPort};

use super::between_proxies::{bit, is_taken_off};
use super::{Arrival, client_cert};
use crate::http::Services;
use crate::uuid::uuid;

const FORWARDED_PORT: &[u8] = b"x-forwarded-port";
/// Lists that may span several header lines. They are joined into one, so that a next hop that reads a single line does
/// not miss what the last hop has added.
const LISTS: [HeaderId; 4] =
    [HeaderId::ForwardedFor, HeaderId::Via, HeaderId::ForwardedClientCert, HeaderId::RequestId];
const LISTS_BITS: u64 = bit(LISTS[0]) | bit(LISTS[1]) | bit(LISTS[2]) | bit(LISTS[3]);

/// Brings the request's headers into a form that filters and upstreams may trust. Returns the client's address.
pub(super) fn identify(head: &mut RequestHead, arrival: Arrival<'_>) -> SocketAddr {
    let Arrival { manager: hcm, connection, peer_text, services, .. } = arrival;
    let direct = connection.remote;
    let (seen, repeated) = (Cell::new(0), Cell::new(0));
    head.headers.remove_where(|id, name| {
        let list = bit(id) & LISTS_BITS;
        if list != 0 {
            repeated.set(repeated.get() | (seen.get() & list));
            seen.set(seen.get() | list);
            return false;
        }
        is_taken_off(id, name, hcm.use_remote_address)
    });
    if repeated.get() != 0 {
        for id in LISTS.into_iter().filter(|id| repeated.get() & bit(*id) != 0) {
            head.headers.join(id, b",");
        }
    }
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
        if client == direct {
            headers.set(HeaderId::EnvoyExternalAddress, peer_text.as_bytes());
        } else {
            headers.set(HeaderId::EnvoyExternalAddress, client.ip().to_canonical().to_string().as_bytes());
        }
    } else {
        if let Some(ip) = trusted_address(headers, hcm.xff_num_trusted_hops) {
            client = SocketAddr::new(ip, 0);
        }
        let valid = matches!(headers.get(HeaderId::ForwardedProto), Some(b"http" | b"https"));
        if !valid {
            headers.set(HeaderId::ForwardedProto, scheme);
        }
    }
    if let Some(forwarded) = &hcm.forwarded {
        forward(headers, hcm, forwarded, connection.local.port());
    }
    request_id(headers, hcm, services);
    client_cert::set(headers, hcm, connection);
    if let Some(via) = &hcm.via {
        append_via(headers, via);
    }
    strip_port(head, hcm.strip_port, connection.local.port());
    client
}

/// Sets what only some connection managers tell upstreams.
#[cold]
fn forward(headers: &mut Headers, hcm: &HttpConnectionManager, forwarded: &Forwarded, port: u16) {
    // As in Envoy, only the values of a trusted proxy stay; without `use_remote_address` every client is one.
    let trusts = !hcm.use_remote_address || hcm.xff_num_trusted_hops > 0;
    if forwarded.port && (!trusts || headers.find(FORWARDED_PORT).is_none()) {
        let mut digits = itoa::Buffer::new();
        headers.set_name(FORWARDED_PORT, digits.format(port).as_bytes());
    }
    // As in Envoy, `:scheme` and `x-forwarded-proto` are overwritten alike, also what a trusted proxy has set.
    if let Some(scheme) = forwarded.scheme {
        headers.set(HeaderId::ForwardedProto, scheme.as_bytes());
    }
}

/// The address in `x-forwarded-for` that is this many trusted hops from its end.
fn trusted_address(headers: &Headers, hops: u32) -> Option<IpAddr> {
    let list = headers.get(HeaderId::ForwardedFor)?;
    let entry = list.rsplit(|byte| *byte == b',').nth(usize::try_from(hops).ok()?)?;
    std::str::from_utf8(entry.trim_ascii()).ok()?.parse().ok()
}

/// Appends this proxy's name to `via`.
pub fn append_via(headers: &mut Headers, via: &str) {
    let joined = match headers.get(HeaderId::Via) {
        Some(before) => [before, b", ", via.as_bytes()].concat(),
        None => via.as_bytes().to_vec(),
    };
    headers.set(HeaderId::Via, &joined);
}

fn request_id(headers: &mut Headers, hcm: &HttpConnectionManager, services: &dyn Services) {
    if hcm.use_remote_address && !hcm.preserve_external_request_id {
        headers.remove(HeaderId::RequestId);
    }
    // The client may name its request. Whether it is traced is not its decision.
    if hcm.use_remote_address && hcm.pack_trace_reason && hcm.preserve_external_request_id {
        crate::tracing::clear_reason(headers);
    }
    if hcm.generate_request_id && !headers.contains(HeaderId::RequestId) {
        headers.append_id(HeaderId::RequestId, &uuid(|| services.random()));
    }
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
}
