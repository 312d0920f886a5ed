//! BackendTLSPolicies: TLS towards the hosts that they name, and which of several for one host applies.
//!
//! As in Istio such a policy counts as a DestinationRule of its namespace for the host. Roots that cannot be used close:
//! connections are attempted with TLS that never succeeds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_api::gateway_api::{BackendTlsPolicySpec, BackendTlsValidation, LocalReference, PolicyTarget};
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::one_of;
use evenkeel_base::{Diagnostic, Diagnostics, Span, Spanned};

use super::run::Run;
use super::step::{Results, Step};
use super::tracking::{Cx, Fact, Tracker};
use super::trusted_roots::{RootsReference, roots};
use super::{refused, shared};
use crate::destination_rule::{BackendRoots, BackendTls};
use crate::{OutsideTls, Place};

/// The system's roots.
const SYSTEM: &str = "System";

/// The namespace of a policy, and a host that it names.
pub(super) type TargetKey = (Arc<str>, Hostname);

/// What each policy says of one host, in the order of precedence.
type ByPlace = BTreeMap<Place, (ObjectKey, Vec<Arc<TargetTls>>)>;

/// What a policy says of one of its targets.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TargetTls {
    host: Hostname,
    /// Only this port.
    pub(super) port: Option<u16>,
    pub(super) tls: OutsideTls,
    pub(super) policy: Arc<str>,
    pub(super) origin: Span,
}

/// Policies by what they name.
#[derive(Debug, Default)]
pub(super) struct Table {
    of_object: HashMap<ObjectKey, (Place, Vec<Arc<TargetTls>>)>,
    by_target: BTreeMap<TargetKey, ByPlace>,
}

impl Results for Table {}

pub(super) fn object_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let read = run.read(|cx, found| {
        let (place, object) = cx.placed(key)?;
        let Resource::BackendTlsPolicy(policy) = &object.resource else { return None };
        let targets = Reader { cx, object, found }.targets(&policy.spec);
        Some((place.clone(), targets.into_iter().map(Arc::new).collect()))
    });
    let keep = read.is_some();
    run.tables.backend_tls.set(key, read, run.tracker);
    keep
}

impl Table {
    fn set(&mut self, id: &ObjectKey, new: Option<(Place, Vec<Arc<TargetTls>>)>, tracker: &mut Tracker) {
        let old = self.of_object.remove(id);
        if old != new {
            let hosts = |read: &Option<(Place, Vec<Arc<TargetTls>>)>| -> BTreeSet<Hostname> {
                read.iter().flat_map(|(_, targets)| targets).map(|target| target.host.clone()).collect()
            };
            let (before, after) = (hosts(&old), hosts(&new));
            for host in before.union(&after) {
                let key = (id.namespace.clone(), host.clone());
                let here = self.by_target.entry(key.clone()).or_default();
                here.retain(|_, (owner, _)| owner != id);
                if let Some((place, targets)) = &new {
                    let own: Vec<_> = targets.iter().filter(|target| target.host == *host).cloned().collect();
                    if !own.is_empty() {
                        here.insert(place.clone(), (id.clone(), own));
                    }
                }
                if here.is_empty() {
                    self.by_target.remove(&key);
                }
                tracker.changed(Fact::BackendTls(&key.0, key.1.as_str()));
                tracker.want(Step::Rules(key.0, key.1));
            }
            tracker.changed(Fact::TargetsOf(id));
        }
        self.of_object.extend(new.map(|new| (id.clone(), new)));
    }
}

/// The policies that apply to a host.
pub(super) struct Applied {
    /// The place of the first.
    pub(super) place: Place,
    /// In the order of precedence; each is for other ports than those before.
    pub(super) targets: Vec<Arc<TargetTls>>,
}

/// Returns the policies of a namespace that apply to a host, of several for the same port the older; the others are reported.
pub(super) fn applied(cx: &Cx<'_>, key: &TargetKey, found: &mut Diagnostics) -> Option<Applied> {
    let all = cx.read(Fact::BackendTls(&key.0, key.1.as_str())).backend_tls.by_target.get(key)?;
    let place = all.keys().next()?.clone();
    let mut targets: Vec<Arc<TargetTls>> = Vec::new();
    for (id, own) in all.values() {
        for target in own {
            match targets.iter().find(|earlier| earlier.port == target.port) {
                Some(winner) => found.extend(cx.object(id).map(|object| conflicted(object, target, winner))),
                None => targets.push(target.clone()),
            }
        }
    }
    Some(Applied { place, targets })
}

/// What a policy names, and whether it applies there.
pub(super) struct Claim {
    pub(super) host: Hostname,
    /// The older policy that applies in its place.
    pub(super) winner: Option<Arc<str>>,
}

/// What a policy names. What does not exist is left out.
pub(super) fn claims(cx: &Cx<'_>, key: &ObjectKey) -> Vec<Claim> {
    let tables = &cx.read(Fact::TargetsOf(key)).backend_tls;
    let Some((place, targets)) = tables.of_object.get(key) else { return Vec::new() };
    let claim = |target: &Arc<TargetTls>| {
        let host = (key.namespace.clone(), target.host.clone());
        let all = cx.read(Fact::BackendTls(&host.0, host.1.as_str())).backend_tls.by_target.get(&host);
        let older = all.into_iter().flat_map(|all| all.range(..place.clone()).map(|(_, (_, targets))| targets));
        let winner = older.flatten().find(|older| older.port == target.port).map(|older| older.policy.clone());
        Claim { host: target.host.clone(), winner }
    };
    targets.iter().map(claim).collect()
}

fn conflicted(object: &Object, target: &TargetTls, winner: &TargetTls) -> Diagnostic {
    let message = format!(
        "{object} has no effect for `{}`: the older BackendTLSPolicy {}/{} applies to it",
        target.host, object.namespace, winner.policy
    );
    Diagnostic::warning("overridden", target.origin.clone(), message)
        .with_help("remove one of the two, or name a port by `sectionName` in each")
        .with_related(winner.origin.clone(), "this one applies")
        .about(object.reference())
}

struct Reader<'a, 't> {
    cx: &'a Cx<'t>,
    object: &'a Object,
    found: &'a mut Diagnostics,
}

impl Reader<'_, '_> {
    fn warn(&mut self, code: &'static str, span: &Span, message: String, help: &str) {
        let message = format!("{}: {message}", self.object);
        let finding = Diagnostic::warning(code, span.clone(), message).with_help(help);
        self.found.push(finding.about(self.object.reference()));
    }

    fn targets(&mut self, spec: &BackendTlsPolicySpec) -> Vec<TargetTls> {
        let (name, value) = (&self.object.name, &spec.validation.value);
        if self.object.refused.is_some() {
            self.found.push(refused::closed(self.object, "calls to what it names fail"));
        }
        for (option, value) in &spec.options {
            let message = format!("the option `{option}` is not known; it is ignored");
            self.warn("unsupported-field", &value.span, message, "there are no options for TLS to backends");
        }
        let written = value.subject_alt_names.iter().map(|of| shared(of.text())).collect::<Vec<_>>();
        let hostname = shared(value.hostname.as_str());
        let tls = OutsideTls {
            sni: Some(hostname.clone()),
            subject_alt_names: if written.is_empty() { vec![hostname] } else { written },
            ca_certificates: None,
            revocation_lists: None,
            client_certificate: None,
            credential: None,
            roots_credential: None,
            is_mutual: false,
            insecure_skip_verify: false,
            of_backend: Some(BackendTls { policy: name.clone(), roots: self.roots(value) }),
        };
        spec.target_refs.iter().flat_map(|target| self.target(target, &tls)).collect()
    }

    /// The hosts of a target.
    fn target(&mut self, target: &Spanned<PolicyTarget>, tls: &OutsideTls) -> Vec<TargetTls> {
        let namespace = &self.object.namespace;
        let (group, kind, name) = (target.group.as_str(), target.kind.as_str(), target.name.as_str());
        let hosts = match (group, kind) {
            ("", "Service") => vec![Hostname::of_service(name, namespace, &self.cx.mesh().cluster_domain)],
            ("networking.istio.io", "ServiceEntry") => {
                let key = ObjectKey { kind: Kind::ServiceEntry, namespace: namespace.clone(), name: name.into() };
                match self.cx.object(&key).map(|object| &object.resource) {
                    Some(Resource::ServiceEntry(entry)) => {
                        entry.spec.hosts.iter().map(|host| host.value.clone()).collect()
                    }
                    _ => Vec::new(),
                }
            }
            _ => {
                let message = format!("a {kind} of `{group}` is no backend; the policy has no effect for it");
                self.warn("unsupported-value", &target.span, message, "name a Service or a ServiceEntry");
                return Vec::new();
            }
        };
        let cx = self.cx;
        let is_there = |host: &Hostname| cx.service(host, namespace).is_some_and(|of| of.namespace == *namespace);
        if !hosts.iter().any(is_there) {
            let message = format!("there is no {kind} `{namespace}/{name}`; the policy has no effect for it");
            self.warn("missing-service", &target.name.span, message, "correct the name, or add it");
            return Vec::new();
        }
        let for_host = |host: Hostname| {
            let port = self.port(target, &host)?;
            let (policy, origin) = (self.object.name.clone(), target.span.clone());
            Some(TargetTls { host, port, tls: tls.clone(), policy, origin })
        };
        hosts.into_iter().filter_map(for_host).collect()
    }

    /// The port that a target names, if any; `None`: there is none of this name.
    fn port(&mut self, target: &PolicyTarget, host: &Hostname) -> Option<Option<u16>> {
        let Some(section) = &target.section_name else { return Some(None) };
        let ports = self.cx.service(host, &self.object.namespace).map(|service| service.ports.as_slice());
        let ports = ports.unwrap_or_default();
        if let Some(port) = ports.iter().find(|port| *port.name == *section.0) {
            return Some(Some(port.number));
        }
        let names = one_of(ports.iter().map(|port| &*port.name));
        let message = format!("`{host}` has no port `{}`; the policy has no effect for it", section.0);
        self.warn("missing-port", &section.span, message, &format!("its ports: {names}"));
        None
    }

    fn roots(&mut self, validation: &BackendTlsValidation) -> BackendRoots {
        match &validation.well_known_ca_certificates {
            Some(known) if known.value == SYSTEM => return BackendRoots::System,
            // What stands in for a refused policy has been reported.
            Some(_) if self.object.refused.is_some() => return BackendRoots::Unresolved,
            Some(known) => {
                let message = format!("the roots `{}` are not known; calls to its targets fail", known.value);
                self.warn("unsupported-value", &known.span, message, "supported: `System`");
                return BackendRoots::Unresolved;
            }
            None => {}
        }
        let references = &validation.ca_certificate_refs;
        let usable: Vec<Vec<u8>> = references.iter().filter_map(|of| self.config_map(of)).collect();
        if usable.is_empty() { BackendRoots::Unresolved } else { BackendRoots::Pem(usable.concat().into()) }
    }

    /// The roots of a ConfigMap.
    fn config_map(&mut self, reference: &Spanned<LocalReference>) -> Option<Vec<u8>> {
        let (group, kind, name) = (reference.group.as_str(), reference.kind.as_str(), reference.name.as_str());
        match roots(self.cx, &RootsReference { group, kind, namespace: &self.object.namespace, name }) {
            Ok(roots) => Some(roots),
            Err(error) => {
                let message = format!("{}; if no roots are left, calls to its targets fail", error.message);
                self.warn(
                    error.code,
                    &reference.span,
                    message,
                    "name a ConfigMap that has certificates under `ca.crt`",
                );
                None
            }
        }
    }
}
