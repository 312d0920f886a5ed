//! The status of a route: what each parent says, and what is wrong with its rules.

use std::collections::BTreeSet;

use evenkeel_api::gateway_api::ParentRef;
use evenkeel_base::Diagnostics;
use evenkeel_base::hostname::Hostname;

use crate::gateway_api_status::{Ancestor, ParentReference, RouteStatus};
use crate::{Condition, GatewayRef, RouteSet};

/// The condition of a route that applies.
const ACCEPTED: &str = "Accepted";
/// The condition of a route whose references can be followed.
const RESOLVED_REFS: &str = "ResolvedRefs";

/// What becomes of a route at its parents.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in super::super) struct RouteResult {
    pub(in super::super) status: RouteStatus,
    /// The listeners that it is attached to, by the model's gateways.
    pub(in super::super) listeners: BTreeSet<GatewayRef>,
    pub(super) reach: Reach,
}

/// From which Gateways a route leads to which hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Reach {
    pub(super) gateways: BTreeSet<Ancestor>,
    pub(super) hosts: BTreeSet<Hostname>,
}

impl RouteResult {
    /// `of_rules`: the findings about the rules.
    pub(super) fn new(
        mut status: RouteStatus,
        gateways: BTreeSet<Ancestor>,
        sets: &[RouteSet],
        of_rules: &Diagnostics,
    ) -> Self {
        let (unsupported, references) = (unsupported(of_rules), references(of_rules));
        for parent in &mut status.parents {
            for condition in parent.conditions.iter_mut().filter(|own| own.kind == ACCEPTED && own.holds) {
                *condition = unsupported.clone().unwrap_or_else(|| condition.clone());
            }
            parent.conditions.push(references.clone());
        }
        let listeners = sets.iter().flat_map(|set| &set.gateways).filter(|at| **at != GatewayRef::Mesh).cloned();
        let listeners = if unsupported.is_none() { listeners.collect() } else { BTreeSet::new() };
        let hosts = if gateways.is_empty() { BTreeSet::new() } else { sets.iter().flat_map(destinations).collect() };
        Self { status, listeners, reach: Reach { gateways, hosts } }
    }
}

/// The hosts that a route set leads to.
fn destinations(set: &RouteSet) -> impl Iterator<Item = Hostname> {
    set.destinations().map(|destination| destination.host.clone())
}

/// The reference to a parent as it is written.
pub(super) fn reference(parent: &ParentRef) -> ParentReference {
    ParentReference {
        group: parent.group.clone(),
        kind: parent.kind.clone(),
        namespace: parent.namespace.as_ref().map(|namespace| namespace.0.clone()),
        name: parent.name.value.clone(),
        section_name: parent.section_name.as_ref().map(|name| name.0.clone()),
        port: parent.port.as_ref().map(|port| port.0),
    }
}

/// What a parent says that takes the route.
pub(super) fn accepted() -> Condition {
    Condition::holds(ACCEPTED, "Accepted", "the route applies at this parent")
}

/// What a parent says that does not take the route, by the code of the finding about it.
pub(super) fn refused(code: &str, message: &str) -> Condition {
    let reason = match code {
        "not-allowed" => "NotAllowedByListeners",
        "host-not-served" => "NoMatchingListenerHostname",
        _ => "NoMatchingParent",
    };
    Condition::fails(ACCEPTED, reason, message)
}

/// What is said of a route with rules that cannot be honoured; `None`: there are none.
fn unsupported(of_rules: &Diagnostics) -> Option<Condition> {
    let finding = of_rules.iter().find(|finding| finding.code == "unsupported-filter")?;
    Some(Condition::fails(ACCEPTED, "UnsupportedValue", &finding.message))
}

/// Whether the backends can be used.
fn references(of_rules: &Diagnostics) -> Condition {
    let broken = of_rules.iter().find_map(|finding| {
        let reason = match finding.code {
            "missing-grant" => "RefNotPermitted",
            "missing-service" | "missing-port" | "bad-host" => "BackendNotFound",
            "unsupported-backend" => "InvalidKind",
            _ => return None,
        };
        Some(Condition::fails(RESOLVED_REFS, reason, &finding.message))
    });
    broken.unwrap_or_else(|| Condition::holds(RESOLVED_REFS, "ResolvedRefs", "all references are resolved"))
}
