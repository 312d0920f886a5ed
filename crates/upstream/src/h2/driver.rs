//! Drives an HTTP/2 connection: socket, codec, timers.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_http::Underscores;
use evenkeel_http::h2::{Connection as Codec, ConnectionError, Options, Reason, Violation};
use evenkeel_runtime_config::http2::{Http2Keepalive, Http2Options};
use evenkeel_runtime_config::overload::PrematureResets;
use evenkeel_stats::Writer;
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::reset::{Reset, ResetBy};
use super::shared::{Core, KEEPALIVE_PING, Shared};
use super::stats::{self, Counter, Gauge, Stats};
use super::windows::WINDOW;
use crate::conn::deadline::{after, earlier};
use crate::conn::held;
use crate::conn::{Buffer, Deadline};
use crate::random::Random;
use crate::stream::Stream as Socket;
use crate::turn;

/// Reads per turn, after which other tasks run.
const READS_PER_TURN: usize = 4;
/// Limit for bytes read but not yet decoded: one frame and what follows it.
const INPUT_BYTES: usize = 64 * 1024;
/// How long a closing connection may take to send its remaining output.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A connection that had no streams for this long frees the memory it kept for further ones.
const KEEPS_MEMORY: Duration = Duration::from_secs(1);
/// Interval of the check for orphaned streams whose peers do not read.
const ORPHANS_EVERY: Duration = Duration::from_secs(1);

/// Limits of a connection beyond its [`Http2Options`].
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum size of a head, in bytes.
    pub max_head_bytes: usize,
    /// Maximum number of header lines in a head.
    pub max_headers: usize,
    /// How header names with underscores are handled.
    pub underscores: Underscores,
    /// The connection preface and each head must be complete within this time of their first byte; `None`: no limit.
    pub head_timeout: Option<Duration>,
    /// A connection without streams is closed after this long; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Time between the two GOAWAYs of a draining connection.
    pub drain_timeout: Duration,
    /// How long a peer may leave the rest of a response unread after the stream's handle was dropped; `None`: no limit.
    pub flush_timeout: Option<Duration>,
    /// Limit on streams that a client resets prematurely.
    pub premature_resets: PrematureResets,
}

/// One connection's socket and timers.
pub(super) struct Driver {
    pub(super) shared: Rc<Shared>,
    socket: Socket,
    input: Buffer,
    phase: Phase,
    /// The peer's violation that ended the connection, if any.
    pub(super) violation: Option<Violation>,
    /// The connection ended because a request's head did not arrive in time.
    pub(super) head_was_late: bool,
    /// The stream or head that has begun to arrive, as identified by [`Codec::begun`], and when.
    begun: Option<(u32, Instant)>,
    deadline: Deadline,
    limits: Limits,
    keepalive: Option<Keepalive>,
    /// When the second GOAWAY is due.
    drained_at: Option<Instant>,
    next_look_at_orphans: Option<Instant>,
    /// The `idle_since` for which it has already freed its memory.
    shrunk: Option<Instant>,
    started: Instant,
    /// This connection's contribution to the gauge of unsent bytes.
    reported_unsent: i64,
    /// This connection's bytes counted as held: unsent ones, and received ones that streams have not read.
    reported_held: usize,
    stats: Rc<Writer<Stats>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing is read any more; pending output is sent until then.
    Closing(Instant),
    Closed,
}

/// Keepalive PINGs.
struct Keepalive {
    settings: Http2Keepalive,
    random: Random,
    next_ping: Option<Instant>,
    /// If nothing is received by then, the peer counts as gone.
    expected: Option<Instant>,
}

impl Driver {
    pub(super) fn new(
        server: bool,
        (socket, input): (Socket, Buffer),
        options: &Http2Options,
        limits: Limits,
        stats: Rc<Writer<Stats>>,
    ) -> Self {
        let codec = if server {
            Codec::server(codec_options(options, &limits))
        } else {
            Codec::client(codec_options(options, &limits))
        };
        let core = Core::new(codec, server, options, Rc::clone(&stats));
        Self {
            shared: Rc::new(Shared(RefCell::new(core))),
            socket,
            input,
            phase: Phase::Open,
            violation: None,
            head_was_late: false,
            begun: None,
            deadline: Deadline::default(),
            limits,
            keepalive: options.keepalive.clone().map(Keepalive::new),
            drained_at: None,
            next_look_at_orphans: None,
            shrunk: None,
            started: turn::now(),
            reported_unsent: 0,
            reported_held: 0,
            stats,
        }
    }

    /// Whether the connection ended because its peer violated the protocol.
    pub(super) fn was_broken(&self) -> bool {
        matches!(
            self.violation,
            Some(Violation::Protocol | Violation::Messaging | Violation::Compression | Violation::HeaderOverflow)
        )
    }

    /// Runs one turn: reads, lets waiting streams send, writes, checks timers. Ready when the connection is closed;
    /// until then the task is woken when there is more to do.
    pub(super) fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let shared = Rc::clone(&self.shared);
        let mut core = shared.0.borrow_mut();
        core.begin_turn(cx.waker());
        let over = self.poll_connection(&mut core, cx);
        core.end_turn();
        self.report_unsent(&core);
        over
    }

    fn poll_connection(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Poll<()> {
        if self.phase == Phase::Open
            && let Err(end) = self.poll_read(core, cx)
        {
            self.end(core, end);
        }
        core.pump();
        if self.phase == Phase::Open {
            if std::mem::take(&mut core.streams.pinged)
                && let Some(keepalive) = &mut self.keepalive
            {
                keepalive.pinged(turn::now());
            }
            self.poll_timers(core, cx);
            if core.codec.is_finished() {
                self.begin_closing(core);
            }
        }
        let congested = core.codec.is_congested();
        if let Poll::Ready(Err(_)) = self.poll_write(core, cx) {
            self.end(core, End::Lost);
            self.phase = Phase::Closed;
        }
        // Reading was skipped because the output was full, and nothing else would resume it.
        if congested && !core.codec.is_congested() {
            cx.waker().wake_by_ref();
        }
        self.poll_closing(core, cx)
    }

    /// Reads what is available and feeds it to the codec.
    fn poll_read(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Result<(), End> {
        // Bytes read before the first turn.
        self.decode(core)?;
        for _ in 0..READS_PER_TURN {
            // A peer that does not read its input is not read from; reading resumes when some output was written.
            if core.codec.is_congested() {
                return Ok(());
            }
            match self.input.poll_fill(&mut self.socket, INPUT_BYTES, cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => {
                    core.codec.end_of_input();
                    return Err(End::Lost);
                }
                Poll::Ready(Ok(_)) => self.decode(core)?,
                Poll::Ready(Err(_)) => return Err(End::Lost),
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn decode(&mut self, core: &mut Core) -> Result<(), End> {
        if self.input.is_empty() {
            return Ok(());
        }
        let now = turn::now();
        core.codec.tick(u32::try_from(now.duration_since(self.started).as_secs()).unwrap_or(u32::MAX));
        if let Some(keepalive) = &mut self.keepalive {
            keepalive.heard(now);
        }
        while !self.input.is_empty() {
            let taken = core.receive(self.input.bytes()).map_err(End::Broken)?;
            if taken == 0 {
                break;
            }
            self.input.consume(taken);
        }
        Ok(())
    }

    /// Writes pending output, including TLS's own records.
    fn poll_write(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !core.codec.output().is_empty() {
            let sent = ready!(Pin::new(&mut self.socket).poll_write(cx, core.codec.output()))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            core.codec.written(sent);
            if core.codec.output().is_empty() {
                // Streams that waited for room in the output buffer.
                core.pump();
            }
        }
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    /// The deadline for the preface or head that has begun to arrive.
    fn whole_until(&mut self, core: &Core) -> Option<Instant> {
        let limit = self.limits.head_timeout?;
        let begun = core.codec.begun(self.input.bytes());
        if begun != self.begun.map(|(what, _)| what) {
            self.begun = begun.map(|what| (what, turn::now()));
        }
        self.begun.and_then(|(_, since)| after(since, Some(limit)))
    }

    fn poll_timers(&mut self, core: &mut Core, cx: &mut Context<'_>) {
        let whole_until = self.whole_until(core);
        loop {
            let idle_since = core.streams.idle_since;
            let idle_until = idle_since.and_then(|since| after(since, self.limits.idle_timeout));
            let shrink_at =
                idle_since.filter(|_| self.shrunk != idle_since).and_then(|at| after(at, Some(KEEPS_MEMORY)));
            if core.streams.orphans > 0 && self.next_look_at_orphans.is_none() && self.limits.flush_timeout.is_some() {
                self.next_look_at_orphans = after(turn::now(), Some(ORPHANS_EVERY));
            }
            let keepalive = self.keepalive.as_mut().and_then(Keepalive::next);
            let next = earlier(earlier(idle_until, keepalive), earlier(self.drained_at, self.next_look_at_orphans));
            let next = earlier(next, earlier(shrink_at, whole_until));
            if self.deadline.poll(next, cx).is_pending() {
                return;
            }
            let now = turn::now();
            let past = |at: Option<Instant>| at.is_some_and(|at| at <= now);
            if past(idle_until) {
                core.lend();
                core.codec.goaway(Reason::NO_ERROR, b"");
                self.stats.inc(Counter::goaway_sent);
                return self.end(core, End::Idle);
            }
            if past(whole_until) {
                core.lend();
                self.head_was_late = core.codec.end_late(self.input.bytes());
                self.stats.inc(Counter::goaway_sent);
                return self.end(core, End::Late);
            }
            if past(shrink_at) {
                self.shrunk = idle_since;
                core.streams.shrink();
                core.codec.shrink();
            }
            if past(self.drained_at) {
                self.drained_at = None;
                core.lend();
                core.codec.finish_shutdown();
            }
            if past(self.next_look_at_orphans) {
                self.next_look_at_orphans = None;
                if let Some(since_before) = self.limits.flush_timeout.and_then(|limit| now.checked_sub(limit)) {
                    core.cut_stuck_orphans(since_before);
                }
            }
            if let Some(keepalive) = &mut self.keepalive {
                match keepalive.due(now) {
                    Due::Nothing => {}
                    Due::Ping => {
                        core.lend();
                        core.codec.ping(KEEPALIVE_PING);
                    }
                    Due::Gone => {
                        self.stats.inc(Counter::keepalive_timeout);
                        return self.end(core, End::Lost);
                    }
                }
            }
        }
    }

    /// Asks the peer to open no more streams; existing ones continue.
    pub(super) fn drain(&mut self) {
        let mut core = self.shared.0.borrow_mut();
        if self.phase == Phase::Open && self.drained_at.is_none() {
            core.lend();
            core.codec.shutdown();
            self.stats.inc(Counter::goaway_sent);
            self.drained_at = after(turn::now(), Some(self.limits.drain_timeout));
            core.touch();
        }
    }

    fn end(&mut self, core: &mut Core, end: End) {
        let reason = match &end {
            End::Lost | End::Idle | End::Late => Reason::NO_ERROR,
            End::Broken(error) => {
                stats::count_violation(&self.stats, error);
                self.violation = Some(error.violation);
                tracing::debug!(socket = ?self.socket, %error, "HTTP/2 connection ended");
                error.reason
            }
        };
        core.finish(Reset { reason, by: ResetBy::Connection, unprocessed: false });
        self.input = Buffer::default();
        if self.phase == Phase::Open {
            self.phase = match end {
                End::Lost => Phase::Closed,
                // A flooding peer is not given the time to read.
                End::Broken(ConnectionError {
                    violation: Violation::OutboundFlood | Violation::OutboundControlFlood,
                    ..
                }) => Phase::Closed,
                End::Idle | End::Late | End::Broken(_) => closing(),
            };
        }
    }

    fn begin_closing(&mut self, core: &mut Core) {
        core.finish(Reset { reason: Reason::NO_ERROR, by: ResetBy::Connection, unprocessed: true });
        self.phase = closing();
    }

    fn poll_closing(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Poll<()> {
        match self.phase {
            Phase::Open => Poll::Pending,
            Phase::Closed => Poll::Ready(()),
            Phase::Closing(until) => {
                let said = core.codec.output().is_empty() && Pin::new(&mut self.socket).poll_shutdown(cx).is_ready();
                if said || self.deadline.poll(Some(until), cx).is_ready() {
                    self.phase = Phase::Closed;
                    return Poll::Ready(());
                }
                Poll::Pending
            }
        }
    }

    fn report_unsent(&mut self, core: &Core) {
        let unsent = core.codec.output().len() + core.streams.unsent;
        let held = unsent + core.streams.windows.held();
        held::changed(std::mem::replace(&mut self.reported_held, held), held);
        let unsent = unsent as i64;
        if unsent != self.reported_unsent {
            self.stats.shift(Gauge::pending_send_bytes, unsent - self.reported_unsent);
            self.reported_unsent = unsent;
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Dropping the driver drops the connection.
        self.shared.0.borrow_mut().finish(Reset {
            reason: Reason::NO_ERROR,
            by: ResetBy::Connection,
            unprocessed: false,
        });
        self.stats.shift(Gauge::pending_send_bytes, -self.reported_unsent);
        held::changed(self.reported_held, 0);
    }
}

/// Why a connection ends.
enum End {
    /// The peer closed it, it failed, or the peer stopped responding.
    Lost,
    /// The idle timeout passed.
    Idle,
    /// A preface or head was not completed in time.
    Late,
    /// The peer broke the protocol or a limit.
    Broken(ConnectionError),
}

fn closing() -> Phase {
    let now = turn::now();
    Phase::Closing(now.checked_add(LAST_WORDS).unwrap_or(now))
}

enum Due {
    Nothing,
    Ping,
    Gone,
}

impl Keepalive {
    fn new(settings: Http2Keepalive) -> Self {
        let mut keepalive = Self { settings, random: Random::from_system(), next_ping: None, expected: None };
        keepalive.schedule(turn::now());
        keepalive
    }

    fn schedule(&mut self, now: Instant) {
        let jittered = |interval: Duration| {
            let permille = self.random.below(self.settings.jitter_permille as usize + 1) as u32;
            interval.saturating_add(interval.saturating_mul(permille) / 1000)
        };
        self.next_ping = after(now, self.settings.interval.map(jittered));
    }

    /// Anything received proves that the peer is alive.
    fn heard(&mut self, now: Instant) {
        if self.expected.take().is_some() {
            self.schedule(now);
        }
    }

    fn next(&mut self) -> Option<Instant> {
        earlier(self.next_ping, self.expected)
    }

    fn due(&mut self, now: Instant) -> Due {
        let past = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if past(self.expected) {
            Due::Gone
        } else if past(self.next_ping) {
            self.pinged(now);
            Due::Ping
        } else {
            Due::Nothing
        }
    }

    fn pinged(&mut self, now: Instant) {
        self.next_ping = None;
        self.expected = self.expected.or(after(now, Some(self.settings.timeout)));
    }
}

pub(super) fn codec_options(options: &Http2Options, limits: &Limits) -> Options {
    Options {
        max_concurrent_streams: options.max_concurrent_streams,
        initial_stream_window_size: WINDOW,
        max_stream_window_size: options.stream_window,
        initial_connection_window_size: options.connection_window,
        hpack_table_size: options.hpack_table_bytes,
        max_headers: u32::try_from(limits.max_headers).unwrap_or(u32::MAX),
        max_header_list_bytes: u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX),
        underscores: limits.underscores,
        enable_connect_protocol: options.allow_connect,
        stream_error_on_invalid_http_message: options.stream_error_on_invalid_message,
        max_outbound_frames: options.max_outbound_frames,
        max_outbound_control_frames: options.max_outbound_control_frames,
        max_consecutive_inbound_frames_with_empty_payload: options.max_consecutive_empty_frames,
        max_inbound_priority_frames_per_stream: options.max_priority_frames_per_stream,
        max_inbound_window_update_frames_per_data_frame_sent: options.max_window_updates_per_data_frame,
        premature_reset_total_stream_count: limits.premature_resets.total_stream_count,
        premature_reset_min_stream_lifetime_seconds: limits.premature_resets.min_stream_lifetime_seconds,
        ..Options::default()
    }
}
