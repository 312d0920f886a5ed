//! Relays bytes between two streams, in both directions at once. Each direction ends independently: a half-close is passed on, and the
//! other direction continues. A reset is passed on, too.
//!
//! A direction begins by copying. Once it has proven bulky, its bytes stay in the kernel if both ends are plain TCP; otherwise more bytes
//! are copied at a time.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_upstream::conn::buffer::{BLOCK_BYTES, BULK_BYTES};
use evenkeel_upstream::conn::deadline::{after, earlier};
use evenkeel_upstream::conn::splice::Pipe;
use evenkeel_upstream::conn::{Buffer, Deadline};
use evenkeel_upstream::stream::Stream;
use evenkeel_upstream::turn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::handover::Half;
use crate::worker::Registration;

/// Consecutive reads that have to fill their whole block before a direction counts as bulky.
const BULKY_AFTER_READS: u8 = 4;
/// A bulky direction that reads fewer bytes than this at once is copied again.
const BULKY_BYTES: usize = BLOCK_BYTES / 2;
/// Bytes that one direction may move in one turn of the event loop, before other connections get their turn.
const TURN_BYTES: u64 = 2 * 1024 * 1024;

/// How a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Both sides closed in order.
    Closed,
    /// One side failed or reset; a reset was passed on.
    Failed,
    /// The upstream reset its connection; that was passed on.
    UpstreamReset,
    /// No byte moved for the idle timeout.
    Idle,
    /// The connection has reached its maximum duration.
    Expired,
    /// The connection is to be handed over: see [`Relay::part`].
    Leaves,
    /// The connection has to end at once.
    Cut,
}

/// One end of a relay.
pub(crate) trait End: AsyncRead + AsyncWrite + Unpin {
    /// The socket, if bytes from or to it can stay in the kernel.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    /// Makes dropping it a reset. The default is for ends for which it always is one.
    fn reset_on_close(&self) {}
}

impl End for Stream {
    fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(socket) => Some(socket),
            Self::Tls(_) | Self::Unix(_) => None,
            Self::Layered(layer) => layer.bypass(),
        }
    }

    fn reset_on_close(&self) {
        Self::reset_on_close(self);
    }
}

/// The bytes that a connection has relayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Relayed {
    /// From the client.
    pub(crate) received: u64,
    /// To the client.
    pub(crate) sent: u64,
}

/// Two streams, and what was read from each but not yet written to the other. Each direction reads again only when it has written
/// everything, so that a slow reader slows its writer down.
pub(crate) struct Relay<'s, U = Stream> {
    down: &'s mut Stream,
    up: &'s mut U,
    to_up: Direction,
    to_down: Direction,
}

struct Direction {
    buffer: Buffer,
    bytes: u64,
    state: State,
    /// Number of consecutive full reads, up to [`BULKY_AFTER_READS`].
    full_reads: u8,
    /// Holds spliced bytes; kept only while bytes flow.
    pipe: Option<Pipe>,
    /// Whether the connection is about to be handed over: nothing is spliced any more.
    leaves: bool,
}

/// The state of a direction whose relay ended before it did: the bytes read but not written, and how far it has got.
pub(crate) struct Remainder {
    pub(crate) buffer: Buffer,
    pub(crate) half: Half,
}

/// Which side of a direction failed.
enum Failure {
    Source(io::Error),
    Sink(io::Error),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The source has ended; buffered bytes remain to be written.
    Draining,
    Closed,
}

impl<'s, U: End> Relay<'s, U> {
    /// `from_down` and `from_up`: bytes read already.
    pub(crate) fn new(down: &'s mut Stream, from_down: Buffer, up: &'s mut U, from_up: Buffer) -> Self {
        Self { down, up, to_up: Direction::new(from_down), to_down: Direction::new(from_up) }
    }

    /// Continues where another relay ended: `to_up` and `to_down` are its [`Relay::part`].
    pub(crate) fn resume(down: &'s mut Stream, to_up: Remainder, up: &'s mut U, to_down: Remainder) -> Self {
        Self { down, up, to_up: Direction::resume(to_up), to_down: Direction::resume(to_down) }
    }

    /// Returns the remaining work towards the upstream and towards the downstream.
    pub(crate) fn part(self) -> (Remainder, Remainder) {
        (self.to_up.part(), self.to_down.part())
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
        idle: Option<Duration>,
        until: Option<Instant>,
        registration: &Registration,
        progress: &Cell<Relayed>,
    ) -> Ending {
        let (mut deadline, mut idle_until) = (Deadline::default(), after(turn::now(), idle));
        registration.ends_itself();
        poll_fn(|cx| {
            let before = (self.to_up.bytes, self.to_down.bytes);
            let sent = self.to_up.poll(self.down, self.up, cx);
            let received = self.to_down.poll(self.up, self.down, cx);
            progress.set(Relayed { received: self.to_up.bytes, sent: self.to_down.bytes });
            if let Poll::Ready(Err(failure)) = &sent {
                return Poll::Ready(self.fail(failure, true));
            }
            if let Poll::Ready(Err(failure)) = &received {
                return Poll::Ready(self.fail(failure, false));
            }
            if sent.is_ready() && received.is_ready() {
                return Poll::Ready(Ending::Closed);
            }
            if idle.is_some() && before != (self.to_up.bytes, self.to_down.bytes) {
                idle_until = after(turn::now(), idle);
            }
            registration.watch(cx.waker());
            if registration.is_cut() {
                return Poll::Ready(Ending::Cut);
            }
            if registration.is_awaited_by_successor() {
                self.to_up.leaves = true;
                self.to_down.leaves = true;
                // Bytes in a pipe cannot be handed over: they are written first.
                if !self.to_up.holds_pipe() && !self.to_down.holds_pipe() {
                    return Poll::Ready(Ending::Leaves);
                }
            } else {
                self.to_up.leaves = false;
                self.to_down.leaves = false;
            }
            deadline.poll(earlier(idle_until, until), cx).map(|()| {
                let expired = until.is_some_and(|until| until <= turn::now());
                if expired { Ending::Expired } else { Ending::Idle }
            })
        })
        .await
    }

    /// Ends the relay after one side has failed. A reset by one peer is passed on to the other.
    fn fail(&mut self, failure: &Failure, upwards: bool) -> Ending {
        let (error, to_sink) = match failure {
            Failure::Source(error) => (error, true),
            Failure::Sink(error) => (error, false),
        };
        match is_reset(error) {
            true if to_sink == upwards => {
                self.up.reset_on_close();
                Ending::Failed
            }
            true => {
                self.down.reset_on_close();
                Ending::UpstreamReset
            }
            false => Ending::Failed,
        }
    }
}

fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

impl Direction {
    fn new(buffer: Buffer) -> Self {
        Self { buffer, bytes: 0, state: State::Open, full_reads: 0, pipe: None, leaves: false }
    }

    fn resume(Remainder { buffer, half }: Remainder) -> Self {
        let state = match half {
            Half { closed: true, .. } => State::Closed,
            Half { ended: true, .. } => State::Draining,
            Half { .. } => State::Open,
        };
        Self { bytes: half.passed, state, ..Self::new(buffer) }
    }

    fn part(self) -> Remainder {
        let half = Half {
            passed: self.bytes,
            held: self.buffer.len(),
            ended: self.state != State::Open,
            closed: self.state == State::Closed,
        };
        Remainder { buffer: self.buffer, half }
    }

    fn holds_pipe(&self) -> bool {
        self.pipe.as_ref().is_some_and(|pipe| pipe.held() > 0)
    }

    fn poll(&mut self, from: &mut impl End, to: &mut impl End, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let turn = self.bytes + TURN_BYTES;
        loop {
            ready!(self.poll_drain(to, cx)).map_err(Failure::Sink)?;
            match self.state {
                State::Open if self.bytes >= turn => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                State::Open => {
                    if ready!(self.poll_fill(from, to, cx))? == 0 {
                        self.state = State::Draining;
                    }
                }
                State::Draining => {
                    // A peer that is already gone needs no shutdown.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    self.state = State::Closed;
                }
                State::Closed => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Writes all bytes held.
    fn poll_drain(&mut self, to: &mut impl End, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.buffer.is_empty() {
            match ready!(Pin::new(&mut *to).poll_write(cx, self.buffer.bytes()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => {
                    self.bytes += count as u64;
                    self.buffer.consume(count);
                }
            }
        }
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.held() > 0)
            && let Some(to) = to.socket()
        {
            self.bytes += ready!(pipe.poll_drain(to, cx))? as u64;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once; 0 at the end of the source.
    fn poll_fill(
        &mut self,
        from: &mut impl End,
        to: &mut impl End,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, Failure>> {
        if self.full_reads == BULKY_AFTER_READS
            && !self.leaves
            && let (Some(from), Some(_)) = (from.socket(), to.socket())
            && let Some(pipe) = self.take_pipe()
        {
            let filled = pipe.poll_fill(from, cx);
            match &filled {
                // Nothing flows, so another connection may use the pipe.
                Poll::Pending => self.pipe = None,
                Poll::Ready(Ok(count)) if *count < BULKY_BYTES => self.full_reads = 0,
                Poll::Ready(_) => {}
            }
            return filled.map_err(Failure::Source);
        }
        self.pipe = None;
        // Bytes that TLS holds back are sent before this waits for more.
        if let Poll::Ready(Err(error)) = Pin::new(&mut *to).poll_flush(cx) {
            return Poll::Ready(Err(Failure::Sink(error)));
        }
        let filled = match self.full_reads {
            BULKY_AFTER_READS => self.buffer.poll_fill_bulk(from, cx),
            _ => self.buffer.poll_fill(from, BLOCK_BYTES, cx),
        };
        let count = ready!(filled).map_err(Failure::Source)?;
        match count {
            BLOCK_BYTES..=BULK_BYTES => self.full_reads = (self.full_reads + 1).min(BULKY_AFTER_READS),
            _ => self.full_reads = 0,
        }
        Poll::Ready(Ok(count))
    }

    /// The direction's pipe, or a free one of the worker's; without one, bytes are copied.
    fn take_pipe(&mut self) -> Option<&mut Pipe> {
        if self.pipe.is_none() {
            self.pipe = Pipe::take();
        }
        self.pipe.as_mut()
    }
}
