//! Protects what a process holds in memory, above all keys, from other processes.

use std::io;

/// Closes this process's memory, environment and descriptors to other processes of its user, and disables core dumps.
/// This lasts until the process executes another program.
///
/// From then on its files in `/proc` belong to root; the process itself can still use its own namespaces and
/// descriptors. Call it before the process holds a secret.
///
/// # Errors
/// Those of the system call; none is known.
pub fn hide() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}
