//! VirtualServices as routes.

use std::collections::BTreeSet;

use evenkeel_api::{Kind, Object};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Diagnostics, ObjectRef, Span};
use evenkeel_model::{GatewayRef, HttpAction, HttpMatch, HttpRoute, Protocol, RouteSet, Snapshot};
use serde_json::{Map, Value};

use super::actions::{Rules, Setting, replaces_match};
use super::conditions::{Condition, conditions};
use super::documents::{RouteDocument, Routes};
use super::gateways::PlannedGateways;
use super::order::{Ordered, inversion};
use super::places::{Carried, RoutePlace, places};
use super::writer::Writer;
use super::{RouteOptions, grpc, l4};

/// What becomes of a VirtualService.
pub(super) struct WrittenService {
    pub(super) object: ObjectRef,
    /// `None`: it remains.
    pub(super) routes: Option<Routes>,
    /// The Gateways that it names.
    pub(super) gateways: Vec<GatewayRef>,
    pub(super) findings: Diagnostics,
}

/// A rule with its conditions; none: every request.
struct WrittenRule {
    body: Map<String, Value>,
    conditions: Vec<Condition>,
    span: Span,
}

/// A VirtualService before the others of its hosts are looked at.
struct Draft<'a> {
    set: &'a RouteSet,
    writer: Writer<'a>,
    routes: Routes,
    /// The rules at a gateway, to compare them with those of others for the same host.
    at_gateways: Vec<WrittenRule>,
    /// The hosts that it has at gateways.
    hosts: BTreeSet<(GatewayRef, Hostname)>,
}

/// Writes the routes of all VirtualServices, in the order of precedence.
pub(super) fn write(
    objects: &[&Object],
    snapshot: &Snapshot,
    options: &RouteOptions,
    gateways: &PlannedGateways,
) -> Vec<WrittenService> {
    let is_it = |object: &&&Object, set: &RouteSet| {
        object.kind() == Kind::VirtualService && object.namespace == set.namespace && object.name == set.name
    };
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    for set in snapshot.route_sets.iter().filter(|set| set.kind == Kind::VirtualService) {
        let Some(object) = objects.iter().find(|object| is_it(object, set)) else { continue };
        drafts.push(Draft::new(set, Writer::new(object, snapshot, options), gateways));
    }
    join(&mut drafts);
    let mut all: Vec<WrittenService> = drafts.into_iter().map(Draft::finished).collect();
    delegates(objects, &mut all);
    all
}

/// A VirtualService without hosts goes with those that delegate to it.
fn delegates(objects: &[&Object], all: &mut Vec<WrittenService>) {
    for object in objects.iter().filter(|object| object.kind() == Kind::VirtualService) {
        if all.iter().any(|written| written.object == object.reference()) {
            continue;
        }
        let key = (&object.namespace, &object.name);
        let roots: Vec<&&Object> = objects.iter().filter(|root| delegates_to(root, key.0, key.1)).collect();
        let is_replaced =
            |root: &&&Object| all.iter().any(|written| written.object == root.reference() && written.routes.is_some());
        let routes = (!roots.is_empty() && roots.iter().all(is_replaced)).then(Routes::default);
        let mut findings = Diagnostics::new();
        if routes.is_none() {
            let message =
                format!("{object} has no hosts, and no VirtualService with routes that are written delegates to it");
            let finding = evenkeel_base::Diagnostic::info("route-note", object.origin.clone(), message);
            findings.push(finding.about(object.reference()));
        }
        all.push(WrittenService { object: object.reference(), routes, gateways: Vec::new(), findings });
    }
}

fn delegates_to(root: &Object, namespace: &str, name: &str) -> bool {
    let evenkeel_api::Resource::VirtualService(service) = &root.resource else { return false };
    service.spec.http.iter().filter_map(|route| route.delegate.as_ref()).any(|delegate| {
        let own = delegate.namespace.as_ref().map_or(&*root.namespace, |namespace| &*namespace.0);
        &*delegate.name.0 == name && own == namespace
    })
}

/// VirtualServices that share a host at a Gateway: the Gateway API sorts all their routes together.
fn join(drafts: &mut [Draft<'_>]) {
    for at in 0..drafts.len() {
        for other in at + 1..drafts.len() {
            let Ok([one, other]) = drafts.get_disjoint_mut([at, other]) else { continue };
            if one.shares_host(other) {
                compare(one, other);
            }
        }
    }
    // What shares a host with one that remains, remains: which of them decides would change.
    loop {
        let remaining: Vec<usize> =
            (0..drafts.len()).filter(|at| drafts.get(*at).is_some_and(|one| one.writer.is_refused)).collect();
        let next = (0..drafts.len()).find_map(|at| {
            let one = drafts.get(at).filter(|one| !one.writer.is_refused)?;
            let other = remaining.iter().filter_map(|other| drafts.get(*other)).find(|other| one.shares_host(other))?;
            Some((at, other.writer.object.to_string()))
        });
        let Some((at, other)) = next else { return };
        if let Some(draft) = drafts.get_mut(at) {
            let message = format!("`hosts`: it shares a host at a Gateway with {other}, which remains");
            draft.writer.refuse(&draft.set.origin, message, "see the findings about that one");
        }
    }
}

fn compare(one: &mut Draft<'_>, other: &mut Draft<'_>) {
    let numbered = |draft: &'_ [WrittenRule], first: usize| -> Vec<(usize, Vec<Condition>)> {
        draft.iter().enumerate().map(|(at, rule)| (first + at, rule.conditions.clone())).collect()
    };
    let mut rules = numbered(&one.at_gateways, 0);
    rules.extend(numbered(&other.at_gateways, one.at_gateways.len()));
    // Routes for every request come last at a gateway, whichever object has them.
    let all: Vec<Ordered<'_>> = rules
        .iter()
        .flat_map(|(rule, conditions)| conditions.iter().map(|condition| Ordered { condition, rule: *rule }))
        .collect();
    let (last, first): (Vec<_>, Vec<_>) = all.into_iter().partition(|ordered| ordered.condition.is_everything());
    let all: Vec<Ordered<'_>> = first.into_iter().chain(last).collect();
    if let Some((earlier, later)) = inversion(&all) {
        let message = format!(
            "`hosts`: {} has routes for the same host, and the order of precedence puts the condition at {} before the one at {}",
            other.writer.object, later.original.origin, earlier.original.origin
        );
        let help = "make the conditions exclude each other";
        one.writer.refuse(&one.set.origin, &message, help);
        let message = message.replace(&other.writer.object.to_string(), &one.writer.object.to_string());
        other.writer.refuse(&other.set.origin, message, help);
    }
}

impl<'a> Draft<'a> {
    fn new(set: &'a RouteSet, mut writer: Writer<'a>, gateways: &PlannedGateways) -> Self {
        let mut draft_routes = Routes::default();
        let mut at_gateways = Vec::new();
        if !set.http.is_empty() {
            for place in places(&mut writer, set, Carried::Http, gateways) {
                http_at(&mut writer, set, &place, &mut draft_routes, &mut at_gateways);
            }
        }
        l4::write(&mut writer, set, gateways, &mut draft_routes);
        if draft_routes.routes.is_empty() && !writer.is_refused {
            let message = "it has no routes that apply somewhere";
            writer.refuse(&set.origin, message, "see the findings of `evenkeel analyze`");
        }
        Self { set, writer, routes: draft_routes, at_gateways, hosts: hosts_at_gateways(set, gateways) }
    }

    fn shares_host(&self, other: &Self) -> bool {
        !self.hosts.is_disjoint(&other.hosts)
    }

    fn finished(self) -> WrittenService {
        WrittenService {
            object: self.writer.object.reference(),
            routes: (!self.writer.is_refused).then_some(self.routes),
            gateways: self.set.gateways.clone(),
            findings: self.writer.findings,
        }
    }
}

/// The hosts that a VirtualService has at its Gateways: of its own and the Gateway's the more specific one.
fn hosts_at_gateways(set: &RouteSet, gateways: &PlannedGateways) -> BTreeSet<(GatewayRef, Hostname)> {
    let mut all = BTreeSet::new();
    for at in &set.gateways {
        for section in gateways.get(at).into_iter().flat_map(|gateway| &gateway.sections) {
            for host in &set.hosts {
                if section.host.covers(&host.value) {
                    all.insert((at.clone(), host.value.clone()));
                } else if host.value.covers(&section.host) {
                    all.insert((at.clone(), section.host.clone()));
                }
            }
        }
    }
    all
}

/// The routes at a place: for all its ports, or one for each if the port decides something.
fn http_at(
    writer: &mut Writer<'_>,
    set: &RouteSet,
    place: &RoutePlace,
    routes: &mut Routes,
    at_gateways: &mut Vec<WrittenRule>,
) {
    let is_by_port = needs_port(writer, set, place);
    let numbers = place.numbers();
    let ports: Vec<Option<u16>> = match (is_by_port, numbers.as_slice()) {
        (true, numbers) => numbers.iter().map(|number| Some(*number)).collect(),
        (false, _) => vec![None],
    };
    for port in ports {
        let (mut rules, grants) = rules(writer, set, place, port);
        check_order(writer, &rules);
        let kind = kind(writer, set, &mut rules);
        let document = RouteDocument {
            kind,
            namespace: place.namespace.clone(),
            name: set.name.to_string(),
            parents: place.parents(port),
            hostnames: place.hostnames.clone(),
            rules: rules.iter().map(WrittenRule::json).collect(),
            origin: set.origin.clone(),
        };
        routes.grants.extend(grants);
        if rules.is_empty() {
            writer.note(&set.origin, format!("no route applies at `{}`", place.at));
            continue;
        }
        routes.routes.push(document);
        if matches!(place.at, GatewayRef::Named { .. }) {
            at_gateways.extend(rules);
        }
    }
}

/// Whether the port that is called decides something.
fn needs_port(writer: &Writer<'_>, set: &RouteSet, place: &RoutePlace) -> bool {
    let applies = |condition: &&HttpMatch| condition.gateways.is_empty() || condition.gateways.contains(&place.at);
    let by_condition = set.http.iter().flat_map(|route| &route.matches).filter(applies).any(|one| one.port.is_some());
    let by_destination = set.http.iter().any(|route| match &route.action {
        HttpAction::Route { destinations, mirrors, .. } => {
            let all = destinations.iter().map(|one| &one.destination).chain(mirrors.iter().map(|one| &one.destination));
            all.filter(|destination| destination.port.is_none())
                .any(|destination| writer.service(&destination.host).is_some_and(|service| service.ports.len() > 1))
        }
        _ => false,
    });
    by_condition || by_destination
}

fn rules(
    writer: &mut Writer<'_>,
    set: &RouteSet,
    place: &RoutePlace,
    port: Option<u16>,
) -> (Vec<WrittenRule>, BTreeSet<super::actions::Grant>) {
    let setting = Setting {
        namespace: place.namespace.clone(),
        port,
        is_gateway: matches!(place.at, GatewayRef::Named { .. }),
        has_usual_ports: place.has_usual_ports(port),
    };
    let mut all = Vec::new();
    let mut of_place = Rules { writer, setting, grants: BTreeSet::new() };
    for route in &set.http {
        let Some(mut conditions) = applying(of_place.writer, route, place, port) else { continue };
        let takes_all = conditions.iter().any(Condition::is_everything);
        if let Some(first) = conditions.iter().position(Condition::is_everything) {
            conditions.truncate(first + 1);
            // The others have the same effect, unless that depends on what they match.
            if !replaces_match(route) {
                conditions.drain(..first);
            }
        }
        if replaces_match(route) {
            for condition in conditions {
                let body = of_place.rule(route, Some(&condition));
                all.push(WrittenRule { body, conditions: vec![condition], span: route.origin.clone() });
            }
        } else {
            let body = of_place.rule(route, None);
            all.push(WrittenRule { body, conditions, span: route.origin.clone() });
        }
        // What follows is never reached, and would be sorted before it.
        if takes_all {
            break;
        }
    }
    (all, of_place.grants)
}

/// The conditions of a route that can hold at a place; `None`: none can.
fn applying(
    writer: &mut Writer<'_>,
    route: &HttpRoute,
    place: &RoutePlace,
    port: Option<u16>,
) -> Option<Vec<Condition>> {
    if route.matches.is_empty() {
        let everything = HttpMatch { origin: route.origin.clone(), ..HttpMatch::default() };
        return Some(conditions(writer, &everything));
    }
    let applies = |one: &&HttpMatch| {
        let here = one.gateways.is_empty() || one.gateways.contains(&place.at);
        here && one.port.is_none_or(|own| port.is_none_or(|port| port == own))
    };
    let matches: Vec<&HttpMatch> = route.matches.iter().filter(applies).collect();
    let mut all = Vec::new();
    for one in matches {
        all.extend(conditions(writer, one));
    }
    (!all.is_empty()).then_some(all)
}

fn check_order(writer: &mut Writer<'_>, rules: &[WrittenRule]) {
    let number = |rule: &WrittenRule| rules.iter().position(|other| other.body == rule.body).unwrap_or_default();
    let all: Vec<Ordered<'_>> = rules
        .iter()
        .flat_map(|rule| rule.conditions.iter().map(|condition| Ordered { condition, rule: number(rule) }))
        .collect();
    let Some((earlier, later)) = inversion(&all) else { return };
    let span = |condition: &Condition| condition.original.origin.clone();
    let message = format!(
        "`http`: requests may meet the condition at {} and the one at {}; the first decides here, and by the Gateway API's order of precedence the second",
        span(earlier),
        span(later)
    );
    let help = "make the conditions exclude each other: exact paths precede prefixes, and those expressions; then the longer path, a method, more headers";
    let at = rules.iter().find(|rule| rule.conditions.iter().any(|one| std::ptr::eq(one, later)));
    let span = at.map_or_else(|| span(later), |rule| rule.span.clone());
    writer.refuse(&span, message, help);
}

/// The kind of the routes, with conditions as that kind has them.
fn kind(writer: &Writer<'_>, set: &RouteSet, rules: &mut [WrittenRule]) -> &'static str {
    let of_grpc = |rule: &WrittenRule| -> Option<Vec<Condition>> {
        let all =
            rule.conditions.iter().map(|condition| grpc::condition(&condition.original)).collect::<Option<Vec<_>>>()?;
        grpc::is_rule(&rule.body).then_some(all)
    };
    let Some(all) = rules.iter().map(of_grpc).collect::<Option<Vec<_>>>() else { return "HTTPRoute" };
    let calls = set.destinations().all(|destination| {
        let service = writer.service(&destination.host);
        let port = |service: &evenkeel_model::Service| {
            let own = destination.port.or_else(|| service.ports.first().map(|port| port.number))?;
            service.port(own).map(|port| port.protocol)
        };
        service.and_then(port) == Some(Protocol::Grpc)
    });
    if !calls || !all.iter().flatten().any(grpc::names_service) {
        return "HTTPRoute";
    }
    let mut as_grpc: Vec<WrittenRule> = Vec::new();
    for (rule, conditions) in rules.iter().zip(all) {
        as_grpc.push(WrittenRule { body: rule.body.clone(), conditions, span: rule.span.clone() });
    }
    // Its order of precedence is another one, because prefixes are not expressions there.
    let number = |rule: &WrittenRule| as_grpc.iter().position(|other| other.body == rule.body).unwrap_or_default();
    let ordered: Vec<Ordered<'_>> = as_grpc
        .iter()
        .flat_map(|rule| rule.conditions.iter().map(|condition| Ordered { condition, rule: number(rule) }))
        .collect();
    if inversion(&ordered).is_some() {
        return "HTTPRoute";
    }
    for (rule, new) in rules.iter_mut().zip(as_grpc) {
        rule.conditions = new.conditions;
    }
    "GRPCRoute"
}

impl WrittenRule {
    fn json(&self) -> Map<String, Value> {
        let mut rule = Map::new();
        let is_all = self.conditions.len() == 1 && self.conditions.iter().all(Condition::is_everything);
        if !is_all {
            let matches = self.conditions.iter().map(|condition| Value::Object(condition.json.clone()));
            rule.insert("matches".to_owned(), matches.collect());
        }
        rule.extend(self.body.clone());
        rule
    }
}
