//! Lets whoever has written files wait until they are read: a ticket that is asked for after the files were written is
//! served by a look that begins afterwards.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Tickets asked for, and served.
#[derive(Debug, Default)]
pub struct Barrier {
    asked: AtomicU64,
    read: AtomicU64,
    wake: Notify,
}

impl Barrier {
    /// A ticket for what is written now.
    pub fn ask(&self) -> u64 {
        let ticket = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.wake.notify_one();
        ticket
    }

    /// Waits until somebody asks. None is lost when this is dropped while it waits.
    pub async fn asked(&self) {
        self.wake.notified().await;
    }

    /// The last ticket that a look which begins now serves.
    pub fn begin(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// What was written when these tickets were asked for is read.
    pub fn served(&self, last: u64) {
        self.read.fetch_max(last, Ordering::SeqCst);
    }

    /// Whether what was written when this ticket was asked for is read.
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
