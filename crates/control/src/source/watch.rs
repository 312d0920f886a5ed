//! Notices of changes below the configuration directories.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind, RenameMode};
use notify::{PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};

use super::files::{IGNORE_FILE, is_configuration};

/// Maximum number of notices that wait for the configuration loop. When there are more, the loop checks all files.
const MAX_WAITING_NOTICES: usize = 4096;
/// How often directories are polled where the kernel gives no notice.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How often to check whether the watched directories are still the same.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait for the notices of past changes. They come within microseconds, but on a loaded machine the thread that
/// takes them from the kernel may have to wait. Without them, files might be read in a state that never existed at one
/// moment.
const MARK_TIMEOUT: Duration = Duration::from_secs(2);

/// A change below the configuration directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The changed paths; empty: anything may have changed.
    pub paths: Vec<PathBuf>,
    /// The state of these files.
    pub state: FileState,
}

/// The state of a file after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileState {
    /// Complete: closed after writing, or renamed into place.
    Complete,
    /// Being written.
    Partial,
    /// Possibly deleted.
    Gone,
}

impl Notice {
    /// Whether the files that may be deleted are deleted.
    pub fn has_gone(&self) -> bool {
        !self.paths.is_empty() && self.paths.iter().all(|path| !path.exists())
    }
}

/// Delivers notices until it is dropped.
pub struct Watch {
    watcher: Box<dyn Watcher + Send>,
    sender: Sender,
    notices: mpsc::Receiver<Notice>,
    /// The directories as given, and the identity of each when the watch began.
    roots: Vec<(PathBuf, Option<Identity>)>,
    look: Option<Interval>,
    /// `None` where the kernel gives no notice of it.
    mark: Option<Mark>,
}

/// An unnamed file that the kernel's watch covers too. Notices come in the order of the changes: when the notice of a write
/// to this file arrives, those of all earlier changes have arrived.
#[derive(Debug)]
struct Mark {
    /// Held open, because the watched path refers to it.
    _file: OwnedFd,
    path: PathBuf,
    /// Number of writes so far.
    written: u64,
    /// Number of notices of them.
    noticed: u64,
}

impl Mark {
    fn new() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("watch", rustix::fs::MemfdFlags::CLOEXEC)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Self { _file: file, path, written: 0, noticed: 0 })
    }

    /// Writes to the file and closes it, on which the kernel gives notice.
    fn write(&mut self) -> io::Result<()> {
        drop(File::options().write(true).open(&self.path)?);
        self.written += 1;
        Ok(())
    }
}

/// Distinguishes a directory from another that has taken its place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    /// Its path with links resolved.
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Needed because the number of a deleted directory's inode is reused at once.
    created: Option<SystemTime>,
}

impl Identity {
    fn of(root: &Path) -> Option<Self> {
        let path = root.canonicalize().ok()?;
        let metadata = std::fs::metadata(&path).ok()?;
        let created = metadata.created().ok();
        Some(Self { path, device: metadata.dev(), inode: metadata.ino(), created })
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    /// Watches directories and everything below them; by polling where the kernel's watches are exhausted or missing.
    pub fn new(roots: &[PathBuf]) -> notify::Result<Self> {
        let (sender, notices) = mpsc::channel(MAX_WAITING_NOTICES);
        let sender = Sender { notices: sender, lost: Arc::default(), removed: Arc::default() };
        let roots: Vec<_> = roots.iter().map(|root| (root.clone(), Identity::of(root))).collect();
        let mut mark = Mark::new().ok();
        let watcher = watcher(&real(&roots), &sender, &mut mark)?;
        Ok(Self { watcher, sender, notices, roots, look: None, mark })
    }

    /// Returns the waiting notices and those of all changes until now. Where the kernel gives none, only the waiting ones.
    pub async fn caught_up(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        let marked = self.mark.as_mut().is_some_and(|mark| mark.write().is_ok());
        let deadline = tokio::time::Instant::now() + MARK_TIMEOUT;
        while marked && self.mark.as_ref().is_some_and(|mark| mark.noticed < mark.written) {
            match tokio::time::timeout_at(deadline, self.notices.recv()).await {
                Ok(Some(notice)) => notices.extend(self.take(notice)),
                _ => break,
            }
        }
        while let Ok(notice) = self.notices.try_recv() {
            notices.extend(self.take(notice));
        }
        notices
    }

    /// Filters a notice; `None` for one of the mark.
    fn take(&mut self, notice: Notice) -> Option<Notice> {
        // The flag is set before the queue has room again, so it is seen at the latest with the last notice that fitted.
        if self.sender.lost.swap(false, Relaxed) {
            // The notice of the mark may be among the lost ones.
            self.mark.iter_mut().for_each(|mark| mark.noticed = mark.written);
            return Some(ANYTHING);
        }
        match &mut self.mark {
            Some(mark) if notice.paths.first() == Some(&mark.path) => {
                mark.noticed += 1;
                None
            }
            _ => Some(notice),
        }
    }

    /// Waits for the next notice. The future may be dropped while it waits; no notice is lost.
    pub async fn next(&mut self) -> Option<Notice> {
        loop {
            let look = self.look.get_or_insert_with(|| {
                let mut look = tokio::time::interval(LOOK_INTERVAL);
                look.set_missed_tick_behavior(MissedTickBehavior::Delay);
                look
            });
            tokio::select! {
                biased;
                notice = self.notices.recv() => {
                    if let Some(notice) = self.take(notice?) {
                        return Some(notice);
                    }
                }
                _ = look.tick() => {
                    if self.roots_are_others() {
                        return Some(ANYTHING);
                    }
                }
            }
        }
    }

    /// Whether the directories have to be watched anew: the kernel's watch ends with a deleted directory, and does not follow
    /// a link to its new target.
    fn roots_are_others(&mut self) -> bool {
        let now: Vec<_> = self.roots.iter().map(|(root, _)| (root.clone(), Identity::of(root))).collect();
        let removed = self.sender.removed.swap(false, Relaxed);
        if now == self.roots && !removed {
            return false;
        }
        if now.iter().all(|(_, identity)| identity.is_some()) {
            match watcher(&real(&now), &self.sender, &mut self.mark) {
                Ok(watcher) => self.watcher = watcher,
                // It may be gone again: the next check finds out.
                Err(error) => {
                    tracing::warn!(%error, "cannot watch the configuration directories anew; trying again");
                    self.sender.removed.store(true, Relaxed);
                    return false;
                }
            }
        }
        self.roots = now;
        true
    }
}

/// The notice when changes were too many to report.
const ANYTHING: Notice = Notice { paths: Vec::new(), state: FileState::Gone };

/// Returns the directories as notices name them, with links resolved.
fn real(roots: &[(PathBuf, Option<Identity>)]) -> Vec<PathBuf> {
    let real = |(root, identity): &(PathBuf, Option<Identity>)| identity.as_ref().map_or(root, |i| &i.path).clone();
    roots.iter().map(real).collect()
}

/// Watches the roots and, if the kernel supports it, the mark.
fn watcher(roots: &[PathBuf], sender: &Sender, mark: &mut Option<Mark>) -> notify::Result<Box<dyn Watcher + Send>> {
    let path = mark.as_ref().map(|mark| mark.path.clone());
    let by_kernel = RecommendedWatcher::new(forward(roots.to_owned(), path, sender.clone()), notify::Config::default())
        .and_then(|watcher| watch_all(watcher, roots));
    match by_kernel {
        Ok(mut watcher) => {
            // A former watch no longer counts the mark.
            mark.iter_mut().for_each(|mark| mark.noticed = mark.written);
            if mark.as_ref().is_some_and(|mark| watcher.watch(&mark.path, RecursiveMode::NonRecursive).is_err()) {
                *mark = None;
            }
            Ok(Box::new(watcher))
        }
        Err(error) => {
            tracing::warn!(%error, interval = ?POLL_INTERVAL, "no file notices from the kernel; polling instead");
            let config = notify::Config::default().with_poll_interval(POLL_INTERVAL);
            *mark = None;
            let poll = PollWatcher::new(forward(roots.to_owned(), None, sender.clone()), config)?;
            Ok(Box::new(watch_all(poll, roots)?))
        }
    }
}

#[derive(Clone)]
struct Sender {
    notices: mpsc::Sender<Notice>,
    /// Whether notices were dropped because the queue was full.
    lost: Arc<AtomicBool>,
    /// Whether a watched directory was deleted, and the kernel's watch with it.
    removed: Arc<AtomicBool>,
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

fn forward(
    roots: Vec<PathBuf>,
    mark: Option<PathBuf>,
    sender: Sender,
) -> impl FnMut(notify::Result<notify::Event>) + Send + 'static {
    move |event| {
        let notice = match event {
            Ok(event) if mark.is_some() && event.paths.first() == mark.as_ref() => match file_state(event.kind) {
                Some(state @ FileState::Complete) => Notice { paths: event.paths, state },
                _ => return,
            },
            Ok(event) if event.need_rescan() || switches_a_link(&event) => ANYTHING,
            Ok(event) => {
                if matches!(event.kind, EventKind::Remove(_)) && event.paths.iter().any(|path| roots.contains(path)) {
                    sender.removed.store(true, Relaxed);
                }
                let Some(state) = file_state(event.kind) else { return };
                let of_interest = |path: &PathBuf| may_matter(path, &roots);
                let paths: Vec<PathBuf> = event.paths.into_iter().filter(of_interest).collect();
                if paths.is_empty() {
                    return;
                }
                Notice { paths, state }
            }
            // Notices were lost: something may have changed anywhere.
            Err(error) => {
                tracing::warn!(%error, "file notices were lost; reading everything again");
                ANYTHING
            }
        };
        sender.send(notice);
    }
}

/// Whether a path may be configuration, or a directory with some: programs write logs and databases there too.
fn may_matter(path: &Path, roots: &[PathBuf]) -> bool {
    let below = roots.iter().find_map(|root| path.strip_prefix(root).ok()).unwrap_or(path);
    let (directory, ignores) = match below.file_name() {
        Some(name) if name == IGNORE_FILE => (below.parent().unwrap_or(below), true),
        _ => (below, false),
    };
    let hidden = directory.iter().any(|part| part.to_string_lossy().starts_with('.'));
    !hidden && (ignores || path.extension().is_none() || is_configuration(path))
}

/// Whether an event switches a link, which changes files that are not touched themselves. Kubernetes replaces the files of a
/// ConfigMap in this way, all at once by its link `..data`.
fn switches_a_link(event: &notify::Event) -> bool {
    let into_place = matches!(event.kind, EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both)));
    into_place && event.paths.last().is_some_and(|path| path.is_symlink())
}

/// Returns what an event says about a file; `None` for events that change nothing.
fn file_state(kind: EventKind) -> Option<FileState> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(FileState::Complete),
        EventKind::Access(_) => None,
        EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both)) => Some(FileState::Complete),
        EventKind::Create(_) | EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Metadata(_)) => {
            Some(FileState::Partial)
        }
        EventKind::Any | EventKind::Other | EventKind::Modify(_) | EventKind::Remove(_) => Some(FileState::Gone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for a notice after which the file has this content.
    async fn follows(watch: &mut Watch, file: &Path, expected: &str) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let notice = tokio::time::timeout_at(deadline, watch.next()).await;
            assert!(notice.is_ok(), "no notice of {expected:?} in {}", file.display());
            if std::fs::read_to_string(file).is_ok_and(|text| text == expected) {
                return;
            }
        }
    }

    #[tokio::test]
    async fn a_directory_that_was_replaced_is_watched_on() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let (root, old, new) = (folder.path().join("mesh"), folder.path().join("old"), folder.path().join("new"));
        std::fs::create_dir(&root)?;
        let mut watch = Watch::new(std::slice::from_ref(&root)).map_err(std::io::Error::other)?;
        std::fs::create_dir(&new)?;
        std::fs::write(new.join("a.yaml"), "1")?;
        std::fs::rename(&root, &old)?;
        std::fs::rename(&new, &root)?;
        follows(&mut watch, &root.join("a.yaml"), "1").await;
        std::fs::write(root.join("a.yaml"), "2")?;
        follows(&mut watch, &root.join("a.yaml"), "2").await;
        // Deleted and created again.
        std::fs::remove_dir_all(&root)?;
        std::fs::create_dir(&root)?;
        std::fs::write(root.join("a.yaml"), "3")?;
        follows(&mut watch, &root.join("a.yaml"), "3").await;
        Ok(())
    }

    #[tokio::test]
    async fn all_that_has_happened_is_known_once_it_is_asked_for() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let root = folder.path().to_path_buf();
        let mut watch = Watch::new(std::slice::from_ref(&root)).map_err(std::io::Error::other)?;
        assert!(watch.mark.is_some(), "the kernel gives notice of it");
        for number in 0..200 {
            let file = root.join(format!("{number}.yaml"));
            std::fs::write(&file, "1")?;
            let notices = watch.caught_up().await;
            assert!(notices.contains(&Notice { paths: vec![file.clone()], state: FileState::Complete }), "{number}");
            std::fs::remove_file(&file)?;
            let notices = watch.caught_up().await;
            assert!(notices.contains(&Notice { paths: vec![file.clone()], state: FileState::Gone }), "{number}");
        }
        assert!(watch.caught_up().await.is_empty());
        Ok(())
    }

    #[tokio::test]
    async fn links_that_are_switched_are_noticed() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let make = |version: &str| {
            std::fs::create_dir(folder.path().join(version))?;
            std::fs::write(folder.path().join(version).join("a.yaml"), version)
        };
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, folder.path().join("next"))?;
            std::fs::rename(folder.path().join("next"), folder.path().join(name))
        };
        make("..1")?;
        make("..2")?;
        link("..1", "..data")?;
        link("..data/a.yaml", "a.yaml")?;
        let root = folder.path().to_path_buf();
        let mut watch = Watch::new(std::slice::from_ref(&root)).map_err(std::io::Error::other)?;
        link("..2", "..data")?;
        follows(&mut watch, &root.join("a.yaml"), "..2").await;

        // The directory itself is a link.
        link("..1", "current")?;
        let mut watch = Watch::new(&[root.join("current")]).map_err(std::io::Error::other)?;
        link("..2", "current")?;
        follows(&mut watch, &root.join("current/a.yaml"), "..2").await;
        std::fs::write(root.join("..2/a.yaml"), "3")?;
        follows(&mut watch, &root.join("current/a.yaml"), "3").await;
        Ok(())
    }

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
        check("/home/.user/mesh/deep/.evenkeelignore", true);
        check("/home/.user/mesh/.git/.evenkeelignore", false);
    }
}
