//! Listening sockets of the Unix domain, and their files.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// The file of a listening socket that this process has bound or taken over.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Returns the file at a path; `None` for an abstract socket, which has none, and if it is gone.
    pub(super) fn at(path: &str) -> Option<Self> {
        if path.starts_with('@') {
            return None;
        }
        let metadata = fs::symlink_metadata(path).ok()?;
        Some(Self { path: path.into(), device: metadata.dev(), inode: metadata.ino() })
    }

    /// Sets its permissions, if it is still there.
    pub(super) fn allow(&self, mode: Option<u32>) {
        if let Some(mode) = mode.filter(|_| self.is_there())
            && let Err(error) = fs::set_permissions(&self.path, Permissions::from_mode(mode))
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot set the permissions of the socket");
        }
    }

    /// Removes it, unless another process has put its own there.
    pub(super) fn remove(&self) {
        if self.is_there()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the file of a closed socket");
        }
    }

    fn is_there(&self) -> bool {
        let is_it = |found: fs::Metadata| (found.dev(), found.ino()) == (self.device, self.inode);
        fs::symlink_metadata(&self.path).is_ok_and(is_it)
    }
}

/// A socket listening at a path, or at an abstract name after `@`. Its permissions are set before it listens, so nobody
/// connects before. A socket that an ended process has left there is replaced.
pub(super) fn bind(path: &str, mode: Option<u32>, backlog: u32) -> io::Result<TcpListener> {
    let address = match path.strip_prefix('@') {
        Some(name) => SockAddr::unix(format!("\0{name}"))?,
        None => {
            remove_stale(Path::new(path))?;
            SockAddr::unix(path)?
        }
    };
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address)?;
    if let Some(mode) = mode {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Removes a socket on which no process listens. Anything else at the path is an error.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A full queue of a live listener must not block.
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Err(io::Error::new(ErrorKind::AddrInUse, "another process listens there")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    /// Binds a path in a new folder after a preparation; the error's kind, if any.
    fn bound_after(prepare: impl FnOnce(&Path)) -> Result<(), ErrorKind> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        prepare(&path);
        let bound = bind(path.to_str().expect("text"), None, 8);
        bound.map(|_| assert!(UnixStream::connect(&path).is_ok(), "it listens")).map_err(|error| error.kind())
    }

    #[test]
    fn only_what_nobody_uses_is_replaced() {
        assert_eq!(bound_after(|_| {}), Ok(()));
        let stale = |path: &Path| drop(UnixListener::bind(path).expect("a socket"));
        assert_eq!(bound_after(stale), Ok(()));
        let mut held = None;
        let live = |path: &Path| held = Some(UnixListener::bind(path).expect("a socket"));
        assert_eq!(bound_after(live), Err(ErrorKind::AddrInUse));
        let file = |path: &Path| fs::write(path, "precious").expect("a file");
        assert_eq!(bound_after(file), Err(ErrorKind::AlreadyExists));
        let link = |path: &Path| std::os::unix::fs::symlink("/nowhere", path).expect("a link");
        assert_eq!(bound_after(link), Err(ErrorKind::AlreadyExists));
        let folder_gone = |path: &Path| fs::remove_dir(path.parent().expect("a folder")).expect("it is empty");
        assert_eq!(bound_after(folder_gone), Err(ErrorKind::NotFound));
        assert!(bind(&"x".repeat(200), None, 8).is_err(), "too long");
    }

    #[test]
    fn permissions_are_set_and_the_own_file_alone_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let text = path.to_str().expect("text");
        let mode = || fs::symlink_metadata(&path).expect("it is there").permissions().mode() & 0o777;
        let _socket = bind(text, Some(0o600), 8).expect("bound");
        assert_eq!(mode(), 0o600);
        let file = SocketFile::at(text).expect("a file");
        file.allow(Some(0o660));
        assert_eq!(mode(), 0o660);
        fs::rename(&path, folder.path().join("moved")).expect("moved");
        drop(UnixListener::bind(&path).expect("another's"));
        file.remove();
        assert!(path.exists(), "it is another's");
        SocketFile::at(text).expect("a file").remove();
        assert!(!path.exists());
    }

    #[test]
    fn abstract_names_have_no_file() {
        let name = format!("@evenkeel-test-{}", std::process::id());
        let _socket = bind(&name, None, 8).expect("bound");
        assert!(SocketFile::at(&name).is_none());
        assert_eq!(bind(&name, None, 8).map_err(|error| error.kind()).err(), Some(ErrorKind::AddrInUse));
    }
}
