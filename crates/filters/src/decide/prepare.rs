//! What is done with a request once, however often it is decided: normalize the path, find the tunnel, identify the client.

use std::net::SocketAddr;

use evenkeel_base::grpc::is_grpc;
use evenkeel_http::{Framing, HeaderId, RequestHead, Version, path};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::hcm::EscapedSlashes;
use evenkeel_runtime_config::rewrite::path_as_location;

use super::identify::identify;
use super::{Answer, Arrival, Parts, Stream, Tunnel};

/// Prepares the request unless it was prepared before. Returns the client.
pub(super) fn prepare<'c, S: Stream<'c>>(
    arrival: Arrival<'c>,
    stream: &mut S,
) -> Result<SocketAddr, Answer<'c, S::Reply>> {
    let parts = stream.parts();
    if let Some(client) = *parts.client {
        // It was held, and comes again.
        return Ok(client);
    }
    normalize(parts.head, arrival.manager)?;
    if asked_tunnel(parts) {
        stream.upgrade_by_connect();
    }
    let parts = stream.parts();
    // What the client has said of this hop ends here, before anything is added that it must not be able to name.
    parts.head.headers.remove_hop_by_hop();
    let client = identify(parts.head, arrival);
    *parts.client = Some(client);
    *parts.grpc = parts.head.headers.get(HeaderId::ContentType).is_some_and(is_grpc);
    stream.prepared();
    Ok(client)
}

/// Path and authority into their normal form; a redirect where the path's slashes are to be unescaped that way.
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

/// Finds the tunnel the request asks for. True when it is an upgrade that came as extended CONNECT.
fn asked_tunnel(parts: Parts<'_>) -> bool {
    let Parts { head, info, tunnel, .. } = parts;
    // Extended CONNECT (RFC 8441 section 5) is an upgrade to everything behind this.
    if !head.protocol().is_empty() {
        let protocol = head.protocol().to_ascii_lowercase();
        head.set_protocol(b"");
        head.set_method(b"GET");
        info.framing = Framing::None;
        *tunnel = Some(Tunnel::Upgrade(protocol));
        return true;
    }
    if head.method() == b"CONNECT" {
        // Whatever comes after the head belongs to the tunnel.
        info.framing = Framing::None;
        *tunnel = Some(Tunnel::Connect);
        return false;
    }
    let Some(protocol) = info.upgrade.then(|| head.headers.get(HeaderId::Upgrade)).flatten() else { return false };
    let protocol = protocol.to_ascii_lowercase();
    // RFC 9113 knows this upgrade no more, but clients still offer it with their first request and are content with HTTP/1.1.
    if protocol == b"h2c" {
        head.headers.remove_name(b"http2-settings");
    } else {
        *tunnel = Some(Tunnel::Upgrade(protocol));
    }
    false
}
