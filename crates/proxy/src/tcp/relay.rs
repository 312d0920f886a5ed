//! Bytes between two streams, both ways at once. Each direction ends on its own: a half-close travels, and the other
//! direction goes on.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::time::Instant;

use crate::conn::buffer::BLOCK_BYTES;
use crate::conn::deadline::{after, earlier};
use crate::conn::{Buffer, Deadline};
use crate::stream::Stream;

/// How a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Both sides closed in order.
    Closed,
    /// One side failed or reset.
    Failed,
    /// No byte for the idle time.
    Idle,
    /// The connection's time was up.
    Expired,
}

/// Two streams and what was read from each but not yet written to the other. At most one block per direction is held: a
/// slow reader holds its writer back.
pub(crate) struct Relay<'s> {
    down: &'s mut Stream,
    up: &'s mut Stream,
    to_up: Direction,
    to_down: Direction,
}

struct Direction {
    buffer: Buffer,
    bytes: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The source ended; what is buffered is still to be written.
    Draining,
    Closed,
}

impl<'s> Relay<'s> {
    /// `from_down` and `from_up` were read already.
    pub(crate) fn new(down: &'s mut Stream, from_down: Buffer, up: &'s mut Stream, from_up: Buffer) -> Self {
        Self { down, up, to_up: Direction::new(from_down), to_down: Direction::new(from_up) }
    }

    /// Bytes written upstream.
    pub(crate) fn upstream_bytes(&self) -> u64 {
        self.to_up.bytes
    }

    /// Bytes written downstream.
    pub(crate) fn downstream_bytes(&self) -> u64 {
        self.to_down.bytes
    }

    /// Relays until both directions have ended.
    pub(crate) async fn run(
        &mut self,
        deadline: &mut Deadline,
        idle: Option<Duration>,
        until: Option<Instant>,
    ) -> Ending {
        let mut idle_until = after(Instant::now(), idle);
        poll_fn(|cx| {
            let before = (self.to_up.bytes, self.to_down.bytes);
            let sent = self.to_up.poll(self.down, self.up, cx);
            let received = self.to_down.poll(self.up, self.down, cx);
            if matches!(sent, Poll::Ready(Err(_))) || matches!(received, Poll::Ready(Err(_))) {
                return Poll::Ready(Ending::Failed);
            }
            if sent.is_ready() && received.is_ready() {
                return Poll::Ready(Ending::Closed);
            }
            if idle.is_some() && before != (self.to_up.bytes, self.to_down.bytes) {
                idle_until = after(Instant::now(), idle);
            }
            deadline.poll(earlier(idle_until, until), cx).map(|()| {
                let expired = until.is_some_and(|until| until <= Instant::now());
                if expired { Ending::Expired } else { Ending::Idle }
            })
        })
        .await
    }
}

impl Direction {
    fn new(buffer: Buffer) -> Self {
        Self { buffer, bytes: 0, state: State::Open }
    }

    fn poll(&mut self, from: &mut Stream, to: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while !self.buffer.is_empty() {
                match Pin::new(&mut *to).poll_write(cx, self.buffer.bytes()) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(count)) => {
                        self.bytes += count as u64;
                        self.buffer.consume(count);
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            match self.state {
                State::Open => {}
                State::Draining => match Pin::new(&mut *to).poll_shutdown(cx) {
                    // A peer that is gone already needs no end.
                    Poll::Ready(_) => self.state = State::Closed,
                    Poll::Pending => return Poll::Pending,
                },
                State::Closed => return Poll::Ready(Ok(())),
            }
            if self.state == State::Open {
                // What TLS keeps back is sent before waiting for more.
                if let Poll::Ready(Err(error)) = Pin::new(&mut *to).poll_flush(cx) {
                    return Poll::Ready(Err(error));
                }
                match self.buffer.poll_fill(from, BLOCK_BYTES, cx) {
                    Poll::Ready(Ok(0)) => self.state = State::Draining,
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
        }
    }
}
