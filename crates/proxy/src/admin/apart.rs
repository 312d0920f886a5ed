//! Pages that take long to write: on a thread of their own, one after another, so that neither `/ready` nor the streams to the
//! control plane wait for them.

use std::sync::Arc;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::sync::{Semaphore, oneshot};

use super::Reply;

/// Pages written at a time: who asks for many gets them one after another, on one core.
const MAX_AT_A_TIME: usize = 1;
/// How long one may take to be written, and the same to wait for its turn.
const TIME_LIMIT: Duration = Duration::from_secs(10);

static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(MAX_AT_A_TIME)));

/// What is left to do for a page.
pub(super) type Drawing = Box<dyn FnOnce(&Deadline) -> Reply + Send>;

/// When a page must be done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// To be asked between two steps that each take little.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// Writes the page.
pub(super) async fn draw(drawing: Drawing) -> Reply {
    let Ok(Ok(turn)) = tokio::time::timeout(TIME_LIMIT, TURNS.clone().acquire_owned()).await else {
        return Reply::error(StatusCode::SERVICE_UNAVAILABLE, "other pages are being written; ask again later\n");
    };
    let (done, reply) = oneshot::channel();
    // A thread that ends with the page: one kept for the next would keep the page's memory, too.
    let thread = std::thread::Builder::new().name("admin-page".to_owned()).spawn(move || {
        let deadline = Deadline::after(TIME_LIMIT);
        let drawn = drawing(&deadline);
        // The client may have gone.
        let _ = done.send(match deadline.is_over() {
            false => drawn,
            true => Reply::error(StatusCode::SERVICE_UNAVAILABLE, "the page took too long; ask for less\n"),
        });
        drop(turn);
    });
    let failed = |reason: &str| Reply::error(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"));
    match thread {
        Ok(_) => reply.await.unwrap_or_else(|_| failed("the page could not be written")),
        Err(error) => failed(&format!("no thread for the page: {error}")),
    }
}
