//! What protects and is not supported: objects of other kinds (the decoder reads whom they judge) and policies for
//! waypoints. What they would have judged is closed, unless the mesh leaves them out.

use std::sync::Arc;

use evenkeel_api::istio::TargetRef;
use evenkeel_api::{Guarded, Judged, Object, Places};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::tracking::Cx;
use super::waypoints::{JudgedThere, Users, WAYPOINT_CLASS, judged_there};
use crate::policy::{Operation, Rule, Unsupported};
use crate::{AuthorizationAction, AuthorizationPolicy, Labels, Selection};

/// The code of the finding that something is not enforced, and nothing takes its place.
pub const NOT_ENFORCED: &str = "not-enforced";
/// How to run without an object that is not supported.
const WAY_OUT: &str = "remove it if nothing needs it; `--leave-out-refused` runs without it, and lets these calls pass";

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
    let judged_there = judged_there(cx, &policy.namespace, &targets);
    let users = &judged_there.workloads;
    let has_effect = targets.is_empty() || judged_there.unheeded_classes.len() < targets.len();
    // What only clients refuse has a finding of its own.
    if has_effect && (!closes || judged_there.services.is_empty() || !users.is_empty()) {
        note_stand_in(cx, object, closes, found);
    }
    note_elsewhere(cx, object, &judged_there, found);
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
    judged.iter().map(of_judged).flat_map(|policy| with_users(policy, users, !targets.is_empty())).collect()
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
    let judged_there = judged_there(cx, &policy.namespace, &targets);
    let users = &judged_there.workloads;
    let is_left_out = cx.mesh().leave_out_refused;
    note_elsewhere(cx, object, &judged_there, found);
    if users.is_empty() && (judged_there.services.is_empty() || !is_left_out) {
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

/// Says what becomes of what no workload can refuse: clients refuse it, or nobody judges it.
fn note_elsewhere(cx: &Cx<'_>, object: &Object, judged: &JudgedThere<'_>, found: &mut Diagnostics) {
    found.extend(judged.unheeded_classes.iter().map(|target| unheeded_class(cx, object, target)));
    if cx.mesh().leave_out_refused {
        return;
    }
    found.extend(judged.services.iter().map(|target| closed_at_clients(object, target)));
}

fn closed_at_clients(object: &Object, target: &TargetRef) -> Diagnostic {
    let whom = match target.kind.as_str() {
        "Gateway" | "GatewayClass" => "services without a selector that use this waypoint",
        _ => "it",
    };
    let message = format!(
        "{object} is for the waypoint of {} `{}`, and there are no waypoints; until that is corrected, sidecars and gateways \
         refuse every call to {whom}",
        target.kind.value, target.name.value
    );
    Diagnostic::warning("closed", target.kind.span.clone(), message).with_help(WAY_OUT).about(object.reference())
}

/// Istio compares the class's name, and the namespace of the policy (`ShouldAttachPolicy`): nothing that it would judge is open here.
fn unheeded_class(cx: &Cx<'_>, object: &Object, target: &TargetRef) -> Diagnostic {
    let message = format!(
        "{object} judges nothing by its reference to GatewayClass `{}`, in Istio neither: of classes a policy can name only \
         `{WAYPOINT_CLASS}`, and only in the root namespace `{}`",
        target.name.value,
        cx.mesh().root_namespace
    );
    Diagnostic::warning("no-effect", target.kind.span.clone(), message)
        .with_help("name the Gateway itself, or select the workloads by `selector`")
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
