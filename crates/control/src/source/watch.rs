//! Notice of changes below the configuration directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind, RenameMode};
use notify::{PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

use super::files::is_configuration;

/// Notices that may wait for the configuration loop, in events. When more come, the loop looks everywhere.
const MAX_WAITING_NOTICES: usize = 4096;
/// How often directories are looked at where the kernel gives no notice.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A change below the configuration directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What it is about; empty: anything may have changed.
    pub paths: Vec<PathBuf>,
    /// The file is as its writer wants it: closed after writing, or renamed into place.
    pub complete: bool,
}

/// Notices for as long as this is held.
pub struct Watch {
    _watcher: Box<dyn Watcher + Send>,
    notices: mpsc::Receiver<Notice>,
    /// Notices did not fit.
    lost: Arc<AtomicBool>,
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
        let lost = Arc::new(AtomicBool::new(false));
        let sender = Sender { notices: sender, lost: lost.clone() };
        // Notices name what is behind links.
        let roots: Vec<PathBuf> = roots.iter().map(|r| r.canonicalize().unwrap_or_else(|_| r.clone())).collect();
        let roots = &*roots;
        let by_kernel = RecommendedWatcher::new(forward(roots.to_owned(), sender.clone()), notify::Config::default())
            .and_then(|watcher| watch_all(watcher, roots));
        let watcher: Box<dyn Watcher + Send> = match by_kernel {
            Ok(watcher) => Box::new(watcher),
            Err(error) => {
                tracing::warn!(%error, interval = ?POLL_INTERVAL, "no file notices from the kernel; polling instead");
                let config = notify::Config::default().with_poll_interval(POLL_INTERVAL);
                Box::new(watch_all(PollWatcher::new(forward(roots.to_owned(), sender), config)?, roots)?)
            }
        };
        Ok(Self { _watcher: watcher, notices, lost })
    }

    /// The next notice.
    pub async fn next(&mut self) -> Option<Notice> {
        let notice = self.notices.recv().await?;
        // The flag is set before the queue has room again, so it is seen at the latest with the last notice that fitted.
        match self.lost.swap(false, Relaxed) {
            true => Some(Notice { paths: Vec::new(), complete: false }),
            false => Some(notice),
        }
    }
}

#[derive(Clone)]
struct Sender {
    notices: mpsc::Sender<Notice>,
    lost: Arc<AtomicBool>,
}

impl Sender {
    fn send(&self, notice: Notice) {
        if self.notices.try_send(notice).is_err() {
            self.lost.store(true, Relaxed);
        }
    }
}

fn watch_all<W: Watcher>(mut watcher: W, roots: &[PathBuf]) -> notify::Result<W> {
    for root in roots {
        watcher.watch(root, RecursiveMode::Recursive)?;
    }
    Ok(watcher)
}

fn forward(roots: Vec<PathBuf>, sender: Sender) -> impl FnMut(notify::Result<notify::Event>) + Send + 'static {
    move |event| {
        let notice = match event {
            Ok(event) if event.need_rescan() => Notice { paths: Vec::new(), complete: false },
            Ok(event) => {
                let Some(complete) = completeness(event.kind) else { return };
                let of_interest = |path: &PathBuf| may_matter(path, &roots);
                let paths: Vec<PathBuf> = event.paths.into_iter().filter(of_interest).collect();
                if paths.is_empty() {
                    return;
                }
                Notice { paths, complete }
            }
            // Notices were lost: something may have changed anywhere.
            Err(error) => {
                tracing::warn!(%error, "file notices were lost; reading everything again");
                Notice { paths: Vec::new(), complete: false }
            }
        };
        sender.send(notice);
    }
}

/// Whether a path may be configuration, or a directory of some: programs write logs and databases there too.
fn may_matter(path: &Path, roots: &[PathBuf]) -> bool {
    let below = roots.iter().find_map(|root| path.strip_prefix(root).ok()).unwrap_or(path);
    let hidden = below.iter().any(|part| part.to_string_lossy().starts_with('.'));
    !hidden && (path.extension().is_none() || is_configuration(path))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_and_hidden_files_wake_nobody() {
        let roots = [PathBuf::from("/home/.user/mesh")];
        let check = |path: &str, expected| assert_eq!(may_matter(Path::new(path), &roots), expected, "{path}");
        check("/home/.user/mesh/a.yaml", true);
        check("/home/.user/mesh/deep/a.json", true);
        check("/home/.user/mesh/directory", true);
        check("/home/.user/mesh/a.log", false);
        check("/home/.user/mesh/.evenkeel/a.yaml", false);
        check("/home/.user/mesh/.a.yaml.swp", false);
    }
}
