//! Options of listening sockets (`socket_options`).

use std::io;
use std::os::fd::AsRawFd;

use evenkeel_runtime_config::bind::{ListenOption, SocketState};
use socket2::Socket;

/// Sets the options that are to be set in this state.
pub(super) fn set_in(socket: &Socket, options: &[ListenOption], state: SocketState) -> io::Result<()> {
    options.iter().filter(|option| option.state == state).try_for_each(|option| set(socket, option))
}

/// Sets an option. The socket crates only offer options that they know by name.
pub(super) fn set(socket: &Socket, option: &ListenOption) -> io::Result<()> {
    let length = libc::socklen_t::try_from(option.value.len()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for the life of `socket`, and the pointer and the length describe the value's bytes, which the kernel
    // only reads.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), option.level, option.name, option.value.as_ptr().cast(), length)
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("setsockopt(level {}, name {}): {error}", option.level, option.name)))
}
