//! A network namespace for runs through an API server: Kubernetes refuses endpoints on loopback, so the backend needs other
//! addresses, and these are to be on no interface of the machine.

use std::process::Command;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use crate::error::LabError;
use crate::mesh::Address;

/// Moves this thread, and what it starts later, into a namespace whose loopback interface has these addresses, too.
///
/// # Errors
/// It needs root, and iproute2.
pub fn enter(addresses: &[Address]) -> Result<(), LabError> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|error| match error {
        Errno::EPERM => LabError::Usage(
            "--kubernetes needs root, for a network namespace of its own: Kubernetes refuses endpoints on loopback"
                .to_owned(),
        ),
        error => LabError::Usage(format!("making a network namespace: {error}")),
    })?;
    ip(&["link", "set", "lo", "up"])?;
    addresses.iter().try_for_each(|address| ip(&["address", "add", &format!("{address}/32"), "dev", "lo"]))
}

fn ip(arguments: &[&str]) -> Result<(), LabError> {
    let line = format!("ip {}", arguments.join(" "));
    let output = Command::new("ip").args(arguments).output().map_err(LabError::io(format!("starting {line}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(LabError::Usage(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
