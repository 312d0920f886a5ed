//! Notifies the service manager that started the process about its state, if the manager asks for that: systemd's
//! `sd_notify(3)`, for `Type=notify`.
//!
//! A datagram with lines of `NAME=VALUE` goes to the Unix socket that the variable `NOTIFY_SOCKET` names.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variable that names the manager's socket.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// How long the process waits for a manager that does not read its notifications.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The service manager to notify, if there is one.
#[derive(Debug, Clone, Default)]
pub struct Manager {
    socket: Option<OsString>,
}

impl Manager {
    /// The manager that started this process, by its environment.
    pub fn of_this_process() -> Self {
        Self { socket: std::env::var_os(NOTIFY_SOCKET).filter(|name| !name.is_empty()) }
    }

    /// Returns a manager that receives nothing: no notifications were requested, or another part of the process sends them.
    pub fn nobody() -> Self {
        Self::default()
    }

    /// The process serves.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// The process drains, and then ends.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// The process ends because another process has taken over: that process is the service now.
    pub fn replaced_by(&self, process: u32) {
        self.tell(&format!("MAINPID={process}"));
    }

    fn tell(&self, what: &str) {
        let Some(socket) = &self.socket else { return };
        match send(socket, what) {
            Ok(()) => tracing::debug!(what, "notified the service manager"),
            Err(error) => {
                tracing::warn!(%error, what, socket = %socket.display(), "{NOTIFY_SOCKET}: cannot notify the service manager");
            }
        }
    }
}

fn send(socket: &OsStr, what: &str) -> io::Result<()> {
    let name = socket.as_bytes();
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None if name.starts_with(b"/") => SocketAddr::from_pathname(socket)?,
        None => return Err(io::Error::new(io::ErrorKind::Unsupported, "neither a path nor an abstract name")),
    };
    let datagram = UnixDatagram::unbound()?;
    datagram.set_write_timeout(Some(SEND_TIMEOUT))?;
    datagram.send_to_addr(what.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a valid timeout");
        let mut buffer = [0; 256];
        let count = socket.recv(&mut buffer).expect("a datagram");
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    }

    #[test]
    fn each_state_is_a_datagram_to_a_path_or_an_abstract_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("notify");
        let abstract_name = format!("evenkeel-test-{}", std::process::id());
        let sockets = [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).expect("a free path")),
            (
                OsString::from(format!("@{abstract_name}")),
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).expect("short")).expect("free"),
            ),
        ];
        for (name, socket) in sockets {
            let manager = Manager { socket: Some(name) };
            manager.ready();
            manager.replaced_by(4711);
            manager.stopping();
            assert_eq!([heard(&socket), heard(&socket), heard(&socket)], ["READY=1", "MAINPID=4711", "STOPPING=1"]);
        }
    }

    #[test]
    fn a_manager_that_is_not_there_holds_nothing_up() {
        for socket in ["/nonexistent/notify", "@nobody-listens-here", "vsock:2:1", ""] {
            assert!(send(OsStr::new(socket), "READY=1").is_err(), "{socket}");
            Manager { socket: Some(socket.into()) }.ready();
        }
        Manager::nobody().ready();
    }
}
