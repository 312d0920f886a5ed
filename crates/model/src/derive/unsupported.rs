//! What protects and is not supported: objects of other kinds (the decoder reads whom they judge) and policies for
//! waypoints. What they would have judged is closed, unless the mesh leaves them out.

use evenkeel_api::istio::TargetRef;
use evenkeel_api::{Guarded, Kind, Object, ObjectKey, Resource};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::tracking::Cx;
use crate::policy::{Rule, Unsupported};
use crate::{AuthorizationAction, AuthorizationPolicy, Labels, Selection};

/// The label by which a Namespace, a Service or a workload names its waypoint.
const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// The code of the finding that something is not enforced, and nothing takes its place.
pub const NOT_ENFORCED: &str = "not-enforced";
/// How to run without an object that is not supported.
const WAY_OUT: &str = "remove it if nothing needs it; `--leave-out-refused` runs without it, and lets these calls pass";

/// The policy that stands in for an object of a kind that is not supported. If it cannot close what the object would have
/// judged, or must not, it has no rules: it is there for the tools that tell of it.
pub(super) fn stand_in<'a>(
    cx: &Cx<'_>,
    object: &Object,
    policy: AuthorizationPolicy,
    targets: impl Iterator<Item = &'a TargetRef>,
    found: &mut Diagnostics,
) -> AuthorizationPolicy {
    let mesh = cx.mesh();
    let Some(unsupported) = object.unsupported() else { return policy };
    let can_close = !policy.rules.is_empty();
    let closes = !mesh.leave_out_refused
        && can_close
        && match unsupported.guarded {
            Guarded::Requests => true,
            Guarded::Calls => false,
            Guarded::Network => mesh.on_one_machine,
        };
    let users: Vec<&TargetRef> = targets.collect();
    let (selection, unknown) = match users.is_empty() {
        true => (policy.selection.clone(), Vec::new()),
        false => with_users_of_waypoints(cx, &policy, &users),
    };
    let is_of_network = unsupported.guarded == Guarded::Network;
    match (closes, is_of_network) {
        (true, false) => found.push(closed(object, "its workloads refuse every call that it might judge")),
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
        (false, _) => {
            let message =
                format!("{object} judges calls that workloads send; it is not supported, and nothing takes its place");
            found.push(finding(Diagnostic::error, object, message, WAY_OUT));
        }
    }
    for target in unknown.iter().filter(|_| !mesh.leave_out_refused) {
        found.push(not_closed(object, target));
    }
    let rules = if closes { policy.rules } else { Vec::new() };
    let what = object.to_string().as_str().into();
    AuthorizationPolicy { selection, rules, unsupported: Some(Unsupported { what, at: unsupported.at }), ..policy }
}

/// The policy that closes what a policy says for waypoints; `None` if that is nothing.
pub(super) fn of_waypoint<'a>(
    cx: &Cx<'_>,
    object: &Object,
    policy: &AuthorizationPolicy,
    targets: impl Iterator<Item = &'a TargetRef>,
    found: &mut Diagnostics,
) -> Option<AuthorizationPolicy> {
    let (mut judged, mut unknown) = (Vec::new(), Vec::new());
    for target in targets {
        match users_of_waypoint(cx, &policy.namespace, target) {
            Some(users) => judged.extend(users),
            None => unknown.push(target),
        }
    }
    // A policy that only logs refuses nothing, wherever it is enforced.
    if policy.dry_run || policy.action == AuthorizationAction::Audit {
        return None;
    }
    let is_left_out = cx.mesh().leave_out_refused;
    for target in unknown.iter().filter(|_| !is_left_out) {
        found.push(not_closed(object, target));
    }
    if judged.is_empty() {
        return None;
    }
    let rules = match policy.action {
        _ if is_left_out => Vec::new(),
        AuthorizationAction::Allow => vec![Rule::default()],
        _ => policy.rules.clone(),
    };
    let what = format!("the waypoint of {object}");
    match is_left_out {
        true => {
            let message = format!("{object} is for a waypoint, and there are none: it is left out");
            let help = "select the workloads by `selector`";
            found.push(finding(Diagnostic::warning, object, message, help));
        }
        false => {
            let effect = match policy.action {
                AuthorizationAction::Allow => "its workloads refuse every call",
                _ => "its workloads refuse every call that its rules match",
            };
            let message =
                format!("{object} is for a waypoint, which is not supported; until that is corrected, {effect}");
            let help =
                "select the workloads by `selector`, or run with `--leave-out-refused`, which lets these calls pass";
            let finding = Diagnostic::warning("closed", object.origin.clone(), message).about(object.reference());
            found.push(finding.with_help(help));
        }
    }
    Some(AuthorizationPolicy {
        selection: Selection::Gateways(judged),
        action: AuthorizationAction::Deny,
        provider: None,
        rules,
        refused: true,
        unsupported: Some(Unsupported { what: what.as_str().into(), at: None }),
        ..policy.clone()
    })
}

/// The selection of a stand-in with references, and the references whose workloads are not known.
fn with_users_of_waypoints<'a>(
    cx: &Cx<'_>,
    policy: &AuthorizationPolicy,
    targets: &[&'a TargetRef],
) -> (Selection, Vec<&'a TargetRef>) {
    let mut all = match &policy.selection {
        Selection::Gateways(gateways) => gateways.clone(),
        Selection::Labels(_) => Vec::new(),
    };
    let mut unknown = Vec::new();
    for target in targets {
        match users_of_waypoint(cx, &policy.namespace, target) {
            Some(users) => all.extend(users),
            None => unknown.push(*target),
        }
    }
    (Selection::Gateways(all), unknown)
}

/// The labels of the workloads whose calls a waypoint would judge by a reference; `None`: they are not known here.
fn users_of_waypoint(cx: &Cx<'_>, namespace: &std::sync::Arc<str>, target: &TargetRef) -> Option<Vec<Labels>> {
    let named = |kind| ObjectKey { kind, namespace: namespace.clone(), name: target.name.as_str().into() };
    match target.kind.as_str() {
        "Gateway" => Some(users_of_gateway(cx, namespace, &target.name)),
        "Service" => match cx.object(&named(Kind::Service)).map(|object| &object.resource) {
            Some(Resource::Service(service)) if service.spec.selector.is_empty() => None,
            Some(Resource::Service(service)) => Some(vec![service.spec.selector.clone()]),
            // Nobody can call it.
            _ => Some(Vec::new()),
        },
        "ServiceEntry" => match cx.object(&named(Kind::ServiceEntry)).map(|object| &object.resource) {
            Some(Resource::ServiceEntry(entry)) => {
                let selector = entry.spec.workload_selector.as_ref()?;
                (!selector.labels.is_empty()).then(|| vec![selector.labels.clone()])
            }
            _ => Some(Vec::new()),
        },
        _ => None,
    }
}

/// Those that have a Gateway of this name as their waypoint, in its own namespace.
fn users_of_gateway(cx: &Cx<'_>, namespace: &std::sync::Arc<str>, name: &str) -> Vec<Labels> {
    let is_user = |labels: &Labels| labels.get(USE_WAYPOINT).is_some_and(|waypoint| waypoint == name);
    if cx.namespace_labels(namespace).is_some_and(is_user) {
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
    let own = Labels::from([(USE_WAYPOINT.to_owned(), name.to_owned())]);
    if cx.selects_something(namespace, &own) {
        users.push(own);
    }
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
