//! Objects of the control plane's own, which survive a restart, and which control planes that share the store share.
//!
//! An object that is put is in force at once and is stored at the same time. Objects that other control planes store, change
//! and remove are noticed by a watch on the store, and by listing it from time to time, because not all file systems report
//! what other machines do.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_api::ObjectKey;
use evenkeel_base::SourceId;
use evenkeel_store::{Changed, Readers, Store, Version, Watch};
use serde_json::Value;
use tokio::time::MissedTickBehavior;

use super::feed::{ObjectFeed, ObjectSource};

/// How often the store is listed.
const LIST_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum size of an object, in bytes.
const MAX_OBJECT_BYTES: u64 = 4 * 1024 * 1024;

/// Objects in a folder of the store, which are a source of the configuration. Names end with `.json`.
#[derive(Debug)]
pub struct StoredObjects {
    store: Store,
    folder: &'static str,
    feed: ObjectFeed,
    /// The known objects by name. Locked while one is stored or read, so that an older one never replaces a newer one.
    known: Mutex<BTreeMap<String, Known>>,
}

/// What is stored under a name.
#[derive(Debug)]
struct Known {
    /// `None`: what is stored is no object.
    key: Option<ObjectKey>,
    /// The version that was in the store when the object was read or put; `None`: there was none, and the object stays in force.
    version: Option<Version>,
    /// Whether the object in force is the one that is stored.
    is_stored: bool,
}

impl StoredObjects {
    /// Opens a folder, and reads what it has.
    pub fn open(store: impl Into<Store>, folder: &'static str, id: SourceId) -> io::Result<(Arc<Self>, ObjectSource)> {
        let (feed, source) = ObjectFeed::new(id);
        let this = Self { store: store.into(), folder, feed, known: Mutex::default() };
        this.list()?;
        Ok((Arc::new(this), source))
    }

    /// Follows what other control planes store; never completes. Objects stay in force where the store cannot be watched.
    pub async fn keep(self: Arc<Self>) {
        let _watch = self.watch().inspect_err(|error| {
            tracing::warn!(folder = self.folder, %error, "the store is not watched; it is listed every {} s", LIST_INTERVAL.as_secs());
        });
        let mut due = tokio::time::interval(LIST_INTERVAL);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            due.tick().await;
            let listing = self.clone();
            match tokio::task::spawn_blocking(move || listing.list()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(folder = self.folder, %error, "the store cannot be listed"),
                Err(error) => tracing::error!(folder = self.folder, %error, "the store cannot be listed"),
            }
        }
    }

    fn watch(self: &Arc<Self>) -> io::Result<Watch> {
        let this = Arc::downgrade(self);
        let changed = move |changed: Changed<'_>| {
            let Some(this) = this.upgrade() else { return };
            let read = match changed {
                Changed::Name(name) => {
                    this.read(&mut this.lock(), name);
                    Ok(())
                }
                Changed::Any => this.list(),
            };
            if let Err(error) = read {
                tracing::warn!(folder = this.folder, %error, "the store cannot be read");
            }
        };
        self.store.watch(self.folder, Box::new(changed))
    }

    /// Puts an object in force and stores it.
    ///
    /// # Errors
    /// It is in force, but it is not stored.
    pub fn put(&self, name: &str, object: Value) -> io::Result<()> {
        let mut known = self.lock();
        let text = format!("{object:#}\n");
        let stored = self.store.put(&self.key(name), text.as_bytes(), Readers::Owner);
        // If it could not be stored, an older one may be there, which does not come back in force.
        let version = self.version(name);
        if let Some(key) = ObjectKey::of_json(&object) {
            known.insert(name.to_owned(), Known { key: Some(key), version, is_stored: stored.is_ok() });
            self.feed.put(object, 0);
        }
        stored
    }

    /// Removes an object. Returns whether it was stored.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        let mut known = self.lock();
        let removed = self.store.remove(&self.key(name))?;
        self.forget(&mut known, name);
        Ok(removed)
    }

    /// Marks an object as current: its version has the present time.
    pub fn touch(&self, name: &str) -> io::Result<()> {
        self.store.touch(&self.key(name))
    }

    /// Whether the object in force is the one that is stored.
    pub fn is_stored(&self, name: &str) -> bool {
        self.lock().get(name).is_some_and(|known| known.is_stored)
    }

    /// Returns an object as it is stored.
    pub fn get(&self, name: &str) -> Option<Value> {
        let text = self.store.get_within(&self.key(name), MAX_OBJECT_BYTES).ok()??;
        serde_json::from_slice(&text).ok()
    }

    /// Returns the version of an object, which says when it was last stored or touched.
    pub fn version(&self, name: &str) -> Option<Version> {
        self.store.version(&self.key(name)).ok()?
    }

    /// Returns the names of all stored objects.
    pub fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.store.list(self.folder)?.into_iter().filter(|name| name.ends_with(".json")).collect())
    }

    /// Reads what has changed since it was last read.
    fn list(&self) -> io::Result<()> {
        let mut known = self.lock();
        let names = self.names()?;
        let is_gone = |(name, known): &(&String, &Known)| known.version.is_some() && names.binary_search(name).is_err();
        let gone: Vec<String> = known.iter().filter(is_gone).map(|(name, _)| name.clone()).collect();
        gone.iter().for_each(|name| self.forget(&mut known, name));
        for name in names {
            let version = self.version(&name);
            if known.get(&name).is_none_or(|known| known.version != version) {
                self.read(&mut known, &name);
            }
        }
        Ok(())
    }

    /// Reads one object, if it has changed; what cannot be read or is no object leaves in force what was there.
    fn read(&self, known: &mut BTreeMap<String, Known>, name: &str) {
        let version = self.version(name);
        if !name.ends_with(".json")
            || (version.is_some() && known.get(name).is_some_and(|known| known.version == version))
        {
            return;
        }
        let object = match self.store.get_within(&self.key(name), MAX_OBJECT_BYTES) {
            Ok(None) => return self.forget(known, name),
            Ok(Some(text)) => serde_json::from_slice::<Value>(&text).map_err(io::Error::from),
            Err(error) => Err(error),
        };
        let object = object.and_then(|object| {
            let key = ObjectKey::of_json(&object).ok_or_else(|| io::Error::other("it is no object of a known kind"))?;
            Ok((key, object))
        });
        match object {
            Ok((key, object)) => {
                known.insert(name.to_owned(), Known { key: Some(key), version, is_stored: true });
                self.feed.put(object, 0);
            }
            Err(error) => {
                tracing::warn!(%error, "{} cannot be read", self.store.place(&self.key(name)).display());
                known.entry(name.to_owned()).or_insert(Known { key: None, version, is_stored: false }).version =
                    version;
            }
        }
    }

    fn forget(&self, known: &mut BTreeMap<String, Known>, name: &str) {
        if let Some(key) = known.remove(name).and_then(|gone| gone.key) {
            self.feed.remove(&key);
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Rank;
    use evenkeel_model::Source;
    use serde_json::json;

    use super::*;
    use crate::source::{Content, LiveSource};

    const FOLDER: &str = "entries";

    fn open(state: &std::path::Path) -> (Arc<StoredObjects>, ObjectSource) {
        StoredObjects::open(state, FOLDER, SourceId::new(FOLDER, Rank(150))).expect("a store")
    }

    fn entry(name: &str, address: &str) -> Value {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry",
            "metadata": {"name": name, "namespace": "shop"}, "spec": {"address": address},
        })
    }

    /// The addresses of the entries in force.
    fn addresses(source: &mut ObjectSource) -> Vec<String> {
        source.first();
        source.events();
        let contents = source.contents().into_iter().map(|(_, content)| content.present);
        let address = |content| match content {
            Content::Object(object) => object.json.value()["spec"]["address"].as_str().unwrap_or_default().to_owned(),
            Content::Text(text) => text,
        };
        contents.map(address).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn control_planes_that_share_the_store_see_each_others_objects() {
        let state = tempfile::tempdir().expect("a directory");
        let (one, mut first) = open(state.path());
        one.put("a.json", entry("a", "10.0.0.1")).expect("stored");
        assert_eq!(addresses(&mut first), ["10.0.0.1"], "at once");
        let (other, mut second) = open(state.path());
        assert_eq!(addresses(&mut second), ["10.0.0.1"], "what is stored is there at the start");
        let keeping = tokio::spawn(other.clone().keep());
        let mut until = async |expected: &[&str]| {
            while addresses(&mut second) != expected {
                let changed = tokio::time::timeout(Duration::from_secs(30), second.changed()).await;
                changed.expect("a change in time").expect("the source goes on");
            }
        };
        one.put("a.json", entry("a", "10.0.0.2")).expect("stored");
        until(&["10.0.0.2"]).await;
        one.put("b.json", entry("b", "10.0.0.3")).expect("stored");
        until(&["10.0.0.2", "10.0.0.3"]).await;
        assert!(one.remove("a.json").expect("removed"));
        until(&["10.0.0.3"]).await;
        keeping.abort();
        assert_eq!(addresses(&mut first), ["10.0.0.3"]);
    }

    #[test]
    fn what_cannot_be_stored_is_in_force_all_the_same() {
        let state = tempfile::tempdir().expect("a directory");
        let (objects, mut source) = open(state.path());
        objects.put("a.json", entry("a", "10.0.0.1")).expect("stored");
        // As on a full disk: nothing can be written beside it.
        let obstacle = state.path().join(FOLDER).join("a.json.new");
        std::fs::create_dir(&obstacle).expect("a directory");
        objects.put("a.json", entry("a", "10.0.0.2")).expect_err("it cannot be stored");
        // The older one that is stored does not come back.
        objects.list().expect("a list");
        assert_eq!(addresses(&mut source), ["10.0.0.2"]);
        assert!(!objects.is_stored("a.json"));
        std::fs::remove_dir(&obstacle).expect("the directory");
        objects.put("a.json", entry("a", "10.0.0.3")).expect("stored");
        assert!(objects.is_stored("a.json"));
        assert_eq!(addresses(&mut open(state.path()).1), ["10.0.0.3"]);
    }

    #[test]
    fn what_is_no_object_is_left_out() {
        let state = tempfile::tempdir().expect("a directory");
        let store = Store::from(state.path());
        for (name, text) in [("a.json", "{"), ("b.json", "{}"), ("c.txt", ""), ("d.json", "[1]")] {
            store.put(&format!("{FOLDER}/{name}"), text.as_bytes(), Readers::Owner).expect("put");
        }
        // Nor does what is too large keep the others out.
        let long = vec![b' '; usize::try_from(MAX_OBJECT_BYTES).expect("a size") + 1];
        store.put(&format!("{FOLDER}/e.json"), &long, Readers::Owner).expect("put");
        let last = entry("f", "10.0.0.1").to_string();
        store.put(&format!("{FOLDER}/f.json"), last.as_bytes(), Readers::Owner).expect("put");
        assert_eq!(addresses(&mut open(state.path()).1), ["10.0.0.1"]);
    }
}
