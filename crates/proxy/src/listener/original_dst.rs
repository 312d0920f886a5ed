//! The address a client dialled before a redirect rule sent the connection here.

use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;

use rustix::net::sockopt::{ip_original_dst, ipv6_original_dst};

/// The destination before a redirect; `None` when the connection was not redirected.
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
    // Its flow says nothing of where it goes.
    Some(SocketAddrV6::new(*address.ip(), address.port(), 0, address.scope_id()).into())
}
