//! Datagrams of clients, with the address that each was sent to, and answers from that address. Neither allocates.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
use socket2::{SockAddr, SockRef};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Room for the control message of either family, with its header, in words.
const CONTROL_WORDS: usize = 8;

/// A socket that clients send to.
#[derive(Debug)]
pub(super) struct ClientSocket {
    socket: UdpSocket,
    /// The address that it is bound to.
    bound: SocketAddr,
}

/// A client's datagram.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) bytes: usize,
    /// The client.
    pub(super) peer: SocketAddr,
    /// The address that it has sent to.
    pub(super) local: SocketAddr,
}

impl ClientSocket {
    pub(super) fn new(socket: socket2::Socket) -> io::Result<Self> {
        let socket = UdpSocket::from_std(socket.into())?;
        Ok(Self { bound: socket.local_addr()?, socket })
    }

    /// The address that it is bound to.
    pub(super) fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Waits for a datagram.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Takes a datagram, as far as `buffer` has room for it.
    pub(super) fn receive(&self, buffer: &mut [u8], control: &mut Vec<u8>) -> io::Result<Arrived> {
        self.socket.try_io(Interest::READABLE, || {
            let control = self.bound.ip().is_unspecified().then_some(control.as_mut_slice());
            let mut parts = [IoSliceMut::new(buffer)];
            let fd = self.socket.as_raw_fd();
            let message = recvmsg::<SockaddrStorage>(fd, &mut parts, control, MsgFlags::MSG_DONTWAIT)?;
            let local = if self.bound.ip().is_unspecified() {
                message.cmsgs()?.find_map(|message| destination(&message))
            } else {
                None
            };
            let address = message.address.ok_or(io::ErrorKind::InvalidData)?;
            let peer = address
                .as_sockaddr_in()
                .map(|v4| SocketAddr::from((v4.ip(), v4.port())))
                .or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
                .ok_or(io::ErrorKind::InvalidData)?;
            let local = local.map_or(self.bound, |ip| SocketAddr::new(ip, self.bound.port()));
            Ok(Arrived { bytes: message.bytes, peer, local })
        })
    }

    /// Sends a datagram to a client from the address that the client has sent to. The system may drop it.
    pub(super) fn send(&self, datagram: &[u8], peer: SocketAddr, local: SocketAddr) -> io::Result<()> {
        if self.bound.ip().is_unspecified() {
            return send_from(&self.socket, datagram, peer, local.ip());
        }
        SockRef::from(&self.socket).send_to(datagram, &peer.into()).map(|_| ())
    }
}

/// The destination address of a datagram.
fn destination(message: &ControlMessageOwned) -> Option<IpAddr> {
    match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(Ipv4Addr::from_bits(u32::from_be(info.ipi_addr.s_addr)).into())
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into()),
        _ => None,
    }
}

/// Sends with `local` as the source. (nix allocates for it.)
fn send_from(socket: &UdpSocket, datagram: &[u8], peer: SocketAddr, local: IpAddr) -> io::Result<()> {
    let peer = SockAddr::from(peer);
    let mut part = libc::iovec { iov_base: datagram.as_ptr().cast_mut().cast(), iov_len: datagram.len() };
    let mut control = [0_u64; CONTROL_WORDS];
    // SAFETY: all zeros is a valid `msghdr`, which has only numbers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = peer.as_ptr().cast_mut().cast();
    message.msg_namelen = peer.len();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    match local {
        IpAddr::V4(local) => {
            let source = libc::in_addr { s_addr: local.to_bits().to_be() };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: libc::in_addr { s_addr: 0 } };
            set_control(&mut message, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        IpAddr::V6(local) => {
            let info = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: local.octets() }, ipi6_ifindex: 0 };
            set_control(&mut message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
    }
    // SAFETY: all pointers of `message` are to values that outlive the call, with their lengths; none is written to.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Writes the only control message.
fn set_control<T>(message: &mut libc::msghdr, level: libc::c_int, kind: libc::c_int, value: T) {
    let size = libc::c_uint::try_from(size_of::<T>()).unwrap_or_default();
    // SAFETY: `msg_control` has `CONTROL_WORDS` words, aligned for a header, which is room for the header and the longer of the two
    // values; it is not null, so that there is a first header.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
}
