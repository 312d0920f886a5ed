//! What filters leave for others: for policies, the router, the access log, and for themselves in a cluster.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_stats::{Registry, ScopeName};

/// What the filters of one request leave for others.
#[derive(Default)]
pub struct FilterFacts {
    /// By the filters' names; for matchers and logs.
    pub metadata: DynamicMetadata,
    /// The host the request is to go to, if it is there.
    pub host_override: Option<Rc<HostOverride>>,
    /// Short response flags to be set, in order; the proxy takes them.
    pub flags: Vec<&'static str>,
    /// Objects for logs, by their keys (`%FILTER_STATE%`).
    objects: Vec<(&'static str, Rc<dyn StateObject>)>,
}

/// The host a filter wants a request to go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostOverride {
    /// Its address, as in logs.
    pub address: String,
    /// No other will do.
    pub strict: bool,
    /// Status of the answer if it is not there, and no other will do.
    pub status_if_gone: u16,
}

/// How a state object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As JSON, with its fields' JSON names.
    Typed,
    /// As JSON, with its fields' names as in protobuf.
    TypedJson,
    /// As a line of text.
    Plain,
}

/// Something that logs may print (Envoy's filter state).
pub trait StateObject {
    /// Appends it; false where there is nothing to say.
    fn write(&self, form: Form, out: &mut Vec<u8>) -> bool;
}

impl FilterFacts {
    /// Leaves an object for logs.
    pub fn set_object(&mut self, key: &'static str, object: Rc<dyn StateObject>) {
        self.objects.retain(|(known, _)| *known != key);
        self.objects.push((key, object));
    }

    /// The object under a key.
    pub fn object(&self, key: &str) -> Option<&dyn StateObject> {
        self.objects.iter().find(|(known, _)| *known == key).map(|(_, object)| &**object)
    }
}

impl fmt::Debug for FilterFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let objects: Vec<_> = self.objects.iter().map(|(key, _)| key).collect();
        f.debug_struct("FilterFacts")
            .field("metadata", &self.metadata)
            .field("objects", &objects)
            .finish_non_exhaustive()
    }
}

/// What filters keep and count of the requests to one cluster, on one worker, for as long as the cluster lives.
pub struct ClusterScope {
    /// Where they count.
    pub registry: Arc<Registry>,
    /// The cluster's statistics (`cluster.NAME.`).
    pub name: ScopeName,
    kept: RefCell<Vec<Rc<dyn Any>>>,
}

impl ClusterScope {
    /// That of a cluster, under the name of its statistics.
    pub fn new(registry: Arc<Registry>, cluster: &str) -> Self {
        let name = ScopeName::tagged("cluster", "envoy_cluster_name", cluster);
        Self { registry, name, kept: RefCell::default() }
    }

    /// What a filter keeps there, made when it is first asked for.
    pub(crate) fn get<T: 'static>(&self, make: impl FnOnce(&Self) -> T) -> Rc<T> {
        let known = self.kept.borrow().iter().find_map(|kept| Rc::clone(kept).downcast::<T>().ok());
        known.unwrap_or_else(|| {
            let new = Rc::new(make(self));
            self.kept.borrow_mut().push(Rc::clone(&new) as Rc<dyn Any>);
            new
        })
    }
}

impl fmt::Debug for ClusterScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterScope({})", self.name.dotted)
    }
}
