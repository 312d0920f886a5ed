//! Stand-ins for objects of kinds that protect something and are not supported: what they would have judged is closed, as
//! for a refused AuthorizationPolicy.
//!
//! Only what decides whom an object judges is read, in its widest sense. An object that clearly protects nothing (a plugin
//! that may fail, a filter for statistics) has no stand-in.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_base::suggest::closest;
use evenkeel_base::yaml::{Mapping, Node, Value};
use evenkeel_base::{Span, Spanned};

use super::parts::{labels, made, name_at, near, sound, text_of};
use crate::istio::{Action, AuthorizationPolicy, AuthorizationPolicySpec, Rule, TargetRef, WorkloadSelector};
use crate::object::{Guarded, Judged, Places, Refusal, Unsupported};
use crate::{Kind, Object, ObjectKey, Resource};

/// A kind that protects something.
struct Guard {
    group: &'static str,
    kind: &'static str,
    by: By,
}

/// How a kind protects.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// Programs in proxies.
    Plugin,
    /// Changes of proxies' configuration.
    Filter,
    /// Rules for packets.
    Network,
    /// The same, for the whole cluster.
    ClusterNetwork,
}

#[rustfmt::skip]
const GUARDS: &[Guard] = &[
    Guard { group: "extensions.istio.io", kind: "WasmPlugin", by: By::Plugin },
    Guard { group: "extensions.istio.io", kind: "TrafficExtension", by: By::Plugin },
    Guard { group: "networking.istio.io", kind: "EnvoyFilter", by: By::Filter },
    Guard { group: "networking.k8s.io", kind: "NetworkPolicy", by: By::Network },
    Guard { group: "extensions", kind: "NetworkPolicy", by: By::Network },
    Guard { group: "policy.networking.k8s.io", kind: "AdminNetworkPolicy", by: By::ClusterNetwork },
    Guard { group: "policy.networking.k8s.io", kind: "BaselineAdminNetworkPolicy", by: By::ClusterNetwork },
    Guard { group: "policy.networking.k8s.io", kind: "ClusterNetworkPolicy", by: By::ClusterNetwork },
    Guard { group: "cilium.io", kind: "CiliumNetworkPolicy", by: By::Network },
    Guard { group: "cilium.io", kind: "CiliumClusterwideNetworkPolicy", by: By::ClusterNetwork },
    Guard { group: "projectcalico.org", kind: "NetworkPolicy", by: By::Network },
    Guard { group: "projectcalico.org", kind: "GlobalNetworkPolicy", by: By::ClusterNetwork },
    Guard { group: "crd.projectcalico.org", kind: "NetworkPolicy", by: By::Network },
    Guard { group: "crd.projectcalico.org", kind: "GlobalNetworkPolicy", by: By::ClusterNetwork },
];

/// The guard that a kind is, or probably is meant to be.
fn guard(group: &str, kind: &str) -> Option<&'static Guard> {
    let of_group = || GUARDS.iter().filter(move |guard| guard.group == group);
    of_group().find(|guard| guard.kind == kind).or_else(|| {
        let meant = closest(kind, of_group().map(|guard| guard.kind))?;
        // Another kind of the group is not a misspelling.
        (!crate::resource::is_known(kind)).then(|| of_group().find(|guard| guard.kind == meant)).flatten()
    })
}

/// The stand-ins for a document of a kind that is not supported; none if it protects nothing.
pub(crate) fn unsupported(document: &Node, api_version: &str, kind: &str) -> Vec<Object> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let (Some(guard), Some(mapping)) = (guard(group, kind), document.as_mapping()) else { return Vec::new() };
    let spec = mapping.get("spec").filter(|spec| !spec.is_null());
    let scope = match guard.by {
        By::Plugin => plugin(spec),
        By::Filter => filter(spec),
        By::Network => network(spec),
        By::ClusterNetwork => Some(Scope::everything(Guarded::Network)),
    };
    scope.map(|scope| stand_in(guard, mapping, &document.span, scope)).into_iter().collect()
}

/// Returns the first of the kinds that close what they would have judged that a text that is not YAML names, with all that it may judge.
pub(super) fn named_in(speaks_of: impl Fn(&str) -> bool) -> Option<Unsupported> {
    let guard = GUARDS.iter().find(|guard| matches!(guard.by, By::Plugin | By::Filter) && speaks_of(guard.kind))?;
    let Scope { guarded, judged, .. } = Scope::everything(Guarded::Requests);
    Some(Unsupported { group: guard.group, kind: guard.kind, guarded, judged })
}

/// Whom and what an object judges.
struct Scope {
    guarded: Guarded,
    judged: Vec<Judged>,
    selector: BTreeMap<String, String>,
    targets: Vec<TargetRef>,
}

impl Scope {
    fn everything(guarded: Guarded) -> Self {
        let at = match guarded {
            Guarded::Requests => Places::ALL,
            Guarded::Network => Places::CALLED,
        };
        Self { guarded, judged: vec![Judged { at, ports: Vec::new() }], selector: BTreeMap::new(), targets: Vec::new() }
    }

    /// What references name has a waypoint, which judges what is sent to them, or is a gateway.
    fn of_references(mut self) -> Self {
        if self.targets.is_empty() {
            return self;
        }
        // A port is of either direction there.
        let is_of_some = self.judged.iter().all(|judged| !judged.ports.is_empty());
        let ports = self.judged.drain(..).flat_map(|judged| judged.ports).filter(|_| is_of_some).collect();
        Self { judged: vec![Judged { at: Places::CALLED, ports }], ..self }
    }
}

/// A plugin protects if requests fail without it, or if it runs where others authenticate and authorize.
fn plugin(spec: Option<&Node>) -> Option<Scope> {
    let Some(spec) = spec else { return Some(Scope::everything(Guarded::Requests)) };
    let text = |node: &Node, name: &str| node.get(name).and_then(Node::as_str).map(str::to_owned);
    let may_fail = |node: &Node| text(node, "failStrategy").as_deref() == Some("FAIL_OPEN");
    let is_harmless = match (spec.get("lua"), spec.get("wasm")) {
        // A script may answer itself.
        (Some(lua), _) if !lua.is_null() => false,
        (_, Some(wasm)) => may_fail(wasm),
        _ => may_fail(spec),
    };
    let phase = text(spec, "phase");
    let is_of_auth = spec.get("phase").is_some_and(|phase| !phase.is_null())
        && !matches!(phase.as_deref(), Some("STATS" | "UNSPECIFIED_PHASE"));
    if is_harmless && !is_of_auth {
        return None;
    }
    let (selector, targets) = whom(spec, "selector", "matchLabels");
    let scope = Scope { selector, targets, ..Scope::everything(Guarded::Requests) };
    let matches = spec.get("match").and_then(Node::as_sequence).unwrap_or_default();
    if matches.is_empty() {
        return Some(scope.of_references());
    }
    // Without a mode it is for both. Gateways run what is for clients, as in Istio.
    let entries = |other: &str| -> Vec<&Node> {
        matches.iter().filter(|entry| text(entry, "mode").as_deref() != Some(other)).collect()
    };
    let (servers, clients) = (entries("CLIENT"), entries("SERVER"));
    let (of_servers, of_clients) = (ports(&servers), ports(&clients));
    let inbound = Places { inbound: !servers.is_empty(), ..Places::default() };
    let others = Places { inbound: false, outbound: !clients.is_empty(), gateway: !clients.is_empty() };
    let judged = if of_servers == of_clients {
        vec![Judged { at: Places { inbound: inbound.inbound, ..others }, ports: of_servers }]
    } else {
        vec![Judged { at: inbound, ports: of_servers }, Judged { at: others, ports: of_clients }]
    };
    let judged = judged.into_iter().filter(|judged| judged.at != Places::default()).collect();
    Some(Scope { judged, ..scope }.of_references())
}

/// The ports that all entries name; none if an entry is for all, or cannot be read.
fn ports(entries: &[&Node]) -> Vec<u16> {
    let of_entry = |entry: &&Node| -> Option<Vec<u16>> {
        let ports = entry.get("ports").filter(|ports| !ports.is_null())?.as_sequence()?;
        let number = |port: &Node| port.get("number").and_then(text_of)?.parse().ok();
        ports.iter().map(number).collect::<Option<Vec<u16>>>().filter(|ports| !ports.is_empty())
    };
    entries.iter().map(of_entry).collect::<Option<Vec<_>>>().unwrap_or_default().concat()
}

/// A patch protects if what it adds authenticates, authorizes, limits or checks.
fn filter(spec: Option<&Node>) -> Option<Scope> {
    let Some(spec) = spec else { return Some(Scope::everything(Guarded::Requests)) };
    let Some(patches) = near_of(spec, "configPatches").and_then(Node::as_sequence) else {
        // Without patches it does nothing; a misspelt list was found above.
        let is_empty = spec.as_mapping().is_some_and(|spec| spec.iter().all(|entry| is_selection(&entry.key)));
        return (!is_empty).then(|| Scope::everything(Guarded::Requests));
    };
    let protecting: Vec<&Node> = patches.iter().filter(|patch| protects(patch)).collect();
    if protecting.is_empty() {
        return None;
    }
    let mut at = Places::default();
    for patch in protecting {
        match patch.at_path("match.context").and_then(Node::as_str) {
            Some("SIDECAR_INBOUND") => at.inbound = true,
            Some("SIDECAR_OUTBOUND") => at.outbound = true,
            Some("GATEWAY") => at.gateway = true,
            _ => at = Places::ALL,
        }
    }
    let (selector, targets) = whom(spec, "workloadSelector", "labels");
    let judged = vec![Judged { at, ports: Vec::new() }];
    Some(Scope { judged, selector, targets, ..Scope::everything(Guarded::Requests) }.of_references())
}

fn is_selection(field: &str) -> bool {
    matches!(field, "workloadSelector" | "targetRef" | "targetRefs" | "priority" | "configPatches")
}

fn near_of<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    near(node.as_mapping()?, name)
}

/// Parts of the names of Envoy's filters, types and fields that authenticate, authorize, limit, check or reject.
const PROTECTING: &[&str] = &[
    "access_control",
    "admission_control",
    "allow_list",
    "api_key",
    "apikey",
    "basic_auth",
    "basicauth",
    "connection_limit",
    "connectionlimit",
    "csrf",
    "deny",
    "ext_authz",
    "extauthz",
    "ext_proc",
    "external_processor",
    "externalprocessor",
    "forward_client_cert",
    "dynamic_modules",
    "direct_response",
    "golang",
    "header_validat",
    "headers_with_underscores",
    "http.lua",
    "inline_code",
    "jwt",
    "max_headers_count",
    "max_request_",
    "merge_slashes",
    "normalize_path",
    "oauth",
    "original_ip_detection",
    "path_with_escaped_slashes",
    "rate_limit",
    "ratelimit",
    "rbac",
    "request_headers_to_remove",
    "request_mutations",
    "require_client_certificate",
    "require_tls",
    "sanitize",
    "set_current_client_cert",
    "tls_params",
    "use_remote_address",
    "validation_context",
    "wasm",
    "xff_",
];

/// The runtime of what is compiled into Envoy. Istio's filters for statistics and metadata had it; none of them judges.
const NULL_RUNTIME: &str = "envoy.wasm.runtime.null";
/// The word of that list which does not count where this runtime is.
const WASM: &str = "wasm";

/// Whether what a patch adds may protect. A patch that removes something protects nothing.
fn protects(patch: &Node) -> bool {
    let Some(patch) = near_of(patch, "patch") else { return patch.as_mapping().is_some() };
    let removes = patch.get("operation").and_then(Node::as_str) == Some("REMOVE");
    let Some(value) = near_of(patch, "value").filter(|_| !removes) else { return false };
    let is_telemetry = any_text(value, &|text| text == NULL_RUNTIME);
    any_text(value, &|text| is_protecting(text, is_telemetry))
}

/// Whether some name or text of a value is such. Documents are not deeper than the limit of the parser.
fn any_text(node: &Node, is_it: &dyn Fn(&str) -> bool) -> bool {
    match &node.value {
        Value::Scalar(scalar) => is_it(&scalar.text),
        Value::Sequence(items) => items.iter().any(|item| any_text(item, is_it)),
        Value::Mapping(mapping) => mapping.iter().any(|entry| is_it(&entry.key) || any_text(&entry.value, is_it)),
    }
}

fn is_protecting(text: &str, is_telemetry: bool) -> bool {
    let lower = text.to_ascii_lowercase();
    // Fields may be in the spelling of JSON.
    let snake = snake_case(text);
    let mut parts = PROTECTING.iter().filter(|part| !is_telemetry || **part != WASM);
    parts.any(|part| lower.contains(part) || snake.contains(part))
}

/// `mergeSlashes` as `merge_slashes`.
fn snake_case(text: &str) -> String {
    let mut snake = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// A policy protects unless a rule of it lets everything in, or unless it speaks of neither direction.
fn network(spec: Option<&Node>) -> Option<Scope> {
    let Some(spec) = spec else { return Some(Scope::everything(Guarded::Network)) };
    let types = spec.get("policyTypes").and_then(Node::as_sequence).unwrap_or_default();
    let has_type = |name: &str| types.iter().any(|one| one.as_str() == Some(name));
    let restricts = |direction: &str, is_on: bool| {
        let rules = spec.get(direction).and_then(Node::as_sequence).unwrap_or_default();
        let is_everything = |rule: &Node| rule.as_mapping().is_some_and(|rule| rule.iter().next().is_none());
        is_on && !rules.iter().any(is_everything)
    };
    let sends = has_type("Egress") || types.is_empty() && spec.get("egress").is_some();
    let receives = restricts("ingress", types.is_empty() || has_type("Ingress"));
    if !receives && !restricts("egress", sends) {
        return None;
    }
    let selector = labels(spec.at_path("podSelector.matchLabels"));
    let all = Scope::everything(Guarded::Network);
    let judged = if receives { all.judged } else { Vec::new() };
    Some(Scope { selector, judged, ..all })
}

/// The selector and the references of an object. Both together, or a reference with a mistake: everything.
fn whom(spec: &Node, selector: &str, of_labels: &str) -> (BTreeMap<String, String>, Vec<TargetRef>) {
    let given = |name: &str| spec.get(name).filter(|node| !node.is_null());
    let list = given("targetRefs").filter(|list| list.as_sequence().is_none_or(|list| !list.is_empty()));
    match (given("targetRef"), list) {
        (None, None) => (labels(given(selector).and_then(|selector| selector.get(of_labels))), Vec::new()),
        _ if given(selector).is_some() => Default::default(),
        (Some(one), None) => (BTreeMap::new(), sound::<TargetRef>(one).into_iter().collect()),
        (None, Some(list)) => (BTreeMap::new(), sound::<Vec<TargetRef>>(list).unwrap_or_default()),
        (Some(_), Some(_)) => Default::default(),
    }
}

fn stand_in(guard: &'static Guard, document: &Mapping, span: &Span, scope: Scope) -> Object {
    let metadata = near(document, "metadata").and_then(Node::as_mapping);
    let named = |name| metadata.and_then(|metadata| near(metadata, name));
    let name: Arc<str> = named("name").and_then(text_of).map_or_else(|| name_at(span), Into::into);
    // Without a namespace of its own, a policy is that of the root namespace: for the whole mesh.
    let namespace = match guard.by {
        By::ClusterNetwork => "",
        _ => named("namespace").and_then(text_of).unwrap_or("default"),
    };
    let origin = named("name").map_or(span, |name| &name.span).clone();
    let unsupported =
        Unsupported { group: guard.group, kind: guard.kind, guarded: scope.guarded, judged: scope.judged.clone() };
    let refusal = Refusal {
        place: origin.clone(),
        message: format!("{} is not supported", guard.kind),
        unsupported: Some(unsupported),
    };
    let policy = Resource::AuthorizationPolicy(Arc::new(closing(scope, span)));
    made(stand_in_name(guard, &name), namespace.into(), origin, policy, Arc::new(refusal))
}

/// No object can have a name with a slash, so this one is never that of an AuthorizationPolicy.
fn stand_in_name(guard: &Guard, name: &str) -> Arc<str> {
    format!("{}/{name}", guard.kind).into()
}

/// The key of the stand-in for an object of an API server; `None` if its kind protects nothing.
pub(crate) fn stand_in_key(group: &str, kind: &str, namespace: Option<&str>, name: &str) -> Option<ObjectKey> {
    let guard = GUARDS.iter().find(|guard| guard.group == group && guard.kind == kind)?;
    let namespace = if guard.by == By::ClusterNetwork { "" } else { namespace.unwrap_or("default") };
    Some(ObjectKey { kind: Kind::AuthorizationPolicy, namespace: namespace.into(), name: stand_in_name(guard, name) })
}

/// Refuses all of that; has no rules if that cannot take its place. The ports are in [`Unsupported::judged`].
fn closing(scope: Scope, span: &Span) -> AuthorizationPolicy {
    let rule = || Spanned::new(Rule { from: Vec::new(), to: Vec::new(), when: Vec::new() }, span.clone());
    AuthorizationPolicy {
        spec: Some(AuthorizationPolicySpec {
            selector: (!scope.selector.is_empty()).then_some(WorkloadSelector { match_labels: scope.selector }),
            action: Some(Action::Deny),
            provider: None,
            rules: (!scope.judged.is_empty()).then(rule).into_iter().collect(),
            target_ref: None,
            target_refs: scope.targets,
        }),
    }
}
