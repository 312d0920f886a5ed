//! Decides whether a request that was sent on a kept-alive connection may be retried when the peer closed that
//! connection at the same time, from what the kernel knows about the socket.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::stream::Stream;

/// A connection that was idle for at least this long is checked with `poll` before it is reused: the event loop has not
/// run since and may not know yet that the peer closed it.
pub(super) const LOOK_AFTER: Duration = Duration::from_millis(2);

/// Whether the kernel holds neither the connection's end nor unsolicited bytes.
pub(super) fn is_quiet(stream: &Stream) -> bool {
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    let (descriptor, unwanted) = match stream {
        Stream::Tcp(stream) => (stream.as_fd(), ended | PollFlags::IN),
        // TLS session tickets may arrive at any time.
        Stream::Tls(stream) => (stream.get_ref().as_fd(), ended),
        Stream::Unix(stream) => (stream.as_fd(), ended | PollFlags::IN),
        Stream::Layered(layer) => return is_quiet(layer.beneath()),
    };
    let mut wanted = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN | PollFlags::RDHUP)];
    let ready = poll(&mut wanted, Some(&Timespec::default()));
    ready.is_err() || !wanted[0].revents().intersects(unwanted)
}

/// Whether the peer closed the connection before it received any of the last `written` bytes that the socket accepted.
/// Call this once the peer's end (FIN, or over TLS `close_notify`) was read in order, with nothing before it.
///
/// Each segment acknowledges what its sender has received, so an end that was sent after the first of these bytes
/// arrived would have acknowledged it. If none of them is acknowledged, the peer had closed its sending side before the
/// request reached it, and must not process it (RFC 9112 section 9.6). A reset (RST) proves nothing: it also follows
/// when a server dies halfway through a request.
pub fn ended_before(stream: &Stream, written: usize) -> bool {
    match stream {
        _ if written == 0 => true,
        Stream::Tcp(stream) => unacknowledged(stream.as_raw_fd()).is_some_and(|bytes| bytes >= written),
        // The end was `close_notify`, which only the peer can write; `written` counts bytes of ciphertext.
        Stream::Tls(stream) => unacknowledged(stream.get_ref().as_raw_fd()).is_some_and(|bytes| bytes >= written),
        // Unix sockets acknowledge nothing.
        Stream::Unix(_) => false,
        Stream::Layered(layer) => ended_before(layer.beneath(), written),
    }
}

/// Bytes that were written to the socket and not yet acknowledged by the peer (`SIOCOUTQ`).
fn unacknowledged(socket: RawFd) -> Option<usize> {
    let mut bytes: libc::c_int = 0;
    // No crate wraps this ioctl.
    // SAFETY: this request writes one `c_int`, which lives for the call.
    let result = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut bytes) };
    (result == 0).then(|| usize::try_from(bytes).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

    use super::*;

    const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";

    /// Both ends of a connection that has already carried a request and a response.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let mut ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("it accepts");
        let mut peer = listener.accept().expect("a connection").0;
        let mut buffer = [0; 64];
        ours.write_all(REQUEST).expect("sent");
        peer.read_exact(&mut buffer[..REQUEST.len()]).expect("received");
        peer.write_all(b"answer").expect("sent");
        ours.read_exact(&mut buffer[..6]).expect("received");
        (ours, peer)
    }

    fn register(socket: TcpStream) -> Stream {
        socket.set_nonblocking(true).expect("an option");
        Stream::Tcp(tokio::net::TcpStream::from_std(socket).expect("registered"))
    }

    /// `race`: what the peer does and what this side writes, in order. `expected`: `Some` if the end is read in order,
    /// and then whether the request may be retried.
    fn check(what: &str, race: impl FnOnce(&mut TcpStream, TcpStream) -> Option<TcpStream>, expected: Option<bool>) {
        let (mut ours, peer) = pair();
        let _peer = race(&mut ours, peer);
        let ended = ours.read(&mut [0; 16]).ok();
        assert!(ended.is_none_or(|bytes| bytes == 0), "{what}");
        let stream = register(ours);
        assert_eq!(ended.map(|_| ended_before(&stream, REQUEST.len())), expected, "{what}");
    }

    #[tokio::test]
    async fn only_an_end_that_was_sent_first_is_proof() {
        let post = |ours: &mut TcpStream| ours.write_all(REQUEST).expect("the socket takes it");
        let receive = |peer: &mut TcpStream, bytes: usize| {
            peer.read_exact(&mut [0; 64][..bytes]).expect("received");
        };
        let closed_first = |ours: &mut TcpStream, peer: TcpStream| {
            drop(peer);
            post(ours);
            None
        };
        check("closed, then the request", closed_first, Some(true));
        let in_two = |ours: &mut TcpStream, peer: TcpStream| {
            drop(peer);
            post(ours);
            let refused = ours.write_all(b"body").expect_err("a reset followed");
            assert_eq!(refused.kind(), std::io::ErrorKind::BrokenPipe, "not ConnectionReset");
            None
        };
        check("closed, then the request in two pieces", in_two, Some(true));
        let shut_first = |ours: &mut TcpStream, peer: TcpStream| {
            peer.shutdown(Shutdown::Both).expect("open");
            post(ours);
            Some(peer)
        };
        check("shut down, then the request", shut_first, Some(true));
        let read_all = |ours: &mut TcpStream, mut peer: TcpStream| {
            post(ours);
            receive(&mut peer, REQUEST.len());
            None
        };
        check("the request, read, then closed", read_all, Some(false));
        let unread = |ours: &mut TcpStream, peer: TcpStream| {
            post(ours);
            peer.shutdown(Shutdown::Both).expect("open");
            Some(peer)
        };
        check("the request, not read, then shut down", unread, Some(false));
        let read_half = |ours: &mut TcpStream, mut peer: TcpStream| {
            post(ours);
            receive(&mut peer, REQUEST.len() / 2);
            None
        };
        check("the request, half of it read, then reset", read_half, None);
    }

    #[tokio::test]
    async fn a_kept_connection_is_quiet_until_the_peer_does_something() {
        let (ours, mut peer) = pair();
        let stream = register(ours);
        assert!(is_quiet(&stream));
        peer.write_all(b"x").expect("sent");
        assert!(!is_quiet(&stream), "bytes nobody asked for");
        let (ours, peer) = pair();
        drop(peer);
        assert!(!is_quiet(&register(ours)), "closed");
    }

    #[tokio::test]
    async fn what_was_never_written_was_never_read() {
        let (ours, peer) = pair();
        drop(peer);
        assert!(ended_before(&register(ours), 0));
    }
}
