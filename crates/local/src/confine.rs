//! What a program may do: its user, no more than a few capabilities, and no way to more of either.
//!
//! As a container runtime does it for a Pod's containers with `allowPrivilegeEscalation: false` and all capabilities dropped.

use std::io;

use nix::unistd::{Gid, Uid};
use serde::{Deserialize, Serialize};

/// `CAP_DAC_READ_SEARCH` of capabilities(7).
const DAC_READ_SEARCH: u32 = 2;
/// `CAP_NET_BIND_SERVICE`.
const NET_BIND_SERVICE: u32 = 10;
/// `CAP_NET_ADMIN`.
const NET_ADMIN: u32 = 12;
/// More than the kernel will know for long; it says itself where its list ends.
const MAX_CAPABILITIES: u32 = 64;
/// `_LINUX_CAPABILITY_VERSION_3` of capget(2): two words of 32 bits for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

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
        Self { account, capabilities: 1 << NET_ADMIN }
    }

    /// Those of the control plane, which reads the user's files whoever owns them.
    pub fn of_control_plane() -> Self {
        Self { account: None, capabilities: 1 << DAC_READ_SEARCH }
    }

    /// Those of the name server and egress, which listens on port 53.
    pub fn of_egress(account: Option<Account>) -> Self {
        Self { account, capabilities: 1 << NET_BIND_SERVICE }
    }

    /// Gives up all other privileges for good. It makes only async-signal-safe calls, for use between fork and exec.
    pub fn take_on(self) -> io::Result<()> {
        // Until exec the process is a copy of its parent with the parent's memory, which other processes of its user
        // must not read.
        control(libc::PR_SET_DUMPABLE, 0, 0)?;
        for capability in (0..MAX_CAPABILITIES).filter(|number| self.capabilities & (1 << number) == 0) {
            match control(libc::PR_CAPBSET_DROP, capability.into(), 0) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
                dropped => dropped?,
            }
        }
        if let Some(account) = self.account {
            control(libc::PR_SET_KEEPCAPS, 1, 0)?;
            become_user(account)?;
        }
        self.limit_capabilities()?;
        control(libc::PR_SET_NO_NEW_PRIVS, 1, 0)
    }

    fn limit_capabilities(self) -> io::Result<()> {
        let header = [CAPABILITY_VERSION, 0];
        let words = [self.capabilities & u64::from(u32::MAX), self.capabilities >> 32];
        // Effective, permitted, inheritable; for the lower half and for the upper one.
        let sets = words.map(|word| [u32::try_from(word).unwrap_or(0); 3]);
        // SAFETY: both are of the layout of capset(2) in this version, and live through the call, which reads them.
        checked(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) })?;
        control(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64, 0)?;
        for capability in (0..MAX_CAPABILITIES).filter(|number| self.capabilities & (1 << number) != 0) {
            // Ambient capabilities survive exec for users other than root.
            control(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as u64, capability.into())?;
        }
        Ok(())
    }
}

/// Does not use the C library, whose functions notify all threads; after a fork there are none.
fn become_user(Account { uid, gid }: Account) -> io::Result<()> {
    drop_groups()?;
    // SAFETY: takes three integers.
    checked(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: takes three integers.
    checked(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

/// Leaves the calling thread, and no other, without supplementary groups.
pub(crate) fn drop_groups() -> io::Result<()> {
    // SAFETY: an empty list is read nowhere.
    checked(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) })
}

fn control(what: libc::c_int, first: u64, second: u64) -> io::Result<()> {
    // SAFETY: of the operations used here none takes a pointer; arguments that are not used must be zero.
    checked(unsafe { libc::prctl(what, first, second, 0_u64, 0_u64) }.into())
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
