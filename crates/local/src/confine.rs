//! The privileges of a program: its user and a few capabilities, without a way to gain more.
//!
//! This is what a container runtime does for containers with `allowPrivilegeEscalation: false` and all capabilities
//! dropped.

use std::io;

use nix::unistd::{Gid, Uid};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

/// A user and a group of the system, privileged or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Account {
    /// Both, in the types of the system calls.
    pub fn ids(self) -> (Uid, Gid) {
        (Uid::from_raw(self.uid), Gid::from_raw(self.gid))
    }
}

/// The privileges that a program keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Privileges {
    /// The user it runs as. `None`: the user of `up` itself, because there is no other one (a user namespace without
    /// privileges has only one).
    pub account: Option<Account>,
    /// Its capabilities, as a bit set.
    capabilities: u64,
}

impl Privileges {
    /// The privileges of an application: only those of its user.
    pub fn of_application(account: Option<Account>) -> Self {
        Self { account, capabilities: 0 }
    }

    /// The privileges of a proxy, which marks its sockets (`SO_MARK`) so that they are not captured.
    pub fn of_proxy(account: Option<Account>) -> Self {
        Self { account, capabilities: CapabilitySet::NET_ADMIN.bits() }
    }

    /// The privileges of the control plane, which reads the user's files, whoever owns them.
    pub fn of_control_plane() -> Self {
        Self { account: None, capabilities: CapabilitySet::DAC_READ_SEARCH.bits() }
    }

    /// The privileges of the egress process, which is the name server and listens on port 53.
    pub fn of_egress(account: Option<Account>) -> Self {
        Self { account, capabilities: CapabilitySet::NET_BIND_SERVICE.bits() }
    }

    /// Gives up all other privileges for good. It makes only async-signal-safe calls, for use between fork and exec.
    pub fn drop_others(self) -> io::Result<()> {
        // Until exec the process is a copy of its parent with the parent's memory, which other processes of its user
        // must not read.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        for capability in one_by_one(!self.capabilities) {
            match remove_capability_from_bounding_set(capability) {
                // This is after the last capability that the kernel knows.
                Err(Errno::INVAL) => break,
                dropped => dropped?,
            }
        }
        if let Some(account) = self.account {
            set_keep_capabilities(true)?;
            become_user(account)?;
        }
        self.limit_capabilities()?;
        Ok(set_no_new_privs(true)?)
    }

    fn limit_capabilities(self) -> io::Result<()> {
        let all = CapabilitySet::from_bits_retain(self.capabilities);
        set_capabilities(None, CapabilitySets { effective: all, permitted: all, inheritable: all })?;
        clear_ambient_capability_set()?;
        for capability in one_by_one(self.capabilities) {
            // Ambient capabilities survive exec for users other than root.
            configure_capability_in_ambient_set(capability, true)?;
        }
        Ok(())
    }
}

/// Lets no descriptor but the standard streams survive exec: whoever started `up` or `exec` may have left some open. It
/// makes one async-signal-safe call, for use between fork and exec.
pub(crate) fn close_on_exec() -> io::Result<()> {
    const FIRST: u32 = 3;
    // Neither nix nor rustix wraps it.
    // SAFETY: the call takes integers, and changes flags of this process's descriptors only.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if closed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The capabilities of a set, from the lowest number up.
fn one_by_one(set: u64) -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS).map(|number| 1 << number).filter(move |bit| set & bit != 0).map(CapabilitySet::from_bits_retain)
}

/// Changes the user of the calling thread only. The C library's functions change all threads, which do not exist after
/// a fork.
fn become_user(Account { uid, gid }: Account) -> io::Result<()> {
    drop_groups()?;
    let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// Removes the supplementary groups of the calling thread only.
pub(crate) fn drop_groups() -> io::Result<()> {
    Ok(set_thread_groups(&[])?)
}
