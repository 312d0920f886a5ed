//! Certificates and roots in files. The files are checked regularly and read again when they have changed, because
//! renewal replaces them in place (or switches a symbolic link, as in a mounted Secret).
//!
//! A certificate and its key are two files, which cannot be replaced at the same moment. A pair that does not match is
//! therefore checked a second time before it is reported. Until the new pair is valid, the previous one stays in use.

use std::io::Read;
use std::path::Path;
use std::sync::Weak;
use std::time::SystemTime;
use std::{fmt, fs, io};

use evenkeel_base::limits::MAX_FILE_BYTES;

use crate::config::DataSource;
use crate::error::ConfigError;
use crate::identity::Identity;
use crate::slot::{Slot, SlotInner};
use crate::trust::TrustBundle;

/// The outcome of reading files that have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    /// The next handshake uses their new content.
    Replaced {
        /// The names of the files.
        files: String,
    },
    /// Their new content cannot be used: the previous content stays in use.
    Refused {
        /// The names of the files.
        files: String,
        /// The error.
        reason: String,
    },
}

/// All certificates and roots in use that come from files.
#[derive(Debug, Default)]
pub(crate) struct Files(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    sources: Vec<DataSource>,
    place: Target,
    /// The state of the files when they were last read.
    read: Vec<Option<Stamp>>,
    /// Their state at the last check, if their content was wrong then.
    doubtful: Option<Vec<Option<Stamp>>>,
}

/// The slot that uses the content of the files, if it still exists.
enum Target {
    Identity(Weak<SlotInner<Identity>>),
    Trust(Weak<SlotInner<TrustBundle>>),
}

/// The metadata that tells one version of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    /// Device and inode, of the target if it is a symbolic link.
    file: (u64, u64),
}

impl Files {
    /// The slot of a certificate, shared by all that name the same files.
    pub fn identity(&mut self, chain: &DataSource, key: &DataSource) -> Result<Slot<Identity>, ConfigError> {
        let sources = vec![chain.clone(), key.clone()];
        let known = self.0.iter().filter(|entry| entry.sources == sources).find_map(|entry| match &entry.place {
            Target::Identity(slot) => slot.upgrade(),
            Target::Trust(_) => None,
        });
        if let Some(inner) = known {
            return Ok(Slot::of(inner));
        }
        // Taken before the files are read, so that the next check notices a change in between.
        let read = stamps(&sources);
        let slot = Slot::fixed(identity(&sources, SystemTime::now())?);
        self.keep(Entry { sources, place: Target::Identity(slot.downgrade()), read, doubtful: None });
        Ok(slot)
    }

    /// Like [`Self::identity`], for a trust bundle.
    pub fn trust(&mut self, roots: &DataSource) -> Result<Slot<TrustBundle>, ConfigError> {
        let sources = vec![roots.clone()];
        let known = self.0.iter().filter(|entry| entry.sources == sources).find_map(|entry| match &entry.place {
            Target::Trust(slot) => slot.upgrade(),
            Target::Identity(_) => None,
        });
        if let Some(inner) = known {
            return Ok(Slot::of(inner));
        }
        let read = stamps(&sources);
        let slot = Slot::fixed(trust(&sources)?);
        self.keep(Entry { sources, place: Target::Trust(slot.downgrade()), read, doubtful: None });
        Ok(slot)
    }

    fn keep(&mut self, entry: Entry) {
        self.0.retain(|entry| entry.place.is_used());
        if entry.sources.iter().any(|source| matches!(source, DataSource::File(_))) {
            self.0.push(entry);
        }
    }

    /// Reads the files that have changed.
    pub fn look(&mut self, now: SystemTime) -> Vec<FileChange> {
        self.0.retain(|entry| entry.place.is_used());
        self.0.iter_mut().filter_map(|entry| entry.look(now)).collect()
    }
}

impl Entry {
    fn look(&mut self, now: SystemTime) -> Option<FileChange> {
        let stamps = stamps(&self.sources);
        if stamps == self.read {
            self.doubtful = None;
            return None;
        }
        match self.place.fill(&self.sources, now) {
            Ok(()) => {
                (self.read, self.doubtful) = (stamps, None);
                Some(FileChange::Replaced { files: self.names() })
            }
            // The change may be incomplete.
            Err(_) if self.doubtful.as_ref() != Some(&stamps) => {
                self.doubtful = Some(stamps);
                None
            }
            Err(error) => {
                (self.read, self.doubtful) = (stamps, None);
                Some(FileChange::Refused { files: self.names(), reason: error.to_string() })
            }
        }
    }

    fn names(&self) -> String {
        let path = |source: &DataSource| match source {
            DataSource::File(path) => Some(path.display().to_string()),
            DataSource::Inline(_) => None,
        };
        self.sources.iter().filter_map(path).collect::<Vec<_>>().join(", ")
    }
}

impl Target {
    fn is_used(&self) -> bool {
        match self {
            Self::Identity(slot) => slot.strong_count() > 0,
            Self::Trust(slot) => slot.strong_count() > 0,
        }
    }

    fn fill(&self, sources: &[DataSource], now: SystemTime) -> Result<(), ConfigError> {
        match self {
            Self::Identity(slot) => {
                let identity = identity(sources, now)?;
                if let Some(inner) = slot.upgrade() {
                    Slot::of(inner).store(identity);
                }
            }
            Self::Trust(slot) => {
                let bundle = trust(sources)?;
                if let Some(inner) = slot.upgrade() {
                    Slot::of(inner).store(bundle);
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identity(_) => "Identity",
            Self::Trust(_) => "Trust",
        })
    }
}

/// Reads a chain and its key.
fn identity(sources: &[DataSource], now: SystemTime) -> Result<Identity, ConfigError> {
    let texts = sources.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let [chain, key] = texts.as_slice() else {
        return Identity::from_pem(b"", b"", now).map_err(ConfigError::Identity);
    };
    Identity::from_pem(chain, key, now).map_err(ConfigError::Identity)
}

fn trust(sources: &[DataSource]) -> Result<TrustBundle, ConfigError> {
    let texts = sources.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    TrustBundle::from_pem(&texts.concat()).map_err(ConfigError::Trust)
}

/// Reads a file that a configuration names, which may be somebody else's: a pipe is not waited for, and a device that does
/// not end is not read.
///
/// # Errors
/// If it is no regular file, or has more than [`MAX_FILE_BYTES`].
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let (limit, mut bytes) = (u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX), Vec::new());
    let read = fs::File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if read <= MAX_FILE_BYTES {
        Ok(bytes)
    } else {
        Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")))
    }
}

fn read(source: &DataSource) -> Result<Vec<u8>, ConfigError> {
    match source {
        DataSource::Inline(bytes) => Ok(bytes.clone()),
        DataSource::File(path) => {
            read_file(path).map_err(|source| ConfigError::File { path: path.display().to_string(), source })
        }
    }
}

fn stamps(sources: &[DataSource]) -> Vec<Option<Stamp>> {
    let stamp = |source: &DataSource| match source {
        DataSource::Inline(_) => None,
        DataSource::File(path) => stamp(path).ok(),
    };
    sources.iter().map(stamp).collect()
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::metadata(path)?;
    Ok(Stamp { modified: metadata.modified().ok(), bytes: metadata.len(), file: (metadata.dev(), metadata.ino()) })
}
