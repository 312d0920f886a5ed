//! Listeners that were rejected because another one holds their address. They are retried with every build, since the
//! control plane cannot know when the other one is gone.

use std::sync::Arc;

use evenkeel_xds::Any;

use crate::address::ListenAddress;
use crate::listener::Listener;

/// A listener that was rejected for its address.
#[derive(Debug)]
pub(super) struct Contender {
    pub name: Arc<str>,
    pub addresses: Vec<ListenAddress>,
    pub resource: Any,
}

impl Contender {
    pub fn new(listener: &Listener, resource: &Any) -> Self {
        Self {
            name: Arc::clone(&listener.name),
            addresses: listener.addresses().cloned().collect(),
            resource: resource.clone(),
        }
    }
}

/// All of them, in the order of rejection; one per name.
#[derive(Debug, Default)]
pub(super) struct Contenders {
    waiting: Vec<Contender>,
    admitted: Vec<Arc<str>>,
}

impl Contenders {
    pub fn add(&mut self, contender: Contender) {
        self.remove(&contender.name);
        self.waiting.push(contender);
    }

    /// Removes a name that has a newer version, or no longer exists.
    pub fn remove(&mut self, name: &str) {
        self.waiting.retain(|contender| *contender.name != *name);
    }

    pub fn take(&mut self) -> Vec<Contender> {
        std::mem::take(&mut self.waiting)
    }

    pub fn note_admitted(&mut self, name: Arc<str>) {
        self.admitted.push(name);
    }

    pub fn take_admitted(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.admitted)
    }
}
