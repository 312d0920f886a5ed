//! The CPU-bound parts of a request's processing, on fixed input, one function each for callgrind to count.

use std::hint::black_box;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use evenkeel_filters::rbac::{Subject, evaluate};
use evenkeel_http::h2::{self, Reset, Sink, StreamKey};
use evenkeel_http::{
    Framing, HeadScan, RequestHead, RequestRules, ResponseHead, ResponseRules, Version, encode, parse_request,
    parse_response,
};
use evenkeel_proxy::bootstrap;
use evenkeel_proxy::options::{BootstrapSource, NodeOverrides};
use evenkeel_runtime_config::hcm::{HttpFilterConfig, RouteSource};
use evenkeel_runtime_config::listener::Terminal;
use evenkeel_runtime_config::rbac::Rules;
use evenkeel_runtime_config::route_match::RouteSelection;
use evenkeel_runtime_config::view::PlainRequest;
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity};
use evenkeel_runtime_config::{Builder, Config, Environment, RouteTable};
use evenkeel_tls::SecretStore;
use evenkeel_xds::Schema;

use super::{Counts, callgrind, changes, matching, policies, series};
use crate::config::policy::CLIENT_IDENTITY;
use crate::config::{Protocol, Proxy};

/// Each function is called so often; the first calls' allocations vanish in the mean.
const ITERATIONS: u64 = 1000;
const RULES: usize = 100;
const VIRTUAL_HOSTS: usize = 100;

/// The functions below, and their names in the record.
const CASES: &[(&str, &str)] = &[
    ("cases::h1_parse_request", "h1 request: parse a head of 11 fields"),
    ("cases::h1_encode_request", "h1 request: encode it"),
    ("cases::h1_parse_response", "h1 response: parse a head of 6 fields"),
    ("cases::h1_encode_response", "h1 response: encode it"),
    ("cases::h2_client_send", "h2 request: encode the same"),
    ("cases::h2_server_receive", "h2 request: decode it"),
    ("cases::h2_server_send", "h2 response: encode the same with 1 KiB of data"),
    ("cases::h2_client_receive", "h2 response: decode it"),
    ("cases::select_route", "route: the third of one of 100 virtual hosts"),
    ("cases::evaluate_policy", "rbac: the last of 100 rules allows"),
];

/// The functions in [`changes`].
const CHANGES: &[(&str, &str)] = &[
    ("changes::endpoints_of_few", changes::OF_FEW),
    ("changes::endpoints_of_many", changes::OF_MANY),
    ("changes::routes_of_few", changes::ROUTES_OF_FEW),
    ("changes::routes_of_many", changes::ROUTES_OF_MANY),
];

/// The functions in [`series`].
const SERIES: &[(&str, &str)] = &[
    ("series::first_scope", series::FIRST_SCOPE),
    ("series::later_scope", series::LATER_SCOPE),
    ("series::first_series", series::FIRST_SERIES),
    ("series::later_series", series::LATER_SERIES),
    ("series::find", series::KNOWN),
    ("series::count", series::COUNT),
    ("series::record", series::RECORD),
    ("series::record_traced", series::RECORD_TRACED),
];

/// The functions in [`matching`].
const MATCHING: &[(&str, &str)] = &[("matching::of_few", matching::OF_FEW), ("matching::of_many", matching::OF_MANY)];

/// The functions in [`policies`].
const POLICIES: &[(&str, &str)] = &[("policies::of_few", policies::OF_FEW), ("policies::of_many", policies::OF_MANY)];

const REQUEST: &[u8] = b"GET /api/v1/items/42?verbose=1 HTTP/1.1\r\n\
    Host: items.shop.svc.cluster.local:8080\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Language: en-US,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br\r\n\
    Cookie: session=3f1c9a70b2d84e55a6c1; theme=dark\r\n\
    X-Request-Id: 7a1d4f0e-2b1c-4a57-9d63-0f7f6a1b2c3d\r\n\
    X-Forwarded-For: 10.244.1.7\r\n\
    X-Forwarded-Proto: http\r\n\
    Cache-Control: no-cache\r\n\r\n";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Server: backend\r\n\
    Date: Sat, 21 Nov 2026 00:00:00 GMT\r\n\
    Content-Type: application/json\r\n\
    Cache-Control: no-store\r\n\
    Content-Length: 1024\r\n\
    X-Envoy-Upstream-Service-Time: 3\r\n\r\n";

/// Runs [`run`] under callgrind and reads what each case took.
pub fn count(folder: &Path) -> Result<Counts> {
    let profile = callgrind::run(&folder.join("cases.callgrind"), &std::env::current_exe()?, &["counted-cases"])?;
    let cases = CASES.iter().map(|case| (case, ITERATIONS));
    let changes = CHANGES.iter().map(|case| (case, changes::ITERATIONS));
    let series = SERIES.iter().map(|case| (case, series::ITERATIONS));
    let matching = MATCHING.iter().map(|case| (case, matching::ITERATIONS));
    let policies = POLICIES.iter().map(|case| (case, policies::ITERATIONS));
    cases
        .chain(changes)
        .chain(matching)
        .chain(policies)
        .chain(series)
        .map(|((function, what), iterations)| Ok(((*what).to_owned(), profile.inclusive(function)? / iterations)))
        .collect()
}

/// Calls every case; what callgrind looks at.
pub fn run() -> Result<()> {
    // Held, so that what reads and compiles messages does not load it each time.
    let _schema = Schema::acquire();
    let (fixture, tables, sets) = (Fixture::new()?, matching::Tables::new()?, policies::Sets::new()?);
    callgrind::counted(|| {
        http1()?;
        http2()?;
        routes_and_rules(&fixture)?;
        matching::run(&tables)?;
        policies::run(&sets)?;
        series::run()
    })?;
    changes::run()
}

fn routes_and_rules(fixture: &Fixture) -> Result<()> {
    let hosts = PlainRequest::new("GET", "items-57.shop.svc.cluster.local:8080", "/api/v1/items/42?verbose=1");
    let hello = PlainRequest::new("GET", "backend.local", "/hello");
    for _ in 0..ITERATIONS {
        ensure!(select_route(&fixture.routes, black_box(&hosts)), "no route");
        ensure!(evaluate_policy(&fixture.rules, &fixture.connection, black_box(&hello)), "denied");
    }
    Ok(())
}

fn http1() -> Result<()> {
    let (mut request, mut response, mut out) = (RequestHead::default(), ResponseHead::default(), Vec::new());
    for _ in 0..ITERATIONS {
        ensure!(h1_parse_request(black_box(REQUEST), &mut request), "the request");
        out.clear();
        h1_encode_request(&mut out, black_box(&request));
        ensure!(h1_parse_response(black_box(RESPONSE), &mut response), "the response");
        out.clear();
        h1_encode_response(&mut out, black_box(&response));
    }
    Ok(())
}

#[inline(never)]
fn h1_parse_request(bytes: &[u8], head: &mut RequestHead) -> bool {
    parse_request(bytes, &mut HeadScan::default(), RequestRules::default(), head).is_ok_and(|info| info.is_some())
}

#[inline(never)]
fn h1_encode_request(out: &mut Vec<u8>, head: &RequestHead) {
    encode::request(out, head, Framing::None, encode::Connection::Default);
}

#[inline(never)]
fn h1_parse_response(bytes: &[u8], head: &mut ResponseHead) -> bool {
    parse_response(bytes, &mut HeadScan::default(), ResponseRules::default(), head).is_ok_and(|info| info.is_some())
}

#[inline(never)]
fn h1_encode_response(out: &mut Vec<u8>, head: &ResponseHead) {
    let style = encode::ResponseStyle {
        version: Version::Http11,
        framing: Framing::Length(1024),
        bodiless: false,
        connection: encode::Connection::Default,
        proper_case: false,
    };
    encode::response(out, head, style);
}

/// A client's and a server's connection, each other's peer.
fn http2() -> Result<()> {
    let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
    ensure!(h1_parse_request(REQUEST, &mut request) && h1_parse_response(RESPONSE, &mut response), "the heads");
    let options = h2::Options::default();
    let (mut client, mut server) = (h2::Connection::client(options.clone()), h2::Connection::server(options));
    let (mut asked, mut answered) = (Seen::default(), Seen::default());
    let body = [b'x'; 1024];
    for _ in 0..ITERATIONS {
        ensure!(h2_client_send(&mut client, black_box(&request)), "the client cannot send");
        ensure!(h2_server_receive(&mut server, &mut client, &mut asked), "the server cannot receive");
        let stream = asked.stream.take().context("no request arrived")?;
        ensure!(h2_server_send(&mut server, stream, black_box(&response), &body), "the server cannot send");
        ensure!(h2_client_receive(&mut client, &mut server, &mut answered), "the client cannot receive");
        ensure!(std::mem::take(&mut answered.bytes) == body.len(), "the answer is not whole");
    }
    Ok(())
}

#[inline(never)]
fn h2_client_send(client: &mut h2::Connection, head: &RequestHead) -> bool {
    client.open(head, false, Framing::None, true).is_ok()
}

#[inline(never)]
fn h2_server_receive(server: &mut h2::Connection, client: &mut h2::Connection, seen: &mut Seen) -> bool {
    pass(client, server, seen)
}

#[inline(never)]
fn h2_server_send(server: &mut h2::Connection, stream: StreamKey, head: &ResponseHead, body: &[u8]) -> bool {
    server.respond(stream, head, Framing::Length(body.len() as u64), false).is_ok()
        && server.send_data(stream, body, true).is_ok_and(|taken| taken == body.len())
}

#[inline(never)]
fn h2_client_receive(client: &mut h2::Connection, server: &mut h2::Connection, seen: &mut Seen) -> bool {
    let received = pass(server, client, seen);
    client.release_connection(seen.bytes);
    received
}

/// Passes one side's output to the other's input.
fn pass(from: &mut h2::Connection, to: &mut h2::Connection, seen: &mut Seen) -> bool {
    let bytes = from.output().len();
    let whole = to.receive(from.output(), seen).is_ok_and(|taken| taken == bytes);
    from.written(bytes);
    whole
}

/// The frames that arrived.
#[derive(Default)]
struct Seen {
    stream: Option<StreamKey>,
    bytes: usize,
}

impl Sink for Seen {
    fn request(&mut self, stream: StreamKey, _: &mut RequestHead, _: h2::RequestMeta) {
        self.stream = Some(stream);
    }

    fn data(&mut self, _: StreamKey, data: &[u8], _: bool) {
        self.bytes += data.len();
    }

    fn reset(&mut self, _: StreamKey, _: Reset) {}
}

#[inline(never)]
fn select_route(table: &RouteTable, request: &PlainRequest) -> bool {
    matches!(table.select(request, 7), RouteSelection::Route(_, route) if &*route.name == "items")
}

#[inline(never)]
fn evaluate_policy(rules: &Rules, connection: &ConnectionView, request: &PlainRequest) -> bool {
    let remote = connection.direct_remote.ip();
    evaluate(rules, &Subject { connection, remote, request: Some(request), metadata: None }).allowed
}

/// Routes and rules, compiled from a bootstrap file as the proxy does.
struct Fixture {
    routes: Arc<RouteTable>,
    rules: Arc<Rules>,
    connection: ConnectionView,
}

impl Fixture {
    fn new() -> Result<Self> {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let text = Proxy {
            id: "counted",
            listen: nowhere,
            admin: nowhere,
            upstream: nowhere,
            protocol: Protocol::Http1,
            downstream_tls: None,
            upstream_tls: None,
            rules: RULES,
            authorization: None,
            issuer: None,
            log: "/dev/null".into(),
        }
        .bootstrap()
        .replace("            virtual_hosts:\n", &format!("            virtual_hosts:\n{}", virtual_hosts()));
        let config = compiled(text)?;
        let chains = config.listeners.values().flat_map(|listener| &listener.filter_chains);
        let mut managers = chains.filter_map(|chain| match &chain.terminal {
            Terminal::Http(manager) => Some(Arc::clone(manager)),
            _ => None,
        });
        let manager = managers.next().context("a connection manager")?;
        let RouteSource::Static(routes) = &manager.routes else { bail!("routes are in the file") };
        let rules = manager.filters.iter().find_map(|filter| match &filter.config {
            HttpFilterConfig::Rbac(filter) => filter.rules.clone(),
            _ => None,
        });
        let peer = PeerIdentity { uri_sans: vec![CLIENT_IDENTITY.to_owned()], ..PeerIdentity::default() };
        let connection =
            ConnectionView { tls: true, peer: Some(Arc::new(peer)), ..ConnectionView::plaintext(nowhere, nowhere) };
        Ok(Self { routes: Arc::clone(routes), rules: rules.context("rules")?, connection })
    }
}

/// Compiles a bootstrap file as a proxy does.
fn compiled(text: String) -> Result<Arc<Config>> {
    let loaded = bootstrap::load(&BootstrapSource { path: None, text: Some(text) }, &NodeOverrides::default())?;
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    for cluster in &loaded.bootstrap.clusters {
        builder.set_static_cluster(cluster)?;
    }
    for listener in &loaded.bootstrap.listeners {
        builder.set_static_listener(listener)?;
    }
    Ok(builder.build())
}

fn virtual_hosts() -> String {
    let host = |number: usize| {
        format!(
            r#"            - name: items-{number}
              domains: ["items-{number}.shop.svc.cluster.local", "items-{number}.shop.svc.cluster.local:8080"]
              routes:
              - match: {{path: "/healthz"}}
                direct_response: {{status: 200}}
              - match: {{prefix: "/api/", headers: [{{name: x-canary, string_match: {{exact: "true"}}}}]}}
                route: {{cluster: backend}}
              - name: items
                match: {{prefix: "/api/"}}
                route: {{cluster: backend}}
"#
        )
    };
    (0..VIRTUAL_HOSTS).map(host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PATIENCE;

    #[test]
    fn a_proxy_that_is_slowed_down_has_time_to_connect() {
        let folder = tempfile::tempdir().unwrap();
        let tls = crate::peers::certificates(folder.path()).unwrap();
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let proxy = Proxy {
            id: "slow",
            listen: nowhere,
            admin: nowhere,
            upstream: nowhere,
            protocol: Protocol::Mesh,
            downstream_tls: Some(&tls),
            upstream_tls: Some(&tls),
            rules: 0,
            authorization: None,
            issuer: None,
            log: "/dev/null".into(),
        };
        let config = compiled(proxy.bootstrap()).unwrap();
        let clusters = config.clusters.values().map(|cluster| cluster.connect_timeout);
        let chains = config.listeners.values().flat_map(|listener| &listener.filter_chains);
        let limits: Vec<_> = clusters.chain(chains.map(|chain| chain.handshake_timeout)).collect();
        assert_eq!(limits, [PATIENCE, PATIENCE], "of the client's side and the server's");
    }

    #[test]
    fn every_case_does_what_it_says() {
        super::run().unwrap();
    }
}
