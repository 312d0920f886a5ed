//! The PROXY protocol in front of a listener, and towards an upstream.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use evenkeel_testkit::{Connection, eventually};

use crate::harness::{Proxy, http_listener, stat, static_bootstrap, static_cluster};

/// Answers with the client's address as the proxy knows it.
fn start(filter: &str) -> Proxy {
    let listener = http_listener(
        "http",
        "use_remote_address: true\n      stat_prefix: http\n      route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], \
         routes: [{match: {prefix: /}, direct_response: {status: 200}, response_headers_to_add: [{header: {key: client, \
         value: \"%DOWNSTREAM_REMOTE_ADDRESS% to %DOWNSTREAM_LOCAL_ADDRESS% by %DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%\"}}]}]}]}",
        &format!(
            r#"listener_filters_timeout: 15s
listener_filters:
- name: proxy_protocol
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol
    {filter}
"#
        ),
    )
    .replacen("      stat_prefix: http\n", "", 1);
    let proxy = Proxy::start(&static_bootstrap(&listener, &[]));
    proxy.wait_live();
    proxy
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

fn ask(proxy: &Proxy, pieces: &[&[u8]]) -> String {
    let mut client: TcpStream = Connection::socket(proxy.listener("http")).expect("it accepts");
    for piece in pieces {
        client.write_all(piece).expect("the proxy reads");
    }
    let mut answer = Vec::new();
    // A refusal may come as a reset, for not all was read.
    let _ = client.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn check(proxy: &Proxy, header: &[u8], expected: &str) {
    let whole = ask(proxy, &[&[header, REQUEST].concat()]);
    let bytes: Vec<&[u8]> = header.chunks(1).chain([REQUEST]).collect();
    for answer in [whole, ask(proxy, &bytes)] {
        match expected {
            "" => assert_eq!(answer, "", "{header:?}"),
            expected => assert!(answer.contains(&format!("client: {expected}\r\n")), "{header:?}: {answer}"),
        }
    }
}

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.2 49152 443\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc6\x33\x64\x02\xc0\0\x01\xbb";
const CLIENT: &str = "192.0.2.7:49152 to 198.51.100.2:443 by 127.0.0.1";

#[test]
fn a_header_names_the_client() {
    let proxy = start("");
    check(&proxy, V1, CLIENT);
    check(&proxy, V2, CLIENT);
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    assert!(ask(&proxy, &[local, REQUEST]).contains("client: 127.0.0.1:"), "the socket's own address");
    check(&proxy, b"", "");
    check(&proxy, b"PROXY TCP4 192.0.2.7\r\n", "");
    let seen = |name: &str| stat(&proxy, name).first().copied();
    eventually("statistics", || {
        let all = ["versions.v1.found", "versions.v2.found", "not_found_disallowed", "versions.v1.error"];
        let seen: Vec<_> = all.iter().map(|name| seen(&format!("proxy_proto.{name}"))).collect();
        (seen == [Some(2), Some(3), Some(2), Some(2)]).then_some(())
    });
}

#[test]
fn a_header_may_be_optional_and_versions_may_be_refused() {
    let proxy =
        start("allow_requests_without_proxy_protocol: true\n    disallowed_versions: [V1]\n    stat_prefix: edge");
    check(&proxy, V2, CLIENT);
    check(&proxy, V1, "");
    assert!(ask(&proxy, &[REQUEST]).contains("client: 127.0.0.1:"));
    eventually("statistics", || {
        let all = ["not_found_allowed", "versions.v1.disallowed", "versions.v2.found"];
        let seen: Vec<_> = all.iter().map(|name| stat(&proxy, &format!("proxy_proto.edge.{name}"))).collect();
        (seen == [[1], [2], [2]]).then_some(())
    });
}

#[test]
fn an_upstream_is_told_of_the_client() {
    let check = |filter: &str, version: &str, sent: &[u8], expected: &[u8]| {
        let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listener = format!(
            r#"
name: http
address: {{socket_address: {{address: 127.0.2.3, port_value: 0}}}}
listener_filters:
- name: proxy_protocol
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol
    pass_through_tlvs: {{{filter}}}
filter_chains:
- filters:
  - name: envoy.filters.network.tcp_proxy
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: tcp
      cluster: backend
"#
        );
        let socket = format!(
            r#"transport_socket: {{name: proxy_protocol, typed_config: {{
               "@type": type.googleapis.com/envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport,
               config: {{version: {version}, pass_through_tlvs: {{match_type: INCLUDE_ALL}}, added_tlvs: [{{type: 5, value: aWQ=}}]}},
               transport_socket: {{name: raw, typed_config: {{
               "@type": type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer}}}}}}}}"#
        )
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
        let cluster = static_cluster("backend", upstream.local_addr().expect("bound"), &socket);
        let proxy = Proxy::start(&static_bootstrap(&listener, &[cluster]));
        proxy.wait_live();
        let mut client = Connection::socket(proxy.listener("http")).expect("it accepts");
        client.write_all(&[sent, b"hello"].concat()).expect("the proxy reads");
        let (mut server, _) = upstream.accept().expect("the proxy connects");
        server.set_read_timeout(client.read_timeout().expect("set")).expect("a socket");
        let expected = [expected, b"hello"].concat();
        let mut seen = vec![0; expected.len()];
        server.read_exact(&mut seen).expect("the proxy writes");
        assert_eq!(seen, expected, "{:?}", String::from_utf8_lossy(&seen));
    };
    let v2 = |tlvs: &[u8]| {
        let mut header = [V2, tlvs].concat();
        header[15] += u8::try_from(tlvs.len()).expect("short");
        header
    };
    check("match_type: INCLUDE_ALL", "V1", V2, V1);
    check("match_type: INCLUDE_ALL", "V2", V1, &v2(b"\x05\0\x02id"));
    let (vpc, added) = (&b"\xea\0\x03vpc"[..], &b"\x05\0\x02id"[..]);
    check("match_type: INCLUDE_ALL", "V2", &v2(vpc), &v2(&[added, vpc].concat()));
    check("match_type: INCLUDE, tlv_type: [234]", "V2", &v2(vpc), &v2(&[added, vpc].concat()));
    check("match_type: INCLUDE, tlv_type: [235]", "V2", &v2(vpc), &v2(added));
}

#[test]
fn each_request_reaches_such_an_upstream_behind_a_header_of_its_own() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let socket = "transport_socket: {name: proxy_protocol, typed_config: {\"@type\": \
                  type.googleapis.com/envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport, \
                  config: {version: V1}, transport_socket: {name: raw, typed_config: {\"@type\": \
                  type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer}}}}";
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                  /}, route: {cluster: backend}}]}]}";
    let cluster = static_cluster("backend", upstream.local_addr().expect("bound"), socket);
    let proxy = Proxy::start(&static_bootstrap(&http_listener("naming", routes, ""), &[cluster]));
    proxy.wait_live();
    let listener = proxy.listener("naming");
    for path in ["/one", "/two"] {
        let mut client = Connection::socket(listener).expect("it accepts");
        write!(client, "GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").expect("the proxy reads");
        let (mut server, _) = upstream.accept().expect("a connection for this request");
        server.set_read_timeout(client.read_timeout().expect("set")).expect("a socket");
        let (from, to) = (client.local_addr().expect("open"), listener);
        let header = format!("PROXY TCP4 {} {} {} {}\r\nGET {path} ", from.ip(), to.ip(), from.port(), to.port());
        let mut seen = vec![0; header.len()];
        server.read_exact(&mut seen).expect("the proxy writes");
        assert_eq!(String::from_utf8_lossy(&seen), header);
        server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").expect("the proxy reads");
        let mut answer = [0; 15];
        client.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
    }
}
