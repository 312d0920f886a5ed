//! State of one stream: bytes received but not taken, and bytes to be sent that did not fit.

use std::collections::VecDeque;
use std::task::Waker;

use evenkeel_http::h2::{Connection as Codec, ResponseMeta, StreamKey};
use evenkeel_http::{Headers, ResponseHead};
use tokio::time::Instant;

use super::memory::Chunk;
use super::reset::Reset;

/// Maximum number of interim responses that wait to be taken.
pub(super) const MAX_INTERIM: usize = 8;

/// One stream.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: StreamKey,
    /// The task that holds the handle.
    waker: Option<Waker>,
    /// The task was woken and has not polled since.
    notified: bool,
    /// Body bytes received but not taken yet.
    pub(super) received: Chunk,
    /// Bytes by which its window was widened because its reader keeps up.
    pub(super) widened: usize,
    /// The peer has ended its side; its last byte is in `received`.
    pub(super) peer_ended: bool,
    pub(super) trailers: Option<Box<Headers>>,
    /// Interim responses received but not taken yet.
    pub(super) interim: VecDeque<ResponseHead>,
    /// The response, until it is taken.
    pub(super) answer: Option<(ResponseHead, ResponseMeta)>,
    /// Bytes for which flow control windows or the connection's buffer had no room.
    pub(super) unsent: Chunk,
    pub(super) end: End,
    pub(super) reset: Option<Reset>,
    /// Set when the handle was dropped with `unsent` bytes left: the time since which the peer has taken none of them.
    pub(super) orphaned: Option<Instant>,
}

/// State of this side's end of stream.
#[derive(Debug)]
pub(super) enum End {
    /// More may be sent.
    Open,
    /// The end follows the last unsent byte.
    Queued,
    /// Trailers follow the last unsent byte.
    Trailers(Box<Headers>),
    /// The end is in the output, or no longer wanted.
    Sent,
}

impl Entry {
    pub(super) fn new(key: StreamKey, peer_ended: bool, ended: bool) -> Self {
        Self {
            key,
            waker: None,
            notified: false,
            received: Chunk::default(),
            widened: 0,
            peer_ended,
            trailers: None,
            interim: VecDeque::new(),
            answer: None,
            unsent: Chunk::default(),
            end: if ended { End::Sent } else { End::Open },
            reset: None,
            orphaned: None,
        }
    }

    /// Wakes the handle's task, once until it polls again.
    pub(super) fn wake(&mut self) {
        if !self.notified
            && let Some(waker) = &self.waker
        {
            self.notified = true;
            waker.wake_by_ref();
        }
    }

    /// Called when the handle's task polls: it is woken when something changes after this.
    pub(super) fn watch(&mut self, waker: &Waker) {
        self.notified = false;
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
    }

    /// Whether the handle has ended this side.
    pub(super) fn ended(&self) -> bool {
        !matches!(self.end, End::Open)
    }

    /// Sends as much of `data` as there is room for, if nothing is queued before it, and queues the rest.
    pub(super) fn send(&mut self, codec: &mut Codec, data: &[u8], end: bool) {
        if self.ended() || self.reset.is_some() {
            return;
        }
        if !self.unsent.is_empty() {
            self.unsent.push(data);
            self.end = if end { End::Queued } else { End::Open };
            return;
        }
        match codec.send_data(self.key, data, end) {
            Ok(sent) if sent == data.len() => self.end = if end { End::Sent } else { End::Open },
            Ok(sent) => {
                self.unsent.push(data.get(sent..).unwrap_or_default());
                self.end = if end { End::Queued } else { End::Open };
            }
            Err(_) => self.end = End::Sent,
        }
    }

    /// Ends this side with trailers.
    pub(super) fn send_trailers(&mut self, codec: &mut Codec, trailers: &Headers) {
        if self.ended() || self.reset.is_some() {
            return;
        }
        if self.unsent.is_empty() {
            // A closed stream sends none; its reset reports that.
            let _ = codec.send_trailers(self.key, trailers);
            self.end = End::Sent;
        } else {
            self.end = End::Trailers(Box::new(trailers.clone()));
        }
    }

    /// Sends queued bytes, now that there is room. Returns how many were sent.
    pub(super) fn pump(&mut self, codec: &mut Codec) -> usize {
        if self.unsent.is_empty() {
            return 0;
        }
        let (waiting, ends) = (self.unsent.len(), matches!(self.end, End::Queued));
        let Ok(sent) = codec.send_data(self.key, self.unsent.bytes(), ends) else {
            self.drop_unsent();
            return waiting;
        };
        self.unsent.consume(sent);
        if sent == waiting {
            if let End::Trailers(trailers) = &self.end {
                let _ = codec.send_trailers(self.key, trailers);
            }
            if self.ended() {
                self.end = End::Sent;
            }
            self.wake();
        }
        sent
    }

    /// Drops queued bytes; nothing can be sent any more.
    pub(super) fn drop_unsent(&mut self) {
        self.unsent.clear();
        self.end = End::Sent;
    }
}
