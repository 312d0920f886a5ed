//! The admin interface of a live proxy.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use evenkeel_testkit::exposition::parse;
use evenkeel_testkit::wait::poll;
use evenkeel_testkit::{Backend, Connection, eventually};
use serde_json::Value as Json;

use crate::harness::{Proxy, answering, get, http_listener, stat, static_bootstrap};

fn bootstrap(backend: u16) -> String {
    let listener = http_listener("web", &answering("hello"), "");
    let forwarding = http_listener(
        "forward",
        "route_config: {name: r, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, route: {cluster: backend}}]}]}",
        "",
    );
    let indent = |text: &str| text.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "node: {{id: n, cluster: c}}\n\
         admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\n\
         static_resources:\n  listeners:\n  -\n{}  -\n{}  clusters:\n  - name: backend\n    type: STATIC\n    \
         load_assignment: {{cluster_name: backend, endpoints: [{{lb_endpoints: [{{endpoint: {{address: \
         {{socket_address: {{address: 127.0.0.1, port_value: {backend}}}}}}}}}]}}]}}\n",
        indent(&listener),
        indent(&forwarding),
    )
}

fn start() -> (Backend, Proxy) {
    let backend = Backend::echo("b");
    let proxy = Proxy::start(&bootstrap(backend.address().port()));
    proxy.wait_live();
    (backend, proxy)
}

#[test]
fn pages_answer() {
    let (backend, proxy) = start();
    assert_eq!(get(proxy.listener("web"), "/").text(), "hello");
    assert_eq!(get(proxy.listener("forward"), "/x").status, 200);

    assert_eq!(proxy.get("/ready").text(), "LIVE\n");
    assert!(proxy.get("/").text().contains("<a href=\"/config_dump\">"));
    let info = proxy.json("/server_info");
    assert_eq!((&info["state"], &info["node"]["id"]), (&Json::from("LIVE"), &Json::from("n")));
    let listeners = proxy.json("/listeners?format=json");
    assert_eq!(listeners["listener_statuses"].as_array().map(Vec::len), Some(2));
    let workers = proxy.json("/workers?format=json");
    assert_eq!(workers["workers"].as_array().map(Vec::len), Some(2));

    let address = backend.address();
    let clusters = proxy.get("/clusters").text();
    for line in [
        format!("backend::{address}::rq_total::1"),
        format!("backend::{address}::health_flags::healthy"),
        "backend::added_via_api::false".to_owned(),
        "backend::default_priority::max_connections::1024".to_owned(),
    ] {
        assert!(clusters.lines().any(|l| l == line), "{line} not in\n{clusters}");
    }
    let clusters = proxy.json("/clusters?format=json");
    let host = &clusters["cluster_statuses"][0]["host_statuses"][0];
    assert_eq!(host["address"]["socket_address"]["port_value"], address.port());
}

#[test]
fn statistics_come_as_text_json_and_for_prometheus() {
    let (_backend, proxy) = start();
    get(proxy.listener("web"), "/");
    // A worker counts a response after it has sent it.
    eventually("the response to be counted", || {
        let text = proxy.get("/stats?filter=%5Ehttp%5C.web%5C.downstream_rq_2xx").text();
        (text == "http.web.downstream_rq_2xx: 1\n").then_some(())
    });
    let json = proxy.json("/stats?format=json&filter=downstream_rq_2xx");
    assert!(json["stats"].as_array().expect("a list").iter().any(|stat| stat["name"] == "http.web.downstream_rq_2xx"));
    let response = proxy.get("/stats/prometheus");
    assert!(response.header("content-type").expect("a type").starts_with("text/plain; version=0.0.4"));
    assert!(response.text().contains("envoy_server_live{} 1\n") || response.text().contains("envoy_server_live 1\n"));
    assert!(proxy.get("/stats?usedonly").text().lines().all(|line| !line.ends_with(": 0")));
    assert_eq!(proxy.get("/stats?filter=(").status, 400);
    assert_eq!(proxy.get("/stats?format=xml").status, 400);
}

#[test]
fn prometheus_gets_the_format_it_asks_for_and_every_page_is_well_formed() {
    let (_backend, proxy) = start();
    for path in ["/x", "/y"] {
        assert_eq!(get(proxy.listener("forward"), path).status, 200);
    }
    eventually("the responses to be counted", || {
        let text = proxy.get("/stats?filter=%5Ecluster%5C.backend%5C.upstream_rq_200").text();
        (text == "cluster.backend.upstream_rq_200: 2\n").then_some(())
    });
    let asked = |path: &str, accept: &str| {
        let mut connection = Connection::open(proxy.admin).expect("the admin port accepts");
        connection.get("admin", path, &format!("accept: {accept}\r\n")).expect("an answer")
    };
    let open = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for (response, is_open) in [
        (asked("/stats/prometheus", open), true),
        (asked("/stats?format=openmetrics", "*/*"), true),
        (asked("/stats/prometheus?filter=upstream_rq", open), true),
        (asked("/stats/prometheus", "text/plain"), false),
        (asked("/stats/prometheus?filter=upstream_rq", "*/*"), false),
    ] {
        let kind = response.header("content-type").expect("a type").to_owned();
        let expected =
            if is_open { "application/openmetrics-text; version=1.0.0" } else { "text/plain; version=0.0.4" };
        assert!(kind.starts_with(expected), "{kind}");
        let families = parse(&response.text(), is_open).unwrap_or_else(|error| panic!("{error}\n{}", response.text()));
        let samples = &families["envoy_cluster_upstream_rq"].samples;
        let counted = samples.iter().find(|s| s.labels["envoy_cluster_name"] == "backend").expect("counted");
        assert_eq!((&*counted.labels["envoy_response_code"], counted.value), ("200", 2.0));
    }
}

#[test]
fn the_configuration_is_shown_as_envoy_shows_it() {
    let (_backend, proxy) = start();
    let dump = proxy.json("/config_dump?include_eds");
    let types: Vec<&str> =
        dump["configs"].as_array().expect("a list").iter().filter_map(|c| c["@type"].as_str()).collect();
    let expected = ["Bootstrap", "Clusters", "Endpoints", "Listeners", "Routes", "Secrets"];
    assert_eq!(types, expected.map(|name| format!("type.googleapis.com/envoy.admin.v3.{name}ConfigDump")));
    assert_eq!(dump["configs"][0]["bootstrap"]["node"]["id"], "n");
    assert_eq!(dump["configs"][1]["static_clusters"][0]["cluster"]["name"], "backend");
    let only = proxy.json("/config_dump?resource=static_listeners&name_regex=web");
    assert_eq!(only["configs"].as_array().map(Vec::len), Some(1));
    assert_eq!(only["configs"][0]["listener"]["name"], "web");
    assert_eq!(proxy.get("/config_dump?resource=nothing").status, 404);
}

#[test]
fn only_post_changes_something() {
    let (_backend, proxy) = start();
    for path in ["/quitquitquit", "/drain_listeners", "/logging?level=debug", "/reopen_logs"] {
        assert_eq!(proxy.get(path).status, 405, "{path}");
    }
    assert_eq!(proxy.post("/logging?level=loud").status, 400);
    assert_eq!(proxy.post("/reopen_logs").status, 200);
    let missing = proxy.get("/nothing");
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("/stats/prometheus"));
    assert_eq!(proxy.get("/ready").status, 200);
}

#[test]
fn quitting_ends_the_process_in_order() {
    let (_backend, proxy) = start();
    assert_eq!(proxy.post("/quitquitquit").text(), "OK\n");
    let admin = proxy.admin;
    eventually("the admin port to close", || TcpStream::connect(admin).is_err().then_some(()));
    proxy.stop().expect("a clean end");
}

#[test]
fn draining_closes_the_listeners_and_says_so() {
    let (_backend, proxy) = start();
    let web = proxy.listener("web");
    assert_eq!(proxy.post("/drain_listeners").status, 200);
    eventually("the listener to close", || TcpStream::connect(web).is_err().then_some(()));
    let ready = proxy.get("/ready");
    assert_eq!((ready.status, ready.text().as_str()), (503, "DRAINING\n"));
}

/// Two listeners: `web`, and `inbound`, whose direction is that.
fn start_two(drain_time: Duration) -> Proxy {
    let web = http_listener("web", &answering("hello"), "");
    let inbound = http_listener("inbound", &answering("hello"), "traffic_direction: INBOUND");
    let indent = |text: &str| text.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
    let bootstrap = format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\nstatic_resources:\n  \
         listeners:\n  -\n{}  -\n{}",
        indent(&web),
        indent(&inbound),
    );
    let proxy = Proxy::start_as(&bootstrap, |settings| settings.drain_time = drain_time);
    proxy.wait_live();
    proxy
}

/// Longer than any test.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// Asks over this connection; says whether it may be used again.
fn stays(connection: &mut Connection) -> bool {
    let response = connection.get("test", "/", "").expect("an answer");
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
    response.keeps_open()
}

#[test]
fn a_graceful_drain_asks_clients_to_go_and_goes_on_accepting() {
    let proxy = start_two(FOR_EVER);
    let web = proxy.listener("web");
    let mut kept = Connection::open(web).expect("it accepts");
    assert!(stays(&mut kept));
    assert_eq!(proxy.post("/drain_listeners?graceful").status, 200);
    eventually("clients to be asked to go", || {
        let mut new = Connection::open(web).expect("it goes on accepting");
        (!stays(&mut new)).then_some(())
    });
    assert!(!stays(&mut kept), "also those that were there before");
    assert_eq!(kept.read_to_end().expect("an orderly end"), b"");
    assert_eq!((proxy.get("/ready").status, proxy.has_ended()), (503, false));
}

#[test]
fn a_graceful_drain_stops_accepting_when_its_time_is_over_unless_told_not_to() {
    for (path, closes) in [("/drain_listeners?graceful", true), ("/drain_listeners?graceful&skip_exit", false)] {
        let proxy = start_two(Duration::from_millis(50));
        let web = proxy.listener("web");
        assert_eq!(proxy.post(path).status, 200);
        let closed = poll(Duration::from_secs(if closes { 20 } else { 1 }), || TcpStream::connect(web).err());
        assert_eq!(closed.is_some(), closes, "{path}");
    }
    let proxy = start_two(FOR_EVER);
    assert_eq!(proxy.post("/drain_listeners?skip_exit").status, 400);
    assert!(stays(&mut Connection::open(proxy.listener("web")).expect("it accepts")));
}

#[test]
fn inbound_listeners_drain_alone() {
    let proxy = start_two(FOR_EVER);
    let (web, inbound) = (proxy.listener("web"), proxy.listener("inbound"));
    let (mut out, mut of_inbound) = (Connection::open(web).expect("open"), Connection::open(inbound).expect("open"));
    assert!(stays(&mut out) && stays(&mut of_inbound));
    assert_eq!(proxy.post("/drain_listeners?inboundonly").status, 200);
    eventually("the inbound listener to close", || TcpStream::connect(inbound).is_err().then_some(()));
    assert!(!stays(&mut of_inbound));
    assert!(stays(&mut out) && stays(&mut Connection::open(web).expect("it accepts")));
    assert_eq!(proxy.get("/ready").status, 200);
}

#[test]
fn a_failed_health_check_asks_clients_to_go_until_it_is_taken_back() {
    let proxy = start_two(FOR_EVER);
    let web = proxy.listener("web");
    for path in ["/healthcheck/fail", "/healthcheck/ok"] {
        assert_eq!(proxy.get(path).status, 405, "{path}");
    }
    let mut kept = Connection::open(web).expect("it accepts");
    assert!(stays(&mut kept));
    // Twice: it can be taken back and said again.
    for turn in 0..2 {
        for (path, ready, expected) in [("/healthcheck/fail", 503, false), ("/healthcheck/ok", 200, true)] {
            assert_eq!(proxy.post(path).status, 200);
            eventually(&format!("the effect of {path}"), || {
                let stays = stays(&mut Connection::open(web).expect("it accepts all the time"));
                (stays == expected).then_some(())
            });
            assert_eq!(proxy.get("/ready").status, ready, "{path}");
            if turn == 0 && !expected {
                assert!(!stays(&mut kept), "{path}");
            }
        }
    }
}

#[test]
fn garbage_on_the_admin_port_harms_nobody() {
    let (_backend, proxy) = start();
    let garbage: [&[u8]; 5] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\0/ready HTTP/1.1\r\n\r\n",
        b"GET /ready HTTP/1.1\r\ncontent-length: -1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"\n\n\n\n\xff\xfe\xfd",
    ];
    for bytes in garbage {
        let mut stream = TcpStream::connect(proxy.admin).expect("it accepts");
        stream.set_read_timeout(Some(std::time::Duration::from_secs(15))).expect("a timeout");
        stream.write_all(bytes).expect("it reads");
        stream.shutdown(std::net::Shutdown::Write).expect("half closed");
        let mut answer = Vec::new();
        // A reset is as good an answer as a 400.
        _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{:?}", String::from_utf8_lossy(&answer));
    }
    let long = format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(64 * 1024));
    let mut stream = TcpStream::connect(proxy.admin).expect("it accepts");
    _ = stream.write_all(long.as_bytes());
    let mut answer = Vec::new();
    _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{:?}", String::from_utf8_lossy(&answer));
    assert_eq!(proxy.get("/ready").status, 200);
}

#[test]
fn names_are_resolved_before_the_proxy_is_ready() {
    let cluster = |name: &str, host: &str| {
        format!(
            "  - {{name: {name}, type: STRICT_DNS, dns_lookup_family: V4_ONLY, load_assignment: {{cluster_name: {name}, \
             endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {host}, port_value: 80}}}}}}}}]}}]}}}}\n"
        )
    };
    let proxy = Proxy::start(&format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\nstatic_resources:\n  clusters:\n{}{}",
        cluster("named", "localhost"),
        cluster("literal", "127.0.0.9"),
    ));
    proxy.wait_live();
    let clusters = proxy.get("/clusters").text();
    for line in ["named::127.0.0.1:80::hostname::localhost", "literal::127.0.0.9:80::health_flags::healthy"] {
        assert!(clusters.lines().any(|l| l == line), "{line} not in\n{clusters}");
    }
}

/// `/dev/full` takes nothing, as a full disk does.
#[test]
fn lines_that_a_full_disk_costs_are_counted() {
    let access_log = "access_log: [{name: file, typed_config: {\"@type\": \
         type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: /dev/full}}]";
    let web = http_listener("web", &format!("{}\n      {access_log}", answering("hello")), "");
    let proxy = Proxy::start(&static_bootstrap(&web, &[]));
    proxy.wait_live();
    const NAME: &str = "access_logs.file_access_log.logs_dropped";
    assert_eq!(stat(&proxy, NAME), [0]);
    for _ in 0..3 {
        assert_eq!(get(proxy.listener("web"), "/").text(), "hello");
    }
    eventually("three lines", || (stat(&proxy, NAME) == [3]).then_some(()));
    assert_eq!(stat(&proxy, NAME), [3], "each is counted once");
    let prometheus = proxy.get("/stats/prometheus").text();
    let line = prometheus.lines().find(|line| line.starts_with("envoy_access_logs_file_access_log_logs_dropped"));
    assert!(line.is_some_and(|line| line.ends_with(" 3")), "{line:?}");
}
