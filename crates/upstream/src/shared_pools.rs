//! One worker's pools of connections that carry many requests at once.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use evenkeel_http::h2::OpenError;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::open::ConnectTimes;
use crate::alpn::WantedProtocol;
use crate::h2::{Client, Offer};
use crate::turn;

/// New requests avoid connections with unread streams ([`Offer::pressed`]) until a pool has this many of them, then
/// share the least loaded one. Requests on any such connection still work; more connections only keep readers apart
/// from those that do not read.
const MAX_PRESSED: usize = 8;

/// One worker's multiplexed connections to one host.
#[derive(Debug, Default)]
pub(super) struct Pools {
    /// HTTP/2 connections.
    http2: Pool,
    /// HTTP/2 framing, carrying HTTP/1.1 messages.
    shared_http1: Pool,
}

#[derive(Debug, Default)]
pub(super) struct Pool {
    pub(super) connections: RefCell<Vec<Rc<Multiplexed>>>,
    /// Connections being made that may become multiplexed ones.
    pub(super) connecting: Cell<u32>,
    /// What the last connection negotiated when the peer could choose the protocol.
    pub(super) peer: Cell<Peer>,
    /// Notified when a stream ended, or a connection came or went.
    pub(super) changed: Rc<Notify>,
}

/// The peer's choice of protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Peer {
    #[default]
    Unknown,
    OneAtATime,
    Many,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Multiplexed {
    pub(super) client: Client,
    /// Requests it may still carry (`max_requests_per_connection`); `None`: unlimited.
    pub(super) left: Cell<Option<u32>>,
    /// Whether it has carried a request before.
    pub(super) used: Cell<bool>,
    pub(super) epoch: u64,
    pub(super) local: Option<SocketAddr>,
    pub(super) times: ConnectTimes,
    /// After this time it accepts no new requests (`max_connection_duration`).
    pub(super) until: Option<Instant>,
}

impl Multiplexed {
    fn is_too_old(&self) -> bool {
        self.until.is_some_and(|until| until <= turn::now())
    }
}

impl Pools {
    /// Stops all connections from accepting new requests; those in flight continue.
    pub(super) fn close(&self) {
        for pool in [&self.http2, &self.shared_http1] {
            pool.connections.take();
            pool.changed.notify_waiters();
        }
    }

    /// Whether there is any connection.
    pub(super) fn in_use(&self) -> bool {
        [&self.http2, &self.shared_http1].iter().any(|pool| !pool.connections.borrow().is_empty())
    }

    /// Removes connections that have ended.
    pub(super) fn sweep(&self) {
        self.http2.sweep();
        self.shared_http1.sweep();
    }

    pub(super) fn of(&self, wanted: WantedProtocol) -> &Pool {
        match wanted {
            WantedProtocol::SharedHttp1 => &self.shared_http1,
            WantedProtocol::Bytes | WantedProtocol::Http1 | WantedProtocol::Http2 | WantedProtocol::Either => {
                &self.http2
            }
        }
    }
}

/// Which connections are acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// One whose streams are read, if possible.
    Best,
    /// Any: no other is available.
    Any,
}

impl Pool {
    /// A connection with room for a stream, and whether it has carried requests before.
    pub(super) fn place(&self, choice: Choice) -> Option<(Rc<Multiplexed>, bool)> {
        let (mut gone, mut pressed) = (false, 0);
        let mut least_held: Option<(usize, &Rc<Multiplexed>)> = None;
        let connections = self.connections.borrow();
        let found = connections.iter().find(|connection| match connection.client.can_open() {
            Ok(_) if connection.is_too_old() => {
                gone = true;
                false
            }
            // It already carries the request it was made for.
            Ok(Offer { settled: false, .. }) | Err(OpenError::Concurrency) => false,
            Ok(Offer { pressed: false, .. }) => true,
            Ok(Offer { held, .. }) => {
                pressed += 1;
                least_held = least_held.filter(|(least, _)| *least <= held).or(Some((held, connection)));
                false
            }
            Err(_) => {
                gone = true;
                false
            }
        });
        let will_do = choice == Choice::Any || pressed >= MAX_PRESSED;
        let found = found.or(least_held.filter(|_| will_do).map(|(_, connection)| connection)).cloned();
        drop(connections);
        if gone {
            self.sweep();
        }
        let connection = found?;
        let reused = connection.used.replace(true);
        if let Some(left) = connection.left.get() {
            connection.left.set(Some(left.saturating_sub(1)));
            if left <= 1 {
                self.connections.borrow_mut().retain(|other| !Rc::ptr_eq(other, &connection));
            }
        }
        Some((connection, reused))
    }

    /// Whether some connection's peer has not sent its SETTINGS yet.
    pub(super) fn is_settling(&self) -> bool {
        let connections = self.connections.borrow();
        let settles = |one: &Multiplexed| matches!(one.client.can_open(), Ok(Offer { settled: false, .. }));
        connections.iter().any(|one| settles(one) && !one.is_too_old())
    }

    fn sweep(&self) {
        let gone = |connection: &Rc<Multiplexed>| {
            connection.is_too_old()
                || matches!(connection.client.can_open(), Err(OpenError::GoingAway | OpenError::Exhausted))
        };
        self.connections.borrow_mut().retain(|connection| !gone(connection));
    }
}

/// Counts a connection while it is being made.
pub(super) struct Connecting<'a>(&'a Pool);

impl<'a> Connecting<'a> {
    pub(super) fn new(pool: &'a Pool) -> Self {
        pool.connecting.set(pool.connecting.get() + 1);
        Self(pool)
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.connecting.set(self.0.connecting.get().saturating_sub(1));
        self.0.changed.notify_waiters();
    }
}
