//! Notice of changes below the configuration directories.

use std::path::PathBuf;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind, RenameMode};
use notify::{PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// Notices that may wait for the configuration loop, in events. What does not fit is not lost: the loop reads all
/// directories anyway, and one waiting notice is enough to make it do so.
const MAX_WAITING_NOTICES: usize = 1024;
/// How often directories are looked at where the kernel gives no notice.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A change below the configuration directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What it is about; may be empty.
    pub paths: Vec<PathBuf>,
    /// The file is as its writer wants it: closed after writing, or renamed into place.
    pub complete: bool,
}

/// Notices for as long as this is held.
pub struct Watch {
    _watcher: Box<dyn Watcher + Send>,
    notices: mpsc::Receiver<Notice>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    /// Watches directories and all below them; by polling where the kernel's watches are used up or missing.
    pub fn new(roots: &[PathBuf]) -> notify::Result<Self> {
        let (sender, notices) = mpsc::channel(MAX_WAITING_NOTICES);
        let by_kernel = RecommendedWatcher::new(forward(sender.clone()), notify::Config::default())
            .and_then(|watcher| watch_all(watcher, roots));
        let watcher: Box<dyn Watcher + Send> = match by_kernel {
            Ok(watcher) => Box::new(watcher),
            Err(error) => {
                tracing::warn!(%error, interval = ?POLL_INTERVAL, "no file notices from the kernel; polling instead");
                let config = notify::Config::default().with_poll_interval(POLL_INTERVAL);
                Box::new(watch_all(PollWatcher::new(forward(sender), config)?, roots)?)
            }
        };
        Ok(Self { _watcher: watcher, notices })
    }

    /// The next notice.
    pub async fn next(&mut self) -> Option<Notice> {
        self.notices.recv().await
    }
}

fn watch_all<W: Watcher>(mut watcher: W, roots: &[PathBuf]) -> notify::Result<W> {
    for root in roots {
        watcher.watch(root, RecursiveMode::Recursive)?;
    }
    Ok(watcher)
}

fn forward(sender: mpsc::Sender<Notice>) -> impl FnMut(notify::Result<notify::Event>) + Send + 'static {
    move |event| {
        let notice = match event {
            Ok(event) => match completeness(event.kind) {
                Some(complete) => Notice { paths: event.paths, complete },
                None => return,
            },
            // Notices were lost: something may have changed anywhere.
            Err(error) => {
                tracing::warn!(%error, "file notices were lost; reading everything again");
                Notice { paths: Vec::new(), complete: false }
            }
        };
        // Full: the notices that wait will cause a full look, which covers this one.
        let _ = sender.try_send(notice);
    }
}

/// Whether an event says that a file is complete; `None` for events that change nothing.
fn completeness(kind: EventKind) -> Option<bool> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(true),
        EventKind::Access(_) => None,
        EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both)) => Some(true),
        EventKind::Any | EventKind::Other | EventKind::Create(_) | EventKind::Modify(_) | EventKind::Remove(_) => {
            Some(false)
        }
    }
}
