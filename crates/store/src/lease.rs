//! Leases: mutual exclusion among the control planes that share a state directory. A lease is needed to create the root
//! certificate and the token key, and to assign virtual addresses.
//!
//! A lease is a lock on a file in that directory. It is held for the few milliseconds that the work takes, and ends with the
//! process, even if that crashes. There is no leader, so nobody waits for an election. The directory has to be on a file
//! system with locks (`flock`): a local one, or NFS version 4 or later.

use std::any::Any;
use std::fmt;
use std::fs::{OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait for a lease. The work takes milliseconds: a process that holds it for longer is stopped or stuck.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(5);

/// A lease, held until it is dropped.
pub struct Lease {
    _held: Box<dyn Any + Send + Sync>,
}

impl Lease {
    /// A lease that ends when `held` is dropped.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self { _held: Box::new(held) }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease")
    }
}

/// Takes the lease of a file, waiting at most 10 s for it.
pub(crate) fn take(path: &Path) -> io::Result<Lease> {
    take_within(path, PATIENCE)
}

#[allow(clippy::disallowed_methods, reason = "no notice comes when another process lets go of a file")]
fn take_within(path: &Path, patience: Duration) -> io::Result<Lease> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let deadline = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Lease::new(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(RETRY),
            Err(TryLockError::WouldBlock) => {
                let text = format!("another process holds {} for more than {} s", path.display(), patience.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn one_at_a_time() {
        let state = tempfile::tempdir().expect("a directory");
        let (test, other) = (state.path().join("test.lease"), state.path().join("other.lease"));
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        let lease = take(&test).expect("a lease");
                        assert_eq!(inside.fetch_add(1, SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                        drop(lease);
                    }
                });
            }
        });
        let _held = take(&test).expect("a lease");
        let refused = take_within(&test, Duration::ZERO).expect_err("it is held");
        assert!(refused.to_string().contains("test.lease"), "{refused}");
        take(&other).expect("leases are independent");
    }
}
