//! What protects and is not supported: objects of other kinds (the decoder reads whom they judge) and policies for
//! waypoints. What they would have judged is closed, unless the mesh leaves them out.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::istio::TargetRef;
use evenkeel_api::{Guarded, Judged, Kind, Object, ObjectKey, Places, Resource};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::tracking::Cx;
use crate::policy::{Operation, Rule, Unsupported};
use crate::selection::GATEWAY_NAME;
use crate::{AuthorizationAction, AuthorizationPolicy, Labels, Selection};

/// The label by which a Namespace, a Service or a workload names its waypoint.
const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// The label that names the waypoint's namespace, if that is another one.
const USE_WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
/// The value of the label that names no waypoint.
const NO_WAYPOINT: &str = "none";
/// The kinds whose objects have waypoints, or whose namespaces may.
const KINDS_OF_USERS: [Kind; 8] = [
    Kind::Namespace,
    Kind::Service,
    Kind::Pod,
    Kind::Deployment,
    Kind::StatefulSet,
    Kind::DaemonSet,
    Kind::WorkloadEntry,
    Kind::WorkloadGroup,
];
/// The class of waypoints.
const WAYPOINT_CLASS: &str = "istio-waypoint";
/// The code of the finding that something is not enforced, and nothing takes its place.
pub const NOT_ENFORCED: &str = "not-enforced";
/// How to run without an object that is not supported.
const WAY_OUT: &str = "remove it if nothing needs it; `--leave-out-refused` runs without it, and lets these calls pass";

/// The workloads that have a waypoint, by namespace, each by the labels that they have.
type Users = BTreeMap<Arc<str>, Vec<Labels>>;

/// The policies that stand in for an object of a kind that is not supported. If they cannot close what the object would have
/// judged, or must not, they have no rules: they are there for the tools that tell of it.
pub(super) fn stand_in<'a>(
    cx: &Cx<'_>,
    object: &Object,
    policy: &AuthorizationPolicy,
    targets: impl Iterator<Item = &'a TargetRef>,
    found: &mut Diagnostics,
) -> Vec<AuthorizationPolicy> {
    let mesh = cx.mesh();
    let Some(unsupported) = object.unsupported() else { return vec![policy.clone()] };
    let closes = !mesh.leave_out_refused
        && !policy.rules.is_empty()
        && match unsupported.guarded {
            Guarded::Requests => true,
            Guarded::Network => mesh.on_one_machine,
        };
    let targets: Vec<&TargetRef> = targets.collect();
    let (users, unknown) = users_of_waypoints(cx, &policy.namespace, &targets);
    note_stand_in(cx, object, closes, found);
    for target in unknown.iter().filter(|_| !mesh.leave_out_refused) {
        found.push(not_closed(object, target));
    }
    let what: Arc<str> = object.to_string().as_str().into();
    // Without anything that could be refused there is still something to tell of.
    let nothing = [Judged { at: Places::CALLED, ports: Vec::new() }];
    let judged = if unsupported.judged.is_empty() { &nothing[..] } else { &unsupported.judged };
    let of_judged = |judged: &Judged| {
        let rule = || {
            if judged.ports.is_empty() {
                Rule::default()
            } else {
                Rule { to: vec![Operation { ports: judged.ports.clone(), ..Operation::default() }], ..Rule::default() }
            }
        };
        let rules = closes.then(rule).into_iter().collect();
        AuthorizationPolicy {
            rules,
            unsupported: Some(Unsupported { what: what.clone(), at: judged.at }),
            ..policy.clone()
        }
    };
    judged.iter().map(of_judged).flat_map(|policy| with_users(policy, &users, !targets.is_empty())).collect()
}

/// A policy, which may be for references, and the same for the users of waypoints that they name.
fn with_users(policy: AuthorizationPolicy, users: &Users, has_references: bool) -> Vec<AuthorizationPolicy> {
    if !has_references {
        return vec![policy];
    }
    let mut own = match &policy.selection {
        Selection::Gateways(gateways) => gateways.clone(),
        Selection::Labels(_) => Vec::new(),
    };
    own.extend(users.get(&policy.namespace).into_iter().flatten().cloned());
    let elsewhere = users.iter().filter(|(namespace, _)| **namespace != policy.namespace);
    let elsewhere: Vec<_> = elsewhere.map(|(namespace, users)| in_namespace(&policy, namespace, users)).collect();
    let own = AuthorizationPolicy { selection: Selection::Gateways(own), ..policy };
    std::iter::once(own).chain(elsewhere).collect()
}

fn in_namespace(policy: &AuthorizationPolicy, namespace: &Arc<str>, users: &[Labels]) -> AuthorizationPolicy {
    let selection = Selection::Gateways(users.to_vec());
    AuthorizationPolicy { namespace: namespace.clone(), selection, ..policy.clone() }
}

/// Says what becomes of such an object.
fn note_stand_in(cx: &Cx<'_>, object: &Object, closes: bool, found: &mut Diagnostics) {
    let (mesh, Some(unsupported)) = (cx.mesh(), object.unsupported()) else { return };
    let is_of = |place: fn(&Places) -> bool| unsupported.judged.iter().any(|judged| place(&judged.at));
    let effect = match (is_of(|at| at.inbound || at.gateway), is_of(|at| at.outbound)) {
        (true, false) => "its workloads refuse every call that it might judge",
        (false, _) => "its workloads can send no call that it might judge",
        (true, true) => "its workloads refuse every call that it might judge, and can send none",
    };
    let is_of_network = unsupported.guarded == Guarded::Network;
    match (closes, is_of_network) {
        (true, false) => found.push(closed(object, effect)),
        (true, true) => {
            let message =
                format!("{object} is not enforced on one machine; until it is removed, its Pods refuse every call");
            found.push(finding(Diagnostic::error, object, message, WAY_OUT));
        }
        (false, true) if !mesh.leave_out_refused && mesh.on_one_machine => {
            let message =
                format!("{object} is not enforced on one machine, and nothing refuses the calls that its Pods send");
            found.push(finding(Diagnostic::error, object, message, WAY_OUT));
        }
        (false, true) if !mesh.leave_out_refused => {
            let message = format!("{object} is not enforced by the mesh; the network of a cluster enforces it");
            let help = "it can stay; `evenkeel up` starts only with `--leave-out-refused`";
            found.push(finding(Diagnostic::warning, object, message, help));
        }
        (false, _) if mesh.leave_out_refused => {
            let message = format!("{object} is left out; the calls that it would refuse pass");
            found.push(finding(
                Diagnostic::warning,
                object,
                message,
                "start without `--leave-out-refused` to close them",
            ));
        }
        // What judges requests is always closed.
        (false, _) => {}
    }
}

/// The policies that close what a policy says for waypoints, one for each namespace with users of these.
pub(super) fn of_waypoint<'a>(
    cx: &Cx<'_>,
    object: &Object,
    policy: &AuthorizationPolicy,
    targets: impl Iterator<Item = &'a TargetRef>,
    found: &mut Diagnostics,
) -> Vec<AuthorizationPolicy> {
    // A policy that only logs refuses nothing, wherever it is enforced.
    if policy.dry_run || policy.action == AuthorizationAction::Audit {
        return Vec::new();
    }
    let targets: Vec<&TargetRef> = targets.collect();
    let (users, unknown) = users_of_waypoints(cx, &policy.namespace, &targets);
    let is_left_out = cx.mesh().leave_out_refused;
    for target in unknown.iter().filter(|_| !is_left_out) {
        found.push(not_closed(object, target));
    }
    if users.is_empty() {
        return Vec::new();
    }
    let rules = match policy.action {
        _ if is_left_out => Vec::new(),
        AuthorizationAction::Allow => vec![Rule::default()],
        _ => policy.rules.clone(),
    };
    let what = format!("the waypoint of {object}");
    if is_left_out {
        let message = format!("{object} is for a waypoint, and there are none: it is left out");
        let help = "select the workloads by `selector`";
        found.push(finding(Diagnostic::warning, object, message, help));
    } else {
        let effect = match policy.action {
            AuthorizationAction::Allow => "its workloads refuse every call",
            _ => "its workloads refuse every call that its rules match",
        };
        let message = format!("{object} is for a waypoint, which is not supported; until that is corrected, {effect}");
        let help = "select the workloads by `selector`, or run with `--leave-out-refused`, which lets these calls pass";
        let finding = Diagnostic::warning("closed", object.origin.clone(), message).about(object.reference());
        found.push(finding.with_help(help));
    }
    let closing = AuthorizationPolicy {
        action: AuthorizationAction::Deny,
        provider: None,
        rules,
        refused: true,
        unsupported: Some(Unsupported { what: what.as_str().into(), at: Places::CALLED }),
        ..policy.clone()
    };
    users.iter().map(|(namespace, users)| in_namespace(&closing, namespace, users)).collect()
}

/// The workloads whose calls waypoints would judge by references, and the references whose workloads are not known here.
fn users_of_waypoints<'a>(cx: &Cx<'_>, namespace: &Arc<str>, targets: &[&'a TargetRef]) -> (Users, Vec<&'a TargetRef>) {
    let (mut users, mut unknown) = (Users::new(), Vec::new());
    for target in targets {
        match users_of_waypoint(cx, namespace, target) {
            Some(more) => {
                more.into_iter().for_each(|(namespace, labels)| users.entry(namespace).or_default().extend(labels))
            }
            None => unknown.push(*target),
        }
    }
    users.retain(|_, labels| !labels.is_empty());
    (users, unknown)
}

/// The workloads whose calls a waypoint would judge by a reference; `None`: they are not known here.
fn users_of_waypoint(cx: &Cx<'_>, namespace: &Arc<str>, target: &TargetRef) -> Option<Users> {
    let named = |kind| ObjectKey { kind, namespace: namespace.clone(), name: target.name.as_str().into() };
    let here = |labels: Vec<Labels>| Some(Users::from([(namespace.clone(), labels)]));
    match target.kind.as_str() {
        "Gateway" => Some(users_of_gateway(cx, namespace, &target.name)),
        // Istio heeds it in the root namespace only, and nowhere for another class.
        "GatewayClass" if target.name.value == WAYPOINT_CLASS && *namespace == cx.mesh().root_namespace => {
            Some(users_elsewhere(cx, "", |labels| labels.get(USE_WAYPOINT).is_some_and(|name| name != NO_WAYPOINT)))
        }
        "Service" => match cx.object(&named(Kind::Service)).map(|object| &object.resource) {
            Some(Resource::Service(service)) if service.spec.selector.is_empty() => None,
            Some(Resource::Service(service)) => here(vec![service.spec.selector.clone()]),
            // Nobody can call it.
            _ => here(Vec::new()),
        },
        "ServiceEntry" => match cx.object(&named(Kind::ServiceEntry)).map(|object| &object.resource) {
            Some(Resource::ServiceEntry(entry)) => {
                let selector = entry.spec.workload_selector.as_ref()?;
                (!selector.labels.is_empty()).then(|| here(vec![selector.labels.clone()]))?
            }
            _ => here(Vec::new()),
        },
        _ => None,
    }
}

/// Those that have a Gateway of this name as their waypoint, in its own namespace and in others.
fn users_of_gateway(cx: &Cx<'_>, namespace: &Arc<str>, name: &str) -> Users {
    let is_named = |labels: &Labels| labels.get(USE_WAYPOINT).is_some_and(|waypoint| waypoint == name);
    let mut users = Users::new();
    // A Gateway with Pods is one at the edge; of those there are many.
    let pods = Labels::from([(GATEWAY_NAME.to_owned(), name.to_owned())]);
    if !cx.selects_something(namespace, &pods) {
        let names_it = |labels: &Labels| labels.get(USE_WAYPOINT_NAMESPACE).is_some_and(|own| **own == **namespace);
        users = users_elsewhere(cx, namespace, |labels| is_named(labels) && names_it(labels));
    }
    users.insert(namespace.clone(), users_in(cx, namespace, is_named));
    users
}

/// The users of waypoints in all namespaces but one.
fn users_elsewhere(cx: &Cx<'_>, but: &str, is_user: impl Fn(&Labels) -> bool + Copy) -> Users {
    let of_kind = |kind: Kind| {
        cx.objects(kind).map(move |object| if kind == Kind::Namespace { &object.name } else { &object.namespace })
    };
    let mut namespaces: Vec<&Arc<str>> =
        KINDS_OF_USERS.into_iter().flat_map(of_kind).filter(|name| ***name != *but).collect();
    namespaces.sort();
    namespaces.dedup();
    namespaces.into_iter().map(|name| (name.clone(), users_in(cx, name, is_user))).collect()
}

/// The workloads of a namespace that have a waypoint by the labels of the namespace, of a Service, or of their own.
fn users_in(cx: &Cx<'_>, namespace: &Arc<str>, is_user: impl Fn(&Labels) -> bool) -> Vec<Labels> {
    if cx.namespace_labels(namespace).is_some_and(&is_user) {
        return vec![Labels::new()];
    }
    let of_service = |object: &Object| match &object.resource {
        Resource::Service(service) if is_user(&object.labels) => {
            Some(service.spec.selector.clone()).filter(|selector| !selector.is_empty())
        }
        _ => None,
    };
    let services = cx.objects_in(Kind::Service, namespace).into_iter();
    let mut users: Vec<Labels> = services.filter_map(|(_, object)| of_service(object)).collect();
    let of_pod = |labels: &Labels| -> Labels {
        let names = [USE_WAYPOINT, USE_WAYPOINT_NAMESPACE].into_iter();
        names.filter_map(|name| Some((name.to_owned(), labels.get(name)?.clone()))).collect()
    };
    users.extend(cx.running(namespace).filter(|labels| is_user(labels)).map(of_pod));
    users.sort();
    users.dedup();
    users
}

fn not_closed(object: &Object, target: &TargetRef) -> Diagnostic {
    let message = format!(
        "{object} is for the waypoint of {} `{}`; there are no waypoints, and nothing takes its place",
        target.kind.value, target.name.value
    );
    Diagnostic::error(NOT_ENFORCED, target.kind.span.clone(), message)
        .with_help("select the workloads by `selector`, or run with `--leave-out-refused`, which lets these calls pass")
        .about(object.reference())
}

fn closed(object: &Object, effect: &str) -> Diagnostic {
    let message = format!("{object} is not supported; until it is removed, {effect}");
    Diagnostic::warning("closed", object.origin.clone(), message).with_help(WAY_OUT).about(object.reference())
}

fn finding(
    make: fn(&'static str, evenkeel_base::Span, String) -> Diagnostic,
    object: &Object,
    message: String,
    help: &str,
) -> Diagnostic {
    make(NOT_ENFORCED, object.origin.clone(), message).with_help(help).about(object.reference())
}
