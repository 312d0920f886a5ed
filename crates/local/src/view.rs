//! A program's view of the machine's file system: everything except the state directory, of which it sees only its own
//! part, and the temporary directories, in whose place it has its own ([`crate::temporary`]).
//!
//! A program with a user of its own must still be able to use its directory like the owner, and to read the directories
//! of root's PATH and home. Idmapped mounts make this possible: they show the owner's files as the program's.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, setfsgid, setfsuid};

use crate::confine::{Account, drop_groups};
use crate::mounts::{self, Tree, owner_of_open};
use crate::temporary::{self, MountPoints, Temporary};
pub use crate::view_error::ViewError;
use crate::volumes::{Directory, Mount};

/// Sockets of the machine's user sessions, which are hidden because a session manager runs programs on request outside
/// of the mesh.
const SESSIONS: &str = "/run/user";

/// The view of one program.
#[derive(Debug, Clone)]
pub struct View {
    /// The user it runs as, if that is not the one who started `up`.
    pub account: Option<Account>,
    /// The hidden directory: the state directory.
    pub hidden: PathBuf,
    /// Directories that it sees nevertheless, inside or outside the hidden one. They appear as its own, whoever owns
    /// them.
    pub own: Vec<PathBuf>,
    /// Directories in the hidden one that it sees as its own but cannot change: volumes with texts.
    pub own_read_only: Vec<PathBuf>,
    /// Volumes that are mounted over directories of the machine, and the folder that they are in.
    pub mounts: Option<(PathBuf, Vec<Mount>)>,
    /// A working directory that is none of these: the program must be able to enter it by itself.
    pub entered: Option<PathBuf>,
    /// Directories that it may read like their owner.
    pub readable: Vec<PathBuf>,
    /// Files that it sees instead of those of the machine: each with the latter.
    pub over: Vec<(PathBuf, PathBuf)>,
    /// Further places that it needs if they lie in a temporary directory of the machine; `None`: it has the machine's
    /// temporary directories.
    pub shown: Option<Vec<PathBuf>>,
}

/// The mounted part of a volume.
struct VolumeTree<'a> {
    mounted: &'a Mount,
    /// It, as the program sees it.
    tree: Tree,
    /// It, as it is on the disk.
    source: OwnedFd,
}

impl View {
    /// Adds volumes, which are in `folder`, and where they are mounted.
    pub(crate) fn add_volumes(&mut self, folder: PathBuf, volumes: &[Directory], mounts: &[Mount]) {
        let (writable, others): (Vec<_>, Vec<_>) = volumes.iter().partition(|volume| volume.is_writable());
        self.own.extend(writable.iter().map(|volume| volume.place(&folder)));
        self.own_read_only.extend(others.iter().map(|volume| volume.place(&folder)));
        self.mounts = Some((folder, mounts.to_vec()));
    }

    /// Mounts the view in the calling thread's mount namespace. The thread must not be used for anything else.
    pub(crate) fn mount(&self) -> Result<(), ViewError> {
        umask(Mode::from_bits_truncate(0o022));
        if self.account.is_some() {
            drop_groups().map_err(at(&self.hidden))?;
        }
        for (source, target) in &self.over {
            mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .map_err(|error| at(target)(error.into()))?;
        }
        // Cloned before anything is covered.
        let mut own: Vec<_> = self.own.iter().map(|path| self.own_tree(path)).collect::<Result<_, _>>()?;
        for path in &self.own_read_only {
            let (path, tree, mapped) = self.own_tree(path)?;
            tree.read_only().map_err(at(path))?;
            own.push((path, tree, mapped));
        }
        let volumes = self.mount_temporary(self.volume_trees()?)?;
        for path in &self.readable {
            if let Some(closed) = self.closed(path) {
                self.readable_tree(&closed).and_then(|tree| tree.attach(&closed)).map_err(at(&closed))?;
            }
        }
        // From here on nothing is executed: a volume may lie over the libraries of this program, too.
        for (mounted, tree) in volumes {
            mounted.target().and_then(|place| tree.attach_open(&place)).map_err(at(&mounted.path))?;
        }
        let sessions = Path::new(SESSIONS);
        if sessions.is_dir() {
            mounts::cover(sessions).and_then(|()| mounts::make_read_only(sessions)).map_err(at(sessions))?;
        }
        let covered = self.closed(&self.hidden).unwrap_or_else(|| self.hidden.clone());
        let (inside, outside): (Vec<_>, Vec<_>) = own.into_iter().partition(|(path, ..)| path.starts_with(&covered));
        for (path, tree, mapped) in outside {
            if mapped {
                tree.attach(path).map_err(at(path))?;
            }
        }
        mounts::cover(&covered).map_err(at(&covered))?;
        make_folder(&self.hidden).map_err(at(&self.hidden))?;
        for (path, tree, _) in inside {
            make_folder(path).and_then(|()| tree.attach(path)).map_err(at(path))?;
        }
        mounts::make_read_only(&covered).map_err(at(&covered))?;
        match self.own.iter().chain(&self.own_read_only).find_map(|path| Some((path, self.try_out(path).err()?))) {
            Some((path, source)) => Err(at(path)(source)),
            None => self.enter(),
        }
    }

    /// Mounts temporary directories of the program's own, with the volumes that are mounted over them. The others are
    /// returned; there is a place for each.
    fn mount_temporary<'a>(&self, volumes: Vec<VolumeTree<'a>>) -> Result<Vec<(&'a Mount, Tree)>, ViewError> {
        let own: Vec<PathBuf> = self.own.iter().filter(|path| !path.starts_with(&self.hidden)).cloned().collect();
        let all = match &self.shown {
            Some(shown) => Temporary::prepare(&own, shown.iter().chain(&self.readable).chain(&self.entered))?,
            None => Vec::new(),
        };
        let mut points = MountPoints::default();
        for temporary in &all {
            if volumes.iter().all(|volume| volume.mounted.path != temporary.directory()) {
                temporary.mount_empty(&mut points)?;
            }
        }
        let mut trees = Vec::new();
        for VolumeTree { mounted, tree, source } in volumes {
            let is_directory = temporary::is_directory(&source).map_err(at(&mounted.path))?;
            points.make(&mounted.path, is_directory)?;
            points.add(&mounted.path, source);
            trees.push((mounted, tree));
        }
        points.make(&self.hidden, true)?;
        all.iter().try_for_each(|temporary| temporary.make_points(&points))?;
        let own = temporary::of_user().filter(|own| all.iter().any(|temporary| own.starts_with(temporary.directory())));
        if let Some(own) = &own {
            points.make(own, true)?;
        }
        let (over, others): (Vec<_>, Vec<_>) = trees
            .into_iter()
            .partition(|(mounted, _)| all.iter().any(|temporary| temporary.directory() == mounted.path));
        for (mounted, tree) in over {
            mounted.target().and_then(|place| tree.attach_open(&place)).map_err(at(&mounted.path))?;
        }
        if let Some(own) = &own {
            temporary::open_to_all(own).map_err(at(own))?;
        }
        all.into_iter().try_for_each(Temporary::show)?;
        Ok(others)
    }

    /// Whether the program can enter its working directory.
    fn enter(&self) -> Result<(), ViewError> {
        let Some(path) = &self.entered else { return Ok(()) };
        let entered = self.with_program_credentials(|| fs::metadata(path.join(".")));
        entered.map(drop).map_err(|source| ViewError::Closed { path: path.clone(), source })
    }

    /// Clones a directory so that the program owns it; also returns whether it has another owner on disk.
    fn own_tree<'a>(&self, path: &'a Path) -> Result<(&'a Path, Tree, bool), ViewError> {
        let make = || {
            let (tree, owner) = (Tree::clone_directory(path)?, mounts::owner(path)?);
            let mapped = self.account.is_some_and(|account| account != owner);
            if let Some(account) = self.account.filter(|_| mapped) {
                tree.map_owner(owner, account)?;
            }
            Ok((path, tree, mapped))
        };
        make().map_err(at(path))
    }

    /// Clones the mounted parts of volumes so that the program owns them.
    fn volume_trees(&self) -> Result<Vec<VolumeTree<'_>>, ViewError> {
        let Some((folder, mounts)) = &self.mounts else { return Ok(Vec::new()) };
        let make = |mounted: &Mount| {
            let source = mounted.source(folder)?;
            let tree = Tree::clone_open(&source)?;
            let owner = owner_of_open(&source)?;
            if let Some(account) = self.account.filter(|account| *account != owner) {
                tree.map_owner(owner, account)?;
            }
            if mounted.read_only {
                tree.read_only()?;
            }
            Ok((tree, source))
        };
        let volume = |mounted| {
            let (tree, source) = make(mounted).map_err(at(&mounted.path))?;
            Ok(VolumeTree { mounted, tree, source })
        };
        mounts.iter().map(volume).collect()
    }

    fn readable_tree(&self, path: &Path) -> io::Result<Tree> {
        let tree = Tree::clone_directory(path)?;
        if let Some(account) = self.account {
            tree.map_owner(mounts::owner(path)?, account)?;
        }
        tree.read_only()?;
        Ok(tree)
    }

    /// The first directory on this path that the program may not enter.
    fn closed(&self, path: &Path) -> Option<PathBuf> {
        let mut way: Vec<&Path> = path.ancestors().collect();
        way.reverse();
        let closed = |folder: &&Path| {
            let entered = self.with_program_credentials(|| fs::metadata(folder.join(".")));
            entered.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        way.into_iter().find(closed).map(Path::to_path_buf)
    }

    fn try_out(&self, path: &Path) -> io::Result<()> {
        self.with_program_credentials(|| fs::read_dir(path).map(drop))
    }

    /// Runs `look` with the program's file system user and group.
    fn with_program_credentials<T>(&self, look: impl FnOnce() -> T) -> T {
        let Some(account) = self.account else { return look() };
        let (uid, gid) = account.ids();
        // The group comes first and last, because changing it needs the privileges of the original user.
        setfsgid(gid);
        let before = setfsuid(uid);
        let seen = look();
        setfsuid(before);
        setfsgid(Gid::from_raw(0));
        seen
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

fn at(path: &Path) -> impl Fn(io::Error) -> ViewError + use<> {
    ViewError::at(path)
}
