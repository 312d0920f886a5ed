//! The API server that tests run against.

use std::time::Duration;

use evenkeel_testkit::kubernetes::{ApiServer, CustomResources, TokenOptions};

#[test]
fn an_api_server_serves_objects_tokens_and_custom_resources_over_a_restart() {
    let server = ApiServer::start();
    let namespace = server.namespace("shop");
    server.service_account(&namespace, "web");
    let token = server.token(&namespace, "web", &TokenOptions { audience: Some("istio-ca"), ..Default::default() });
    assert_eq!(token.split('.').count(), 3, "{token}");
    let kubeconfig = server.kubeconfig_of(&namespace, "web");
    // A service account that nobody has granted anything is nobody.
    let allowed = ["auth", "can-i", "list", "pods", "--kubeconfig", kubeconfig.to_str().expect("UTF-8")];
    assert!(server.kubectl_error(&allowed).is_empty());
    server.install(CustomResources::GatewayApi);
    server.apply(&format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {{name: {namespace}}}, \
          spec: {{controllerName: example.com/gateway}}}}"
    ));
    server.restart();
    assert!(server.kubectl(&["get", "gatewayclasses"]).contains(&namespace));
    server.pause();
    let error = server.kubectl_error(&["get", "namespaces", "--request-timeout=1s"]);
    assert!(error.contains("imeout") || error.contains("deadline"), "{error}");
    server.resume();
    assert!(server.kubectl(&["get", "namespaces"]).contains(&namespace));
}

#[test]
fn what_a_test_has_started_ends_with_it() {
    let server = ApiServer::start();
    let folder = server.kubeconfig().parent().expect("a folder").to_owned();
    let address = server.address();
    drop(server);
    assert!(!folder.exists(), "{}", folder.display());
    let again = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1));
    assert!(again.is_err(), "somebody still listens on {address}");
}
