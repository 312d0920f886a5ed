//! Notice of changes below the configuration directories.

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

/// Notices that may wait for the configuration loop, in events. When more come, the loop looks everywhere.
const MAX_WAITING_NOTICES: usize = 4096;
/// How often directories are looked at where the kernel gives no notice.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How often it is looked whether the directories are still those that are watched.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait for the notices of what has already happened. They come within microseconds, but the thread that takes
/// them from the kernel may wait for a loaded machine, and without them files are read as they never were at one moment.
const MARK_TIMEOUT: Duration = Duration::from_secs(2);

/// A change below the configuration directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What it is about; empty: anything may have changed.
    pub paths: Vec<PathBuf>,
    /// What has become of it.
    pub state: FileState,
}

/// What has become of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileState {
    /// It is as its writer wants it: closed after writing, or renamed into place.
    Complete,
    /// It is being written.
    Partial,
    /// It may be gone.
    Gone,
}

impl Notice {
    /// Whether the files that may be gone are gone.
    pub fn has_gone(&self) -> bool {
        !self.paths.is_empty() && self.paths.iter().all(|path| !path.exists())
    }
}

/// Notices for as long as this is held.
pub struct Watch {
    watcher: Box<dyn Watcher + Send>,
    sender: Sender,
    notices: mpsc::Receiver<Notice>,
    /// The directories as given, and what each of them was when it was watched.
    roots: Vec<(PathBuf, Option<Identity>)>,
    look: Option<Interval>,
    /// `None` where the kernel gives no notice of it.
    mark: Option<Mark>,
}

/// A file without a name, which the kernel's watch covers too. Notices come in the order of what happened: with that of a
/// write to this file, all of what happened before have come.
#[derive(Debug)]
struct Mark {
    /// Held open: the path leads to it.
    _file: OwnedFd,
    path: PathBuf,
    /// Writes so far.
    written: u64,
    /// Notices of them.
    noticed: u64,
}

impl Mark {
    fn new() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("watch", rustix::fs::MemfdFlags::CLOEXEC)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Self { _file: file, path, written: 0, noticed: 0 })
    }

    /// The kernel gives notice when a writer closes the file.
    fn write(&mut self) -> io::Result<()> {
        drop(File::options().write(true).open(&self.path)?);
        self.written += 1;
        Ok(())
    }
}

/// What tells a directory from another that has taken its place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    /// Where it is, behind links.
    path: PathBuf,
    device: u64,
    inode: u64,
    /// An inode's number is given to another directory as soon as it is free.
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
    /// Watches directories and all below them; by polling where the kernel's watches are used up or missing.
    pub fn new(roots: &[PathBuf]) -> notify::Result<Self> {
        let (sender, notices) = mpsc::channel(MAX_WAITING_NOTICES);
        let sender = Sender { notices: sender, lost: Arc::default(), removed: Arc::default() };
        let roots: Vec<_> = roots.iter().map(|root| (root.clone(), Identity::of(root))).collect();
        let mut mark = Mark::new().ok();
        let watcher = watcher(&real(&roots), &sender, &mut mark)?;
        Ok(Self { watcher, sender, notices, roots, look: None, mark })
    }

    /// The notices that wait, and those of all that has happened until now. Where the kernel gives none, those that wait.
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

    /// A notice as it is passed on; `None` for that of the mark.
    fn take(&mut self, notice: Notice) -> Option<Notice> {
        // The flag is set before the queue has room again, so it is seen at the latest with the last notice that fitted.
        if self.sender.lost.swap(false, Relaxed) {
            // That of the mark may be among those lost.
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

    /// The next notice. None is lost when this is dropped while it waits.
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

    /// A directory that is removed takes the kernel's watch along; another in its place, or a link that leads somewhere else, has
    /// to be watched anew.
    fn roots_are_others(&mut self) -> bool {
        let now: Vec<_> = self.roots.iter().map(|(root, _)| (root.clone(), Identity::of(root))).collect();
        let removed = self.sender.removed.swap(false, Relaxed);
        if now == self.roots && !removed {
            return false;
        }
        if now.iter().all(|(_, identity)| identity.is_some()) {
            match watcher(&real(&now), &self.sender, &mut self.mark) {
                Ok(watcher) => self.watcher = watcher,
                // Gone again, perhaps: the next look finds out.
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

/// What is known when too much happened to tell.
const ANYTHING: Notice = Notice { paths: Vec::new(), state: FileState::Gone };

/// As notices name them: behind links.
fn real(roots: &[(PathBuf, Option<Identity>)]) -> Vec<PathBuf> {
    let real = |(root, identity): &(PathBuf, Option<Identity>)| identity.as_ref().map_or(root, |i| &i.path).clone();
    roots.iter().map(real).collect()
}

/// Watches the roots and, if the kernel does it, the mark.
fn watcher(roots: &[PathBuf], sender: &Sender, mark: &mut Option<Mark>) -> notify::Result<Box<dyn Watcher + Send>> {
    let path = mark.as_ref().map(|mark| mark.path.clone());
    let by_kernel = RecommendedWatcher::new(forward(roots.to_owned(), path, sender.clone()), notify::Config::default())
        .and_then(|watcher| watch_all(watcher, roots));
    match by_kernel {
        Ok(mut watcher) => {
            // The watch before it, if there was one, has forgotten the mark.
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
    /// Notices did not fit.
    lost: Arc<AtomicBool>,
    /// A directory given is gone, and the kernel's watch with it.
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

/// Whether a path may be configuration, or a directory of some: programs write logs and databases there too.
fn may_matter(path: &Path, roots: &[PathBuf]) -> bool {
    let below = roots.iter().find_map(|root| path.strip_prefix(root).ok()).unwrap_or(path);
    let (directory, ignores) = match below.file_name() {
        Some(name) if name == IGNORE_FILE => (below.parent().unwrap_or(below), true),
        _ => (below, false),
    };
    let hidden = directory.iter().any(|part| part.to_string_lossy().starts_with('.'));
    !hidden && (ignores || path.extension().is_none() || is_configuration(path))
}

/// A link that is renamed into place may lead files to other contents that are not touched themselves: so Kubernetes replaces
/// the files of a ConfigMap, all at once by its link `..data`.
fn switches_a_link(event: &notify::Event) -> bool {
    let into_place = matches!(event.kind, EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both)));
    into_place && event.paths.last().is_some_and(|path| path.is_symlink())
}

/// What an event says of a file; `None` for events that change nothing.
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

    /// Waits for a notice after which the file says this.
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
        // Removed, and made anew.
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
