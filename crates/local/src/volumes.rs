//! Volumes: empty directories, and directories with the texts of ConfigMaps and Secrets.
//!
//! All files of a volume change at once, as with the kubelet: they are links through `..data`, which is replaced by a
//! rename.
//!
//! The supervisor may be root, and programs are not to be trusted, so each volume is a directory in a folder that only
//! the supervisor changes. A program sees each of them as a mount of its own ([`crate::view`]): it cannot put anything in
//! the place of a volume, and cannot change one with texts. What it does in an empty directory is not looked at again.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};

/// The symbolic link that all files go through.
const DATA: &str = "..data";

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Its name.
    pub name: String,
    /// Its content.
    pub content: Content,
}

/// The content of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// An empty directory.
    Empty,
    /// Exactly these files.
    Files(Vec<TextFile>),
}

/// A file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFile {
    /// Its path, relative to the volume and inside it.
    pub path: PathBuf,
    /// Its content.
    pub bytes: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
}

/// A mounted volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The volume's name.
    pub volume: String,
    /// A directory (or file) of the machine, or in a temporary directory of the program's own, over which the volume is
    /// mounted.
    pub path: PathBuf,
    /// The mounted part of the volume; `None`: all of it.
    pub sub_path: Option<PathBuf>,
    /// Whether it must not be written to.
    pub read_only: bool,
}

impl Directory {
    /// The environment variable with its path, mounted or not.
    pub fn variable(&self) -> String {
        let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        format!("EVENKEEL_VOLUME_{}", self.name.chars().map(letter).collect::<String>())
    }

    /// Its path in the folder of the replica's volumes.
    pub fn place(&self, folder: &Path) -> PathBuf {
        folder.join(&self.name)
    }

    /// Whether programs may change it.
    pub fn is_writable(&self) -> bool {
        self.content == Content::Empty
    }

    /// Creates it, or updates its files. `folder` must be one that only this process's user changes.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let place = self.place(folder);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        let is_new = match fs::DirBuilder::new().mode(0o755).create(&place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            made => made.is_ok(),
        };
        match &self.content {
            Content::Empty if is_new => fs::set_permissions(&place, fs::Permissions::from_mode(0o777)),
            Content::Empty => Ok(()),
            Content::Files(files) => write_files(&place, files),
        }
    }
}

fn write_files(place: &Path, files: &[TextFile]) -> io::Result<()> {
    let data = place.join(DATA);
    let present = fs::read_link(&data).ok();
    if present.is_some() && files.iter().all(|file| is_as_wanted(&data, file)) && count(&data) == files.len() {
        return Ok(());
    }
    // Two names alternate, so mounted or open files stay valid until the update after the next.
    let fresh = if present.as_deref() == Some(Path::new("..a")) { "..b" } else { "..a" };
    let _ = fs::remove_dir_all(place.join(fresh));
    fs::create_dir(place.join(fresh))?;
    for file in files {
        let path = place.join(fresh).join(&file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut written = fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(&path)?;
        io::Write::write_all(&mut written, &file.bytes)?;
        written.set_permissions(fs::Permissions::from_mode(file.mode & 0o777))?;
    }
    let next = place.join("..next");
    let _ = fs::remove_file(&next);
    symlink(fresh, &next)?;
    fs::rename(next, &data)?;
    let tops = || files.iter().filter_map(|file| file.path.components().next()).map(|top| place.join(top));
    for top in tops().filter(|top| top.symlink_metadata().is_err()) {
        symlink(Path::new(DATA).join(top.file_name().unwrap_or_default()), top)?;
    }
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let path = entry.path();
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".."));
        // A directory was made for a `subPath` that the texts do not have.
        if !ours && !entry.file_type()?.is_dir() && tops().all(|top| top != path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn is_as_wanted(data: &Path, file: &TextFile) -> bool {
    let path = data.join(&file.path);
    let mode = fs::metadata(&path).map(|metadata| metadata.permissions().mode() & 0o777);
    fs::read(&path).is_ok_and(|bytes| bytes == file.bytes) && mode.is_ok_and(|mode| mode == file.mode & 0o777)
}

fn count(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { count(&entry.path()) } else { 1 }).sum()
}

impl Mount {
    /// Opens the part of the volume that is mounted, and creates it if it is missing. Nothing outside of the volume is
    /// reached, whatever links are in it: a volume with texts has links of its own, another one must have none.
    pub(crate) fn source(&self, folder: &Path) -> io::Result<OwnedFd> {
        let opened = OFlags::PATH | OFlags::CLOEXEC;
        let (no_links, no_mode) = (ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS, Mode::empty());
        let volume = openat(CWD, folder.join(&self.volume), opened | OFlags::NOFOLLOW | OFlags::DIRECTORY, no_mode)?;
        let Some(below) = &self.sub_path else { return Ok(volume) };
        let links = if self.read_only { ResolveFlags::NO_MAGICLINKS } else { no_links };
        match openat2(&volume, below, opened, no_mode, links | ResolveFlags::BENEATH) {
            Err(rustix::io::Errno::NOENT) => {}
            found => return Ok(found?),
        }
        make_folders(volume, below)
    }

    /// Opens the directory or file of the machine that it is mounted over. A link that has taken its place is not
    /// followed.
    pub(crate) fn target(&self) -> io::Result<OwnedFd> {
        let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(CWD, &self.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), no_links)?)
    }
}

/// Opens the directory at this path below another one, and makes what is missing of it. No link is followed.
pub(crate) fn make_folders(base: OwnedFd, below: &Path) -> io::Result<OwnedFd> {
    let opened = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let inside = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
    let mut place = base;
    for part in below {
        match mkdirat(&place, part, Mode::from_raw_mode(0o777)) {
            Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
            _ => {}
        }
        place = openat2(&place, part, opened, Mode::empty(), inside)?;
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> Directory {
        let file =
            |(path, text): &(&str, &str)| TextFile { path: path.into(), bytes: text.as_bytes().to_vec(), mode: 0o640 };
        Directory { name: "my-config".to_owned(), content: Content::Files(files.iter().map(file).collect()) }
    }

    #[test]
    fn texts_change_all_at_once_and_what_is_gone_goes() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let first = directory(&[("a", "one"), ("deep/b", "two")]);
        assert_eq!(first.variable(), "EVENKEEL_VOLUME_MY_CONFIG");
        first.write(folder.path())?;
        let place = first.place(folder.path());
        let read = |name: &str| fs::read_to_string(place.join(name));
        assert_eq!((&*read("a")?, &*read("deep/b")?), ("one", "two"));
        assert_eq!(fs::metadata(place.join("a"))?.permissions().mode() & 0o777, 0o640);
        let data = fs::read_link(place.join(DATA))?;
        first.write(folder.path())?;
        assert_eq!(fs::read_link(place.join(DATA))?, data, "nothing has changed");
        directory(&[("a", "new"), ("c", "three")]).write(folder.path())?;
        assert_ne!(fs::read_link(place.join(DATA))?, data);
        assert_eq!((&*read("a")?, &*read("c")?), ("new", "three"));
        assert!(read("deep/b").is_err() && place.join("deep").symlink_metadata().is_err());
        fs::create_dir(place.join("for-a-mount"))?;
        directory(&[]).write(folder.path())?;
        assert!(place.join("a").symlink_metadata().is_err());
        Ok(())
    }

    #[test]
    fn an_empty_volume_is_made_once_and_not_looked_at_again() -> io::Result<()> {
        let (folder, others) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let empty = Directory { name: "tmp".to_owned(), content: Content::Empty };
        empty.write(folder.path())?;
        let mode = |path: &Path| fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
        let place = empty.place(folder.path());
        assert_eq!(mode(&place)?, 0o777);
        fs::remove_dir(&place)?;
        symlink(others.path(), &place)?;
        let before = mode(others.path())?;
        empty.write(folder.path())?;
        assert_eq!(mode(others.path())?, before, "no link is followed");
        Ok(())
    }

    #[test]
    fn a_part_of_a_volume_is_never_outside_of_it() -> io::Result<()> {
        let (folder, others) = (tempfile::tempdir()?, tempfile::tempdir()?);
        fs::create_dir(others.path().join("deep"))?;
        directory(&[("a", "one"), ("deep/b", "two")]).write(folder.path())?;
        let empty = Directory { name: "tmp".to_owned(), content: Content::Empty };
        empty.write(folder.path())?;
        let place = empty.place(folder.path());
        symlink(others.path(), place.join("link"))?;
        symlink("inside", place.join("loop"))?;
        let path = others.path().to_path_buf();
        let mount = |volume: &str, sub_path: Option<&str>| Mount {
            volume: volume.to_owned(),
            path: path.clone(),
            sub_path: sub_path.map(PathBuf::from),
            read_only: volume != "tmp",
        };
        let check = |volume: &str, sub_path: Option<&str>, expected: Option<&str>| {
            let opened = mount(volume, sub_path).source(folder.path()).ok();
            let real = opened.map(|opened| {
                let real = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&opened)));
                real.expect("an open descriptor")
            });
            let folder = folder.path().canonicalize().expect("it is there");
            assert_eq!(real, expected.map(|expected| folder.join(expected)), "{volume} {sub_path:?}");
        };
        check("my-config", None, Some("my-config"));
        check("my-config", Some("a"), Some("my-config/..a/a"));
        check("my-config", Some("deep/b"), Some("my-config/..a/deep/b"));
        check("my-config", Some("missing/part"), Some("my-config/missing/part"));
        check("tmp", Some("fresh/part"), Some("tmp/fresh/part"));
        check("tmp", Some("fresh"), Some("tmp/fresh"));
        check("tmp", Some("link"), None);
        check("tmp", Some("link/deep"), None);
        check("tmp", Some("loop/x"), None);
        check("none", None, None);
        fs::rename(&place, folder.path().join("away"))?;
        symlink(others.path(), &place)?;
        check("tmp", None, None);
        check("tmp", Some("deep"), None);
        Ok(())
    }
}
