//! A socket that fails when its peer does not read: otherwise a slow reader could keep a page in memory for any length of
//! time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long a peer may accept none of the bytes written to it.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// A socket that fails when its peer reads nothing for `STALL_TIMEOUT`.
#[derive(Debug)]
pub(super) struct StallTimeout<IO> {
    io: IO,
    /// Runs while a write is pending.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<IO> StallTimeout<IO> {
    pub(super) fn new(io: IO) -> Self {
        Self { io, stalled: None }
    }

    /// Passes on the result of a write, or fails when the timeout has passed.
    fn judge<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(STALL_TIMEOUT)));
        stalled.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for StallTimeout<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for StallTimeout<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.judge(cx, written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(cx);
        this.judge(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.io).poll_shutdown(cx);
        this.judge(cx, shut)
    }
}
