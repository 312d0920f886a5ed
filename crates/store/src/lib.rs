//! The state of control planes that survives a restart, and that several control planes share.
//!
//! A [`Store`] has *values* by key, *logs* that one process appends to, and *leases*. A key is a path of names, such as
//! `jwks/a.json`. What is stored where is the business of a [`Backend`]: today a directory ([`Directory`]), whose files have
//! the names of the keys. All modules that keep state use the store, and none of them knows the backend.

#![forbid(unsafe_code)]

mod directory;
mod lease;
mod log;
mod secret;
mod watch;

use std::fmt;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub use evenkeel_base::files::Readers;
use evenkeel_base::files::UntrustedError;

pub use directory::Directory;
pub use lease::Lease;
pub use log::{Begin, Log};
pub use secret::{SecretError, read as read_secret};
pub use watch::{Changed, Watch};

/// The storage under a [`Store`].
pub trait Backend: fmt::Debug + Send + Sync {
    /// Opens a value for reading; `None` if there is none.
    fn reader(&self, key: &str) -> io::Result<Option<Box<dyn Read>>>;

    /// Returns a private key; `None` if there is none.
    ///
    /// # Errors
    /// Somebody else can read it, or may have written it.
    fn secret(&self, key: &str) -> Result<Option<String>, SecretError>;

    /// Returns the version of a value without reading it; `None` if there is none.
    fn version(&self, key: &str) -> io::Result<Option<Version>>;

    /// Replaces a value: readers see the old one or the new one, a crash leaves one of them, and when there is no space left
    /// the old one stays.
    fn put(&self, key: &str, value: &[u8], readers: Readers) -> io::Result<()>;

    /// Marks a value as current: its version has the present time.
    fn touch(&self, key: &str) -> io::Result<()>;

    /// Removes a value. Returns whether there was one.
    fn remove(&self, key: &str) -> io::Result<bool>;

    /// Removes everything whose key begins with `folder` and `/`.
    fn remove_folder(&self, folder: &str) -> io::Result<()>;

    /// Returns the last names of the keys that consist of `folder` and one more name, in order. None if there is no such
    /// folder.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Calls `changed` for each change of the values that [`Self::list`] returns, by any process, until the watch is dropped.
    /// The folder is created if there is none.
    fn watch(&self, folder: &str, changed: Box<dyn Fn(Changed<'_>) + Send + Sync>) -> io::Result<Watch>;

    /// Takes a lease, waiting at most 10 s for it: among the processes that share the store, one holds it.
    fn lease(&self, name: &str) -> io::Result<Lease>;

    /// Begins a log with its first bytes. The log is held until it is dropped.
    fn begin_log(&self, key: &str, first: &[u8], begin: Begin) -> io::Result<Box<dyn Log>>;

    /// Whether a process holds a log.
    fn is_held(&self, key: &str) -> io::Result<bool>;

    /// Creates a folder, or checks that only this user and the system's administrator could have written to an existing one.
    fn trusted(&self, folder: &str) -> Result<(), UntrustedError>;

    /// Where a value is, as messages name it.
    fn place(&self, key: &str) -> PathBuf;
}

/// Distinguishes two contents of a key without reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// When it was last written or touched.
    pub modified: SystemTime,
    /// Further properties that differ between two contents.
    pub further: [u64; 2],
}

/// The state of control planes. Cloning it copies a pointer.
#[derive(Debug, Clone)]
pub struct Store(Arc<dyn Backend>);

impl Store {
    /// Creates a store on a backend.
    pub fn new(backend: impl Backend + 'static) -> Self {
        Self(Arc::new(backend))
    }

    /// Returns a value; `None` if there is none.
    pub fn get(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        self.get_within(key, u64::MAX)
    }

    /// Returns a value; `None` if there is none.
    ///
    /// # Errors
    /// Also if it has more than `limit` bytes.
    pub fn get_within(&self, key: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(reader) = self.0.reader(key)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = reader.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if u64::try_from(read).is_ok_and(|read| read <= limit) {
            Ok(Some(bytes))
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("more than {limit} bytes")))
        }
    }

    /// Returns a value that is text; `None` if there is none.
    pub fn text(&self, key: &str) -> io::Result<Option<String>> {
        let text =
            |bytes| String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no UTF-8 text"));
        self.get(key)?.map(text).transpose()
    }
}

/// The operations of the backend.
impl Deref for Store {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// The store of a directory.
impl From<&Path> for Store {
    fn from(directory: &Path) -> Self {
        Self::new(Directory::new(directory))
    }
}

/// The store of a directory.
impl From<&PathBuf> for Store {
    fn from(directory: &PathBuf) -> Self {
        Self::from(directory.as_path())
    }
}

/// Another handle of the same store.
impl From<&Store> for Store {
    fn from(store: &Store) -> Self {
        store.clone()
    }
}

#[cfg(test)]
mod tests;
