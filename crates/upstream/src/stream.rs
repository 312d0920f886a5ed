//! A connection's byte stream: plaintext, TLS or a Unix socket, on either side of the proxy.

use std::any::Any;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_tls::{Session, TlsStream};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connected stream.
pub enum Stream {
    /// Plaintext TCP.
    Tcp(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
    /// Unix domain socket.
    Unix(UnixStream),
    /// Another stream with a layer that inspects its bytes.
    Layered(Box<dyn Layer>),
}

/// A layer on top of a stream that may inspect the bytes.
pub trait Layer: AsyncRead + AsyncWrite + Unpin + Any {
    /// The underlying stream.
    fn beneath(&self) -> &Stream;

    /// The socket, if the layer does not inspect the bytes and they may bypass it.
    fn bypass(&self) -> Option<&TcpStream>;
}

/// A stream usable on any thread of a multi-threaded runtime.
pub trait Sendable: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Sendable for S {}

/// A stream detached from its reactor, to be moved to another thread.
pub enum Portable {
    /// Plaintext TCP.
    Tcp(std::net::TcpStream),
    /// TLS over TCP, with all of its state.
    Tls(Box<TlsStream<std::net::TcpStream>>),
}

impl Portable {
    /// Registers with this thread's reactor.
    pub fn into_stream(self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(stream) => Stream::Tcp(TcpStream::from_std(stream)?),
            Self::Tls(stream) => Stream::Tls(Box::new(stream.try_map_io(TcpStream::from_std)?)),
        })
    }
}

impl Stream {
    /// Detaches the stream from this thread's reactor. Fails for Unix sockets, which no client uses, and for layered
    /// streams, which belong to this thread.
    pub fn into_portable(self) -> io::Result<Portable> {
        Ok(match self {
            Self::Tcp(stream) => Portable::Tcp(stream.into_std()?),
            Self::Tls(stream) => Portable::Tls(Box::new(stream.try_map_io(TcpStream::into_std)?)),
            Self::Unix(_) | Self::Layered(_) => return Err(io::ErrorKind::Unsupported.into()),
        })
    }

    /// Converts the stream for use on a multi-threaded runtime, whose reactor it is registered with. Fails for streams
    /// that belong to one thread.
    pub fn into_sendable(self) -> io::Result<Box<dyn Sendable>> {
        match self {
            Self::Tcp(stream) => Ok(Box::new(stream)),
            Self::Tls(stream) => Ok(stream),
            Self::Unix(stream) => Ok(Box::new(stream)),
            Self::Layered(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The TLS session negotiated in the handshake; `None` on plaintext.
    pub fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Tls(stream) => Some(stream.session()),
            Self::Tcp(_) | Self::Unix(_) => None,
            Self::Layered(layer) => layer.beneath().session(),
        }
    }

    /// Bytes of ciphertext that the socket accepted; 0 without TLS.
    pub fn ciphertext_sent(&self) -> u64 {
        match self {
            Self::Tls(stream) => stream.ciphertext_sent(),
            Self::Tcp(_) | Self::Unix(_) => 0,
            Self::Layered(layer) => layer.beneath().ciphertext_sent(),
        }
    }

    /// The underlying TCP connection; `None` for Unix sockets.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.get_ref()),
            Self::Unix(_) => None,
            Self::Layered(layer) => layer.beneath().tcp(),
        }
    }

    /// The underlying TCP connection if there is no TLS. A layer may inspect its bytes.
    pub fn plaintext(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(_) | Self::Unix(_) => None,
            Self::Layered(layer) => layer.beneath().plaintext(),
        }
    }

    /// The layer, if it is of this type.
    pub fn layer<L: Layer>(&self) -> Option<&L> {
        match self {
            Self::Layered(layer) => (&**layer as &dyn Any).downcast_ref(),
            Self::Tcp(_) | Self::Tls(_) | Self::Unix(_) => None,
        }
    }

    /// The local address; `None` for Unix sockets.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.tcp()?.local_addr().ok()
    }

    /// Makes closing the stream send a reset (RST) instead of an orderly end.
    pub fn reset_on_close(&self) {
        let socket = match self {
            Self::Tcp(stream) => SockRef::from(stream),
            Self::Tls(stream) => SockRef::from(stream.get_ref()),
            // Unix sockets have no such option.
            Self::Unix(_) => return,
            Self::Layered(layer) => return layer.beneath().reset_on_close(),
        };
        // Fails only on a socket that is already closed.
        let _ = socket.set_linger(Some(Duration::ZERO));
    }

    /// Ready when a read may find something: bytes, the end, or an error.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx).map(drop),
            Self::Unix(stream) => stream.poll_read_ready(cx).map(drop),
            // Decrypted or inspected bytes may be buffered here.
            Self::Tls(_) | Self::Layered(_) => Poll::Ready(()),
        }
    }

    /// Whether an idle stream is still usable: nothing to read and not closed. Costs no system call unless the socket
    /// reported an event since the last read.
    pub fn is_idle_and_open(&mut self) -> bool {
        let mut byte = [0];
        let read = match self {
            Self::Tcp(stream) => stream.try_read(&mut byte),
            Self::Unix(stream) => stream.try_read(&mut byte),
            Self::Tls(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                return Pin::new(&mut **stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending();
            }
            Self::Layered(layer) => {
                let mut context = Context::from_waker(Waker::noop());
                return Pin::new(&mut **layer).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending();
            }
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            Self::Tcp(_) => "Tcp",
            Self::Tls(_) => "Tls",
            Self::Unix(_) => "Unix",
            Self::Layered(_) => "Layered",
        };
        write!(f, "Stream::{kind}({:?})", self.local_addr())
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Layered(layer) => Pin::new(&mut **layer).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Layered(layer) => Pin::new(&mut **layer).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Layered(layer) => Pin::new(&mut **layer).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Layered(layer) => Pin::new(&mut **layer).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Layered(layer) => Pin::new(&mut **layer).poll_shutdown(cx),
        }
    }
}
