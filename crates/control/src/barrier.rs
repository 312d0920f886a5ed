//! Lets a writer of configuration files wait until they have been read. The writer asks for a ticket after writing; the first
//! reading that begins afterwards serves the ticket.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Counts of the tickets asked for and served.
#[derive(Debug, Default)]
pub struct Barrier {
    asked: AtomicU64,
    read: AtomicU64,
    wake: Notify,
}

impl Barrier {
    /// Issues a ticket for the files as they are now.
    pub fn ask(&self) -> u64 {
        let ticket = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.wake.notify_one();
        ticket
    }

    /// Waits until a ticket is asked for. The future may be dropped while it waits; no ticket is lost.
    pub async fn asked(&self) {
        self.wake.notified().await;
    }

    /// Returns the last ticket that a reading served if it begins now.
    pub fn begin(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Marks the tickets up to `last` as served: the files they were issued for have been read.
    pub fn served(&self, last: u64) {
        self.read.fetch_max(last, Ordering::SeqCst);
    }

    /// Whether the files for which this ticket was issued have been read.
    pub fn has_served(&self, ticket: u64) -> bool {
        self.read.load(Ordering::SeqCst) >= ticket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_serves_those_who_asked_before_it_began() {
        let barrier = Barrier::default();
        let first = barrier.ask();
        let looked = barrier.begin();
        let second = barrier.ask();
        assert!(!barrier.has_served(first));
        barrier.served(looked);
        assert!(barrier.has_served(first) && !barrier.has_served(second));
        barrier.served(barrier.begin());
        assert!(barrier.has_served(second));
    }
}
