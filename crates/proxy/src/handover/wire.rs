//! The protocol between the two processes: one packet per message, with file descriptors attached.
//!
//! A packet is the length of its head (4 bytes, little endian), the head as JSON, and payload bytes. A Unix
//! `SOCK_SEQPACKET` socket keeps packet boundaries, and descriptors arrive with the packet they were sent with.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};

use super::parcel::{PackedConnection, PackedListener};

/// Incremented with every incompatible change.
pub(super) const VERSION: u32 = 1;
/// Maximum size of a packet; the system's default for a socket's send buffer is 208 KiB.
pub(super) const MAX_PACKET_BYTES: usize = 160 * 1024;
/// Maximum number of descriptors in a packet (the kernel's `SCM_MAX_FD` is 253).
pub(super) const MAX_FDS: usize = 250;
/// Time limit for each answer of the other side while the handover is being set up.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The head of a packet.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Head {
    /// First message of either side.
    Hello { version: u32, epoch: u32 },
    /// Sockets of a listener: one shared by all workers, or one for each.
    Listener(PackedListener),
    /// The admin interface's socket, by its configured address.
    Admin { address: SocketAddr },
    /// A socket of the program that embeds the proxy, by the name the program gave it.
    Program { name: String },
    /// Keys of TLS session tickets, so that the successor can resume sessions.
    Tickets { keys: Vec<Vec<u8>> },
    /// End of the setup: everything needed to start has been sent.
    Ready,
    /// The successor is ready to serve: hand everything over, and end after that time at the latest.
    TakeOver { end_after_ms: u64 },
    /// A connection.
    Connection(Box<PackedConnection>),
    /// Part of the predecessor's statistics; `complete` marks the last part.
    Statistics { counters: Vec<(String, u64)>, gauges: Vec<(String, i64)>, complete: bool },
    /// The predecessor has nothing left.
    Done,
}

/// A received packet.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) head: Head,
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// One side of a handover. Calls block, so it is used on a separate thread.
#[derive(Debug)]
pub(super) struct Channel(Socket);

impl Channel {
    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(Self(socket))
    }

    pub(super) fn listen(path: &Path) -> io::Result<Socket> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        // Bind to a temporary name first: renaming it replaces a predecessor's socket atomically.
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let _ = std::fs::remove_file(&new);
        socket.bind(&SockAddr::unix(&new)?)?;
        socket.listen(4)?;
        std::fs::rename(&new, path)?;
        Ok(socket)
    }

    /// Accepts a peer. Peers of other users are refused, whatever the folder's mode is.
    pub(super) fn accept(listener: &Socket) -> io::Result<Self> {
        let (socket, _) = listener.accept()?;
        let peer = nix::sys::socket::getsockopt(&socket.as_fd(), nix::sys::socket::sockopt::PeerCredentials)?;
        if peer.uid() == nix::unistd::geteuid().as_raw() {
            Ok(Self(socket))
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Process id of the peer; `None` where it is not visible in this process's namespace.
    pub(super) fn peer(&self) -> Option<u32> {
        let peer = nix::sys::socket::getsockopt(&self.0.as_fd(), nix::sys::socket::sockopt::PeerCredentials).ok()?;
        u32::try_from(peer.pid()).ok().filter(|process| *process > 0)
    }

    /// Read timeout; `None`: unlimited.
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Shuts the connection down for both sides and all clones.
    pub(super) fn close(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    pub(super) fn send(&self, head: &Head, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
        let head = serde_json::to_vec(head)?;
        let length = u32::try_from(head.len()).map_err(|_| io::ErrorKind::InvalidInput)?.to_le_bytes();
        if length.len() + head.len() + bytes.len() > MAX_PACKET_BYTES || fds.len() > MAX_FDS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let raw: Vec<_> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &rights[..0] } else { &rights[..] };
        let parts = [IoSlice::new(&length), IoSlice::new(&head), IoSlice::new(bytes)];
        sendmsg::<UnixAddr>(self.0.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// The next packet; `None` when the other side is gone.
    pub(super) fn receive(&self) -> io::Result<Option<Packet>> {
        let mut bytes = vec![0; MAX_PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut carried = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let count = recvmsg(&self.0, parts, &mut carried, RecvFlags::CMSG_CLOEXEC)?.bytes;
        let mut fds = Vec::new();
        for message in carried.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if count == 0 {
            return Ok(None);
        }
        bytes.truncate(count);
        let packet = parse(bytes, fds).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no such packet"))?;
        Ok(Some(packet))
    }
}

fn parse(mut bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Option<Packet> {
    let length = u32::from_le_bytes(bytes.first_chunk().copied()?);
    let end = usize::try_from(length).ok()?.checked_add(4)?;
    let head = serde_json::from_slice(bytes.get(4..end)?).ok()?;
    bytes.drain(..end);
    Some(Packet { head, bytes, fds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_with_their_bytes_and_descriptors() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("socket");
        let listener = Channel::listen(&path).expect("a new path");
        let one = Channel::connect(&path).expect("it listens");
        let other = Channel::accept(&listener).expect("our own user");
        assert_eq!(other.peer(), Some(std::process::id()));
        let (read, write) = std::io::pipe().expect("a pipe");
        one.send(&Head::Ready, b"bytes", &[write.into()]).expect("it reads");
        one.send(&Head::Hello { version: 7, epoch: 1 }, b"", &[]).expect("it reads");
        let packet = other.receive().expect("a packet").expect("it is there");
        assert!(matches!(packet.head, Head::Ready));
        assert_eq!((packet.bytes.as_slice(), packet.fds.len()), (&b"bytes"[..], 1));
        let mut write = std::fs::File::from(packet.fds.into_iter().next().expect("one"));
        io::Write::write_all(&mut write, b"through").expect("the pipe is open");
        drop(write);
        assert_eq!(io::read_to_string(read).expect("the pipe's end"), "through");
        let packet = other.receive().expect("a packet").expect("it is there");
        assert!(matches!(packet.head, Head::Hello { version: 7, epoch: 1 }));
        drop(one);
        assert!(other.receive().expect("an end in order").is_none());
    }

    #[test]
    fn garbage_is_no_packet() {
        for bytes in [&b""[..], b"\x01", b"\xff\xff\xff\xff{}", b"\x02\0\0\0{}", b"\x09\0\0\0\"Ready"] {
            assert!(parse(bytes.to_vec(), Vec::new()).is_none(), "{bytes:?}");
        }
    }
}
