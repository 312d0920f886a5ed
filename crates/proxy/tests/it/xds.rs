//! Configuration from a control plane: accepted, rejected, changed, lost and received again.

use std::sync::Arc;

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::wait::PATIENCE;
use evenkeel_testkit::{Backend, Connection, Identity, Reply, TestCa, eventually};
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use evenkeel_xds::pb::envoy::config::route::v3::RouteConfiguration;
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::Secret;
use evenkeel_xds::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use evenkeel_xds::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use evenkeel_xds::{Resource, ResourceSet, ResourceType};
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::harness::{
    ControlPlane, Proxy, answering, dynamic_bootstrap, get, http_listener, http_listener_at, resource, set,
};

const RDS: &str = "rds: {route_config_name: main, config_source: {ads: {}, resource_api_version: V3}}";

fn listener(name: &str) -> (ResourceType, Arc<Resource>) {
    (ResourceType::Listener, resource::<Listener>(name, &http_listener(name, RDS, "")))
}

fn cluster(name: &str) -> (ResourceType, Arc<Resource>) {
    let yaml = format!(
        "{{name: {name}, type: EDS, connect_timeout: 1s, eds_cluster_config: {{eds_config: {{ads: {{}}, resource_api_version: V3}}}}}}"
    );
    (ResourceType::Cluster, resource::<Cluster>(name, &yaml))
}

fn endpoints(name: &str, backend: &Backend) -> (ResourceType, Arc<Resource>) {
    let port = backend.address().port();
    let yaml = format!(
        "{{cluster_name: {name}, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}]}}]}}"
    );
    (ResourceType::Endpoint, resource::<ClusterLoadAssignment>(name, &yaml))
}

fn routes(cluster: &str) -> (ResourceType, Arc<Resource>) {
    let yaml = format!(
        "{{name: main, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}]}}]}}"
    );
    (ResourceType::Route, resource::<RouteConfiguration>("main", &yaml))
}

fn mesh(backend: &Backend) -> ResourceSet {
    set(vec![listener("web"), cluster("one"), endpoints("one", backend), routes("one")])
}

fn named(text: &'static str) -> Backend {
    Backend::start(move |_| Reply::text(text))
}

fn flow(api_type: &str) {
    let (one, two) = (named("one"), named("two"));
    let mut control_plane = ControlPlane::start(mesh(&one));
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, api_type, ""));
    proxy.wait_live();
    let web = proxy.listener("web");
    assert_eq!(get(web, "/").text(), "one");

    // A new cluster and the route to it: not one request fails on the way.
    let (kind, added) = cluster("two");
    let (_, assigned) = endpoints("two", &two);
    control_plane.change(|set| {
        set.insert(kind, added);
        set.insert(ResourceType::Endpoint, assigned);
        set.insert(ResourceType::Route, routes("two").1);
        set.remove(ResourceType::Cluster, "one");
        set.remove(ResourceType::Endpoint, "one");
    });
    eventually("the new route", || {
        let response = get(web, "/");
        assert_eq!(response.status, 200, "{}", response.text());
        (response.text() == "two").then_some(())
    });
    let generation = control_plane.generation();
    control_plane.wait_status("everything accepted", |status| status.is_live(generation));
    eventually("the old cluster to go", || (!proxy.get("/clusters").text().contains("\none::")).then_some(()));

    // Endpoints move.
    control_plane.change(|set| set.insert(ResourceType::Endpoint, endpoints("two", &one).1));
    eventually("the new endpoint", || (get(web, "/").text() == "one").then_some(()));
}

#[test]
fn delta_configures_a_proxy() {
    flow("DELTA_GRPC");
}

#[test]
fn state_of_the_world_configures_a_proxy() {
    flow("GRPC");
}

#[test]
fn what_is_wrong_is_refused_by_name_and_the_rest_holds() {
    let backend = named("one");
    let mut control_plane = ControlPlane::start(mesh(&backend));
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""));
    proxy.wait_live();
    let web = proxy.listener("web");

    let bad = http_listener("web", RDS, "enable_mptcp: true\n");
    let good = http_listener("second", &answering("second"), "");
    control_plane.change(|set| {
        set.insert(ResourceType::Listener, resource::<Listener>("web", &bad));
        set.insert(ResourceType::Listener, resource::<Listener>("second", &good));
    });
    let status = control_plane.wait_status("a refusal", |status| status.types.iter().any(|kind| kind.nack.is_some()));
    let nack = status.types.iter().find_map(|kind| kind.nack.as_ref()).expect("waited for");
    assert_eq!(nack.message, "Listener \"web\": enable_mptcp: not supported");
    // The version before it serves on; what came beside it serves too.
    assert_eq!(get(web, "/").text(), "one");
    assert_eq!(get(proxy.listener("second"), "/").text(), "second");
    let dump = proxy.json("/config_dump?resource=dynamic_listeners");
    let entry = dump["configs"].as_array().expect("a list").iter().find(|entry| entry["name"] == "web").expect("web");
    assert_eq!(entry["error_state"]["details"], nack.message.as_str());
    assert!(entry["active_state"]["listener"].is_object());
    let text = proxy.get("/stats?filter=listener_manager.lds.update_rejected").text();
    assert_eq!(text, "listener_manager.lds.update_rejected: 1\n");

    // Mended, it is taken.
    control_plane.change(|set| set.insert(ResourceType::Listener, listener("web").1));
    let generation = control_plane.generation();
    control_plane.wait_status("no refusal", |status| status.is_live(generation));
    assert!(proxy.json("/xds")["refused"].as_array().expect("a list").is_empty());
}

#[test]
fn a_control_plane_that_dies_is_missed_by_nobody_and_found_again() {
    let backend = named("one");
    let control_plane = ControlPlane::start(mesh(&backend));
    let address = control_plane.address;
    let proxy = Proxy::start(&dynamic_bootstrap(address, "DELTA_GRPC", ""));
    proxy.wait_live();
    let web = proxy.listener("web");
    let set = control_plane.kill();
    eventually("the stream to be missed", || (proxy.json("/xds")["streams"][0]["connected"] == false).then_some(()));
    assert_eq!(get(web, "/").text(), "one");
    let mut control_plane = ControlPlane::start_on(address, set);
    control_plane.change(|set| {
        set.insert(
            ResourceType::Listener,
            resource::<Listener>("late", &http_listener("late", &answering("late"), "")),
        );
    });
    assert_eq!(get(proxy.listener("late"), "/").text(), "late");
    assert_eq!(get(web, "/").text(), "one");
}

#[test]
fn a_proxy_without_its_control_plane_is_not_ready_and_says_why() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
    let proxy = Proxy::start(&dynamic_bootstrap(nobody, "DELTA_GRPC", ""));
    let error =
        eventually("a failed attempt", || proxy.json("/xds")["streams"][0]["last_error"].as_str().map(str::to_owned));
    assert!(error.contains("Connection refused"), "{error}");
    let ready = proxy.get("/ready");
    let said = "PRE_INITIALIZING\nwaits for the control plane, its first clusters, its first listeners\n";
    assert_eq!((ready.status, ready.text().as_str()), (503, said));
}

/// A transport socket whose certificate `cert` comes by SDS.
fn tls_by_sds(timeout: &str) -> String {
    let sds = format!(
        "{{name: cert, sds_config: {{resource_api_version: V3, {timeout}api_config_source: {{api_type: GRPC, \
         transport_api_version: V3, grpc_services: [{{envoy_grpc: {{cluster_name: xds-grpc}}}}]}}}}}}"
    );
    format!(
        "  transport_socket:\n    name: tls\n    typed_config:\n      \"@type\": \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext\n      \
         common_tls_context: {{tls_certificate_sds_secret_configs: [{sds}]}}\n"
    )
}

/// The secret `cert`.
fn secret(identity: &Identity) -> Arc<Resource> {
    let quoted = |text: &str| serde_json::to_string(text).expect("a string");
    let yaml = format!(
        "{{name: cert, tls_certificate: {{certificate_chain: {{inline_string: {}}}, private_key: {{inline_string: {}}}}}}}",
        quoted(&identity.cert_pem),
        quoted(&identity.key_pem)
    );
    resource::<Secret>("cert", &yaml)
}

/// As in Envoy: after `initial_fetch_timeout` a listener goes on without its certificate, and fails handshakes.
#[test]
fn a_secret_that_is_not_there_holds_up_a_listener_until_its_timeout() {
    let ca = TestCa::new();
    let identity = ca.for_dns(&["web.test"]);
    let tls = tls_by_sds("initial_fetch_timeout: 0.2s, ");
    let web = resource::<Listener>("web", &http_listener("web", &answering("hello"), &tls));
    let mut control_plane = ControlPlane::start(set(vec![(ResourceType::Listener, web)]));
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""));
    proxy.wait_live();
    let address = proxy.listener("web");
    let client = TlsClient { server_name: "web.test", root_pem: ca.root_pem(), ..TlsClient::default() };
    assert!(client.open(address).is_err(), "there is nothing to shake hands with");
    assert!(Connection::open(address).and_then(|mut plain| plain.get("test", "/", "")).is_err(), "nor without");
    let counted = proxy.get("/stats?filter=downstream_context_secrets_not_ready").text();
    assert!(!counted.trim_end().ends_with(": 0"), "{counted}");

    control_plane.change(|set| set.insert(ResourceType::Secret, secret(&identity)));
    let mut open = eventually("a handshake", || client.open(address).ok());
    assert_eq!(open.get("test", "/", "").expect("an answer").text(), "hello");
    // What is in use stays when it is taken away.
    control_plane.change(|set| {
        set.remove(ResourceType::Secret, "cert");
    });
    let generation = control_plane.generation();
    control_plane.wait_status("an answer", |status| status.is_live(generation));
    assert!(client.open(address).is_ok());
}

#[test]
fn certificates_come_by_sds_and_change_under_open_connections() {
    let ca = TestCa::new();
    let (first, second) = (ca.for_dns(&["first.test", "web.test"]), ca.for_dns(&["second.test", "web.test"]));
    let web = resource::<Listener>("web", &http_listener("web", &answering("hello"), &tls_by_sds("")));
    let mut control_plane = ControlPlane::start(set(vec![(ResourceType::Listener, web)]));
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""));
    // The listener warms: no certificate, no socket.
    eventually("the listener to warm", || {
        let dump = proxy.json("/config_dump?resource=dynamic_listeners");
        dump["configs"][0]["warming_state"].is_object().then_some(())
    });
    assert_eq!(proxy.get("/ready").text(), "INITIALIZING\nwaits for SDS cert\n");
    control_plane.change(|set| set.insert(ResourceType::Secret, secret(&first)));
    let address = proxy.listener("web");
    let client = |name| TlsClient { server_name: name, root_pem: ca.root_pem(), ..TlsClient::default() };
    let mut open = client("first.test").open(address).expect("a handshake with the first certificate");
    assert_eq!(open.get("test", "/", "").expect("an answer").text(), "hello");

    control_plane.change(|set| set.insert(ResourceType::Secret, secret(&second)));
    eventually("the second certificate", || client("second.test").open(address).ok());
    assert!(client("first.test").open(address).is_err(), "the first certificate is gone for new connections");
    assert_eq!(open.get("test", "/", "").expect("the open connection lives").text(), "hello");

    let dump = proxy.get("/config_dump").text();
    assert!(!dump.contains("PRIVATE KEY") && dump.contains("W3JlZGFjdGVkXQ=="), "private keys stay out");
    let certs = proxy.json("/certs");
    let names = &certs["certificates"][0]["cert_chain"][0]["subject_alt_names"];
    assert!(names.as_array().expect("names").iter().any(|name| name["dns"] == "second.test"), "{certs}");
}

/// A proxy that starts again takes connections at once if somebody keeps its socket open: none may meet a cluster that warms.
/// A mesh with a cluster whose roots come by SDS.
fn mesh_with_roots(backend: &Backend) -> ResourceSet {
    let sds = "{name: roots, sds_config: {ads: {}, resource_api_version: V3}}";
    let yaml = format!(
        "{{name: secured, type: STATIC, connect_timeout: 1s, transport_socket: {{name: tls, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: \
         {{validation_context_sds_secret_config: {sds}}}}}}}}}"
    );
    let mut resources = mesh(backend);
    resources.insert(ResourceType::Cluster, resource::<Cluster>("secured", &yaml));
    resources
}

#[test]
fn nobody_is_served_before_the_clusters_have_their_certificates() {
    let (ca, backend) = (TestCa::new(), named("one"));
    let mut control_plane = ControlPlane::start(mesh_with_roots(&backend));
    // State of the world cannot say that there is none.
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "GRPC", ""));
    let said = "PRE_INITIALIZING\nwaits for its first listeners, SDS roots\n";
    eventually("the other cluster to be there", || (proxy.get("/ready").text() == said).then_some(()));
    assert_eq!(proxy.get("/listeners").text(), "");

    let roots = format!(
        "{{name: roots, validation_context: {{trusted_ca: {{inline_string: {}}}}}}}",
        serde_json::to_string(&ca.root_pem()).expect("a string")
    );
    control_plane.change(|set| set.insert(ResourceType::Secret, resource::<Secret>("roots", &roots)));
    assert_eq!(get(proxy.listener("web"), "/").text(), "one");

    // Roots of a SPIFFE validator are on the page, each with the trust domain that it vouches for.
    let path = |certs: &serde_json::Value| certs["certificates"][0]["ca_cert"][0]["path"].clone();
    assert_eq!(path(&proxy.json("/certs")), "<sds: roots>");
    let validator = format!(
        "{{name: roots, validation_context: {{custom_validator_config: {{name: envoy.tls.cert_validator.spiffe, typed_config: {{\
         \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig, trust_domains: [{{\
         name: partner.example, trust_bundle: {{inline_string: {}}}}}]}}}}}}}}",
        serde_json::to_string(&ca.root_pem()).expect("a string")
    );
    control_plane.change(|set| set.insert(ResourceType::Secret, resource::<Secret>("roots", &validator)));
    eventually("the validator's root", || {
        (path(&proxy.json("/certs")) == "<sds: roots: partner.example>").then_some(())
    });
}

#[test]
fn a_certificate_that_the_server_says_it_does_not_have_is_not_waited_for() {
    let backend = named("one");
    let control_plane = ControlPlane::start(mesh_with_roots(&backend));
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""));
    assert_eq!(get(proxy.listener("web"), "/").text(), "one");
}

#[test]
fn a_listener_whose_port_is_taken_is_refused_and_the_others_serve() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound");
    let yaml = http_listener_at(address, "conflict", &answering("never"), "");
    let backend = named("one");
    let mut resources = mesh(&backend);
    resources.insert(ResourceType::Listener, resource::<Listener>("conflict", &yaml));
    let control_plane = ControlPlane::start(resources);
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""));
    let status = control_plane.wait_status("a refusal", |status| status.types.iter().any(|kind| kind.nack.is_some()));
    let nack = status.types.iter().find_map(|kind| kind.nack.as_ref()).expect("waited for");
    let expected = format!("listener conflict: cannot bind {address}: Address already in use");
    assert!(nack.message.starts_with(&expected), "{}", nack.message);
    assert_eq!(get(proxy.listener("web"), "/").text(), "one");
}

/// A gateway's listeners wait for their routes: by the time they could be bound, the answer has long been given.
#[test]
fn a_listener_whose_port_is_taken_is_refused_before_its_routes_are_there() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound");
    let routes = "rds: {route_config_name: later, config_source: {ads: {}, resource_api_version: V3}}";
    let yaml = http_listener_at(address, "conflict", routes, "");
    let mut control_plane =
        ControlPlane::start(set(vec![(ResourceType::Listener, resource::<Listener>("conflict", &yaml))]));
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""));
    let status = control_plane.wait_status("a refusal", |status| status.types.iter().any(|kind| kind.nack.is_some()));
    let nack = status.types.iter().find_map(|kind| kind.nack.as_ref()).expect("waited for");
    let expected = format!("listener conflict: cannot bind {address}: Address already in use");
    assert!(nack.message.starts_with(&expected), "{}", nack.message);

    // It is offered again, and serves when the port is free and the routes are there.
    drop(taken);
    let yaml = "{name: later, virtual_hosts: [{name: all, domains: ['*'], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: served}}}]}]}";
    control_plane.change(|set| set.insert(ResourceType::Route, resource::<RouteConfiguration>("later", yaml)));
    let served = || std::net::TcpStream::connect(address).is_ok() && get(address, "/").text() == "served";
    eventually("the listener", || served().then_some(()));
    control_plane.wait_status("acceptance", |status| status.types.iter().all(|kind| kind.nack.is_none()));
    drop(proxy);
}

#[test]
fn an_address_has_one_listener_and_passes_to_another_in_one_update() {
    let address =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let at = |name: &str| resource::<Listener>(name, &http_listener_at(address, name, &answering(name), ""));
    let mut control_plane = ControlPlane::start(set(vec![(ResourceType::Listener, at("old"))]));
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""));
    assert_eq!(get(proxy.listener("old"), "/").text(), "old");

    control_plane.change(|set| {
        set.remove(ResourceType::Listener, "old");
        set.insert(ResourceType::Listener, at("new"));
    });
    eventually("the new listener", || (get(address, "/").text() == "new").then_some(()));

    control_plane.change(|set| set.insert(ResourceType::Listener, at("third")));
    let status = control_plane.wait_status("a refusal", |status| status.types.iter().any(|kind| kind.nack.is_some()));
    let nack = status.types.iter().find_map(|kind| kind.nack.as_ref()).expect("waited for");
    let expected = format!("Listener \"third\": address: {address} is a duplicate address: listener \"new\" has it");
    assert!(nack.message.contains(&expected), "{}", nack.message);
    assert_eq!(get(address, "/").text(), "new");
}

#[test]
fn a_client_certificate_is_forwarded_where_the_listener_asks_for_it() {
    let ca = TestCa::new();
    let (server, client) = (ca.for_dns(&["web.test"]), ca.for_spiffe("spiffe://cluster.local/ns/default/sa/web"));
    let inline = |text: &str| format!("{{inline_string: {}}}", serde_json::to_string(text).expect("a string"));
    let tls = format!(
        "  transport_socket:\n    name: tls\n    typed_config:\n      \"@type\": \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext\n      \
         require_client_certificate: true\n      common_tls_context: {{tls_certificates: [{{certificate_chain: {}, \
         private_key: {}}}], validation_context: {{trusted_ca: {}}}}}\n",
        inline(&server.cert_pem),
        inline(&server.key_pem),
        inline(&ca.root_pem())
    );
    let backend = Backend::start(|request| Reply::text(request.header("x-forwarded-client-cert").unwrap_or("none")));
    let mut resources = mesh(&backend);
    for (name, details) in [("with", "{cert: true, uri: true}"), ("without", "{uri: true}")] {
        let manager = format!(
            "forward_client_cert_details: SANITIZE_SET\n      set_current_client_cert_details: {details}\n      {RDS}"
        );
        let yaml = http_listener(name, &manager, &tls);
        resources.insert(ResourceType::Listener, resource::<Listener>(name, &yaml));
    }
    let control_plane = ControlPlane::start(resources);
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""));
    let forwarded = |name: &str| {
        let tls = TlsClient {
            server_name: "web.test",
            root_pem: ca.root_pem(),
            identity: Some(&client),
            ..TlsClient::default()
        };
        let mut connection = tls.open(proxy.listener(name)).expect("a handshake");
        connection.get("test", "/", "").expect("an answer").text()
    };
    let with = forwarded("with");
    let cert = with.split(';').find_map(|part| part.strip_prefix("Cert=")).expect("the certificate").trim_matches('"');
    let pem = ["%0A\n", "%20 ", "%2B+", "%2F/", "%3D="]
        .iter()
        .fold(cert.to_owned(), |text, escape| text.replace(&escape[..3], &escape[3..]));
    assert_eq!(pem, client.cert_pem);
    let without = forwarded("without");
    assert!(
        without.starts_with("Hash=") && without.ends_with(";URI=spiffe://cluster.local/ns/default/sa/web"),
        "{without}"
    );
    assert!(!without.contains("Cert="), "{without}");
}

/// A server that notes the head of each stream and serves nothing.
struct NotingServer(std::sync::mpsc::Sender<MetadataMap>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for NotingServer {
    type StreamAggregatedResourcesStream = tokio_stream::Empty<Result<DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream = tokio_stream::Empty<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: tonic::Request<tonic::Streaming<DiscoveryRequest>>,
    ) -> Result<tonic::Response<Self::StreamAggregatedResourcesStream>, Status> {
        _ = self.0.send(request.metadata().clone());
        Err(Status::unavailable("it only notes"))
    }

    async fn delta_aggregated_resources(
        &self,
        request: tonic::Request<tonic::Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<tonic::Response<Self::DeltaAggregatedResourcesStream>, Status> {
        _ = self.0.send(request.metadata().clone());
        Err(Status::unavailable("it only notes"))
    }
}

/// Consul's agents know a proxy by a token there.
#[test]
fn the_aggregated_stream_has_the_metadata_of_the_bootstrap() {
    for api_type in ["GRPC", "DELTA_GRPC"] {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (sender, heads) = std::sync::mpsc::channel();
        let service = AggregatedDiscoveryServiceServer::new(NotingServer(sender));
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        runtime.spawn(tonic::transport::Server::builder().serve_with_incoming(service, incoming));
        let bootstrap = dynamic_bootstrap(address, api_type, "").replace(
            "{envoy_grpc: {cluster_name: xds-grpc}}",
            "{envoy_grpc: {cluster_name: xds-grpc}, initial_metadata: [{key: X-Token, value: secret}, {key: x-empty, value: ''}]}",
        );
        let _proxy = Proxy::start(&bootstrap);
        let head = heads.recv_timeout(PATIENCE).expect("a stream");
        let value = |name: &str| head.get(name).map(|value| value.to_str().expect("text").to_owned());
        assert_eq!(
            (value("x-token").as_deref(), value("x-empty").as_deref()),
            (Some("secret"), Some("")),
            "{api_type}"
        );
    }
}
