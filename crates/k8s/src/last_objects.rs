//! The last objects of the cluster, kept in the store for a start while the API server cannot be reached.
//!
//! They are one value, which is replaced as a whole: a part of the policies would let more pass than all of them.

use std::io;
use std::time::{Duration, SystemTime};

use evenkeel_control::source::feed::ObjectFeed;
use evenkeel_control::source::json_text::JsonText;
use evenkeel_control::source::objects::PastObject;
use evenkeel_store::{Readers, Store};
use serde::Deserialize;
use serde_json::Value;

/// The value. Secrets are among the objects, so only the owner reads it, as the keys of the authority.
const KEY: &str = "kubernetes.json";
/// Maximum size of the value, in bytes.
const MAX_BYTES: u64 = 1024 * 1024 * 1024;
/// The shortest time between two writes: a change of a large cluster costs little, and writing all of it does not.
const INTERVAL: Duration = Duration::from_secs(30);

/// An object as it is stored.
#[derive(Debug, Deserialize)]
struct StoredObject {
    /// When it was created, in seconds since 1970.
    created: i64,
    object: Value,
}

/// The kept objects.
#[derive(Debug, Clone)]
pub struct LastObjects(Store);

/// What was kept.
#[derive(Debug)]
pub struct Restored {
    /// When it was written.
    pub written: SystemTime,
    /// The objects.
    pub objects: Vec<PastObject>,
}

impl LastObjects {
    /// Keeps objects in this store.
    pub fn new(store: Store) -> Self {
        Self(store)
    }

    /// Replaces the kept objects.
    ///
    /// # Errors
    /// The store's; the ones before stay.
    pub fn write(&self, objects: &[PastObject]) -> io::Result<()> {
        let stored =
            objects.iter().map(|object| format!(r#"{{"created":{},"object":{}}}"#, object.created, object.json));
        let text = format!("[{}]", stored.collect::<Vec<_>>().join(",")).into_bytes();
        if u64::try_from(text.len()).is_ok_and(|size| size > MAX_BYTES) {
            return Err(io::Error::other(format!("the objects of the cluster have more than {MAX_BYTES} bytes")));
        }
        self.0.put(KEY, &text, Readers::Owner)
    }

    /// Returns what was kept; `None`: nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self) -> io::Result<Option<Restored>> {
        let Some(text) = self.0.get_within(KEY, MAX_BYTES)? else { return Ok(None) };
        let written = self.0.version(KEY)?.map_or(SystemTime::UNIX_EPOCH, |version| version.modified);
        let stored: Vec<StoredObject> = serde_json::from_slice(&text)?;
        let object = |stored: StoredObject| PastObject { created: stored.created, json: JsonText::new(&stored.object) };
        Ok(Some(Restored { written, objects: stored.into_iter().map(object).collect() }))
    }

    /// Writes the objects of a feed whenever they have changed; never completes. A write that fails is tried again.
    pub async fn keep(self, feed: ObjectFeed) {
        let mut written = None;
        loop {
            let revision = feed.revision();
            if written != Some(revision) {
                let (last, objects) = (self.clone(), feed.all());
                let result = tokio::task::spawn_blocking(move || last.write(&objects)).await;
                match result.unwrap_or_else(|error| Err(io::Error::other(error))) {
                    Ok(()) => written = Some(revision),
                    Err(error) => {
                        tracing::warn!(%error, "the objects of the cluster cannot be kept for the next start")
                    }
                }
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}
