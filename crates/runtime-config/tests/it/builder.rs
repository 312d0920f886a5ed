//! Warming, sharing, subscriptions, secrets.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::cluster::UpstreamProtocol;
use evenkeel_runtime_config::{Builder, Cluster, Config, Reference, Source};
use evenkeel_testkit::TestCa;

use crate::{input, routes};

const EDS: &str = "{ eds_config: { ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3 } }";

fn eds_cluster(rest: &str) -> evenkeel_xds::Any {
    input::cluster(&format!("name: c\ntype: EDS\neds_cluster_config: {EDS}\n{rest}"))
}

fn load_assignment(addresses: &[&str]) -> evenkeel_xds::Any {
    let mut text = String::from("cluster_name: c\nendpoints:\n- lb_endpoints:\n");
    for address in addresses {
        text +=
            &format!("  - endpoint: {{ address: {{ socket_address: {{ address: {address}, port_value: 80 }} }} }}\n");
    }
    input::endpoints(&text)
}

fn addresses(cluster: &Cluster) -> Vec<String> {
    let text = |address: &EndpointAddress| match address {
        EndpointAddress::Socket(address) => address.to_string(),
        EndpointAddress::Pipe(path) => path.display().to_string(),
    };
    cluster.endpoints.hosts.iter().map(|host| text(&host.address)).collect()
}

fn names(references: &[Reference]) -> Vec<&str> {
    references.iter().map(|reference| &*reference.name).collect()
}

#[test]
fn a_cluster_serves_once_its_endpoints_are_there() {
    let mut builder = input::builder();
    builder.set_cluster(&eds_cluster("")).unwrap();
    assert!(builder.build().clusters.is_empty());
    let missing = builder.missing();
    assert_eq!(names(&missing.endpoints), ["c"]);
    assert_eq!((&missing.endpoints[0].source, missing.endpoints[0].initial_fetch_timeout), (&Source::Ads, None));

    builder.set_endpoints(&load_assignment(&["10.0.0.1", "10.0.0.2"])).unwrap();
    let first = builder.build();
    assert_eq!(addresses(&first.clusters["c"]), ["10.0.0.1:80", "10.0.0.2:80"]);
    assert!(builder.missing().endpoints.is_empty());
    assert_eq!(names(&builder.interest().endpoints), ["c"]);

    // The same answer again changes nothing; an endpoint that stays keeps its Arc.
    builder.set_endpoints(&load_assignment(&["10.0.0.1", "10.0.0.2"])).unwrap();
    assert!(Arc::ptr_eq(&first, &builder.build()));
    builder.set_endpoints(&load_assignment(&["10.0.0.2", "10.0.0.3"])).unwrap();
    let second = builder.build();
    let host = |config: &Config, index: usize| config.clusters["c"].endpoints.hosts[index].clone();
    assert!(Arc::ptr_eq(&host(&first, 1), &host(&second, 0)));
    assert_eq!(second.generation, first.generation + 1);

    builder.remove_endpoints("c");
    assert!(addresses(&builder.build().clusters["c"]).is_empty());
    builder.remove_cluster("c");
    assert!(builder.build().clusters.is_empty());
    assert!(builder.interest().endpoints.is_empty());
}

#[test]
fn waiting_for_endpoints_can_be_given_up() {
    let mut builder = input::builder();
    builder.set_cluster(&eds_cluster("")).unwrap();
    let awaited = builder.missing().endpoints[0].clone();
    builder.give_up_endpoints(&awaited);
    assert!(addresses(&builder.build().clusters["c"]).is_empty());
}

#[test]
fn names_are_resolved_before_the_cluster_serves() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let text = |kind: &str, hosts: &str| {
        format!(
            "name: c\ntype: {kind}\ndns_refresh_rate: 9s\nload_assignment: {{ endpoints: [{{ lb_endpoints: [{hosts}] }}] }}"
        )
    };
    let host = |name: &str| {
        format!("{{ endpoint: {{ address: {{ socket_address: {{ address: {name}, port_value: 80 }} }} }} }}")
    };
    let mut builder = input::builder();
    let strict = text("STRICT_DNS", &format!("{}, {}", host("a.test"), host("b.test")));
    builder.set_cluster(&input::cluster(&strict)).unwrap();
    let wanted = builder.dns_clusters();
    assert_eq!(wanted[0].targets.iter().map(|target| &*target.host).collect::<Vec<_>>(), ["a.test", "b.test"]);
    assert_eq!(wanted[0].options.refresh, Duration::from_secs(9));
    builder.set_dns_endpoints("c", "a.test", &[ip("10.0.0.2"), ip("10.0.0.1")]);
    assert!(builder.build().clusters.is_empty());
    builder.set_dns_endpoints("c", "b.test", &[]);
    let config = builder.build();
    assert_eq!(addresses(&config.clusters["c"]), ["10.0.0.1:80", "10.0.0.2:80"]);
    assert_eq!(&*config.clusters["c"].endpoints.hosts[0].hostname, "a.test");
    builder.set_dns_endpoints("c", "a.test", &[ip("10.0.0.1"), ip("10.0.0.2")]);
    assert!(Arc::ptr_eq(&config, &builder.build()));

    let logical = text("LOGICAL_DNS", &host("a.test"));
    builder.set_cluster(&input::cluster(&logical)).unwrap();
    assert_eq!(addresses(&builder.build().clusters["c"]), ["10.0.0.1:80"]);
}

#[test]
fn a_listener_waits_for_its_routes_while_the_one_before_serves() {
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&routes::rds_listener("one"))).unwrap();
    assert!(builder.build().listeners.is_empty());
    assert_eq!(names(&builder.missing().routes), ["one"]);
    builder.set_route(&input::route("name: one")).unwrap();
    let first = builder.build();
    assert_eq!((first.listeners.len(), first.routes.len()), (1, 1));

    builder.set_listener(&input::listener(&routes::rds_listener("two"))).unwrap();
    let warming = builder.build();
    assert!(Arc::ptr_eq(&first.listeners["l"], &warming.listeners["l"]));
    assert!(warming.routes.contains_key("one"), "the listener that serves still needs it");
    assert_eq!(builder.listeners().map(|held| held.active).collect::<Vec<_>>(), [true, false]);
    builder.set_route(&input::route("name: two")).unwrap();
    let second = builder.build();
    assert!(!Arc::ptr_eq(&first.listeners["l"], &second.listeners["l"]));
    builder.build();
    assert_eq!(names(&builder.interest().routes), ["two"]);

    // Told again, nothing changes.
    builder.set_listener(&input::listener(&routes::rds_listener("two"))).unwrap();
    let settled = builder.build();
    assert!(Arc::ptr_eq(&settled, &builder.build()));
    assert!(Arc::ptr_eq(&second.listeners["l"], &settled.listeners["l"]));
}

#[test]
fn waiting_for_routes_can_be_given_up() {
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&routes::rds_listener("one"))).unwrap();
    let awaited = builder.missing().routes[0].clone();
    builder.give_up_route(&awaited);
    let config = builder.build();
    assert_eq!((config.listeners.len(), config.routes.len()), (1, 0));
}

/// A server may say that there is nothing of a name after the last resource with this name has gone.
#[test]
fn what_nothing_refers_to_any_more_is_not_given_up() {
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&routes::rds_listener("one"))).unwrap();
    builder.set_cluster(&tls_cluster()).unwrap();
    let (route, secrets) = (builder.missing().routes[0].clone(), builder.missing().secrets);
    assert_eq!(names(&secrets), ["ROOTCA", "default"]);
    builder.remove_listener("l");
    builder.remove_cluster("c");
    builder.build();
    builder.give_up_route(&route);
    secrets.iter().for_each(|secret| builder.give_up_secret(secret));
    builder.set_listener(&input::listener(&routes::rds_listener("one"))).unwrap();
    builder.set_cluster(&tls_cluster()).unwrap();
    let config = builder.build();
    assert!(config.listeners.is_empty() && config.clusters.is_empty(), "they wait as the first time");
    assert_eq!(
        (names(&builder.missing().routes), names(&builder.missing().secrets)),
        (vec!["one"], vec!["ROOTCA", "default"])
    );
}

/// A cluster with a client certificate and roots over SDS.
fn tls_cluster() -> evenkeel_xds::Any {
    let sds = "sds_config: { resource_api_version: V3, api_config_source: { api_type: GRPC, transport_api_version: V3, grpc_services: [{ envoy_grpc: { cluster_name: sds-grpc } }] } }";
    input::cluster(&format!(
        "name: c
transport_socket:
  name: tls
  typed_config:
    \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
    sni: outbound_.80_._.a
    common_tls_context:
      alpn_protocols: [istio]
      tls_certificate_sds_secret_configs: [{{ name: default, {sds} }}]
      combined_validation_context:
        default_validation_context: {{ match_subject_alt_names: [{{ exact: \"spiffe://cluster.local/ns/a/sa/a\" }}] }}
        validation_context_sds_secret_config: {{ name: ROOTCA, {sds} }}
"
    ))
}

fn certificate(ca: &TestCa) -> evenkeel_xds::Any {
    let identity = ca.for_spiffe("spiffe://cluster.local/ns/a/sa/a");
    input::secret(&format!(
        "name: default\ntls_certificate:\n  certificate_chain:\n    inline_string: |\n{}  private_key:\n    inline_string: |\n{}",
        input::indent(&identity.cert_pem, 6),
        input::indent(&identity.key_pem, 6),
    ))
}

fn roots(ca: &TestCa) -> evenkeel_xds::Any {
    let pem = input::indent(&ca.root_pem(), 6);
    input::secret(&format!("name: ROOTCA\nvalidation_context:\n  trusted_ca:\n    inline_string: |\n{pem}"))
}

fn sds() -> Source {
    Source::Grpc { cluster: "sds-grpc".into(), delta: false }
}

#[test]
fn secrets_are_awaited_and_rotate_in_place() {
    let mut builder = input::builder();
    builder.set_cluster(&tls_cluster()).unwrap();
    let missing = builder.missing().secrets;
    assert_eq!(names(&missing), ["ROOTCA", "default"]);
    assert_eq!(missing[0].source, sds());
    let ca = TestCa::new();
    builder.set_secret(&certificate(&ca), &sds()).unwrap();
    assert!(builder.build().clusters.is_empty());
    // The name alone is not enough: another server's ROOTCA is another secret.
    builder.set_secret(&roots(&ca), &Source::Ads).unwrap();
    assert!(builder.build().clusters.is_empty());
    builder.set_secret(&roots(&ca), &sds()).unwrap();
    let first = builder.build();
    assert_eq!(first.clusters.len(), 1);
    // A new certificate reaches the context that is there; the configuration does not change.
    builder.set_secret(&certificate(&ca), &sds()).unwrap();
    assert!(Arc::ptr_eq(&first, &builder.build()));
    // A cluster that comes back finds what is still held.
    builder.set_cluster(&eds_cluster("")).unwrap();
    builder.set_cluster(&tls_cluster()).unwrap();
    assert_eq!(builder.build().clusters.len(), 1);
}

#[test]
fn bad_secrets_are_refused_by_name() {
    let mut builder = input::builder();
    for (text, expected) in [
        ("name: s", "Secret \"s\": one of tls_certificate, validation_context is required"),
        (
            "name: s\ntls_certificate: { certificate_chain: { inline_string: x } }",
            "Secret \"s\": tls_certificate.private_key: is required",
        ),
        (
            "name: s\nvalidation_context: { trusted_ca: { filename: /nonexistent/root.pem } }",
            "Secret \"s\": validation_context.trusted_ca.filename: cannot read \"/nonexistent/root.pem\": ",
        ),
        (
            "name: s\nvalidation_context: { trusted_ca: { inline_string: x } }",
            "Secret \"s\": validation_context.trusted_ca: holds no `BEGIN CERTIFICATE` section",
        ),
        (
            "name: s\nvalidation_context: { trusted_ca: { inline_string: x }, trust_chain_verification: ACCEPT_UNTRUSTED }",
            "Secret \"s\": validation_context.trust_chain_verification: ACCEPT_UNTRUSTED is not supported in a delivered",
        ),
    ] {
        let error = builder.set_secret(&input::secret(text), &sds()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn static_resources_cannot_be_replaced() {
    let mut builder = input::builder();
    let http2 = "name: xds-grpc
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config: { http2_protocol_options: {} }
load_assignment: { endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: ./x.sock } } } }] }] }";
    builder.set_static_cluster(&input::cluster(http2)).unwrap();
    let error = builder.set_cluster(&input::cluster("name: xds-grpc")).unwrap_err();
    assert_eq!(error.to_string(), "Cluster \"xds-grpc\": the bootstrap has one of this name, which cannot be replaced");
    builder.remove_cluster("xds-grpc");
    let config = builder.build();
    assert!(matches!(config.clusters["xds-grpc"].http.protocol, UpstreamProtocol::Http2(_)));
    assert_eq!(addresses(&config.clusters["xds-grpc"]), ["./x.sock"]);
}

#[test]
fn endpoints_get_the_transport_their_labels_ask_for() {
    let mut builder = input::builder();
    let raw = "{ name: raw, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer } }";
    builder
        .set_cluster(&eds_cluster(&format!(
            "transport_socket_matches: [{{ name: mesh, match: {{ tlsMode: istio }}, transport_socket: {raw} }}, {{ name: rest, match: {{}}, transport_socket: {raw} }}]"
        )))
        .unwrap();
    let endpoint = |address: &str, mode: &str| {
        format!(
            "{{ endpoint: {{ address: {{ socket_address: {{ address: {address}, port_value: 80 }} }} }}, metadata: {{ filter_metadata: {{ envoy.transport_socket_match: {{ {mode} }} }} }} }}"
        )
    };
    let text = format!(
        "cluster_name: c\nendpoints: [{{ lb_endpoints: [{}, {}, {}] }}]",
        endpoint("10.0.0.1", "tlsMode: istio"),
        endpoint("10.0.0.2", "tlsMode: disabled"),
        endpoint("10.0.0.3", ""),
    );
    builder.set_endpoints(&input::endpoints(&text)).unwrap();
    let config = builder.build();
    let chosen: Vec<_> = config.clusters["c"].endpoints.hosts.iter().map(|host| host.transport_index).collect();
    assert_eq!(chosen, [Some(0), Some(1), Some(1)]);
}

#[test]
fn a_builder_can_be_shared_with_a_thread() {
    fn check<T: Send>() {}
    check::<Builder>();
}
