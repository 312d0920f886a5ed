//! Circuit breakers: limits that hold across all workers, exactly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// One cluster's counts over all workers (`CircuitBreakers`, default priority).
#[derive(Debug, Default)]
pub struct Counts {
    connections: AtomicU32,
    pending: AtomicU32,
    requests: AtomicU32,
    retries: AtomicU32,
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// `max_connections`.
    Connections,
    /// `max_pending_requests`.
    Pending,
    /// `max_requests`.
    Requests,
    /// `max_retries`.
    Retries,
}

/// Something that is counted until it is dropped. Without a limit nothing is counted.
#[derive(Debug)]
pub struct Permit(Option<(Arc<Counts>, Overflow)>);

impl Counts {
    fn of(&self, resource: Overflow) -> &AtomicU32 {
        match resource {
            Overflow::Connections => &self.connections,
            Overflow::Pending => &self.pending,
            Overflow::Requests => &self.requests,
            Overflow::Retries => &self.retries,
        }
    }

    /// Counts one up, unless `limit` of them exist.
    pub fn try_acquire(self: &Arc<Self>, resource: Overflow, limit: u32) -> Result<Permit, Overflow> {
        // Istio sets the greatest number to say "no limit": then workers need not share a cache line per request.
        if limit == u32::MAX {
            return Ok(Permit(None));
        }
        let counter = self.of(resource);
        let below_limit = |count: u32| (count < limit).then_some(count + 1);
        match counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below_limit) {
            Ok(_) => Ok(Permit(Some((self.clone(), resource)))),
            Err(_) => Err(resource),
        }
    }

    /// Counts one up in any case.
    pub fn acquire(self: &Arc<Self>, resource: Overflow) -> Permit {
        self.of(resource).fetch_add(1, Ordering::Relaxed);
        Permit(Some((self.clone(), resource)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some((counts, resource)) = &self.0 {
            counts.of(*resource).fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_exactly_across_threads() {
        let keep = Arc::<Counts>::default();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let counts = keep.clone();
                std::thread::spawn(move || {
                    let all = (0..100).map(|_| counts.try_acquire(Overflow::Requests, 37));
                    all.flatten().collect::<Vec<_>>()
                })
            })
            .collect();
        let permits: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
        assert_eq!(permits.len(), 37);
        assert_eq!(keep.try_acquire(Overflow::Requests, 37).err(), Some(Overflow::Requests));
        drop(permits);
        assert!(keep.try_acquire(Overflow::Requests, 1).is_ok());
        assert!(keep.try_acquire(Overflow::Retries, 0).is_err());
        assert!(keep.try_acquire(Overflow::Retries, u32::MAX).is_ok());
    }
}
