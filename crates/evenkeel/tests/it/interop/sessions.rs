//! Stateful sessions, requests that are refused before a host is picked, and retries that leave a priority: Evenkeel writes
//! and reads exactly the cookies and headers that Envoy does.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::{Backend, Connection, Reply, Response, free_port, free_ports};

use super::proxy::Program;
use super::web::{self, endpoint};

const HOSTS: usize = 3;

/// What a proxy does: per path, what it gives clients of each host, and what becomes of a client that has it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Host that answered → what the client is to send again.
    given: BTreeMap<String, BTreeMap<String, String>>,
    /// The exchanges that do not depend on who is picked.
    fixed: Vec<String>,
}

#[test]
fn evenkeel_and_envoy_give_and_take_the_same_sessions() {
    let backends: Vec<Backend> =
        (0..HOSTS).map(|n| Backend::start(move |_| Reply::text(format!("host {n}")))).collect();
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let addresses: Vec<SocketAddr> = backends.iter().map(Backend::address).collect();
    std::fs::write(&file, bootstrap(&addresses, port, admin)).expect("a writable folder");
    let run = |program, sessions: Option<&Seen>| {
        let mut process = web::start(program, &file, admin, port);
        let seen = look(port);
        let sessions = sessions.unwrap_or(&seen);
        for (path, given) in &sessions.given {
            for (host, field) in given {
                let again = get(port, path, field);
                assert_eq!(again.text(), *host, "{program:?} {path} {field:?}");
                assert_eq!(again.header("set-cookie").or(again.header("x-session")), None, "{program:?} {path}");
            }
        }
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let envoy = run(Program::Envoy, None);
    assert_eq!(envoy.given.values().map(BTreeMap::len).collect::<Vec<_>>(), [HOSTS; 3], "{envoy:?}");
    let evenkeel = run(Program::Evenkeel, Some(&envoy));
    assert_eq!(evenkeel, envoy);
}

fn get(port: u16, path: &str, field: &str) -> Response {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    Connection::open(address).and_then(|mut client| client.get("a.test", path, field)).expect("an answer")
}

fn look(port: u16) -> Seen {
    let given = ["/cookie/x", "/header/", "/host/"].into_iter().map(|path| (path.to_owned(), given(port, path)));
    let gone = "x-session: MTI3LjAuMC4xOjE=\r\n";
    let fixed = [
        ("beside the cookie's path", "/cookies", ""),
        ("no base64", "/strict/", "x-session: ???\r\n"),
        ("the host is gone", "/strict/", gone),
        ("the host is gone, and the status is another", "/strict-404/", gone),
        ("switched off for the route", "/off/", gone),
        ("all are refused", "/dropped/", ""),
        ("nearly all are refused", "/mostly-dropped/", ""),
        ("the circuit breaker is open", "/broken/", ""),
        ("a retry goes to the same priority", "/again/", ""),
        ("a retry leaves the priority that was tried", "/elsewhere/", ""),
        ("a retry leaves it after two tries only", "/later/", ""),
    ];
    let fixed = fixed.into_iter().map(|(what, path, field)| {
        let answer = get(port, path, field);
        let text = if answer.status == 200 { "a host".to_owned() } else { answer.text() };
        let named = |name: &str| answer.header(name).map(|value| value.split(['"', ';']).next().map(str::to_owned));
        let session = if what == "no base64" { [None, None] } else { ["set-cookie", "x-session"].map(named) };
        let mut reasons: Vec<_> = answer.headers.iter().filter(|(name, _)| name.contains("overload")).collect();
        reasons.sort();
        format!("{what}: {} {text} {session:?} {reasons:?}", answer.status)
    });
    Seen { given: given.collect(), fixed: fixed.collect() }
}

/// Asks without a session until each host has answered, and keeps what the clients were given.
fn given(port: u16, path: &str) -> BTreeMap<String, String> {
    let mut given = BTreeMap::new();
    for _ in 0..100 {
        let answer = get(port, path, "");
        let field = match (answer.header("set-cookie"), answer.header("x-session")) {
            (Some(cookie), None) => {
                let (pair, attributes) = cookie.split_once(';').expect("attributes");
                assert_eq!(attributes, " Path=/cookie/; SameSite=Strict; HttpOnly", "{cookie}");
                format!("cookie: other=1; {}\r\n", pair.replace('"', ""))
            }
            (None, Some(value)) => format!("x-session: {value}\r\n"),
            other => panic!("{path}: {other:?}"),
        };
        given.insert(answer.text(), field);
        if given.len() == HOSTS {
            break;
        }
    }
    given
}

fn bootstrap(backends: &[SocketAddr], port: u16, admin: u16) -> String {
    let per_route = |text: &str| {
        format!(
            "{{ s: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.stateful_session.v3.StatefulSessionPerRoute, {text} }} }}"
        )
    };
    let cookie = "session_state: { name: envoy.http.stateful_session.cookie, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState, cookie: { name: stuck, path: /cookie/, attributes: [{ name: SameSite, value: Strict }] } } }";
    let header = "session_state: { name: envoy.http.stateful_session.header, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.http.stateful_session.header.v3.HeaderBasedSessionState, name: X-Session } }";
    let session = |text: String| per_route(&format!("stateful_session: {{ {text} }}"));
    let route = |prefix: &str, cluster: &str, config: String| {
        format!(
            "{{ match: {{ prefix: {prefix} }}, route: {{ cluster: {cluster} }}, typed_per_filter_config: {config} }}"
        )
    };
    let retried = |prefix: &str, how: &str| {
        let off = per_route("disabled: true");
        format!(
            "{{ match: {{ prefix: {prefix} }}, route: {{ cluster: near-and-far, retry_policy: {{ retry_on: connect-failure, num_retries: 1, {how} }} }}, typed_per_filter_config: {off} }}"
        )
    };
    let routes = [
        route("/cookie", "all", session(cookie.to_owned())),
        route("/header/", "all", session(header.to_owned())),
        route("/strict/", "all", session(format!("{header}, strict: true"))),
        route(
            "/strict-404/",
            "all",
            session(format!("{header}, strict: true, status_on_strict_destination_not_found: 404")),
        ),
        route("/off/", "all", per_route("disabled: true")),
        route("/dropped/", "dropped", per_route("disabled: true")),
        route("/mostly-dropped/", "mostly-dropped", per_route("disabled: true")),
        retried("/again/", ""),
        retried(
            "/elsewhere/",
            "retry_priority: { name: envoy.retry_priorities.previous_priorities, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig, update_frequency: 1 } }",
        ),
        retried(
            "/later/",
            "retry_priority: { name: envoy.retry_priorities.previous_priorities, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig, update_frequency: 2 } }",
        ),
        route("/broken/", "broken", per_route("disabled: true")),
        "{ match: { prefix: /host/ }, route: { cluster: all } }".to_owned(),
    ];
    let filter = format!(
        "{{ name: s, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.stateful_session.v3.StatefulSession, {header} }} }}"
    );
    let at = |priority: u32, hosts: &str| format!("{{ priority: {priority}, lb_endpoints: [{hosts}] }}");
    let cluster = |name: &str, limits: &str, endpoints: &str, policy: &str| {
        format!(
            "{{ name: {name}, type: STATIC, {limits}load_assignment: {{ cluster_name: {name}, endpoints: [ {endpoints} ], {policy} }} }}"
        )
    };
    let dropping =
        |share: &str| format!("policy: {{ drop_overloads: [ {{ category: all, drop_percentage: {{ {share} }} }} ] }}");
    let hosts: Vec<_> = backends.iter().map(|backend| endpoint(backend.port(), "")).collect();
    let far = hosts.first().map(|host| at(1, host)).unwrap_or_default();
    let (all, nobody) = (at(0, &hosts.join(", ")), at(0, &endpoint(free_port(), "")));
    let clusters = [
        cluster("all", "", &all, ""),
        cluster("near-and-far", "", &[nobody.clone(), far].join(", "), ""),
        cluster("dropped", "", &nobody, &dropping("numerator: 100")),
        cluster("mostly-dropped", "", &nobody, &dropping("numerator: 999999, denominator: MILLION")),
        cluster("broken", "circuit_breakers: { thresholds: [ { max_pending_requests: 0 } ] }, ", &nobody, ""),
    ];
    web::bootstrap(port, admin, &[filter], &routes, &clusters)
}
