//! `auto_sni` and `auto_san_validation`: the host that a request calls is the SNI of its connection, and the server's
//! certificate must have it. Evenkeel and Envoy do the same with one bootstrap file.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use evenkeel_testkit::tls::TlsServer;
use evenkeel_testkit::{Connection, Process, TestCa, eventually, free_port};

/// A server with this certificate, which answers each request with the SNI of the connection.
pub fn serve(server: TlsServer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let server = std::sync::Arc::new(server);
        for socket in listener.incoming().flatten() {
            let server = server.clone();
            std::thread::spawn(move || {
                let mut connection = server.accept(socket);
                let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = connection.read(&mut buffer) {
                    head.extend_from_slice(&buffer[..count]);
                    if head.ends_with(b"\r\n\r\n") {
                        head.clear();
                        let name = connection.server_name().unwrap_or("none").to_owned();
                        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len());
                        let _ = connection.write_all(response.as_bytes());
                    }
                }
            });
        }
    });
    address
}

#[test]
fn the_host_of_a_call_is_sent_and_verified() {
    let ca = TestCa::new();
    let address = serve(TlsServer::new(&ca.for_dns(&["a.test", "*.b.test"])));
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("root.pem"), ca.root_pem()).expect("a file");
    for program in [env!("CARGO_BIN_EXE_evenkeel").into(), evenkeel_testkit::envoy()] {
        let port = free_port();
        let text = BOOTSTRAP
            .replace("WEB_PORT", &port.to_string())
            .replace("SERVER_PORT", &address.port().to_string())
            .replace("FOLDER", &folder.path().display().to_string());
        let path = folder.path().join("bootstrap.yaml");
        std::fs::write(&path, text).expect("a file");
        let mut command = Command::new(&program);
        if program.ends_with("evenkeel") {
            command.arg("proxy")
        } else {
            command.args(["--use-dynamic-base-id", "-l", "warning"])
        };
        let process = Process::spawn(command.args(["--concurrency", "1", "-c"]).arg(&path));
        let web = SocketAddr::from(([127, 0, 0, 1], port));
        let mut client = eventually("the listener", || Connection::open(web).ok());
        let mut check = |host: &str, status: u16, body: &str| {
            let response = client.get(host, "/", "").unwrap_or_else(|error| panic!("{error}: {}", process.output()));
            assert_eq!(response.status, status, "{program:?} {host}: {}", response.text());
            assert!(response.text().contains(body), "{program:?} {host}: {}", response.text());
        };
        check("a.test", 200, "a.test");
        check("x.b.test:8443", 200, "x.b.test");
        check("a.test:443", 200, "a.test");
        check("y.b.test", 200, "y.b.test");
        check("x.b.test", 200, "x.b.test");
        // The certificate is for others.
        check("c.test", 503, "upstream connect error");
        check("127.0.0.1", 503, "upstream connect error");
        check("a.test", 200, "a.test");
    }
}

const BOOTSTRAP: &str = r#"
static_resources:
  listeners:
  - name: web
    address: {socket_address: {address: 127.0.0.1, port_value: WEB_PORT}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            name: web
            virtual_hosts: [{name: any, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: outside}}]}]
  clusters:
  - name: outside
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        upstream_http_protocol_options: {auto_sni: true, auto_san_validation: true}
        explicit_http_config: {http_protocol_options: {}}
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context: {validation_context: {trusted_ca: {filename: FOLDER/root.pem}}}
    load_assignment:
      cluster_name: outside
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: SERVER_PORT}}}}]}]
"#;
