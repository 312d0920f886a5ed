//! Changes, and their effects on recent requests.

use std::path::PathBuf;

use evenkeel_explain::Plan;
use evenkeel_explain::plan::{EXAMPLES, Sampled};
use evenkeel_filters::explain::query::{QueriedTls, RecentRequest};
use evenkeel_testkit::golden;

use crate::mesh::{recent, with, world};

fn sample() -> Vec<Sampled> {
    let at = |pod: &str, id: usize, words: &str, arrival| Sampled {
        pod: pod.to_owned(),
        namespace: "shop".to_owned(),
        request: recent(&format!("request-{id}"), words, arrival),
    };
    let out = ("outbound", "10.96.1.2:80");
    let mut all: Vec<Sampled> = (0..20).map(|id| at("web-0", id, "GET http://reviews/x", out)).collect();
    all.push(at("web-0", 20, "GET http://reviews/beta/x end-user:jason", out));
    all.push(at("web-0", 21, "GET http://reviews/beta/x cookie:[redacted]", out));
    all.push(at("web-0", 22, "GET http://reviews/old", out));
    all.push(at("web-0", 23, "GET http://reviews/gone", out));
    all.push(at("gone-0", 24, "GET http://reviews/x", out));
    let mut cut = at("web-0", 25, "GET http://reviews/x", out);
    cut.request.call.request.as_mut().expect("a head").left_out = 2;
    all.push(cut);
    all
}

const CHANGE: &str = "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews]
  http:
  - name: beta
    match: [{uri: {prefix: /beta}, headers: {cookie: {regex: '.*tester.*'}}}]
    route: [{destination: {host: reviews, subset: v2}}]
  - name: old
    match: [{uri: {exact: /old}}]
    route: [{destination: {host: reviews, subset: v9}}]
  - name: rest
    route: [{destination: {host: reviews, subset: v2}}]
";

#[test]
fn people_read_this() {
    let same = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: shop}\ndata: {a: b}\n";
    let slower = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
        spec: {hosts: [web], http: [{timeout: 3s, route: [{destination: {host: web}}]}]}\n";
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let to_web = |id| Sampled {
        pod: "web-0".to_owned(),
        namespace: "shop".to_owned(),
        request: recent(id, "GET http://web/\u{1b}[2J", ("outbound", "10.96.1.1:80")),
    };
    for (name, change, sample) in [
        ("plan", CHANGE, sample()),
        ("plan_same", same, sample()),
        ("plan_changes", slower, vec![to_web("a"), to_web("b")]),
        ("plan_nothing", CHANGE, Vec::new()),
    ] {
        let text = Plan::new(&world(""), &with(change), &sample, EXAMPLES).to_text(false);
        assert!(!text.contains('\u{1b}'), "{text}");
        golden::check(folder.join(format!("{name}.txt")), &text);
    }
}

#[test]
fn programs_read_it_too() {
    let plan = Plan::new(&world(""), &with(CHANGE), &sample(), EXAMPLES);
    let json = plan.to_json();
    let count = |list: &str| {
        let groups = json[list].as_array().expect("a list");
        groups.iter().filter_map(|group| group["decisions"].as_u64()).sum::<u64>()
    };
    let judged = json["unaffected"].as_u64().unwrap_or(0)
        + ["fails", "moves", "changes", "repairs"].map(count).iter().sum::<u64>();
    let not_judged: u64 = json["notJudged"].as_object().expect("a map").values().filter_map(|n| n.as_u64()).sum();
    assert_eq!((json["decisions"].as_u64(), judged + not_judged), (Some(26), 26), "{json:#}");
    assert_eq!((count("fails"), not_judged), (1, 3), "{json:#}");
    assert_eq!(json["fails"][0]["to"]["responseFlag"], "NC", "{json:#}");
    assert_eq!(json["fails"][0]["examples"][0]["request"], "GET http://reviews/old", "{json:#}");
    assert_eq!(plan.failing(), 1);
}

#[test]
fn what_is_renamed_or_deleted_in_use_shows_before_it_is_done() {
    let judged = |change: &str| {
        let json = Plan::new(&world(""), &with(change), &sample(), EXAMPLES).to_json();
        let count = |list: &str| {
            let groups = json[list].as_array().expect("a list");
            groups.iter().filter_map(|group| group["decisions"].as_u64()).sum::<u64>()
        };
        let counts = ["fails", "moves", "repairs"].map(count);
        (counts, json)
    };
    // A subset that routes name: those that it served have no cluster.
    let rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: reviews, namespace: shop}\n\
        spec: {host: reviews, subsets: [{name: v1, labels: {version: v1}}]}\n";
    let ([fails, ..], json) = judged(rule);
    assert!(fails > 0, "{json:#}");
    let groups = json["fails"].as_array().expect("a list");
    assert!(groups.iter().all(|group| group["to"]["responseFlag"] == "NC"), "{json:#}");
    // The host of a VirtualService: the old name falls to its service, and the route that led nowhere to nothing.
    let renamed = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: reviews, namespace: shop}\n\
        spec: {hosts: [opinions], http: [{route: [{destination: {host: reviews, subset: v2}}]}]}\n";
    let ([fails, moves, repairs], json) = judged(renamed);
    assert_eq!((fails, repairs), (0, 1), "{json:#}");
    assert!(moves > 0, "{json:#}");
}

/// The end, and the proxy, of what fails.
fn failing(before: &str, change: &str, sample: &[Sampled]) -> Vec<(String, String)> {
    let objects = |more: &str| with(&format!("{before}---\n{more}"));
    let plan = Plan::new(&objects("# nothing\n"), &objects(change), sample, EXAMPLES);
    assert!(plan.not_judged.is_empty(), "{:#}", plan.to_json());
    let one = |group: &evenkeel_explain::plan::Group| {
        let proxy = group.examples.first().map(|example| example.proxy.clone()).unwrap_or_default();
        (group.to.outcome.clone(), proxy)
    };
    plan.fails.iter().map(one).collect()
}

#[test]
fn what_a_later_proxy_refuses_fails() {
    let at = |pod: &str, arrival| Sampled {
        pod: pod.to_owned(),
        namespace: "shop".to_owned(),
        request: recent("one", "GET http://reviews/x", arrival),
    };
    let check = |change: &str, expected: Option<&str>| {
        let failing = failing("", change, &[at("web-0", ("outbound", "10.96.1.2:80"))]);
        let told: Vec<&str> = failing.iter().map(|(outcome, _)| &**outcome).collect();
        assert_eq!(told, expected.into_iter().collect::<Vec<_>>(), "{change}");
        assert!(failing.iter().all(|(_, proxy)| proxy.starts_with("reviews-")), "{failing:?}");
    };
    let deny = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: none, namespace: shop}\n\
                spec: {action: DENY, selector: {matchLabels: {app: reviews}}, rules: [{to: [{operation: {paths: [/x]}}]}]}\n";
    check(deny, Some("deny"));
    check(&deny.replace("[/x]", "[/y]"), None);
    // The client's sidecar no longer speaks mutual TLS, which the server asks for.
    let plain = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: reviews, namespace: shop}\n\
                 spec: {host: reviews, trafficPolicy: {tls: {mode: DISABLE}}, subsets: [{name: v1, labels: {version: v1}}, \
                 {name: v2, labels: {version: v2}}]}\n";
    check(plain, Some("reset"));
    // Its TLS has no certificate of the mesh.
    let simple = plain.replace("DISABLE", "SIMPLE");
    check(&simple, Some("reset"));
    // Nobody takes it off: what has spoken plain text with the program no longer does.
    let open = "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: reviews, namespace: shop}\n\
                spec: {selector: {matchLabels: {app: reviews}}, mtls: {mode: DISABLE}}\n---\n\
                apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: readers, namespace: shop}\n\
                spec: {rules: [{}]}\n";
    check(&format!("{plain}{open}"), None);
    check(&format!("{simple}{open}"), Some("reset"));
    check(&format!("{}{open}", plain.replace("DISABLE", "ISTIO_MUTUAL")), Some("reset"));
}

/// What filter chains of PERMISSIVE are selected by: a client's protocols as it offers them, not the one that was agreed on.
#[test]
fn a_client_is_known_by_what_it_offers() {
    let permissive = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: strict, namespace: shop}\n\
                      spec: {mtls: {mode: PERMISSIVE}}\n";
    let strict = permissive
        .replace("name: strict", "name: web")
        .replace("PERMISSIVE", "STRICT")
        .replace("mtls:", "selector: {matchLabels: {app: reviews}}, mtls:");
    let deny = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: none, namespace: shop}\n\
                spec: {action: DENY, selector: {matchLabels: {app: reviews}}, rules: [{}]}\n";
    let mut request = recent("one", "GET http://reviews/x", ("inbound", "10.244.0.2:9080"));
    request.call.source = Some("192.0.2.9:40000".parse().expect("an address"));
    let mut mutual = request.clone();
    mutual.call.tls = Some(QueriedTls {
        alpn: ["istio-http/1.1", "istio", "http/1.1"].map(str::to_owned).to_vec(),
        identities: vec!["spiffe://cluster.local/ns/shop/sa/web".to_owned()],
        ..QueriedTls::default()
    });
    let check = |request: &RecentRequest, change: &str, expected: &[&str]| {
        let (pod, namespace) = ("reviews-v1-0".to_owned(), "shop".to_owned());
        let failing = failing(permissive, change, &[Sampled { pod, namespace, request: request.clone() }]);
        assert_eq!(failing.iter().map(|(outcome, _)| &**outcome).collect::<Vec<_>>(), expected, "{change}");
    };
    check(&mutual, &strict, &[]);
    check(&mutual, deny, &["deny"]);
    let open = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: readers, namespace: shop}\nspec: {rules: [{}]}\n";
    let plain = |change: &str, expected: &[&str]| {
        let (pod, namespace) = ("reviews-v1-0".to_owned(), "shop".to_owned());
        let before = format!("{permissive}---\n{open}");
        let failing = failing(&before, change, &[Sampled { pod, namespace, request: request.clone() }]);
        assert_eq!(failing.iter().map(|(outcome, _)| &**outcome).collect::<Vec<_>>(), expected, "{change}");
    };
    plain(&strict, &["reset"]);
    plain(deny, &["deny"]);
}
