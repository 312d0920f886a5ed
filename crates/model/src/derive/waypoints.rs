//! Users of waypoints: the workloads and services whose calls policies would judge there. There are no waypoints, so the
//! workloads refuse these calls. If the workloads of a service are not known, its clients refuse them
//! ([`super::closed_services`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::istio::TargetRef;
use evenkeel_api::{Kind, Object, ObjectKey, Resource};

use super::tracking::Cx;
use crate::Labels;
use crate::selection::GATEWAY_NAME;

/// The label by which a Namespace, a Service or a workload names its waypoint.
const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// The label that names the waypoint's namespace, if that is another one.
const USE_WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
/// The value of the label that names no waypoint.
const NO_WAYPOINT: &str = "none";
/// The kinds whose objects have waypoints, or whose namespaces may.
const KINDS_OF_USERS: [Kind; 9] = [
    Kind::Namespace,
    Kind::Service,
    Kind::ServiceEntry,
    Kind::Pod,
    Kind::Deployment,
    Kind::StatefulSet,
    Kind::DaemonSet,
    Kind::WorkloadEntry,
    Kind::WorkloadGroup,
];
/// The class of waypoints.
pub(super) const WAYPOINT_CLASS: &str = "istio-waypoint";

/// The workloads that have a waypoint, by namespace, each by the labels that they have.
pub(super) type Users = BTreeMap<Arc<str>, Vec<Labels>>;

/// What waypoints would judge by the references of a policy.
#[derive(Default)]
pub(super) struct JudgedThere<'a> {
    /// Calls to these workloads.
    pub(super) workloads: Users,
    /// Calls to the services of these references, whose workloads are not known: their clients refuse them.
    pub(super) services: Vec<&'a TargetRef>,
    /// References to GatewayClasses for which no waypoint heeds a policy of this namespace.
    pub(super) unheeded_classes: Vec<&'a TargetRef>,
}

/// Those that use the waypoints of one reference.
#[derive(Default)]
struct UsersOfOne {
    workloads: Users,
    has_services: bool,
}

/// The waypoint that an object names, or that its namespace names for it.
pub(super) fn waypoint_of(cx: &Cx<'_>, object: &Object) -> Option<(Arc<str>, Arc<str>)> {
    let labels = [Some(&object.labels), cx.namespace_labels(&object.namespace)].into_iter().flatten();
    let labels = labels.into_iter().find(|labels| labels.contains_key(USE_WAYPOINT))?;
    let name = labels.get(USE_WAYPOINT).filter(|name| *name != NO_WAYPOINT)?;
    let namespace = labels.get(USE_WAYPOINT_NAMESPACE).map_or_else(|| object.namespace.clone(), |own| (**own).into());
    Some((namespace, (**name).into()))
}

/// Whether a reference of a policy is to all waypoints. Istio heeds it in the root namespace only, and nowhere for another class.
pub(super) fn is_for_all_waypoints(cx: &Cx<'_>, namespace: &str, target: &TargetRef) -> bool {
    target.kind.as_str() == "GatewayClass"
        && target.name.value == WAYPOINT_CLASS
        && *namespace == *cx.mesh().root_namespace
}

/// What waypoints would judge by the references of a policy in this namespace.
pub(super) fn judged_there<'a>(cx: &Cx<'_>, namespace: &Arc<str>, targets: &[&'a TargetRef]) -> JudgedThere<'a> {
    let mut all = JudgedThere::default();
    for target in targets {
        let Some(users) = users_of(cx, namespace, target) else {
            all.unheeded_classes.push(*target);
            continue;
        };
        for (namespace, labels) in users.workloads {
            all.workloads.entry(namespace).or_default().extend(labels);
        }
        if users.has_services {
            all.services.push(*target);
        }
    }
    all.workloads.retain(|_, labels| !labels.is_empty());
    all
}

/// Those whose calls a waypoint would judge by a reference; `None`: no waypoint heeds it.
fn users_of(cx: &Cx<'_>, namespace: &Arc<str>, target: &TargetRef) -> Option<UsersOfOne> {
    let here = |labels: Option<Labels>| UsersOfOne {
        has_services: labels.is_none(),
        workloads: Users::from([(namespace.clone(), labels.into_iter().collect())]),
    };
    let kind = match target.kind.as_str() {
        "Gateway" => return Some(users_of_gateway(cx, namespace, &target.name)),
        "GatewayClass" if is_for_all_waypoints(cx, namespace, target) => {
            return Some(users_elsewhere(cx, "", |labels| {
                labels.get(USE_WAYPOINT).is_some_and(|name| name != NO_WAYPOINT)
            }));
        }
        "Service" => Kind::Service,
        "ServiceEntry" => Kind::ServiceEntry,
        _ => return None,
    };
    let key = ObjectKey { kind, namespace: namespace.clone(), name: target.name.as_str().into() };
    // Nobody can call what does not exist.
    Some(cx.object(&key).map_or_else(UsersOfOne::default, |object| here(selector_of(object))))
}

/// The labels of the workloads behind a Service or ServiceEntry; `None`: they are not known.
pub(super) fn selector_of(object: &Object) -> Option<Labels> {
    let selector = match &object.resource {
        Resource::Service(service) => Some(&service.spec.selector),
        Resource::ServiceEntry(entry) => entry.spec.workload_selector.as_ref().map(|selector| &selector.labels),
        _ => None,
    };
    selector.filter(|labels| !labels.is_empty()).cloned()
}

/// Those that have a Gateway of this name as their waypoint, in its own namespace and in others.
fn users_of_gateway(cx: &Cx<'_>, namespace: &Arc<str>, name: &str) -> UsersOfOne {
    let is_named = |labels: &Labels| labels.get(USE_WAYPOINT).is_some_and(|waypoint| waypoint == name);
    let mut users = UsersOfOne::default();
    // A Gateway with Pods is one at the edge; of those there are many.
    let pods = Labels::from([(GATEWAY_NAME.to_owned(), name.to_owned())]);
    if !cx.selects_something(namespace, &pods) {
        let names_it = |labels: &Labels| labels.get(USE_WAYPOINT_NAMESPACE).is_some_and(|own| **own == **namespace);
        users = users_elsewhere(cx, namespace, |labels| is_named(labels) && names_it(labels));
    }
    let is_here =
        |labels: &Labels| is_named(labels) && labels.get(USE_WAYPOINT_NAMESPACE).is_none_or(|own| **own == **namespace);
    users.has_services |= has_services_in(cx, namespace, is_here);
    users.workloads.insert(namespace.clone(), users_in(cx, namespace, is_named));
    users
}

/// The users of waypoints in all namespaces but one.
fn users_elsewhere(cx: &Cx<'_>, but: &str, is_user: impl Fn(&Labels) -> bool + Copy) -> UsersOfOne {
    let of_kind = |kind: Kind| {
        cx.objects(kind).map(move |object| if kind == Kind::Namespace { &object.name } else { &object.namespace })
    };
    let mut namespaces: Vec<&Arc<str>> =
        KINDS_OF_USERS.into_iter().flat_map(of_kind).filter(|name| ***name != *but).collect();
    namespaces.sort();
    namespaces.dedup();
    let has_services = namespaces.iter().any(|name| has_services_in(cx, name, is_user));
    let workloads = namespaces.into_iter().map(|name| (name.clone(), users_in(cx, name, is_user))).collect();
    UsersOfOne { workloads, has_services }
}

/// Whether a service of a namespace has a waypoint, and its workloads are not known.
fn has_services_in(cx: &Cx<'_>, namespace: &Arc<str>, is_user: impl Fn(&Labels) -> bool) -> bool {
    let of_namespace = cx.namespace_labels(namespace).filter(|labels| labels.contains_key(USE_WAYPOINT));
    let is_users = |object: &Object| {
        let own = Some(&object.labels).filter(|labels| labels.contains_key(USE_WAYPOINT));
        own.or(of_namespace).is_some_and(&is_user) && selector_of(object).is_none()
    };
    let of_kind = |kind| cx.objects_in(kind, namespace).into_iter().any(|(_, object)| is_users(object));
    of_kind(Kind::Service) || of_kind(Kind::ServiceEntry)
}

/// The workloads of a namespace that have a waypoint by the labels of the namespace, of a Service, or of their own.
fn users_in(cx: &Cx<'_>, namespace: &Arc<str>, is_user: impl Fn(&Labels) -> bool) -> Vec<Labels> {
    if cx.namespace_labels(namespace).is_some_and(&is_user) {
        return vec![Labels::new()];
    }
    let services = cx.objects_in(Kind::Service, namespace).into_iter();
    let services = services.filter(|(_, object)| is_user(&object.labels));
    let mut users: Vec<Labels> = services.filter_map(|(_, object)| selector_of(object)).collect();
    let of_pod = |labels: &Labels| -> Labels {
        let names = [USE_WAYPOINT, USE_WAYPOINT_NAMESPACE].into_iter();
        names.filter_map(|name| Some((name.to_owned(), labels.get(name)?.clone()))).collect()
    };
    users.extend(cx.running(namespace).filter(|labels| is_user(labels)).map(of_pod));
    users.sort();
    users.dedup();
    users
}
