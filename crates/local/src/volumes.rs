//! Volumes: empty directories, and directories with the texts of ConfigMaps and Secrets.
//!
//! All files of a volume change at once, as with the kubelet: they are links through `..data`, which is replaced by a
//! rename.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, statvfs};

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
    /// An existing directory (or file) of the machine, over which the volume is mounted.
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

    /// Creates it, or updates its files.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let place = self.place(folder);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&place)?;
        match &self.content {
            Content::Empty => fs::set_permissions(&place, fs::Permissions::from_mode(0o777)),
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
        let path = entry?.path();
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".."));
        if !ours && tops().all(|top| top != path) {
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

/// Mounts the volumes over the machine's directories; runs inside the replica's fresh mount namespace. `folder` has its
/// volumes.
pub fn mount_all(folder: &Path, mounts: &[Mount]) -> io::Result<()> {
    for wanted in mounts {
        let volume = folder.join(&wanted.volume);
        let source = wanted.sub_path.as_ref().map_or_else(|| volume.clone(), |below| volume.join(below));
        if !source.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o777).create(&source)?;
        }
        let nothing = None::<&str>;
        mount(Some(&source), &wanted.path, nothing, MsFlags::MS_BIND, nothing)?;
        if wanted.read_only {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | locked(&wanted.path)?;
            mount(nothing, &wanted.path, nothing, flags, nothing)?;
        }
    }
    Ok(())
}

/// Flags of a mount that a user namespace must keep.
fn locked(path: &Path) -> io::Result<MsFlags> {
    let flags = statvfs(path)?.flags();
    let pairs = [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ];
    Ok(pairs.into_iter().filter(|(had, _)| flags.contains(*had)).fold(MsFlags::empty(), |all, (_, flag)| all | flag))
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
        directory(&[]).write(folder.path())?;
        assert!(place.join("a").symlink_metadata().is_err());
        Ok(())
    }
}
