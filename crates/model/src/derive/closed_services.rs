//! Services whose clients refuse calls to them, because a policy judges these calls where nothing of the mesh does: at a
//! waypoint, for a service whose workloads are not known.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::annotations::is_dry_run;
use evenkeel_api::istio::{Action, TargetRef};
use evenkeel_api::{Guarded, Object, ObjectKey, Resource};

use super::refused;
use super::run::Run;
use super::step::Results;
use super::tracking::{Cx, Fact, Tracker};
use super::waypoints::{is_for_all_waypoints, selector_of, waypoint_of};
use crate::service::ClosedBy;

/// What a policy refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Referent {
    kind: &'static str,
    namespace: Arc<str>,
    name: Arc<str>,
}

/// The closing policies, by what they refer to.
#[derive(Debug, Default)]
pub(super) struct Table {
    referents: BTreeMap<ObjectKey, Vec<(Referent, ClosedBy)>>,
    closing: BTreeMap<Referent, BTreeMap<ObjectKey, Vec<ClosedBy>>>,
}

pub(super) fn object_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let (closing, keep) = run.read(|cx, _| (closing(cx, key), cx.object(key).is_some()));
    run.tables.closed_services.set(key, closing, run.tracker);
    keep
}

impl Results for Table {}

impl Table {
    fn set(&mut self, key: &ObjectKey, new: Vec<(Referent, ClosedBy)>, tracker: &mut Tracker) {
        let old = self.referents.remove(key).unwrap_or_default();
        if old == new {
            self.restore(key, old);
            return;
        }
        for (referent, _) in old.iter().chain(&new) {
            tracker.changed(referent.fact());
        }
        for (referent, _) in &old {
            if let Some(of_objects) = self.closing.get_mut(referent) {
                of_objects.remove(key);
                if of_objects.is_empty() {
                    self.closing.remove(referent);
                }
            }
        }
        for (referent, closing) in &new {
            let of_objects = self.closing.entry(referent.clone()).or_default();
            of_objects.entry(key.clone()).or_default().push(closing.clone());
        }
        self.restore(key, new);
    }

    fn restore(&mut self, key: &ObjectKey, referents: Vec<(Referent, ClosedBy)>) {
        if !referents.is_empty() {
            self.referents.insert(key.clone(), referents);
        }
    }
}

impl Referent {
    fn fact(&self) -> Fact<'_> {
        Fact::Closing(self.kind, &self.namespace, &self.name)
    }
}

impl<'t> Cx<'t> {
    /// The policies that close a Service or ServiceEntry at its clients.
    pub(super) fn closed_by(&self, object: &Object) -> Vec<ClosedBy> {
        let (namespace, name) = (object.namespace.clone(), object.name.clone());
        let has_workloads = selector_of(object).is_some();
        let own = Referent { kind: object.kind().as_str(), namespace, name };
        if has_workloads {
            return Vec::new();
        }
        let mut all: Vec<ClosedBy> = self.closing(&own).cloned().collect();
        if let Some((namespace, name)) = waypoint_of(self, object) {
            let waypoint = Referent { kind: "Gateway", namespace, name };
            let any = all_waypoints();
            all.extend(self.closing(&waypoint).chain(self.closing(&any)).cloned());
        }
        all
    }

    fn closing(&self, referent: &Referent) -> impl Iterator<Item = &'t ClosedBy> + use<'t> {
        let table = &self.read(referent.fact()).closed_services;
        table.closing.get(referent).into_iter().flat_map(BTreeMap::values).flatten()
    }
}

fn all_waypoints() -> Referent {
    Referent { kind: "GatewayClass", namespace: "".into(), name: "".into() }
}

/// What the policies of a name refer to and close: the one in force, and others, which are ignored by mistake.
fn closing(cx: &Cx<'_>, key: &ObjectKey) -> Vec<(Referent, ClosedBy)> {
    let Some(first) = cx.object(key).filter(|_| !cx.mesh().leave_out_refused) else { return Vec::new() };
    let all = std::iter::once(first).chain(refused::ignored(cx, first));
    all.flat_map(|object| {
        let closing = ClosedBy { what: object.to_string().as_str().into(), origin: object.origin.clone() };
        let referents = judged_by(object).into_iter().filter_map(|target| referent(cx, object, target));
        referents.map(move |referent| (referent, closing.clone())).collect::<Vec<_>>()
    })
    .collect()
}

/// The references of a policy; none if it refuses nothing.
fn judged_by(object: &Object) -> Vec<&TargetRef> {
    match &object.resource {
        Resource::AuthorizationPolicy(policy) => {
            let Some(spec) = &policy.spec else { return Vec::new() };
            let refuses = match object.unsupported() {
                Some(unsupported) => unsupported.guarded == Guarded::Requests && !spec.rules.is_empty(),
                None if is_dry_run(&object.annotations) => false,
                None => match spec.action {
                    Some(Action::Audit) => false,
                    Some(Action::Deny | Action::Custom) => !spec.rules.is_empty(),
                    Some(Action::Allow) | None => true,
                },
            };
            if refuses { spec.target_ref.iter().chain(&spec.target_refs).collect() } else { Vec::new() }
        }
        Resource::RequestAuthentication(authentication) => {
            let spec = authentication.spec.iter();
            spec.flat_map(|spec| spec.target_ref.iter().chain(&spec.target_refs)).collect()
        }
        _ => Vec::new(),
    }
}

fn referent(cx: &Cx<'_>, object: &Object, target: &TargetRef) -> Option<Referent> {
    let kind = match target.kind.as_str() {
        "Service" => "Service",
        "ServiceEntry" => "ServiceEntry",
        "Gateway" => "Gateway",
        _ => return is_for_all_waypoints(cx, &object.namespace, target).then(all_waypoints),
    };
    Some(Referent { kind, namespace: object.namespace.clone(), name: target.name.as_str().into() })
}
