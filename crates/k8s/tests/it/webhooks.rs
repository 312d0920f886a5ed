//! The webhook configurations of a real API server get the roots of the control plane, and it calls the webhooks then.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evenkeel_base::{Rank, SourceId};
use evenkeel_control::source::feed::ObjectFeed;
use evenkeel_control::{ControlPlane, Options};
use evenkeel_k8s::replica::{Replica, ReplicaOptions};
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};

use crate::fixture::{admin, until};
use crate::replica::options;

/// Both configurations of a revision, as the chart has them, but with the address of a process of this test.
fn configurations(address: SocketAddr, revision: &str) -> String {
    let webhook = |kind: &str, path: &str, rules: &str| {
        format!(
            "apiVersion: admissionregistration.k8s.io/v1\nkind: {kind}\n\
             metadata: {{name: hook-{revision}, labels: {{istio.io/rev: {revision}}}}}\nwebhooks:\n\
             - name: {path}.evenkeel.dev\n  admissionReviewVersions: [v1]\n  sideEffects: None\n  timeoutSeconds: 5\n  \
             clientConfig: {{url: 'https://{address}/{path}'}}\n  rules: [{{{rules}}}]\n"
        )
    };
    let pods = "operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [pods]";
    let routes = "operations: [CREATE, UPDATE], apiGroups: [networking.istio.io], apiVersions: ['*'], resources: ['*']";
    let mutating = webhook("MutatingWebhookConfiguration", "inject", pods) + "  failurePolicy: Ignore\n";
    let validating = webhook("ValidatingWebhookConfiguration", "validate", routes) + "  failurePolicy: Ignore\n";
    format!("{mutating}---\n{validating}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_leader_writes_the_roots_and_lets_validation_refuse_once_it_works() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    let (system, shop) = (server.namespace("system"), server.namespace("shop"));
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("config")).expect("a directory");
    let (_feed, source) = ObjectFeed::new(SourceId::new("kubernetes", Rank(200)));
    let this = ReplicaOptions { name: "istiod-0".to_owned(), ..ReplicaOptions::from_env(|_| None, &system) };
    let (replica, platform) = Replica::start(admin(&server).await, source, &this);
    let webhook_address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let options = Options { webhook_address, ..options(directory.path()) };
    let plane = ControlPlane::start_on(&options, platform).await.expect("a control plane");
    let address = plane.addresses.webhooks.expect("webhooks");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(plane.serve(async move { drop(stopped.await) }));

    server.apply(&format!("{}---\n{}", configurations(address, "default"), configurations(address, "other")));
    let field = |kind: &str, revision: &str, path: &str| {
        let (name, output) = (format!("hook-{revision}"), format!("jsonpath={{{path}}}"));
        server.kubectl(&["get", kind, &name, "-o", &output])
    };
    let validating = "validatingwebhookconfiguration";
    until(async || field(validating, "default", ".webhooks[0].failurePolicy") == "Fail").await;
    let roots = std::fs::read(directory.path().join("state/ca-cert.pem")).expect("the roots");
    let roots = BASE64_STANDARD.encode(roots);
    let mutating = "mutatingwebhookconfiguration";
    assert_eq!(field(mutating, "default", ".webhooks[0].clientConfig.caBundle"), roots);
    assert_eq!(field(mutating, "default", ".webhooks[0].failurePolicy"), "Ignore", "nobody asked for another one");
    assert_eq!(field(mutating, "other", ".webhooks[0].clientConfig.caBundle"), "", "another revision is another's");

    // The API server calls the webhook with these roots.
    server.apply(&crate::fixture::pod(&shop, "web-0", "default"));
    let inits = ["get", "pod", "web-0", "-n", &shop, "-o", "jsonpath={.spec.initContainers[*].name}"];
    assert_eq!(server.kubectl(&inits), "istio-init istio-proxy");

    // What is as it should be is not written again; what others have changed is.
    let version = field(validating, "default", ".metadata.resourceVersion");
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(field(validating, "default", ".metadata.resourceVersion"), version);
    let other = r#"[{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]"#;
    server.kubectl(&["patch", validating, "hook-default", "--type=json", "-p", other]);
    until(async || field(validating, "default", ".webhooks[0].clientConfig.caBundle") == roots).await;
    assert_eq!(field(validating, "default", ".webhooks[0].failurePolicy"), "Fail");
    drop(stop);
    tokio::time::timeout(Duration::from_secs(20), serving).await.expect("in time").expect("no panic").expect("an end");
    replica.end().await;
}
