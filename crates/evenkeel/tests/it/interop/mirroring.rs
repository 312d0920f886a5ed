//! Mirrored requests: which requests are mirrored, to which cluster, and the mirrored heads are the same as Envoy's. The
//! originals are answered whatever happens to the mirrors.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Backend, Connection, Reply, Request, free_port, free_ports, wait};

use super::proxy::{Program, own_address};
use super::web::{self, ROUTER, cluster, endpoint};

/// How long copies and statistics may take to be complete.
const PATIENCE: Duration = Duration::from_secs(5);

/// One request, and where its copies go.
struct Row {
    name: &'static str,
    /// What the route's action has besides a cluster.
    route: &'static str,
    /// Method, header lines and body.
    request: (&'static str, &'static str, &'static str),
    /// Status of the answer.
    status: u16,
    /// Copies each mirror gets.
    copies: [usize; 2],
}

const fn row(name: &'static str, route: &'static str, copies: [usize; 2]) -> Row {
    Row { name, route, request: ("GET", "", ""), status: 200, copies }
}

const MUTATIONS: &str = "request_mirror_policies: [ { cluster: one, request_headers_mutations: [ { remove: x-a }, { append: { header: { \
                         key: x-b, value: \"%REQ(x-a)% of %REQ(:PATH)%\" }, append_action: OVERWRITE_IF_EXISTS_OR_ADD } }, { append: { \
                         header: { key: x-c, value: two } } }, { remove_on_match: { key_matcher: { prefix: x-secret } } } ] } ]";

const ROWS: &[Row] = &[
    row("none", "", [0, 0]),
    row("one", "request_mirror_policies: [ { cluster: one } ]", [1, 0]),
    row("both", "request_mirror_policies: [ { cluster: one }, { cluster: two } ]", [1, 1]),
    row("twice", "request_mirror_policies: [ { cluster: one }, { cluster: one } ]", [2, 0]),
    Row {
        request: ("POST", "content-length: 5\r\n", "hello"),
        ..row("body", "request_mirror_policies: [ { cluster: one }, { cluster: two } ]", [1, 1])
    },
    Row {
        request: ("POST", "transfer-encoding: chunked\r\n", "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"),
        ..row("chunked", "request_mirror_policies: [ { cluster: one } ]", [1, 0])
    },
    Row {
        request: ("POST", "content-length: 0\r\n", ""),
        ..row("empty-body", "request_mirror_policies: [ { cluster: one } ]", [1, 0])
    },
    Row { request: ("HEAD", "", ""), ..row("head", "request_mirror_policies: [ { cluster: one } ]", [1, 0]) },
    row("no-suffix", "request_mirror_policies: [ { cluster: one, disable_shadow_host_suffix_append: true } ]", [1, 0]),
    row("host", "request_mirror_policies: [ { cluster: one, host_rewrite_literal: \"other.test:81\" } ]", [1, 0]),
    row(
        "host-no-suffix",
        "request_mirror_policies: [ { cluster: one, host_rewrite_literal: other.test, disable_shadow_host_suffix_append: true } ]",
        [1, 0],
    ),
    Row {
        request: ("GET", "x-a: 1\r\nx-b: 2\r\nx-c: one\r\nx-secret-key: 3\r\nx-secretly: 4\r\n", ""),
        ..row("mutations", MUTATIONS, [1, 0])
    },
    row(
        "never",
        "request_mirror_policies: [ { cluster: one, runtime_fraction: { default_value: { numerator: 0 } } }, { cluster: two, \
         runtime_fraction: { default_value: { numerator: 1000000, denominator: MILLION } } } ]",
        [0, 1],
    ),
    Row { request: ("GET", "x-mirror: two\r\n", ""), ..row("by-header", BY_HEADER, [0, 1]) },
    Row { request: ("GET", "x-mirror: nobody\r\n", ""), ..row("by-header-nobody", BY_HEADER, [0, 0]) },
    row("by-header-without", BY_HEADER, [0, 0]),
    row("nobody", "request_mirror_policies: [ { cluster: nobody }, { cluster: two } ]", [0, 1]),
    row("unreachable", "request_mirror_policies: [ { cluster: closed }, { cluster: two } ]", [0, 1]),
    row("empty", "request_mirror_policies: [ { cluster: empty }, { cluster: two } ]", [0, 1]),
    row(
        "rewritten",
        "prefix_rewrite: /new/rewritten, host_rewrite_literal: new.test, append_x_forwarded_host: true, timeout: 7s, \
         request_mirror_policies: [ { cluster: one } ]",
        [1, 0],
    ),
    row("timeless", "timeout: 0s, request_mirror_policies: [ { cluster: one } ]", [1, 0]),
    Row {
        request: ("GET", "x-envoy-upstream-rq-timeout-ms: 4000\r\n", ""),
        ..row("own-timeout", "request_mirror_policies: [ { cluster: one } ]", [1, 0])
    },
    Row {
        status: 503,
        ..row(
            "retried",
            "retry_policy: { retry_on: 5xx, num_retries: 2, retry_back_off: { base_interval: 0.002s } }, \
             request_mirror_policies: [ { cluster: one } ]",
            [1, 0],
        )
    },
    Row { status: 503, ..row("no-host", "cluster: empty, request_mirror_policies: [ { cluster: one } ]", [0, 0]) },
    Row {
        status: 503,
        ..row("no-connection", "cluster: closed, request_mirror_policies: [ { cluster: one } ]", [1, 0])
    },
    row("mirror-fails", "request_mirror_policies: [ { cluster: one } ]", [1, 0]),
    row("mirror-closes", "request_mirror_policies: [ { cluster: closes } ]", [0, 0]),
    Row {
        request: ("GET", "te: trailers\r\nx-forwarded-for: 192.0.2.7\r\nx-envoy-internal: true\r\nvia: 1.1 a\r\n", ""),
        ..row("proxied", "request_mirror_policies: [ { cluster: one } ]", [1, 0])
    },
    // The cluster's word counts, not the route's.
    row("clusters", "cluster: mirrored, request_mirror_policies: [ { cluster: one } ]", [0, 1]),
    // Routes without mirrors of their own: the virtual host's, and the table's.
    Row { request: ("GET", "host: host.test\r\n", ""), ..row("hosts", "", [1, 0]) },
    Row {
        request: ("GET", "host: host.test\r\n", ""),
        ..row("own-not-hosts", "request_mirror_policies: [ { cluster: two } ]", [0, 1])
    },
    Row { request: ("GET", "host: table.test\r\n", ""), ..row("tables", "", [0, 1]) },
    Row { request: ("GET", "host: table.test:8080\r\n", ""), ..row("tables-port", "", [0, 1]) },
    Row {
        request: ("GET", "host: [::1]:8080\r\n", ""),
        ..row("ipv6", "request_mirror_policies: [ { cluster: one } ]", [1, 0])
    },
];

/// A cluster with mirrors of its own.
const MIRRORED: &str = "typed_extension_protocol_options: { envoy.extensions.upstreams.http.v3.HttpProtocolOptions: { \"@type\": \
                        type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: { \
                        http_protocol_options: {} }, request_mirror_policies: [ { cluster: two } ] } },";

const BY_HEADER: &str = "request_mirror_policies: [ { cluster_header: x-mirror } ]";

/// The copies of each row, as a mirror saw them; and statistics of the clusters.
type Seen = (BTreeMap<String, Vec<String>>, BTreeSet<String>);

#[test]
fn evenkeel_and_envoy_mirror_alike() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let [port, table_port, admin] = free_ports::<3>();
    let nowhere = free_port();
    let seen = [Program::Envoy, Program::Evenkeel].map(|program| {
        let backends =
            ["main", "one", "two", "closes"].map(|name| Backend::start(move |request| answer(name, request)));
        let ports = backends.each_ref().map(|backend| backend.address().port());
        std::fs::write(&file, bootstrap([port, table_port], admin, ports, nowhere)).expect("a writable folder");
        let mut process = web::start(program, &file, admin, port);
        process.wait_for_port((Ipv4Addr::LOCALHOST, table_port).into());
        for row in ROWS {
            ask(program, row, if row.request.1.contains("table.test") { table_port } else { port });
        }
        let complete = || {
            let arrived = [1, 2].map(|mirror| backends[mirror].requests().len());
            (arrived == [0, 1].map(|mirror| ROWS.iter().map(|row| row.copies[mirror]).sum::<usize>())).then_some(())
        };
        let all = wait::poll(PATIENCE, complete).is_some();
        let look = || (copies(&backends), counted(admin));
        let mut last = look();
        // Answers of the last copies are on their way.
        wait::poll(PATIENCE, || {
            #[allow(clippy::disallowed_methods, reason = "whether more is coming shows only later")]
            std::thread::sleep(Duration::from_millis(100));
            let next = look();
            let same = next == last;
            last = next;
            same.then_some(())
        });
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        assert!(all, "{program:?} does not send as many copies as expected:\n{}", lines(&last).join("\n"));
        last
    });
    let [envoy, evenkeel] = seen.each_ref().map(|seen| lines(seen).concat());
    let difference = first_difference(&envoy, &evenkeel);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}", difference.unwrap_or_default());
}

fn lines((copies, counted): &Seen) -> Vec<String> {
    let copies = copies.iter().flat_map(|(row, copies)| copies.iter().map(move |copy| format!("{row}\n{copy}\n")));
    copies.chain(counted.iter().map(|line| format!("{line}\n"))).collect()
}

fn answer(name: &str, request: &Request) -> Reply {
    match (name, row_of(request)) {
        ("main", "retried") | ("one", "mirror-fails") => Reply::Fixed(503, Vec::new(), Vec::new()),
        ("closes", _) => Reply::Close,
        _ => Reply::text(name),
    }
}

/// The last part of its path.
fn row_of(request: &Request) -> &str {
    request.target.rsplit('/').next().unwrap_or_default()
}

fn ask(program: Program, row: &Row, port: u16) {
    let (method, fields, body) = row.request;
    let host = if fields.contains("host: ") { "" } else { "host: a.test:8080\r\n" };
    let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("it accepts");
    client
        .send(format!("{method} /{} HTTP/1.1\r\n{host}{fields}connection: close\r\n\r\n{body}", row.name))
        .expect("it reads");
    let answer = if method == "HEAD" { client.head_response() } else { client.response() };
    assert_eq!(answer.expect("an answer").status, row.status, "{program:?}, {}", row.name);
}

/// Per row and mirror. What differs from one run to the next is left out.
fn copies(backends: &[Backend; 4]) -> BTreeMap<String, Vec<String>> {
    let own = own_address();
    let mut copies = BTreeMap::<String, Vec<String>>::new();
    for (mirror, backend) in backends.iter().enumerate().take(3).skip(1) {
        for request in backend.requests() {
            let fields = request.headers.iter().map(|(name, value)| match name.to_ascii_lowercase().as_str() {
                "x-request-id" => "x-request-id: ID".to_owned(),
                "x-forwarded-for" => format!("x-forwarded-for: {}", value.replace(&own, "127.0.0.1")),
                name => format!("{name}: {value}"),
            });
            let mut fields: Vec<_> = fields.collect();
            fields.sort();
            let body = String::from_utf8_lossy(&request.body);
            let copy = format!("{} {}\n{}\n[{body}]", request.method, request.target, fields.join("\n"));
            copies.entry(format!("{} {mirror}", row_of(&request))).or_default().push(copy);
        }
    }
    copies.values_mut().for_each(|copies| copies.sort());
    copies
}

/// Statistics of the mirrors' clusters. Of one that cannot be reached Envoy counts no request before it has a connection.
fn counted(admin: u16) -> BTreeSet<String> {
    const NAMES: [&str; 9] = [
        "upstream_rq_total",
        "upstream_rq_completed",
        "upstream_rq_200",
        "upstream_rq_2xx",
        "upstream_rq_503",
        "upstream_rq_active",
        "upstream_rq_retry",
        "upstream_cx_none_healthy",
        "retry_or_shadow_abandoned",
    ];
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let text =
        Connection::open(address).and_then(|mut client| client.get("admin", "/stats", "")).expect("an answer").text();
    let of_mirrors = text.lines().filter(|line| {
        ["one", "two", "closes", "closed", "empty"].iter().any(|cluster| {
            let name = line.strip_prefix(&format!("cluster.{cluster}.")).and_then(|rest| rest.split_once(": "));
            let counts = |name: &str| NAMES.contains(&name) && (*cluster, name) != ("closed", "upstream_rq_total");
            name.is_some_and(|(name, value)| counts(name) && value != "0")
        })
    });
    of_mirrors.map(str::to_owned).collect()
}

fn bootstrap(ports: [u16; 2], admin: u16, backends: [u16; 4], nowhere: u16) -> String {
    let [main, one, two, closes] = backends;
    let clusters = [("main", main), ("one", one), ("two", two), ("closes", closes), ("closed", nowhere)]
        .map(|(name, port)| cluster(name, &endpoint(port, ""), ""));
    let clusters: Vec<_> = clusters
        .into_iter()
        .chain([cluster("empty", "", ""), cluster("mirrored", &endpoint(main, ""), MIRRORED)])
        .collect();
    let route = |row: &Row| {
        let cluster = if row.route.starts_with("cluster: ") { "" } else { "cluster: main, " };
        format!("              - {{ match: {{ path: /{} }}, route: {{ {cluster}{} }} }}\n", row.name, row.route)
    };
    let routes: String = ROWS.iter().map(route).collect();
    let manager = |table: &str, host: &str| {
        format!(
            "          http_filters: [ {ROUTER} ]
          route_config:
            name: r
            validate_clusters: false
{table}            virtual_hosts:
            - name: all
              domains: [\"*\"]
{host}              routes:
{routes}            - name: host
              domains: [\"host.test\"]
              include_request_attempt_count: true
              request_mirror_policies: [ {{ cluster: one }} ]
              routes:
{routes}"
        )
    };
    let added = "              request_headers_to_add: [ { header: { key: x-added, value: \"%REQ(:PATH)%\" } } ]\n";
    let table = "            request_mirror_policies: [ { cluster: two } ]\n";
    let listeners = [
        web::http_listener("l", ports[0], &manager("", added)),
        web::http_listener("t", ports[1], &manager(table, "")),
    ];
    web::scene(admin, &listeners.concat(), &clusters)
}
