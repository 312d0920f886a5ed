//! The table of statuses of the Gateway API's objects: routes report what their parents say; Gateways and their classes are judged
//! by steps of their own, after all routes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_api::{Kind, ObjectKey, Resource};
use evenkeel_base::ObjectRef;
use evenkeel_base::hostname::Hostname;

use super::super::run::Run;
use super::super::step::Results;
use super::super::tracking::{Fact, Tracker};
use super::listener_sets::listener_set;
use super::route_status::{Reach, RouteResult};
use super::{backend_tls_status, class_status, gateway_status, listener_set_status};
use crate::gateway_api_status::Ancestor;
use crate::{GatewayApiStatus, GatewayRef};

/// The statuses, and which routes are attached to which listener.
#[derive(Debug, Default)]
pub(in super::super) struct Table {
    statuses: BTreeMap<ObjectKey, Arc<GatewayApiStatus>>,
    /// The listeners that a route is attached to.
    listeners: HashMap<ObjectKey, BTreeSet<GatewayRef>>,
    /// The routes that are attached to a listener.
    pub(super) attached: HashMap<GatewayRef, BTreeSet<ObjectKey>>,
    /// Where the backends of a route are reached from.
    reach: HashMap<ObjectKey, Reach>,
    /// The routes that lead from a Gateway to a host.
    ancestors: HashMap<Hostname, BTreeMap<Ancestor, BTreeSet<ObjectKey>>>,
    changed: BTreeSet<ObjectKey>,
}

impl Results for Table {}

pub(in super::super) fn class_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let (status, keep) = run.read(|cx, _| {
        let object = cx.object(key);
        let status = object.and_then(|object| match &object.resource {
            Resource::GatewayClass(class) => class_status::status(class),
            _ => None,
        });
        (status.map(GatewayApiStatus::Class), object.is_some())
    });
    run.tables.gateway_api_statuses.set(key, status);
    keep
}

pub(in super::super) fn gateway_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let (status, keep) = run.read(|cx, _| {
        let object = cx.object(key);
        let status = object.and_then(|object| match &object.resource {
            Resource::KubernetesGateway(written) => gateway_status::status(cx, object, written),
            _ => None,
        });
        (status.map(GatewayApiStatus::Gateway), object.is_some())
    });
    run.tables.gateway_api_statuses.set(key, status);
    keep
}

pub(in super::super) fn listener_set_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let (status, keep) = run.read(|cx, _| {
        let object = cx.object(key);
        let status = object.and_then(|object| listener_set_status::status(cx, object, listener_set(object)?));
        (status.map(GatewayApiStatus::ListenerSet), object.is_some())
    });
    run.tables.gateway_api_statuses.set(key, status);
    keep
}

pub(in super::super) fn backend_tls_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let (status, keep) = run.read(|cx, _| {
        let object = cx.object(key);
        let status = object.and_then(|object| match &object.resource {
            Resource::BackendTlsPolicy(policy) => Some(backend_tls_status::status(cx, key, object, policy)),
            _ => None,
        });
        (status.map(GatewayApiStatus::Policy), object.is_some())
    });
    run.tables.gateway_api_statuses.set(key, status);
    keep
}

impl Table {
    /// Takes over what has become of a route; `None`: it is gone, or the object is no route.
    pub(in super::super) fn set_route(&mut self, key: &ObjectKey, result: Option<RouteResult>, tracker: &mut Tracker) {
        let (status, now) = match result {
            Some(RouteResult { status, listeners, reach }) => {
                self.set_reach(key, reach, tracker);
                (Some(GatewayApiStatus::Route(status)), listeners)
            }
            None => {
                self.set_reach(key, Reach::default(), tracker);
                (None, BTreeSet::new())
            }
        };
        self.set(key, status);
        let before = self.listeners.remove(key).unwrap_or_default();
        for listener in before.symmetric_difference(&now) {
            let here = self.attached.entry(listener.clone()).or_default();
            if now.contains(listener) {
                here.insert(key.clone());
            } else {
                here.remove(key);
            }
            if here.is_empty() {
                self.attached.remove(listener);
            }
            tracker.changed(Fact::AttachedTo(listener));
        }
        if !now.is_empty() {
            self.listeners.insert(key.clone(), now);
        }
    }

    fn set_reach(&mut self, key: &ObjectKey, now: Reach, tracker: &mut Tracker) {
        let before = self.reach.remove(key).unwrap_or_default();
        if before != now {
            for host in &before.hosts {
                let Some(here) = self.ancestors.get_mut(host) else { continue };
                here.values_mut().for_each(|routes| _ = routes.remove(key));
                here.retain(|_, routes| !routes.is_empty());
                if here.is_empty() {
                    self.ancestors.remove(host);
                }
            }
            for host in &now.hosts {
                for gateway in &now.gateways {
                    let here = self.ancestors.entry(host.clone()).or_default();
                    here.entry(gateway.clone()).or_default().insert(key.clone());
                }
            }
            for host in before.hosts.union(&now.hosts) {
                tracker.changed(Fact::AncestorsOf(host.as_str()));
            }
        }
        if now != Reach::default() {
            self.reach.insert(key.clone(), now);
        }
    }

    /// The Gateways whose routes lead to a host.
    pub(super) fn ancestors_of(&self, host: &Hostname) -> impl Iterator<Item = &Ancestor> {
        self.ancestors.get(host).into_iter().flat_map(BTreeMap::keys)
    }

    fn set(&mut self, key: &ObjectKey, status: Option<GatewayApiStatus>) {
        if self.statuses.get(key).map(|before| &**before) == status.as_ref() {
            return;
        }
        self.changed.insert(key.clone());
        match status {
            Some(status) => _ = self.statuses.insert(key.clone(), Arc::new(status)),
            None => _ = self.statuses.remove(key),
        }
    }

    /// Takes the objects whose statuses have changed.
    pub(in super::super) fn take_changed(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.changed)
    }

    /// The status of an object; `None`: it is not served here, or of another API.
    pub(in super::super) fn of(&self, object: &ObjectRef) -> Option<Arc<GatewayApiStatus>> {
        let kind = Kind::ALL.iter().find(|kind| kind.group() == object.group && kind.as_str() == object.kind)?;
        let key = ObjectKey { kind: *kind, namespace: object.namespace.clone(), name: object.name.clone() };
        self.statuses.get(&key).cloned()
    }

    /// All statuses.
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<GatewayApiStatus>)> {
        self.statuses.iter()
    }
}
