//! gRPC programs without a proxy: they are sent only resources that gRPC reads, under the names they request.

use std::collections::BTreeSet;

use evenkeel_translate::{ClientKind, ProxyKind, ProxyView};
use evenkeel_xds::{ResourceSet, ResourceType};
use serde_json::Value;

use crate::fleet::Fleet;
use crate::incremental::{Mesh, service, view};
use crate::scenario::{SCENARIOS, Scenario, as_json, translate};

/// What gRPC reads, by gRFCs A27 to A52. A name that begins with `.` is of any message.
const READ: &str = "
    .@type .name .ads .config_source.ads

    LDS.api_listener.api_listener.rds.config_source
    LDS.api_listener.api_listener.rds.route_config_name
    LDS.api_listener.api_listener.http_filters.name
    LDS.api_listener.api_listener.http_filters.typed_config
    LDS.address.socket_address.address
    LDS.address.socket_address.port_value
    LDS.filter_chains.filters.typed_config.http_filters.typed_config.rules
    LDS.filter_chains.filters.typed_config.route_config.virtual_hosts.domains
    LDS.filter_chains.filters.typed_config.route_config.virtual_hosts.routes.match.prefix
    LDS.filter_chains.filters.typed_config.route_config.virtual_hosts.routes.non_forwarding_action
    LDS.filter_chains.transport_socket.typed_config.require_client_certificate
    LDS.filter_chains.transport_socket.typed_config.common_tls_context.tls_certificate_provider_instance
    LDS.filter_chains.transport_socket.typed_config.common_tls_context.validation_context.ca_certificate_provider_instance

    RDS.virtual_hosts.domains
    RDS.virtual_hosts.routes.match.prefix
    RDS.virtual_hosts.routes.match.path
    RDS.virtual_hosts.routes.match.safe_regex.regex
    RDS.virtual_hosts.routes.match.case_sensitive
    RDS.virtual_hosts.routes.match.headers
    RDS.virtual_hosts.routes.direct_response.status
    RDS.virtual_hosts.routes.redirect
    RDS.virtual_hosts.routes.route.cluster
    RDS.virtual_hosts.routes.route.weighted_clusters.clusters.weight
    RDS.virtual_hosts.routes.route.max_stream_duration.max_stream_duration
    RDS.virtual_hosts.routes.route.retry_policy.retry_on
    RDS.virtual_hosts.routes.route.retry_policy.num_retries
    RDS.virtual_hosts.routes.route.retry_policy.retry_back_off
    RDS.virtual_hosts.routes.route.hash_policy.header.header_name
    RDS.virtual_hosts.routes.route.hash_policy.filter_state.key

    CDS.type
    CDS.eds_cluster_config.eds_config
    CDS.eds_cluster_config.service_name
    CDS.load_assignment.cluster_name
    CDS.load_assignment.endpoints.lb_endpoints.endpoint.address.socket_address
    CDS.lb_policy
    CDS.ring_hash_lb_config
    CDS.ring_hash_lb_config.minimum_ring_size
    CDS.circuit_breakers.thresholds.max_requests
    CDS.transport_socket.typed_config.common_tls_context.tls_certificate_provider_instance
    CDS.transport_socket.typed_config.common_tls_context.validation_context.ca_certificate_provider_instance
    CDS.transport_socket.typed_config.common_tls_context.validation_context.match_subject_alt_names

    EDS.cluster_name
    EDS.endpoints.locality
    EDS.endpoints.priority
    EDS.endpoints.load_balancing_weight
    EDS.endpoints.lb_endpoints.load_balancing_weight
    EDS.endpoints.lb_endpoints.endpoint.address.socket_address
";

#[test]
fn only_fields_that_grpc_reads_are_sent() {
    let read: Vec<&str> = READ.split_whitespace().collect();
    let (mut unread, mut sent) = (BTreeSet::new(), 0);
    for name in SCENARIOS {
        let scenario = Scenario::read(name);
        for view in scenario.proxies.iter().filter(|view| view.kind == ProxyKind::Sidecar) {
            let view = ProxyView { client_kind: ClientKind::Grpc, ..view.clone() };
            for (kind, resources) in as_json(&translate(&view, &scenario.snapshot)).as_object().expect("an object") {
                each_field(kind, resources, &mut |path| {
                    sent += 1;
                    let known = |field: &&str| {
                        let rest = path.strip_prefix(*field);
                        path.ends_with(*field) || rest.is_some_and(|rest| rest.starts_with('.'))
                    };
                    if !read.iter().any(known) {
                        unread.insert(path.to_owned());
                    }
                });
            }
        }
    }
    assert!(sent > 1000, "{sent} fields");
    assert!(unread.is_empty(), "gRPC reads none of these:\n{}", unread.into_iter().collect::<Vec<_>>().join("\n"));
}

/// Calls `found` with the path of each field that holds no message.
fn each_field(path: &str, value: &Value, found: &mut dyn FnMut(&str)) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, value)| each_field(&format!("{path}.{name}"), value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| each_field(path, item, found)),
        _ => found(path),
    }
}

fn names(set: &ResourceSet, kind: ResourceType) -> Vec<String> {
    set.of(kind).keys().map(ToString::to_string).collect()
}

#[test]
fn a_port_answers_to_every_name_a_client_may_dial() {
    let scenario = Scenario::read("grpc");
    let set = translate(&scenario.proxies[0], &scenario.snapshot);
    let listeners = names(&set, ResourceType::Listener);
    let of = |host: &str| listeners.iter().filter(|name| name.split(':').next() == Some(host)).count();
    let full = "server.shop.svc.cluster.local";
    for (host, expected) in [
        (full, 3),
        ("server", 3),
        ("server.shop", 3),
        ("server.shop.svc", 3),
        // Its only port goes without saying.
        ("only", 2),
        ("named.example.com", 2),
        ("*.wild.example.com", 0),
    ] {
        assert_eq!(of(host), expected, "{host}: {listeners:?}");
    }
    // Several names are no cluster to gRPC; of one it is.
    let clusters = names(&set, ResourceType::Cluster);
    assert!(clusters.contains(&"outbound|443||named.example.com".to_owned()), "{clusters:?}");
    assert!(!clusters.contains(&"outbound|443||several.example.com".to_owned()), "{clusters:?}");
}

#[test]
fn the_host_of_one_service_goes_before_the_short_name_of_another() {
    let mut mesh = Mesh::new();
    let kubernetes = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\n\
                      spec: {clusterIP: 10.96.0.1, ports: [{name: grpc, port: 80}]}\n";
    let entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e, namespace: shop}\n\
                 spec: {hosts: [a.shop], ports: [{number: 80, name: grpc, protocol: GRPC}], resolution: STATIC}\n";
    let (snapshot, cause) = mesh.write([("a.yaml".to_owned(), kubernetes)]);
    let mut translator = Fleet::new(snapshot, cause);
    let program = grpc_program(1);
    translator.join(&program);
    let leads_to = |translator: &Fleet| {
        let set = translator.set_of(&program).expect("it joined");
        let listener = set.get(ResourceType::Listener, "a.shop:80").expect("a listener").any();
        let has = |text: &str| listener.value.windows(text.len()).any(|bytes| bytes == text.as_bytes());
        ["outbound|80||a.shop.svc.cluster.local", "outbound|80||a.shop"].into_iter().find(|route| has(route))
    };
    assert_eq!(leads_to(&translator), Some("outbound|80||a.shop.svc.cluster.local"));
    for (text, expected) in [(entry, "outbound|80||a.shop"), ("", "outbound|80||a.shop.svc.cluster.local")] {
        let (snapshot, cause) = mesh.write([("e.yaml".to_owned(), text)]);
        translator.update(snapshot, cause);
        assert_eq!(leads_to(&translator), Some(expected));
        assert_eq!(translator.verify(), []);
    }
}

fn grpc_program(n: u8) -> ProxyView {
    let view = view(ProxyKind::Sidecar, &format!("w-{n}.shop"), &format!("10.1.0.{n}"), &[("app", "w")]);
    ProxyView { client_kind: ClientKind::Grpc, ..view }
}

#[test]
fn a_change_is_work_for_what_it_is_about_and_programs_share_it() {
    let units_for = |services: usize, programs: u8| {
        let mut mesh = Mesh::new();
        let files: Vec<_> = (0..services).map(service).collect();
        let (snapshot, cause) = mesh.write(files.iter().map(|(name, text)| (name.clone(), text.as_str())));
        let mut translator = Fleet::new(snapshot, cause);
        (0..programs).for_each(|n| drop(translator.join(&grpc_program(n))));
        let (name, text) = service(services);
        let mut step = |text: &str, expected: &[&str]| {
            let (snapshot, cause) = mesh.write([(name.clone(), text)]);
            let before = translator.units_made();
            let told = translator.update(snapshot, cause);
            assert_eq!(told.len(), usize::from(programs));
            for change in &told {
                let kinds: Vec<String> =
                    change.now.diff(&change.before).map(|d| format!("{} {}", d.kind, d.name)).collect();
                let host = format!("s{services}.shop.example.com");
                let expected: Vec<String> = expected.iter().map(|name| name.replace("HOST", &host)).collect();
                assert_eq!(kinds, expected);
            }
            translator.units_made() - before
        };
        let (cluster, endpoints) = ("CDS outbound|80||HOST", "EDS outbound|80||HOST");
        let (bare, dialled, routes) = ("LDS HOST", "LDS HOST:80", "RDS outbound|80||HOST");
        let all = [cluster, endpoints, bare, dialled, routes];
        [
            step(&text, &all),
            step(&text.replace("198.51.", "203.0."), &[endpoints]),
            step(&text.replace("198.51.", "203.0.").replace("timeout: 3s", "timeout: 4s"), &[routes]),
            step("", &all),
        ]
    };
    let few = units_for(10, 2);
    assert!(few.iter().all(|units| *units <= 6), "{few:?}");
    assert_eq!(few, units_for(60, 2));
    assert_eq!(few, units_for(10, 9));
}
