//! What a program may do: its user, no more than a few capabilities, and no way to more of either.
//!
//! As a container runtime does it for a Pod's containers with `allowPrivilegeEscalation: false` and all capabilities dropped.

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

/// A user and a group of the system, none of its privileged ones or just those, as the case may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Account {
    /// Both as the system calls take them.
    pub fn ids(self) -> (Uid, Gid) {
        (Uid::from_raw(self.uid), Gid::from_raw(self.gid))
    }
}

/// What is left of a program's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Privileges {
    /// Whom it runs as; none: as `up` itself does, since there is no other user (a user namespace without privileges has one only).
    pub account: Option<Account>,
    /// Its capabilities, bit by bit.
    capabilities: u64,
}

impl Privileges {
    /// Those of an application: none beyond its user's.
    pub fn of_application(account: Option<Account>) -> Self {
        Self { account, capabilities: 0 }
    }

    /// Those of a proxy, which marks its sockets (`SO_MARK`) so that they are not captured.
    pub fn of_proxy(account: Option<Account>) -> Self {
        Self { account, capabilities: CapabilitySet::NET_ADMIN.bits() }
    }

    /// Those of the control plane, which reads the user's files whoever owns them.
    pub fn of_control_plane() -> Self {
        Self { account: None, capabilities: CapabilitySet::DAC_READ_SEARCH.bits() }
    }

    /// Those of the name server and egress, which listens on port 53.
    pub fn of_egress(account: Option<Account>) -> Self {
        Self { account, capabilities: CapabilitySet::NET_BIND_SERVICE.bits() }
    }

    /// Gives up all other privileges for good. It makes only async-signal-safe calls, for use between fork and exec.
    pub fn take_on(self) -> io::Result<()> {
        // Until exec the process is a copy of its parent with the parent's memory, which other processes of its user
        // must not read.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        for capability in one_by_one(!self.capabilities) {
            match remove_capability_from_bounding_set(capability) {
                // Behind the last one that the kernel knows.
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

/// The capabilities of a set, from the lowest number up.
fn one_by_one(set: u64) -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS).map(|number| 1 << number).filter(move |bit| set & bit != 0).map(CapabilitySet::from_bits_retain)
}

/// Of the calling thread alone. The C library's functions tell all threads: after a fork there are none.
fn become_user(Account { uid, gid }: Account) -> io::Result<()> {
    drop_groups()?;
    let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// Leaves the calling thread, and no other, without supplementary groups.
pub(crate) fn drop_groups() -> io::Result<()> {
    Ok(set_thread_groups(&[])?)
}
