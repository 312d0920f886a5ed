//! The transports a connection can have.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use evenkeel_tls::{Session, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A byte stream. An enum rather than a type parameter: the phases are compiled once.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    TlsUnix(Box<TlsStream<UnixStream>>),
}

impl Stream {
    pub(crate) fn session(&self) -> Option<&Session> {
        match self {
            Self::Tls(stream) => Some(stream.session()),
            Self::TlsUnix(stream) => Some(stream.session()),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_) | Self::TlsUnix(_))
    }

    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok(),
            Self::Tls(stream) => stream.get_ref().local_addr().ok(),
            Self::Unix(_) | Self::TlsUnix(_) => None,
        }
    }
}

macro_rules! each {
    ($self:expr, $stream:ident => $body:expr) => {
        match $self.get_mut() {
            Stream::Tcp($stream) => $body,
            Stream::Tls(boxed) => {
                let $stream = &mut **boxed;
                $body
            }
            Stream::Unix($stream) => $body,
            Stream::TlsUnix(boxed) => {
                let $stream = &mut **boxed;
                $body
            }
        }
    };
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
