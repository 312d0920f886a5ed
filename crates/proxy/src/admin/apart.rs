//! Renders large pages on a separate thread, one at a time, so that neither `/ready` nor the xDS streams wait for them.

use std::sync::Arc;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::sync::{Semaphore, oneshot};

use super::Reply;

/// Pages rendered at a time: many requests are served one after another, on one core.
const MAX_AT_A_TIME: usize = 1;
/// Time limit for rendering, and for waiting for a turn.
const TIME_LIMIT: Duration = Duration::from_secs(10);

static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(MAX_AT_A_TIME)));

/// The part of rendering that runs on the separate thread.
pub(super) type Drawing = Box<dyn FnOnce(&Deadline) -> Reply + Send>;

/// The time by which a page must be done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// To be checked between short steps.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// Renders the page.
pub(super) async fn draw(drawing: Drawing) -> Reply {
    run(drawing).await.unwrap_or_else(|refusal| refusal)
}

/// Does work for a page; the error is the reply instead.
pub(super) async fn run<T: Send + 'static>(work: impl FnOnce(&Deadline) -> T + Send + 'static) -> Result<T, Reply> {
    let Ok(Ok(turn)) = tokio::time::timeout(TIME_LIMIT, TURNS.clone().acquire_owned()).await else {
        let busy = "other pages are being written; ask again later\n";
        return Err(Reply::error(StatusCode::SERVICE_UNAVAILABLE, busy));
    };
    let (done, reply) = oneshot::channel();
    // A new thread per page: a thread kept for the next page would also keep this page's memory.
    let thread = std::thread::Builder::new().name("admin-page".to_owned()).spawn(move || {
        let deadline = Deadline::after(TIME_LIMIT);
        let done_work = work(&deadline);
        // The client may have disconnected.
        let _ = done.send(if deadline.is_over() {
            Err(Reply::error(StatusCode::SERVICE_UNAVAILABLE, "the page took too long; ask for less\n"))
        } else {
            Ok(done_work)
        });
        drop(turn);
    });
    let failed = |reason: &str| Reply::error(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"));
    match thread {
        Ok(_) => reply.await.unwrap_or_else(|_| Err(failed("the page could not be written"))),
        Err(error) => Err(failed(&format!("no thread for the page: {error}"))),
    }
}
