//! The metrics that Istio's dashboards for the control plane query.

use evenkeel_testkit::exposition::parse;
use evenkeel_xds::ResourceType;
use evenkeel_xds::client::Protocol;

use crate::fixture::{Plane, cluster, pod, service};

/// The metrics that dashboards and alert rules query, with the labels they sum or select by. Metrics without a meaning here are left out:
/// the memory of Go's runtime, and what Kubernetes reports of containers. Those of objects that webhooks judge are in
/// `src/metrics/admission.rs`.
const ASKED_FOR: [(&str, &[&str]); 48] = [
    ("istio_build", &["component", "tag"]),
    ("pilot_k8s_cfg_events", &["type", "event"]),
    ("pilot_k8s_reg_events", &["type", "event"]),
    ("pilot_proxy_convergence_time_bucket", &["le"]),
    ("pilot_proxy_queue_time_bucket", &["le"]),
    ("pilot_push_triggers", &["type"]),
    ("pilot_services", &[]),
    ("pilot_total_xds_internal_errors", &[]),
    ("pilot_total_xds_rejects", &["type"]),
    ("pilot_virt_services", &[]),
    ("pilot_xds", &[]),
    ("pilot_xds_config_size_bytes_bucket", &["type", "le"]),
    ("pilot_xds_push_time_bucket", &["type", "le"]),
    ("pilot_xds_pushes", &["type"]),
    ("pilot_debounce_time_bucket", &["le"]),
    ("pilot_eds_no_instances", &[]),
    ("pilot_endpoint_not_ready", &[]),
    ("pilot_inbound_updates", &["type"]),
    ("pilot_jwks_resolver_network_fetch_fail_total", &[]),
    ("pilot_jwks_resolver_network_fetch_success_total", &[]),
    ("pilot_pushcontext_init_seconds_bucket", &["le"]),
    ("auto_registration_deletes_total", &[]),
    ("auto_registration_errors_total", &[]),
    ("auto_registration_success_total", &[]),
    ("auto_registration_unregister_total", &[]),
    ("auto_registration_updates_total", &[]),
    ("citadel_server_authentication_failure_count", &[]),
    ("citadel_server_cert_chain_expiry_seconds", &[]),
    ("citadel_server_cert_chain_expiry_timestamp", &[]),
    ("citadel_server_csr_count", &[]),
    ("citadel_server_csr_parsing_err_count", &[]),
    ("citadel_server_csr_sign_err_count", &[]),
    ("citadel_server_id_extraction_err_count", &[]),
    ("citadel_server_root_cert_expiry_seconds", &[]),
    ("citadel_server_root_cert_expiry_timestamp", &[]),
    ("istiod_uptime_seconds", &[]),
    ("sidecar_injection_failure_total", &[]),
    ("sidecar_injection_requests_total", &[]),
    ("sidecar_injection_skip_total", &[]),
    ("sidecar_injection_success_total", &[]),
    ("sidecar_injection_time_seconds_bucket", &["le"]),
    ("process_max_fds", &[]),
    ("process_start_time_seconds", &[]),
    ("citadel_server_success_cert_issuance_count", &[]),
    ("process_cpu_seconds_total", &[]),
    ("process_open_fds", &[]),
    ("process_resident_memory_bytes", &[]),
    ("process_virtual_memory_bytes", &[]),
];

/// Kiali asks for the version, whose first part it compares.
#[tokio::test]
async fn the_version_is_where_istiods_is() {
    let plane = Plane::start(&[]).await;
    let version = plane.page("/version").await;
    assert_eq!(version.trim().split('-').next(), Some(env!("CARGO_PKG_VERSION")), "{version}");
}

#[tokio::test]
async fn dashboards_find_what_they_ask_for() {
    let routes = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: shop}\n\
                  spec: {hosts: [a], http: [{route: [{destination: {host: a}}]}]}\n";
    let files = [("a.yaml", service("a")), ("pod.yaml", pod("a", "10.244.0.3")), ("routes.yaml", routes.to_owned())];
    let plane = Plane::start(&files).await;
    let mut proxy = plane.client(Protocol::Delta, "client").await;
    proxy.until_held(ResourceType::Cluster, &cluster("a")).await;
    plane.write("routes.yaml", &routes.replace("http:", "exportTo: [\"*\"], http:"));
    plane.write("b.yaml", &service("b"));
    proxy.until_held(ResourceType::Cluster, &cluster("b")).await;
    let updated = "pilot_k8s_cfg_events{type=\"VirtualService\",event=\"update\"} 1\n";
    let text = plane.until("/metrics", |text| text.contains(updated).then(|| text.to_owned())).await;
    parse(&text, false).unwrap_or_else(|error| panic!("{error}\n{text}"));
    for (name, labels) in ASKED_FOR {
        let has = |line: &str, label: &&str| line.contains(&format!("{label}=\""));
        let of = |line: &str| line.split(['{', ' ']).next() == Some(name);
        let line = text.lines().find(|line| of(line)).unwrap_or_else(|| panic!("no {name} in\n{text}"));
        assert!(labels.iter().all(|label| has(line, label)), "{name} wants {labels:?}: {line}");
        let family = ["_bucket", ""].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(text.contains(&format!("# TYPE {family} ")), "no type of {family}");
    }
    for expected in [
        "pilot_k8s_cfg_events{type=\"VirtualService\",event=\"add\"} 1\n",
        "pilot_k8s_reg_events{type=\"Services\",event=\"add\"} 2\n",
        "pilot_k8s_reg_events{type=\"Pods\",event=\"add\"} 1\n",
        "pilot_inbound_updates{type=\"svc\"} 2\n",
        "pilot_inbound_updates{type=\"eds\"} 1\n",
        "pilot_eds_no_instances 1\n",
        "pilot_endpoint_not_ready 0\n",
        "evenkeel_endpoints 1\n",
    ] {
        assert!(text.contains(expected), "{expected} not in\n{text}");
    }
}
