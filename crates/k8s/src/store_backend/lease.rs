//! Leases of the store: a Lease of Kubernetes, held for the milliseconds that the work takes.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use evenkeel_store::Lease;
use kube::Client;
use tokio::sync::oneshot;

use super::objects;
use super::worker::Worker;
use crate::lease::{Candidate, LeaseTimes};

/// How long to wait for a lease, as in a directory.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long giving it back may take; otherwise it ends by itself.
const RELEASE: Duration = Duration::from_secs(2);
/// Others look often, as it is held for a short time. A holder that dies is awaited for less than [`PATIENCE`].
const TIMES: LeaseTimes = LeaseTimes {
    duration: Duration::from_secs(6),
    deadline: Duration::from_secs(4),
    retry: Duration::from_millis(100),
};

/// A held lease.
struct Held {
    stop: Option<oneshot::Sender<()>>,
    released: Receiver<()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The next one to ask finds it free.
        let _ = self.released.recv_timeout(RELEASE);
    }
}

pub(super) fn take(worker: &Worker, client: Client, namespace: &str, name: &str) -> io::Result<Lease> {
    // Two threads of a process exclude each other, too.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let host = std::env::var("HOSTNAME").unwrap_or_default();
    let identity = format!("{host}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let candidate = Candidate::new(client, namespace, &objects::name(&format!("{name}.lease")), &identity, TIMES);
    let mut leadership = candidate.leadership();
    let (stop, stopped) = oneshot::channel::<()>();
    let (sender, released) = sync_channel(1);
    worker.spawn(async move {
        candidate.run(async move { drop(stopped.await) }).await;
        let _ = sender.send(());
    });
    let held = Held { stop: Some(stop), released };
    match worker.call(async move { tokio::time::timeout(PATIENCE, leadership.begins()).await })? {
        Ok(()) => Ok(Lease::new(std::sync::Mutex::new(held))),
        Err(_) => {
            let text = format!("another process holds the Lease `{name}` for more than {} s", PATIENCE.as_secs());
            Err(io::Error::new(ErrorKind::TimedOut, text))
        }
    }
}
