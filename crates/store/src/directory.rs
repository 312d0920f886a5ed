//! A store in a directory: each value is a file, whose path below the directory is the key.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use evenkeel_base::files::{Readers, UntrustedError, private_directory, write_atomically};

use crate::secret::{self, SecretError};
use crate::{Backend, Begin, Changed, Lease, Log, Version, Watch, lease, log, watch};

/// A store in a directory.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// The store in this directory, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Returns the file of a key.
    ///
    /// # Errors
    /// The key could lead out of the directory.
    fn file(&self, key: &str) -> io::Result<PathBuf> {
        let is_plain = Path::new(key).components().all(|part| matches!(part, Component::Normal(_)));
        if is_plain && !key.is_empty() {
            Ok(self.path.join(key))
        } else {
            Err(io::Error::new(ErrorKind::InvalidInput, format!("`{key}` is not a key")))
        }
    }

    /// Creates the folders in which a file is, for this user only. The directory itself has to exist.
    fn make_folders(&self, file: &Path) -> io::Result<()> {
        let above = file
            .parent()
            .and_then(|folder| folder.strip_prefix(&self.path).ok())
            .into_iter()
            .flat_map(Path::components);
        let mut folder = self.path.clone();
        for part in above {
            folder.push(part);
            match DirBuilder::new().mode(0o700).create(&folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Backend for Directory {
    fn reader(&self, key: &str) -> io::Result<Option<Box<dyn Read>>> {
        Ok(present(File::open(self.file(key)?))?.map(|file| Box::new(file) as Box<dyn Read>))
    }

    fn secret(&self, key: &str) -> Result<Option<String>, SecretError> {
        let path = self.file(key).map_err(|source| SecretError::Io { path: self.place(key), source })?;
        secret::read(&path)
    }

    fn version(&self, key: &str) -> io::Result<Option<Version>> {
        let Some(found) = present(fs::metadata(self.file(key)?))? else { return Ok(None) };
        let modified = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Some(Version { modified, further: [found.len(), found.ino()] }))
    }

    fn put(&self, key: &str, value: &[u8], readers: Readers) -> io::Result<()> {
        let path = self.file(key)?;
        self.make_folders(&path)?;
        write_atomically(&path, value, readers)
    }

    fn touch(&self, key: &str) -> io::Result<()> {
        File::options().write(true).open(self.file(key)?)?.set_modified(SystemTime::now())
    }

    fn remove(&self, key: &str) -> io::Result<bool> {
        Ok(present(fs::remove_file(self.file(key)?))?.is_some())
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        present(fs::remove_dir_all(self.file(folder)?)).map(drop)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in present(fs::read_dir(self.file(folder)?))?.into_iter().flatten() {
            // Names of the store are text; a file with another name is not the store's.
            names.extend(entry?.file_name().into_string().ok().filter(|name| !name.ends_with(".new")));
        }
        names.sort();
        Ok(names)
    }

    fn watch(&self, folder: &str, changed: Box<dyn Fn(Changed<'_>) + Send + Sync>) -> io::Result<Watch> {
        let folder = self.file(folder)?;
        self.make_folders(&folder.join("any"))?;
        watch::watch(&folder, changed)
    }

    fn lease(&self, name: &str) -> io::Result<Lease> {
        lease::take(&self.file(&format!("{name}.lease"))?)
    }

    fn begin_log(&self, key: &str, first: &[u8], begin: Begin) -> io::Result<Box<dyn Log>> {
        let path = self.file(key)?;
        self.make_folders(&path)?;
        log::begin(&path, first, begin)
    }

    fn is_held(&self, key: &str) -> io::Result<bool> {
        log::is_held(&self.file(key)?)
    }

    fn trusted(&self, folder: &str) -> Result<(), UntrustedError> {
        private_directory(&self.place(folder))
    }

    fn place(&self, key: &str) -> PathBuf {
        if key.is_empty() { self.path.clone() } else { self.path.join(key) }
    }
}

/// Returns `None` for what does not exist.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
