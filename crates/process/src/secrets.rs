//! What a process holds in memory, keys above all, is nobody else's to look at.

use std::io;

/// Closes this process's memory, variables and descriptors to other processes of its user, and leaves no core dump. For good: only
/// running another executable opens them again.
///
/// In `/proc` its files belong to root from now on, which a process is not asked about for its own namespaces and descriptors.
/// To be called before there is a secret.
///
/// # Errors
/// The system's, which knows of none.
pub fn hide() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}
