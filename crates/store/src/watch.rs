//! Notices of changes in a folder of the store's directory.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind, RenameMode};
use notify::{Config, Event, PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};

/// How often a folder is polled where the kernel gives no notice.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A change in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed<'n> {
    /// The value of this name was put or removed.
    Name(&'n str),
    /// Notices were lost: any value may have changed.
    Any,
}

/// A watch, which ends when it is dropped.
pub struct Watch {
    _watcher: Box<dyn Any + Send + Sync>,
}

impl Watch {
    /// A watch that ends when `watcher` is dropped.
    pub fn new(watcher: impl Any + Send + Sync) -> Self {
        Self { _watcher: Box::new(watcher) }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Watches a folder, by polling where the kernel's watches are exhausted or missing.
pub(crate) fn watch(folder: &Path, changed: Box<dyn Fn(Changed<'_>) + Send + Sync>) -> io::Result<Watch> {
    let changed = std::sync::Arc::new(changed);
    let handler = || {
        let changed = changed.clone();
        move |event: notify::Result<Event>| report(event, &**changed)
    };
    let by_kernel = RecommendedWatcher::new(handler(), Config::default())
        .and_then(|mut watcher| watcher.watch(folder, RecursiveMode::NonRecursive).map(|()| watcher));
    match by_kernel {
        Ok(watcher) => Ok(Watch::new(watcher)),
        Err(error) => {
            tracing::warn!(%error, folder = %folder.display(), "no file notices from the kernel; polling instead");
            let config = Config::default().with_poll_interval(POLL_INTERVAL).with_compare_contents(true);
            let mut watcher = PollWatcher::new(handler(), config).map_err(io::Error::other)?;
            watcher.watch(folder, RecursiveMode::NonRecursive).map_err(io::Error::other)?;
            Ok(Watch::new(watcher))
        }
    }
}

fn report(event: notify::Result<Event>, changed: &(dyn Fn(Changed<'_>) + Send + Sync)) {
    let Ok(event) = event else { return changed(Changed::Any) };
    if event.need_rescan() {
        return changed(Changed::Any);
    }
    let is_change = match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        EventKind::Modify(ModifyKind::Name(mode)) => mode != RenameMode::Both,
        // The write that follows completes it; a touched value is the same.
        EventKind::Create(_) | EventKind::Modify(ModifyKind::Metadata(_)) => false,
        EventKind::Any | EventKind::Other | EventKind::Modify(_) | EventKind::Remove(_) => true,
    };
    if is_change {
        let names = event.paths.iter().filter_map(|path| path.file_name()?.to_str());
        names.filter(|name| !name.ends_with(".new")).for_each(|name| changed(Changed::Name(name)));
    }
}
