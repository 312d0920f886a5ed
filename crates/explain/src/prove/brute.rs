//! Compares the proof with exhaustive trials: generated policies and routes, and all requests over a small alphabet.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_filters::explain::query;
use evenkeel_filters::explain::{Explainer, Step};
use evenkeel_model::Workload;
use evenkeel_runtime_config::view::PlainRequest;

use super::answer::{Claim, Party, Reachability};
use crate::arrival::{Arrival, CLIENT_PORT, Side};
use crate::hop;
use crate::world::World;

/// Meshes that each of two tests generates, `PROVE_CASES` or as many; `PROVE_FIRST` is the number of the first one.
fn cases() -> usize {
    let given = std::env::var("PROVE_CASES").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| evenkeel_testkit::cases(10, 30))
}

const MESH: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {serviceAccountName: web, containers: [{name: web}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: batch, namespace: data}
spec:
  selector: {matchLabels: {app: batch}}
  template: {metadata: {labels: {app: batch}}, spec: {serviceAccountName: batch, containers: [{name: batch}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: old, namespace: shop}
spec:
  selector: {matchLabels: {app: old}}
  template:
    metadata: {labels: {app: old}, annotations: {sidecar.istio.io/inject: "false"}}
    spec: {containers: [{name: old}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: shop}
spec:
  selector: {matchLabels: {app: api}}
  template: {metadata: {labels: {app: api}}, spec: {serviceAccountName: api, containers: [{name: api, ports: [{containerPort: 80}]}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: other, namespace: shop}
spec:
  selector: {matchLabels: {app: other}}
  template: {metadata: {labels: {app: other}}, spec: {serviceAccountName: other, containers: [{name: other}]}}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {clusterIP: 10.96.1.1, selector: {app: api}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec: {clusterIP: 10.96.1.2, selector: {app: other}, ports: [{name: http, port: 80}]}
"#;

/// Numbers by a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn of<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.below(all.len())]
    }

    fn some(&mut self, all: &[&str], most: usize) -> String {
        let count = 1 + self.below(most);
        let values: Vec<String> = (0..count).map(|_| format!("\"{}\"", self.of(all))).collect();
        format!("[{}]", values.join(", "))
    }

    fn is(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

const PATHS: [&str; 12] =
    ["/a", "/a/b", "/a*", "/a/*", "*/b", "*b", "/a/{*}", "/b/{**}", "/b/{*}/a", "*", "/ab", "/a/a*"];
const PRINCIPALS: [&str; 5] =
    ["cluster.local/ns/shop/sa/web", "cluster.local/ns/data/sa/batch", "cluster.local/ns/shop/*", "*/sa/web", "*"];

fn rule(numbers: &mut Numbers) -> String {
    let mut parts = Vec::new();
    if numbers.is(2) {
        let mut fields = Vec::new();
        match numbers.below(4) {
            0 => fields.push(format!("principals: {}", numbers.some(&PRINCIPALS, 2))),
            1 => fields.push(format!("notPrincipals: {}", numbers.some(&PRINCIPALS, 1))),
            2 => fields.push(format!("namespaces: {}", numbers.some(&["shop", "data", "d*"], 2))),
            _ => fields.push(format!("ipBlocks: {}", numbers.some(&["10.244.0.0/31", "10.244.0.2", "0.0.0.0/1"], 1))),
        }
        parts.push(format!("from: [{{source: {{{}}}}}]", fields.join(", ")));
    }
    if !numbers.is(4) {
        let operations: Vec<String> = (0..1 + numbers.below(2)).map(|_| operation(numbers)).collect();
        parts.push(format!("to: [{}]", operations.join(", ")));
    }
    if numbers.is(3) {
        let field = numbers.of(&["values", "notValues"]);
        let values = numbers.some(&["a", "b", "a*", "*b", "*"], 2);
        parts.push(format!("when: [{{key: 'request.headers[x-k]', {field}: {values}}}]"));
    }
    if parts.is_empty() { "{}".to_owned() } else { format!("{{{}}}", parts.join(", ")) }
}

fn operation(numbers: &mut Numbers) -> String {
    let mut fields = vec![match numbers.below(2) {
        0 => format!("paths: {}", numbers.some(&PATHS, 3)),
        _ => format!("notPaths: {}", numbers.some(&PATHS, 3)),
    }];
    if numbers.is(3) {
        fields.push(format!("{}: {}", numbers.of(&["methods", "notMethods"]), numbers.some(&["GET", "P*", "*"], 1)));
    }
    if numbers.is(4) {
        fields.push(format!(
            "{}: {}",
            numbers.of(&["hosts", "notHosts"]),
            numbers.some(&["api", "API.shop", "*.shop", "a*"], 2)
        ));
    }
    if numbers.is(6) {
        fields.push(format!("{}: [\"{}\"]", numbers.of(&["ports", "notPorts"]), numbers.of(&["80", "81"])));
    }
    format!("{{operation: {{{}}}}}", fields.join(", "))
}

fn policies(numbers: &mut Numbers) -> String {
    let mut all = String::new();
    let mode = numbers.of(&["STRICT", "PERMISSIVE", "DISABLE", ""]);
    if !mode.is_empty() {
        all.push_str(&format!(
            "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: p, namespace: shop}}\nspec: {{mtls: {{mode: {mode}}}}}\n"
        ));
    }
    for number in 0..1 + numbers.below(4) {
        let action = numbers.of(&["DENY", "ALLOW", "ALLOW"]);
        let rules: Vec<String> = (0..1 + numbers.below(3)).map(|_| rule(numbers)).collect();
        let rules = rules.join("\n    - ");
        all.push_str(&format!(
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: a{number}, namespace: shop}}\nspec:\n  \
             selector: {{matchLabels: {{app: api}}}}\n  action: {action}\n  rules:\n    - {rules}\n"
        ));
    }
    if numbers.is(2) {
        all.push_str(&routes(numbers));
    }
    all
}

fn routes(numbers: &mut Numbers) -> String {
    let mut all = String::from(
        "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: shop}\nspec:\n  hosts: [api]\n  http:\n",
    );
    for _ in 0..1 + numbers.below(3) {
        let uri = numbers.of(&["{prefix: /a}", "{exact: /a/b}", "{regex: '/[^/]+/b'}", "{prefix: /b/}", "{prefix: /}"]);
        let more = numbers.of(&[
            "",
            ", method: {exact: GET}",
            ", headers: {x-k: {prefix: a}}",
            ", queryParams: {q: {exact: b}}",
        ]);
        let action = numbers.of(&[
            "route: [{destination: {host: api}}]",
            "rewrite: {uri: /b/}, route: [{destination: {host: api}}]",
            "rewrite: {authority: api.shop}, route: [{destination: {host: api}}]",
            "headers: {request: {set: {x-k: b}}}, route: [{destination: {host: api}}]",
            "headers: {request: {remove: [x-k]}}, route: [{destination: {host: api}}]",
            "route: [{destination: {host: other}}]",
            "route: [{destination: {host: other}, weight: 50}, {destination: {host: api}, weight: 50}]",
            "redirect: {uri: /x}",
            "directResponse: {status: 418}",
        ]);
        // A match of a regular expression has no prefix that could be replaced.
        let action =
            if uri.contains("regex") { action.replace("rewrite: {uri: /b/}, ", "") } else { action.to_owned() };
        all.push_str(&format!("    - {{match: [{{uri: {uri}{more}}}], {action}}}\n"));
    }
    if numbers.is(2) {
        all.push_str("    - {route: [{destination: {host: api}}]}\n");
    }
    all
}

fn world(policies: &str) -> World {
    let files: Vec<(Arc<str>, Arc<str>)> =
        vec![("mesh.yaml".into(), MESH.into()), ("more.yaml".into(), policies.into())];
    let (objects, found) = evenkeel_api::load(&files);
    assert!(!found.has_errors(), "{found}\n{policies}");
    World::new(objects, files.into_iter().collect::<BTreeMap<_, _>>())
}

/// All paths over a small alphabet, some with a query.
fn paths() -> Vec<String> {
    let mut all = vec!["/".to_owned()];
    let mut last = all.clone();
    for _ in 0..4 {
        last = last.iter().flat_map(|path| ["a", "b", "/"].map(|more| format!("{path}{more}"))).collect();
        all.extend(last.iter().cloned());
    }
    let with_query: Vec<String> =
        ["/", "/a", "/a/b", "/b/", "/b/a", "/a/", "/a/a"].iter().map(|path| format!("{path}?q=b")).collect();
    all.extend(with_query);
    all
}

/// What proxies themselves say of a call, both of them; each of so many random draws, and each endpoint, counts.
fn gets_through(
    world: &World,
    explainer: &mut Explainer,
    (from, to): (&Arc<Workload>, &Arc<Workload>),
    (address, request): (SocketAddr, &PlainRequest),
    draws: u64,
) -> bool {
    let source = SocketAddr::new(from.addresses[0], CLIENT_PORT);
    let arrival = Arrival {
        source,
        destination: address,
        socket: None,
        tls: None,
        request: Some(request.clone()),
        host: None,
        random: 0,
    };
    if !from.has_proxy {
        let own = SocketAddr::new(to.addresses[0], 80);
        let is_service = address.ip().to_string() == "10.96.1.1";
        return (is_service || address == own)
            && accepts(world, explainer, to, Arrival { destination: own, ..arrival });
    }
    (0..draws).any(|draw| {
        let arrival = Arrival { random: draw * 50, ..arrival.clone() };
        let proxy = world.proxy(from);
        let Some(listener) = hop::listener(&proxy, Side::Outbound, address) else { return false };
        let (explanation, trace) =
            query::trace(explainer, &proxy.config, listener, &hop::asked(&arrival, vec![listener.name.to_string()]));
        let Some(Step::Endpoints { cluster, .. }) = explanation.steps.last() else { return false };
        if explanation.answer.is_some() {
            return false;
        }
        let compiled = &proxy.config.clusters[&**cluster];
        let is_anywhere = matches!(compiled.discovery, evenkeel_runtime_config::cluster::Discovery::OriginalDst(_));
        let own = SocketAddr::new(to.addresses[0], 80);
        let host = compiled
            .endpoints
            .hosts
            .iter()
            .find(|host| host.address == evenkeel_runtime_config::address::EndpointAddress::Socket(own));
        let leads = if is_anywhere { address == own } else { host.is_some() };
        if !leads {
            return false;
        }
        let tls = hop::tls_to(world, &proxy, compiled, (own, host.map(AsRef::as_ref)), trace.sent.is_some());
        let request = trace.sent.clone().or(arrival.request.clone());
        accepts(world, explainer, to, Arrival { destination: own, tls, request, ..arrival })
    })
}

fn accepts(world: &World, explainer: &mut Explainer, to: &Arc<Workload>, arrival: Arrival) -> bool {
    let proxy = world.proxy(to);
    let listener = hop::listener(&proxy, Side::Inbound, arrival.destination).expect("a listener");
    let (explanation, trace) =
        query::trace(explainer, &proxy.config, listener, &hop::asked(&arrival, vec![listener.name.to_string()]));
    let has = arrival.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
    let needs = trace.chain.as_ref().is_some_and(|chain| chain.tls.is_some());
    matches!(explanation.steps.last(), Some(Step::Endpoints { .. })) && explanation.answer.is_none() && (has || !needs)
}

/// Two halves, which run in parallel.
#[test]
fn agrees_with_trying_everything() {
    check_from(0);
}

#[test]
fn agrees_with_trying_everything_in_other_meshes() {
    check_from(cases() as u64);
}

/// Compares the cases of the seeds from there on.
fn check_from(first: u64) {
    let cases = cases();
    let (paths, mut counts) = (paths(), BTreeMap::<&str, usize>::new());
    let lines: [&[&str]; 6] = [&[], &["a"], &["b"], &["ab"], &["c"], &["a", "b"]];
    let hosts = ["api", "api.shop", "x.shop", "b"];
    let first: u64 = std::env::var("PROVE_FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(first);
    for seed in first..first + cases as u64 {
        let mut numbers = Numbers(seed * 7919 + 1);
        let policies = policies(&mut numbers);
        // Chance has a say where routes have weights.
        let draws = if policies.contains("weight") { 2 } else { 1 };
        let world = world(&policies);
        let to = world.find("api", Some("shop")).expect("it is there");
        let mut explainer = Explainer::default();
        for (name, namespace) in [("web", "shop"), ("batch", "data"), ("old", "shop")] {
            let from = world.find(name, Some(namespace)).expect("it is there");
            let claim = Claim {
                from: Party::Workload(name.to_owned(), Some(namespace.to_owned())),
                to: Party::Workload("api".to_owned(), Some("shop".to_owned())),
                path: None,
                // Only requests are tried.
                method: Some(numbers.of(&["GET", "PUT"]).to_owned()),
                port: Some(80),
                host: None,
                without_jwt: true,
            };
            let proof = world.prove(&claim).expect("both are there");
            let method = claim.method.clone().unwrap_or_default();
            let own = SocketAddr::new(to.addresses[0], 80);
            let addresses = [SocketAddr::from(([10, 96, 1, 1], 80)), own];
            let mut all = Vec::new();
            for address in addresses {
                for host in hosts {
                    all.extend(lines.iter().map(|lines| (address, host, *lines)));
                }
            }
            let found = all.into_iter().find_map(|(address, host, lines)| {
                paths.iter().find_map(|path| {
                    let request = PlainRequest::new(&method, host, path);
                    let request = lines.iter().fold(request, |request, line| request.with_header("x-k", line));
                    gets_through(&world, &mut explainer, (&from, &to), (address, &request), draws)
                        .then(|| format!("{address} {request:?}"))
                })
            });
            // Its witness may be outside the small alphabet.
            let is_witness = found.is_none()
                && proof.witness.as_ref().is_some_and(|witness| {
                    let path = witness.url.strip_prefix("http://").and_then(|rest| Some(&rest[rest.find('/')?..]));
                    let request = PlainRequest::new(&witness.method, &witness.authority, path.unwrap_or("/"));
                    let add =
                        |request: PlainRequest, (name, value): &(String, String)| request.with_header(name, value);
                    let request = witness.headers.iter().fold(request, add);
                    let mut passes =
                        |address| gets_through(&world, &mut explainer, (&from, &to), (address, &request), draws);
                    addresses.into_iter().any(&mut passes)
                });
            let verdict = match (proof.verdict, &found) {
                (Reachability::Reachable, Some(_)) => "both reach",
                (Reachability::Unreachable, None) => "neither reaches",
                (Reachability::Reachable, None) if is_witness => "the witness reaches",
                (Reachability::Reachable, None) => "only the proof reaches",
                (Reachability::Unreachable, Some(_)) => "only trying reaches",
                (Reachability::Undecided, _) => "undecided",
            };
            *counts.entry(verdict).or_default() += 1;
            assert!(
                !matches!(verdict, "only trying reaches" | "undecided" | "only the proof reaches"),
                "seed {seed}, {name}: {verdict}\n{found:?}\n{}\n{policies}",
                proof.to_text()
            );
        }
    }
    println!("{counts:?}");
    assert!(counts["both reach"] > cases / 6 && counts["neither reaches"] > cases / 6, "{counts:?}");
    assert!(counts.get("the witness reaches").is_none_or(|count| *count <= 1 + cases / 20), "{counts:?}");
}
