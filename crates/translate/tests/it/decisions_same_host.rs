//! Several objects for one host, and names of one service: which of them decides, from both sides.

use crate::decisions::{Client, PLAIN_HTTP, PLAIN_TCP};
use crate::decisions_istio::{entry, istio, pod, routes, service};
use crate::decisions_services::{Mesh, outbound};
use crate::recorded::compared;
use crate::scenario::translate;

const WEB: &str = "web.shop.svc.cluster.local";

/// The resources of a proxy, of one type, by name.
fn resources(mesh: &Mesh, proxy: &str, kind: &str) -> Vec<serde_json::Value> {
    let all = compared(&translate(&mesh.view(proxy), &mesh.snapshot));
    all[kind].as_array().cloned().unwrap_or_default()
}

/// What a proxy's clusters of the host say: the limit of connections, and the subsets.
fn settings(mesh: &Mesh, proxy: &str, host: &str) -> (u64, String) {
    let clusters = resources(mesh, proxy, "CDS");
    let named = |name: &str| clusters.iter().find(|cluster| cluster["name"] == name).cloned().unwrap_or_default();
    let limit = named(&format!("outbound|80||{host}"))["circuit_breakers"]["thresholds"][0]["max_connections"].as_u64();
    let subset = |cluster: &serde_json::Value| {
        let mut parts = cluster["name"].as_str()?.split('|').skip(1);
        let (number, subset, of) = (parts.next()?, parts.next()?, parts.next()?);
        (number == "80" && !subset.is_empty() && of == host).then(|| subset.to_owned())
    };
    let mut subsets: Vec<String> = clusters.iter().filter_map(subset).collect();
    subsets.sort();
    (limit.filter(|limit| *limit < u64::from(u32::MAX)).unwrap_or_default(), subsets.join(" "))
}

/// A DestinationRule `NAMESPACE/NAME` for `web`, with a limit, a subset of its name and more.
fn rule(name: &str, limit: u32, more: &str) -> String {
    let short = name.split_once('/').map_or(name, |(_, short)| short);
    let policy = match limit {
        0 => String::new(),
        limit => format!("trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: {limit}}}}}}}, "),
    };
    istio("DestinationRule", name, &format!("{{host: {WEB}, {policy}subsets: [{{name: {short}}}]{more}}}"))
}

#[test]
fn rules_of_one_host_and_namespace_are_merged_as_they_are_exported() {
    let clients = pod("client-0", "app: client", "10.244.0.1")
        + &pod("x/client-0", "app: client", "10.244.0.2")
        + &pod("y/client-0", "app: client", "10.244.0.3");
    let web = service("web", "{clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}");
    // For each namespace: the limit and the subsets that hold there.
    let check = |rules: &[String], shop: (u64, &str), x: (u64, &str), y: (u64, &str), said: &[&str]| {
        let mesh = Mesh::read(&(clients.clone() + &web + &rules.concat()));
        for (namespace, (limit, subsets)) in [("shop", shop), ("x", x), ("y", y)] {
            let got = settings(&mesh, &format!("sidecar client-0.{namespace}"), WEB);
            assert_eq!(got, (limit, subsets.to_owned()), "{namespace}: {rules:?}");
        }
        let codes = ["merged", "duplicate-host"];
        let found: Vec<_> = mesh.found.iter().filter(|finding| codes.contains(&finding.code)).collect();
        assert_eq!(found.len(), said.len(), "{rules:?}: {found:?}");
        for (finding, part) in found.iter().zip(said) {
            assert!(finding.message.contains(part), "{}: {part}", finding.message);
        }
    };
    let to = |list: &str| format!(", exportTo: [{list}]");
    let (all, own, x, y) = (to("'*'"), to("'.'"), to("x"), to("y"));
    let both = ("merged", "traffic policy is ignored");
    // The same list: one rule. The first policy counts, and the subsets of both.
    check(&[rule("a", 1, ""), rule("b", 2, "")], (1, "a b"), (1, "a b"), (1, "a b"), &[both.1]);
    check(&[rule("a", 0, &all), rule("b", 2, &all)], (2, "a b"), (2, "a b"), (2, "a b"), &[both.0]);
    // Another list: each holds where it is seen, and where both are, the younger. No list is not `*`.
    check(&[rule("a", 1, &own), rule("b", 2, "")], (2, "b"), (2, "b"), (2, "b"), &["follow only this one"]);
    check(&[rule("a", 1, ""), rule("b", 2, &own)], (2, "b"), (1, "a"), (1, "a"), &["follow only this one"]);
    check(&[rule("a", 1, ""), rule("b", 2, &all)], (2, "b"), (2, "b"), (2, "b"), &["follow only this one"]);
    check(&[rule("a", 1, &x), rule("b", 2, &y)], (0, ""), (1, "a"), (2, "b"), &[]);
    // A longer list completes those that it has, and holds in the others.
    let longer = to("y, x");
    check(&[rule("a", 1, &x), rule("b", 2, &longer)], (0, ""), (1, "a b"), (2, "b"), &["where both are seen"]);
    check(&[rule("a", 1, &longer), rule("b", 2, &x)], (0, ""), (2, "b"), (1, "a"), &["follow only this one"]);
    let wider = to("'.', x");
    check(&[rule("a", 0, &own), rule("b", 2, &wider)], (2, "a b"), (2, "b"), (0, ""), &["where both are seen"]);
    // Own rules of clients come before those that others export to them.
    check(&[rule("x/a", 1, ""), rule("b", 2, "")], (2, "b"), (1, "a"), (2, "b"), &[]);
    check(&[rule("x/a", 1, &y), rule("b", 2, "")], (2, "b"), (2, "b"), (2, "b"), &[]);
}

#[test]
fn a_rule_for_a_workload_comes_first_and_others_keep_theirs() {
    let clients = pod("client-0", "app: client", "10.244.0.1") + &pod("other-0", "app: other", "10.244.0.2");
    let web = service("web", "{clusterIP: 10.96.0.1, selector: {app: client}, ports: [{name: http, port: 80}]}");
    let check = |rules: &[String], selected: (u64, &str), other: (u64, &str)| {
        let mesh = Mesh::read(&(clients.clone() + &web + &rules.concat()));
        for (pod, (limit, subsets)) in [("client-0", selected), ("other-0", other)] {
            let got = settings(&mesh, &format!("sidecar {pod}.shop"), WEB);
            assert_eq!(got, (limit, subsets.to_owned()), "{pod}: {rules:?}");
        }
    };
    let selecting = ", workloadSelector: {matchLabels: {app: client}}";
    let own = ", exportTo: ['.']";
    // By its place it is the younger one.
    check(&[rule("all", 1, ""), rule("one", 2, selecting)], (2, "one"), (1, "all"));
    // What only this namespace sees completes it, and still holds for others.
    check(&[rule("all", 1, own), rule("one", 0, selecting)], (1, "all one"), (1, "all"));
    check(&[rule("all", 1, own), rule("one", 2, selecting)], (2, "all one"), (1, "all"));
    check(&[rule("all", 1, ", exportTo: [x, '.']"), rule("one", 2, selecting)], (2, "all one"), (1, "all"));
    check(&[rule("all", 1, ", exportTo: ['*']"), rule("one", 2, selecting)], (2, "one"), (1, "all"));
    // Two for the same workloads are one rule.
    check(&[rule("one", 0, selecting), rule("two", 2, selecting)], (2, "one two"), (0, ""));
    // A selector without labels is for all of the namespace, and for nobody else.
    check(&[rule("all", 1, ""), rule("one", 2, ", workloadSelector: {}")], (2, "one"), (2, "one"));
    // One for a wider host does not come before one for the host itself.
    let wide = rule("wide", 2, selecting).replace(WEB, "'*.shop.svc.cluster.local'");
    check(&[rule("all", 1, ""), wide.clone()], (1, "all"), (1, "all"));
    check(&[rule("root", 1, "").replace("namespace: shop", "namespace: istio-system"), wide], (2, "wide"), (1, "root"));
    // Who receives calls has the settings for all.
    let limit = |rules: &[String]| {
        let mesh = Mesh::read(&(clients.clone() + &web + &rules.concat()));
        let clusters = resources(&mesh, "sidecar client-0.shop", "CDS");
        let inbound = clusters.into_iter().find(|cluster| cluster["name"] == "inbound|80||").expect("the cluster");
        inbound["circuit_breakers"]["thresholds"][0]["max_connections"].as_u64()
    };
    assert_eq!(limit(&[rule("all", 1, ""), rule("one", 2, selecting)]), Some(1));
    assert_eq!(limit(&[rule("one", 2, selecting)]), Some(u64::from(u32::MAX)));
}

/// A ServiceEntry `NAMESPACE/NAME` of a host, with an endpoint at an address.
fn at(name: &str, host: &str, address: &str, more: &str) -> String {
    entry(
        name,
        &format!(
            "{{hosts: [{host}], location: MESH_INTERNAL, resolution: STATIC, endpoints: [{{address: {address}}}], ports: [{{number: 80, name: http, protocol: HTTP}}]{more}}}"
        ),
    )
}

/// The address that a proxy's endpoints of a host have.
fn endpoint(mesh: &Mesh, proxy: &str, host: &str) -> String {
    let name = format!("outbound|80||{host}");
    let assigned = resources(mesh, proxy, "EDS").into_iter().find(|one| one["cluster_name"] == *name);
    let of = assigned.unwrap_or_default();
    let address = &of["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["address"];
    address.as_str().unwrap_or_default().to_owned()
}

#[test]
fn one_service_of_a_host_is_chosen_for_each_client() {
    const HOST: &str = "a.example";
    let pods = ["x", "y", "z"].map(|namespace| pod(&format!("{namespace}/client-0"), "app: client", "10.244.0.1"));
    let read = |objects: &[String]| {
        Mesh::read(&(pods.concat() + &pod("z/edge-0", "istio: edge", "10.244.9.1") + &objects.concat()))
    };
    let sidecar =
        |mesh: &Mesh, namespace: &str, host: &str| endpoint(mesh, &format!("sidecar client-0.{namespace}"), host);
    let check = |objects: &[String], host: &str, in_x: &str, in_y: &str, in_z: &str, at_gateway: &str| {
        let mesh = read(objects);
        let got = ["x", "y", "z"].map(|namespace| sidecar(&mesh, namespace, host));
        assert_eq!(got, [in_x, in_y, in_z], "{objects:?}");
        assert_eq!(endpoint(&mesh, "router edge-0.z", host), at_gateway, "gateway: {objects:?}");
    };
    let (y, x) = (at("y/a", HOST, "10.0.0.2", ""), at("x/a", HOST, "10.0.0.1", ""));
    // A workload's own namespace, then the older, whatever the namespaces are called.
    check(&[y.clone(), x.clone()], HOST, "10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2");
    check(&[x.clone(), y.clone()], HOST, "10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.1");
    // What is exported to few comes before what all see. At gateways the own namespace makes no difference.
    let named = at("y/a", HOST, "10.0.0.2", ", exportTo: [z, '.']");
    check(&[x.clone(), named], HOST, "10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2");
    let own = at("z/a", HOST, "10.0.0.3", "");
    check(&[x, y, own], HOST, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1");
    // A Service of Kubernetes comes before entries for its host, except in their own namespace.
    let web = "web.y.svc.cluster.local";
    let squatter = at("x/squatter", web, "10.0.0.1", "");
    let service = service("y/web", "{clusterIP: 10.96.0.1, selector: {app: client}, ports: [{name: http, port: 80}]}");
    check(&[squatter, service], web, "10.0.0.1", "10.244.0.1", "10.244.0.1", "10.244.0.1");
}

#[test]
fn the_first_listener_of_a_sidecar_decides_about_equal_hosts() {
    const HOST: &str = "a.example";
    let both = at("x/a", HOST, "10.0.0.1", "") + &at("y/a", HOST, "10.0.0.2", "");
    let check = |egress: &str, expected: &str| {
        let sidecar = istio("Sidecar", "z/default", &format!("{{egress: [{egress}]}}"));
        let mesh = Mesh::read(&(pod("z/client-0", "app: client", "10.244.0.1") + &both + &sidecar));
        assert_eq!(endpoint(&mesh, "sidecar client-0.z", HOST), expected, "{egress}");
    };
    check("{hosts: ['*/*']}", "10.0.0.1");
    check("{hosts: [y/*]}", "10.0.0.2");
    check("{port: {number: 80, name: http, protocol: HTTP}, hosts: [y/*]}, {hosts: ['*/*']}", "10.0.0.2");
    check("{port: {number: 81, name: http, protocol: HTTP}, hosts: [y/*]}, {hosts: ['*/*']}", "10.0.0.1");
}

#[test]
fn routes_for_another_name_of_a_service_hold_for_this_name() {
    let base = pod("client-0", "app: client", "10.244.0.1")
        + &service("web", "{clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: http-b, port: 8080}]}");
    let answer = |name: &str, hosts: &str, status: u16, more: &str| {
        routes(name, &format!("{{hosts: [{hosts}], http: [{{{more}directResponse: {{status: {status}}}}}]}}"))
    };
    let old = |ports: &str| service("old", &format!("{{type: ExternalName, externalName: {WEB}{ports}}}"));
    let ports = ", ports: [{name: http, port: 80}]";
    let check = |objects: &[String], calls: &[(&str, u16, &str)], said: bool| {
        let mesh = Mesh::read(&(base.clone() + &objects.concat()));
        let config = mesh.sidecar("client-0.shop");
        for (host, port, expected) in calls {
            let got = outbound(&config, &PLAIN_HTTP, &format!("10.96.0.1:{port}"), &format!("GET {host} /"));
            let got = got.split(' ').next().unwrap_or_default();
            assert_eq!(got, *expected, "{host}:{port} {objects:?}");
        }
        let findings = mesh.found.iter().filter(|finding| finding.code == "no-effect").count();
        assert_eq!(findings == 1, said, "{objects:?}: {:?}", mesh.found);
    };
    let (web80, web8080) = (format!("outbound|80||{WEB}"), format!("outbound|8080||{WEB}"));
    let (web80, web8080) = (web80.as_str(), web8080.as_str());
    let fqdn = "old.shop.svc.cluster.local";
    // Without ports of its own the alias is a host without a service: exactly this name, on port 80.
    check(
        &[old(""), answer("old", "old", 418, "")],
        &[(fqdn, 80, "418"), ("old", 80, web80), ("web", 80, web80), (WEB, 80, web80), (fqdn, 8080, web8080)],
        false,
    );
    // With ports it has all its names there.
    check(
        &[old(ports), answer("old", "old", 418, "")],
        &[(fqdn, 80, "418"), ("old", 80, "418"), ("old.shop", 80, "418"), ("web", 80, web80), ("old", 8080, web8080)],
        false,
    );
    let wide = answer("wide", "'*.shop.svc.cluster.local'", 418, "match: [{headers: {x: {exact: 'y'}}}], ");
    check(&[old(ports), wide], &[("old", 80, "404"), ("web", 80, "404")], false);
    // The older of its routes and those of the service, which are for all names.
    let (of_old, of_web) = (answer("old", "old", 418, ""), answer("web", "web", 410, ""));
    check(
        &[old(ports), of_old.clone(), of_web.clone()],
        &[("old", 80, "418"), ("web", 80, "410"), ("old", 8080, "410")],
        false,
    );
    check(&[old(ports), of_web, of_old], &[("old", 80, "410"), ("web", 80, "410")], true);
    // Routes for other ports leave it to the service.
    check(&[old(ports), answer("old", "old", 418, "match: [{port: 81}], ")], &[("old", 80, web80)], false);
    check(&[old(ports)], &[("old", 80, web80), (fqdn, 80, web80)], false);
    // A Sidecar decides which names are known.
    let sidecar = |hosts: &str| istio("Sidecar", "default", &format!("{{egress: [{{hosts: [{hosts}]}}]}}"));
    let only_web = sidecar(&format!("./{WEB}"));
    check(&[old(ports), only_web], &[("web", 80, web80), ("old", 80, "PassthroughCluster")], false);
    let both = sidecar(&format!("./{WEB}, ./{fqdn}"));
    check(&[old(""), both], &[("web", 80, web80), ("old", 80, web80)], false);
}

#[test]
fn a_wildcard_does_not_stand_in_for_routes_of_a_name() {
    let base = pod("client-0", "app: client", "10.244.0.1")
        + &service("web", "{clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: http-b, port: 81}]}");
    let answer = |name: &str, host: &str, condition: &str, status: u16| {
        routes(name, &format!("{{hosts: ['{host}'], http: [{{{condition}directResponse: {{status: {status}}}}}]}}"))
    };
    let check = |objects: &[String], at_80: &str, at_81: &str| {
        let mesh = Mesh::read(&(base.clone() + &objects.concat()));
        let config = mesh.sidecar("client-0.shop");
        for (port, expected) in [(80, at_80), (81, at_81)] {
            let got = outbound(&config, &PLAIN_HTTP, &format!("10.96.0.1:{port}"), "GET web /");
            assert_eq!(got.split(' ').next(), Some(expected), "{port}: {objects:?}");
        }
    };
    let (web80, web81) = (format!("outbound|80||{WEB}"), format!("outbound|81||{WEB}"));
    let on = |port: u16| format!("match: [{{port: {port}}}], ");
    let wide = answer("wide", "*.shop.svc.cluster.local", "", 418);
    let all = answer("all", "*.cluster.local", "", 419);
    check(std::slice::from_ref(&wide), "418", "418");
    check(&[wide.clone(), answer("a", "web", &on(81), 410)], &web80, "410");
    check(&[answer("a", "web", &on(81), 410), answer("b", "web", &on(80), 411), wide], "411", "410");
    check(&[answer("a", "*.svc.cluster.local", &on(81), 410), all.clone()], &web80, "410");
    check(&[answer("a", "other", "", 410), all], "419", "419");
    check(&[answer("a", "other", "", 410)], &web80, &web81);
}

#[test]
fn routes_of_connections_count_by_age_whatever_their_hosts() {
    let base = pod("client-0", "app: client", "10.244.0.1")
        + &service("db", "{clusterIP: 10.96.0.1, ports: [{name: tcp, port: 9000}, {name: tls, port: 9443}]}")
        + &service("a", "{clusterIP: 10.96.0.2, ports: [{name: tcp, port: 9000}]}")
        + &service("b", "{clusterIP: 10.96.0.3, ports: [{name: tcp, port: 9000}]}");
    let to = |name: &str, host: &str, service: &str| {
        let route = format!("route: [{{destination: {{host: {service}, port: {{number: 9000}}}}}}]");
        routes(
            name,
            &format!(
                "{{hosts: ['{host}', x.example], tcp: [{{match: [{{port: 9000}}], {route}}}], tls: [{{match: [{{port: 9443, sniHosts: [x.example]}}], {route}}}]}}"
            ),
        )
    };
    let check = |objects: &[String], expected: &str| {
        let mesh = Mesh::read(&(base.clone() + &objects.concat()));
        let config = mesh.sidecar("client-0.shop");
        let tls = Client { server_name: Some("x.example"), ..PLAIN_TCP };
        for (client, to) in [(&PLAIN_TCP, "10.96.0.1:9000"), (&tls, "10.96.0.1:9443")] {
            let got = outbound(&config, client, to, "");
            assert_eq!(got, format!("outbound|9000||{expected}.shop.svc.cluster.local"), "{to}: {objects:?}");
        }
    };
    let (exact, wide) = (to("exact", "db", "a"), to("wide", "*.shop.svc.cluster.local", "b"));
    check(&[exact.clone(), wide.clone()], "a");
    check(&[wide.clone(), exact.clone()], "b");
    check(&[wide, exact.replace("hosts:", "exportTo: ['.'], hosts:")], "a");
}

#[test]
fn of_services_at_one_address_the_older_gets_what_nothing_tells_apart() {
    let at = |name: &str, more: &str| {
        entry(
            name,
            &format!(
                "[networking.istio.io/enable-autoallocate-ip: 'false'] {{hosts: [{name}.example], location: MESH_EXTERNAL, resolution: STATIC, endpoints: [{{address: 10.5.5.5}}], ports: [{{number: 9000, name: tcp, protocol: TCP}}]{more}}}"
            ),
        )
    };
    let check = |first: String, second: String, expected: &str| {
        let mesh = Mesh::read(&(pod("client-0", "app: client", "10.244.0.1") + &first + &second));
        let got = outbound(&mesh.sidecar("client-0.shop"), &PLAIN_TCP, "10.7.7.7:9000", "");
        assert_eq!(got, format!("outbound|9000||{expected}.example"), "{first}{second}");
    };
    for address in ["", ", addresses: [10.7.7.7]", ", addresses: [10.7.7.0/24]"] {
        check(at("b", address), at("a", address), "b");
        check(at("a", address), at("b", address), "a");
        // What is exported to few comes first.
        check(at("a", address), at("b", &format!("{address}, exportTo: ['.']")), "b");
    }
}
