//! Sources of the configuration.
//!
//! ```text
//!  directories: files, watch        what the files say
//!  feed: objects                    objects that a task puts: registered workloads, fetched keys, those of an API server
//!        └── each a LiveSource, in a lane of its own ──► configuration
//!  stored                           a feed whose objects survive a restart and are shared by control planes
//!  lanes, debounce                  when a change takes effect
//! ```
//!
//! A further source is a task that puts its objects into an [`ObjectFeed`](feed::ObjectFeed). The configuration does not know
//! what kinds of sources there are. Where two sources have the same object, that of the lower [rank](evenkeel_base::Rank) is
//! in force, and a finding at the other one names both.

pub mod debounce;
pub mod directories;
mod endpoints;
pub mod feed;
pub mod files;
pub mod json_text;
pub mod lanes;
pub mod objects;
mod refresh;
pub mod stored;
#[cfg(test)]
mod tests;
pub mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use evenkeel_api::Kind;
use evenkeel_base::{Diagnostics, ObjectRef, Sources};
use evenkeel_model::{Source, SourceEvent};

use debounce::Change;
use objects::PastObject;

use crate::metrics::Event;
pub use refresh::Refresh;

/// The code of the finding that a source cannot be followed now: its last objects stay in force.
pub const SOURCE_OUTAGE: &str = "source-outage";

/// A future of a source, which the configuration's loop polls.
pub type SourceFuture<'s, T> = Pin<Box<dyn Future<Output = T> + Send + 's>>;

/// A source in the running control plane. Each has its own lane: its changes wait for those of no other source.
pub trait LiveSource: Source + Send + fmt::Debug {
    /// Takes over everything for the first time.
    fn first(&mut self) -> Refresh;

    /// Waits for the next change; `None`: there will be none. The future may be dropped while it waits; no change is lost.
    fn changed(&mut self) -> SourceFuture<'_, Option<Change>>;

    /// Takes over changes.
    fn refresh(&mut self, extent: Extent) -> SourceFuture<'_, Refresh>;

    /// Makes all objects anew, equal to the present ones but without shared memory, and returns all of them.
    fn renew(&mut self) -> SourceEvent;

    /// Returns what is not in force as it is written now, because it has errors.
    fn refused(&self) -> Vec<Refused>;

    /// Returns the number of changes since the last call that changed nothing here.
    fn unchanged(&mut self) -> BTreeMap<(Kind, Event), u64> {
        BTreeMap::new()
    }

    /// Adds the texts that findings point into.
    fn texts(&self, _findings: &Diagnostics, _texts: &mut Sources) {}

    /// Returns the present content of an entry; `None` if it is gone, or if it is another source's.
    fn content(&self, entry: &EntryName) -> Option<Content>;

    /// Returns all entries, for the history.
    fn contents(&self) -> Vec<(EntryName, PastContent)>;

    /// Restores the last contents without errors of entries that are refused now. They were in force before a restart.
    fn recall(&mut self, past: &mut dyn PastContents, result: &mut Refresh);
}

/// Which changes to take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Noticed changes of endpoints.
    Endpoints,
    /// All noticed changes.
    Noticed,
    /// All changes until now, also those that have not been noticed yet.
    All,
}

/// The name of an entry, which a source adds, changes and removes as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryName {
    /// A file, with all its objects.
    File(Arc<Path>),
    /// An object of a source without files.
    Object(ObjectRef),
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// The text of a file.
    Text(String),
    /// An object.
    Object(PastObject),
}

/// The content of an entry, and the one in force if that is another one.
#[derive(Debug, Clone, PartialEq)]
pub struct PastContent {
    /// The last content without errors, unless it is the present one.
    pub good: Option<Content>,
    /// The present content.
    pub present: Content,
}

/// The past contents of entries, from the history.
pub trait PastContents {
    /// Returns the past texts of the wanted files, the oldest first.
    fn files(&mut self, wanted: &dyn Fn(&Path) -> bool) -> BTreeMap<PathBuf, Vec<String>>;

    /// Returns the past contents of the wanted objects, the oldest first.
    fn objects(&mut self, wanted: &dyn Fn(&ObjectRef) -> bool) -> BTreeMap<ObjectRef, Vec<PastObject>>;
}

/// An entry of which only an older content, or a part, is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The entry.
    pub entry: EntryName,
    /// Whether it never had a content without errors: then only a part is in force.
    pub never_accepted: bool,
}

/// `/mesh/routes.yaml`, `kubernetes/Service/shop/reviews`
impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Object(object) => object.fmt(f),
        }
    }
}
