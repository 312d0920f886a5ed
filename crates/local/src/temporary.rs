//! Temporary directories of a program's own, as a container has them: empty at its start, limited, and gone with it.
//!
//! Programs write files of fixed names there, which replicas must not share, and trust what they find there. Places
//! below the machine's directories that the program needs, such as the mesh's directory, are shown nevertheless.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use nix::mount::{MsFlags, mount};
use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, open, openat};

use crate::mounts::Tree;
use crate::view_error::ViewError;
use crate::volumes::make_folders;

/// The directories of the machine that each program has for itself.
const DIRECTORIES: [&str; 2] = ["/tmp", "/var/tmp"];
/// What each may hold: they are in memory, of which a program must not take all. A program that writes more has an
/// `emptyDir`, which is on the disk.
const OPTIONS: &str = "mode=1777,size=512m,nr_inodes=65536";
/// Directories of programs below the prefix of an installation, which also has their libraries.
const PROGRAM_DIRECTORIES: [&str; 2] = ["bin", "sbin"];

/// The directories that programs have for themselves, without symbolic links.
pub(crate) fn directories() -> Vec<PathBuf> {
    let mut real: Vec<PathBuf> = DIRECTORIES.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    real.sort();
    real.dedup();
    real.into_iter().filter(|path| path.is_dir() && path != Path::new("/")).collect()
}

/// The path without symbolic links above it, if it lies in one of the directories. What a link of the machine in there
/// leads to does not count, because programs do not see the link.
pub(crate) fn place(path: &Path) -> Option<PathBuf> {
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let named = DIRECTORIES.iter().find_map(|directory| Some((directory, path.strip_prefix(directory).ok()?)));
    let (directory, below) = named.filter(|_| is_plain)?;
    let real = fs::canonicalize(directory).ok()?;
    // Not `join`, which would add a slash for an empty path.
    Some(real.components().chain(below.components()).collect())
}

/// What a program needs of a directory in its PATH: of an installation with a prefix of its own also the libraries.
pub(crate) fn installation(folder: &Path) -> PathBuf {
    let is_of_programs = folder.file_name().is_some_and(|name| PROGRAM_DIRECTORIES.iter().any(|known| name == *known));
    let prefix = folder.parent().filter(|prefix| is_of_programs && directories().iter().all(|other| other != prefix));
    prefix.unwrap_or(folder).to_path_buf()
}

/// Directories that programs need: the home directory and those of PATH.
pub(crate) fn named_by_environment() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let named = home.into_iter().chain(std::env::split_paths(&path));
    named.filter(|folder| folder.is_absolute() && folder.is_dir()).collect()
}

/// What programs need of these directories where they lie below a temporary directory, which is hidden from them.
pub(crate) fn of_environment() -> Vec<PathBuf> {
    let hidden = |folder: &PathBuf| directories().iter().any(|one| folder.starts_with(one) && folder != one);
    named_by_environment().iter().filter(|folder| hidden(folder)).map(|folder| installation(folder)).collect()
}

/// The temporary directories of a program, not mounted yet.
#[derive(Debug)]
pub(crate) struct Temporary {
    directory: PathBuf,
    /// What is shown of the machine's directory.
    shown: Vec<Shown>,
}

/// A place of the machine.
#[derive(Debug)]
struct Shown {
    path: PathBuf,
    is_directory: bool,
    tree: Tree,
}

impl Temporary {
    /// Prepares all of them; `own` and `shown` are the places of the machine that the program needs. A directory that is
    /// itself one of `own` stays the machine's.
    pub(crate) fn prepare<'a>(
        own: &'a [PathBuf],
        shown: impl IntoIterator<Item = &'a PathBuf>,
    ) -> Result<Vec<Self>, ViewError> {
        // What does not exist cannot be needed.
        let mut places: Vec<PathBuf> = own.iter().chain(shown).filter_map(|path| path.canonicalize().ok()).collect();
        places.sort();
        let mut all = Vec::new();
        for directory in directories().into_iter().filter(|directory| !own.contains(directory)) {
            let mut shown: Vec<Shown> = Vec::new();
            for place in places.iter().filter(|place| **place != directory && place.starts_with(&directory)) {
                if shown.last().is_none_or(|before| !place.starts_with(&before.path)) {
                    let tree = Tree::clone_directory(place).map_err(ViewError::at(place))?;
                    let is_directory = place.is_dir();
                    if !is_directory {
                        // A single file is a program.
                        tree.read_only().map_err(ViewError::at(place))?;
                    }
                    shown.push(Shown { path: place.clone(), is_directory, tree });
                }
            }
            all.push(Self { directory, shown });
        }
        Ok(all)
    }

    /// Where it is mounted.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Mounts an empty directory, which lasts as long as the mount namespace.
    pub(crate) fn mount_empty(&self, points: &mut MountPoints) -> Result<(), ViewError> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        let mut make = || {
            mount(Some("evenkeel"), &self.directory, Some("tmpfs"), flags, Some(OPTIONS))?;
            points.add(&self.directory, open(&self.directory, PLACE, Mode::empty())?);
            Ok(())
        };
        make().map_err(ViewError::at(&self.directory))
    }

    /// Makes the places at which [`Self::show`] attaches.
    pub(crate) fn make_points(&self, points: &MountPoints) -> Result<(), ViewError> {
        self.shown.iter().try_for_each(|shown| points.make(&shown.path, shown.is_directory))
    }

    /// Shows what is needed of the machine's directory.
    pub(crate) fn show(self) -> Result<(), ViewError> {
        self.shown.into_iter().try_for_each(|Shown { path, tree, .. }| tree.attach(&path).map_err(ViewError::at(&path)))
    }
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);

/// Directories that are mounted in a view, in which further mounts need a file or a directory to be mounted over.
///
/// They are made in the directory itself, not through the mount, which may show its owner's files as those of the
/// program, and then has no place for files of anybody else.
#[derive(Debug, Default)]
pub(crate) struct MountPoints {
    bases: Vec<(PathBuf, OwnedFd)>,
}

impl MountPoints {
    /// Adds the directory that is mounted at this path.
    pub(crate) fn add(&mut self, path: &Path, source: OwnedFd) {
        self.bases.push((path.to_path_buf(), source));
    }

    /// Makes a directory or a file at this path, if that is in one of the mounted directories.
    pub(crate) fn make(&self, path: &Path, directory: bool) -> Result<(), ViewError> {
        let failed = ViewError::at(path);
        let inside = self.bases.iter().filter_map(|(base, source)| Some((base, path.strip_prefix(base).ok()?, source)));
        let inside = inside.filter(|(_, below, _)| !below.as_os_str().is_empty());
        let Some((_, below, source)) = inside.max_by_key(|(base, ..)| base.as_os_str().len()) else { return Ok(()) };
        let make = || {
            let source = source.try_clone()?;
            let (Some(above), Some(name), false) = (below.parent(), below.file_name(), directory) else {
                return make_folders(source, below).map(drop);
            };
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(make_folders(source, above)?, name, flags, Mode::from_raw_mode(0o644))?;
            Ok(())
        };
        make().map_err(failed)
    }
}

/// Lets everybody put files into this directory, which nobody else may remove.
pub(crate) fn open_to_all(path: &Path) -> io::Result<()> {
    let folder = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    Ok(fchmod(folder, Mode::from_raw_mode(0o1777))?)
}

/// Whether a directory is open here, not a file.
pub(crate) fn is_directory(place: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(place)?.st_mode).is_dir())
}

/// The directory that the user of `up` has for temporary files, if programs that get the variable have none there.
pub(crate) fn of_user() -> Option<PathBuf> {
    let named = PathBuf::from(std::env::var_os("TMPDIR")?);
    place(&named).filter(|path| directories().iter().all(|other| other != path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_a_temporary_directory_has_its_place_there() {
        let check = |path: &str, expected: Option<&str>| {
            let place = place(Path::new(path));
            assert_eq!(place.as_deref().and_then(Path::to_str), expected, "{path}");
        };
        check("/tmp", Some("/tmp"));
        check("/tmp/", Some("/tmp"));
        check("/tmp/a/b", Some("/tmp/a/b"));
        check("/var/tmp/a", Some("/var/tmp/a"));
        check("/tmp/../etc", None);
        check("/tmpfs", None);
        check("tmp/a", None);
        check("/var/lib", None);
    }

    #[test]
    fn programs_of_a_prefix_come_with_their_libraries() {
        let check = |folder: &str, expected: &str| assert_eq!(installation(Path::new(folder)), Path::new(expected));
        check("/tmp/venv/bin", "/tmp/venv");
        check("/tmp/tools", "/tmp/tools");
        check("/tmp/bin", "/tmp/bin");
    }

    #[test]
    fn places_for_mounts_are_made_in_the_directory_that_lies_there() -> Result<(), Box<dyn std::error::Error>> {
        let (outer, inner) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let mut points = MountPoints::default();
        for (path, folder) in [("/t", outer.path()), ("/t/v", inner.path())] {
            points.add(Path::new(path), open(folder, PLACE, Mode::empty())?);
        }
        for (path, directory) in
            [("/t/a/b", true), ("/t/a/file", false), ("/t/v/c", true), ("/t", true), ("/x/y", true)]
        {
            points.make(Path::new(path), directory)?;
            points.make(Path::new(path), directory)?;
        }
        assert!(outer.path().join("a/b").is_dir() && outer.path().join("a/file").is_file());
        assert!(inner.path().join("c").is_dir() && !outer.path().join("v").exists());
        std::os::unix::fs::symlink("/etc", inner.path().join("link"))?;
        assert!(points.make(Path::new("/t/v/link/made"), true).is_err(), "no link is followed");
        Ok(())
    }
}
