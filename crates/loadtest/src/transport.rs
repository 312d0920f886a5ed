//! Sockets that never wait: TCP, TLS over it, and UDP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::{Domain, Socket, Type};

/// How TLS is used.
#[derive(Debug, Clone)]
pub struct TlsTarget {
    /// Certificates, keys and protocols.
    pub config: Arc<ClientConfig>,
    /// The name that the server has to prove.
    pub name: ServerName<'static>,
}

/// A connection to the server.
#[derive(Debug)]
pub enum Transport {
    /// TCP.
    Tcp(TcpStream),
    /// TLS over TCP.
    Tls(Box<Tls>),
    /// Datagrams.
    Udp(UdpSocket),
}

/// TLS over TCP.
#[derive(Debug)]
pub struct Tls {
    stream: TcpStream,
    session: ClientConnection,
}

impl Transport {
    /// Begins to connect over TCP. The socket becomes writable when that has ended.
    ///
    /// # Errors
    /// It failed at once.
    pub fn connect(address: SocketAddr, tls: Option<&TlsTarget>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() != Some(nix::errno::Errno::EINPROGRESS as i32) => return Err(error),
            _ => {}
        }
        let stream = TcpStream::from(socket);
        let Some(TlsTarget { config, name }) = tls else { return Ok(Self::Tcp(stream)) };
        let mut session = ClientConnection::new(config.clone(), name.clone()).map_err(io::Error::other)?;
        // What is sent before the handshake has ended waits here; requests are bounded by their payload.
        session.set_buffer_limit(None);
        Ok(Self::Tls(Box::new(Tls { stream, session })))
    }

    /// A socket for datagrams to `address`.
    ///
    /// # Errors
    /// The system refused it.
    pub fn datagrams(address: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self::Udp(socket))
    }

    /// Whether connecting has succeeded, now that the socket is writable.
    ///
    /// # Errors
    /// It failed.
    pub fn connected(&self) -> io::Result<()> {
        let error = match self {
            Self::Tcp(stream) => stream.take_error()?,
            Self::Tls(tls) => tls.stream.take_error()?,
            Self::Udp(_) => None,
        };
        error.map_or(Ok(()), Err)
    }

    /// Whether a handshake has to end before anything can be sent.
    pub fn is_handshaking(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.session.is_handshaking())
    }

    /// Reads what has come. `Ok(0)` is the end; [`ErrorKind::WouldBlock`]: nothing has come.
    ///
    /// # Errors
    /// As for any socket.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
            Self::Udp(socket) => socket.recv(buffer),
        }
    }

    /// Whether nothing is left after a read that did not fill its buffer.
    pub fn is_drained_by_a_short_read(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Writes as much as there is room for, and returns how much that was.
    ///
    /// # Errors
    /// As for any socket.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Tls(tls) => {
                let taken = tls.session.writer().write(bytes)?;
                tls.flush()?;
                Ok(taken)
            }
            Self::Udp(socket) => socket.send(bytes),
        }
    }

    /// Sends what TLS has ready; whether all is sent.
    ///
    /// # Errors
    /// As for any socket.
    pub fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Tls(tls) => tls.flush(),
            Self::Tcp(_) | Self::Udp(_) => Ok(true),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Tls(tls) => tls.stream.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
        }
    }
}

impl Tls {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                count => return count,
            }
            let count = self.session.read_tls(&mut self.stream)?;
            let processed = self.session.process_new_packets();
            // Also after an error: that is how the peer gets the alert.
            self.flush()?;
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            if count == 0 {
                return match self.session.reader().read(buffer) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Err(ErrorKind::UnexpectedEof.into()),
                    count => count,
                };
            }
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                written => written?,
            };
        }
        Ok(true)
    }
}
