//! Requests with a header larger than an authorization server accepts: Evenkeel and Envoy deny a request that the server
//! cannot judge, unless the filter is configured to let it pass.

use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::{AuthzServer, Backend, Connection, free_ports};

use super::proxy::Program;
use super::web::{self, HTTP2, ROUTER, cluster, endpoint};

/// What the server reads. Go's HTTP server reads 4 KiB more.
const LIMIT: usize = 16 << 10;

const EXT_AUTHZ: &str = "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz";
const GRPC: &str = "transport_api_version: V3, grpc_service: { envoy_grpc: { cluster_name: authz }, timeout: 5s }";
const HTTP: &str = "http_service: { server_uri: { uri: http://a, cluster: authz-http, timeout: 5s } }, \
                    allowed_headers: { patterns: [ { exact: x-ext-authz }, { prefix: x-big } ] }";

/// Listeners, and the statuses of a request that is small, of one with a header over the limit, and of one with a header block
/// over it.
const WAYS: [(&str, &str, &str, [u16; 3]); 4] = [
    ("gRPC", GRPC, "", [200, 403, 403]),
    ("gRPC, open", GRPC, ", failure_mode_allow: true", [200, 200, 200]),
    ("HTTP", HTTP, "", [200, 431, 431]),
    // The server has answered, and has not said yes.
    ("HTTP, open", HTTP, ", failure_mode_allow: true", [200, 431, 431]),
];

#[test]
fn what_an_authorization_server_cannot_read_is_refused() {
    let mut server = AuthzServer::start_with(&["-permit", "-limit", &LIMIT.to_string()]);
    let backend = Backend::echo("a");
    let ports: [u16; 5] = free_ports();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let listeners: String = WAYS
        .iter()
        .zip(ports)
        .map(|((name, config, more, _), port)| {
            let filter = format!("{{ name: a, typed_config: {{ \"@type\": {EXT_AUTHZ}, {config}{more} }} }}");
            let route = web::one_host("              - { match: { prefix: / }, route: { cluster: a } }\n");
            let manager = format!("          http_filters: [ {filter}, {ROUTER} ]\n{route}");
            web::http_listener(&format!("\"{name}\""), port, &manager)
        })
        .collect();
    let clusters = [
        cluster("a", &endpoint(backend.address().port(), ""), ""),
        cluster("authz", &endpoint(server.grpc(), ""), HTTP2),
        cluster("authz-http", &endpoint(server.http(), ""), ""),
    ];
    std::fs::write(&file, web::scene(ports[4], &listeners, &clusters)).expect("a writable folder");
    let one = format!("x-big: {}\r\n", "a".repeat(2 * LIMIT));
    let many: String = (0..80).map(|number| format!("x-big-{number}: {}\r\n", "a".repeat(500))).collect();
    for program in [Program::Envoy, Program::Evenkeel] {
        let mut process = web::start(program, &file, ports[4], ports[0]);
        for ((name, .., expected), port) in WAYS.iter().zip(ports) {
            let asked = backend.requests().len();
            let status = |headers: &str| {
                let mut client = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("it accepts");
                let headers = format!("x-ext-authz: allow\r\n{headers}Connection: close\r\n");
                client.get("x.test", "/", &headers).expect("an answer").status
            };
            assert_eq!(["", &one, &many].map(status), *expected, "{program:?} over {name}");
            let passed = expected.iter().filter(|status| **status == 200).count();
            assert_eq!(backend.requests().len(), asked + passed, "{program:?} over {name}");
        }
        // It has read nothing but the small ones.
        assert_eq!(server.all_questions().len(), WAYS.len(), "{program:?}");
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    }
}
