//! Steps done once per request, however often it is decided: normalize the path, find the tunnel, identify the client.

use std::net::SocketAddr;

use evenkeel_base::grpc::is_grpc;
use evenkeel_http::{Framing, HeaderId, RequestHead, Version, path};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::hcm::EscapedSlashes;
use evenkeel_runtime_config::rewrite::path_as_location;

use super::identify::identify;
use super::{Answer, Arrival, Parts, Stream, Tunnel};

/// Prepares the request unless that was done before. Returns the client's address.
pub(super) fn prepare<'c, S: Stream<'c>>(
    arrival: Arrival<'c>,
    stream: &mut S,
) -> Result<SocketAddr, Answer<'c, S::Reply>> {
    let parts = stream.parts();
    if let Some(client) = *parts.client {
        // The request was held, and is decided again.
        return Ok(client);
    }
    normalize(parts.head, arrival.manager)?;
    if asked_tunnel(parts) {
        stream.upgrade_by_connect();
    }
    let parts = stream.parts();
    // The client's hop-by-hop headers end here, before headers are added that the client must not be able to list in `connection`.
    parts.head.headers.remove_hop_by_hop();
    let client = identify(parts.head, arrival);
    *parts.client = Some(client);
    *parts.grpc = parts.head.headers.get(HeaderId::ContentType).is_some_and(is_grpc);
    stream.prepared();
    Ok(client)
}

/// Normalizes path and authority; redirects where slashes are to be unescaped by redirect.
fn normalize<'c, R>(head: &mut RequestHead, manager: &HttpConnectionManager) -> Result<(), Answer<'c, R>> {
    if head.version == Version::Http10
        && head.authority().is_empty()
        && let Some(host) = &manager.default_host_for_http_10
    {
        head.set_authority(host.as_bytes());
    }
    match head.path().first() {
        // CONNECT.
        None => return Ok(()),
        Some(b'/') => {}
        Some(_) => return Err(Answer::NotAPath),
    }
    let mut redirect = false;
    if manager.escaped_slashes != EscapedSlashes::KeepUnchanged && path::has_escaped_slash(head.path()) {
        if manager.escaped_slashes == EscapedSlashes::Reject {
            return Err(Answer::BadPath);
        }
        redirect = manager.escaped_slashes == EscapedSlashes::UnescapeAndRedirect;
        if let Some(unescaped) = path::unescape_slashes(head.path()) {
            head.set_path(&unescaped);
        }
    }
    if manager.normalize_path
        && let Some(normal) = path::normalize(head.path()).map_err(|_| Answer::BadPath)?
    {
        head.set_path(&normal);
    }
    if manager.merge_slashes
        && let Some(merged) = path::merge_slashes(head.path())
    {
        head.set_path(&merged);
    }
    if redirect { Err(Answer::PathRedirect(path_as_location(head.path()))) } else { Ok(()) }
}

/// Finds the tunnel that the request asks for. True if it is an upgrade by extended CONNECT.
fn asked_tunnel(parts: Parts<'_>) -> bool {
    let Parts { head, info, tunnel, .. } = parts;
    // Everything after this treats extended CONNECT (RFC 8441 section 5) as an upgrade.
    if !head.protocol().is_empty() {
        let protocol = head.protocol().to_ascii_lowercase();
        head.set_protocol(b"");
        head.set_method(b"GET");
        info.framing = Framing::None;
        *tunnel = Some(Tunnel::Upgrade(protocol));
        return true;
    }
    if head.method() == b"CONNECT" {
        // Everything after the head belongs to the tunnel.
        info.framing = Framing::None;
        *tunnel = Some(Tunnel::Connect);
        return false;
    }
    let Some(protocol) = info.upgrade.then(|| head.headers.get(HeaderId::Upgrade)).flatten() else { return false };
    let protocol = protocol.to_ascii_lowercase();
    // RFC 9113 has dropped this upgrade, but clients still offer it with their first request and accept HTTP/1.1.
    if protocol == b"h2c" {
        head.headers.remove_name(b"http2-settings");
    } else {
        *tunnel = Some(Tunnel::Upgrade(protocol));
    }
    false
}
