//! Stock Envoy as a client, over both protocols: it accepts its whole configuration.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_ca::Authority;
use evenkeel_testkit::Process;
use evenkeel_xds::pb::envoy::config::core::v3::{DataSource, Node, data_source::Specifier};
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, TlsCertificate, secret,
};
use evenkeel_xds::pb::envoy::service::secret::v3::secret_discovery_service_server::SecretDiscoveryServiceServer;
use evenkeel_xds::server::{AdsService, Session, Source};
use evenkeel_xds::{Resource, ResourceSet, ResourceType};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;

use crate::fixture::{Plane, pod, service};

/// Envoy's listeners take ports 15001 and 15006 of this machine: one Envoy at a time.
static PORTS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Serves the secrets of one workload, as its agent does.
struct Secrets(watch::Sender<Arc<ResourceSet>>);

impl Source for Secrets {
    async fn connect(&self, _: &Node, _: &tonic::Extensions) -> Result<Session, tonic::Status> {
        Ok(Session::new(self.0.subscribe()))
    }
}

/// Starts an SDS server with a certificate of the control plane's authority; returns its port.
async fn serve_secrets(plane: &Plane) -> u16 {
    let now = SystemTime::now();
    let authority = Authority::open(plane.state.path(), "cluster.local", now).expect("the authority");
    let made = authority.server_certificate(&["client"], Duration::from_secs(3600), now).expect("a certificate");
    let inline = |text: &str| {
        Some(DataSource { specifier: Some(Specifier::InlineString(text.to_owned())), ..Default::default() })
    };
    let certificate = secret::Type::TlsCertificate(TlsCertificate {
        certificate_chain: inline(&made.chain_pem),
        private_key: inline(&made.key_pem),
        ..Default::default()
    });
    let roots = secret::Type::ValidationContext(CertificateValidationContext {
        trusted_ca: inline(authority.trust_bundle_pem()),
        ..Default::default()
    });
    let mut set = ResourceSet::new(1);
    for (name, kind) in [("default", certificate), ("ROOTCA", roots)] {
        let secret = Secret { name: name.to_owned(), r#type: Some(kind) };
        set.insert(ResourceType::Secret, Arc::new(Resource::from_message(name, &secret)));
    }
    let source = Secrets(watch::Sender::new(Arc::new(set)));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let service = SecretDiscoveryServiceServer::new(AdsService::new(Arc::new(source)));
    let server = tonic::transport::Server::builder();
    tokio::spawn(server.serve_with_incoming(service, TcpListenerStream::new(listener)));
    port
}

fn bootstrap(api_type: &str, xds: u16, sds: u16) -> Value {
    let cluster = |name: &str, port: u16| {
        json!({
            "name": name,
            "type": "STATIC",
            "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            }},
            "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [{ "endpoint": {
                "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } },
            }}]}]},
        })
    };
    json!({
        "node": {
            "id": "sidecar~10.244.0.2~a-0.shop~shop.svc.cluster.local",
            "cluster": "a",
            "metadata": { "NAMESPACE": "shop", "SERVICE_ACCOUNT": "a" },
        },
        "dynamic_resources": {
            "ads_config": {
                "api_type": api_type,
                "transport_api_version": "V3",
                "grpc_services": [{ "envoy_grpc": { "cluster_name": "xds-grpc" } }],
                "set_node_on_first_message_only": true,
            },
            "cds_config": { "ads": {}, "resource_api_version": "V3" },
            "lds_config": { "ads": {}, "resource_api_version": "V3" },
        },
        "static_resources": { "clusters": [cluster("xds-grpc", xds), cluster("sds-grpc", sds)] },
    })
}

/// Services of every protocol, policies, routes.
fn mesh() -> String {
    let documents = [
        service("a"),
        service("b"),
        pod("a", "10.244.0.2"),
        pod("b", "10.244.0.3"),
        "apiVersion: v1\nkind: Service\nmetadata: {name: mixed, namespace: shop}\n\
         spec: {selector: {app: a}, ports: [{name: tcp, port: 7001}, {name: any, port: 7002}]}\n"
            .to_owned(),
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: shop}\n\
         spec: {rules: [{from: [{source: {namespaces: [shop]}}], to: [{operation: {methods: [GET]}}]}]}\n"
            .to_owned(),
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: b, namespace: shop}\n\
         spec: {hosts: [b], http: [{match: [{uri: {prefix: /x}}], redirect: {uri: /y}}, {route: [{destination: {host: b}}]}]}\n"
            .to_owned(),
    ];
    documents.join("---\n")
}

#[tokio::test]
async fn envoy_takes_everything_and_follows_edits() {
    let _ports = PORTS.lock().await;
    let plane = Plane::start(&[("mesh.yaml", mesh())]).await;
    let sds = serve_secrets(&plane).await;
    for api_type in ["DELTA_GRPC", "GRPC"] {
        let file = plane.state.path().join(format!("{api_type}.json"));
        let text = bootstrap(api_type, plane.addresses.grpc.port(), sds).to_string();
        std::fs::write(&file, text).expect("a bootstrap file");
        let mut command = Command::new(evenkeel_testkit::envoy());
        command.args(["--concurrency", "1", "-l", "warning", "--use-dynamic-base-id", "-c"]).arg(&file);
        let envoy = Process::spawn(&mut command);

        let live = async || {
            if let Err(page) = plane.look_for("/debug/syncz", settled).await {
                panic!("{api_type}: Envoy is not live: {page}\n{}", envoy.output());
            }
        };
        live().await;
        let before = plane.json("/debug/syncz").await["generation"].clone();
        let name = api_type.to_lowercase().replace('_', "-");
        plane.write(&format!("{name}.yaml"), &service(&format!("new-{name}")));
        plane
            .until("/debug/syncz", |page| {
                let page: Value = serde_json::from_str(page).ok()?;
                (page["generation"] != before).then_some(())
            })
            .await;
        live().await;
        assert_eq!(plane.rejects().await, 0, "{}", envoy.output());
        drop(envoy);
        plane.until("/metrics", |page| page.contains("pilot_xds 0\n").then_some(())).await;
    }
}

/// Envoy reconnects to a control plane that has the same configuration except for one deleted service.
#[tokio::test]
async fn envoy_resumes_and_lets_go_of_what_is_gone() {
    let _ports = PORTS.lock().await;
    let plane = Plane::start(&[("mesh.yaml", mesh()), ("gone.yaml", service("gone"))]).await;
    let sds = serve_secrets(&plane).await;
    let file = plane.state.path().join("resume.json");
    std::fs::write(&file, bootstrap("DELTA_GRPC", plane.addresses.grpc.port(), sds).to_string()).expect("a file");
    let mut command = Command::new(evenkeel_testkit::envoy());
    command.args(["--concurrency", "1", "-l", "warning", "--use-dynamic-base-id", "-c"]).arg(&file);
    let _envoy = Process::spawn(&mut command);
    plane.until("/debug/syncz", settled).await;
    let sent = |page: &str, kind: &str| -> Option<u64> {
        let page: Value = serde_json::from_str(page).ok()?;
        let types = page["proxies"].get(0)?["types"].as_array()?.clone();
        types.iter().find(|status| status["type"] == kind)?["resources_sent"].as_u64()
    };
    let first = plane.page("/debug/syncz").await;
    assert!(sent(&first, "CDS") >= Some(4), "{first}");

    let grpc = plane.addresses.grpc;
    let (config, state) = plane.stop().await;
    std::fs::remove_file(config.path().join("gone.yaml")).expect("it was there");
    let plane = Plane::start_on(config, state, grpc).await;
    plane.until("/debug/syncz", settled).await;
    let again = plane.page("/debug/syncz").await;
    assert_eq!(sent(&again, "CDS"), Some(0), "{again}");
    assert_eq!(plane.rejects().await, 0);
    let metrics = plane.page("/metrics").await;
    // The one that is gone was taken away, not sent.
    assert!(metrics.contains("pilot_xds_pushes{type=\"cds\"}"), "{metrics}");
}

/// Whether the only proxy has subscribed to clusters, endpoints, listeners and routes, and has accepted all of the present
/// generation.
fn settled(page: &str) -> Option<()> {
    let page: Value = serde_json::from_str(page).ok()?;
    let proxy = page["proxies"].as_array()?.first()?;
    let types: Vec<&str> = proxy["types"].as_array()?.iter().filter_map(|t| t["type"].as_str()).collect();
    let complete = ["CDS", "EDS", "LDS", "RDS"].iter().all(|kind| types.contains(kind));
    (complete && proxy["live"] == true).then_some(())
}
