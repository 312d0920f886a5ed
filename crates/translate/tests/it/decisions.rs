//! Decisions about calls: from the user's YAML to the decision of our proxy's own code, without a socket.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_filters::explain::{Call, Step, explain};
use evenkeel_runtime_config::Config;
use evenkeel_runtime_config::filter_chain_match::ChainInput;
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity, PlainRequest};

use crate::own_proxy::compile;
use crate::scenario::{Scenario, translate};

/// A call, in words: `FROM [as IDENTITY] to ADDRESS` and `METHOD HOST PATH [NAME=VALUE]`.
pub struct Client {
    pub from: &'static str,
    /// `spiffe://cluster.local/ns/` and this, or a whole SPIFFE id; empty for plaintext.
    pub identity: &'static str,
    /// What the client offers inside TLS, or the inspector finds in plaintext.
    pub alpn: &'static [&'static str],
    pub server_name: Option<&'static str>,
}

pub const PLAIN_HTTP: Client = Client { from: "10.244.9.9:4000", identity: "", alpn: &["http/1.1"], server_name: None };
pub const PLAIN_TCP: Client = Client { alpn: &[], ..PLAIN_HTTP };

pub fn mesh(identity: &'static str) -> Client {
    Client { identity, alpn: &["istio-http/1.1", "istio"], ..PLAIN_HTTP }
}

/// The configuration of one proxy of a scenario.
fn proxy(scenario: &str, pod: &str) -> Arc<Config> {
    let scenario = Scenario::read(scenario);
    let view = scenario.proxies.iter().find(|view| &*view.pod == pod).expect("a proxy of the scenario");
    compile(&translate(view, &scenario.snapshot)).0
}

/// How a call ends.
pub fn outcome(config: &Config, listener: &str, client: &Client, to: &str, request: &str, random: u64) -> String {
    let destination: SocketAddr = to.parse().expect("a destination");
    let source: SocketAddr = client.from.parse().expect("a source");
    let tls = !client.identity.is_empty() || client.server_name.is_some();
    let peer = PeerIdentity {
        uri_sans: vec![if client.identity.starts_with("spiffe://") {
            client.identity.to_owned()
        } else {
            format!("spiffe://cluster.local/ns/{}", client.identity)
        }],
        ..PeerIdentity::default()
    };
    let connection = ConnectionView {
        server_name: client.server_name.map(Into::into),
        tls,
        peer: (!client.identity.is_empty()).then(|| Arc::new(peer)),
        ..ConnectionView::plaintext(source, destination)
    };
    crate::recorded::decided(&format!(
        "{listener} {} {} {destination} {request} {random}",
        client.from, client.identity
    ));
    if !tls {
        crate::recorded::called(source, destination, request);
    }
    let words: Vec<&str> = request.split(' ').collect();
    let request = match words.as_slice() {
        [method, host, path, headers @ ..] => {
            let request = PlainRequest::new(method, host, path);
            let pairs = headers.iter().filter_map(|h| h.split_once('='));
            Some(pairs.fold(request, |request, (name, value)| request.with_header(name, value)))
        }
        _ => None,
    };
    let chain = ChainInput {
        destination,
        source,
        direct_source: source,
        server_name: client.server_name,
        transport_protocol: if tls { "tls" } else { "raw_buffer" },
        application_protocols: client.alpn,
    };
    let call = Call { listener, chain, connection: &connection, request: request.as_ref(), random };
    let steps = explain(config, &call).steps;
    let forwarded = steps.iter().find_map(|step| match step {
        Step::Forward { path, authority, .. } => Some(format!(" {authority}{path}")),
        _ => None,
    });
    match steps.last() {
        Some(Step::Endpoints { cluster, .. }) => format!("{cluster}{}", forwarded.unwrap_or_default()),
        Some(Step::NoCluster { status, .. }) => format!("{status} no cluster"),
        Some(Step::Rbac { verdict }) if !verdict.allowed => {
            format!("denied by {}", verdict.policy.as_deref().unwrap_or("default"))
        }
        Some(Step::Redirect { status, location }) => format!("{status} {location}"),
        Some(Step::TlsRedirect { location }) => format!("301 {location}"),
        Some(Step::DirectResponse { status }) => status.to_string(),
        Some(Step::NoFilterChain { .. }) => "closed".to_owned(),
        Some(Step::NoRoute) => "404".to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_strict_workload_serves_only_whom_its_policy_names() {
    let config = proxy("capitals", "capitals-info-v1-0");
    let check = |client: &Client, port: u16, request: &str, expected: &str| {
        let to = format!("10.244.0.3:{port}");
        assert_eq!(
            outcome(&config, "virtualInbound", client, &to, request, 0),
            expected,
            "{} {request}",
            client.identity
        );
    };
    let (web, other) = (mesh("capitals/sa/capitals-web"), mesh("capitals/sa/other"));
    check(&web, 8080, "GET capitals-info /x", "inbound|8080|| capitals-info/x");
    check(&web, 8080, "POST capitals-info /x", "inbound|8080|| capitals-info/x");
    check(&web, 8080, "DELETE capitals-info /x", "denied by default");
    check(&other, 8080, "GET capitals-info /x", "denied by default");
    check(&PLAIN_HTTP, 8080, "GET capitals-info /x", "closed");
    check(&web, 9999, "GET capitals-info /x", "InboundPassthroughCluster capitals-info/x");
    // The policy asks about methods, which bytes have none of.
    check(&Client { alpn: &["istio"], ..web }, 9999, "", "denied by default");
    check(&PLAIN_TCP, 15006, "", "BlackHoleCluster");
}

#[test]
fn weights_and_headers_choose_the_subset() {
    let config = proxy("capitals", "capitals-web-0");
    let call = |request: &str, random| outcome(&config, "0.0.0.0_8080", &PLAIN_HTTP, "10.97.0.1:8080", request, random);
    let subset =
        |n: &str| format!("outbound|8080|{n}|capitals-info.capitals.svc.cluster.local capitals-info:8080/france");
    let of_v1 = (0..100).filter(|random| call("GET capitals-info:8080 /france", *random) == subset("v1")).count();
    let of_v2 = (0..100).filter(|random| call("GET capitals-info:8080 /france", *random) == subset("v2")).count();
    assert_eq!((of_v1, of_v2), (90, 10));
    assert!((0..100).all(|random| call("GET capitals-info:8080 /france x-pin=v2", random) == subset("v2")));
    assert_eq!(call("GET elsewhere.example.com /", 0), "PassthroughCluster elsewhere.example.com/");
}

#[test]
fn a_gateway_leads_in() {
    let config = proxy("capitals", "istio-ingressgateway-0");
    let got = outcome(&config, "0.0.0.0_8080", &PLAIN_HTTP, "127.0.0.1:8080", "GET localhost:8080 /", 0);
    assert_eq!(got, "outbound|8080||capitals-web.capitals.svc.cluster.local localhost:8080/");
}

#[test]
fn permissive_takes_both_and_deny_comes_first() {
    let config = proxy("protocols", "a-0");
    let check = |client: &Client, port: u16, request: &str, expected: &str| {
        let to = format!("10.244.1.1:{port}");
        let got = outcome(&config, "virtualInbound", client, &to, request, 0);
        assert_eq!(got, expected, "{} as `{}` to {port}: {request}", client.from, client.identity);
    };
    let from = |from| Client { from, ..PLAIN_HTTP };
    check(&PLAIN_HTTP, 8080, "GET a /", "inbound|8080|| a/");
    check(&mesh("shop/sa/x"), 8080, "GET a /", "inbound|8080|| a/");
    let never = |rule| format!("denied by ns[shop]-policy[never]-rule[{rule}]");
    check(&from("10.1.0.5:1"), 8080, "GET a /", &never(0));
    check(&from("10.1.2.5:1"), 8080, "GET a /", "inbound|8080|| a/");
    check(&Client { from: "10.1.0.5:1", ..mesh("shop/sa/x") }, 8080, "GET a /", "inbound|8080|| a/");
    check(&Client { from: "10.1.0.5:1", ..mesh("other/sa/x") }, 8080, "GET a /", &never(0));
    check(&PLAIN_HTTP, 8080, "GET x.internal / x-bad=1", &never(1));
    check(&PLAIN_HTTP, 8080, "GET X.INTERNAL / x-bad=1", &never(1));
    check(&PLAIN_HTTP, 8080, "GET x.internal /healthz x-bad=1", "inbound|8080|| x.internal/healthz");
    check(&PLAIN_HTTP, 8080, "GET x.internal /", "inbound|8080|| x.internal/");
    // Bytes of a port without declared protocol: by what they look like, and by what the client offers.
    let sni = Some("outbound_.7000_._.a.shop.svc.cluster.local");
    check(&mesh("shop/sa/x"), 7000, "GET a /", "inbound|7000|| a/");
    check(&Client { alpn: &["istio"], server_name: sni, ..mesh("shop/sa/x") }, 7000, "", "inbound|7000||");
    check(&PLAIN_HTTP, 7000, "GET a /", "inbound|7000|| a/");
}

#[test]
fn policies_of_bytes_know_identities_and_ports() {
    let config = proxy("protocols", "db-0");
    let check = |client: &Client, port: u16, request: &str, expected: &str| {
        let to = format!("10.244.1.2:{port}");
        assert_eq!(outcome(&config, "virtualInbound", client, &to, request, 0), expected, "{} {port}", client.identity);
    };
    let sni = Some("outbound_.5432_._.db.shop.svc.cluster.local");
    let tcp = |identity| Client { alpn: &["istio"], server_name: sni, ..mesh(identity) };
    check(&tcp("shop/sa/x"), 5432, "", "inbound|5432||");
    check(&tcp("other/sa/x"), 5432, "", "denied by default");
    check(&tcp("shop/sa/x"), 7946, "", "denied by default");
    check(&PLAIN_TCP, 5432, "", "closed");
    // No service leads to port 9100: its mode is the policy's, its cluster the passthrough's.
    check(&PLAIN_HTTP, 9100, "GET db /", "denied by default");
    check(&mesh("shop/sa/a"), 9100, "GET db /v1/x", "InboundPassthroughCluster db/v1/x");
    // Port 8500 takes plaintext only: nobody there has an identity.
    check(&PLAIN_HTTP, 8500, "GET peers /v1/x", "denied by default");
}

#[test]
fn routes_match_rewrite_redirect_and_answer() {
    let config = proxy("routing", "client-0");
    let call = |request: &str, random| outcome(&config, "0.0.0.0_80", &PLAIN_HTTP, "10.96.2.1:80", request, random);
    let check = |request: &str, expected: &str| assert_eq!(call(request, 0), expected, "{request}");
    let to = |subset: &str| format!("outbound|80|{subset}|reviews.shop.svc.cluster.local");
    check("GET reviews /p?debug=1 x-canary=yes x-present=", &format!("{} reviews/p?debug=1", to("v2")));
    check("POST reviews /p?debug=1 x-canary=yes x-present=", &format!("{} reviews/p?debug=1", to("v1")));
    check("GET reviews /p?debug=1 x-canary=yes x-present= x-stable=1", &format!("{} reviews/p?debug=1", to("v1")));
    check("GET reviews /p?debug=1 x-canary=yes x-present= x-user=admin1", &format!("{} reviews/p?debug=1", to("v1")));
    check("GET reviews /p?debug=2 x-canary=yes x-present=", &format!("{} reviews/p?debug=2", to("v1")));
    check("GET reviews /v12/x", &format!("{} reviews/v12/x", to("v2")));
    check("GET reviews.shop /OLD/page", &format!("{} new.example.com/new/page", to("v1")));
    check("GET 10.96.2.1 /moved", "308 https://elsewhere.example.com/there");
    check("GET reviews.shop.svc.cluster.local /teapot", "418");
    check("GET reviews /gone", "503 no cluster");
    check("GET nowhere.example.com /", "outbound|80||ratings.shop.svc.cluster.local nowhere.example.com/");
    let of_v1 = (0..100).filter(|random| call("GET reviews /", *random).starts_with(&to("v1"))).count();
    assert_eq!(of_v1, 75);

    let tcp = |random| outcome(&config, "10.96.2.1_9000", &PLAIN_TCP, "10.96.2.1:9000", "", random);
    let of_v1 = (0..100).filter(|random| tcp(*random) == "outbound|9000|v1|reviews.shop.svc.cluster.local").count();
    assert_eq!(of_v1, 80);
}

#[test]
fn only_what_is_registered_may_leave() {
    let config = proxy("egress", "client-0");
    let http = |request: &str| outcome(&config, "0.0.0.0_80", &PLAIN_HTTP, "192.0.2.1:80", request, 0);
    assert_eq!(http("GET unknown.example.com /"), "502");
    assert_eq!(http("GET api.example.com /"), "outbound|80||api.example.com api.example.com/");
    assert_eq!(http("GET x.wild.example.com /"), "outbound|80||*.wild.example.com x.wild.example.com/");
    let tls = |name| {
        let client = Client { server_name: Some(name), ..PLAIN_TCP };
        outcome(&config, "0.0.0.0_443", &client, "192.0.2.1:443", "", 0)
    };
    assert_eq!(tls("x.wild.example.com"), "outbound|443||*.wild.example.com");
    assert_eq!(tls("unknown.example.com"), "BlackHoleCluster");
    assert_eq!(outcome(&config, "virtualOutbound", &PLAIN_TCP, "192.0.2.1:22", "", 0), "BlackHoleCluster");
}

#[test]
fn gateways_tell_hosts_apart_and_refuse_by_client_address() {
    let config = proxy("gateways", "edge-0");
    let http = |request: &str| outcome(&config, "0.0.0.0_80", &PLAIN_HTTP, "127.0.0.1:80", request, 0);
    assert_eq!(http("GET a.example.com /api/x"), "outbound|80||web.shop.svc.cluster.local a.example.com/api/x");
    assert_eq!(http("GET x.b.example.com /"), "outbound|80||web.shop.svc.cluster.local x.b.example.com/");
    assert_eq!(http("GET y.b.example.com /"), "404");
    assert_eq!(http("GET s.example.com /p"), "301 https://s.example.com/p");
    let bad = Client { from: "203.0.113.7:1", ..PLAIN_HTTP };
    let denied = outcome(&config, "0.0.0.0_80", &bad, "127.0.0.1:80", "GET a.example.com /", 0);
    assert_eq!(denied, "denied by ns[istio-system]-policy[edge]-rule[0]");
    let pass = Client { server_name: Some("pass.example.com"), ..PLAIN_TCP };
    let passed = outcome(&config, "0.0.0.0_9443", &pass, "127.0.0.1:9443", "", 0);
    assert_eq!(passed, "outbound|443||web.shop.svc.cluster.local");
    let idle = outcome(&config, "0.0.0.0_8088", &PLAIN_HTTP, "127.0.0.1:8088", "GET idle.example.com /", 0);
    assert_eq!(idle, "404");
}

#[test]
fn sidecars_say_what_may_be_called_and_where_the_workload_listens() {
    let check = |pod: &str, listener: &str, client: &Client, to: &str, request: &str, expected: &str| {
        let config = proxy("sidecars", pod);
        assert_eq!(outcome(&config, listener, client, to, request, 0), expected, "{pod} {listener} {to} {request}");
    };
    let ledger = "outbound|80||ledger.stock.svc.cluster.local";
    let http = |pod: &str, request: &str, expected: &str| {
        check(pod, "0.0.0.0_80", &PLAIN_HTTP, "10.96.1.2:80", request, expected);
    };
    // One service and a namespace are imported; routes of what is imported lead on; the rest goes to the egress proxy.
    http("web-0", "GET worker /x", "outbound|80||worker.shop.svc.cluster.local worker/x");
    http("web-0", "GET worker /ledger", &format!("{ledger} worker/ledger"));
    http(
        "web-0",
        "GET tracing.istio-system /",
        "outbound|80||tracing.istio-system.svc.cluster.local tracing.istio-system/",
    );
    http("web-0", "GET web /", "outbound|3128||out.example.com web/");
    http("web-0", "GET ledger.stock /", "outbound|3128||out.example.com ledger.stock/");
    let audit = "outbound|8081||ledger.stock.svc.cluster.local ledger.stock:8081/";
    check("web-0", "10.97.0.1_8081", &PLAIN_HTTP, "10.97.0.1:8081", "GET ledger.stock:8081 /", audit);
    let raw = "outbound|9001||db.stock.svc.cluster.local";
    check("web-0", "10.96.1.3_9001", &PLAIN_TCP, "10.96.1.3:9001", "", raw);
    check("web-0", "virtualOutbound", &PLAIN_TCP, "192.0.2.1:22", "", "outbound|3128||out.example.com");
    // Its namespace's: only that, and no routes that are defined elsewhere.
    http("worker-0", "GET web /", "outbound|80||web.shop.svc.cluster.local web/");
    http("worker-0", "GET tracing.istio-system /", "502");
    check("worker-0", "virtualOutbound", &PLAIN_TCP, "192.0.2.1:22", "", "BlackHoleCluster");
    // The mesh's.
    http("db-0", "GET ledger /", &format!("{ledger} ledger/"));
    http("db-0", "GET worker.shop /", "PassthroughCluster worker.shop/");
    // What is not redirected cannot pass to where it was meant for.
    let worker = "outbound|80||worker.shop.svc.cluster.local worker/";
    check("legacy-0", "127.0.0.2_80", &PLAIN_HTTP, "127.0.0.2:80", "GET worker /", worker);
    check("legacy-0", "127.0.0.2_80", &PLAIN_HTTP, "127.0.0.2:80", "GET nowhere.example.com /", "502");
    check("legacy-0", "127.0.0.2_80", &PLAIN_TCP, "127.0.0.2:80", "", "BlackHoleCluster");
    let tcp = "outbound|9000||worker.shop.svc.cluster.local";
    check("legacy-0", "127.0.0.1_9000", &PLAIN_TCP, "127.0.0.1:9000", "", tcp);

    let inbound = |pod: &str, client: &Client, to: &str, request: &str, expected: &str| {
        check(pod, "virtualInbound", client, to, request, expected);
    };
    inbound("web-0", &PLAIN_HTTP, "10.244.1.1:9080", "GET web /", "inbound|9080|| web/");
    inbound("web-0", &PLAIN_TCP, "10.244.1.1:9443", "", "inbound|9443||");
    inbound("web-0", &PLAIN_HTTP, "10.244.1.1:80", "GET web /", "InboundPassthroughCluster web/");
    inbound("worker-0", &PLAIN_HTTP, "10.244.1.2:80", "GET worker /", "inbound|80|| worker/");
    check("legacy-0", "10.244.1.5_7000", &PLAIN_HTTP, "10.244.1.5:7000", "GET legacy /", "inbound|7000|| legacy/");
    check("legacy-0", "127.0.0.9_7002", &PLAIN_TCP, "127.0.0.9:7002", "", "inbound|7002||");
}
