//! Counters of the traffic between two workloads. Connections keep a handle, so that a request costs a few additions and no
//! search.

use std::cell::Cell;

use tokio::time::Instant;

/// Counts of one worker.
#[derive(Debug, Default)]
pub struct EdgeCounts {
    /// Connections.
    pub connections: Cell<u64>,
    /// Connections that were refused before they carried anything.
    pub refused: Cell<u64>,
    /// HTTP requests.
    pub requests: Cell<u64>,
    /// Bytes from client to server.
    pub bytes_received: Cell<u64>,
    /// Bytes from server to client.
    pub bytes_sent: Cell<u64>,
    /// When it was last used.
    pub last: Cell<Option<Instant>>,
}

impl EdgeCounts {
    /// Counts a connection.
    pub fn connection(&self, now: Instant) {
        self.connections.set(self.connections.get() + 1);
        self.last.set(Some(now));
    }

    /// Counts a connection that is refused.
    pub fn refusal(&self, now: Instant) {
        self.refused.set(self.refused.get() + 1);
        self.last.set(Some(now));
    }

    /// Counts a request that has ended, with the bytes of its body and of the response's.
    #[inline]
    pub fn request(&self, received: u64, sent: u64, now: Instant) {
        self.requests.set(self.requests.get() + 1);
        self.bytes(received, sent, now);
    }

    /// Counts bytes.
    #[inline]
    pub fn bytes(&self, received: u64, sent: u64, now: Instant) {
        self.bytes_received.set(self.bytes_received.get() + received);
        self.bytes_sent.set(self.bytes_sent.get() + sent);
        self.last.set(Some(now));
    }
}
