//! Listening sockets inherited from the parent process by systemd's convention: `LISTEN_FDS` descriptors from 3 on,
//! named in `LISTEN_FDNAMES`. A socket's name is its listener's port. With `+` before the port the listener is bound to its own
//! address as well: the socket is in another network.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

/// The first inherited descriptor (`sd_listen_fds(3)`).
const FIRST: RawFd = 3;
/// Maximum number of sockets taken over.
const MAX_SOCKETS: usize = 1024;

/// A listening socket of the parent process.
#[derive(Debug)]
pub struct InheritedSocket {
    /// The port of its listener.
    pub port: u16,
    /// Whether the listener is bound to its own address as well.
    pub beside: bool,
    /// The socket.
    pub socket: OwnedFd,
}

/// Takes over the inherited sockets. Call it once, before anything else opens descriptors.
pub fn listening_sockets() -> Vec<InheritedSocket> {
    let variable = |name| std::env::var(name).ok();
    let for_us = variable("LISTEN_PID").is_none_or(|pid| pid.parse() == Ok(std::process::id()));
    let count: usize = variable("LISTEN_FDS").and_then(|count| count.parse().ok()).unwrap_or(0);
    if !for_us || count == 0 {
        return Vec::new();
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let sockets = ports(&names, count.min(MAX_SOCKETS));
    sockets.filter_map(|(port, beside, fd)| Some(InheritedSocket { port, beside, socket: take(fd).ok()? })).collect()
}

/// The port that each descriptor is for, and whether its name has a `+`; names that are not ports are not meant for us.
fn ports(names: &str, count: usize) -> impl Iterator<Item = (u16, bool, RawFd)> {
    let read = |(fd, name): (RawFd, &str)| {
        let own = name.strip_prefix('+');
        let port = own.unwrap_or(name);
        // A number may begin with `+`, too.
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        Some((port.parse().ok().filter(|_| is_number)?, own.is_some(), fd))
    };
    (FIRST..).zip(names.split(':')).take(count).filter_map(read)
}

fn take(fd: RawFd) -> io::Result<OwnedFd> {
    // Rustix takes a descriptor that is known to be open; this one may not be.
    // SAFETY: F_SETFD on any number is harmless; it fails when the descriptor is not open.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and by the convention only ours: nothing else in the process knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ports() {
        let ports = |names, count| ports(names, count).collect::<Vec<_>>();
        assert_eq!(ports("8080:+8443", 2), [(8080, false, 3), (8443, true, 4)]);
        assert_eq!(ports("http:8443:++1:-1", 4), [(8443, false, 4)]);
        assert_eq!(ports("8080:8443", 1), [(8080, false, 3)]);
        assert_eq!(ports("", 1), []);
    }
}
