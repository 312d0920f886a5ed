//! DestinationRules: resolved, checked, and those for one host merged.

use std::sync::Arc;

use evenkeel_api::istio::{self, ClientTlsMode, SimpleLb};
use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::closest;
use evenkeel_base::{Diagnostic, Diagnostics, Span};

use super::{Objects, labels_text, shared};
use crate::workload::selects;
use crate::{
    ClientTls, ConnectionPool, DestinationRule, HashKey, HashTable, LbPolicy, LoadBalancer, LocalityLb, MeshConfig,
    OutlierDetection, RetryBudget, Snapshot, Subset, TcpKeepalive, TrafficPolicy, Visibility, Warmup,
};

pub(super) fn build(
    objects: &Objects<'_>,
    snapshot: &Snapshot,
    diagnostics: &mut Diagnostics,
) -> Vec<Arc<DestinationRule>> {
    let mut built: Vec<DestinationRule> = Vec::new();
    for object in objects.of(Kind::DestinationRule) {
        let Resource::DestinationRule(rule) = &object.resource else { continue };
        let Some(new) = destination_rule(object, &rule.spec, &snapshot.mesh) else { continue };
        note_missing_host(objects, snapshot, object, &new, &rule.spec.host.span, diagnostics);
        let same = |r: &&mut DestinationRule| {
            r.namespace == new.namespace && r.host == new.host && r.workload_selector == new.workload_selector
        };
        match built.iter_mut().find(same) {
            Some(first) => merge(first, new, object, diagnostics),
            None => built.push(new),
        }
    }
    // Stable: within a namespace the order of precedence stays.
    built.sort_by(|a, b| a.namespace.cmp(&b.namespace));
    built.into_iter().map(Arc::new).collect()
}

fn destination_rule(object: &Object, spec: &istio::DestinationRuleSpec, mesh: &MeshConfig) -> Option<DestinationRule> {
    let subset = |s: &evenkeel_base::Spanned<istio::Subset>| Subset {
        name: shared(&s.name),
        labels: s.labels.clone(),
        traffic_policy: s.traffic_policy.as_ref().map(traffic_policy).unwrap_or_default(),
        origin: s.name.span.clone(),
    };
    Some(DestinationRule {
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        // The host has been read as a name already, so this cannot fail but for a name too long in full.
        host: Hostname::resolve(spec.host.as_str(), &object.namespace, &mesh.cluster_domain).ok()?,
        export_to: Visibility::from_export_to(spec.export_to.iter().map(|e| e.as_str()), &object.namespace),
        workload_selector: spec.workload_selector.as_ref().map(|s| s.match_labels.clone()).unwrap_or_default(),
        traffic_policy: spec.traffic_policy.as_ref().map(traffic_policy).unwrap_or_default(),
        subsets: spec.subsets.iter().map(subset).collect(),
        origin: object.origin.clone(),
    })
}

/// Several rules for one host and namespace add their subsets to the first; its traffic policy stays.
fn merge(first: &mut DestinationRule, second: DestinationRule, object: &Object, diagnostics: &mut Diagnostics) {
    let mut lost = Vec::new();
    for subset in second.subsets {
        match first.subset(&subset.name) {
            Some(_) => lost.push(format!("subset `{}`", subset.name)),
            None => first.subsets.push(subset),
        }
    }
    if first.traffic_policy == TrafficPolicy::default() {
        first.traffic_policy = second.traffic_policy;
    } else if second.traffic_policy != TrafficPolicy::default() {
        lost.push("traffic policy".to_owned());
    }
    let related = format!("{}/{} comes first", first.namespace, first.name);
    let diagnostic = match lost.is_empty() {
        true => {
            let message = format!("{object} has the same host `{}` as another one; they are merged", first.host);
            Diagnostic::info("merged", object.origin.clone(), message).with_help("write one DestinationRule per host")
        }
        false => {
            let message = format!(
                "{object} has the same host `{}` as another one: its {} is ignored",
                first.host,
                lost.join(", ")
            );
            Diagnostic::warning("duplicate-host", object.origin.clone(), message)
                .with_help("write one DestinationRule per host")
        }
    };
    diagnostics.push(diagnostic.with_related(first.origin.clone(), related));
}

fn note_missing_host(
    objects: &Objects<'_>,
    snapshot: &Snapshot,
    object: &Object,
    rule: &DestinationRule,
    span: &Span,
    diagnostics: &mut Diagnostics,
) {
    let covered: Vec<_> = snapshot.services.iter().filter(|s| rule.host.covers(&s.host)).collect();
    if covered.is_empty() {
        let message = format!("{object}: no Service has the host `{}`, so nothing uses this rule", rule.host);
        let help = missing_host_help(snapshot, &rule.host, &object.namespace);
        diagnostics.push(Diagnostic::warning("missing-service", span.clone(), message).with_help(help));
        return;
    }
    // Only where Pods are the endpoints, and there are any, is there something to compare with.
    let candidates: Vec<_> = covered.iter().flat_map(|s| objects.workload_labels(&s.namespace)).collect();
    let elsewhere = covered.iter().any(|s| s.external || s.resolution != crate::Resolution::Static);
    if elsewhere || candidates.is_empty() {
        return;
    }
    for subset in rule.subsets.iter().filter(|s| !candidates.iter().any(|l| selects(&s.labels, l))) {
        let labels = labels_text(&subset.labels);
        let message = format!("the subset `{}` selects `{labels}`, which no Deployment or Pod has", subset.name);
        let help = "routes to it answer 503; compare it with the labels of the Pod templates";
        diagnostics.push(Diagnostic::warning("selects-nothing", subset.origin.clone(), message).with_help(help));
    }
}

/// How to go on when no service has a host.
pub(super) fn missing_host_help(snapshot: &Snapshot, host: &Hostname, namespace: &str) -> String {
    // `reviews` and `reviews.shop` both mean a Service by its first label; the second says where.
    let mut labels = host.as_str().split('.');
    let (name, wanted) = (labels.next().unwrap_or_default(), labels.next().unwrap_or(namespace));
    let mut named = snapshot.services.iter().filter(|s| s.is_kubernetes() && &*s.name == name);
    let here = named.clone().find(|s| &*s.namespace == wanted).or_else(|| named.next());
    let near = || closest(host.as_str(), snapshot.services.iter().map(|s| s.host.as_str()));
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
        ports: policy.port_level_settings.iter().map(port).collect(),
    }
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
        policy: settings.consistent_hash.as_ref().and_then(consistent_hash).or(simple),
        locality: settings.locality_lb_setting.as_ref().map(locality),
        warmup: warmup(settings),
    }
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

/// Points of a ring, unless the user says otherwise.
const DEFAULT_RING_SIZE: u32 = 1024;

fn locality(setting: &istio::LocalityLbSetting) -> LocalityLb {
    let distribute = setting.distribute.iter().map(|share| {
        let to = share.to.iter().map(|(to, weight)| (shared(to), *weight)).collect();
        (shared(&share.from), to)
    });
    LocalityLb {
        disabled: setting.enabled == Some(false),
        distribute: distribute.collect(),
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

fn connection_pool(pool: &istio::ConnectionPool) -> ConnectionPool {
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
        tcp_keepalive: tcp.and_then(|t| t.tcp_keepalive.as_ref()).map(|probes| TcpKeepalive {
            probes: probes.probes,
            time: probes.time,
            interval: probes.interval,
        }),
    }
}

fn outlier_detection(outliers: &istio::OutlierDetection) -> OutlierDetection {
    OutlierDetection {
        consecutive_5xx: outliers.consecutive_5xx_errors,
        consecutive_gateway: outliers.consecutive_gateway_errors,
        consecutive_local_origin: outliers.consecutive_local_origin_failures,
        split_local_origin: outliers.split_external_local_origin_errors,
        interval: outliers.interval,
        base_ejection_time: outliers.base_ejection_time,
        max_ejection_percent: outliers.max_ejection_percent.as_ref().map(|percent| percent.value),
        min_health_percent: outliers.min_health_percent.as_ref().map_or(0, |percent| percent.value),
    }
}

/// Istio's defaults.
fn retry_budget(budget: &istio::RetryBudget) -> RetryBudget {
    RetryBudget {
        percent: budget.percent.as_ref().map_or(20, |percent| percent.value),
        min_concurrency: budget.min_retry_concurrency.unwrap_or(3),
    }
}

fn client_tls(tls: &istio::ClientTlsSettings) -> ClientTls {
    let text = |t: &Option<String>| t.as_deref().map(shared);
    let sni = text(&tls.sni);
    let ca_certificates = text(&tls.ca_certificates);
    let subject_alt_names = tls.subject_alt_names.iter().map(|n| shared(n)).collect();
    let insecure_skip_verify = tls.insecure_skip_verify;
    match tls.mode.unwrap_or(ClientTlsMode::Disable) {
        ClientTlsMode::Disable => ClientTls::Disable,
        ClientTlsMode::Simple => ClientTls::Simple { sni, subject_alt_names, ca_certificates, insecure_skip_verify },
        ClientTlsMode::IstioMutual => ClientTls::IstioMutual { sni, subject_alt_names },
        ClientTlsMode::Mutual => ClientTls::Mutual {
            sni,
            subject_alt_names,
            ca_certificates,
            // The decoder has checked that both are there.
            client_certificate: text(&tls.client_certificate).unwrap_or_default(),
            private_key: text(&tls.private_key).unwrap_or_default(),
            insecure_skip_verify,
        },
    }
}
