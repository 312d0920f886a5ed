//! The agent's socket: loads the rules of the Pods that the plugin names, each in its network namespace.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;

use nix::sched::{CloneFlags, setns};

use crate::configuration::PodName;
use crate::handover::{self, Request, Task, Verdict};

/// Maximum number of Pods at a time; a runtime starts few at once, and tries again.
const MAX_PODS: usize = 64;

/// How many Pods had which verdict.
#[derive(Debug, Default)]
pub struct Counts {
    /// Rules were loaded.
    pub captured: AtomicU64,
    /// Nothing had to be captured.
    pub skipped: AtomicU64,
    /// The Pod did not start.
    pub failed: AtomicU64,
}

/// What loads rules.
pub trait Rules: Send + Sync + 'static {
    /// What is loaded for one Pod.
    type Capture: Send;

    /// What a Pod captures; `None`: nothing. Asks the API server.
    fn of_pod(&self, pod: &PodName) -> Result<Option<Self::Capture>, String>;

    /// Loads it in the network namespace of the calling thread.
    fn load(&self, capture: Self::Capture) -> Result<(), String>;

    /// Fails if it is not loaded in the network namespace of the calling thread.
    fn verify(&self, capture: Self::Capture) -> Result<(), String>;
}

/// Opens the socket, which only root can use.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The file of an agent's socket.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// The one that is there.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: found.dev(), inode: found.ino() })
    }

    /// Removes it, unless another agent has put its own in the place.
    pub fn remove(&self) -> io::Result<()> {
        match Self::of(&self.path) {
            Ok(found) if (found.device, found.inode) == (self.device, self.inode) => fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Serves the plugin until the process ends.
pub fn serve<R: Rules>(listener: &UnixListener, rules: &Arc<R>, counts: &Arc<Counts>) -> io::Error {
    let running = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return error,
        };
        if running.load(Relaxed) >= MAX_PODS {
            // The plugin reports that there was no answer, and the runtime tries again.
            continue;
        }
        running.fetch_add(1, Relaxed);
        let (rules, counts, running) = (rules.clone(), counts.clone(), running.clone());
        thread::spawn(move || {
            if let Err(error) = serve_one(&stream, &*rules, &counts) {
                tracing::warn!(%error, "a request of the plugin could not be served");
            }
            running.fetch_sub(1, Relaxed);
        });
    }
}

fn serve_one<R: Rules>(stream: &UnixStream, rules: &R, counts: &Counts) -> io::Result<()> {
    let (request, network) = handover::receive(stream)?;
    let verdict = serve_request(rules, &request, &network);
    if request.task == Task::Load {
        note(&request.pod, &verdict, counts);
    }
    handover::answer(stream, &verdict)
}

/// Counts and logs what has happened to a Pod that starts.
fn note(pod: &PodName, verdict: &Verdict, counts: &Counts) {
    let (namespace, name) = (&pod.namespace, &pod.name);
    match verdict {
        Verdict::Captured => {
            counts.captured.fetch_add(1, Relaxed);
            tracing::info!(namespace, name, "the capture rules are loaded");
        }
        Verdict::Skipped => {
            counts.skipped.fetch_add(1, Relaxed);
            tracing::debug!(namespace, name, "nothing is captured");
        }
        Verdict::Failed(reason) => {
            counts.failed.fetch_add(1, Relaxed);
            tracing::error!(namespace, name, reason, "the capture rules are not loaded; the Pod does not start");
        }
    }
}

fn serve_request<R: Rules>(rules: &R, request: &Request, network: &OwnedFd) -> Verdict {
    let served = match rules.of_pod(&request.pod) {
        Ok(None) => return Verdict::Skipped,
        Ok(Some(capture)) => enter(network).and_then(|()| match request.task {
            Task::Load => rules.load(capture),
            Task::Verify => rules.verify(capture),
        }),
        Err(reason) => Err(reason),
    };
    served.map_or_else(Verdict::Failed, |()| Verdict::Captured)
}

/// Changes the network of the calling thread, which serves this Pod alone.
fn enter(network: &OwnedFd) -> Result<(), String> {
    setns(network.as_fd(), CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("the Pod's network cannot be entered: {error}"))
}
