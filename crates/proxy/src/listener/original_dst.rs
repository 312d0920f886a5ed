//! The destination address of a connection before a redirect rule (`SO_ORIGINAL_DST`).

use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;

use rustix::net::sockopt::{ip_original_dst, ipv6_original_dst};

/// The destination before the redirect; `None` when the connection was not redirected.
pub(crate) fn original_destination(socket: &impl AsFd, local: SocketAddr) -> Option<SocketAddr> {
    match local.ip().to_canonical() {
        std::net::IpAddr::V4(_) => v4(socket).or_else(|| v6(socket)),
        std::net::IpAddr::V6(_) => v6(socket),
    }
}

fn v4(socket: &impl AsFd) -> Option<SocketAddr> {
    Some(ip_original_dst(socket).ok()?.into())
}

fn v6(socket: &impl AsFd) -> Option<SocketAddr> {
    let address = ipv6_original_dst(socket).ok()?;
    // The flow information is not part of the destination.
    Some(SocketAddrV6::new(*address.ip(), address.port(), 0, address.scope_id()).into())
}
