//! A thread that talks to the API server for callers that wait, which may themselves be on a runtime's thread.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long a caller waits: a lease is awaited for 10 s at most, and anything else takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The thread; it ends with this value.
#[derive(Debug)]
pub(super) struct Worker {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Worker {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, (stop, stopped)) = (runtime.handle().clone(), oneshot::channel::<()>());
        std::thread::Builder::new().name("kubernetes-store".to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, _stop: stop })
    }

    /// Runs a future on the thread, and waits for its result.
    pub(super) fn call<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
        let (sender, receiver) = sync_channel(1);
        let task = self.spawn(async move { _ = sender.send(work.await) });
        receiver.recv_timeout(TIMEOUT).map_err(|error| {
            task.abort();
            match error {
                RecvTimeoutError::Timeout => {
                    let text = format!("the API server has not answered within {} s", TIMEOUT.as_secs());
                    io::Error::new(ErrorKind::TimedOut, text)
                }
                RecvTimeoutError::Disconnected => io::Error::other("the thread of the store has ended"),
            }
        })
    }

    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.handle.spawn(work)
    }
}
