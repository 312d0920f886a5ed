//! A control plane with a cluster behind it: real tokens get certificates of their own identity and no other, statuses are in
//! the objects, and state is in the namespace.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::{Rank, SourceId};
use evenkeel_control::source::feed::ObjectFeed;
use evenkeel_control::webhooks::InjectionOptions;
use evenkeel_control::{ControlPlane, Options, Platform, SignerOptions};
use evenkeel_k8s::replica::{self, Replica, ReplicaOptions};
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources, TokenOptions};
use evenkeel_xds::istio::auth::IstioCertificateRequest;
use evenkeel_xds::istio::auth::istio_certificate_service_client::IstioCertificateServiceClient;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::fixture::{admin, config, pod, until};

/// Options for ports of the system's choice.
pub fn options(directory: &std::path::Path) -> Options {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Options {
        config: vec![directory.join("config")],
        state: directory.join("state"),
        trust_domain: None,
        ca_certs: None,
        max_certificate_ttl_s: None,
        signer: SignerOptions::default(),
        grpc_address: any,
        secure_grpc_address: any,
        http_address: any,
        webhook_address: None,
        injection: InjectionOptions::default(),
        allow_plaintext_from_network: false,
        require_running_pod: false,
        leave_out_refused: false,
        on_one_machine: false,
        no_confinement: true,
        jwks: None,
        server_names: Vec::new(),
    }
}

async fn channel(address: SocketAddr, root: &str) -> Channel {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root.as_bytes()).expect("a certificate")).expect("a root");
    let provider = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider();
    let mut tls = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(tls));
    let connect = tower::service_fn(move |_: http::Uri| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("istiod.istio-system.svc").expect("a name");
            Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    Endpoint::from_static("http://control").connect_with_connector(connect).await.expect("a connection")
}

/// Requests a certificate for an identity.
async fn request(channel: &Channel, identity: &str, token: &str) -> Result<Vec<String>, Status> {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(identity.try_into().expect("a name"))];
    params.distinguished_name = DistinguishedName::new();
    let csr = params.serialize_request(&key).expect("a request").pem().expect("PEM");
    let mut request = Request::new(IstioCertificateRequest { csr, validity_duration: 3600, metadata: None });
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("metadata"));
    Ok(IstioCertificateServiceClient::new(channel.clone()).create_certificate(request).await?.into_inner().cert_chain)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_token_of_the_cluster_gets_its_own_certificate_and_statuses_and_state_are_in_the_cluster() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    let (system, shop) = (server.namespace("system"), server.namespace("shop"));
    server.service_account(&shop, "web");
    server.apply(&pod(&shop, "web-0", "web"));
    server.apply(&format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web, namespace: {shop}}}\n\
         spec: {{hosts: [web], gateways: [absent], http: [{{route: [{{destination: {{host: web}}}}]}}]}}\n"
    ));
    let route = server.kubectl(&["get", "virtualservice", "web", "--namespace", &shop, "--output=json"]);
    let (feed, source) = ObjectFeed::new(SourceId::new("kubernetes", Rank(200)));
    feed.put(serde_json::from_str(&route).expect("JSON"), 0);

    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("config")).expect("a directory");
    let whoami = ReplicaOptions { name: "istiod-0".to_owned(), ..ReplicaOptions::from_env(|_| None, &system) };
    let (replica, platform) = Replica::start(admin(&server).await, source, &whoami);
    std::fs::create_dir(directory.path().join("state")).expect("a directory");
    let store = replica::store(config(&server.kubeconfig()).await, &whoami, &directory.path().join("state"));
    let store = store.expect("a store");
    let platform = Platform { store: Some(store.clone()), ..platform };
    let plane = ControlPlane::start_on(&options(directory.path()), platform).await.expect("a control plane");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let address = plane.addresses.secure_grpc;
    let serving = tokio::spawn(plane.serve(async move { drop(stopped.await) }));

    let root = store.text("ca-cert.pem").expect("no error").expect("the root is in the cluster");
    let channel = channel(address, &root).await;
    let token = |audience, pod| server.token(&shop, "web", &TokenOptions { audience, pod, ..Default::default() });
    let good = token(Some("istio-ca"), Some("web-0"));
    let own = format!("spiffe://cluster.local/ns/{shop}/sa/web");
    let chain = request(&channel, &own, &good).await.expect("a certificate");
    assert_eq!(chain.len(), 2, "leaf and root");
    let refused = async |identity: &str, token: &str| request(&channel, identity, token).await.expect_err("a refusal");
    let other = refused(&format!("spiffe://cluster.local/ns/{system}/sa/web"), &good).await;
    assert_eq!(other.code(), Code::PermissionDenied, "{other}");
    let for_others = refused(&own, &token(Some("vault"), None)).await;
    assert_eq!(for_others.code(), Code::Unauthenticated, "{for_others}");
    assert!(for_others.message().contains("its audience is not `istio-ca`"), "{for_others}");

    let status = || server.kubectl(&["get", "virtualservice", "web", "--namespace", &shop, "-o", "jsonpath={.status}"]);
    until(async || status().contains("validationMessages")).await;
    assert!(status().contains("IST0101"), "{}", status());

    // Sidecars find the roots in their namespace.
    let roots = || {
        let template = r"jsonpath={.items[*].data.root-cert\.pem}";
        let selected = "--field-selector=metadata.name=istio-ca-root-cert";
        server.kubectl(&["get", "configmap", "--namespace", &shop, selected, "-o", template])
    };
    feed.put(serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": shop}}), 0);
    until(async || roots().trim() == root.trim()).await;

    // While the API server is gone, only who was known a moment ago gets a certificate.
    let fresh = token(Some("istio-ca"), Some("web-0"));
    server.kill();
    request(&channel, &own, &good).await.expect("its verdict is known");
    let unknown = refused(&own, &fresh).await;
    assert_eq!(unknown.code(), Code::Unavailable, "{unknown}");
    server.restart();
    until(async || request(&channel, &own, &fresh).await.is_ok()).await;
    drop(stop);
    tokio::time::timeout(Duration::from_secs(20), serving).await.expect("in time").expect("no panic").expect("an end");
    replica.end().await;
}
