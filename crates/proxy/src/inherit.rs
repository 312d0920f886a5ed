//! Listening sockets inherited from the parent process by systemd's convention: `LISTEN_FDS` descriptors from 3 on,
//! named in `LISTEN_FDNAMES`. A socket's name is its listener's port.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

/// The first inherited descriptor (`sd_listen_fds(3)`).
const FIRST: RawFd = 3;
/// Maximum number of sockets taken over.
const MAX_SOCKETS: usize = 1024;

/// Takes over the inherited sockets. Call it once, before anything else opens descriptors.
pub fn listening_sockets() -> Vec<(u16, OwnedFd)> {
    let variable = |name| std::env::var(name).ok();
    let for_us = variable("LISTEN_PID").is_none_or(|pid| pid.parse() == Ok(std::process::id()));
    let count: usize = variable("LISTEN_FDS").and_then(|count| count.parse().ok()).unwrap_or(0);
    if !for_us || count == 0 {
        return Vec::new();
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    ports(&names, count.min(MAX_SOCKETS)).filter_map(|(port, fd)| Some((port, take(fd).ok()?))).collect()
}

/// The port that each descriptor is for; names that are not ports are not meant for us.
fn ports(names: &str, count: usize) -> impl Iterator<Item = (u16, RawFd)> {
    (FIRST..).zip(names.split(':')).take(count).filter_map(|(fd, name)| Some((name.parse().ok()?, fd)))
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
        assert_eq!(ports("8080:8443", 2), [(8080, 3), (8443, 4)]);
        assert_eq!(ports("http:8443", 2), [(8443, 4)]);
        assert_eq!(ports("8080:8443", 1), [(8080, 3)]);
        assert_eq!(ports("", 1), []);
    }
}
