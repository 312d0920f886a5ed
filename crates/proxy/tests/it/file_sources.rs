//! Resources from files: listeners, clusters, routes, endpoints and secrets; files that are replaced, and files with mistakes.

use std::net::SocketAddr;
use std::path::Path;

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{TestCa, eventually};
use tempfile::TempDir;

use crate::harness::{MeshTls, Proxy, answering, get, http_listener, static_bootstrap};

/// A file with these resources, each in YAML with its type; it takes the place of the one before, as `mv` does.
fn write(folder: &TempDir, file: &str, resources: &[(&str, &str)]) {
    let item = |(kind, yaml): &(&str, &str)| {
        let indented: String = yaml.trim().lines().map(|line| format!("  {line}\n")).collect();
        format!("- \"@type\": type.googleapis.com/{kind}\n{indented}")
    };
    replace(
        folder,
        file,
        &format!("version_info: \"1\"\nresources:\n{}", resources.iter().map(item).collect::<String>()),
    );
}

fn replace(folder: &TempDir, file: &str, text: &str) {
    let new = folder.path().join("new");
    std::fs::write(&new, text).expect("a writable folder");
    std::fs::rename(new, folder.path().join(file)).expect("a file that is moved");
}

const LISTENER: &str = "envoy.config.listener.v3.Listener";
const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
const ROUTE: &str = "envoy.config.route.v3.RouteConfiguration";
const SECRET: &str = "envoy.extensions.transport_sockets.tls.v3.Secret";
const ENDPOINTS: &str = "envoy.config.endpoint.v3.ClusterLoadAssignment";

fn source(folder: &Path, file: &str) -> String {
    format!(
        "{{resource_api_version: V3, path_config_source: {{path: {}/{file}, watched_directory: {{path: {}}}}}}}",
        folder.display(),
        folder.display()
    )
}

fn bootstrap(folder: &TempDir) -> String {
    let of = |file: &str| source(folder.path(), file);
    format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\n\
         dynamic_resources: {{lds_config: {}, cds_config: {}}}\n",
        of("lds.yaml"),
        of("cds.yaml")
    )
}

/// The endpoint of a cluster.
fn assignment(cluster: &str, address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!(
        "cluster_name: {cluster}, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {ip}, \
         port_value: {port}}}}}}}}}]}}]"
    )
}

fn cluster_of(name: &str, address: SocketAddr) -> String {
    format!("name: {name}\ntype: STATIC\nconnect_timeout: 5s\nload_assignment: {{{}}}\n", assignment(name, address))
}

fn body(address: SocketAddr) -> String {
    get(address, "/").text()
}

/// A second proxy that answers with a text, for a cluster to lead to.
fn answering_proxy(text: &str) -> (Proxy, SocketAddr) {
    let proxy = Proxy::start(&static_bootstrap(&http_listener(text, &answering(text), ""), &[]));
    let address = proxy.listener(text);
    (proxy, address)
}

#[test]
fn replaced_files_take_effect_and_ones_with_mistakes_do_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(&folder, "cds.yaml", &[]);
    write(&folder, "lds.yaml", &[(LISTENER, &http_listener("web", &answering("first"), ""))]);
    let proxy = Proxy::start(&bootstrap(&folder));
    proxy.wait_live();
    let address = proxy.listener("web");
    assert_eq!(body(address), "first");

    write(&folder, "lds.yaml", &[(LISTENER, &http_listener("web", &answering("second"), ""))]);
    eventually("the second file", || (body(proxy.listener("web")) == "second").then_some(()));

    // No YAML, no such field, no such resource: what was read before stays, and the admin page says why.
    let unknown = http_listener("web", "nonsense: {}", "");
    replace(&folder, "lds.yaml", "resources: [unclosed");
    let page = |part: &str| {
        eventually(part, || proxy.get("/xds").text().contains(part).then_some(()));
        assert_eq!(body(proxy.listener("web")), "second");
    };
    page("lds.yaml:2:1: error");
    write(&folder, "lds.yaml", &[(LISTENER, &unknown)]);
    page("nonsense");
    std::fs::remove_file(folder.path().join("lds.yaml")).expect("a file");
    page("No such file");

    write(&folder, "lds.yaml", &[(LISTENER, &http_listener("web", &answering("third"), ""))]);
    eventually("the third file", || (body(proxy.listener("web")) == "third").then_some(()));
    write(&folder, "lds.yaml", &[]);
    eventually("no listener", || (!proxy.get("/listeners").text().contains("web::")).then_some(()));
}

#[test]
fn routes_and_endpoints_come_from_files_of_their_own() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_one, first) = answering_proxy("one");
    let (_two, second) = answering_proxy("two");
    let of = |file: &str| source(folder.path(), file);
    let rds = format!("rds: {{route_config_name: main, config_source: {}}}", of("rds.yaml"));
    write(&folder, "lds.yaml", &[(LISTENER, &http_listener("web", &rds, ""))]);
    let eds =
        format!("name: web\ntype: EDS\nconnect_timeout: 5s\neds_cluster_config: {{eds_config: {}}}\n", of("eds.yaml"));
    write(&folder, "cds.yaml", &[(CLUSTER, &eds), (CLUSTER, &cluster_of("other", second))]);
    let routes = |cluster: &str| {
        format!(
            "name: main\nvirtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}]}}]\n"
        )
    };
    write(&folder, "rds.yaml", &[(ROUTE, &routes("web"))]);
    let endpoints = |address: SocketAddr| assignment("web", address).replace(", endpoints", "\nendpoints");
    write(&folder, "eds.yaml", &[(ENDPOINTS, &endpoints(first))]);
    let proxy = Proxy::start(&bootstrap(&folder));
    proxy.wait_live();
    let address = proxy.listener("web");
    eventually("the first endpoint", || (body(address) == "one").then_some(()));
    write(&folder, "eds.yaml", &[(ENDPOINTS, &endpoints(second))]);
    eventually("the second endpoint", || (body(address) == "two").then_some(()));
    write(&folder, "eds.yaml", &[(ENDPOINTS, &endpoints(first))]);
    eventually("the first endpoint again", || (body(address) == "one").then_some(()));
    write(&folder, "rds.yaml", &[(ROUTE, &routes("other"))]);
    eventually("the other cluster", || (body(address) == "two").then_some(()));
}

#[test]
fn a_certificate_comes_from_a_file_and_is_replaced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let issue = |ca: &TestCa| {
        ca.for_server(MeshTls::SERVER, MeshTls::SERVER_NAME).write(folder.path(), "server");
        let pem = |name: &str| {
            let text = std::fs::read_to_string(folder.path().join(name)).expect("a PEM file");
            serde_json::to_string(&text).expect("a text")
        };
        let (chain, key) = (pem("server-cert.pem"), pem("server-key.pem"));
        let certificate =
            format!("certificate_chain: {{inline_string: {chain}}}, private_key: {{inline_string: {key}}}");
        write(&folder, "sds.yaml", &[(SECRET, &format!("name: server\ntls_certificate: {{{certificate}}}\n"))]);
    };
    let source = source(folder.path(), "sds.yaml");
    let context = format!(
        "\n  transport_socket: {{name: tls, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, common_tls_context: \
         {{tls_certificate_sds_secret_configs: [{{name: server, sds_config: {source}}}]}}}}}}\n"
    );
    let (first, second) = (TestCa::new(), TestCa::new());
    issue(&first);
    let proxy = Proxy::start(&static_bootstrap(&http_listener("web", &answering("secret"), &context), &[]));
    proxy.wait_live();
    let address = proxy.listener("web");
    let answered = |ca: &TestCa| {
        let (server_name, alpn): (&str, &[&str]) = (MeshTls::SERVER_NAME, &["http/1.1"]);
        let client = TlsClient { server_name, root_pem: ca.root_pem(), identity: None, alpn };
        let response = client.open(address).ok()?.get("test", "/", "").ok()?;
        (response.text() == "secret").then_some(())
    };
    eventually("the first certificate", || answered(&first));
    assert!(answered(&second).is_none());
    issue(&second);
    eventually("the second certificate", || answered(&second));
    assert!(answered(&first).is_none());
}
