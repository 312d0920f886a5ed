//! Per-cluster state of filters.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_stats::{Registry, ScopeName};

/// State and statistics that filters keep for the requests to one cluster, on one worker, while the cluster exists.
pub struct ClusterScope {
    /// The registry of the statistics.
    pub registry: Arc<Registry>,
    /// The cluster's statistics (`cluster.NAME.`).
    pub name: ScopeName,
    /// Whether the cluster is outside the mesh.
    pub external: bool,
    kept: RefCell<Vec<Rc<dyn Any>>>,
}

impl ClusterScope {
    /// The scope of a cluster, by its name in statistics.
    pub fn new(registry: Arc<Registry>, cluster: &str) -> Self {
        let name = ScopeName::tagged("cluster", "envoy_cluster_name", cluster);
        Self { registry, name, external: false, kept: RefCell::default() }
    }

    /// The scope of a cluster that is outside the mesh, or in it.
    pub fn outside(self, external: bool) -> Self {
        Self { external, ..self }
    }

    /// A filter's state of this type, created on first use.
    pub fn get<T: 'static>(&self, make: impl FnOnce(&Self) -> T) -> Rc<T> {
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
