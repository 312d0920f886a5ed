//! State shared by a connection's driver and its streams.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use evenkeel_http::h2::{
    Connection as Codec, Counter as Event, Fault, PeerSettings, Reason, RequestMeta, Reset as CodecReset, ResponseMeta,
    Sink, StreamKey,
};
use evenkeel_http::{Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::http2::Http2Options;
use evenkeel_stats::Writer;
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::entry::{Entry, MAX_INTERIM};
use super::memory;
use super::reset::{Reset, ResetBy};
use super::stats::{self, Counter, Gauge, Stats};
use super::windows::Windows;
use crate::turn;

/// Payload of keepalive PINGs.
pub(super) const KEEPALIVE_PING: [u8; 8] = *b"evenkeel";

/// Marks a slot without a stream.
const NONE: u32 = u32::MAX;

/// A connection's state, shared by its driver and its streams.
pub(super) struct Shared(pub(super) RefCell<Core>);

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.try_borrow() {
            Ok(core) => write!(f, "h2({} streams)", core.streams.entries.len()),
            Err(_) => f.write_str("h2"),
        }
    }
}

/// Codec and streams of one connection.
pub(super) struct Core {
    pub(super) codec: Codec,
    pub(super) streams: Streams,
    /// This is the server role.
    server: bool,
    /// The driver's task.
    driver: Option<Waker>,
    /// The driver was woken and has not run since.
    woken: bool,
    /// The codec has memory for output.
    lent: bool,
}

/// The streams of one connection, and the connection-level events of the codec.
pub(super) struct Streams {
    pub(super) entries: Slab<Entry>,
    /// Maps the codec's slot of an open stream to its entry.
    by_slot: Vec<u32>,
    /// Requests not accepted yet; at most as many as the peer may open streams.
    pub(super) requests: VecDeque<(usize, RequestHead, RequestMeta)>,
    /// Faults of malformed requests that are not reported yet; at most what one turn reads.
    pub(super) refused: VecDeque<Fault>,
    /// Flow control of what the peer may send.
    pub(super) windows: Windows,
    /// Bytes queued in all streams.
    pub(super) unsent: usize,
    /// Number of entries without a handle.
    pub(super) orphans: usize,
    /// The connection has ended, for this reason.
    pub(super) over: Option<Reset>,
    /// The peer sent GOAWAY.
    pub(super) peer_leaves: bool,
    /// A PING was sent ahead of a stream, and the driver has to await its answer.
    pub(super) pinged: bool,
    /// A connection idle for this long is checked with a PING when a stream is opened.
    ping_when_idle_for: Option<Duration>,
    /// Since when there has been no stream.
    pub(super) idle_since: Option<Instant>,
    /// Notified whenever another stream might be opened, or none can be any more.
    pub(super) watchers: Option<Rc<Notify>>,
    pub(super) stats: Rc<Writer<Stats>>,
}

impl Core {
    pub(super) fn new(codec: Codec, server: bool, options: &Http2Options, stats: Rc<Writer<Stats>>) -> Self {
        let streams = Streams {
            entries: Slab::new(),
            by_slot: Vec::new(),
            requests: VecDeque::new(),
            refused: VecDeque::new(),
            windows: Windows::new(options),
            unsent: 0,
            orphans: 0,
            over: None,
            peer_leaves: false,
            pinged: false,
            ping_when_idle_for: options.keepalive.as_ref().and_then(|settings| settings.idle_interval),
            idle_since: Some(turn::now()),
            watchers: None,
            stats,
        };
        // The connection preface and SETTINGS are in the codec's own first buffer.
        Self { codec, streams, server, driver: None, woken: false, lent: true }
    }

    /// Schedules the driver behind all tasks that are ready now.
    pub(super) fn touch(&mut self) {
        if !self.woken
            && let Some(driver) = &self.driver
        {
            self.woken = true;
            driver.wake_by_ref();
        }
    }

    /// Called when the driver starts a turn.
    pub(super) fn begin_turn(&mut self, driver: &Waker) {
        if !self.driver.as_ref().is_some_and(|known| known.will_wake(driver)) {
            self.driver = Some(driver.clone());
        }
    }

    /// Called when the driver has done all it could.
    pub(super) fn end_turn(&mut self) {
        self.woken = false;
        if self.codec.output().is_empty()
            && let Some(buffer) = self.codec.take_output_buffer()
        {
            self.lent = false;
            memory::give_output(buffer);
        }
    }

    /// Runs `f` with an entry and the codec, which is lent an output buffer first, and wakes the driver if there is output.
    pub(super) fn act<R>(&mut self, entry: usize, f: impl FnOnce(&mut Entry, &mut Codec) -> R) -> Option<R> {
        self.lend();
        let entry = self.streams.entries.get_mut(entry)?;
        let before = entry.unsent.len();
        let result = f(entry, &mut self.codec);
        self.streams.unsent = self.streams.unsent + entry.unsent.len() - before;
        if !self.codec.output().is_empty() {
            self.touch();
        }
        Some(result)
    }

    /// Lends the codec an output buffer. Call before it may write.
    pub(super) fn lend(&mut self) {
        if !self.lent {
            self.lent = true;
            self.codec.lend_output_buffer(memory::take_output());
        }
    }

    /// Decodes bytes from the peer.
    pub(super) fn receive(&mut self, input: &[u8]) -> Result<usize, evenkeel_http::h2::ConnectionError> {
        self.lend();
        let result = self.codec.receive(input, &mut self.streams);
        self.give_back();
        result
    }

    /// Lets streams that wait for room send, in the codec's order.
    pub(super) fn pump(&mut self) {
        while let Some(key) = self.codec.next_writable() {
            let Some(index) = self.streams.index(key) else { continue };
            let Some(entry) = self.streams.entries.get_mut(index) else { continue };
            let sent = entry.pump(&mut self.codec);
            self.streams.unsent = self.streams.unsent.saturating_sub(sent);
            if entry.orphaned.is_some() {
                if entry.unsent.is_empty() {
                    self.settle(index)
                } else {
                    // Its peer is still reading.
                    entry.orphaned = Some(turn::now())
                }
            }
        }
    }

    /// Sends a PING ahead of a new stream if the connection was idle for long (`connection_idle_interval`).
    pub(super) fn ping_if_idle(&mut self) {
        let idle = self.streams.idle_since.map(|since| turn::now().saturating_duration_since(since));
        if let (Some(idle), Some(limit)) = (idle, self.streams.ping_when_idle_for)
            && idle >= limit
        {
            self.codec.ping(KEEPALIVE_PING);
            self.streams.pinged = true;
        }
    }

    /// Records that a stream's reader took `count` bytes.
    pub(super) fn took(&mut self, index: usize, count: usize) {
        let Some(entry) = self.streams.entries.get(index) else { return };
        if !entry.peer_ended {
            self.lend();
            let Streams { entries, windows, .. } = &mut self.streams;
            if let Some(entry) = entries.get_mut(index) {
                entry.widened += windows.release(&mut self.codec, entry.key, count, entry.received.is_empty());
            }
        }
        self.streams.windows.subtract_held(count);
        self.give_back();
        if !self.codec.output().is_empty() {
            self.touch();
        }
    }

    fn give_back(&mut self) {
        if !self.streams.windows.is_settled() {
            self.lend();
            self.streams.windows.tell(&mut self.codec);
        }
    }

    /// Called when a stream's handle is dropped. A complete response is still sent; an unfinished message is reset.
    pub(super) fn abandon(&mut self, index: usize) {
        let Some(entry) = self.streams.entries.get_mut(index) else { return };
        if entry.reset.is_none() {
            let answered = self.server && entry.ended();
            if answered && !entry.unsent.is_empty() {
                entry.orphaned = Some(turn::now());
                self.streams.orphans += 1;
                // The driver has to enforce the flush timeout.
                self.touch();
                return;
            }
            if !(entry.ended() && entry.peer_ended) {
                let reason = match (answered, self.server) {
                    // After a complete response the rest of the request is not needed, which is no error (RFC 9113 section 8.1).
                    (true, _) => Reason::NO_ERROR,
                    // The response is truncated. gRPC clients would take CANCEL for their own cancellation.
                    (false, true) => Reason::INTERNAL_ERROR,
                    (false, false) => Reason::CANCEL,
                };
                self.cut(index, reason);
            }
        }
        self.forget(index);
    }

    /// Ends an orphaned stream whose last byte was sent.
    fn settle(&mut self, index: usize) {
        if self.streams.entries.get(index).is_some_and(|entry| !entry.peer_ended) {
            self.cut(index, Reason::NO_ERROR);
        }
        self.streams.orphans = self.streams.orphans.saturating_sub(1);
        self.forget(index);
    }

    /// Resets orphaned streams whose peer has not read for too long.
    pub(super) fn cut_stuck_orphans(&mut self, since_before: Instant) {
        let stuck = |entry: &Entry| entry.orphaned.is_some_and(|since| since <= since_before);
        let stuck: Vec<usize> =
            self.streams.entries.iter().filter(|(_, entry)| stuck(entry)).map(|(index, _)| index).collect();
        for index in stuck {
            self.give_up(index);
            self.streams.orphans = self.streams.orphans.saturating_sub(1);
            self.forget(index);
        }
    }

    /// Resets a stream whose peer has not read its queued bytes for too long.
    pub(super) fn give_up(&mut self, index: usize) {
        if self.streams.entries.get(index).is_some_and(|entry| !entry.unsent.is_empty()) {
            self.streams.stats.inc(Counter::tx_flush_timeout);
            self.cut(index, Reason::CANCEL);
        }
    }

    /// Resets a stream.
    pub(super) fn cut(&mut self, index: usize, reason: Reason) {
        self.lend();
        let Some(entry) = self.streams.entries.get_mut(index) else { return };
        if self.codec.is_open(entry.key) {
            self.codec.reset(entry.key, reason);
            self.streams.stats.inc(Counter::tx_reset);
        }
        self.streams.unsent = self.streams.unsent.saturating_sub(entry.unsent.len());
        entry.drop_unsent();
        if entry.reset.is_none() {
            entry.reset = Some(Reset { reason, by: ResetBy::Local, unprocessed: false });
        }
        self.touch();
    }

    pub(super) fn forget(&mut self, index: usize) {
        self.streams.remove(index);
        self.give_back();
        // The driver may have to send the last GOAWAY now, or to start the idle timer.
        if self.streams.entries.is_empty() || !self.codec.output().is_empty() {
            self.touch();
        }
    }

    /// Ends the connection: tells every stream.
    pub(super) fn finish(&mut self, reset: Reset) {
        if self.streams.over.is_some() {
            return;
        }
        self.streams.over = Some(reset);
        let mut orphans = Vec::new();
        for (index, entry) in &mut self.streams.entries {
            entry.drop_unsent();
            if entry.reset.is_none() {
                entry.reset = Some(reset);
            }
            if entry.orphaned.is_some() {
                orphans.push(index);
            }
            entry.wake();
        }
        self.streams.unsent = 0;
        self.streams.orphans = 0;
        orphans.into_iter().for_each(|index| self.streams.remove(index));
        self.streams.tell_watchers();
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.streams.stats.shift(Gauge::streams_active, -(self.streams.entries.len() as i64));
    }
}

impl Streams {
    /// The index of a stream's entry, unless its handle is gone.
    pub(super) fn index(&self, key: StreamKey) -> Option<usize> {
        let index = *self.by_slot.get(key.slot()).filter(|index| **index != NONE)? as usize;
        self.entries.get(index).filter(|entry| entry.key == key).map(|_| index)
    }

    fn entry(&mut self, key: StreamKey) -> Option<&mut Entry> {
        let index = self.index(key)?;
        self.entries.get_mut(index)
    }

    pub(super) fn insert(&mut self, entry: Entry) -> usize {
        let slot = entry.key.slot();
        let index = self.entries.insert(entry);
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, NONE);
        }
        if let Some(place) = self.by_slot.get_mut(slot) {
            *place = index as u32;
        }
        self.idle_since = None;
        self.stats.shift(Gauge::streams_active, 1);
        index
    }

    fn remove(&mut self, index: usize) {
        let Some(entry) = self.entries.try_remove(index) else { return };
        if let Some(place) = self.by_slot.get_mut(entry.key.slot()).filter(|place| **place as usize == index) {
            *place = NONE;
        }
        self.unsent = self.unsent.saturating_sub(entry.unsent.len());
        self.windows.subtract_held(entry.received.len());
        self.windows.narrow(entry.widened);
        self.stats.shift(Gauge::streams_active, -1);
        if self.entries.is_empty() {
            self.idle_since = Some(turn::now());
        }
        self.tell_watchers();
    }

    fn tell_watchers(&self) {
        if let Some(watchers) = &self.watchers {
            watchers.notify_waiters();
        }
    }

    /// Frees the memory that an idle connection does not need.
    pub(super) fn shrink(&mut self) {
        if self.entries.is_empty() {
            self.entries.shrink_to_fit();
            self.by_slot = Vec::new();
            self.requests = VecDeque::new();
            self.refused = VecDeque::new();
        }
    }
}

impl Sink for Streams {
    fn request(&mut self, stream: StreamKey, head: &mut RequestHead, meta: RequestMeta) {
        let index = self.insert(Entry::new(stream, meta.end, false));
        self.requests.push_back((index, std::mem::replace(head, memory::take_request()), meta));
    }

    fn refused(&mut self, fault: Fault) {
        self.refused.push_back(fault);
    }

    fn interim(&mut self, stream: StreamKey, head: &mut ResponseHead) {
        if let Some(entry) = self.entry(stream) {
            // Beyond the limit the oldest is dropped: the final response does not depend on interim ones.
            if entry.interim.len() == MAX_INTERIM {
                entry.interim.pop_front();
            }
            entry.interim.push_back(std::mem::replace(head, memory::take_response()));
            entry.wake();
        }
    }

    fn response(&mut self, stream: StreamKey, head: &mut ResponseHead, meta: ResponseMeta) {
        if let Some(entry) = self.entry(stream) {
            entry.answer = Some((std::mem::replace(head, memory::take_response()), meta));
            entry.peer_ended = meta.end;
            entry.wake();
        }
    }

    fn data(&mut self, stream: StreamKey, data: &[u8], end: bool) {
        match self.entry(stream).filter(|entry| entry.orphaned.is_none()) {
            Some(entry) => {
                entry.received.push(data);
                entry.peer_ended |= end;
                entry.wake();
                self.windows.hold(data.len());
            }
            None => {
                self.windows.pass(data.len());
                if let Some(entry) = self.entry(stream) {
                    entry.peer_ended |= end;
                }
            }
        }
    }

    fn trailers(&mut self, stream: StreamKey, trailers: &mut Headers) {
        if let Some(entry) = self.entry(stream) {
            entry.trailers = Some(Box::new(std::mem::take(trailers)));
            entry.peer_ended = true;
            entry.wake();
        }
    }

    fn reset(&mut self, stream: StreamKey, reset: CodecReset) {
        if reset.reason == Reason::REFUSED_STREAM && reset.by_peer {
            self.stats.inc(Counter::stream_refused_errors);
        }
        let Some(index) = self.index(stream) else { return };
        let Some(entry) = self.entries.get_mut(index) else { return };
        let by = match reset.fault {
            Some(fault) => ResetBy::Fault(fault),
            None if reset.by_peer => ResetBy::Peer,
            None => ResetBy::Local,
        };
        self.unsent = self.unsent.saturating_sub(entry.unsent.len());
        entry.drop_unsent();
        entry.reset = Some(Reset { reason: reset.reason, by, unprocessed: reset.unprocessed });
        entry.wake();
        if entry.orphaned.is_some() {
            self.orphans = self.orphans.saturating_sub(1);
            self.remove(index);
        }
    }

    fn goaway(&mut self, _last_stream_id: u32, _reason: Reason, _debug: &[u8]) {
        self.peer_leaves = true;
        self.tell_watchers();
    }

    fn settings(&mut self, _settings: PeerSettings) {
        self.tell_watchers();
    }

    fn count(&mut self, event: Event) {
        stats::count(&self.stats, event);
    }
}
