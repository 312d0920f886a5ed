//! State files. A file is replaced as a whole or not at all, and it lives in a directory that no other user can write
//! to.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Its owner alone (mode 0600).
    Owner,
    /// Everybody who may enter its directory (mode 0644).
    All,
}

/// Replaces a file: readers see the old content or the new, a crash leaves one of them, and when the disk is full the
/// old one stays. The new content is written to `NAME.new` beside it, synced to disk, and renamed over the old file.
/// Two writers must not do this at the same time.
///
/// # Errors
/// Nothing has changed, and nothing is left beside the file.
pub fn write_atomically(path: &Path, content: &[u8], readers: Readers) -> io::Result<()> {
    replace(path, content, readers, None)
}

/// Like [`write_atomically`], for a file owned by another user, given by user and group id. That user's directory may contain
/// links to anything: none is followed.
///
/// # Errors
/// As [`write_atomically`].
pub fn write_atomically_for(owner: (u32, u32), path: &Path, content: &[u8], readers: Readers) -> io::Result<()> {
    replace(path, content, readers, Some(owner))
}

fn replace(path: &Path, content: &[u8], readers: Readers, owner: Option<(u32, u32)>) -> io::Result<()> {
    let mut beside = OsString::from(path);
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let written = write_new(&beside, content, readers, owner).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // A half-written file would occupy the little space that is left.
        let _ = fs::remove_file(&beside);
    }
    written?;
    // Sync the directory as well, so that the rename survives a crash. File systems that cannot do this write it later.
    if let Some(Ok(folder)) = path.parent().map(fs::File::open) {
        let _ = folder.sync_all();
    }
    Ok(())
}

fn write_new(path: &Path, content: &[u8], readers: Readers, owner: Option<(u32, u32)>) -> io::Result<()> {
    // A file that a crash left behind may have another mode, or be somebody's symbolic link.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mode = match readers {
        Readers::Owner => 0o600,
        Readers::All => 0o644,
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    if let Some((user, group)) = owner {
        fchown(&file, Some(user), Some(group))?;
    }
    file.write_all(content)?;
    file.sync_all()
}

/// Why a directory or a file is not trusted with state.
#[derive(Debug, thiserror::Error)]
pub enum UntrustedError {
    /// The system refused something.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// It belongs to another user.
    #[error(
        "{} belongs to user {owner}, but this process runs as user {user}: its content may come from that user; run `chown -R {user} {}` if you trust it, or choose another directory", .path.display(), .path.display()
    )]
    Owner {
        /// The directory or file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Others may put files into it.
    #[error(
        "{} has mode {mode:04o}: other users than its owner can put keys and records into it; run `chmod go-w {}` if you trust its content, or choose a directory inside it, which is then created for this user only", .path.display(), .path.display()
    )]
    Mode {
        /// The directory or file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Creates a state directory with mode 0700, or checks an existing one: only this user and root may write to it.
///
/// # Errors
/// It is not to be trusted.
pub fn private_directory(path: &Path) -> Result<(), UntrustedError> {
    let failed = |source| UntrustedError::Io { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let found = fs::metadata(path).map_err(failed)?;
    check(path, &found, effective_user().map_err(failed)?)
}

/// Checks by its metadata that only this user and root may write to a directory or file of state.
///
/// # Errors
/// It is not to be trusted.
pub fn check_owner(path: &Path, found: &Metadata) -> Result<(), UntrustedError> {
    let user = effective_user().map_err(|source| UntrustedError::Io { path: path.to_owned(), source })?;
    check(path, found, user)
}

fn check(path: &Path, found: &Metadata, user: u32) -> Result<(), UntrustedError> {
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if owner != user && owner != 0 {
        return Err(UntrustedError::Owner { path: path.to_owned(), owner, user });
    }
    if mode & 0o022 != 0 {
        return Err(UntrustedError::Mode { path: path.to_owned(), mode });
    }
    Ok(())
}

/// The user this process acts as.
///
/// # Errors
/// `/proc` is not there.
pub fn effective_user() -> io::Result<u32> {
    let status = fs::read_to_string("/proc/self/status")?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = uids.and_then(|uids| uids.split_ascii_whitespace().nth(1)?.parse().ok());
    effective.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/status has no line Uid:"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("evenkeel-files-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a folder");
        path
    }

    #[test]
    fn a_file_is_replaced_whole_and_stays_when_that_fails() {
        let folder = folder("whole");
        let path = folder.join("state.json");
        write_atomically(&path, b"old", Readers::Owner).expect("written");
        write_atomically(&path, b"new", Readers::All).expect("written");
        assert_eq!(fs::read(&path).expect("a file"), b"new");
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o644);
        // When the new content cannot be written, the old file stays and nothing is left beside it.
        let full = folder.join("sub");
        fs::create_dir(&full).expect("a folder");
        fs::write(full.join("inside"), "").expect("a file");
        write_atomically(&full, b"other", Readers::Owner).expect_err("a folder with files is not replaced");
        let names = fs::read_dir(&folder).expect("the folder").flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["state.json", "sub"]);
        // A planted link is not followed.
        let target = folder.join("target");
        std::os::unix::fs::symlink(&target, folder.join("state.json.new")).expect("a link");
        write_atomically(&path, b"newer", Readers::Owner).expect("written");
        assert!(!target.exists());
        // Only root gives files away; anybody may keep them.
        let (user, group) = (effective_user().expect("a user"), fs::metadata(&folder).expect("it").gid());
        let owner = if user == 0 { (65534, 65534) } else { (user, group) };
        write_atomically_for(owner, &path, b"theirs", Readers::Owner).expect("written");
        let found = fs::metadata(&path).expect("a file");
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (owner.0, owner.1, 0o600));
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn state_is_kept_where_nobody_else_can_write() {
        let folder = folder("private");
        let made = folder.join("a/b");
        private_directory(&made).expect("made");
        assert_eq!(fs::metadata(&made).expect("it").permissions().mode() & 0o777, 0o700);
        let user = effective_user().expect("a user");
        let found = fs::metadata(&made).expect("it");
        let refused = check(&made, &found, found.uid() + 1);
        match found.uid() {
            0 => assert!(refused.is_ok(), "what is root's is trusted by all"),
            _ => assert!(matches!(refused, Err(UntrustedError::Owner { .. }))),
        }
        assert_eq!(found.uid(), user);
        for (mode, trusted) in [(0o755, true), (0o750, true), (0o775, false), (0o777, false), (0o1777, false)] {
            fs::set_permissions(&made, fs::Permissions::from_mode(mode)).expect("ours");
            let found = private_directory(&made);
            assert_eq!(found.is_ok(), trusted, "{mode:o}: {found:?}");
        }
        fs::remove_dir_all(&folder).expect("removed");
    }
}
