//! Calls of services, entries, workloads and endpoints: YAML and a call, and the decision of our proxy's own code.

use std::sync::Arc;

use evenkeel_base::Diagnostics;
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use evenkeel_runtime_config::Config;
use evenkeel_runtime_config::cluster::Transport;
use evenkeel_translate::{ClientKind, ProxyView};
use evenkeel_xds::ResourceType;

use crate::decisions::{Client, PLAIN_HTTP, PLAIN_TCP, mesh, outcome};
use crate::own_proxy::compile;
use crate::recorded::compared;
use crate::scenario::{translate, view_of};

/// A mesh from YAML.
pub struct Mesh {
    pub snapshot: Snapshot,
    /// What is said of its objects.
    pub found: Diagnostics,
}

impl Mesh {
    /// Reads YAML that must have no mistakes.
    pub fn read(text: &str) -> Self {
        let (objects, mut found) = crate::recorded::load(&[("input.yaml".into(), text.into())]);
        assert!(!found.has_errors(), "{found}");
        let (snapshot, built) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
        assert!(!built.has_errors(), "{built}");
        found.extend(built);
        Self { snapshot, found }
    }

    pub fn view(&self, proxy: &str) -> ProxyView {
        view_of(proxy, &self.snapshot)
    }

    /// The configuration of the sidecar of a Pod, `POD.NAMESPACE`.
    pub fn sidecar(&self, pod: &str) -> Arc<Config> {
        self.proxy(&self.view(&format!("sidecar {pod}")))
    }

    /// The addresses of a host's endpoints that take traffic.
    pub fn ready(&self, host: &str, port: u16) -> Vec<String> {
        let services = self.snapshot.services_of(host).iter();
        let endpoints = services.flat_map(|service| self.snapshot.endpoints(service, port));
        endpoints.filter(|endpoint| endpoint.ready).map(|endpoint| endpoint.address.to_string()).collect()
    }

    pub fn proxy(&self, view: &ProxyView) -> Arc<Config> {
        compile(&translate(view, &self.snapshot)).0
    }
}

/// A captured connection from a workload: the listener is that of its destination, as `virtualOutbound` chooses it.
pub fn outbound(config: &Config, client: &Client, to: &str, request: &str) -> String {
    let (address, port) = to.rsplit_once(':').expect("address and port");
    let names = [format!("{address}_{port}"), format!("0.0.0.0_{port}"), "virtualOutbound".to_owned()];
    let listener = names.iter().find(|name| config.listeners.contains_key(name.as_str()));
    outcome(config, listener.expect("a listener"), client, to, request, 0)
}

fn sni(name: &'static str) -> Client {
    Client { server_name: Some(name), ..PLAIN_TCP }
}

/// A Pod of namespace `shop` with the label `app`.
fn pod(name: &str, app: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}\n\
         spec: {{containers: [{{name: main}}]}}\n\
         status: {{podIP: {address}, conditions: [{{type: Ready, status: \"True\"}}]}}\n"
    )
}

fn object(api: &str, kind: &str, name: &str, spec: &str) -> String {
    format!("---\napiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n")
}

fn service(name: &str, spec: &str) -> String {
    object("v1", "Service", name, spec)
}

fn entry(name: &str, spec: &str) -> String {
    object("networking.istio.io/v1", "ServiceEntry", name, spec)
}

fn peer_authentication(spec: &str) -> String {
    object("security.istio.io/v1", "PeerAuthentication", "mtls", spec)
}

/// A mesh setting.
fn mesh_config(text: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: \"{text}\"}}\n"
    )
}

/// The workload that calls, and whose sidecar decides.
fn client() -> String {
    pod("client-0", "client", "10.244.0.1")
}

#[test]
fn a_port_without_mutual_tls_passes_its_own_tls_whatever_other_ports_do() {
    let mesh_of = |ports: &str, modes: &str| {
        let text = pod("web-0", "web", "10.244.0.9")
            + &service("web", &format!("{{selector: {{app: web}}, ports: {ports}}}"))
            + &peer_authentication(&format!("{{selector: {{matchLabels: {{app: web}}}}, {modes}}}"));
        Mesh::read(&text).sidecar("web-0.shop")
    };
    let ports = "[{name: any, port: 8443}, {name: http, port: 8080}, {name: tcp, port: 3306}]";
    let config = mesh_of(ports, "mtls: {mode: STRICT}, portLevelMtls: {8443: {mode: DISABLE}, 3306: {mode: DISABLE}}");
    let check = |client: &Client, port: u16, request: &str, expected: &str| {
        let got = outcome(&config, "virtualInbound", client, &format!("10.244.0.9:{port}"), request, 0);
        assert_eq!(got, expected, "{port} {request}");
    };
    // The inspector passes over the port, so the proxy sees no TLS there: HTTPS is bytes.
    check(&PLAIN_HTTP, 8443, "GET web /", "inbound|8443|| web/");
    check(&PLAIN_TCP, 8443, "", "inbound|8443||");
    check(&PLAIN_TCP, 3306, "", "inbound|3306||");
    check(&PLAIN_HTTP, 8080, "GET web /", "closed");
    check(&mesh("shop/sa/x"), 8080, "GET web /", "inbound|8080|| web/");
}

/// The clusters of a proxy's workload: how they find their endpoints, and these: address, `mtls`, `w` and weight,
/// locality, `!` and priority.
fn cluster(mesh: &Mesh, proxy: &str, name: &str) -> String {
    let all = compared(&translate(&mesh.view(proxy), &mesh.snapshot));
    let named = |kind: &str, field: &str| {
        let list = all[kind].as_array().cloned().unwrap_or_default();
        list.into_iter().find(|resource| resource[field] == name)
    };
    let Some(cluster) = named("CDS", "name") else { return "none".to_owned() };
    let assigned = named("EDS", "cluster_name").unwrap_or_else(|| cluster["load_assignment"].clone());
    let mut words = vec![cluster["type"].as_str().unwrap_or("STATIC").to_owned()];
    for group in assigned["endpoints"].as_array().into_iter().flatten() {
        let locality = ["region", "zone", "sub_zone"].map(|part| group["locality"][part].as_str().unwrap_or_default());
        let locality = locality.join("/");
        let priority = group["priority"].as_u64().unwrap_or_default();
        for endpoint in group["lb_endpoints"].as_array().into_iter().flatten() {
            let address = &endpoint["endpoint"]["address"];
            let socket = &address["socket_address"];
            let mut text = match address["pipe"]["path"].as_str() {
                Some(path) => path.to_owned(),
                None => format!("{}:{}", socket["address"].as_str().unwrap_or("?"), socket["port_value"]),
            };
            let tls = &endpoint["metadata"]["filter_metadata"]["envoy.transport_socket_match"];
            text.push_str(if tls["tlsMode"] == "istio" { "+mtls" } else { "" });
            text.push_str(match endpoint["health_status"].as_str() {
                Some("DRAINING") => "+draining",
                Some("UNHEALTHY") => "+unhealthy",
                _ => "",
            });
            match endpoint["load_balancing_weight"].as_u64().unwrap_or(1) {
                1 => {}
                weight => text.push_str(&format!("*{weight}")),
            }
            text.push_str(if locality == "//" { "" } else { "@" });
            text.push_str(locality.trim_matches('/'));
            text.push_str(&if priority == 0 { String::new() } else { format!("!{priority}") });
            words.push(text);
        }
    }
    words.join(" ")
}

fn check_clusters(mesh: &Mesh, rows: &[(&str, &str)]) {
    for (name, expected) in rows {
        assert_eq!(cluster(mesh, "sidecar client-0.shop", name), *expected, "{name}");
    }
}

fn check_calls(config: &Config, rows: &[(&Client, &str, &str, &str)]) {
    for (client, to, request, expected) in rows {
        assert_eq!(outbound(config, client, to, request), *expected, "{to} {request} {:?}", client.server_name);
    }
}

#[test]
fn address_ranges_of_entries_are_matched() {
    let mesh = Mesh::read(
        &(client()
            + &mesh_config("outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
            + &entry(
                "a",
                "{hosts: [a.example.com], addresses: [192.0.2.0/28], ports: [{number: 9000, name: tcp, protocol: TCP}], resolution: NONE}",
            )
            + &entry(
                "b",
                "{hosts: [b.example.com], addresses: [198.51.100.0/24, 203.0.113.7], ports: [{number: 9000, name: tcp, protocol: TCP}], \
                 resolution: STATIC, endpoints: [{address: 10.9.9.9}]}",
            )
            + &entry(
                "c",
                "{hosts: [c.example.com], addresses: [192.0.2.0/24], ports: [{number: 443, name: tls, protocol: TLS}], resolution: NONE}",
            )
            + &entry(
                "d",
                "{hosts: [d.example.com], addresses: [192.0.2.128/25], ports: [{number: 7000, name: any}], resolution: NONE}",
            )),
    );
    let config = mesh.sidecar("client-0.shop");
    let tcp = |to: &str, expected: &str| check_calls(&config, &[(&PLAIN_TCP, to, "", expected)]);
    tcp("192.0.2.5:9000", "outbound|9000||a.example.com");
    tcp("192.0.2.99:9000", "BlackHoleCluster");
    tcp("198.51.100.200:9000", "outbound|9000||b.example.com");
    tcp("203.0.113.7:9000", "outbound|9000||b.example.com");
    tcp("203.0.113.8:9000", "BlackHoleCluster");
    check_calls(
        &config,
        &[
            (&sni("c.example.com"), "192.0.2.5:443", "", "outbound|443||c.example.com"),
            (&sni("c.example.com"), "192.0.3.5:443", "", "BlackHoleCluster"),
            (&sni("x.example.com"), "192.0.2.5:443", "", "BlackHoleCluster"),
            (&PLAIN_TCP, "192.0.2.200:7000", "", "outbound|7000||d.example.com|tcp"),
            (&PLAIN_TCP, "192.0.2.100:7000", "", "BlackHoleCluster"),
            // As in Istio: the range counts before what the bytes look like.
            (&PLAIN_HTTP, "192.0.2.200:7000", "GET d.example.com /", "outbound|7000||d.example.com|tcp"),
            (&PLAIN_HTTP, "192.0.2.100:7000", "GET d.example.com /", "outbound|7000||d.example.com d.example.com/"),
            (&PLAIN_HTTP, "192.0.2.100:7000", "GET x.example.com /", "502"),
        ],
    );
}

#[test]
fn an_external_name_is_another_name_of_its_host() {
    let mesh = Mesh::read(
        &(client()
            + &pod("web-0", "web", "10.244.0.9")
            + &service("web", "{clusterIP: 10.96.1.1, selector: {app: web}, ports: [{name: http, port: 80}]}")
            + &service("old", "{type: ExternalName, externalName: web.shop.svc.cluster.local}")
            + &service("older", "{type: ExternalName, externalName: old.shop.svc.cluster.local}")
            + &service("ring", "{type: ExternalName, externalName: ring.shop.svc.cluster.local}")
            + &service("far", "{type: ExternalName, externalName: far.example.com, ports: [{name: http, port: 80}]}")
            + &object(
                "networking.istio.io/v1",
                "VirtualService",
                "web",
                "{hosts: [web], http: [{match: [{uri: {prefix: /gone}}], directResponse: {status: 410}}, {route: [{destination: {host: web}}]}]}",
            )
            + &object(
                "networking.istio.io/v1",
                "VirtualService",
                "x",
                "{hosts: [x.example.com], http: [{route: [{destination: {host: older, port: {number: 80}}}]}]}",
            )
            + &object(
                "networking.istio.io/v1",
                "VirtualService",
                "old",
                "{hosts: [old], http: [{directResponse: {status: 418}}]}",
            )),
    );
    let config = mesh.sidecar("client-0.shop");
    let http = |request: &str, expected: &str| {
        check_calls(&config, &[(&PLAIN_HTTP, "10.96.1.1:80", request, expected)]);
    };
    let web = |name: &str| format!("outbound|80||web.shop.svc.cluster.local {name}/");
    // The routes of its host hold, also where a VirtualService names it.
    http("GET old /", &web("old"));
    http("GET old /gone", "410");
    http("GET old.shop.svc.cluster.local /", &web("old.shop.svc.cluster.local"));
    http("GET older.shop /gone", "410");
    http("GET x.example.com /", &web("x.example.com"));
    http("GET far /", "PassthroughCluster far/");
    http("GET ring /", "PassthroughCluster ring/");
    check_clusters(&mesh, &[("outbound|80||far.shop.svc.cluster.local", "none")]);
    let names = compared(&translate(&mesh.view("sidecar client-0.shop"), &mesh.snapshot));
    let ips = &names["NDS"][0]["table"]["older.shop.svc.cluster.local"]["ips"];
    assert_eq!(ips, &serde_json::json!(["10.96.1.1"]), "{}", names["NDS"]);
    // What has no address in the mesh is answered with a CNAME, which Istio's agent does not see.
    let alias = &names["NDS"][0]["aliases"]["far.shop.svc.cluster.local"];
    let expected = serde_json::json!({"target": "far.example.com", "shortname": "far", "namespace": "shop"});
    assert_eq!(alias, &expected, "{}", names["NDS"]);
    assert_eq!(names["NDS"][0]["table"]["far.shop.svc.cluster.local"], serde_json::Value::Null);
}

#[test]
fn headless_services_are_called_at_their_endpoints() {
    let mesh = Mesh::read(
        &(client()
            + &pod("db-0", "db", "10.244.0.8")
            + &pod("db-1", "db", "10.244.0.9")
            + "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db, namespace: shop}\n\
               spec: {serviceName: db, selector: {matchLabels: {app: db}}, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: a}]}}}\n"
            + &service(
                "db",
                "{clusterIP: None, selector: {app: db}, ports: [{name: any, port: 7000}, {name: tls, port: 8443}, \
                 {name: tcp, port: 9000}, {name: http, port: 80}]}",
            )
            + &service("other", "{selector: {app: db}, ports: [{name: http, port: 7000}]}")),
    );
    let config = mesh.sidecar("client-0.shop");
    let cluster = |port: u16| format!("outbound|{port}||db.shop.svc.cluster.local");
    let (auto, raw) = (cluster(7000), format!("{}|tcp", cluster(7000)));
    check_calls(
        &config,
        &[
            (&PLAIN_HTTP, "10.244.0.8:7000", "GET whatever /", &format!("{auto} whatever/")),
            (&PLAIN_TCP, "10.244.0.9:7000", "", &raw),
            (&sni("db"), "10.244.0.9:7000", "", &raw),
            (&sni("db"), "10.244.0.9:8443", "", &cluster(8443)),
            (&PLAIN_TCP, "10.244.0.9:9000", "", &cluster(9000)),
            (&PLAIN_TCP, "10.244.0.7:9000", "", "PassthroughCluster"),
            (&PLAIN_HTTP, "10.244.0.8:80", "GET db /", &format!("{} db/", cluster(80))),
            (&PLAIN_HTTP, "10.244.0.8:80", "GET db-0.db /", &format!("{} db-0.db/", cluster(80))),
            (&PLAIN_HTTP, "10.244.0.8:80", "GET db-0.db.shop /", &format!("{} db-0.db.shop/", cluster(80))),
            (&PLAIN_HTTP, "10.244.0.8:80", "GET db-1.db.shop.svc /", &format!("{} db-1.db.shop.svc/", cluster(80))),
            (
                &PLAIN_HTTP,
                "10.244.0.8:80",
                "GET db-1.db.shop.svc.cluster.local /",
                &format!("{} db-1.db.shop.svc.cluster.local/", cluster(80)),
            ),
        ],
    );
}

#[test]
fn a_workload_serves_where_others_name_its_address() {
    let web = pod("web-0", "web", "10.244.0.9");
    let of_entry = entry(
        "named",
        "{hosts: [named.example.com], location: MESH_INTERNAL, resolution: STATIC, \
         ports: [{number: 80, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP, targetPort: 9001}], \
         endpoints: [{address: 10.244.0.9, ports: {http: 8081}}, {address: 10.244.0.10}]}",
    );
    let slice = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {name: s, namespace: shop, labels: {kubernetes.io/service-name: bare}}\naddressType: IPv4\n\
                 ports: [{name: http, port: 8085}]\nendpoints: [{addresses: [10.244.0.9]}]\n";
    let bare = service("bare", "{ports: [{name: http, port: 80}]}");
    let text = web.clone() + &of_entry + slice + &bare;
    let rows: &[(&str, &str, &str)] = &[
        ("10.244.0.9:8081", "GET x /", "inbound|8081|| x/"),
        ("10.244.0.9:9001", "", "inbound|9001||"),
        ("10.244.0.9:8085", "GET x /", "inbound|8085|| x/"),
        ("10.244.0.9:80", "GET x /", "InboundPassthroughCluster x/"),
    ];
    let check = |text: &str, rows: &[(&str, &str, &str)]| {
        let config = Mesh::read(text).sidecar("web-0.shop");
        for (to, request, expected) in rows {
            let client = if request.is_empty() { &PLAIN_TCP } else { &PLAIN_HTTP };
            assert_eq!(outcome(&config, "virtualInbound", client, to, request, 0), *expected, "{to}");
        }
    };
    check(&text, rows);
    // A selecting Service takes precedence over slices, as in Istio.
    let selecting = service("web", "{selector: {app: web}, ports: [{name: http, port: 8080}]}");
    check(&(text + &selecting), &[("10.244.0.9:8085", "GET x /", "InboundPassthroughCluster x/"), rows[0], rows[1]]);
}

#[test]
fn slices_add_to_what_a_selector_finds() {
    let mesh = Mesh::read(
        &(client()
            + &pod("web-0", "web", "10.244.0.9")
            + &service("web", "{selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}")
            + "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
               metadata: {name: web, namespace: shop, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\n\
               ports: [{name: http, port: 8080}]\n\
               endpoints: [{addresses: [10.244.0.9], targetRef: {kind: Pod, name: web-0}}, {addresses: [10.1.0.7]}]\n"),
    );
    check_clusters(&mesh, &[("outbound|80||web.shop.svc.cluster.local", "EDS 10.244.0.9:8080+mtls 10.1.0.7:8080")]);
}

#[test]
fn allotted_addresses_count_only_where_the_agent_answers_dns() {
    let mesh = Mesh::read(
        &(client()
            + &entry(
                "db",
                "{hosts: [db.example.com], ports: [{number: 5432, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 192.0.2.1}]}",
            )),
    );
    let with = |captures_dns: bool| ProxyView { captures_dns, ..mesh.view("sidecar client-0.shop") };
    let listeners = |view: &ProxyView| {
        let all = compared(&translate(view, &mesh.snapshot));
        let names = all["LDS"].as_array().expect("listeners").iter().filter_map(|l| l["name"].as_str());
        let names: Vec<&str> = names.filter(|name| name.ends_with("_5432")).collect();
        (names.join(" "), all["NDS"][0]["table"]["db.example.com"].clone())
    };
    let (plain, none) = listeners(&with(false));
    assert_eq!((plain.as_str(), none.is_null()), ("0.0.0.0_5432", true));
    let (own, entry) = listeners(&with(true));
    assert!(own.starts_with("240.") && !entry.is_null(), "{own} {entry}");
    let config = mesh.proxy(&with(false));
    assert_eq!(outbound(&config, &PLAIN_TCP, "192.0.2.1:5432", ""), "outbound|5432||db.example.com");
}

#[test]
fn an_entrys_label_says_that_it_gets_no_address() {
    let addresses = |labels: &str| {
        let text = format!(
            "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: db, namespace: shop, labels: {{{labels}}}}}\n\
             spec: {{hosts: [db.example.com], ports: [{{number: 5432, name: tcp, protocol: TCP}}], resolution: DNS}}\n"
        );
        let mesh = Mesh::read(&(client() + &text));
        mesh.snapshot.services_of("db.example.com").iter().map(|service| service.addresses.len()).sum::<usize>()
    };
    assert_eq!(addresses(""), 1);
    assert_eq!(addresses("networking.istio.io/enable-autoallocate-ip: 'true'"), 1);
    assert_eq!(addresses("networking.istio.io/enable-autoallocate-ip: 'False'"), 0);
}

#[test]
fn annotations_of_a_service_name_further_identities_of_its_endpoints() {
    let accepted = |annotations: &str, more: &str| {
        let text = format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop, annotations: {{{annotations}}}}}\n\
             spec: {{selector: {{app: web}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}\n"
        );
        let mesh = Mesh::read(&(client() + &pod("web-0", "web", "10.244.0.9") + &text + more));
        let all = compared(&translate(&mesh.view("sidecar client-0.shop"), &mesh.snapshot));
        let name = "outbound|80||web.shop.svc.cluster.local";
        let cluster = all["CDS"].as_array().expect("clusters").iter().find(|c| c["name"] == name).expect("a cluster");
        let text = cluster.to_string();
        let parts = text.split('"').filter(|part| part.starts_with("spiffe://"));
        let mut names: Vec<String> = parts.map(str::to_owned).collect();
        names.sort();
        names.dedup();
        names
    };
    let own = accepted("", "");
    let with = |more: &[&str]| {
        let mut names: Vec<String> = own.iter().cloned().chain(more.iter().map(|name| (*name).to_owned())).collect();
        names.sort();
        names
    };
    assert_eq!(own.len(), 1, "{own:?}");
    let accounts = "alpha.istio.io/kubernetes-serviceaccounts: 'second, third'";
    let [second, third] = ["second", "third"].map(|name| format!("spiffe://cluster.local/ns/shop/sa/{name}"));
    assert_eq!(accepted(accounts, ""), with(&[&second, &third]));
    let canonical = "alpha.istio.io/canonical-serviceaccounts: 'spiffe://other.example/vm/7'";
    assert_eq!(accepted(canonical, ""), with(&["spiffe://other.example/vm/7"]));
    // What is no identity adds none.
    assert_eq!(accepted("alpha.istio.io/canonical-serviceaccounts: 'db.example.com'", ""), own);
    // They are about mutual TLS of the mesh, not about a rule's own TLS.
    let simple = "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: web, namespace: shop}\n\
                  spec: {host: web.shop.svc.cluster.local, trafficPolicy: {tls: {mode: SIMPLE, sni: web.example.com}}}\n";
    assert_eq!(accepted(accounts, simple), [] as [&str; 0]);
}

#[test]
fn names_are_looked_up_as_istio_does() {
    let mesh = Mesh::read(
        &(client()
            + &entry(
                "api",
                "{hosts: [api.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}",
            )
            + &entry(
                "rr",
                "{hosts: [rr.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS_ROUND_ROBIN}",
            )),
    );
    let all = compared(&translate(&mesh.view("sidecar client-0.shop"), &mesh.snapshot));
    for (name, kind) in [("api", "STRICT_DNS"), ("rr", "LOGICAL_DNS")] {
        let name = format!("outbound|80||{name}.example.com");
        let cluster = all["CDS"].as_array().expect("clusters").iter().find(|c| c["name"] == *name).expect("a cluster");
        let fields = ["type", "dns_lookup_family", "dns_refresh_rate", "dns_jitter"].map(|f| cluster[f].as_str());
        assert_eq!(fields, [Some(kind), Some("V4_ONLY"), Some("60s"), Some("0.100s")]);
        assert_eq!(cluster["respect_dns_ttl"], true);
    }
}

#[test]
fn entries_that_share_a_host_add_up() {
    let mesh = Mesh::read(
        &(client()
            + &entry(
                "a",
                "{hosts: [api.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 192.0.2.1}]}",
            )
            + &entry(
                "b",
                "{hosts: [api.example.com], ports: [{number: 443, name: tls, protocol: TLS}, {number: 80, name: http, protocol: HTTP, targetPort: 8080}], \
                 resolution: STATIC, endpoints: [{address: 192.0.2.2}]}",
            )),
    );
    check_clusters(
        &mesh,
        &[
            ("outbound|80||api.example.com", "EDS 192.0.2.1:80 192.0.2.2:8080"),
            ("outbound|443||api.example.com", "EDS 192.0.2.2:443"),
        ],
    );
}

fn workload_entry(name: &str, spec: &str) -> String {
    object("networking.istio.io/v1", "WorkloadEntry", name, spec)
}

#[test]
fn workload_entries_are_endpoints() {
    let mesh = Mesh::read(
        &(client()
            + &pod("pod-0", "vm", "10.244.0.8")
            + &entry(
                "vm",
                "{hosts: [vm.example.com], location: MESH_INTERNAL, resolution: STATIC, workloadSelector: {labels: {app: vm}}, \
                 ports: [{number: 80, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP, targetPort: 9001}]}",
            )
            + &service(
                "vm",
                "{selector: {app: vm}, ports: [{name: http, port: 80, targetPort: 8080}, {name: x, port: 81, targetPort: named}]}",
            )
            + &workload_entry(
                "a",
                "{address: 10.5.0.1, labels: {app: vm}, serviceAccount: vm, weight: 3, locality: north/a/1, ports: {http: 8088, named: 8181}}",
            )
            + &workload_entry("b", "{address: 10.5.0.2, labels: {app: vm}}")
            + &workload_entry("c", "{address: vm.internal, labels: {app: vm}}")
            + &(workload_entry("d", "{address: 10.5.0.4, labels: {app: vm}}").replacen(
                "metadata: {",
                "metadata: {annotations: {proxy.istio.io/health-checks-enabled: 'true'}, ",
                1,
            ) + "status: {conditions: [{type: Healthy, status: \"False\"}]}\n")
            + &workload_entry(
                "e",
                "{address: 10.5.0.5, labels: {app: vm, security.istio.io/tlsMode: disabled}, serviceAccount: vm}",
            )
            + &entry(
                "byname",
                "{hosts: [byname.example.com], resolution: DNS, workloadSelector: {labels: {app: vm}}, ports: [{number: 80, name: http, protocol: HTTP}]}",
            )),
    );
    check_clusters(
        &mesh,
        &[
            (
                "outbound|80||vm.example.com",
                "EDS 10.244.0.8:80+mtls 10.5.0.2:80 10.5.0.4:80+unhealthy 10.5.0.5:80 10.5.0.1:8088+mtls*3@north/a/1",
            ),
            (
                "outbound|9000||vm.example.com",
                "EDS 10.244.0.8:9001+mtls 10.5.0.2:9001 10.5.0.4:9001+unhealthy 10.5.0.5:9001 10.5.0.1:9001+mtls*3@north/a/1",
            ),
            (
                "outbound|80||vm.shop.svc.cluster.local",
                "EDS 10.244.0.8:8080+mtls 10.5.0.2:8080 10.5.0.4:8080+unhealthy 10.5.0.5:8080 10.5.0.1:8088+mtls*3@north/a/1",
            ),
            ("outbound|81||vm.shop.svc.cluster.local", "EDS 10.5.0.1:8181+mtls*3@north/a/1"),
            (
                "outbound|80||byname.example.com",
                "STRICT_DNS 10.244.0.8:80+mtls 10.5.0.2:80 vm.internal:80 10.5.0.5:80 10.5.0.1:8088+mtls*3@north/a/1",
            ),
        ],
    );
    // The proxy beside such a workload is known by its address.
    let mut view = mesh.view("sidecar client-0.shop");
    (view.pod, view.addresses) = ("some-vm".into(), vec!["10.5.0.1".parse().expect("an address")]);
    let config = mesh.proxy(&view);
    let call = |to: &str| outcome(&config, "virtualInbound", &PLAIN_HTTP, to, "GET vm /", 0);
    assert_eq!(call("10.5.0.1:8088"), "inbound|8088|| vm/");
    assert_eq!(call("10.5.0.1:8080"), "InboundPassthroughCluster vm/");
    assert_eq!(call("10.5.0.1:7777"), "InboundPassthroughCluster vm/");
}

#[test]
fn an_endpoint_with_an_account_takes_mutual_tls() {
    let endpoints = "endpoints: [{address: 192.0.2.1, serviceAccount: vm}, {address: 192.0.2.2}, \
                     {address: 192.0.2.3, labels: {security.istio.io/tlsMode: istio}}]";
    let of = |policy: &str| {
        let text = client()
            + policy
            + &entry(
                "vm",
                &format!(
                    "{{hosts: [vm.example.com], location: MESH_INTERNAL, resolution: STATIC, ports: [{{number: 80, name: http}}], {endpoints}}}"
                ),
            );
        cluster(&Mesh::read(&text), "sidecar client-0.shop", "outbound|80||vm.example.com")
    };
    assert_eq!(of(""), "EDS 192.0.2.1:80+mtls 192.0.2.2:80 192.0.2.3:80+mtls");
    let disabled = peer_authentication("{mtls: {mode: DISABLE}}");
    assert_eq!(of(&disabled), "EDS 192.0.2.1:80 192.0.2.2:80 192.0.2.3:80");
}

#[test]
fn workloads_that_require_it_are_called_securely_by_their_address() {
    let in_shop = |name: &str, labels: &str, address: &str| {
        pod(name, "x", address).replace("labels: {app: x}", &format!("labels: {{{labels}}}"))
    };
    let mesh = Mesh::read(
        &(client()
            + &pod("web-0", "web", "10.244.0.2")
            + &pod("web-1", "web", "10.244.0.3")
            + &in_shop("bare-0", "app: bare, sidecar.istio.io/inject: \"false\"", "10.244.0.4")
            + &pod("plain-0", "plain", "10.244.0.5")
            + &pod("mixed-0", "mixed", "10.244.1.9")
            + &pod("soft-0", "soft", "10.244.0.6")
            + &object(
                "security.istio.io/v1",
                "PeerAuthentication",
                "soft",
                "{selector: {matchLabels: {app: soft}}, mtls: {mode: PERMISSIVE}}",
            )
            + &workload_entry("vm", "{address: 10.5.0.1, serviceAccount: vm}")
            + &object("security.istio.io/v1", "PeerAuthentication", "all", "{mtls: {mode: STRICT}}")
            + &object(
                "security.istio.io/v1",
                "PeerAuthentication",
                "plain",
                "{selector: {matchLabels: {app: plain}}, mtls: {mode: DISABLE}, portLevelMtls: {9000: {mode: STRICT}}}",
            )
            + &object(
                "security.istio.io/v1",
                "PeerAuthentication",
                "mixed",
                "{selector: {matchLabels: {app: mixed}}, portLevelMtls: {8500: {mode: DISABLE}}}",
            )),
    );
    let with = |client_kind: ClientKind| {
        let view = ProxyView { client_kind, ..mesh.view("sidecar client-0.shop") };
        mesh.proxy(&view)
    };
    let transport = |config: &Config, to: &str| {
        let cluster = config.clusters.get("PassthroughCluster").expect("a cluster");
        match cluster.transport_to(to.parse().expect("an address")) {
            Transport::Raw => "plain",
            Transport::Tls(_) => "mutual",
            Transport::ProxyProtocol(_) => "PROXY",
        }
    };
    let config = with(ClientKind::EvenkeelLearned);
    for (to, expected) in [
        ("10.244.0.2:8080", "mutual"),
        ("10.244.0.3:1", "mutual"),
        ("10.244.0.1:80", "mutual"),
        ("10.244.0.4:80", "plain"),
        ("10.244.0.5:80", "plain"),
        ("10.244.0.5:9000", "mutual"),
        ("10.244.0.6:80", "plain"),
        ("10.244.1.9:80", "mutual"),
        ("10.244.1.9:8500", "plain"),
        ("10.5.0.1:22", "mutual"),
        ("192.0.2.1:443", "plain"),
    ] {
        assert_eq!(transport(&config, to), expected, "{to}");
    }
    assert_eq!(outbound(&config, &PLAIN_TCP, "10.244.0.2:8080", ""), "PassthroughCluster");
    // Envoy gets what Istio sends.
    assert_eq!(transport(&with(ClientKind::Envoy), "10.244.0.2:8080"), "plain");
}

#[test]
fn ten_thousand_addresses_are_small() {
    let table = |address: &dyn Fn(usize) -> String| {
        let pods: String = (0..10_000).map(|n| pod(&format!("web-{n}"), "web", &address(n))).collect();
        let mesh = Mesh::read(&(client() + &pods + &peer_authentication("{mtls: {mode: STRICT}}")));
        let view = ProxyView { client_kind: ClientKind::EvenkeelLearned, ..mesh.view("sidecar client-0.shop") };
        let set = translate(&view, &mesh.snapshot);
        set.of(ResourceType::Cluster).get("PassthroughCluster").expect("a cluster").any().value.len()
    };
    // One network for all, and 100 machines with 100 Pods each, every second address taken.
    let dense = table(&|n| format!("10.245.{}.{}", n / 250, n % 250 + 1));
    let sparse = table(&|n| format!("10.246.{}.{}", n / 100, n % 100 * 2 + 1));
    assert!(dense < 2_000, "{dense} bytes");
    assert!(sparse < 45_000, "{sparse} bytes");
    println!("10,000 Pods: {dense} and {sparse} bytes");
}

/// A Pod on a machine in a zone.
fn placed(name: &str, app: &str, address: &str, zone: &str, node: &str) -> String {
    let labels = format!("{{app: {app}, topology.kubernetes.io/region: r, topology.kubernetes.io/zone: {zone}}}");
    let text = pod(name, app, address).replace(&format!("{{app: {app}}}"), &labels);
    text.replace("spec: {", &format!("spec: {{nodeName: {node}, "))
}

#[test]
fn services_prefer_or_require_what_is_near() {
    let pods = placed("client-0", "client", "10.244.0.1", "a", "n1")
        + &placed("web-0", "web", "10.244.0.2", "a", "n1")
        + &placed("web-1", "web", "10.244.0.3", "a", "n2")
        + &placed("web-2", "web", "10.244.0.4", "b", "n3");
    let check = |fields: &str, annotations: &str, expected: &str| {
        let spec = format!("{{selector: {{app: web}}, ports: [{{name: http, port: 80}}], {fields}}}");
        let text = service("web", &spec)
            .replace("namespace: shop", &format!("namespace: shop, annotations: {{{annotations}}}"));
        let mesh = Mesh::read(&(pods.clone() + &text));
        let found = cluster(&mesh, "sidecar client-0.shop", "outbound|80||web.shop.svc.cluster.local");
        assert_eq!(found.replace("+mtls", "").replace(":80", ""), expected, "{fields} {annotations}");
    };
    let all = "EDS 10.244.0.2@r/a 10.244.0.3@r/a 10.244.0.4@r/b";
    let by_zone = "EDS 10.244.0.2@r/a 10.244.0.3@r/a 10.244.0.4@r/b!1";
    let by_node = "EDS 10.244.0.2@r/a 10.244.0.3@r/a!1 10.244.0.4@r/b!2";
    let annotation = |value: &str| format!("networking.istio.io/traffic-distribution: {value}");
    check("", "", all);
    check("trafficDistribution: PreferClose", "", by_zone);
    check("trafficDistribution: PreferSameZone", "", by_zone);
    check("trafficDistribution: PreferSameNode", "", by_node);
    check("", &annotation("PreferClose"), by_zone);
    check("", &annotation("prefersamenode"), by_node);
    check("trafficDistribution: PreferClose", &annotation("PreferSameNode"), by_zone);
    check("internalTrafficPolicy: Local", "", "EDS 10.244.0.2@r/a");
    check("internalTrafficPolicy: Cluster", "", all);
    // kube-proxy's session affinity is not the mesh's.
    check("sessionAffinity: ClientIP", "", all);
    check("publishNotReadyAddresses: true", "", all);
}

#[test]
fn endpoints_that_end_keep_only_their_sessions() {
    let slice = |conditions: &str| {
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: web, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\n\
             ports: [{{name: http, port: 80}}]\n\
             endpoints: [{{addresses: [10.1.0.1]}}, {{addresses: [10.1.0.2], conditions: {{{conditions}}}}}]\n"
        )
    };
    let check = |label: &str, conditions: &str, expected: &str| {
        let web = service("web", "{ports: [{name: http, port: 80}]}")
            .replace("namespace: shop", &format!("namespace: shop, labels: {{{label}}}"));
        let mesh = Mesh::read(&(client() + &web + &slice(conditions)));
        let found = cluster(&mesh, "sidecar client-0.shop", "outbound|80||web.shop.svc.cluster.local");
        assert_eq!(found, format!("EDS 10.1.0.1:80{expected}"), "{label} {conditions}");
    };
    let session = "istio.io/persistent-session: id";
    let ending = "ready: false, serving: true, terminating: true";
    check("", "ready: true, serving: true, terminating: false", " 10.1.0.2:80");
    check("", ending, "");
    check(session, ending, " 10.1.0.2:80+draining");
    check("istio.io/persistent-session-header: x-session", ending, " 10.1.0.2:80+draining");
    check(session, "ready: false, serving: false, terminating: true", "");
    check(session, "ready: false, serving: true, terminating: false", " 10.1.0.2:80+unhealthy");
}

/// Proxies are told of endpoints that should take traffic and cannot, so that they know how much of a locality fails; not where a rule
/// makes them use unhealthy ones, and not of those that are about to end.
#[test]
fn endpoints_that_fail_are_told_and_not_used() {
    let check = |pod_fields: &str, status: &str, policy: &str, expected: &str| {
        let broken = pod("web-1", "web", "10.1.0.2")
            .replace("\"True\"", &format!("\"{status}\""))
            .replace("name: web-1, namespace: shop", &format!("name: web-1, namespace: shop{pod_fields}"));
        let rule = format!(
            "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: r, namespace: shop}}\n\
             spec: {{host: web, trafficPolicy: {{outlierDetection: {{{policy}}}}}}}\n"
        );
        let web = service("web", "{selector: {app: web}, ports: [{name: http, port: 80}]}");
        let text = client() + &web + &pod("web-0", "web", "10.1.0.1") + &broken + &rule;
        let found = cluster(&Mesh::read(&text), "sidecar client-0.shop", "outbound|80||web.shop.svc.cluster.local");
        assert_eq!(found.replace("+mtls", ""), format!("EDS 10.1.0.1:80{expected}"), "{pod_fields} {status} {policy}");
    };
    check("", "True", "", " 10.1.0.2:80");
    check("", "False", "", " 10.1.0.2:80+unhealthy");
    check("", "False", "consecutive5xxErrors: 3", " 10.1.0.2:80+unhealthy");
    check("", "False", "minHealthPercent: 50", "");
    check("", "False", "minHealthPercent: 0", " 10.1.0.2:80+unhealthy");
    check(", deletionTimestamp: '2026-01-01T00:00:00Z'", "False", "", "");
    // Its containers still run: it takes no new requests all the same.
    check(", deletionTimestamp: '2026-01-01T00:00:00Z'", "True", "", "");
}

#[test]
fn an_ingress_routes_at_the_gateway() {
    let router = pod("edge-0", "edge", "10.244.0.7").replace("labels: {app: edge}", "labels: {istio: ingressgateway}");
    let router = router.replace("namespace: shop", "namespace: istio-system");
    let class = "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: istio}\n\
                 spec: {controller: istio.io/ingress-controller}\n";
    let backend = |name: &str, port: &str| format!("backend: {{service: {{name: {name}, port: {{{port}}}}}}}");
    let (web, api) = (backend("web", "number: 80"), backend("api", "name: http"));
    let ingress = |class: &str| {
        object(
            "networking.k8s.io/v1",
            "Ingress",
            "front",
            &format!(
                "{{{class}rules: [\
                 {{host: a.example.com, http: {{paths: [{{path: /, pathType: Prefix, {web}}}, {{path: /api/, pathType: Prefix, {api}}}, \
                 {{path: /api/v1, pathType: Exact, {web}}}]}}}}, \
                 {{host: \"*.b.example.com\", http: {{paths: [{{path: /x/*, pathType: ImplementationSpecific, {api}}}, {{path: /y, {web}}}]}}}}, \
                 {{http: {{paths: [{{path: /all, pathType: Exact, {web}}}]}}}}], \
                 tls: [{{hosts: [a.example.com], secretName: front}}]}}"
            ),
        )
    };
    let services =
        service("web", "{ports: [{name: http, port: 80}]}") + &service("api", "{ports: [{name: http, port: 8000}]}");
    let of = |text: String| {
        let mesh = Mesh::read(&text);
        mesh.proxy(&mesh.view("router edge-0.istio-system"))
    };
    let config = of(router.clone() + class + &services + &ingress("ingressClassName: istio, "));
    let listener = ["0.0.0.0_80", "0.0.0.0_8080"].into_iter().find(|name| config.listeners.contains_key(*name));
    let listener = listener.expect("a listener");
    let (web, api) = ("outbound|80||web.shop.svc.cluster.local", "outbound|8000||api.shop.svc.cluster.local");
    for (host, path, expected) in [
        ("a.example.com", "/", web),
        ("a.example.com", "/apis", web),
        ("a.example.com", "/api", api),
        ("a.example.com", "/api/v2", api),
        ("a.example.com", "/api/v1", web),
        ("x.b.example.com", "/x/1", api),
        ("x.b.example.com", "/x", api),
        // The parts between slashes count.
        ("x.b.example.com", "/xx", "404"),
        ("x.b.example.com", "/y", web),
        ("x.b.example.com", "/y/1", "404"),
        ("a.example.com", "/all", web),
        ("other.example.com", "/all", web),
        ("other.example.com", "/", "404"),
    ] {
        let port = listener.rsplit_once('_').expect("a port").1;
        let got =
            outcome(&config, listener, &PLAIN_HTTP, &format!("10.244.0.7:{port}"), &format!("GET {host} {path}"), 0);
        let expected = if expected == "404" { "404".to_owned() } else { format!("{expected} {host}{path}") };
        assert_eq!(got, expected, "{host}{path}");
    }
    // Hosts with a certificate are served with TLS too, others are not.
    let secure = ["0.0.0.0_443", "0.0.0.0_8443"].into_iter().find(|name| config.listeners.contains_key(*name));
    let secure = secure.expect("a listener");
    let port = secure.rsplit_once('_').expect("a port").1;
    for (host, path, expected) in [
        ("a.example.com", "/api/v1", "outbound|80||web.shop.svc.cluster.local a.example.com/api/v1"),
        ("x.b.example.com", "/y", "closed"),
    ] {
        let client = Client { server_name: Some(host), ..PLAIN_HTTP };
        let got = outcome(&config, secure, &client, &format!("10.244.0.7:{port}"), &format!("GET {host} {path}"), 0);
        assert_eq!(got, expected, "{host}{path}");
    }
    // Without Istio's class it is another controller's.
    for class in ["", "ingressClassName: nginx, "] {
        let config = of(router.clone() + &services + &ingress(class));
        assert!(!config.listeners.contains_key(listener), "{class}");
    }
    let old =
        ingress("").replace("namespace: shop", "namespace: shop, annotations: {kubernetes.io/ingress.class: istio}");
    assert!(of(router + &services + &old).listeners.contains_key(listener));
}
