//! Hot restart: a process started with the same `--base-id` takes over from the running one without resetting
//! connections.
//!
//! ```text
//!  successor                                predecessor
//!  ─────────                                ───────────
//!  reads its bootstrap                      serves
//!  Hello ─────────────────────────────────▶
//!        ◀───── listening sockets, Ready ── (shared by both: no connection in an accept queue is lost)
//!  starts workers, gets its configuration   serves
//!  is ready to serve
//!  TakeOver ──────────────────────────────▶ stops accepting, drains
//!        ◀──── connections and statistics ─ hands over each connection at its next message boundary
//!  continues them                           ends when it has none left, or its time is up
//! ```
//!
//! Until `TakeOver` the predecessor does not change in any way: if the successor fails, it carries on. If the successor
//! fails later, the predecessor still has the listening sockets and accepts again.
//!
//! What is handed over: HTTP/1 connections without TLS, with the bytes read ahead, and TCP connections in both
//! directions with the bytes in flight. The state of TLS and HTTP/2 connections cannot be transferred; they are
//! drained. Connections in the middle of a request finish it first.

mod parcel;
mod predecessor;
mod successor;
mod wire;

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

pub(crate) use parcel::{Facts, Half, PackedConnection, PackedListener, Parcel, TcpPart};
pub(crate) use predecessor::{Predecessor, Request, SuccessorWait};
pub use successor::Succession;
pub(crate) use successor::{Inheritance, Successor, Taking};

/// Why a handover is not possible.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The socket's folder is not private.
    #[error("{}: must be a folder of this user that nobody else can write to", .0.display())]
    NotPrivate(PathBuf),
    /// The predecessor speaks another version of the handover protocol.
    #[error("the running process speaks version {0} of the handover, this one {version}", version = wire::VERSION)]
    Version(u32),
    /// The predecessor refused, or closed the connection.
    #[error("the running process ended the handover: {0}")]
    Ended(&'static str),
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> HandoverError {
    move |error| HandoverError::System { what, error }
}

/// The handover socket for this `--base-id`, in a folder that only this user can enter.
pub fn socket_path(folder: Option<&Path>, base_id: u32) -> PathBuf {
    let folder = folder.map(Path::to_owned).unwrap_or_else(|| match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) => Path::new(&runtime).join("evenkeel"),
        None => std::env::temp_dir().join(format!("evenkeel-{}", nix::unistd::geteuid())),
    });
    folder.join(format!("proxy-{base_id}.sock"))
}

/// Makes the folder, or checks that it is private: anyone who could put a socket there could take over all connections.
fn prepare_folder(socket: &Path) -> Result<(), HandoverError> {
    let Some(folder) = socket.parent() else { return Err(HandoverError::NotPrivate(socket.to_owned())) };
    let made = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(folder);
    made.map_err(system("making the handover's folder"))?;
    let found = std::fs::symlink_metadata(folder).map_err(system("reading the handover's folder"))?;
    let own = nix::unistd::geteuid().as_raw();
    if found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(HandoverError::NotPrivate(folder.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_others_can_write_to_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let inside = folder.path().join("made").join("here");
        let socket = socket_path(Some(&inside), 7);
        assert_eq!(socket, inside.join("proxy-7.sock"));
        prepare_folder(&socket).expect("made");
        prepare_folder(&socket).expect("found");
        std::fs::set_permissions(&inside, std::fs::Permissions::from_mode(0o777)).expect("ours");
        assert!(matches!(prepare_folder(&socket), Err(HandoverError::NotPrivate(path)) if path == inside));
    }
}
