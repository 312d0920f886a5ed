//! The lower limit of a hop's cost: copies bytes between two sockets on one thread, without parsing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use evenkeel_load::epoll::{self, Epoll, Interest};

const LISTENER: usize = usize::MAX;
const READ_BYTES: usize = 64 << 10;

/// One of a pair's two sockets.
struct End {
    stream: TcpStream,
    /// Slot of the other socket.
    other: usize,
    /// Bytes read from the other socket that did not fit into this one's send buffer.
    pending: Vec<u8>,
}

struct Relay {
    epoll: Epoll,
    upstream: SocketAddr,
    ends: Vec<Option<End>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
}

/// Relays connections on `listen` to `upstream` until the process ends.
pub fn run(listen: SocketAddr, upstream: SocketAddr) -> io::Result<()> {
    let listener = epoll::listen(listen)?;
    let epoll = Epoll::new()?;
    epoll.add(&listener, LISTENER, Interest::Read)?;
    let mut relay = Relay { epoll, upstream, ends: Vec::new(), free: Vec::new(), buffer: vec![0; READ_BYTES] };
    let mut ready = Vec::new();
    loop {
        relay.epoll.wait(&mut ready)?;
        for slot in ready.drain(..) {
            if slot == LISTENER {
                relay.accept(&listener)?;
            } else if relay.turn(slot).is_err() {
                relay.close(slot);
            }
        }
    }
}

impl Relay {
    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        let Ok((down, _)) = listener.accept() else { return Ok(()) };
        let Ok(up) = TcpStream::connect(self.upstream) else { return Ok(()) };
        let (a, b) = (self.slot(), self.slot());
        for (stream, slot, other) in [(down, a, b), (up, b, a)] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            self.epoll.add(&stream, slot, Interest::Read)?;
            self.ends[slot] = Some(End { stream, other, pending: Vec::new() });
        }
        Ok(())
    }

    fn slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.ends.push(None);
            self.ends.len() - 1
        })
    }

    /// Handles one event: sends pending bytes, or else reads once and passes the bytes on. An error means that the pair has
    /// to be closed.
    fn turn(&mut self, slot: usize) -> io::Result<()> {
        let Some(end) = self.ends[slot].as_mut() else { return Ok(()) };
        let other = end.other;
        if !end.pending.is_empty() {
            let sent = end.stream.write(&end.pending)?;
            end.pending.drain(..sent);
            if end.pending.is_empty() {
                self.epoll.change(&end.stream, slot, Interest::Read)?;
                if let Some(source) = &self.ends[other] {
                    self.epoll.change(&source.stream, other, Interest::Read)?;
                }
            }
            return Ok(());
        }
        let count = match end.stream.read(&mut self.buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(target) = self.ends[other].as_mut() else { return Ok(()) };
        let sent = match target.stream.write(&self.buffer[..count]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            result => result?,
        };
        if sent < count {
            target.pending.extend_from_slice(&self.buffer[sent..count]);
            self.epoll.change(&target.stream, other, Interest::Write)?;
            if let Some(source) = &self.ends[slot] {
                self.epoll.change(&source.stream, slot, Interest::None)?;
            }
        }
        Ok(())
    }

    fn close(&mut self, slot: usize) {
        if let Some(end) = self.ends[slot].take() {
            self.free.push(slot);
            self.close(end.other);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

    #[test]
    fn more_than_the_socket_buffers_hold_arrives_whole() {
        const BYTES: usize = 32 << 20;
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = upstream.local_addr().unwrap();
        let reserved = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let listen: SocketAddr = reserved.local_addr().unwrap();
        drop(reserved);
        std::thread::spawn(move || super::run(listen, target));
        let mut client = loop {
            if let Ok(client) = TcpStream::connect(listen) {
                break client;
            }
            std::thread::yield_now();
        };
        let (mut server, _) = upstream.accept().unwrap();
        let sender = std::thread::spawn(move || {
            // Closing with the client's byte unread would reset the connection.
            server.read_exact(&mut [0]).unwrap();
            server.write_all(&vec![7; BYTES]).unwrap();
            server.shutdown(Shutdown::Write).unwrap();
        });
        client.write_all(b"x").unwrap();
        let mut received = vec![0; BYTES];
        client.read_exact(&mut received).unwrap();
        assert!(received.iter().all(|byte| *byte == 7));
        sender.join().unwrap();
    }
}
