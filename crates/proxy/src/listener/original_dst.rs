//! The address a client dialled before a redirect rule sent the connection here.

use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

/// `SO_ORIGINAL_DST` and `IP6T_SO_ORIGINAL_DST` of Linux's netfilter.
const SO_ORIGINAL_DST: i32 = 80;

/// The destination before a redirect; `None` when the connection was not redirected.
pub(crate) fn original_destination(socket: &impl AsFd, local: SocketAddr) -> Option<SocketAddr> {
    match local.ip().to_canonical() {
        std::net::IpAddr::V4(_) => v4(socket).or_else(|| v6(socket)),
        std::net::IpAddr::V6(_) => v6(socket),
    }
}

fn v4(socket: &impl AsFd) -> Option<SocketAddr> {
    let address: libc::sockaddr_in = option(socket, libc::SOL_IP)?;
    let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
    Some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
}

fn v6(socket: &impl AsFd) -> Option<SocketAddr> {
    let address: libc::sockaddr_in6 = option(socket, libc::SOL_IPV6)?;
    let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
    Some(SocketAddrV6::new(ip, u16::from_be(address.sin6_port), 0, address.sin6_scope_id).into())
}

/// Reads a plain-data socket address option.
fn option<T: Copy>(socket: &impl AsFd, level: i32) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut size = libc::socklen_t::try_from(size_of::<T>()).ok()?;
    // SAFETY: the descriptor is open; `value` is writable for `size` bytes.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, SO_ORIGINAL_DST, value.as_mut_ptr().cast(), &raw mut size)
    };
    // SAFETY: every bit pattern of a libc socket address is valid, and all bytes were zeroed before the call.
    (result == 0).then(|| unsafe { value.assume_init() })
}
