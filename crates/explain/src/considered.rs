//! The rules that did not apply to a request, and why.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;
use evenkeel_filters::explain::Trace;
use evenkeel_model::{GatewayRef, HttpMatch, HttpRoute, Labels, RouteSet, Selectable, Viewer, Workload};
use evenkeel_runtime_config::route::{Route, VirtualHost};
use evenkeel_runtime_config::view::PlainRequest;
use evenkeel_translate::split_origin;

use crate::answer::Considered;
use crate::mismatch;
use crate::place::Source;
use crate::world::{RouteOwner, World};

/// Maximum number of rules that are listed.
const MAX_LISTED: usize = 200;

/// A proxy as the owner of rules sees it.
pub struct Client<'w> {
    workload: &'w Workload,
}

impl Viewer for Client<'_> {
    fn is_in(&self, namespace: &Arc<str>) -> bool {
        self.workload.namespace == *namespace
    }
}

impl Selectable for Client<'_> {
    fn selected_by(&self, selector: &Labels) -> bool {
        self.workload.labels.selected_by(selector)
    }
}

/// The place where rules are asked.
pub struct RuleContext<'a> {
    /// The mesh.
    pub world: &'a World,
    /// The proxy's workload.
    pub workload: &'a Workload,
    /// Where it applies: `mesh`, or the Gateways that it serves.
    pub gateways: &'a [GatewayRef],
    /// The port that the request is addressed to.
    pub port: u16,
    /// The service that is called, or else the host of the request.
    pub host: Option<Hostname>,
}

/// The rules that did not apply: those of the route set that serves the host, in order, then the other route sets for
/// the host.
pub fn rules(asked: &RuleContext<'_>, trace: &Trace, random: u64) -> Vec<Considered> {
    let chosen = trace.route.as_deref();
    let mut owners: Vec<RouteOwner> = Vec::new();
    let of_host = trace.host.iter().flat_map(|host| &host.routes).filter_map(|route| route.origin.as_deref());
    for (owner, _) in of_host.filter_map(|origin| asked.world.of_route(origin)) {
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
    let mut all = Vec::new();
    let sets = &asked.world.snapshot.route_sets;
    let is_of = |set: &RouteSet, owner: &RouteOwner| {
        (set.kind, &set.namespace, &set.name) == (owner.kind, &owner.namespace, &owner.name)
    };
    let serving: Vec<&Arc<RouteSet>> =
        owners.iter().filter_map(|owner| sets.iter().find(|set| is_of(set, owner))).collect();
    let mut is_found = false;
    for set in &serving {
        of_set(asked, set, (trace, chosen, random), &mut is_found, &mut all);
    }
    others(asked, &serving, &mut all);
    all.truncate(MAX_LISTED);
    all
}

/// The rules of a route set that serves the host.
fn of_set(
    asked: &RuleContext<'_>,
    set: &RouteSet,
    (trace, chosen, random): (&Trace, Option<&Route>, u64),
    is_found: &mut bool,
    all: &mut Vec<Considered>,
) {
    for http in &set.http {
        let conditions: Vec<Option<&HttpMatch>> = match http.matches.as_slice() {
            [] => vec![None],
            matches => matches.iter().map(Some).collect(),
        };
        for condition in conditions {
            let span = condition.map_or(&http.origin, |condition| &condition.origin);
            let position = span.to_string();
            let is_here =
                |route: &Route| route.origin.as_deref().and_then(|origin| split_origin(origin).1) == Some(&position);
            if chosen.is_some_and(is_here) {
                *is_found = true;
                continue;
            }
            let compiled =
                trace.host.as_ref().and_then(|host: &Arc<VirtualHost>| host.routes.iter().find(|route| is_here(route)));
            let reason = match (compiled, condition) {
                (_, _) if *is_found => "an earlier rule applies".to_owned(),
                (Some(route), _) => not_matched(route, trace.matched.as_ref(), random),
                (None, Some(condition)) => not_generated(asked, condition),
                (None, None) => "an earlier rule matches every request".to_owned(),
            };
            let source = Source::at(format!("{} {}/{}", set.kind, set.namespace, set.name), span);
            all.push(Considered { name: name(http, condition), source, reason, later: *is_found });
        }
    }
}

fn name(http: &HttpRoute, condition: Option<&HttpMatch>) -> String {
    let parts = [Some(&http.name), condition.map(|condition| &condition.name)];
    let parts: Vec<&str> = parts.into_iter().flatten().map(|name| &**name).filter(|name| !name.is_empty()).collect();
    parts.join(".")
}

fn not_matched(route: &Route, request: Option<&PlainRequest>, random: u64) -> String {
    let reasons = request.map(|request| mismatch::reasons(&route.matches, request, random)).unwrap_or_default();
    if reasons.is_empty() { "not asked".to_owned() } else { reasons.join("; ") }
}

/// Why a rule is no part of the proxy's configuration.
fn not_generated(asked: &RuleContext<'_>, condition: &HttpMatch) -> String {
    // At a gateway, what a condition says of the source is compared with the gateway itself.
    let client = asked.workload;
    let subject = if asked.gateways.contains(&GatewayRef::Mesh) { "client" } else { "gateway" };
    if !condition.gateways.is_empty() && !condition.gateways.iter().any(|gateway| asked.gateways.contains(gateway)) {
        return format!("it applies only at {}", listed(&condition.gateways));
    }
    if let Some(namespace) = condition.source_namespace.as_ref().filter(|wanted| ***wanted != *client.namespace) {
        return match subject {
            "client" => format!("sourceNamespace is {}, must be \"{namespace}\"", client.namespace),
            _ => format!("sourceNamespace is that of the gateway, {}, must be \"{namespace}\"", client.namespace),
        };
    }
    if !client.labels.selected_by(&condition.source_labels) {
        let missing = condition.source_labels.iter().filter(|(name, value)| client.labels.get(*name) != Some(value));
        let missing: Vec<String> = missing.map(|(name, value)| format!("{name}={value}")).collect();
        return format!("the {subject} lacks sourceLabels {}", missing.join(", "));
    }
    if let Some(port) = condition.port.filter(|port| *port != asked.port) {
        return format!("port is {}, must be {port}", asked.port);
    }
    "an earlier rule matches every request".to_owned()
}

/// Adds route sets with hosts that cover the called one, and that did not serve it.
fn others(asked: &RuleContext<'_>, serving: &[&Arc<RouteSet>], all: &mut Vec<Considered>) {
    let Some(host) = &asked.host else { return };
    let client = Client { workload: asked.workload };
    let mut seen = BTreeSet::new();
    for set in asked.world.snapshot.route_sets.iter() {
        let is_serving = serving.iter().any(|other| (&other.namespace, &other.name) == (&set.namespace, &set.name));
        let Some(covering) = set.hosts.iter().find(|own| own.value.covers(host)) else { continue };
        if is_serving || !seen.insert((set.kind, set.namespace.clone(), set.name.clone())) {
            continue;
        }
        // Rules for every host, at some other place, are no candidates.
        if covering.value.as_str() == "*" && !set.gateways.iter().any(|gateway| asked.gateways.contains(gateway)) {
            continue;
        }
        let applies = set.gateways.iter().any(|gateway| asked.gateways.contains(gateway));
        let sidecar = asked.world.snapshot.sidecar_for(&asked.workload.namespace, &asked.workload.labels);
        let imported = || {
            let is_mesh = asked.gateways.contains(&GatewayRef::Mesh);
            sidecar.is_none_or(|own| !is_mesh || own.imports_routes(set, asked.port, &asked.workload.namespace))
        };
        let reason = if !set.export_to.seen_by(&client) {
            format!("exportTo does not include the namespace {}", asked.workload.namespace)
        } else if !applies {
            format!("it applies only at {}", listed(&set.gateways))
        } else if !imported() {
            "the workload's Sidecar does not import it".to_owned()
        } else if let Some(first) = serving.first() {
            format!("{}/{} serves {host} first", first.namespace, first.name)
        } else if set.http.is_empty() {
            "it has no http rules".to_owned()
        } else {
            format!("its host {} has no virtual host on this port", covering.value)
        };
        let object = format!("{} {}/{}", set.kind, set.namespace, set.name);
        all.push(Considered { name: String::new(), source: Source::at(object, &covering.span), reason, later: false });
    }
}

fn listed(gateways: &[GatewayRef]) -> String {
    let names: Vec<String> = gateways
        .iter()
        .map(|gateway| match gateway {
            GatewayRef::Mesh => "`mesh` (sidecars)".to_owned(),
            GatewayRef::Named { namespace, name } => format!("Gateway {namespace}/{name}"),
        })
        .collect();
    names.join(", ")
}
