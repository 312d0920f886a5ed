//! ListenerSets: listeners that are added to a Gateway, and the routes that attach to them.

use crate::calls::{Arrival, Mesh, object_of};

/// The API version of the Gateway API's kinds.
const API: &str = "gateway.networking.k8s.io/v1";

/// A Gateway that takes these ListenerSets, with its proxy, and labels of the namespace `stock`.
fn gate(allowed: &str, listeners: &str) -> String {
    let pod = "apiVersion: v1\nkind: Namespace\nmetadata: {name: stock, labels: {team: b}}\n---\n\
               apiVersion: v1\nkind: Pod\nmetadata: {name: gate-0, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: gate}}\n\
               spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.1.1, conditions: [{type: Ready, status: \"True\"}]}\n---\n";
    let allowed =
        if allowed.is_empty() { String::new() } else { format!("allowedListeners: {{namespaces: {{{allowed}}}}}\n") };
    let spec = format!("gatewayClassName: istio\n{allowed}listeners: [{listeners}]");
    pod.to_owned() + &object_of(API, "Gateway", "gate", "shop", &spec)
}

fn set(name: &str, namespace: &str, listeners: &str) -> String {
    object_of(
        API,
        "ListenerSet",
        name,
        namespace,
        &format!("parentRef: {{name: gate, namespace: shop}}\nlisteners: [{listeners}]"),
    )
}

/// A route of the namespace of its parent to a backend there.
fn route(name: &str, namespace: &str, parent: &str, host: &str, backend: &str) -> String {
    let spec = format!(
        "parentRefs: [{{{parent}}}]\nhostnames: ['{host}']\nrules: [{{backendRefs: [{{name: {backend}, port: 80}}]}}]"
    );
    object_of(API, "HTTPRoute", name, namespace, &spec)
}

fn to(port: u16) -> Arrival {
    let (listener, to) = match port {
        80 => ("0.0.0.0_80", "10.244.1.1:80"),
        _ => ("0.0.0.0_8080", "10.244.1.1:8080"),
    };
    Arrival { listener, to, from: "10.9.9.9:4000", sni: None, random: 0 }
}

const PLAIN: &str = "{name: http, port: 80, protocol: HTTP}";
const OTHER: &str = "{name: other, port: 8080, protocol: HTTP}";

#[test]
fn namespaces_that_a_gateway_takes() {
    let check = |allowed: &str, namespace: &str, backend: &str, is_taken: bool| {
        let parent = "kind: ListenerSet, name: s";
        let text =
            gate(allowed, PLAIN) + &set("s", namespace, OTHER) + &route("r", namespace, parent, "a.test", backend);
        let mesh = Mesh::new(&text);
        let got = mesh.proxy("router gate-0.shop").decide(to(8080), "GET a.test /");
        let expected = if is_taken { format!("a.test/ to {backend}.{namespace}:80") } else { "no listener".to_owned() };
        assert_eq!(got, expected, "{allowed} {namespace}");
        let codes: &[&str] = if is_taken { &[] } else { &["not-allowed"] };
        assert_eq!(mesh.codes, codes, "{allowed} {namespace}");
    };
    check("", "shop", "reviews", false);
    check("from: None", "shop", "reviews", false);
    check("from: Same", "shop", "reviews", true);
    check("from: Same", "stock", "ledger", false);
    check("from: All", "stock", "ledger", true);
    check("from: Selector, selector: {matchLabels: {team: b}}", "stock", "ledger", true);
    check("from: Selector, selector: {matchLabels: {team: a}}", "stock", "ledger", false);
}

/// A route attaches to the listeners of what it names, not to those of the Gateway's other sets.
#[test]
fn parents_of_routes() {
    let check = |parent: &str, expected: [&str; 2], codes: &[&str]| {
        let sets = set("s", "shop", &format!("{OTHER}, {{name: third, port: 9090, protocol: HTTP}}"));
        let text = gate("from: Same", PLAIN) + &sets + &route("r", "shop", parent, "a.test", "reviews");
        let mesh = Mesh::new(&text);
        let proxy = mesh.proxy("router gate-0.shop");
        let got = [80, 8080].map(|port| proxy.decide(to(port), "GET a.test /"));
        assert_eq!(got, expected, "{parent}");
        assert_eq!(mesh.codes, codes, "{parent}");
    };
    let (taken, other) = ("a.test/ to reviews.shop:80", "404");
    check("name: gate", [taken, other], &[]);
    check("kind: ListenerSet, name: s", [other, taken], &[]);
    check("kind: ListenerSet, name: s, sectionName: other", [other, taken], &[]);
    check("kind: ListenerSet, name: s, port: 8080", [other, taken], &[]);
    check("kind: ListenerSet, name: s, sectionName: third", [other, other], &[]);
    check("kind: ListenerSet, name: s, sectionName: none", [other, other], &["missing-listener"]);
    check("kind: ListenerSet, name: none", [other, other], &["missing-gateway"]);
}

/// The Gateway's own listeners come first, then the older ListenerSets.
#[test]
fn conflicts() {
    let check = |first: &str, second: &str, expected: &str, codes: &[&str]| {
        let own = "{name: http, port: 80, protocol: HTTP, hostname: own.test}";
        let sets = set("p", "shop", first) + &set("q", "shop", second);
        let routes = route("a", "shop", "kind: ListenerSet, name: p", "*.test", "ratings")
            + &route("b", "shop", "kind: ListenerSet, name: q", "*.test", "reviews");
        let mesh = Mesh::new(&(gate("from: Same", own) + &sets + &routes));
        assert_eq!(mesh.proxy("router gate-0.shop").decide(to(80), "GET a.test /"), expected, "{first} {second}");
        assert_eq!(mesh.codes, codes, "{first} {second}");
    };
    let host = |host: &str| format!("{{name: x, port: 80, protocol: HTTP, hostname: {host}}}");
    check(&host("a.test"), &host("b.test"), "a.test/ to ratings.shop:80", &[]);
    check(&host("b.test"), &host("a.test"), "a.test/ to reviews.shop:80", &[]);
    check(&host("a.test"), &host("a.test"), "a.test/ to ratings.shop:80", &["conflict"]);
    check(&host("own.test"), &host("a.test"), "a.test/ to reviews.shop:80", &["conflict"]);
    // The most specific listener takes a host, of whichever set it is.
    check(&host("'*.test'"), &host("a.test"), "a.test/ to reviews.shop:80", &[]);
    let tcp = "{name: x, port: 80, protocol: TCP}";
    check(tcp, &host("a.test"), "a.test/ to reviews.shop:80", &["conflict", "not-allowed"]);
}
