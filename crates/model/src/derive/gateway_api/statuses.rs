//! The table of statuses of the Gateway API's objects: routes report what their parents say; Gateways and their classes are judged
//! by steps of their own, after all routes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_api::{Kind, ObjectKey, Resource};
use evenkeel_base::ObjectRef;

use super::super::run::Run;
use super::super::step::Results;
use super::super::tracking::{Fact, Tracker};
use super::route_status::RouteResult;
use super::{class_status, gateway_status};
use crate::{GatewayApiStatus, GatewayRef};

/// The statuses, and which routes are attached to which listener.
#[derive(Debug, Default)]
pub(in super::super) struct Table {
    statuses: BTreeMap<ObjectKey, Arc<GatewayApiStatus>>,
    /// The listeners that a route is attached to.
    listeners: HashMap<ObjectKey, BTreeSet<GatewayRef>>,
    /// The routes that are attached to a listener.
    pub(super) attached: HashMap<GatewayRef, BTreeSet<ObjectKey>>,
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

impl Table {
    /// Takes over what has become of a route; `None`: it is gone, or the object is no route.
    pub(in super::super) fn set_route(&mut self, key: &ObjectKey, result: Option<RouteResult>, tracker: &mut Tracker) {
        let (status, now) = match result {
            Some(RouteResult { status, listeners }) => (Some(GatewayApiStatus::Route(status)), listeners),
            None => (None, BTreeSet::new()),
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
