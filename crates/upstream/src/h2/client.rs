//! The client's end of a connection.

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

/// A connection to an upstream, driven by a task of its own. Dropping it lets the streams it has come to their ends, and then
/// closes it.
#[derive(Debug)]
pub struct Client {
    shared: Rc<Shared>,
    /// Streams opened at once at most, whatever the peer allows.
    max_streams: usize,
}

/// What a new stream of a connection would find.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// The peer has said how much it takes. Until then a second stream might be one too many.
    pub settled: bool,
    /// Streams that are not read hold so much that others should go elsewhere; see [`super::windows`].
    pub pressed: bool,
    /// How much, in bytes.
    pub held: usize,
}

impl Client {
    /// Begins to speak over a connected socket. `watchers` are told whenever it may be worth trying [`Client::can_open`] again;
    /// `on_end` is called when the connection has ended, with whether its peer broke the protocol.
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

    /// Sends a request. `https`: what `:scheme` says.
    ///
    /// # Errors
    /// Nothing was sent; it may be sent on another connection.
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

    /// Whether [`Client::open`] would work now, and whether it should be left.
    pub fn can_open(&self) -> Result<Offer, OpenError> {
        let core = self.shared.0.borrow();
        // A peer that takes no stream at all may take some later; nobody waits for that, or connections to it would pile up.
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

    /// One whose driver is somebody else's concern.
    #[cfg(test)]
    pub(super) fn over(shared: Rc<Shared>, options: &Http2Options) -> Self {
        Self { shared, max_streams: options.max_concurrent_streams as usize }
    }

    /// Waits until it may be worth trying again what the peer did not allow.
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
