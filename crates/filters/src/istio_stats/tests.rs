//! Which series a request is counted in.

use std::sync::Arc;

use evenkeel_runtime_config::expression::Expression;
use evenkeel_runtime_config::hcm::HttpFilterConfig;
use evenkeel_runtime_config::istio_stats::{Dimension, Group, IstioStats, Metrics};
use evenkeel_runtime_config::peer::{DestinationService, Peer};
use evenkeel_runtime_config::view::PlainRequest;

use crate::http::Body;
use crate::http::fixture::Fixture;

fn own() -> Peer {
    let labels = [("app", "web"), ("version", "v2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    Peer::new("web-v2", "shop", "Kubernetes", &labels.into())
}

fn config(host_fallback: bool, groups: Vec<Group>) -> HttpFilterConfig {
    HttpFilterConfig::IstioStats(Arc::new(IstioStats {
        host_fallback,
        tcp_interval: std::time::Duration::from_secs(5),
        groups,
        own: Arc::new(own()),
    }))
}

fn all(without: &[&str]) -> Vec<Group> {
    vec![Group {
        metrics: Metrics::ALL,
        without: without.iter().map(|label| Box::from(*label)).collect(),
        values: Vec::new(),
    }]
}

/// The lines about these metrics after one request to this cluster.
fn counted(config: HttpFilterConfig, cluster: &str, service: Option<[&str; 3]>, prefix: &str) -> Vec<String> {
    let mut fixture = Fixture::new(config);
    fixture.request(&PlainRequest::new("GET", "reviews:9080", "/"));
    fixture.ask(Body::Empty);
    fixture.info.cluster_name = Some(cluster.into());
    let service = service.map(|[host, name, namespace]| DestinationService {
        host: host.into(),
        name: name.into(),
        namespace: namespace.into(),
    });
    fixture.info.service = service.map(Arc::new);
    fixture.complete();
    let text = fixture.registry.prometheus_text();
    text.lines().filter(|line| line.starts_with(prefix)).map(str::to_owned).collect()
}

#[test]
fn series_have_istios_labels() {
    let found = counted(
        config(true, all(&[])),
        "outbound|9080||reviews.shop.svc.cluster.local",
        Some(["reviews.shop.svc.cluster.local", "reviews", "shop"]),
        "istio_requests_total",
    );
    let expected = "istio_requests_total{reporter=\"source\",source_workload=\"web-v2\",source_canonical_service=\"web\",\
         source_canonical_revision=\"v2\",source_workload_namespace=\"shop\",source_principal=\"unknown\",source_app=\"web\",\
         source_version=\"v2\",source_cluster=\"Kubernetes\",destination_workload=\"unknown\",\
         destination_workload_namespace=\"unknown\",destination_principal=\"unknown\",destination_app=\"unknown\",\
         destination_version=\"unknown\",destination_service=\"reviews.shop.svc.cluster.local\",\
         destination_canonical_service=\"unknown\",destination_canonical_revision=\"latest\",\
         destination_service_name=\"reviews\",destination_service_namespace=\"shop\",destination_cluster=\"unknown\",\
         request_protocol=\"http\",response_flags=\"-\",connection_security_policy=\"unknown\",response_code=\"0\",\
         grpc_response_status=\"\"} 1";
    assert_eq!(found, [expected]);
}

#[test]
fn a_host_stands_for_a_service_only_where_it_may() {
    let check = |fallback: bool, cluster: &str, expected: [&str; 2]| {
        let found = counted(config(fallback, all(&[])), cluster, None, "istio_requests_total");
        let [line] = found.as_slice() else { panic!("{found:?}") };
        let [service, name] = expected;
        for label in [format!("destination_service=\"{service}\""), format!("destination_service_name=\"{name}\"")] {
            assert!(line.contains(&label), "{label}: {line}");
        }
    };
    check(true, "other", ["reviews:9080", "reviews:9080"]);
    check(false, "other", ["unknown", "unknown"]);
    check(true, "PassthroughCluster", ["reviews:9080", "PassthroughCluster"]);
    check(false, "PassthroughCluster", ["unknown", "PassthroughCluster"]);
}

#[test]
fn metrics_and_labels_can_be_removed() {
    let found = counted(config(false, all(&["source_app", "reporter"])), "c", None, "istio_requests_total");
    assert!(found.iter().all(|line| !line.contains("source_app=") && !line.contains("reporter=")), "{found:?}");
    assert!(found.iter().all(|line| line.contains("source_version=")), "{found:?}");
    let counts = |groups: Vec<Group>, metric: &str| counted(config(false, groups), "c", None, metric).len();
    assert_eq!(counts(all(&[]), "istio_request_bytes_count"), 1);
    assert_eq!(counts(all(&[]), "istio_response_bytes_sum"), 1);
    assert_eq!(counts(all(&[]), "istio_request_duration_milliseconds_count"), 1);
    assert_eq!(counts(all(&[]), "istio_tcp"), 0);
    assert_eq!(counts(Vec::new(), "istio_"), 0);
}

#[test]
fn labels_can_be_expressions() {
    let dimension = |label: &str, text: &str| Dimension {
        label: label.into(),
        value: Expression {
            compiled: Arc::new(evenkeel_cel::Expression::compile(text).unwrap()),
            node: Arc::default(),
        },
    };
    let check = |label: &str, text: &str, removed: &[&str], expected: Option<&str>| {
        let group = Group { values: vec![dimension(label, text)], ..all(removed).remove(0) };
        let found = counted(config(false, vec![group]), "c", None, "istio_requests_total");
        let [line] = found.as_slice() else { panic!("{found:?}") };
        let value = line.split(&['{', ',', '}'][..]).find_map(|part| part.strip_prefix(&format!("{label}=")));
        assert_eq!(value, expected, "{label} {text}: {line}");
        assert!(line.matches(&format!(",{label}=")).count() <= 1, "{line}");
    };
    check("request_host", "request.host", &[], Some("\"reviews:9080\""));
    check("request_method", "request.method == 'GET' ? 'read' : 'write'", &[], Some("\"read\""));
    check("source_app", "'replaced'", &[], Some("\"replaced\""));
    check("source_app", "'replaced'", &["source_app"], None);
    check("outcome", "response.code", &[], Some("\"unknown\""));
    check("cluster", "xds.cluster_name", &[], Some("\"c\""));
    check("reported", "listener_direction", &[], Some("\"0\""));
    check("long", "['x', 'x'].map(a, 'x').size() > 1 ? request.path + 'y' : ''", &[], Some("\"/y\""));
}
