//! What Istio's sidecars agree on in the TLS handshake, with the configuration as istiod sends it: over TCP they tell each other which
//! workload they are for, and requests offer HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use evenkeel_runtime_config::metadata_exchange::MetadataExchange;
use evenkeel_runtime_config::peer::Peer;
use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Backend, Connection, Reply, TcpEcho};

use crate::harness::{MeshTls, Proxy, static_bootstrap, static_cluster};
use crate::istio_stats::{assert_labels, line_of};

const NETWORK: &str = "type.googleapis.com/envoy.extensions.filters.network";
const STATS: &str = "{name: istio.stats, typed_config: {\"@type\": type.googleapis.com/stats.PluginConfig, \
                     tcp_reporting_duration: 0.1s}}";
/// As istiod writes it.
const EXCHANGE: &str = "{name: istio.metadata_exchange, typed_config: {\"@type\": type.googleapis.com/udpa.type.v1.TypedStruct, \
                        type_url: type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange, \
                        value: {enable_discovery: true, protocol: istio-peer-exchange}}}";
const ALPN: &str = "istio-peer-exchange, istio";

fn start(workload: &str, namespace: &str, listener: &str, cluster: String) -> Proxy {
    let node = format!(
        "node: {{id: sidecar~10.0.0.1~{workload}-0.{namespace}~{namespace}.svc, cluster: c, metadata: {{WORKLOAD_NAME: {workload}, \
         NAMESPACE: {namespace}, CLUSTER_ID: Kubernetes, LABELS: {{app: {workload}}}}}}}\n"
    );
    let proxy = Proxy::start(&(node + &static_bootstrap(listener, &[cluster])));
    proxy.wait_live();
    proxy
}

fn tcp_listener(direction: &str, filters: &[&str], chain: &str) -> String {
    let filters: String = filters.iter().map(|filter| format!("  - {filter}\n")).collect();
    format!(
        "name: l\ntraffic_direction: {direction}\naddress: {{socket_address: {{address: 127.0.7.2, port_value: 0}}}}\n\
         filter_chains:\n- filters:\n{filters}  - {{name: tcp, typed_config: {{\"@type\": {NETWORK}.tcp_proxy.v3.TcpProxy, stat_prefix: \
         l, cluster: next}}}}{chain}"
    )
}

/// The sidecar of the server.
fn server_side(tls: &MeshTls, application: SocketAddr) -> Proxy {
    let listener = tcp_listener("INBOUND", &[EXCHANGE, STATS], &tls.listener("istio-peer-exchange, h2, http/1.1"));
    start("server", "default", &listener, static_cluster("next", application, ""))
}

/// The sidecar of the client, whose workload is said to be in this namespace.
fn client_side(tls: &MeshTls, namespace: &str, server: &Proxy) -> Proxy {
    let extra = format!("filters: [{EXCHANGE}], {}", tls.cluster(ALPN));
    let cluster = static_cluster("next", server.listener("l"), &extra);
    start("client", namespace, &tcp_listener("OUTBOUND", &[STATS], ""), cluster)
}

#[test]
fn both_sides_name_the_other_ones_workload() {
    let check = |namespace: &str, source: &str| {
        let (tls, echo) = (MeshTls::new(), TcpEcho::start());
        let server = server_side(&tls, echo.address());
        let client = client_side(&tls, namespace, &server);
        let mut socket = Connection::socket(client.listener("l")).expect("it accepts");
        for _ in 0..3 {
            socket.write_all(b"12345").expect("the proxy reads");
            let mut echoed = [0; 5];
            socket.read_exact(&mut echoed).expect("an echo");
            assert_eq!(&echoed, b"12345");
        }
        let opened = "istio_tcp_connections_opened_total";
        let common = [("connection_security_policy", "mutual_tls"), ("source_principal", MeshTls::CLIENT)];
        let line = line_of(&server, opened, "1");
        assert_labels(&line, &common);
        assert_labels(&line, &[("source_workload", source), ("destination_workload", "server")]);
        let names = [("source_workload", "client"), ("destination_workload", "server"), ("destination_app", "server")];
        assert_labels(&line_of(&client, opened, "1"), &names);
        drop(socket);
        // The application's bytes alone.
        for proxy in [&server, &client] {
            line_of(proxy, "istio_tcp_connections_closed_total", "1");
            line_of(proxy, "istio_tcp_received_bytes_total", "15");
            line_of(proxy, "istio_tcp_sent_bytes_total", "15");
        }
    };
    check("default", "client");
    // The certificate is of another namespace.
    check("elsewhere", "unknown");
}

#[test]
fn a_server_may_speak_first() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(b"hello").expect("sent");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the client ends");
        rest
    });
    let tls = MeshTls::new();
    let server = server_side(&tls, address);
    let client = client_side(&tls, "default", &server);
    let mut socket = Connection::socket(client.listener("l")).expect("it accepts");
    let mut greeting = [0; 5];
    socket.read_exact(&mut greeting).expect("the server speaks");
    assert_eq!(&greeting, b"hello");
    line_of(&server, "istio_tcp_connections_opened_total", "1");
    assert_labels(&line_of(&client, "istio_tcp_connections_opened_total", "1"), &[("destination_workload", "server")]);
    socket.write_all(b"bye").expect("the proxy reads");
    socket.shutdown(std::net::Shutdown::Write).expect("open");
    assert_eq!(serving.join().expect("it ends"), b"bye");
}

/// The bytes are those of Istio's proxy: the server answers the first bytes with who it is, whatever they are.
#[test]
fn whoever_agrees_on_the_protocol_gets_the_servers_message() {
    let (tls, echo) = (MeshTls::new(), TcpEcho::start());
    let server = server_side(&tls, echo.address());
    let own = MetadataExchange::new("istio-peer-exchange", &Peer::default().headers("sidecar~10.0.0.9~a.b~c"));
    let check = |alpn: &[&str], sent: &[u8], echoed: &[u8], exchanges: bool| {
        let client = TlsClient {
            server_name: MeshTls::SERVER_NAME,
            root_pem: tls.ca.root_pem(),
            identity: Some(&tls.client),
            alpn,
        };
        let mut connection = client.open(server.listener("l")).expect("it accepts");
        connection.send(sent).expect("sent");
        if exchanges {
            let prefix = connection.read_exact(8).expect("a prefix");
            assert_eq!(prefix[..4], [0x3d, 0x23, 0x04, 0x67]);
            let length = u32::from_be_bytes(prefix[4..].try_into().expect("four bytes"));
            let message = connection.read_exact(length as usize).expect("a message");
            assert!(String::from_utf8_lossy(&message).contains("WORKLOAD_NAME"));
        }
        let received = connection.read_exact(echoed.len()).expect("an echo");
        assert_eq!(received, echoed, "{alpn:?} {sent:?}");
    };
    let exchange = ["istio-peer-exchange", "istio"];
    check(&exchange, &[&own.own[..], b"hello"].concat(), b"hello", true);
    check(&exchange, b"something else", b"something else", true);
    check(&exchange, b"\x3d\x23\x04\x67\0\0\0\x02\xff\xff!", b"\xff\xff!", true);
    check(&exchange, b"\x3d\x23\x04\x67\xff\xff\xff\xff!", b"!", true);
    check(&["istio"], b"something else", b"something else", false);
}

/// The server's proxy selects a filter chain by what the client's offers.
#[test]
fn requests_offer_http_as_the_filter_says() {
    let override_of = |version: &str, first: &str| {
        format!("{{upstream_protocol: {version}, alpn_override: [{first}, istio, \"http/1.1\"]}}")
    };
    let filter = format!(
        "{{name: istio.alpn, typed_config: {{\"@type\": \
         type.googleapis.com/istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig, alpn_override: [{}, {}, {}]}}}}, ",
        override_of("HTTP10", "\"istio-http/1.0\""),
        override_of("HTTP11", "\"istio-http/1.1\""),
        override_of("HTTP2", "istio-h2")
    );
    let manager = |filters: &str| {
        format!(
            "{{name: h, typed_config: {{\"@type\": {NETWORK}.http_connection_manager.v3.HttpConnectionManager, stat_prefix: h, \
             route_config: {{name: r, virtual_hosts: [{{name: v, domains: [\"*\"], routes: [{{match: {{prefix: /}}, route: {{cluster: \
             next}}}}]}}]}}, http_filters: [{filters}{{name: r, typed_config: {{\"@type\": \
             type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]}}}}"
        )
    };
    let listener = |manager: &str, chain: &str| {
        format!(
            "name: l\naddress: {{socket_address: {{address: 127.0.7.3, port_value: 0}}}}\nlistener_filters: [{{name: t, typed_config: \
             {{\"@type\": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}}}}]\n\
             filter_chains:\n- filters: [{manager}]{chain}"
        )
    };
    let (tls, backend) = (MeshTls::new(), Backend::start(|_| Reply::text("hello")));
    let chain = tls.listener("h2, http/1.1") + "  filter_chain_match: {application_protocols: [\"istio-http/1.1\"]}";
    let server =
        start("server", "default", &listener(&manager(""), &chain), static_cluster("next", backend.address(), ""));
    let check = |filters: &str, extra: &str, expected: u16| {
        let extra = format!("{extra}{}", tls.cluster(ALPN));
        let cluster = static_cluster("next", server.listener("l"), &extra);
        let client = start("client", "default", &listener(&manager(filters), ""), cluster);
        let mut connection = Connection::open(client.listener("l")).expect("it accepts");
        for _ in 0..2 {
            let response = connection.get("web", "/", "").expect("an answer");
            assert_eq!(response.status, expected, "{filters} {extra}");
        }
    };
    check(&filter, "", 200);
    check("", "", 503);
    check(&filter, "metadata: {filter_metadata: {istio: {alpn_override: \"false\"}}}, ", 503);
}
