//! The admission webhooks, called by a real API server.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evenkeel_control::Options;
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::block_in_place;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::fixture::{Plane, options};

const MESH: &str = "apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: all, namespace: istio-system}\n\
                    spec: {concurrency: 3}\n";

/// A control plane with webhooks.
async fn plane() -> Plane {
    let [config, state] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    std::fs::write(config.path().join("mesh.yaml"), MESH).expect("a file");
    let webhook_address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let options = Options { webhook_address, ..options(config.path(), state.path()) };
    Plane::start_as(config, state, options).await
}

/// Has the API server call the webhooks for objects of a namespace.
fn register(api: &ApiServer, plane: &Plane, namespace: &str) {
    let address = plane.addresses.webhooks.expect("webhooks");
    let roots = std::fs::read(plane.state.path().join("ca-cert.pem")).expect("the roots");
    let roots = BASE64_STANDARD.encode(roots);
    let webhook = |kind: &str, path: &str, rules: &str| {
        format!(
            "apiVersion: admissionregistration.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {namespace}}}\nwebhooks:\n\
             - name: {path}.evenkeel.dev\n  admissionReviewVersions: [v1]\n  sideEffects: None\n  failurePolicy: Fail\n  \
             clientConfig: {{url: 'https://{address}/{path}', caBundle: {roots}}}\n  \
             namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}\n  rules: [{{{rules}}}]\n"
        )
    };
    let pods = "operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [pods]";
    let routes = "operations: [CREATE, UPDATE], apiGroups: [networking.istio.io], apiVersions: ['*'], resources: ['*']";
    let inject = webhook("MutatingWebhookConfiguration", "inject", pods) + "  reinvocationPolicy: IfNeeded\n";
    api.apply(&format!("{inject}---\n{}", webhook("ValidatingWebhookConfiguration", "validate", routes)));
}

fn pod(api: &ApiServer, namespace: &str, name: &str) -> Value {
    let json = api.kubectl(&["get", "pod", name, "--namespace", namespace, "-o", "json"]);
    serde_json::from_str(&json).expect("JSON")
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let all = pod["spec"][list].as_array().into_iter().flatten();
    all.map(|container| container["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_gives_pods_their_sidecars() {
    let api = block_in_place(ApiServer::shared);
    let plane = plane().await;
    let namespace = block_in_place(|| api.namespace("inject"));
    block_in_place(|| {
        register(api, &plane, &namespace);
        let of = |name: &str, metadata: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, {metadata}}}\nspec:\n  containers:\n  \
                 - {{name: web, image: none, readinessProbe: {{httpGet: {{path: /ok, port: 8080}}}}}}\n"
            )
        };
        api.apply(&of("web", "labels: {app: web}"));
        let web = pod(api, &namespace, "web");
        assert_eq!(names(&web, "initContainers"), ["istio-init", "istio-proxy"]);
        assert_eq!(names(&web, "containers"), ["web"]);
        let arguments = web["spec"]["initContainers"][1]["args"].to_string();
        assert!(arguments.contains(r#""--concurrency","3""#), "{arguments}");
        let path = &web["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"];
        assert_eq!(path, "/app-health/web/readyz");
        assert_eq!(web["metadata"]["labels"]["service.istio.io/canonical-name"], "web");
        api.apply(&of("out", "annotations: {sidecar.istio.io/inject: 'false'}"));
        assert_eq!(names(&pod(api, &namespace, "out"), "initContainers"), Vec::<String>::new());
    });
    let counted = |page: &str| {
        let lines = ["sidecar_injection_success_total ", "sidecar_injection_skip_total 1\n"];
        (lines.iter().all(|line| page.contains(line)) && !page.contains("sidecar_injection_success_total 0"))
            .then_some(())
    };
    plane.until("/metrics", counted).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_refuses_what_is_wrong_with_our_words() {
    let api = block_in_place(ApiServer::shared);
    let plane = plane().await;
    block_in_place(|| {
        api.install(CustomResources::Istio);
        let namespace = api.namespace("validate");
        register(api, &plane, &namespace);
        let file = plane.state.path().join("object.yaml");
        let write = |spec: &str| {
            let text = format!(
                "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web, namespace: {namespace}}}\nspec: {spec}\n"
            );
            std::fs::write(&file, text).expect("a file");
            file.to_str().expect("a path").to_owned()
        };
        let bad = "{hosts: [web], http: [{route: [{destination: {host: a}, weight: 0}, {destination: {host: b}, weight: 0}]}]}";
        let error = api.kubectl_error(&["apply", "-f", &write(bad)]);
        assert!(error.contains("validate.evenkeel.dev") && error.contains("spec.http[0]"), "{error}");
        api.kubectl(&["apply", "-f", &write("{hosts: [web], http: [{route: [{destination: {host: a}}]}]}")]);
    });
    let of = "group=\"networking.istio.io\",version=\"v1\",resource=\"virtualservices\"";
    let (passed, failed) =
        (format!("galley_validation_passed{{{of}}} "), format!("galley_validation_failed{{{of},reason="));
    plane.until("/metrics", |page| (page.contains(&passed) && page.contains(&failed)).then_some(())).await;
    plane.stop().await;
}

/// An API server whose webhook configuration names a Service offers no HTTP/2.
#[tokio::test(flavor = "multi_thread")]
async fn the_client_chooses_the_version_of_http() {
    let plane = plane().await;
    let address = plane.addresses.webhooks.expect("webhooks");
    let roots = std::fs::read(plane.state.path().join("ca-cert.pem")).expect("the roots");
    let check = async |offered: &[&str], expected: Option<&str>| {
        let chosen = negotiate(address, &roots, offered).await;
        assert_eq!(chosen.as_deref(), expected, "{offered:?}");
    };
    check(&["http/1.1"], Some("http/1.1")).await;
    check(&["h2"], Some("h2")).await;
    check(&["http/1.1", "h2"], Some("h2")).await;
    check(&[], None).await;
    plane.stop().await;
}

/// What the server's handshake chooses of these protocols.
async fn negotiate(address: SocketAddr, roots: &[u8], offered: &[&str]) -> Option<String> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(roots).map(|root| root.expect("a certificate")));
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let mut config = builder.with_root_certificates(store).with_no_client_auth();
    config.alpn_protocols = offered.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("istiod.istio-system.svc").expect("a name");
    let stream = TcpStream::connect(address).await.expect("a connection");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("a handshake");
    stream.get_ref().1.alpn_protocol().map(|chosen| String::from_utf8_lossy(chosen).into_owned())
}
