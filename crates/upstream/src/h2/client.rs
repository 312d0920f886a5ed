//! The client role of a connection.

use std::future::poll_fn;
use std::rc::Rc;

use evenkeel_http::h2::OpenError;
use evenkeel_http::{Framing, RequestHead};
use evenkeel_runtime_config::http2::Http2Options;
use evenkeel_stats::Writer;
use tokio::sync::Notify;

use super::driver::{Driver, Limits};
use super::entry::Entry;
use super::shared::Shared;
use super::stats::Stats;
use super::stream::Stream;
use crate::conn::Buffer;
use crate::stream::Stream as Socket;
use crate::turn;

/// A connection to an upstream, driven by a separate task. After it is dropped, its streams run to completion, then the
/// connection closes.
#[derive(Debug)]
pub struct Client {
    shared: Rc<Shared>,
    /// Limit on concurrent streams, regardless of what the peer allows.
    max_streams: usize,
}

/// The state of a connection that a new stream would find.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// The peer's SETTINGS are known. Until then a second stream might exceed its limit.
    pub settled: bool,
    /// Streams that are not read hold so many bytes that new requests should use another connection; see [`super::windows`].
    pub pressed: bool,
    /// The number of these bytes.
    pub held: usize,
}

impl Client {
    /// Starts an HTTP/2 connection over a connected socket. `watchers` are notified whenever it may be worth trying
    /// [`Client::can_open`] again; `on_end` is called when the connection has ended, with whether its peer violated the
    /// protocol.
    pub fn start(
        socket: Socket,
        options: &Http2Options,
        limits: Limits,
        stats: Rc<Writer<Stats>>,
        watchers: Rc<Notify>,
        on_end: impl FnOnce(bool) + 'static,
    ) -> Self {
        let mut driver = Driver::new(false, (socket, Buffer::default()), options, limits, stats);
        let shared = Rc::clone(&driver.shared);
        shared.0.borrow_mut().streams.watchers = Some(watchers);
        turn::spawn(async move {
            poll_fn(|cx| driver.poll_turn(cx)).await;
            let broken = driver.was_broken();
            drop(driver);
            on_end(broken);
        });
        Self { shared, max_streams: options.max_concurrent_streams as usize }
    }

    /// Sends a request. `https` selects the value of `:scheme`.
    ///
    /// # Errors
    /// Nothing was sent; the request may use another connection.
    pub fn open(&self, head: &RequestHead, https: bool, framing: Framing, end: bool) -> Result<Stream, OpenError> {
        let mut core = self.shared.0.borrow_mut();
        if core.streams.over.is_some() {
            return Err(OpenError::GoingAway);
        }
        if core.streams.entries.len() >= self.max_streams {
            return Err(OpenError::Concurrency);
        }
        core.lend();
        core.ping_if_idle();
        let key = core.codec.open(head, https, framing, end)?;
        let index = core.streams.insert(Entry::new(key, false, end));
        core.touch();
        Ok(Stream::new(Rc::clone(&self.shared), index))
    }

    /// Whether [`Client::open`] would succeed now, and whether another connection would be better.
    pub fn can_open(&self) -> Result<Offer, OpenError> {
        let core = self.shared.0.borrow();
        // A peer that allows no streams at all may allow some later. Requests do not wait for that, or connections to
        // it would pile up.
        if core.streams.over.is_some() || core.streams.peer_leaves || core.codec.takes_no_streams() {
            return Err(OpenError::GoingAway);
        }
        if core.streams.entries.len() >= self.max_streams {
            return Err(OpenError::Concurrency);
        }
        core.codec.can_open()?;
        let windows = &core.streams.windows;
        Ok(Offer { settled: core.codec.is_settled(), pressed: windows.is_pressed(), held: windows.held() })
    }

    /// A client whose connection is driven by the caller.
    #[cfg(test)]
    pub(super) fn over(shared: Rc<Shared>, options: &Http2Options) -> Self {
        Self { shared, max_streams: options.max_concurrent_streams as usize }
    }

    /// Waits until [`Client::can_open`] may return something else.
    pub async fn changed(&self) {
        let watchers = self.shared.0.borrow().streams.watchers.clone();
        match watchers {
            Some(watchers) => watchers.notified().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut core = self.shared.0.borrow_mut();
        if core.streams.over.is_none() {
            core.lend();
            core.codec.shutdown();
            core.codec.finish_shutdown();
            core.touch();
        }
    }
}
