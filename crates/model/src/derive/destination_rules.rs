//! DestinationRules: resolves and checks them, and merges those for one host.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::istio::{self, ClientTlsMode, H2UpgradePolicy, ProxyProtocolVersion, SimpleLb, TunnelProtocol};
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::closest;
use evenkeel_base::{Diagnostic, Diagnostics, Span};

use super::backend_tls::{self, Applied};
use super::run::Run;
use super::step::{Results, Step};
use super::tracking::{Cx, Fact, Tracker};
use super::{labels_text, refused, reuse_if_equal, set, shared};
use crate::destination_rule::{RuleClient, applicable};
use crate::index::wildcards_over;
use crate::{
    BackendUtilization, ClientTls, ConnectionPool, DestinationRule, HashKey, HashTable, Http2Keepalive, Labels,
    LbPolicy, List, LoadBalancer, LocalityLb, MeshConfig, OutlierDetection, OutsideTls, Place, ProxyProtocol,
    RetryBudget, Service, Snapshot, SortedMap, Subset, TcpKeepalive, TrafficPolicy, Tunnel, Visibility, Warmup,
    ZoneAwareLb,
};

/// The rules of a namespace for a host.
type RulesKey = (Arc<str>, Hostname);
type Placed = (Place, Arc<DestinationRule>);

/// DestinationRules as written, and merged.
#[derive(Debug, Default)]
pub(super) struct Table {
    drafts: HashMap<ObjectKey, Placed>,
    by_host: BTreeMap<RulesKey, SortedMap<Place, (ObjectKey, Arc<DestinationRule>)>>,
    merged: HashMap<RulesKey, Vec<Placed>>,
    changed: BTreeSet<RulesKey>,
}

pub(super) fn object_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let (draft, keep) = run.read(|cx, found| (draft(cx, key, found), cx.object(key).is_some()));
    run.tables.rules.set_draft(key, draft, run.tracker);
    keep
}

pub(super) fn merge_step(run: &mut Run<'_>, namespace: &Arc<str>, host: &Hostname) -> bool {
    let key = (namespace.clone(), host.clone());
    let merged = run.read(|cx, found| merged(cx, &key, found));
    let keep = !merged.is_empty();
    run.tables.rules.set_merged(&key, merged, run.tracker);
    keep
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let mut changed = false;
        for ((namespace, host), rules) in self.changed() {
            changed |= next.destination_rules.set(&(namespace.clone(), host.clone()), rules.clone());
            next.index.note_rules(&namespace, &host, !rules.is_empty());
            let mut of_namespace = next.index.rules.get(&namespace).cloned().unwrap_or_default();
            set(&mut of_namespace, host, rules);
            if of_namespace.is_empty() {
                next.index.rules.remove(&namespace);
            } else {
                next.index.rules.insert(namespace, of_namespace);
            }
        }
        changed
    }
}

/// Reads one object.
fn draft(cx: &Cx<'_>, id: &ObjectKey, found: &mut Diagnostics) -> Option<(Place, DestinationRule)> {
    let (place, object) = cx.placed(id)?;
    let Resource::DestinationRule(rule) = &object.resource else { return None };
    let new = destination_rule(object, &rule.spec, cx.mesh())?;
    if object.refused.is_some() {
        let effect = format!("calls to `{}` use TLS or fail", rule.spec.host.value);
        found.push(refused::closed(object, &effect));
    }
    note_missing_host(cx, object, &new, &rule.spec.host.span, found);
    Some((place.clone(), new))
}

/// The rules of a namespace for a host, merged as in Istio's `mergeDestinationRule`: those for some workloads come first,
/// each group by age.
fn merged(cx: &Cx<'_>, key: &RulesKey, found: &mut Diagnostics) -> Vec<(Place, DestinationRule)> {
    let drafts = &cx.read(Fact::RuleDrafts(&key.0, key.1.as_str())).rules.by_host;
    let all = || drafts.get(key).into_iter().flat_map(SortedMap::iter);
    let (selecting, general): (Vec<_>, Vec<_>) = all().partition(|(_, (_, draft))| draft.workload_selector.is_some());
    let mut merged: Vec<(Place, DestinationRule)> = Vec::new();
    for (place, (id, draft)) in selecting.into_iter().chain(general) {
        add(&mut merged, (place, draft), cx.object(id), found);
    }
    if let Some(applied) = backend_tls::applied(cx, key, found) {
        merged.iter().for_each(|(_, rule)| found.extend(overridden_tls(cx, rule, &applied)));
        with_backend_tls(&mut merged, key, &applied);
    }
    merged
}

/// The finding about TLS of a rule that a BackendTLSPolicy replaces.
fn overridden_tls(cx: &Cx<'_>, rule: &DestinationRule, applied: &Applied) -> Option<Diagnostic> {
    let policy = applied.targets.first()?;
    let has_tls = |policy: &TrafficPolicy| policy.tls.is_some() || policy.ports.values().any(|port| port.tls.is_some());
    let subsets = rule.subsets.iter().map(|subset| &subset.traffic_policy);
    std::iter::once(&rule.traffic_policy).chain(subsets).any(has_tls).then_some(())?;
    let key = ObjectKey { kind: rule.kind, namespace: rule.namespace.clone(), name: rule.name.clone() };
    let object = cx.object(&key)?;
    let message = format!(
        "{object}: the BackendTLSPolicy {}/{} replaces its `tls` where both apply",
        rule.namespace, policy.policy
    );
    let finding = Diagnostic::warning("overridden", object.origin.clone(), message).about(object.reference());
    Some(finding.with_help("remove one of the two").with_related(policy.origin.clone(), "this one applies"))
}

/// Adds TLS that BackendTLSPolicies ask for to all rules of a host, and a rule for those who see none of them.
fn with_backend_tls(merged: &mut Vec<(Place, DestinationRule)>, key: &RulesKey, applied: &Applied) {
    let Some(first) = applied.targets.first() else { return };
    let is_for_all = |rule: &DestinationRule| rule.workload_selector.is_none() && rule.export_to == Visibility::Public;
    if !merged.iter().any(|(_, rule)| is_for_all(rule)) {
        let rule = DestinationRule {
            kind: Kind::BackendTlsPolicy,
            name: first.policy.clone(),
            namespace: key.0.clone(),
            host: key.1.clone(),
            export_to: Visibility::Public,
            workload_selector: None,
            export_list: BTreeSet::new(),
            traffic_policy: TrafficPolicy::default(),
            subsets: Vec::new(),
            origin: first.origin.clone(),
        };
        // The last one that a client sees applies.
        merged.insert(0, (applied.place.clone(), rule));
    }
    // What is for all ports must not replace what is for one.
    let (all, ports): (Vec<_>, Vec<_>) = applied.targets.iter().partition(|target| target.port.is_none());
    for (_, rule) in merged {
        for target in all.iter().chain(&ports) {
            rule.set_tls(target.port, &ClientTls::Outside(Box::new(target.tls.clone())));
        }
    }
}

/// Merges a rule into those before it that it extends, and adds it where that does not settle it for all who see it.
fn add(
    merged: &mut Vec<(Place, DestinationRule)>,
    (place, draft): (&Place, &DestinationRule),
    object: Option<&Arc<Object>>,
    found: &mut Diagnostics,
) {
    let same_workloads = |first: &DestinationRule| first.workload_selector == draft.workload_selector;
    let (mut is_settled, mut is_for_more) = (false, false);
    for (_, first) in merged.iter_mut().filter(|(_, first)| extends(draft, first)) {
        let lost = merge(first, draft);
        // What is for all is less than what is for some workloads, and only completes it.
        if same_workloads(first) {
            let is_same = draft.export_list == first.export_list;
            is_settled |= is_same;
            is_for_more |= !is_same;
            found.extend(object.map(|object| merged_with(first, &lost, is_same, object)));
        }
    }
    match (is_settled, is_for_more) {
        (true, _) => {}
        // It applies only where none of those that it was merged into is seen.
        (false, true) => merged.insert(0, (place.clone(), draft.clone())),
        (false, false) => {
            let earlier = merged.iter().map(|(_, first)| first).filter(|first| same_workloads(first));
            let other = earlier.rev().find(|first| first.export_to.overlaps(&draft.export_to));
            // A rule for some workloads is not exported.
            if let (Some(other), Some(object), None) = (other, object, &draft.workload_selector) {
                found.push(exported_otherwise(other, object));
            }
            merged.push((place.clone(), draft.clone()));
        }
    }
}

/// Whether a rule is merged into an earlier one: it is for the same namespaces or for more, and for the same workloads or for
/// all. As in Istio the lists are compared as they are written: one that is left out is not `*`.
fn extends(rule: &DestinationRule, earlier: &DestinationRule) -> bool {
    let is_wider = !earlier.export_list.is_empty() && rule.export_list.is_superset(&earlier.export_list);
    let same_or_all = rule.workload_selector.is_none() || rule.workload_selector == earlier.workload_selector;
    same_or_all && (is_wider || rule.export_list == earlier.export_list)
}

/// Two rules for one host and namespace that are exported differently are not merged.
fn exported_otherwise(other: &DestinationRule, object: &Object) -> Diagnostic {
    let message = format!(
        "{object} has the same host `{}` as another DestinationRule and another `exportTo`: clients that see both follow \
         only this one",
        other.host
    );
    Diagnostic::warning("duplicate-host", object.origin.clone(), message)
        .with_help("write one DestinationRule per host, write the same `exportTo` in both so that they are merged, or export each to other namespaces")
        .with_related(other.origin.clone(), format!("{}/{} applies where only it is seen", other.namespace, other.name))
        .about(object.reference())
}

impl Table {
    fn set_draft(&mut self, id: &ObjectKey, new: Option<(Place, DestinationRule)>, tracker: &mut Tracker) {
        let old = self.drafts.remove(id);
        let new = new.map(|(place, rule)| (place, reuse_if_equal(old.as_ref().map(|(_, rule)| rule), rule)));
        let same = match (&old, &new) {
            (Some(old), Some(new)) => old.0 == new.0 && Arc::ptr_eq(&old.1, &new.1),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !same {
            for (is_there, placed) in [(false, &old), (true, &new)] {
                let Some((place, rule)) = placed else { continue };
                let key = (rule.namespace.clone(), rule.host.clone());
                let here = self.by_host.entry(key.clone()).or_default();
                match is_there {
                    true => {
                        here.insert(place.clone(), (id.clone(), rule.clone()));
                    }
                    // Another object may have taken this place.
                    false if here.get(place).is_some_and(|(owner, _)| owner == id) => {
                        here.remove(place);
                    }
                    false => {}
                }
                if here.is_empty() {
                    self.by_host.remove(&key);
                }
                tracker.changed(Fact::RuleDrafts(&key.0, key.1.as_str()));
                tracker.want(Step::Rules(key.0, key.1));
            }
        }
        self.drafts.extend(new.map(|new| (id.clone(), new)));
    }

    fn set_merged(&mut self, key: &RulesKey, new: Vec<(Place, DestinationRule)>, tracker: &mut Tracker) {
        let old = self.merged.remove(key).unwrap_or_default();
        let draft = |place: &Place| self.by_host.get(key)?.get(place).map(|(_, draft)| draft);
        let before = |place: &Place| old.iter().find(|(p, _)| p == place).map(|(_, rule)| rule);
        let share = |place: Place, rule: DestinationRule| {
            // An unmerged rule is the draft itself.
            let same = draft(&place).filter(|draft| ***draft == rule).cloned();
            let shared = same.unwrap_or_else(|| reuse_if_equal(before(&place), rule));
            (place, shared)
        };
        let new: Vec<Placed> = new.into_iter().map(|(place, rule)| share(place, rule)).collect();
        let same = old.len() == new.len() && old.iter().zip(&new).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1));
        if !same {
            tracker.changed(Fact::Rules(&key.0, key.1.as_str()));
            self.changed.insert(key.clone());
        }
        if !new.is_empty() {
            self.merged.insert(key.clone(), new);
        }
    }

    /// The hosts whose rules in a namespace have changed, with the new rules.
    fn changed(&mut self) -> Vec<(RulesKey, List<DestinationRule>)> {
        let changed = std::mem::take(&mut self.changed);
        let now = |key: &RulesKey| self.merged.get(key).into_iter().flatten().map(|(_, rule)| rule.clone()).collect();
        changed.into_iter().map(|key| (key.clone(), now(&key))).collect()
    }
}

impl<'t> Cx<'t> {
    /// The rule that clients in `namespace` use for a service.
    pub(super) fn destination_rule_for(&self, service: &Service, namespace: &str) -> Option<&'t Arc<DestinationRule>> {
        let root = &self.mesh().root_namespace;
        let client = RuleClient { own: Some(namespace), viewer: namespace, selected: |_: &Labels| false };
        applicable(&service.namespace, root, client, |wanted| self.rules_covering(wanted, &service.host))
    }

    /// The rules of a namespace with a host that covers another, the most specific first.
    fn rules_covering(&self, namespace: &str, host: &Hostname) -> Vec<&'t Arc<DestinationRule>> {
        let mut found = Vec::new();
        let wildcards = wildcards_over(host.as_str()).filter_map(|wildcard| Hostname::parse(&wildcard).ok());
        for pattern in std::iter::once(host.clone()).chain(wildcards) {
            let merged = &self.read(Fact::Rules(namespace, pattern.as_str())).rules.merged;
            found.extend(merged.get(&(namespace.into(), pattern)).into_iter().flatten().map(|(_, rule)| rule));
        }
        found
    }
}

fn destination_rule(object: &Object, spec: &istio::DestinationRuleSpec, mesh: &MeshConfig) -> Option<DestinationRule> {
    let subset = |s: &evenkeel_base::Spanned<istio::Subset>| Subset {
        name: shared(&s.name),
        labels: s.labels.clone(),
        traffic_policy: s.traffic_policy.as_ref().map(traffic_policy).unwrap_or_default(),
        origin: s.name.span.clone(),
    };
    Some(DestinationRule {
        kind: Kind::DestinationRule,
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        // The host was parsed already, so this fails only if the full name is too long.
        host: Hostname::resolve(spec.host.as_str(), &object.namespace, &mesh.cluster_domain).ok()?,
        export_to: MeshConfig::visibility(
            spec.export_to.iter().map(|e| e.as_str()),
            &mesh.destination_rule_export_to,
            &object.namespace,
        ),
        workload_selector: spec.workload_selector.as_ref().map(|s| s.match_labels.clone()),
        export_list: match &spec.workload_selector {
            // A rule for some workloads is not exported, whatever it says.
            Some(_) => BTreeSet::from([".".into()]),
            None => spec.export_to.iter().map(|entry| shared(entry)).collect(),
        },
        traffic_policy: spec.traffic_policy.as_ref().map(traffic_policy).unwrap_or_default(),
        subsets: spec.subsets.iter().map(subset).collect(),
        origin: object.origin.clone(),
    })
}

/// Merges two rules for one host and namespace: the second adds its subsets to the first, whose traffic policy stays.
/// Returns what the second loses by that.
fn merge(first: &mut DestinationRule, second: &DestinationRule) -> Vec<String> {
    let mut lost = Vec::new();
    for subset in &second.subsets {
        match first.subset(&subset.name) {
            Some(_) => lost.push(format!("subset `{}`", subset.name)),
            None => first.subsets.push(subset.clone()),
        }
    }
    if first.traffic_policy == TrafficPolicy::default() {
        first.traffic_policy = second.traffic_policy.clone();
    } else if second.traffic_policy != TrafficPolicy::default() {
        lost.push("traffic policy".to_owned());
    }
    lost
}

/// The finding about a rule that is merged into an earlier one, wherever it is seen or only where the earlier is.
fn merged_with(first: &DestinationRule, lost: &[String], everywhere: bool, object: &Object) -> Diagnostic {
    let place = if everywhere { "" } else { " where both are seen" };
    let related = format!("{}/{} comes first", first.namespace, first.name);
    let diagnostic = if lost.is_empty() {
        let message = format!(
            "{object} has the same host `{}` as another DestinationRule; the two are merged{place}",
            first.host
        );
        Diagnostic::info("merged", object.origin.clone(), message).with_help("write one DestinationRule per host")
    } else {
        let message = format!(
            "{object} has the same host `{}` as another DestinationRule: its {} is ignored{place}",
            first.host,
            lost.join(", ")
        );
        Diagnostic::warning("duplicate-host", object.origin.clone(), message)
            .with_help("write one DestinationRule per host")
    };
    diagnostic.with_related(first.origin.clone(), related).about(object.reference())
}

fn note_missing_host(cx: &Cx<'_>, object: &Object, rule: &DestinationRule, span: &Span, found: &mut Diagnostics) {
    let covered = cx.covered(&rule.host);
    if covered.is_empty() {
        let message = format!("{object}: no Service has the host `{}`, so nothing uses this rule", rule.host);
        let help = missing_host_help(cx, &rule.host, &object.namespace);
        let finding = Diagnostic::warning("missing-service", span.clone(), message);
        found.push(finding.with_help(help).about(object.reference()));
        return;
    }
    if let Some(alias) = covered.iter().find(|service| service.alias_of.is_some() && service.host == rule.host) {
        let target = cx.destination(&alias.host, &object.namespace).map_or_else(
            || alias.alias_of.as_ref().map(ToString::to_string).unwrap_or_default(),
            |target| target.host.to_string(),
        );
        let message = format!(
            "{object}: `{}` is another name of `{target}`, whose rules hold for it; this one has no effect",
            rule.host
        );
        let finding = Diagnostic::warning("no-effect", span.clone(), message);
        found.push(finding.with_help(format!("name `{target}` in `host`")).about(object.reference()));
        return;
    }
    // Labels can be compared only if the endpoints are Pods and there are any.
    let elsewhere = covered.iter().any(|s| s.external || s.resolution != crate::Resolution::Static);
    if elsewhere || rule.subsets.is_empty() {
        return;
    }
    let namespaces: BTreeSet<&Arc<str>> = covered.iter().map(|s| &s.namespace).collect();
    let idle = |subset: &&Subset| !namespaces.iter().any(|here| cx.selects_something(here, &subset.labels));
    let idle: Vec<&Subset> = rule.subsets.iter().filter(idle).collect();
    if idle.is_empty() || !namespaces.iter().any(|here| cx.running(here).next().is_some()) {
        return;
    }
    for subset in idle {
        let labels = labels_text(&subset.labels);
        let message = format!("the subset `{}` selects `{labels}`, which no Deployment or Pod has", subset.name);
        let help = "routes to it answer 503; compare it with the labels of the Pod templates";
        let finding = Diagnostic::warning("selects-nothing", subset.origin.clone(), message);
        found.push(finding.with_help(help).about(object.reference()));
    }
}

/// The hint for a host that no service has.
pub(super) fn missing_host_help(cx: &Cx<'_>, host: &Hostname, namespace: &str) -> String {
    // `reviews` and `reviews.shop` both name a Service by the first label; the second label is the namespace.
    let mut labels = host.as_str().split('.');
    let (name, wanted) = (labels.next().unwrap_or_default(), labels.next().unwrap_or(namespace));
    let mut named = cx.services().filter(|s| s.is_kubernetes() && &*s.name == name);
    let here = named.clone().find(|s| &*s.namespace == wanted).or_else(|| named.next());
    let near = || closest(host.as_str(), cx.services().map(|s| s.host.as_str()));
    match here.map(|s| s.host.as_str()).or_else(near) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "add a Service or ServiceEntry with this host, or correct the name".to_owned(),
    }
}

fn traffic_policy(policy: &istio::TrafficPolicy) -> TrafficPolicy {
    let port = |settings: &istio::PortTrafficPolicy| {
        let policy = TrafficPolicy {
            load_balancer: settings.load_balancer.as_ref().map(load_balancer),
            connection_pool: settings.connection_pool.as_ref().map(connection_pool),
            tls: settings.tls.as_deref().map(client_tls),
            outlier_detection: settings.outlier_detection.as_ref().map(outlier_detection),
            ..TrafficPolicy::default()
        };
        (settings.port.number.0, policy)
    };
    TrafficPolicy {
        load_balancer: policy.load_balancer.as_ref().map(load_balancer),
        connection_pool: policy.connection_pool.as_ref().map(connection_pool),
        tls: policy.tls.as_deref().map(client_tls),
        outlier_detection: policy.outlier_detection.as_ref().map(outlier_detection),
        retry_budget: policy.retry_budget.as_ref().map(retry_budget),
        proxy_protocol: policy.proxy_protocol.as_ref().map(|header| match header.version {
            Some(ProxyProtocolVersion::V2) => ProxyProtocol::V2,
            Some(ProxyProtocolVersion::V1) | None => ProxyProtocol::V1,
        }),
        tunnel: policy.tunnel.as_ref().map(tunnel),
        ports: policy.port_level_settings.iter().map(port).collect(),
    }
}

fn tunnel(tunnel: &istio::Tunnel) -> Tunnel {
    let (host, port) = (tunnel.target_host.as_str(), tunnel.target_port.0);
    let target = match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    };
    Tunnel { by_post: tunnel.protocol == Some(TunnelProtocol::Post), target: target.into() }
}

fn load_balancer(settings: &istio::LoadBalancer) -> LoadBalancer {
    let simple = settings.simple.and_then(|simple| match simple {
        SimpleLb::Unspecified => None,
        SimpleLb::RoundRobin => Some(LbPolicy::RoundRobin),
        SimpleLb::LeastRequest | SimpleLb::LeastConn => Some(LbPolicy::LeastRequest),
        SimpleLb::Random => Some(LbPolicy::Random),
        SimpleLb::Passthrough => Some(LbPolicy::Passthrough),
    });
    LoadBalancer {
        policy: settings
            .consistent_hash
            .as_ref()
            .and_then(consistent_hash)
            .or_else(|| settings.backend_utilization.as_ref().map(backend_utilization))
            .or(simple),
        locality: settings.locality_lb_setting.as_ref().map(locality),
        zone_aware: settings.zone_aware_lb_setting.as_ref().map(zone_aware),
        warmup: warmup(settings),
    }
}

fn backend_utilization(setting: &istio::BackendUtilization) -> LbPolicy {
    LbPolicy::BackendUtilization(BackendUtilization {
        stabilization: setting.weight_stabilization_period,
        expiration: setting.weight_expiration_period,
        update: setting.weight_update_period,
        error_penalty_percent: setting.error_utilization_penalty_percent,
        metrics: setting.metric_names_for_computing_utilization.iter().map(|name| shared(name)).collect(),
    })
}

fn consistent_hash(hash: &istio::ConsistentHash) -> Option<LbPolicy> {
    // The decoder has checked that exactly one is there.
    let key = if let Some(name) = &hash.http_header_name {
        HashKey::Header(name.0.clone())
    } else if let Some(cookie) = &hash.http_cookie {
        let attributes = cookie.attributes.iter();
        HashKey::Cookie {
            name: shared(&cookie.name),
            path: shared(cookie.path.as_deref().unwrap_or_default()),
            ttl: cookie.ttl,
            attributes: attributes.map(|a| (shared(&a.name), shared(a.value.as_deref().unwrap_or_default()))).collect(),
        }
    } else if hash.use_source_ip {
        HashKey::SourceIp
    } else {
        HashKey::QueryParameter(shared(hash.http_query_parameter_name.as_deref()?))
    };
    let given = |size: Option<u32>| size.filter(|size| *size > 0);
    let table = match (&hash.maglev, &hash.ring_hash) {
        (Some(maglev), _) => HashTable::Maglev(given(maglev.table_size.as_ref().map(|size| size.value))),
        (None, Some(ring)) => HashTable::Ring(given(ring.minimum_ring_size)),
        // As istiod writes the older form.
        (None, None) => HashTable::Ring(Some(given(hash.minimum_ring_size).unwrap_or(DEFAULT_RING_SIZE))),
    };
    Some(LbPolicy::ConsistentHash(key, table))
}

/// The default time for the answer to an HTTP/2 PING.
const DEFAULT_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The default number of points of a hash ring.
const DEFAULT_RING_SIZE: u32 = 1024;

pub(super) fn locality(setting: &istio::LocalityLbSetting) -> LocalityLb {
    let distribute = setting.distribute.iter().map(|share| {
        let to = share.to.iter().map(|(to, weight)| (shared(to), *weight)).collect();
        (shared(&share.from), to)
    });
    LocalityLb {
        of_mesh: false,
        disabled: setting.enabled == Some(false),
        distribute: distribute.collect(),
        failover: setting.failover.iter().map(|region| (shared(&region.from), shared(&region.to))).collect(),
        failover_priority: setting.failover_priority.iter().map(|label| shared(label)).collect(),
    }
}

pub(super) fn zone_aware(setting: &istio::ZoneAwareLbSetting) -> ZoneAwareLb {
    ZoneAwareLb {
        of_mesh: false,
        disabled: setting.enabled == Some(false),
        min_cluster_size: setting.min_cluster_size.as_ref().map(|size| size.value),
        failover: setting.failover.iter().map(|region| (shared(&region.from), shared(&region.to))).collect(),
        failover_priority: setting.failover_priority.iter().map(|label| shared(label)).collect(),
    }
}

fn warmup(settings: &istio::LoadBalancer) -> Option<Warmup> {
    let Some(warmup) = &settings.warmup else {
        let duration = settings.warmup_duration_secs.as_ref()?.value;
        return Some(Warmup { duration, minimum_percent: None, aggression: None });
    };
    Some(Warmup {
        duration: warmup.duration.value,
        minimum_percent: warmup.minimum_percent.as_ref().map(|percent| percent.value.0),
        aggression: warmup.aggression.as_ref().map(|aggression| aggression.value.0),
    })
}

pub(super) fn connection_pool(pool: &istio::ConnectionPool) -> ConnectionPool {
    let (tcp, http) = (pool.tcp.as_ref(), pool.http.as_ref());
    ConnectionPool {
        max_connections: tcp.and_then(|t| t.max_connections),
        connect_timeout: tcp.and_then(|t| t.connect_timeout),
        max_pending_requests: http.and_then(|h| h.http1_max_pending_requests),
        max_requests_per_connection: http.and_then(|h| h.max_requests_per_connection),
        max_requests: http.and_then(|h| h.http2_max_requests),
        max_retries: http.and_then(|h| h.max_retries),
        idle_timeout: http.and_then(|h| h.idle_timeout),
        max_connection_duration: tcp.and_then(|t| t.max_connection_duration),
        tcp_idle_timeout: tcp.and_then(|t| t.idle_timeout),
        h2_upgrade: http.and_then(|h| h.h2_upgrade_policy).and_then(|policy| match policy {
            H2UpgradePolicy::Default => None,
            H2UpgradePolicy::DoNotUpgrade => Some(false),
            H2UpgradePolicy::Upgrade => Some(true),
        }),
        use_client_protocol: http.is_some_and(|h| h.use_client_protocol),
        max_concurrent_streams: http.and_then(|h| h.max_concurrent_streams),
        http2_keepalive: http.and_then(|h| h.http2_keep_alive.as_ref()).and_then(|pings| {
            let timeout = pings.timeout.unwrap_or(DEFAULT_PING_TIMEOUT);
            Some(Http2Keepalive { interval: pings.interval?, timeout })
        }),
        tcp_keepalive: tcp.and_then(|t| t.tcp_keepalive.as_ref()).map(tcp_keepalive),
    }
}

pub(super) fn tcp_keepalive(probes: &istio::TcpKeepalive) -> TcpKeepalive {
    TcpKeepalive { probes: probes.probes, time: probes.time, interval: probes.interval }
}

pub(super) fn outlier_detection(outliers: &istio::OutlierDetection) -> OutlierDetection {
    OutlierDetection {
        consecutive_5xx: outliers.consecutive_5xx_errors,
        consecutive_gateway: outliers.consecutive_gateway_errors,
        consecutive_local_origin: outliers.consecutive_local_origin_failures,
        split_local_origin: outliers.split_external_local_origin_errors,
        interval: outliers.interval,
        base_ejection_time: outliers.base_ejection_time,
        max_ejection_percent: outliers.max_ejection_percent.as_ref().map(|percent| percent.value),
        min_health_percent: outliers.min_health_percent.as_ref().map(|percent| percent.value),
        failure_percentage: outliers.failure_percentage_threshold.as_ref().map(|percent| percent.value),
        error_codes: {
            let codes = outliers.http_error_codes.iter().filter_map(|code| u16::try_from(code.value).ok());
            codes.collect::<BTreeSet<_>>().into_iter().collect()
        },
    }
}

/// Istio's defaults.
fn retry_budget(budget: &istio::RetryBudget) -> RetryBudget {
    RetryBudget {
        percent: budget.percent.as_ref().map_or(20.0, |percent| percent.value.0),
        min_concurrency: budget.min_retry_concurrency.unwrap_or(3),
        interval: budget.budget_interval,
    }
}

pub(super) fn client_tls(tls: &istio::ClientTlsSettings) -> ClientTls {
    let text = |t: &Option<String>| t.as_deref().map(shared);
    let sni = text(&tls.sni);
    let subject_alt_names = tls.subject_alt_names.iter().map(|n| shared(n)).collect();
    let mode = tls.mode.unwrap_or(ClientTlsMode::Disable);
    match mode {
        ClientTlsMode::Disable => ClientTls::Disable,
        ClientTlsMode::IstioMutual => {
            ClientTls::IstioMutual { sni, subject_alt_names, revocation_lists: text(&tls.ca_crl) }
        }
        ClientTlsMode::Simple | ClientTlsMode::Mutual => {
            let is_mutual = mode == ClientTlsMode::Mutual;
            let secret = |name: &str| shared(name.strip_prefix("kubernetes://").unwrap_or(name));
            ClientTls::Outside(Box::new(OutsideTls {
                sni,
                subject_alt_names,
                ca_certificates: text(&tls.ca_certificates),
                revocation_lists: text(&tls.ca_crl),
                client_certificate: text(&tls.client_certificate).zip(text(&tls.private_key)).filter(|_| is_mutual),
                credential: tls.credential_name.as_deref().map(|name| secret(name)),
                roots_credential: tls.ca_cert_credential_name.as_deref().map(|name| secret(name)),
                is_mutual,
                insecure_skip_verify: tls.insecure_skip_verify,
                of_backend: None,
            }))
        }
    }
}
