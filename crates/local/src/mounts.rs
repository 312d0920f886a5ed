//! Mounts as separate objects (open_tree(2), mount_setattr(2), move_mount(2)): they are cloned, changed, and only then
//! attached.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, fstat};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::confine::Account;
use crate::init;

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A clone of a directory with all mounts below it, not attached anywhere yet.
#[derive(Debug)]
pub(crate) struct Tree(OwnedFd);

impl Tree {
    /// Clones the directory at this path.
    pub(crate) fn clone_directory(path: &Path) -> io::Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        Ok(Self(open_tree(CWD, path, flags)?))
    }

    /// Clones the directory or file that is open here.
    pub(crate) fn clone_open(place: &OwnedFd) -> io::Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        Ok(Self(open_tree(place, c"", flags)?))
    }

    /// Maps ownership: files of `of` on disk appear as `to`'s, and files that `to` creates belong to `of` on disk.
    /// Files of others belong to nobody.
    pub(crate) fn map_owner(&self, of: Account, to: Account) -> io::Result<()> {
        let namespace = user_namespace(of, to)?;
        let descriptor = u64::try_from(namespace.as_raw_fd()).unwrap_or_default();
        self.set(&Attributes { set: libc::MOUNT_ATTR_IDMAP, user_namespace: descriptor, ..Attributes::default() })
    }

    /// Makes it read-only.
    pub(crate) fn read_only(&self) -> io::Result<()> {
        self.set(&Attributes { set: libc::MOUNT_ATTR_RDONLY, ..Attributes::default() })
    }

    fn set(&self, attributes: &Attributes) -> io::Result<()> {
        let (flags, size) = (libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, size_of::<Attributes>());
        // No crate wraps it yet.
        // SAFETY: the empty path and the structure live through the call, which reads no more than the size given.
        let set = unsafe {
            libc::syscall(libc::SYS_mount_setattr, self.0.as_raw_fd(), c"".as_ptr(), flags, attributes, size)
        };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Attaches it over the directory at this path.
    pub(crate) fn attach(self, path: &Path) -> io::Result<()> {
        Ok(move_mount(&self.0, c"", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    }

    /// Attaches it over the directory or file that is open here.
    pub(crate) fn attach_open(self, place: &OwnedFd) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(&self.0, c"", place, c"", flags)?)
    }
}

/// Mounts an empty directory over this one; root fills it before [`make_read_only`].
pub(crate) fn cover(path: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some("evenkeel"), path, Some("tmpfs"), flags, Some("mode=0755,size=64k"))?)
}

/// Makes a [`cover`] read-only.
pub(crate) fn make_read_only(path: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(None::<&str>, path, None::<&str>, flags, None::<&str>)?)
}

/// The owner of a file.
pub(crate) fn owner(path: &Path) -> io::Result<Account> {
    let found = fs::metadata(path)?;
    Ok(Account { uid: found.uid(), gid: found.gid() })
}

/// The owner of the file that is open here.
pub(crate) fn owner_of_open(place: &OwnedFd) -> io::Result<Account> {
    let found = fstat(place)?;
    Ok(Account { uid: found.st_uid, gid: found.st_gid })
}

/// A user namespace that maps `inside` to `outside`. A child process stays in it until its map is written and it is
/// opened.
fn user_namespace(inside: Account, outside: Account) -> io::Result<OwnedFd> {
    let mut command = init::command();
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(|| Ok(unshare(CloneFlags::CLONE_NEWUSER)?)) };
    let mut holder = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let describe = || {
        let folder = Path::new("/proc").join(holder.id().to_string());
        fs::write(folder.join("uid_map"), format!("{} {} 1", inside.uid, outside.uid))?;
        fs::write(folder.join("gid_map"), format!("{} {} 1", inside.gid, outside.gid))?;
        fs::File::open(folder.join("ns/user")).map(OwnedFd::from)
    };
    let namespace = describe();
    holder.kill()?;
    holder.wait()?;
    namespace
}
