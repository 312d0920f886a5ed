//! Values that the header mutation filter formats: all command operators, in heads and trailers of requests and responses, as the
//! filter's own edits, as a route's, and in a cluster. Evenkeel and Envoy write the same.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, Request, free_ports};

use super::proxy::Program;
use super::web::{self, ROUTER, endpoint};

const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters.http";

/// Values that are the same in each run.
const EXACT: &[&str] = &[
    "%PROTOCOL% %%",
    "%REQ(X-ASK)%",
    "%REQ(X-ASK):3%",
    "%REQ(X-NONE?:PATH)%",
    "%REQ(:SCHEME)%://%REQ(:AUTHORITY)%",
    "%RESP(:STATUS)%",
    "%RESP(X-OWN)%",
    "%TRAILER(X-OWN-T)%",
    "%RESPONSE_CODE%",
    "%RESPONSE_CODE_DETAILS%",
    "%RESPONSE_FLAGS% %RESPONSE_FLAGS_LONG%",
    "%CONNECTION_TERMINATION_DETAILS%",
    "%BYTES_RECEIVED%",
    "%BYTES_SENT%",
    "%UPSTREAM_CLUSTER% %UPSTREAM_CLUSTER_RAW%",
    "%UPSTREAM_HOST%",
    "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
    "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "%ROUTE_NAME%",
    "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%",
    "%DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_LOCAL_PORT%",
    "%DOWNSTREAM_TLS_VERSION% %DOWNSTREAM_PEER_URI_SAN% %REQUESTED_SERVER_NAME%",
    "%FILTER_CHAIN_NAME%",
    "%DYNAMIC_METADATA(envoy.filters.http.rbac)%",
    "%DYNAMIC_METADATA(envoy.filters.http.rbac:shadow_engine_result)%",
    "%FILTER_STATE(none)%|%VIRTUAL_CLUSTER_NAME%|%LOCAL_REPLY_BODY%",
    "%GRPC_STATUS%",
    "%START_TIME(%Y)%",
    "%ENVIRONMENT(HOME)% %HOSTNAME%",
];

/// Values with numbers that differ between runs.
const LOOSE: &[&str] = &[
    "%START_TIME%",
    "%DURATION%",
    "%REQUEST_DURATION%",
    "%RESPONSE_DURATION%",
    "%COMMON_DURATION(DS_RX_BEG:US_RX_BEG:us)%",
    "%COMMON_DURATION(DS_RX_BEG:DS_RX_END:us)%",
    "%CONNECTION_ID%",
    "%DOWNSTREAM_REMOTE_ADDRESS%",
];

/// As [`LOOSE`], for responses only: Evenkeel calls a cluster's filters when it is connected, and sends what the client sends in one go
/// with the head later than Envoy does.
const OF_RESPONSES: &[&str] = &["%UPSTREAM_REMOTE_ADDRESS%", "%UPSTREAM_LOCAL_ADDRESS%"];

/// What only Evenkeel tells the filters of a cluster: the status that is about to be sent, and behind the response the response's head.
const ONLY_EVENKEEL: &[&str] = &["x-up-rs-8:", "x-up-rs-t-5:", "x-up-rs-t-6:"];

/// Edits of every part of a message by `who`: a field for each format.
fn mutations(who: &str) -> String {
    let edits = |place: &str| {
        let exact = EXACT.iter().enumerate().map(|(number, format)| (format!("x-{who}-{place}-{number}"), format));
        let loose = LOOSE.iter().chain(OF_RESPONSES.iter().filter(|_| place.starts_with("rs")));
        let loose = loose.enumerate().map(|(number, format)| (format!("x-{who}-{place}-loose-{number}"), format));
        let items = exact.chain(loose).map(|(name, format)| {
            format!(
                "{{ append: {{ header: {{ key: {name}, value: \"{format}\" }}, append_action: OVERWRITE_IF_EXISTS_OR_ADD }} }}"
            )
        });
        items.collect::<Vec<_>>().join(", ")
    };
    format!(
        "mutations: {{ request_mutations: [ {} ], request_trailers_mutations: [ {} ], response_mutations: [ {} ], \
         response_trailers_mutations: [ {} ], query_parameter_mutations: [ {{ append: {{ record: {{ key: {who}, value: \
         \"%ROUTE_NAME%-%UPSTREAM_CLUSTER%-%DOWNSTREAM_LOCAL_PORT%\" }} }} }} ] }}",
        edits("rq"),
        edits("rq-t"),
        edits("rs"),
        edits("rs-t"),
    )
}

fn filter(name: &str) -> String {
    let config = format!("\"@type\": {FILTERS}.header_mutation.v3.HeaderMutation, {}", mutations(name));
    format!("{{ name: {name}, typed_config: {{ {config} }} }}")
}

/// A cluster over HTTP/1 with trailers, and with these filters.
fn cluster(name: &str, port: u16, filters: &str) -> String {
    let filters = match filters {
        "" => String::new(),
        filters => format!(
            ", http_filters: [ {filters}, {{ name: codec, typed_config: {{ \"@type\": {FILTERS}.upstream_codec.v3.UpstreamCodec }} }} ]"
        ),
    };
    let options = format!(
        "typed_extension_protocol_options: {{ envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{ \"@type\": \
         type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {{ \
         http_protocol_options: {{ enable_trailers: true }} }}{filters} }} }},"
    );
    web::cluster(name, &endpoint(port, ""), &options)
}

fn bootstrap(backend: u16, closed: u16, port: u16, admin: u16) -> String {
    let told = format!(
        "typed_per_filter_config: {{ down: {{ \"@type\": {FILTERS}.header_mutation.v3.HeaderMutationPerRoute, {} }} }}",
        mutations("route")
    );
    let routes = [
        "name: plain, match: { path: /plain }, route: { cluster: a }".to_owned(),
        format!("name: told, match: {{ path: /told }}, route: {{ cluster: a }}, {told}"),
        "name: up, match: { path: /up }, route: { cluster: up }".to_owned(),
        format!(
            "name: reply, match: {{ path: /reply }}, direct_response: {{ status: 403, body: {{ inline_string: denied }} }}, {told}"
        ),
        "name: closed, match: { path: /closed }, route: { cluster: closed }".to_owned(),
    ];
    let routes: String = routes.iter().map(|route| format!("              - {{ {route} }}\n")).collect();
    let shadow = format!(
        "{{ name: envoy.filters.http.rbac, typed_config: {{ \"@type\": {FILTERS}.rbac.v3.RBAC, shadow_rules: {{ action: DENY, policies: \
         {{ all: {{ permissions: [ {{ any: true }} ], principals: [ {{ any: true }} ] }} }} }} }} }}"
    );
    let clusters = [cluster("a", backend, ""), cluster("up", backend, &filter("up")), cluster("closed", closed, "")];
    let manager = format!(
        "          http_protocol_options: {{ enable_trailers: true }}\n          http_filters: [ {shadow}, {}, {ROUTER} ]\n{}",
        filter("down"),
        web::one_host(&routes)
    );
    web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
}

/// Tells in its body what edits have made of the request.
fn tell(request: &Request) -> Reply {
    let fields = request.headers.iter().chain(&request.trailers);
    let text = format!("{}\n{}", request.target, lines(fields));
    let own = |name: &str| vec![(name.to_owned(), "mine".to_owned())];
    Reply::Trailed(own("x-own"), text.into_bytes(), own("x-own-t"))
}

/// Fields that edits have set, in the order of their names; numbers that differ between runs are left out.
fn lines<'f>(fields: impl Iterator<Item = &'f (String, String)>) -> String {
    let mut lines: Vec<_> = fields
        .filter(|(name, _)| ["x-down-", "x-up-", "x-route-"].iter().any(|prefix| name.starts_with(prefix)))
        .filter(|(name, _)| !ONLY_EVENKEEL.contains(&&*format!("{name}:")))
        .map(|(name, value)| {
            if name.contains("-loose-") {
                format!("{name}: {}\n", without_numbers(value))
            } else {
                format!("{name}: {value}\n")
            }
        })
        .collect();
    lines.sort();
    lines.concat()
}

fn without_numbers(value: &str) -> String {
    let mut text = String::new();
    for letter in value.chars() {
        match letter.is_ascii_digit() {
            true if text.ends_with('#') => {}
            true => text.push('#'),
            false => text.push(letter),
        }
    }
    text
}

#[test]
fn evenkeel_and_envoy_format_the_same_header_values() {
    let backend = Backend::start(tell);
    // Nobody listens there, and nobody else can.
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("bound").port();
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(backend.address().port(), closed, port, admin)).expect("a writable folder");
    let run = |program| {
        let mut process = web::start(program, &file, admin, port);
        let mut seen = String::new();
        for path in ["/plain?a=1", "/told", "/up", "/reply", "/closed"] {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let mut client = Connection::open(address).expect("the listener accepts");
            // Evenkeel does not read the body of a request that it cannot forward.
            let body = match path {
                "/closed" => "\r\n",
                _ => "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-t: 1\r\n\r\n",
            };
            client
                .send(format!("POST {path} HTTP/1.1\r\nHost: x.test\r\nX-Ask: asked\r\n{body}"))
                .expect("an open connection");
            let answer = client.response().expect("an answer");
            let fields = answer.headers.iter().chain(&answer.trailers);
            seen += &format!("{path}: {}\n{}{}\n", answer.status, answer.text(), lines(fields));
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let envoy = run(Program::Envoy);
    let evenkeel = run(Program::Evenkeel);
    let difference = first_difference(&envoy, &evenkeel);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}\n\nEnvoy's:\n{envoy}", difference.unwrap_or_default());
    for part in ["x-up-rq-t-0: HTTP/1.1 %", "x-route-rs-t-7: mine", "x-down-rs-10: UF"] {
        assert!(envoy.contains(part), "{part} is not in {envoy}");
    }
}
