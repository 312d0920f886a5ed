//! The mesh that a question is about.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_api::{Kind, Object};
use evenkeel_base::{Diagnostics, Span};
use evenkeel_filters::explain::Explainer;
use evenkeel_model::workload::Pod;
use evenkeel_model::{AddressBook, MeshConfig, PublishedPort, Snapshot, Workload};
use evenkeel_translate::{ProxyKind, config_path, split_origin};

use crate::place::{Places, Source};
use crate::proxy::Proxy;
use crate::running_proxies::RunningProxies;
use crate::stand_ins;

/// The mesh of some objects. Workloads without Pods have stand-ins.
pub struct World {
    pub(crate) snapshot: Snapshot,
    /// The control plane's options.
    pub(crate) mesh: MeshConfig,
    pub(crate) places: Places,
    objects: Vec<Object>,
    /// Pods that stand for workloads without a running one.
    pub(crate) stand_ins: Vec<Object>,
    diagnostics: Diagnostics,
    /// The virtual addresses that are assigned.
    pub(crate) addresses: AddressBook,
    pub(crate) running: Option<Box<dyn RunningProxies>>,
    /// The ports of this machine that lead to gateways of the running mesh.
    published: Vec<PublishedPort>,
    pub(crate) explainer: RefCell<Explainer>,
    proxies: RefCell<HashMap<Pod, Rc<Proxy>>>,
}

impl World {
    /// Builds the mesh of these objects. `texts` are the files that they were read from.
    pub fn new(objects: Vec<Object>, texts: BTreeMap<Arc<str>, Arc<str>>) -> Self {
        Self::of_mesh(objects, texts, AddressBook::default(), MeshConfig::default())
    }

    /// Creates the world with the virtual addresses that a running mesh has assigned, and with its control plane's options.
    pub fn of_mesh(
        objects: Vec<Object>,
        texts: BTreeMap<Arc<str>, Arc<str>>,
        mut addresses: AddressBook,
        mesh: MeshConfig,
    ) -> Self {
        let pods = stand_ins::pods(&objects);
        let (snapshot, diagnostics) = evenkeel_model::build(objects.iter().chain(&pods), &mesh, &mut addresses);
        Self {
            snapshot,
            mesh,
            places: Places::new(texts),
            objects,
            stand_ins: pods,
            diagnostics,
            addresses,
            running: None,
            published: Vec::new(),
            explainer: RefCell::default(),
            proxies: RefCell::default(),
        }
    }

    /// Returns the same mesh with running proxies, which are asked, too.
    #[must_use]
    pub fn with_running(self, running: impl RunningProxies + 'static) -> Self {
        Self { running: Some(Box::new(running)), ..self }
    }

    /// Returns the same mesh with the ports of this machine that lead to its gateways.
    #[must_use]
    pub fn with_published(self, published: Vec<PublishedPort>) -> Self {
        Self { published, ..self }
    }

    /// The ports of this machine that lead to gateways.
    pub(crate) fn published(&self) -> &[PublishedPort] {
        &self.published
    }

    /// Returns the findings about the objects together.
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.diagnostics
    }

    /// The snapshot that proxies are configured from.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The objects.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// Whether a Pod has a proxy of the mesh; true if the Pod is not known.
    pub fn has_proxy(&self, namespace: &str, pod: &str) -> bool {
        let found = self.snapshot.workload(&namespace.into(), &pod.into());
        found.is_none_or(|workload| workload.has_proxy || self.is_gateway(workload))
    }

    /// Whether a workload's proxy is a gateway.
    pub(crate) fn is_gateway(&self, workload: &Workload) -> bool {
        let selecting = self.snapshot.gateways_for(workload);
        !workload.has_proxy && selecting.iter().any(|gateway| !gateway.selector.is_empty())
    }

    /// The proxy of a workload with its configuration, generated once.
    pub(crate) fn proxy(&self, workload: &Arc<Workload>) -> Rc<Proxy> {
        let key = (workload.namespace.clone(), workload.pod.clone());
        if let Some(known) = self.proxies.borrow().get(&key) {
            return Rc::clone(known);
        }
        let kind = if self.is_gateway(workload) { ProxyKind::Router } else { ProxyKind::Sidecar };
        let proxy = Rc::new(Proxy::new(kind, Arc::clone(workload), &self.snapshot));
        self.proxies.borrow_mut().insert(key, Rc::clone(&proxy));
        proxy
    }

    /// The object and position of a route's origin (`istio.config` of its metadata).
    pub(crate) fn of_route(&self, origin: &str) -> Option<(RouteOwner, Source)> {
        let (path, position) = split_origin(origin);
        let set =
            self.snapshot.route_sets.iter().find(|set| config_path(set.kind, &set.namespace, &set.name) == path)?;
        let owner = RouteOwner { kind: set.kind, namespace: set.namespace.clone(), name: set.name.clone() };
        let span = position.map_or_else(|| set.origin.clone(), parse_span);
        let source = Source::at(owner.to_string(), &span);
        Some((owner, source))
    }

    /// The object whose name is written at `origin`, and the position of a field in it.
    pub(crate) fn source(&self, object: impl Into<String>, origin: &Span, field: &str) -> Source {
        Source::at(object, &self.places.field(origin, field))
    }
}

/// The object that a route comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteOwner {
    pub(crate) kind: Kind,
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl std::fmt::Display for RouteOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Reads a position as it is printed: `file:line:column`.
pub(crate) fn parse_span(text: &str) -> Span {
    let mut parts = text.rsplitn(3, ':');
    let (column, line) = (parts.next().and_then(|n| n.parse().ok()), parts.next().and_then(|n| n.parse().ok()));
    match (parts.next(), line, column) {
        (Some(file), Some(line), Some(column)) => Span::at(file, line, column),
        _ => Span::whole_file(text),
    }
}
