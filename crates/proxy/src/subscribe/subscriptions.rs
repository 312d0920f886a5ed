//! The subscriptions of a stream.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_xds::ResourceType;
use evenkeel_xds::client::Client;
use tokio::sync::Notify;

/// The stream is no longer needed.
#[derive(Debug, thiserror::Error)]
#[error("not wanted any more")]
pub(super) struct Unwanted;

/// The subscriptions of a stream: written here and read by the stream's task.
#[derive(Debug, Default)]
pub(crate) struct StreamSubscriptions {
    all: RefCell<BTreeSet<ResourceType>>,
    names: RefCell<BTreeSet<(ResourceType, Arc<str>)>>,
    /// Names whose subscription has changed since the task last read them, and whether they were wanted at that time.
    changed: RefCell<BTreeMap<(ResourceType, Arc<str>), bool>>,
    /// Signals a change.
    news: Notify,
    /// The stream is no longer needed.
    ended: Cell<bool>,
}

impl StreamSubscriptions {
    /// Subscribes to all resources of a type.
    pub(super) fn set_all(&self, kind: ResourceType) {
        self.all.borrow_mut().insert(kind);
        self.news.notify_one();
    }

    pub(super) fn set(&self, kind: ResourceType, name: &Arc<str>, wanted: bool) {
        let name = (kind, name.clone());
        let mut names = self.names.borrow_mut();
        let was = if wanted { !names.insert(name.clone()) } else { names.remove(&name) };
        if was != wanted {
            self.changed.borrow_mut().entry(name).or_insert(was);
            self.news.notify_one();
        }
    }

    /// Whether a resource is subscribed to, by its name or with all of its type.
    pub(super) fn wants(&self, kind: ResourceType, name: &str) -> bool {
        self.all.borrow().contains(&kind) || self.names.borrow().contains(&(kind, name.into()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.borrow().is_empty() && self.names.borrow().is_empty()
    }

    pub(super) fn end(&self) {
        self.ended.set(true);
        self.news.notify_one();
    }

    /// Waits for a change; an error when the stream is no longer needed.
    pub(super) async fn changed(&self) -> Result<(), Unwanted> {
        if !self.ended.get() {
            self.news.notified().await;
        }
        if self.ended.get() { Err(Unwanted) } else { Ok(()) }
    }

    /// Passes the changes on to the client.
    pub(super) fn tell(&self, client: &mut Client) {
        self.all.borrow().iter().for_each(|kind| client.subscribe_all(*kind));
        let names = self.names.borrow();
        for (name, was) in self.changed.take() {
            let (kind, text) = (name.0, &*name.1);
            // A name that was unsubscribed and subscribed again is passed on as both, so that the server sends it anew:
            // what was received of it before may have been dropped here.
            if was {
                client.unsubscribe(kind, text);
            }
            if names.contains(&name) {
                client.subscribe(kind, text);
            }
        }
    }
}
