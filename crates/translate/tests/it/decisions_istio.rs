//! Meshes in which a rule of Istio's decides otherwise than one would guess: routes, services and ports.

use crate::decisions::{Client, PLAIN_HTTP, PLAIN_TCP, outcome};
use crate::decisions_services::{Mesh, outbound};

/// An object.
fn object(api: &str, kind: &str, name: &str, spec: &str) -> String {
    let (namespace, name) = name.split_once('/').unwrap_or(("shop", name));
    let labels = |text: &str| {
        text.strip_prefix('[').and_then(|rest| rest.split_once("] ")).map(|(l, s)| (l.to_owned(), s.to_owned()))
    };
    let (labels, spec) = labels(spec).unwrap_or_else(|| (String::new(), spec.to_owned()));
    format!(
        "---\napiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}\nspec: {spec}\n"
    )
}

pub fn istio(kind: &str, name: &str, spec: &str) -> String {
    object("networking.istio.io/v1", kind, name, spec)
}

pub fn service(name: &str, spec: &str) -> String {
    object("v1", "Service", name, spec)
}

pub fn entry(name: &str, spec: &str) -> String {
    istio("ServiceEntry", name, spec)
}

pub fn routes(name: &str, spec: &str) -> String {
    istio("VirtualService", name, spec)
}

/// A Pod, `NAMESPACE/NAME`, with labels and an address.
pub fn pod(name: &str, labels: &str, address: &str) -> String {
    object("v1", "Pod", name, &format!("[{labels}] {{containers: [{{name: app}}]}}"))
        + &format!("status: {{phase: Running, podIP: {address}, conditions: [{{type: Ready, status: \"True\"}}]}}\n")
}

/// A gateway and a workload that calls.
pub fn base() -> String {
    pod("edge/edge-0", "istio: edge", "10.244.9.1") + &pod("client-0", "app: client", "10.244.0.1")
}

/// A server of the gateway.
pub fn gateway(servers: &str) -> String {
    istio("Gateway", "edge/gw", &format!("{{selector: {{istio: edge}}, servers: [{servers}]}}"))
}

pub fn http(number: u16, hosts: &str) -> String {
    format!("{{port: {{number: {number}, name: http-{number}, protocol: HTTP}}, hosts: [{hosts}]}}")
}

/// Services of the namespace `shop`, on port 80.
pub fn services(names: &str) -> String {
    let one = |(at, name): (usize, &str)| {
        service(
            name,
            &format!("{{clusterIP: 10.96.0.{}, ports: [{{name: http, port: 80}}, {{name: tcp, port: 9000}}]}}", at + 1),
        )
    };
    names.split(' ').enumerate().map(one).collect()
}

pub fn to(service: &str, port: u16) -> String {
    format!("{{route: [{{destination: {{host: {service}.shop.svc.cluster.local, port: {{number: {port}}}}}}}]}}")
}

/// A request at the gateway.
pub fn at_gateway(mesh: &Mesh, port: u16, client: &Client, request: &str) -> String {
    let config = mesh.proxy(&mesh.view("router edge-0.edge"));
    short(&outcome(&config, &format!("0.0.0.0_{port}"), client, &format!("10.244.9.1:{port}"), request, 0))
}

/// A call of the workload.
pub fn call(mesh: &Mesh, client: &Client, to: &str, request: &str) -> String {
    short(&outbound(&mesh.sidecar("client-0.shop"), client, to, request))
}

/// `outbound|80||web.shop.svc.cluster.local a/x` as `web.shop:80`.
fn short(outcome: &str) -> String {
    let cluster = outcome.split(' ').next().unwrap_or_default();
    let parts: Vec<&str> = cluster.split('|').collect();
    match parts.as_slice() {
        ["outbound", port, "", host, ..] => format!("{}:{port}", host.trim_end_matches(".svc.cluster.local")),
        _ if outcome.contains("no cluster") => outcome.to_owned(),
        _ => cluster.to_owned(),
    }
}

pub fn sni(name: &'static str) -> Client {
    Client { server_name: Some(name), ..PLAIN_TCP }
}

/// The resource of a name among a proxy's.
pub fn resource(mesh: &Mesh, proxy: &str, kind: &str, name: &str) -> serde_json::Value {
    let all = crate::recorded::compared(&crate::scenario::translate(&mesh.view(proxy), &mesh.snapshot));
    let list = all[kind].as_array().cloned().unwrap_or_default();
    let is_it = |one: &serde_json::Value| one["name"] == name || one["cluster_name"] == name;
    list.into_iter().find(is_it).unwrap_or(serde_json::Value::Null)
}

pub const EDGE: &str = "router edge-0.edge";
pub const SIDECAR: &str = "sidecar client-0.shop";

#[test]
fn a_gateway_never_calls_the_address_that_it_was_called_at() {
    let mesh = Mesh::read(
        &(base()
            + &gateway(&http(8080, "'*'"))
            + &routes(
                "v",
                "{hosts: ['*'], gateways: [edge/gw], http: [{match: [{uri: {prefix: /none}}], route: [{destination: {host: none.example, port: {number: 80}}}]}, {route: [{destination: {host: db, port: {number: 80}}}]}]}",
            )
            + &service("db", "{clusterIP: None, selector: {app: db}, ports: [{name: http, port: 80}]}")
            + &pod("db-0", "app: db", "10.244.0.7")
            + &entry(
                "none",
                "{hosts: [none.example], location: MESH_EXTERNAL, resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}",
            )
            + &services("web")
            + &istio("DestinationRule", "web", "{host: web, trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}}")),
    );
    let check = |proxy: &str, name: &str, expected: &str, endpoints: &str| {
        let name = format!("outbound|80||{name}");
        assert_eq!(resource(&mesh, proxy, "CDS", &name)["type"], expected, "{proxy} {name}");
        let assigned = resource(&mesh, proxy, "EDS", &name).to_string();
        assert_eq!(assigned.contains("10.244.0.7"), !endpoints.is_empty(), "{proxy} {name}: {assigned}");
    };
    for (name, endpoints) in
        [("db.shop.svc.cluster.local", "10.244.0.7"), ("none.example", ""), ("web.shop.svc.cluster.local", "")]
    {
        check(EDGE, name, "EDS", endpoints);
        check(SIDECAR, name, "ORIGINAL_DST", "");
    }
}

#[test]
fn source_conditions_are_compared_with_the_gateway() {
    let of = |gateway_labels: &str| {
        Mesh::read(
            &(base().replace("istio: edge", &format!("istio: edge{gateway_labels}"))
                + &gateway(&format!(
                    "{}, {{port: {{number: 9000, name: tcp, protocol: TCP}}, hosts: ['*']}}",
                    http(8080, "a.example")
                ))
                + &services("web canary")
                + &routes(
                    "v",
                    &format!(
                        "{{hosts: [a.example], gateways: [edge/gw, mesh], http: [{{match: [{{sourceLabels: {{role: tester}}}}], {}, \
                         {{match: [{{uri: {{prefix: /admin}}, sourceNamespace: admin}}], {}, {{match: [{{uri: {{prefix: /edge}}, sourceNamespace: edge}}], {}, {}], \
                         tcp: [{{match: [{{port: 9000, sourceLabels: {{role: tester}}}}], {}, {{match: [{{port: 9000}}], {}]}}",
                        &to("canary", 80)[1..],
                        &to("canary", 80)[1..],
                        &to("canary", 80)[1..],
                        to("web", 80),
                        &to("canary", 9000)[1..],
                        &to("web", 9000)[1..],
                    ),
                )),
        )
    };
    let check = |labels: &str, request: &str, expected: &str| {
        let (port, client) = if request.is_empty() { (9000, &PLAIN_TCP) } else { (8080, &PLAIN_HTTP) };
        assert_eq!(at_gateway(&of(labels), port, client, request), expected, "{labels} {request}");
    };
    check("", "GET a.example /", "web.shop:80");
    check("", "GET a.example /admin", "web.shop:80");
    check("", "GET a.example /edge", "canary.shop:80");
    check("", "", "web.shop:9000");
    check(", role: tester", "GET a.example /", "canary.shop:80");
    check(", role: tester", "", "canary.shop:9000");
}

#[test]
fn routes_of_a_wildcard_are_served_under_every_name_of_the_server() {
    let of = |hosts: &str| {
        Mesh::read(
            &(base()
                + &gateway(&http(8080, "a.example, b.example, '*.c.example', shop/d.test, other/e.test"))
                + &services("web")
                + &routes("v", &format!("{{hosts: ['{hosts}'], gateways: [edge/gw], http: [{}]}}", to("web", 80)))),
        )
    };
    let check = |hosts: &str, served: &[&str], not: &[&str]| {
        let mesh = of(hosts);
        for (names, expected) in [(served, "web.shop:80"), (not, "404")] {
            for name in names {
                let got = at_gateway(&mesh, 8080, &PLAIN_HTTP, &format!("GET {name} /"));
                assert_eq!(got, expected, "{hosts} {name}");
            }
        }
    };
    check("*", &["a.example", "b.example", "x.c.example", "d.test"], &["other.example", "e.test"]);
    check("*.example", &["a.example", "b.example", "x.c.example"], &["other.example", "d.test"]);
    check("x.c.example", &["x.c.example"], &["y.c.example", "a.example"]);
}

#[test]
fn a_name_without_routes_on_the_port_falls_to_a_wildcard() {
    let mesh = Mesh::read(
        &(base()
            + &gateway(&format!("{}, {}", http(8080, "a.example, '*.example'"), http(8081, "a.example")))
            + &services("web other")
            + &routes(
                "a",
                &format!(
                    "{{hosts: [a.example], gateways: [edge/gw], http: [{{match: [{{port: 8081}}], {}]}}",
                    &to("other", 80)[1..]
                ),
            )
            + &routes("b", &format!("{{hosts: ['*.example'], gateways: [edge/gw], http: [{}]}}", to("web", 80)))),
    );
    assert_eq!(at_gateway(&mesh, 8080, &PLAIN_HTTP, "GET a.example /"), "web.shop:80");
    assert_eq!(at_gateway(&mesh, 8081, &PLAIN_HTTP, "GET a.example /"), "other.shop:80");
}

#[test]
fn further_hosts_of_an_address_have_their_own_tls_routes() {
    let egress = |name: &str| {
        routes(
            name,
            &format!(
                "{{hosts: [{name}.example], tls: [{{match: [{{port: 443, sniHosts: [{name}.example]}}], route: [{{destination: {{host: egress, port: {{number: 443}}}}}}]}}]}}"
            ),
        )
    };
    let of = |protocol: &str, routed: &[&str]| {
        Mesh::read(
            &(base()
                + &entry(
                    "far",
                    &format!(
                        "{{hosts: [a.example, b.example], addresses: [10.7.6.1], location: MESH_EXTERNAL, resolution: STATIC, endpoints: [{{address: 10.5.5.5}}], ports: [{{number: 443, name: tls, protocol: {protocol}}}]}}"
                    ),
                )
                + &service("egress", "{clusterIP: 10.96.0.1, ports: [{name: tls, port: 443}]}")
                + &routed.iter().map(|name| egress(name)).collect::<String>()),
        )
    };
    let check = |routed: &[&str], name: &'static str, expected: &str| {
        assert_eq!(call(&of("TLS", routed), &sni(name), "10.7.6.1:443", ""), expected, "{routed:?} {name}");
        assert_eq!(call(&of("HTTPS", routed), &sni(name), "10.7.6.1:443", ""), expected, "{routed:?} {name}");
    };
    check(&["a", "b"], "a.example", "egress.shop:443");
    check(&["a", "b"], "b.example", "egress.shop:443");
    check(&["a", "b"], "x.example", "PassthroughCluster");
    // Without a route of its own the first takes the rest.
    check(&["b"], "b.example", "egress.shop:443");
    check(&["b"], "a.example", "a.example:443");
    check(&["a"], "b.example", "b.example:443");
    check(&[], "b.example", "a.example:443");
    assert_eq!(call(&of("TCP", &[]), &PLAIN_TCP, "10.7.6.1:443", ""), "a.example:443");
}

#[test]
fn settings_of_a_port_leave_out_the_rest() {
    let mesh = Mesh::read(
        &(base()
            + &service("web", "{clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: http-b, port: 81}]}")
            + &istio(
                "DestinationRule",
                "web",
                "{host: web, trafficPolicy: {loadBalancer: {simple: RANDOM}, retryBudget: {percent: 30}, portLevelSettings: [{port: {number: 80}, tls: {mode: DISABLE}, outlierDetection: {consecutive5xxErrors: 3}}]}, \
                 subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {portLevelSettings: [{port: {number: 80}, connectionPool: {tcp: {maxConnections: 5}}}, {port: {number: 81}, connectionPool: {tcp: {maxConnections: 6}}}]}}, \
                 {name: v2, labels: {version: v2}, trafficPolicy: {retryBudget: {percent: 40}}}]}",
            )),
    );
    let check = |cluster: &str, random: bool, mutual: bool, outliers: bool, budget: serde_json::Value, most: u32| {
        let found = resource(&mesh, SIDECAR, "CDS", &format!("outbound|{cluster}|web.shop.svc.cluster.local"));
        let thresholds = &found["circuit_breakers"]["thresholds"][0];
        assert_eq!(found["lb_policy"] == "RANDOM", random, "{cluster}");
        assert_eq!(found.to_string().contains("tlsMode-istio"), mutual, "{cluster}");
        assert_eq!(found["outlier_detection"].is_object(), outliers, "{cluster}");
        assert_eq!(thresholds["retry_budget"]["budget_percent"]["value"], budget, "{cluster}");
        assert_eq!(thresholds["max_connections"], most, "{cluster}");
    };
    let none = serde_json::Value::Null;
    check("80|", false, false, true, none.clone(), u32::MAX);
    check("81|", true, true, false, 30.0.into(), u32::MAX);
    check("80|v1", false, true, false, none, 5);
    check("81|v1", false, true, false, 30.0.into(), 6);
    check("80|v2", false, false, true, 40.0.into(), u32::MAX);
    check("81|v2", true, true, false, 40.0.into(), u32::MAX);
}

#[test]
fn what_is_exported_to_few_takes_precedence() {
    let answer = |name: &str, host: &str, export: &str, more: &str, status: u16| {
        routes(
            name,
            &format!(
                "{{exportTo: [{export}], hosts: [{host}], {more}http: [{{directResponse: {{status: {status}}}}}]}}"
            ),
        )
    };
    let check = |objects: &str, expected: &str, lost: &[&str]| {
        let mesh = Mesh::read(&(base() + &services("web") + &gateway(&http(8080, "a.example")) + objects));
        let got = if objects.contains("gateways") {
            at_gateway(&mesh, 8080, &PLAIN_HTTP, "GET a.example /")
        } else {
            call(&mesh, &PLAIN_HTTP, "10.96.0.1:80", "GET web.shop.svc.cluster.local /")
        };
        assert_eq!(got, expected, "{objects}");
        let said = mesh.found.iter().filter(|finding| finding.code == "duplicate-host");
        let losers: Vec<_> = said.map(|finding| finding.message.clone()).collect();
        assert_eq!(losers.len(), lost.len(), "{losers:?}");
        for (said, part) in losers.iter().zip(lost) {
            assert!(said.contains(part), "{said}: {part}");
        }
    };
    let web = "web.shop.svc.cluster.local";
    let (wide, named, own) = ("'*'", "shop", "'.'");
    let a = |name: &str, export: &str, status: u16| answer(name, web, export, "", status);
    check(
        &(a("one/a", wide, 410) + &a("two/b", named, 411)),
        "411",
        &["the routes of VirtualService one/a for it are ignored in `shop`"],
    );
    check(&(a("one/a", named, 410) + &a("two/b", wide, 411)), "410", &["two/b"]);
    check(&(a("a", wide, 410) + &a("b", own, 411)), "411", &["shop/a"]);
    check(&(a("one/a", named, 410) + &a("b", own, 411) + &a("c", wide, 412)), "411", &["one/a", "shop/c"]);
    check(&(a("a", wide, 410) + &a("b", wide, 411)), "410", &["shop/b"]);
    let at = |name: &str, export: &str, status: u16| answer(name, "a.example", export, "gateways: [edge/gw], ", status);
    check(&(at("one/a", wide, 410) + &at("two/b", "edge", 411) + &at("edge/c", own, 412)), "412", &[]);
    check(&(at("one/a", wide, 410) + &at("two/b", "edge", 411)), "411", &[]);
}

#[test]
fn rules_count_where_they_are_exported() {
    let rule = |name: &str, export: &str, most: u32| {
        istio(
            "DestinationRule",
            name,
            &format!(
                "{{host: web.shop.svc.cluster.local, exportTo: [{export}], trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: {most}}}}}}}}}"
            ),
        )
    };
    let check = |rules: &str, proxy: &str, expected: u32| {
        let mesh = Mesh::read(&(base() + &services("web") + &pod("far/far-0", "app: far", "10.244.0.8") + rules));
        let cluster = resource(&mesh, proxy, "CDS", "outbound|80||web.shop.svc.cluster.local");
        assert_eq!(cluster["circuit_breakers"]["thresholds"][0]["max_connections"], expected, "{rules} {proxy}");
    };
    let far = "sidecar far-0.far";
    check(&rule("a", "other", 5), SIDECAR, u32::MAX);
    check(&rule("a", "other", 5), far, u32::MAX);
    check(&(rule("a", "other", 5) + &rule("b", "'*'", 6)), SIDECAR, 6);
    check(&(rule("a", "other", 5) + &rule("b", "'*'", 6)), far, 6);
    check(&(rule("a", "far", 5) + &rule("b", "'.'", 6)), far, 5);
    check(&(rule("a", "far", 5) + &rule("b", "'.'", 6)), SIDECAR, 6);
    // Of several that are seen the last counts.
    check(&(rule("a", "'*'", 5) + &rule("b", "'.'", 6)), SIDECAR, 6);
    check(&rule("far/a", "shop", 5), far, u32::MAX);
    check(&rule("far/a", "'.'", 5), far, 5);
    // Rules that are exported alike are merged.
    check(&(rule("a", "'*'", 5) + &rule("b", "'*'", 6)), SIDECAR, 5);
}

#[test]
fn ports_of_entries_take_precedence_over_numbers() {
    let check = |target: &str, expected: u16| {
        let mesh = Mesh::read(
            &(base()
                + &service("web", &format!("{{selector: {{app: web}}, ports: [{{name: http, port: 80{target}}}]}}"))
                + &istio("WorkloadEntry", "vm", "{address: 10.5.0.1, labels: {app: web}, ports: {http: 7070}}")),
        );
        let assigned = resource(&mesh, SIDECAR, "EDS", "outbound|80||web.shop.svc.cluster.local").to_string();
        assert!(assigned.contains(&format!("\"port_value\":{expected}")), "{target}: {assigned}");
    };
    check(", targetPort: 8080", 7070);
    check(", targetPort: http", 7070);
    check("", 80);
}

#[test]
fn a_target_port_without_resolution_replaces_the_port() {
    let of = |ports: &str| {
        let spec = format!(
            "{{hosts: [a.example], addresses: [10.6.0.1], location: MESH_EXTERNAL, resolution: NONE, ports: [{ports}]}}"
        );
        let mesh = Mesh::read(&(base() + &entry("e", &spec)));
        resource(&mesh, SIDECAR, "CDS", "outbound|9001||a.example")["original_dst_lb_config"]["upstream_port_override"]
            .clone()
    };
    assert_eq!(of("{number: 9001, name: tcp, protocol: TCP, targetPort: 9002}"), 9002);
    assert_eq!(of("{number: 9001, name: tcp, protocol: TCP}"), serde_json::Value::Null);
}

#[test]
fn copies_name_the_same_host() {
    let mirrored = "{hosts: [web], http: [{mirror: {host: copy, port: {number: 80}}, route: [{destination: {host: web, port: {number: 80}}}]}]}";
    let mesh = Mesh::read(&(base() + &services("web copy") + &routes("v", mirrored)));
    let table = resource(&mesh, SIDECAR, "RDS", "80").to_string();
    assert!(table.contains("\"disable_shadow_host_suffix_append\":true"), "{table}");
}

#[test]
fn hosts_of_routes_are_called_on_ports_without_a_service_of_theirs() {
    let port = |name: &str, number: u16, address: &str| {
        service(name, &format!("{{clusterIP: {address}, ports: [{{name: http, port: {number}}}]}}"))
    };
    let mesh = Mesh::read(
        &(base()
            + &port("api", 8080, "10.96.0.1")
            + &port("cart", 81, "10.96.0.2")
            + &port("other", 82, "10.96.0.3")
            + &port("web", 80, "10.96.0.4")
            + &routes("api", &format!("{{hosts: [api], http: [{}]}}", to("api", 8080)))
            + &routes("cart", &format!("{{hosts: [cart, other], http: [{}]}}", to("cart", 81)))
            + &routes("all", &format!("{{hosts: ['*.test'], http: [{}]}}", to("web", 80)))
            + &entry(
                "t",
                "{hosts: [a.test], resolution: STATIC, ports: [{number: 82, name: http, protocol: HTTP}], endpoints: [{address: 192.0.2.1}]}",
            )),
    );
    let check = |to: &str, request: &str, expected: &str| {
        assert_eq!(call(&mesh, &PLAIN_HTTP, to, request), expected, "{to} {request}");
    };
    check("10.96.0.1:80", "GET api /", "api.shop:8080");
    check("10.96.0.1:80", "GET api.shop.svc.cluster.local /", "api.shop:8080");
    check("10.96.0.2:82", "GET cart:82 /", "cart.shop:81");
    check("10.96.0.2:80", "GET cart /", "cart.shop:81");
    check("10.96.0.3:81", "GET other:81 /", "cart.shop:81");
    check("10.96.0.4:80", "GET x.test /", "web.shop:80");
    check("10.96.0.4:82", "GET a.test:82 /", "web.shop:80");
    check("10.96.0.4:82", "GET unknown.example /", "PassthroughCluster");
}

#[test]
fn short_names_are_those_of_the_host() {
    let spec = |host: &str| {
        format!(
            "{{hosts: [{host}], location: MESH_INTERNAL, resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], endpoints: [{{address: 192.0.2.1}}]}}"
        )
    };
    let mesh = Mesh::read(
        &(base()
            + &entry("one", &spec("a.other.svc.cluster.local"))
            + &entry("two", &spec("b.shop.svc.cluster.local"))),
    );
    let check = |host: &str, expected: &str| {
        assert_eq!(call(&mesh, &PLAIN_HTTP, "192.0.2.9:80", &format!("GET {host} /")), expected, "{host}");
    };
    check("a.other", "a.other:80");
    check("a.other.svc", "a.other:80");
    check("a", "PassthroughCluster");
    check("one.shop", "PassthroughCluster");
    check("b", "b.shop:80");
    check("b.shop", "b.shop:80");
}

#[test]
fn a_detected_port_is_called_by_name_beside_http() {
    let any = |more: &str| {
        Mesh::read(&(base() + &service("any", "{clusterIP: 10.96.0.1, ports: [{name: any, port: 5000}]}") + more))
    };
    let web = service("web", "{clusterIP: 10.96.0.2, ports: [{name: http, port: 5000}]}");
    assert_eq!(call(&any(&web), &PLAIN_HTTP, "192.0.2.9:5000", "GET any:5000 /"), "any.shop:5000");
    assert_eq!(call(&any(&web), &PLAIN_HTTP, "192.0.2.9:5000", "GET web:5000 /"), "web.shop:5000");
    assert_eq!(call(&any(&web), &PLAIN_HTTP, "10.96.0.1:5000", "GET whatever /"), "any.shop:5000");
    assert_eq!(call(&any(""), &PLAIN_HTTP, "192.0.2.9:5000", "GET any:5000 /"), "PassthroughCluster");
}

#[test]
fn rules_for_another_name_are_said_to_have_no_effect() {
    let mesh = Mesh::read(
        &(base()
            + &services("web")
            + &service("old", "{type: ExternalName, externalName: web.shop.svc.cluster.local}")
            + &istio("DestinationRule", "old", "{host: old, trafficPolicy: {loadBalancer: {simple: RANDOM}}}")),
    );
    let said: Vec<_> =
        mesh.found.iter().filter(|finding| finding.code == "no-effect").map(|f| f.message.clone()).collect();
    assert_eq!(said.iter().filter(|text| text.contains("another name of")).count(), 1, "{said:?}");
}

#[test]
fn unknown_hosts_are_looked_up_on_every_port() {
    let settings = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS}\"}\n";
    let mesh = Mesh::read(&(base() + &services("web") + settings));
    let check = |client: &Client, to: &str, request: &str, expected: &str| {
        let got = outbound(&mesh.sidecar("client-0.shop"), client, to, request);
        assert!(got.contains(expected), "{to} {request}: {got}");
    };
    check(&PLAIN_HTTP, "192.0.2.9:8123", "GET x.example:8123 /", "AllowAnyDynamicDNSCluster");
    check(&PLAIN_TCP, "192.0.2.9:8123", "", "PassthroughCluster");
    check(&PLAIN_HTTP, "192.0.2.9:15001", "GET x.example /", "BlackHoleCluster");
}

#[test]
fn shares_of_localities_leave_services_with_a_distribution_alone() {
    let settings = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\n\
                    data: {mesh: \"localityLbSetting: {distribute: [{from: r/a, to: {r/a: 100}}]}\"}\n";
    let placed = |name: &str, app: &str, zone: &str, address: &str| {
        pod(
            name,
            &format!("app: {app}, topology.kubernetes.io/region: r, topology.kubernetes.io/zone: {zone}"),
            address,
        )
    };
    let of = |distribution: &str| {
        let mesh = Mesh::read(
            &(base().replace(
                "app: client",
                "app: client, topology.kubernetes.io/region: r, topology.kubernetes.io/zone: a",
            ) + &placed("web-0", "web", "a", "10.244.0.2")
                + &placed("web-1", "web", "b", "10.244.0.3")
                + &service(
                    "web",
                    &format!("{{{distribution}selector: {{app: web}}, ports: [{{name: http, port: 80}}]}}"),
                )
                + settings),
        );
        let name = "outbound|80||web.shop.svc.cluster.local";
        let weighted = resource(&mesh, SIDECAR, "CDS", name).to_string().contains("locality_weighted_lb_config");
        let far = resource(&mesh, SIDECAR, "EDS", name).to_string().contains("10.244.0.3");
        (weighted, far)
    };
    assert_eq!(of(""), (true, false));
    assert_eq!(of("trafficDistribution: PreferClose, "), (false, true));
}

#[test]
fn tls_by_a_rule_is_1_2_to_1_3() {
    let mesh = Mesh::read(
        &(base()
            + &services("web")
            + &istio("DestinationRule", "web", "{host: web, trafficPolicy: {tls: {mode: SIMPLE}}}")),
    );
    let cluster = resource(&mesh, SIDECAR, "CDS", "outbound|80||web.shop.svc.cluster.local");
    let parameters = &cluster["transport_socket"]["typed_config"]["common_tls_context"]["tls_params"];
    assert_eq!(parameters["tls_minimum_protocol_version"], "TLSv1_2", "{parameters}");
    assert_eq!(parameters["tls_maximum_protocol_version"], "TLSv1_3", "{parameters}");
}

#[test]
fn the_name_of_all_servers_is_none() {
    let special = "{match: [{port: 15443, sniHosts: [special.test]}], route: [{destination: {host: web, port: {number: 9000}}}]}, ";
    let of = |protocol: &str, special: &str, names: &str| {
        Mesh::read(
            &(base()
                + &gateway(&format!(
                    "{{port: {{number: 15443, name: tls, protocol: {protocol}}}, tls: {{mode: PASSTHROUGH}}, hosts: ['*']}}"
                ))
                + &services("web rest")
                + &routes(
                    "v",
                    &format!(
                        "{{hosts: ['*'], gateways: [edge/gw], tls: [{special}{{match: [{{port: 15443, sniHosts: [{names}]}}], route: [{{destination: {{host: rest, port: {{number: 9000}}}}}}]}}]}}"
                    ),
                )),
        )
    };
    let nameless = Client { alpn: &[], ..PLAIN_TCP };
    for protocol in ["TLS", "HTTPS"] {
        for names in ["'*'", "'*', other.test", "other.test, '*'"] {
            let mesh = of(protocol, special, names);
            let check = |client: &Client, expected: &str| {
                assert_eq!(
                    at_gateway(&mesh, 15443, client, ""),
                    expected,
                    "{protocol} {names} {:?}",
                    client.server_name
                );
            };
            check(&sni("special.test"), "web.shop:9000");
            check(&sni("other.test"), "rest.shop:9000");
            check(&sni("x.y.test"), "rest.shop:9000");
            check(&nameless, "rest.shop:9000");
            let alone = of(protocol, "", names);
            assert_eq!(at_gateway(&alone, 15443, &sni("special.test"), ""), "rest.shop:9000", "{protocol} {names}");
        }
    }
}

#[test]
fn every_address_of_an_endpoint_is_called() {
    let slice = object("discovery.k8s.io/v1", "EndpointSlice", "web", "[kubernetes.io/service-name: web] {}");
    let slice = slice.replace(
        "spec: {}",
        "addressType: IPv4\nports: [{name: http, port: 80}]\nendpoints: [{addresses: [10.1.0.1, 10.1.0.2]}]",
    );
    let mesh = Mesh::read(&(base() + &services("web") + &slice));
    let assigned = resource(&mesh, SIDECAR, "EDS", "outbound|80||web.shop.svc.cluster.local").to_string();
    assert!(assigned.contains("10.1.0.1") && assigned.contains("10.1.0.2"), "{assigned}");
}

/// A route of [`a_gateway_serves_as_a_plain_reading_says`], for paths below `/p` where it has one.
struct Rule {
    port: Option<u16>,
    path: bool,
    status: u16,
}

/// A VirtualService of it.
struct Set {
    namespace: &'static str,
    hosts: Vec<&'static str>,
    export: &'static str,
    rules: Vec<Rule>,
}

fn covers(wide: &str, name: &str) -> bool {
    wide == name || wide.strip_prefix('*').is_some_and(|suffix| name.ends_with(suffix) && name != suffix)
}

/// The more specific of two hosts that meet.
fn meeting<'h>(a: &'h str, b: &'h str) -> Option<&'h str> {
    if covers(a, b) { Some(b) } else { covers(b, a).then_some(a) }
}

/// What Istio's rules say, read one after the other: the routes of a virtual host are those of all that serve it, server by
/// server and the nearest first; what takes everything comes last.
fn read_plainly(servers: &[(u16, Vec<&str>)], sets: &[Set], port: u16, name: &str, path: &str) -> String {
    let nearness = |set: &Set| match (set.export, set.namespace) {
        (export, "edge") if export != "'*'" => 0,
        ("edge", _) => 1,
        _ => 2,
    };
    let mut order: Vec<&Set> = sets.iter().filter(|set| set.export != "'.'" || set.namespace == "edge").collect();
    order.sort_by_key(|set| nearness(set));
    let mut hosts: std::collections::BTreeMap<&str, Vec<&Rule>> = Default::default();
    for (_, names) in servers.iter().filter(|(number, _)| *number == port) {
        for set in &order {
            let rules: Vec<&Rule> =
                set.rules.iter().filter(|rule| rule.port.is_none_or(|wanted| wanted == port)).collect();
            let taking = rules.iter().position(|rule| !rule.path).map_or(rules.len(), |at| at + 1);
            let mut served: Vec<&str> = Vec::new();
            for server in names {
                let (namespace, server) = server.split_once('/').unwrap_or(("*", server));
                let here = namespace == "*" || namespace == set.namespace;
                served.extend(set.hosts.iter().filter(|_| here).filter_map(|host| meeting(server, host)));
            }
            served.sort_unstable();
            served.dedup();
            for host in served.into_iter().filter(|_| !rules.is_empty()) {
                hosts.entry(host).or_default().extend(&rules[..taking]);
            }
        }
    }
    let covering = hosts.iter().filter(|(host, _)| covers(host, name));
    let Some((_, rules)) = covering.max_by_key(|(host, _)| (!host.starts_with('*'), host.len())) else {
        return "404".into();
    };
    let holds = |rule: &&&Rule| !rule.path || path.starts_with("/p");
    let (last, first): (Vec<&Rule>, Vec<&Rule>) = rules.iter().copied().partition(|rule| !rule.path);
    let found = first.iter().chain(&last).find(holds);
    found.map_or_else(|| "404".to_owned(), |rule| rule.status.to_string())
}

#[test]
fn a_gateway_serves_as_a_plain_reading_says() {
    const HOSTS: [&str; 6] = ["a.example", "b.example", "*.example", "*", "x.c.example", "*.c.example"];
    for seed in 0..evenkeel_testkit::cases(60, 2_000) as u64 {
        let mut random = evenkeel_testkit::Random::new(seed);
        let mut some = |from: &[&'static str], most: usize| -> Vec<&'static str> {
            let mut found: Vec<_> = (0..=random.below(most)).map(|_| random.pick(from)).collect();
            found.sort_unstable();
            found.dedup();
            found
        };
        let own = ["a.example", "b.example", "*.c.example", "*.example", "shop/d.test", "*"];
        let servers: Vec<(u16, Vec<&str>)> = [8080, 8081].map(|port| (port, some(&own, 3))).to_vec();
        let mut status = 400;
        let sets: Vec<Set> = (0..5)
            .map(|_| {
                let hosts = some(&HOSTS, 2);
                let namespace = some(&["edge", "shop", "other"], 1)[0];
                let export = some(&["'*'", "'.'", "edge"], 1)[0];
                let mut rules = Vec::new();
                for (at, kind) in some(&["a", "b", "c"], 3).into_iter().enumerate() {
                    status += 1;
                    let port = [None, Some(8080), Some(8081)][(at + usize::from(kind == "a")) % 3];
                    rules.push(Rule { port, path: kind != "c" || port.is_some(), status });
                }
                Set { namespace, hosts, export, rules }
            })
            .collect();
        let listed = |hosts: &[&str]| hosts.iter().map(|host| format!("'{host}'")).collect::<Vec<_>>().join(", ");
        let written: Vec<String> = servers.iter().map(|(port, hosts)| http(*port, &listed(hosts))).collect();
        let mut text = base() + &gateway(&written.join(", "));
        for (at, set) in sets.iter().enumerate() {
            let rule = |rule: &Rule| {
                let port = rule.port.map(|port| format!("port: {port}, ")).unwrap_or_default();
                let conditions =
                    if rule.path { format!("match: [{{{port}uri: {{prefix: /p}}}}], ") } else { String::new() };
                format!("{{{conditions}directResponse: {{status: {}}}}}", rule.status)
            };
            let rules: Vec<String> = set.rules.iter().map(rule).collect();
            let spec = format!(
                "{{hosts: [{}], exportTo: [{}], gateways: [edge/gw], http: [{}]}}",
                listed(&set.hosts),
                set.export,
                rules.join(", ")
            );
            text += &routes(&format!("{}/v{at}", set.namespace), &spec);
        }
        let mesh = Mesh::read(&text);
        let config = mesh.proxy(&mesh.view(EDGE));
        for (port, name, path) in [8080_u16, 8081].into_iter().flat_map(|port| {
            let names = ["a.example", "b.example", "x.c.example", "y.c.example", "z.example", "d.test", "other"];
            names.into_iter().flat_map(move |name| ["/", "/p/1"].map(|path| (port, name, path)))
        }) {
            let to = format!("10.244.9.1:{port}");
            let got = outcome(&config, &format!("0.0.0.0_{port}"), &PLAIN_HTTP, &to, &format!("GET {name} {path}"), 0);
            assert_eq!(
                got,
                read_plainly(&servers, &sets, port, name, path),
                "seed {seed}: {port} {name}{path}\n{text}"
            );
        }
    }
}
