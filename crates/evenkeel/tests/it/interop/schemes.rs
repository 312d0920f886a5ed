//! `:scheme` of requests over HTTP/2: the client's connection decides, or the upstream's with `match_upstream`.

use std::net::Ipv4Addr;

use evenkeel_testkit::{Connection, free_ports};

use super::proxy::Program;
use super::web::{self, HTTP2, ROUTER, endpoint};

fn listener(name: &str, port: u16, more: &str, route: &str) -> String {
    let manager = format!("{more}          http_filters: [ {ROUTER} ]\n{}", web::one_host(route));
    web::http_listener(name, port, &manager)
}

fn bootstrap([as_sent, matched, back, admin]: [u16; 4]) -> String {
    let forward = "              - { match: { prefix: / }, route: { cluster: back } }\n";
    let listeners = [
        listener("as-sent", as_sent, "", forward),
        listener("matched", matched, "          scheme_header_transformation: { match_upstream: true }\n", forward),
    ];
    web::scene(admin, &listeners.concat(), &[web::cluster("back", &endpoint(back, ""), HTTP2)])
}

/// Tells what it was asked over HTTP/2.
fn server(port: u16, admin: u16) -> String {
    let route = "              - { match: { prefix: / }, direct_response: { status: 200 }, response_headers_to_add: [ { header: { key: x-scheme, \
                value: \"%REQ(:SCHEME)%\" } }, { header: { key: x-proto, value: \"%REQ(x-forwarded-proto)%\" } } ] }\n";
    web::scene(admin, &listener("back", port, "", route), &[])
}

fn story(program: Program) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, back) = (folder.path().join("bootstrap.yaml"), folder.path().join("server.yaml"));
    let ports @ [as_sent, matched, server_port, admin] = free_ports::<4>();
    let [server_admin] = free_ports::<1>();
    std::fs::write(&back, server(server_port, server_admin)).expect("a writable folder");
    // Evenkeel's proxy would show the forwarded scheme.
    let _server = web::start(Program::Envoy, &back, server_admin, server_port);
    std::fs::write(&file, bootstrap(ports)).expect("a writable folder");
    let _process = web::start(program, &file, admin, as_sent);
    let mut lines = Vec::new();
    for port in [as_sent, matched] {
        for proto in ["", "x-forwarded-proto: https\r\n", "x-forwarded-proto: http\r\n"] {
            let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("a connection");
            let answer = client.get("a.test", "/", proto).expect("an answer");
            lines.push(format!("{proto:?} {:?} {:?}", answer.header("x-scheme"), answer.header("x-proto")));
        }
    }
    lines
}

#[test]
fn evenkeel_and_envoy_tell_the_same_scheme() {
    let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(story);
    assert!(envoy[1].contains("Some(\"https\") Some(\"https\")") && envoy[4].contains("Some(\"http\")"), "{envoy:#?}");
    assert_eq!(evenkeel, envoy);
}
