//! PeerAuthentications and AuthorizationPolicies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_api::annotations::is_dry_run;
use evenkeel_api::istio::{self, AuthorizationPolicySpec, PeerAuthenticationSpec, WorkloadSelector};
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::mutual_addresses::MutualPorts;
use evenkeel_base::{Diagnostic, Diagnostics, Span, Spanned};

use super::objects::note_idle_selector;
use super::run::Run;
use super::step::Results;
use super::tracking::{Cx, Fact, Tracker};
use super::{refused, renew, reuse_if_equal, selections, shared, unsupported};
use crate::labels::selects;
use crate::policy::{Condition, ConditionKey, Operation, PathMatch, Rule, Source};
use crate::{
    AuthorizationAction, AuthorizationPolicy, Labels, MtlsMode, PeerAuthentication, Selection, Snapshot, StringMatch,
};

/// Policies.
#[derive(Debug, Default)]
pub(super) struct Table {
    peers: BTreeMap<Arc<str>, Vec<Arc<PeerAuthentication>>>,
    peers_changed: bool,
    /// By key: the policy in force, and stand-ins for the others.
    authorization: BTreeMap<ObjectKey, Vec<Arc<AuthorizationPolicy>>>,
    authorization_changed: bool,
}

pub(super) fn peers_step(run: &mut Run<'_>, namespace: &Arc<str>) -> bool {
    let (peers, keep) = run.read(|cx, found| {
        let peers = peer_authentications(cx, namespace, found);
        (peers, !cx.objects_in(Kind::PeerAuthentication, namespace).is_empty())
    });
    run.tables.policies.set_peers(namespace, peers, run.tracker);
    keep
}

pub(super) fn authorization_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let policies = run.read(|cx, found| authorization_policies(cx, key, found));
    let keep = !policies.is_empty();
    run.tables.policies.set_authorization(key, policies);
    keep
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let peers = renew(&mut next.peer_authentications, self.peers_changed());
        renew(&mut next.authorization_policies, self.authorization_changed()) || peers
    }
}

/// The PeerAuthentications of a namespace, in the order of precedence.
fn peer_authentications(cx: &Cx<'_>, namespace: &Arc<str>, found: &mut Diagnostics) -> Vec<PeerAuthentication> {
    let mut built: Vec<PeerAuthentication> = Vec::new();
    for (_, object) in cx.objects_in(Kind::PeerAuthentication, namespace) {
        let Resource::PeerAuthentication(policy) = &object.resource else { continue };
        let policy = peer_authentication(object, policy.spec.as_ref());
        for other in refused::ignored(cx, object) {
            let Resource::PeerAuthentication(ignored) = &other.resource else { continue };
            let ignored = peer_authentication(other, ignored.spec.as_ref());
            built.push(PeerAuthentication { mode: Some(MtlsMode::Strict), refused: true, ..ignored });
            found.push(refused::closed(other, "its workloads accept only mutual TLS"));
        }
        if policy.refused {
            found.push(refused::closed(object, "its workloads accept only mutual TLS"));
            built.push(policy);
            continue;
        }
        if policy.namespace == cx.mesh().root_namespace && !policy.selector.is_empty() {
            let message =
                format!("{object} is ignored: in the root namespace only the mode of the whole mesh can be set");
            let help = "remove the selector, or move it to the namespace of the workloads";
            let finding = Diagnostic::warning("no-effect", object.origin.clone(), message);
            found.push(finding.with_help(help).about(object.reference()));
            continue;
        }
        note_idle_selector(cx, object, &policy.selector, found);
        match built.iter().find(|p| !p.refused && p.selector == policy.selector) {
            Some(first) => found.push(overridden(object, &policy, first)),
            None => built.push(policy),
        }
    }
    built
}

/// The AuthorizationPolicy of an object, and stand-ins for others of the same name.
fn authorization_policies(cx: &Cx<'_>, id: &ObjectKey, found: &mut Diagnostics) -> Vec<AuthorizationPolicy> {
    let Some(object) = cx.object(id) else { return Vec::new() };
    let mut policies = Vec::new();
    for (object, is_ignored) in std::iter::once((object, false)).chain(refused::ignored(cx, object).map(|o| (o, true)))
    {
        let Resource::AuthorizationPolicy(policy) = &object.resource else { continue };
        let targets = policy.spec.iter().flat_map(|spec| spec.target_ref.iter().chain(&spec.target_refs));
        let mut policy = of_object(object, policy.spec.as_ref());
        if policy.namespace.is_empty() {
            // Its namespace cannot be read.
            policy.namespace = cx.mesh().root_namespace.clone();
        }
        if object.unsupported().is_some() {
            policies.extend(unsupported::stand_in(cx, object, &policy, targets, found));
            continue;
        }
        if is_ignored && (policy.dry_run || policy.action == AuthorizationAction::Audit) {
            // It would have denied nothing.
            continue;
        }
        if is_ignored {
            policy.refused = true;
            // The provider cannot be asked, so the requests that it would decide about are refused.
            if policy.action == AuthorizationAction::Custom {
                policy.action = AuthorizationAction::Deny;
                policy.provider = None;
            }
            policy.rules.retain(|_| policy.action == AuthorizationAction::Deny);
        }
        if policy.refused {
            found.push(refused::closed(object, effect(&policy)))
        } else {
            let before = found.len();
            let of_waypoint = unsupported::of_waypoint(cx, object, &policy, targets.clone(), found);
            let is_told = found.len() > before;
            selections::note_idle(cx, object, &policy.selection, targets, is_told, found);
            policies.extend(of_waypoint);
        }
        policies.push(policy);
    }
    policies
}

/// The effect of a stand-in, for the message.
fn effect(policy: &AuthorizationPolicy) -> &'static str {
    let is_anything = |rule: &Rule| *rule == Rule::default();
    match policy.action {
        AuthorizationAction::Audit => "its requests are not marked for logs",
        AuthorizationAction::Allow => "its workloads accept only calls that other ALLOW policies allow",
        AuthorizationAction::Deny | AuthorizationAction::Custom if policy.rules.iter().any(is_anything) => {
            "its workloads refuse every call"
        }
        AuthorizationAction::Deny | AuthorizationAction::Custom => {
            "its workloads refuse every call that its rules might match"
        }
    }
}

impl Table {
    fn set_peers(&mut self, namespace: &Arc<str>, new: Vec<PeerAuthentication>, tracker: &mut Tracker) {
        let old = self.peers.remove(namespace).unwrap_or_default();
        // Several may have the same name, but each has its own position.
        let by_place: HashMap<&Span, &Arc<PeerAuthentication>> = old.iter().map(|p| (&p.origin, p)).collect();
        let new: Vec<_> =
            new.into_iter().map(|p| reuse_if_equal(by_place.get(&p.origin.clone()).copied(), p)).collect();
        if old.len() != new.len() || !old.iter().zip(&new).all(|(a, b)| Arc::ptr_eq(a, b)) {
            tracker.changed(Fact::Peers(namespace));
            self.peers_changed = true;
        }
        if !new.is_empty() {
            self.peers.insert(namespace.clone(), new);
        }
    }

    pub(super) fn set_authorization(&mut self, id: &ObjectKey, new: Vec<AuthorizationPolicy>) {
        let old = self.authorization.remove(id).unwrap_or_default();
        // A policy may have moved.
        let new = new.into_iter().map(|policy| reuse_if_equal(old.iter().find(|old| ***old == policy), policy));
        let new: Vec<Arc<AuthorizationPolicy>> = new.collect();
        self.authorization_changed |= !old.iter().map(Arc::as_ptr).eq(new.iter().map(Arc::as_ptr));
        if !new.is_empty() {
            self.authorization.insert(id.clone(), new);
        }
    }

    /// All PeerAuthentications by namespace, if they have changed.
    fn peers_changed(&mut self) -> Option<impl Iterator<Item = Arc<PeerAuthentication>> + use<'_>> {
        std::mem::take(&mut self.peers_changed).then(|| self.peers.values().flatten().cloned())
    }

    /// All AuthorizationPolicies by namespace and name, if they have changed.
    fn authorization_changed(&mut self) -> Option<impl Iterator<Item = Arc<AuthorizationPolicy>> + use<'_>> {
        std::mem::take(&mut self.authorization_changed).then(|| {
            let mut all: Vec<_> = self.authorization.values().flatten().cloned().collect();
            // A policy whose namespace cannot be read belongs to the root namespace.
            all.sort_by(|a, b| a.namespace.cmp(&b.namespace));
            all.into_iter()
        })
    }
}

impl<'t> Cx<'t> {
    /// The PeerAuthentications of a namespace, in the order of precedence.
    fn peers(&self, namespace: &str) -> &'t [Arc<PeerAuthentication>] {
        self.read(Fact::Peers(namespace)).policies.peers.get(namespace).map_or(&[], Vec::as_slice)
    }

    /// Returns the mode of mutual TLS that a workload accepts on one of its ports.
    pub(super) fn mtls_mode(&self, namespace: &str, labels: &Labels, port: u16) -> MtlsMode {
        crate::policy::mtls_mode(self.peers(namespace), self.peers(&self.mesh().root_namespace), labels, port)
    }
}

impl Cx<'_> {
    /// The ports on which a workload requires mutual TLS; `None`: on none.
    pub(super) fn mutual_ports(&self, namespace: &str, labels: &Labels) -> Option<MutualPorts> {
        let requires = |port: u16| self.mtls_mode(namespace, labels, port) == MtlsMode::Strict;
        let selecting = self.peers(namespace).iter().filter(|p| !p.selector.is_empty() && selects(&p.selector, labels));
        let named: BTreeSet<u16> = selecting.flat_map(|policy| policy.port_modes.keys().copied()).collect();
        let (yes, no): (Vec<u16>, Vec<u16>) = named.into_iter().partition(|port| requires(*port));
        match (requires(0), yes.is_empty(), no.is_empty()) {
            (true, _, true) => Some(MutualPorts::All),
            (true, _, false) => Some(MutualPorts::Except(no)),
            (false, true, _) => None,
            (false, false, _) => Some(MutualPorts::Only(yes)),
        }
    }
}

fn overridden(object: &Object, policy: &PeerAuthentication, first: &PeerAuthentication) -> Diagnostic {
    let whom = if policy.selector.is_empty() { "the whole namespace" } else { "the same workloads" };
    let message = format!("{object} is ignored: `{}` already applies to {whom}", first.name);
    Diagnostic::warning("overridden", object.origin.clone(), message)
        .about(object.reference())
        .with_help("merge the two")
        .with_related(first.origin.clone(), "this one applies")
}

fn peer_authentication(object: &Object, spec: Option<&PeerAuthenticationSpec>) -> PeerAuthentication {
    let mode = |m: &istio::MutualTls| match m.mode {
        None | Some(istio::MtlsMode::Unset) => None,
        Some(istio::MtlsMode::Disable) => Some(MtlsMode::Disable),
        Some(istio::MtlsMode::Permissive) => Some(MtlsMode::Permissive),
        Some(istio::MtlsMode::Strict) => Some(MtlsMode::Strict),
    };
    PeerAuthentication {
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        selector: selector(spec.and_then(|s| s.selector.as_ref())),
        mode: spec.and_then(|s| s.mtls.as_ref()).and_then(mode),
        port_modes: spec.map(|s| s.port_level_mtls.iter().map(|(p, m)| (p.0, mode(m))).collect()).unwrap_or_default(),
        origin: object.origin.clone(),
        refused: object.refused.is_some(),
    }
}

pub(super) fn selector(written: Option<&WorkloadSelector>) -> Labels {
    written.map(|s| s.match_labels.clone()).unwrap_or_default()
}

fn of_object(object: &Object, spec: Option<&AuthorizationPolicySpec>) -> AuthorizationPolicy {
    AuthorizationPolicy {
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        selection: spec.map_or_else(Selection::everything, Selection::of_policy),
        action: match spec.and_then(|s| s.action) {
            Some(istio::Action::Deny) => AuthorizationAction::Deny,
            Some(istio::Action::Audit) => AuthorizationAction::Audit,
            Some(istio::Action::Custom) => AuthorizationAction::Custom,
            Some(istio::Action::Allow) | None => AuthorizationAction::Allow,
        },
        provider: spec.and_then(|s| s.provider.as_ref()?.name.as_ref()).map(|name| shared(name)),
        rules: spec.map(|s| s.rules.iter().map(|r| rule(r, &object.namespace)).collect()).unwrap_or_default(),
        origin: object.origin.clone(),
        refused: object.refused.is_some(),
        dry_run: is_dry_run(&object.annotations),
        of_tokens: false,
        unsupported: None,
    }
}

fn rule(rule: &istio::Rule, namespace: &str) -> Rule {
    Rule {
        from: rule.from.iter().map(|f| source(&f.source, namespace)).collect(),
        to: rule.to.iter().map(|t| operation(&t.operation)).collect(),
        when: rule.when.iter().filter_map(|one| condition(one, namespace)).collect(),
    }
}

fn strings(values: &[String]) -> Vec<StringMatch> {
    values.iter().map(|v| StringMatch::from_policy_value(v)).collect()
}

fn spanned_strings(values: &[Spanned<String>]) -> Vec<StringMatch> {
    values.iter().map(|v| StringMatch::from_policy_value(v)).collect()
}

fn source(source: &istio::Source, namespace: &str) -> Source {
    let accounts = |list: &[Spanned<String>]| {
        let account = |text: &Spanned<String>| match text.split_once('/') {
            Some((namespace, name)) => (shared(namespace), shared(name)),
            None => (shared(namespace), shared(text)),
        };
        list.iter().map(account).collect()
    };
    Source {
        principals: strings(&source.principals),
        not_principals: strings(&source.not_principals),
        request_principals: strings(&source.request_principals),
        not_request_principals: strings(&source.not_request_principals),
        trust_domains: strings(&source.trust_domains),
        not_trust_domains: strings(&source.not_trust_domains),
        namespaces: strings(&source.namespaces),
        not_namespaces: strings(&source.not_namespaces),
        service_accounts: accounts(&source.service_accounts),
        not_service_accounts: accounts(&source.not_service_accounts),
        ip_blocks: source.ip_blocks.clone(),
        not_ip_blocks: source.not_ip_blocks.clone(),
        remote_ip_blocks: source.remote_ip_blocks.clone(),
        not_remote_ip_blocks: source.not_remote_ip_blocks.clone(),
    }
}

fn operation(operation: &istio::Operation) -> Operation {
    // The decoder has checked that these are ports.
    let ports = |list: &[Spanned<String>]| list.iter().filter_map(|p| p.parse().ok()).collect();
    let paths = |list: &[Spanned<String>]| list.iter().map(|p| path(p)).collect();
    Operation {
        hosts: strings(&operation.hosts),
        not_hosts: strings(&operation.not_hosts),
        ports: ports(&operation.ports),
        not_ports: ports(&operation.not_ports),
        methods: strings(&operation.methods),
        not_methods: strings(&operation.not_methods),
        paths: paths(&operation.paths),
        not_paths: paths(&operation.not_paths),
    }
}

/// Envoy's templates write `*` for a segment and `**` for the rest, without the braces.
fn path(text: &str) -> PathMatch {
    if text.contains("{*}") || text.contains("{**}") {
        PathMatch::Template(text.replace("{**}", "**").replace("{*}", "*").into())
    } else {
        PathMatch::String(StringMatch::from_policy_value(text))
    }
}

/// The decoder has checked that the key is one of these. `namespace`: the policy's.
fn condition(condition: &istio::Condition, namespace: &str) -> Option<Condition> {
    let key = condition.key.as_str();
    let (name, names) = key.split_at(key.find('[').unwrap_or(key.len()));
    let names = istio::names_in_brackets(names).unwrap_or_default();
    let claim = |path: &[&str]| ConditionKey::RequestClaim(path.iter().map(|name| shared(name)).collect());
    let key = match (name, names.as_slice()) {
        ("request.headers", [name]) => ConditionKey::RequestHeader(name.to_ascii_lowercase().into()),
        ("request.auth.principal", []) => ConditionKey::RequestPrincipal,
        ("request.auth.audiences", []) => claim(&["aud"]),
        ("request.auth.presenter", []) => claim(&["azp"]),
        ("request.auth.claims", path @ [_, ..]) => claim(path),
        ("source.ip", []) => ConditionKey::SourceIp,
        ("remote.ip", []) => ConditionKey::RemoteIp,
        ("source.namespace", []) => ConditionKey::SourceNamespace,
        ("source.principal", []) => ConditionKey::SourcePrincipal,
        ("source.serviceAccount", []) => ConditionKey::SourceServiceAccount,
        ("source.trustDomain", []) => ConditionKey::SourceTrustDomain,
        ("destination.ip", []) => ConditionKey::DestinationIp,
        ("destination.port", []) => ConditionKey::DestinationPort,
        ("connection.sni", []) => ConditionKey::ConnectionSni,
        (filter, [key]) => {
            ConditionKey::FilterMetadata { filter: shared(filter.strip_prefix("experimental.")?), key: shared(key) }
        }
        _ => return None,
    };
    let values = |list: &[Spanned<String>]| match key {
        ConditionKey::SourceServiceAccount => {
            list.iter().map(|text| StringMatch::Exact(with_namespace(text, namespace))).collect()
        }
        _ => spanned_strings(list),
    };
    let (values, not_values) = (values(&condition.values), values(&condition.not_values));
    Some(Condition { key, values, not_values })
}

/// A service account `namespace/name`; one without a namespace is in the policy's.
fn with_namespace(account: &str, namespace: &str) -> Arc<str> {
    if account.contains('/') { shared(account) } else { format!("{namespace}/{account}").into() }
}
