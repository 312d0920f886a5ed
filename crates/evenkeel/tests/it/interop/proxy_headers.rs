//! Headers that a connection manager handles as a whole: their letter case, the client's port, and Envoy's own ones.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, free_port, free_ports};

use super::proxy::Program;
use super::web::{self, cluster, endpoint};

const PRESERVE: &str = "http_protocol_options: { header_key_format: { stateful_formatter: { name: p, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.http.header_formatters.preserve_case.v3.PreserveCaseFormatterConfig } } } }";
const OPTIONS: &str = "typed_extension_protocol_options: { envoy.extensions.upstreams.http.v3.HttpProtocolOptions: { \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const MIXED: &str = "GET / HTTP/1.1\r\nHOST: x.test\r\nX-MiXed: 1\r\nx-lower: 2\r\nX-Lower: 3\r\nX-Request-ID: abc\r\nUser-Agent: me\r\nConnection: close\r\n\r\n";
const BODY: &str =
    "POST / HTTP/1.1\r\nHost: x.test\r\nTransfer-ENCODING: chunked\r\nConnection: close\r\n\r\n2\r\nab\r\n0\r\n\r\n";
const LENGTH: &str = "POST / HTTP/1.1\r\nhost: x.test\r\nContent-LENGTH: 2\r\nConnection: close\r\n\r\nab";

/// What the connection manager has, whether the router adds no headers, what the cluster has, and requests.
const SCENES: &[(&str, bool, &str, &[&str])] = &[
    ("P", false, "P", &[MIXED, BODY, LENGTH]),
    ("P", false, "", &[MIXED, BODY, LENGTH]),
    ("", false, "P", &[MIXED, BODY]),
    ("", false, "", &[MIXED]),
    (
        "use_remote_address: true, append_x_forwarded_port: true",
        false,
        "",
        &[PORT, "GET / HTTP/1.1\r\nhost: x.test\r\nconnection: close\r\n\r\n"],
    ),
    ("use_remote_address: true, append_x_forwarded_port: true, xff_num_trusted_hops: 1", false, "", &[PORT, MIXED]),
    ("append_x_forwarded_port: true", false, "", &[PORT, MIXED]),
    ("", true, "", ROUTED),
    ("", false, "", ROUTED),
];
const PORT: &str =
    "GET / HTTP/1.1\r\nhost: x.test\r\nx-forwarded-port: 81\r\nx-forwarded-for: 1.2.3.4\r\nconnection: close\r\n\r\n";
const ROUTED: &[&str] = &[
    "GET /timed HTTP/1.1\r\nhost: x.test\r\nconnection: close\r\n\r\n",
    "GET /rewritten HTTP/1.1\r\nhost: x.test\r\nconnection: close\r\n\r\n",
    "GET /host HTTP/1.1\r\nhost: x.test\r\nx-forwarded-host: a\r\nconnection: close\r\n\r\n",
    "GET /full HTTP/1.1\r\nhost: x.test\r\nconnection: close\r\n\r\n",
    "GET /nobody HTTP/1.1\r\nhost: x.test\r\nconnection: close\r\n\r\n",
];

#[test]
fn evenkeel_and_envoy_treat_headers_alike() {
    let backend = echo();
    let mut seen = String::new();
    for (manager, suppressed, options, requests) in SCENES {
        let [port, admin] = free_ports::<2>();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("bootstrap.yaml");
        let scene = scene(backend.port(), [port, admin], (&manager.replace('P', PRESERVE), *suppressed), options);
        std::fs::write(&file, scene).expect("a writable folder");
        let run = |program| {
            let mut process = web::start(program, &file, admin, port);
            let answers: String = requests.iter().map(|request| exchange(port, request)).collect();
            assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
            answers.replace(&port.to_string(), "PORT")
        };
        let (envoy, evenkeel) = (run(Program::Envoy), run(Program::Evenkeel));
        let difference = first_difference(&envoy, &evenkeel);
        let scene = format!("{manager} {suppressed} {options}");
        assert!(
            difference.is_none(),
            "{scene}: - Envoy, + Evenkeel\n{}\n{envoy}\n{evenkeel}",
            difference.unwrap_or_default()
        );
        seen.push_str(&envoy);
    }
    for header in [
        "HOST: ",
        "X-MiXed: ",
        "x-mixed: ",
        "X-Request-ID: ",
        "Transfer-ENCODING: ",
        "X-BackEnd: ",
        "x-backend: ",
        "x-forwarded-port: PORT",
        "x-envoy-overloaded: ",
        "x-envoy-original-path: ",
    ] {
        assert!(seen.contains(header), "{header} in no answer:\n{seen}");
    }
}

/// How trailers are spelled, by the formats of the connection manager and of the cluster: capitals are kept of headers only.
#[test]
fn evenkeel_and_envoy_spell_trailers_alike() {
    let backend = Backend::start(|request| {
        let names = |fields: &[(String, String)]| fields.iter().map(|(name, _)| format!("{name} ")).collect::<String>();
        let own = |name: &str| vec![(name.to_owned(), "1".to_owned())];
        let seen = format!("{}| {}", names(&request.headers), names(&request.trailers));
        Reply::Trailed(own("X-BackEnd"), seen.into_bytes(), own("X-BackEnd-TraiLer"))
    });
    for format in ["", PRESERVE, "http_protocol_options: { header_key_format: { proper_case_words: {} } }"] {
        let options = match format {
            "" => "http_protocol_options: { enable_trailers: true }".to_owned(),
            format => format.replacen("{ ", "{ enable_trailers: true, ", 1),
        };
        let [port, admin] = free_ports::<2>();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("bootstrap.yaml");
        let routes = web::one_host("              - { match: { prefix: / }, route: { cluster: a } }\n");
        let manager = format!("          http_filters: [ {} ]\n          {options}\n{routes}", web::ROUTER);
        // Evenkeel's clusters have no `proper_case_words`.
        let of_cluster =
            if format.contains("proper") { "http_protocol_options: { enable_trailers: true }" } else { &options };
        let own = format!("{OPTIONS}, explicit_http_config: {{ {of_cluster} }} }} }},");
        let clusters = [cluster("a", &endpoint(backend.address().port(), ""), &own)];
        let text = web::scene(admin, &web::http_listener("l", port, &manager), &clusters);
        std::fs::write(&file, text).expect("a writable folder");
        let run = |program| {
            let mut process = web::start(program, &file, admin, port);
            let mut client =
                Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("the listener accepts");
            let request = "POST / HTTP/1.1\r\nhost: x.test\r\nX-AsKed: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-TraiLer: 1\r\n\r\n";
            client.send(request).expect("it takes the request");
            let answer = client.response().expect("an answer");
            let mut headers: Vec<_> = answer.headers.iter().map(|(name, _)| name.clone()).collect();
            headers.sort();
            assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
            let (asked, trailers) =
                answer.text().split_once('|').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("two lists");
            let mut asked: Vec<_> = asked.split(' ').map(str::to_owned).collect();
            asked.sort();
            format!("{asked:?} {trailers}\n{headers:?} {:?}\n", answer.trailers)
        };
        let (envoy, evenkeel) = (run(Program::Envoy), run(Program::Evenkeel));
        assert_eq!(evenkeel, envoy, "{format}");
        assert!(
            format != PRESERVE
                || envoy.contains("X-AsKed") && envoy.contains("x-trailer") && envoy.contains("\"x-backend-trailer\""),
            "{envoy}"
        );
    }
}

fn scene(backend: u16, [port, admin]: [u16; 2], (manager, suppressed): (&str, bool), options: &str) -> String {
    let fields = manager
        .split(", ")
        .filter(|_| !manager.starts_with("http_protocol"))
        .chain(manager.starts_with("http_protocol").then_some(manager));
    let fields: String = fields.filter(|field| !field.is_empty()).map(|field| format!("          {field}\n")).collect();
    let router = web::ROUTER.replace("Router }", &format!("Router, suppress_envoy_headers: {suppressed} }}"));
    let routes = [
        "{ match: { path: /timed }, route: { cluster: a, timeout: 7s } }",
        "{ match: { path: /rewritten }, route: { cluster: a, prefix_rewrite: /other } }",
        "{ match: { path: /host }, route: { cluster: a, host_rewrite_literal: b.test, append_x_forwarded_host: true } }",
        "{ match: { path: /full }, route: { cluster: full } }",
        "{ match: { path: /nobody }, route: { cluster: nobody } }",
        "{ match: { prefix: / }, route: { cluster: a } }",
    ];
    let routes: String = routes.iter().map(|route| format!("              - {route}\n")).collect();
    let manager = format!("          http_filters: [ {router} ]\n{fields}{}", web::one_host(&routes));
    let options = match options {
        "" => String::new(),
        _ => format!("{OPTIONS}, explicit_http_config: {{ {PRESERVE} }} }} }},"),
    };
    let full =
        "circuit_breakers: { thresholds: [ { max_requests: 0, max_pending_requests: 0, max_connections: 0 } ] },";
    let clusters = [
        cluster("a", &endpoint(backend, ""), &options),
        cluster("full", &endpoint(backend, ""), full),
        cluster("nobody", &endpoint(free_port(), ""), ""),
    ];
    web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
}

/// The lines of the answer and of the request that the backend has got, in order of their names.
fn exchange(port: u16, request: &str) -> String {
    let mut client = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("the listener accepts");
    client.send(request).expect("it takes the request");
    let answer = String::from_utf8(client.read_to_end().expect("an answer")).expect("text");
    let parts = answer.split("\r\n\r\n").map(|head| {
        let (first, rest) = head.split_once("\r\n").unwrap_or((head, ""));
        let mut lines: Vec<String> = rest.split("\r\n").map(masked).collect();
        lines.sort();
        format!("{first}\n{}\n", lines.join("\n"))
    });
    format!("> {}\n{}", request.lines().next().unwrap_or_default(), parts.collect::<String>())
}

/// Ids, dates and times differ from run to run.
fn masked(line: &str) -> String {
    let name = line.split(':').next().unwrap_or_default();
    let varies =
        ["x-request-id", "date", "x-envoy-upstream-service-time", "x-forwarded-for", "x-envoy-external-address"];
    if varies.contains(&&*name.to_ascii_lowercase()) && !line.ends_with(" abc") {
        format!("{name}: *")
    } else {
        line.to_owned()
    }
}

/// Answers with the request's head, byte for byte.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read(&mut byte) {
                        Ok(1) => head.push(byte[0]),
                        _ => return,
                    }
                }
                let length = head.len();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nX-BackEnd: 1\r\nServer: mine\r\nContent-LENGTH: {length}\r\nConnection: close\r\n\r\n"
                );
                let _ = stream.write_all(&[answer.as_bytes(), &head].concat());
            });
        }
    });
    address
}
