//! Outcomes of calls, each with the object and line that decides.

use evenkeel_explain::answer::Hop;
use evenkeel_explain::{Answer, World};

use crate::mesh::{ask, world};

/// `OUTCOME STATUS FLAG | ROUTE@LINE | CLUSTER | REASON`; what is not there is left out.
fn short(answer: &Answer) -> String {
    let json = answer.to_json();
    let text = |name: &str| match &json[name] {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let verdict: Vec<String> = ["outcome", "status", "responseFlag"].into_iter().filter_map(text).collect();
    let first = answer.hops.first();
    let route = first.and_then(|hop| hop.route.as_ref()).map(|route| {
        let line =
            route.source.as_ref().and_then(|source| source.line).map_or_else(String::new, |line| format!("@{line}"));
        format!("{}{line}", route.name)
    });
    let chosen = |hop: &Hop| hop.clusters.iter().find(|cluster| cluster.chosen).map(|cluster| cluster.name.clone());
    let parts = [Some(verdict.join(" ")), route, first.and_then(chosen), Some(answer.verdict.reason.clone())];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" | ")
}

fn check(world: &World, question: &str, expected: &str) {
    match ask(world, question) {
        Ok(answer) => assert_eq!(short(&answer), expected, "{question}\n{}", answer.to_text(false)),
        Err(error) => assert_eq!(error.to_string(), expected, "{question}"),
    }
}

const REVIEWS: &str = "reviews.shop.svc.cluster.local";

#[test]
fn rules_are_found_with_their_lines() {
    let world = world("");
    let check = |question: &str, expected: &str| check(&world, question, expected);
    let forward = |rule: &str, subset: &str, pod: &str| {
        format!("forward | {rule} | outbound|80|{subset}|{REVIEWS} | {pod}.shop answers")
    };
    check("web.shop GET http://reviews/x", &forward("split@116", "v1", "reviews-v1-0"));
    check("web.shop GET http://reviews.shop:80/x", &forward("split@116", "v1", "reviews-v1-0"));
    check("web.shop GET http://10.96.1.2/x", &forward("split@116", "v1", "reviews-v1-0"));
    check("web.shop GET http://reviews/beta/x end-user:jason", &forward("jason.beta@99", "v2", "reviews-v2-0"));
    check("web.shop GET http://reviews/old", "redirect 308 | old@108 | redirected to http://reviews/new");
    check("web.shop GET http://reviews/teapot", "direct 418 | teapot@111 | the route answers by itself");
    check(
        "web.shop GET http://reviews/gone",
        &format!("direct 503 NC | gone@114 | outbound|80|v9|{REVIEWS} | {REVIEWS}:80 subset v9 does not exist"),
    );
    check(
        "web.shop GET http://empty/",
        "forward 503 UH | default | outbound|80||empty.shop.svc.cluster.local | empty.shop.svc.cluster.local:80 has no endpoints",
    );
    check("outside GET http://shop.example.com:8080/reviews/1", &forward("@179", "v1", "reviews-v1-0"));
    check("outside GET https://shop.example.com:8443/reviews/1", &forward("@179", "v1", "reviews-v1-0"));
    check(
        "outside GET http://other.example.com:8080/",
        "direct 404 NR | no virtual host is for other.example.com:8080",
    );
}

#[test]
fn policies_decide_at_the_server() {
    let world = world("");
    let check = |question: &str, expected: &str| check(&world, question, expected);
    let to_v1 = format!("split@116 | outbound|80|v1|{REVIEWS}");
    check("web.shop DELETE http://reviews/x", &format!("deny 403 | {to_v1} | no ALLOW policy of the workload matches"));
    check(
        "web.shop GET http://reviews/admin/x",
        &format!("deny 403 | {to_v1} | denied by ns[shop]-policy[no-admin]-rule[0]"),
    );
    // STRICT: a client without sidecar cannot call.
    check(
        "legacy.shop GET http://web/",
        "reset NR | the workload accepts only mutual TLS (STRICT), and the call is plain text",
    );
    // And a server without sidecar is called in plain text.
    check(
        "web.shop GET http://legacy/",
        "forward | default | outbound|80||legacy.shop.svc.cluster.local | forwarded to legacy.shop.svc.cluster.local:80",
    );
}

#[test]
fn names_are_those_of_the_workloads_dns() {
    let world = world("");
    let check = |question: &str, address: &str, resolved: &str| {
        let answer = ask(&world, question).expect("an answer");
        assert!(answer.call.address.starts_with(address), "{question}: {}", answer.call.address);
        assert!(answer.call.resolved.contains(resolved), "{question}: {}", answer.call.resolved);
    };
    check("web.shop GET http://reviews/", "10.96.1.2", "Service shop/reviews");
    check("db.data GET http://reviews.shop.svc/", "10.96.1.2", "Service shop/reviews");
    check("db.data GET http://reviews/", "192.0.2.1", "not a name of the mesh");
    check("web.shop tcp db.data:5432", "10.244.0.5", "headless Service data/db");
    check("web.shop tcp db-0.db.data:5432", "10.244.0.5", "Pod db-0 of the headless");
    check("web.shop GET http://nowhere.example.com/", "192.0.2.1", "not a name of the mesh");
    check("web.shop GET http://maps.example.com/", "240.240", "virtual address of shop/maps");
}

#[test]
fn connections_without_requests_are_explained_too() {
    let world = world("");
    let check = |question: &str, expected: &str| check(&world, question, expected);
    check("web.shop tcp db.data:5432", "forward | outbound|5432||db.data.svc.cluster.local | db-0.data answers");
    check(
        "web.shop tls maps.example.com maps.example.com:443",
        "forward | outbound|443||maps.example.com | forwarded to maps.example.com:443",
    );
    check("web.shop tcp 192.0.2.77:25", "forward | PassthroughCluster | forwarded to PassthroughCluster");
}

#[test]
fn what_is_hidden_is_said() {
    let mesh = world("");
    let answer = ask(&mesh, "web.shop GET http://hidden.data/").expect("an answer");
    assert!(
        answer.notes.iter().any(|note| note == "Service data/hidden is not exported to the namespace shop"),
        "{answer:?}"
    );
    let sidecar = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: own, namespace: shop}\nspec: {egress: [{hosts: ['data/*']}]}\n";
    let mesh = world(sidecar);
    let answer = ask(&mesh, "web.shop GET http://reviews/").expect("an answer");
    assert!(
        answer.notes.iter().any(|note| note == "Sidecar shop/own (more.yaml:3) does not import Service shop/reviews"),
        "{answer:?}"
    );
}

#[test]
fn questions_without_an_answer_say_what_there_is() {
    let world = world("");
    let check = |question: &str, expected: &str| check(&world, question, expected);
    check("wep.shop GET http://reviews/", "there is no workload `wep.shop`; did you mean `web.shop`?");
    check("outside GET http://x:99/", "no gateway listens on port 99; Gateways listen on 8080, 8443");
}

/// A service that carries bytes, with rules for connections.
const RAW: &str = "\
apiVersion: v1
kind: Service
metadata: {name: raw, namespace: shop}
spec: {clusterIP: 10.96.1.9, selector: {app: web}, ports: [{name: tcp, port: 9000}, {name: tls, port: 9443}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: raw, namespace: shop}
spec:
  hosts: [raw.shop.svc.cluster.local]
  tcp:
    - match: [{port: 9000}]
      route: [{destination: {host: reviews, port: {number: 80}}}]
  tls:
    - match: [{port: 9443, sniHosts: [raw.shop.svc.cluster.local]}]
      route: [{destination: {host: raw, port: {number: 9443}}}]
";

#[test]
fn rules_of_connections_have_lines_too() {
    let world = world(RAW);
    let check = |question: &str, expected: &str| check(&world, question, expected);
    check(
        "web.shop tcp raw:9000",
        "reset DPE | @12 | outbound|80||reviews.shop.svc.cluster.local | the port speaks HTTP, and the connection does not",
    );
    check(
        "db.data tls raw.shop.svc.cluster.local raw.shop:9443",
        "forward | @15 | outbound|9443||raw.shop.svc.cluster.local | web-0.shop answers",
    );
}

/// A DestinationRule whose TLS has no certificate of the mesh.
#[test]
fn tls_without_a_certificate_of_the_mesh_is_refused_by_strict_and_else_the_programs() {
    let simple = |tls: &str, mode: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: simple, namespace: shop}}\n\
             spec: {{clusterIP: 10.96.1.10, selector: {{app: web}}, ports: [{{name: tcp, port: 9001, targetPort: 9001}}]}}\n---\n\
             apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: simple, namespace: shop}}\n\
             spec: {{host: simple.shop.svc.cluster.local, trafficPolicy: {{tls: {{mode: {tls}}}}}}}\n---\n\
             apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: web, namespace: shop}}\n\
             spec: {{selector: {{matchLabels: {{app: web}}}}, mtls: {{mode: {mode}}}}}\n"
        )
    };
    let check = |tls: &str, mode: &str, outcome: &str, reason: &str, gets_tls: bool| {
        let answer = ask(&world(&simple(tls, mode)), "db.data tcp simple.shop:9001").expect("an answer");
        let notes = answer.hops.last().map(|hop| hop.notes.clone()).unwrap_or_default();
        assert_eq!(answer.verdict.outcome.as_str(), outcome, "{tls} {mode}: {}", answer.verdict.reason);
        assert!(answer.verdict.reason.contains(reason), "{tls} {mode}: {}", answer.verdict.reason);
        let noted = notes.iter().any(|note| note.starts_with("the program gets TLS"));
        assert_eq!(noted, gets_tls, "{tls} {mode}: {notes:?}");
    };
    check("SIMPLE", "STRICT", "reset", "no certificate of the mesh", false);
    check("SIMPLE", "DISABLE", "forward", "", true);
    check("ISTIO_MUTUAL", "DISABLE", "forward", "", true);
    check("ISTIO_MUTUAL", "STRICT", "forward", "", false);
}

#[test]
fn a_host_header_decides_which_rules_hold() {
    let world = world("");
    let check = |question: &str, expected: &str| check(&world, question, expected);
    check("web.shop GET http://legacy/old host:reviews", "redirect 308 | old@108 | redirected to http://reviews/new");
}

#[test]
fn hosts_that_are_looked_up_when_they_are_called() {
    let world = world(
        "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: any, namespace: shop}
spec:
  hosts: ['*.example.org']
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}]
",
    );
    check(
        &world,
        "web.shop GET http://a.example.org/",
        "forward | default | outbound|80||*.example.org | forwarded to *.example.org:80",
    );
    check(
        &world,
        "web.shop tls a.example.org 192.0.2.1:443",
        "forward | outbound|443||*.example.org | forwarded to *.example.org:443",
    );
}

/// Two ports of one gateway, whose Services both have the port 80.
#[test]
fn a_gateway_is_called_at_the_port_that_its_service_leads_to() {
    let gateway = |name: &str, port: u16| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{selector: {{two: ports}}, servers: [{{port: {{number: {port}, name: http, protocol: HTTP}}, hosts: ['*']}}]}}\n\
             ---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{hosts: [{name}.open.test], gateways: [{name}], http: [{{directResponse: {{status: 204}}}}]}}\n"
        )
    };
    let service = |name: &str, labels: &str, target: u16| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: edge, labels: {{{labels}}}}}\n\
             spec: {{selector: {{two: ports}}, ports: [{{name: http2, port: 80, targetPort: {target}}}]}}\n"
        )
    };
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: two-0, namespace: edge, labels: {two: ports}}\n\
               spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.7.7, phase: Running}\n";
    let label = "experimental.istio.io/disable-gateway-port-translation: \"true\"";
    for inner in ["inner", "zz-inner"] {
        let services = service("middle", "", 8090) + &service(inner, label, 8081);
        let world = world(&format!("{pod}{services}{}{}", gateway("public", 80), gateway("private", 8081)));
        let status = |question: &str| ask(&world, question).expect("an answer").to_text(false);
        let public = status("outside GET http://public.open.test/");
        assert!(public.contains("204") && public.contains("0.0.0.0_8090"), "{inner}: {public}");
        let private = status("outside GET http://private.open.test/");
        assert!(private.contains("404"), "{inner}: {private}");
        let private = status("outside GET http://private.open.test:8081/");
        assert!(private.contains("204"), "{inner}: {private}");
    }
}

/// What a workload sends to its own address stays on its loopback interface, whatever mode and policies say.
#[test]
fn a_workload_that_calls_itself_meets_no_proxy() {
    let strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: istio-system}\nspec: {mtls: {mode: STRICT}}\n---\n\
                  apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: nothing, namespace: istio-system}\nspec: {}\n";
    let world = world(strict);
    let own = world.find("web", Some("shop")).expect("a workload");
    let check = |to: std::net::IpAddr, is_open: bool| {
        let answer = ask(&world, &format!("web.shop GET http://{to}:8080/x")).expect("an answer");
        assert_eq!(answer.hops.is_empty(), is_open, "{}", answer.to_text(false));
        let text = answer.to_text(false);
        assert_eq!(text.contains("calls its own address: no proxy gets that"), is_open, "{text}");
        assert_eq!(answer.verdict.outcome, evenkeel_explain::answer::Outcome::Forward, "{text}");
    };
    check(own.addresses[0], true);
    check([127, 0, 0, 1].into(), true);
    let other = world.find("reviews-v1", Some("shop")).expect("a workload");
    check(other.addresses[0], false);
}
