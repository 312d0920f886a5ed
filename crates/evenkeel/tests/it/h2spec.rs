//! `h2spec` against `evenkeel proxy`: prior knowledge on a plain port, ALPN on one with TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use evenkeel_testkit::{Backend, Process, TestCa, assert_h2spec_passes, free_ports};

const LISTENER: &str = r#"
  - name: {name}
    address: { socket_address: { address: 127.0.0.1, port_value: {port} } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          codec_type: {codec}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [ { match: { prefix: "/" }, route: { cluster: backend } } ]
"#;

const TLS: &str = r#"
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [h2, http/1.1]
            tls_certificates: [ { certificate_chain: { filename: "{dir}/web-cert.pem" }, private_key: { filename: "{dir}/web-key.pem" } } ]
"#;

#[test]
fn passes_over_plaintext_and_tls() {
    let backend = Backend::echo("backend");
    let folder = tempfile::tempdir().expect("a temporary folder");
    TestCa::new().for_dns(&["web.test"]).write(folder.path(), "web");
    let [plain, tls] = free_ports();
    let listener = |name: &str, port: u16, codec: &str| {
        LISTENER.replace("{name}", name).replace("{port}", &port.to_string()).replace("{codec}", codec)
    };
    let bootstrap = format!(
        "static_resources:\n  listeners:{}{}{}  clusters:\n  - name: backend\n    load_assignment: {{ cluster_name: backend, \
         endpoints: [ {{ lb_endpoints: [ {{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} \
         }} }} }} }} ] }} ] }}\n",
        // A preface that is none would otherwise be a request of HTTP/1, and be answered as one.
        listener("plain", plain, "HTTP2"),
        listener("tls", tls, "AUTO"),
        TLS.replace("{dir}", &folder.path().display().to_string()),
        backend.address().port(),
    );
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap).expect("a writable folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let mut proxy = Process::spawn(command.args(["proxy", "--concurrency", "1", "-l", "error", "-c"]).arg(&file));
    for port in [plain, tls] {
        proxy.wait_for_port(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    assert_h2spec_passes(plain, false);
    assert_h2spec_passes(tls, true);
    assert!(proxy.exited().is_none(), "the proxy ended:\n{}", proxy.output());
}
