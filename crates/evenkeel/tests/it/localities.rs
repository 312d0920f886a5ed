//! Routing by the localities of client and endpoints: a control plane, proxies and backends over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_testkit::{Backend, Reply, eventually};

use crate::mesh::{Plane, Proxy};
use crate::settle::settle;

/// Names and places of the endpoints; the client is in `r1/z1`.
const PLACES: [(&str, &str); 3] = [("near", "r1/z1"), ("region", "r1/z2"), ("far", "r2/z1")];
/// Requests that all have to go the same way.
const REQUESTS: usize = 30;

struct Endpoint {
    backend: Backend,
    fails: Arc<AtomicBool>,
}

impl Endpoint {
    fn start(name: &'static str) -> Self {
        let fails = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&fails);
        let backend = Backend::start(move |_| {
            if asked.load(Ordering::Relaxed) { Reply::Fixed(500, Vec::new(), Vec::new()) } else { Reply::text(name) }
        });
        Self { backend, fails }
    }
}

/// A rule with `localityLbSetting`.
fn rule(setting: &str) -> String {
    balancer(&format!("localityLbSetting: {{{setting}}}"))
}

fn balancer(setting: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: web, namespace: shop}}\n\
         spec:\n  host: web.test\n  trafficPolicy:\n    loadBalancer: {{{setting}}}\n\
         \x20   outlierDetection: {{consecutive5xxErrors: 1, interval: 1s, baseEjectionTime: 600s, maxEjectionPercent: 100}}\n"
    )
}

/// The host `web.test` with these endpoints.
fn web(endpoints: &[Endpoint; 3]) -> String {
    let listed: Vec<String> = PLACES
        .iter()
        .zip(endpoints)
        .map(|((_, place), endpoint)| {
            let address = endpoint.backend.address();
            format!("{{address: {}, ports: {{http: {}}}, locality: {place}}}", address.ip(), address.port())
        })
        .collect();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: web, namespace: shop}}\n\
         spec:\n  hosts: [web.test]\n  location: MESH_EXTERNAL\n  resolution: STATIC\n\
         \x20 ports: [{{number: 80, name: http, protocol: HTTP}}]\n  endpoints: [{}]\n",
        listed.join(", ")
    )
}

/// Who has answered so many requests.
fn answers(proxy: &Proxy) -> Vec<String> {
    (0..REQUESTS).map(|_| proxy.get("web.test").1).collect()
}

/// Waits until all requests are answered by one of these, and by each.
fn goes_to(proxy: &Proxy, what: &str, wanted: &[&str]) {
    eventually(what, || {
        let all = answers(proxy);
        let only = all.iter().all(|name| wanted.contains(&name.as_str()));
        (only && wanted.iter().all(|name| all.iter().any(|answer| answer == name))).then_some(())
    });
}

#[test]
fn requests_stay_near_fail_over_and_are_distributed_as_the_rule_says() {
    let endpoints = PLACES.map(|(name, _)| Endpoint::start(name));
    let plane = Plane::new();
    plane.write("web", &web(&endpoints));
    plane.write("rule", &rule("failover: [{from: r1, to: r2}]"));
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a folder");
    for scope in ["learned", "full"] {
        let proxy = Proxy::start(&plane, folder.path(), &format!("{scope}-0"), scope, 1);
        eventually("the host", || (proxy.get("web.test").0 == 200).then_some(()));
        let all = answers(&proxy);
        assert!(all.iter().all(|name| name == "near"), "{scope}: the endpoints of the own zone come first: {all:?}");
        endpoints[0].fails.store(true, Ordering::Relaxed);
        goes_to(&proxy, "the own region, when the zone fails", &["region"]);
        endpoints[1].fails.store(true, Ordering::Relaxed);
        goes_to(&proxy, "the other region, when the own one fails", &["far"]);
        endpoints.iter().for_each(|endpoint| endpoint.fails.store(false, Ordering::Relaxed));
    }
    // A new proxy has ejected nobody.
    plane.write("rule", &rule("distribute: [{from: 'r1/z1/*', to: {'r1/z2/*': 50, 'r2/z1/*': 50}}]"));
    settle(&plane);
    let proxy = Proxy::start(&plane, folder.path(), "other-0", "full", 1);
    eventually("the host", || (proxy.get("web.test").0 == 200).then_some(()));
    goes_to(&proxy, "the zones that the rule names", &["region", "far"]);
    plane.write("rule", &rule("enabled: false"));
    settle(&plane);
    goes_to(&proxy, "all, without places", &["near", "region", "far"]);
}

/// A Service of the clients, and its Pods in these zones of the region `r1`. Only the first Pod has a proxy here.
fn clients(zones: &[&str]) -> String {
    let mut text = "apiVersion: v1\nkind: Service\nmetadata: {name: client, namespace: shop}\n\
                    spec: {selector: {app: client}, ports: [{name: http, port: 80}]}\n"
        .to_owned();
    for (index, zone) in zones.iter().enumerate() {
        let labels = format!("app: client, topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: {zone}");
        text += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: client-{index}, namespace: shop, labels: {{{labels}}}}}\n\
             spec: {{containers: [{{name: client}}]}}\n\
             status: {{podIP: 10.244.0.{}, phase: Running, conditions: [{{type: Ready, status: 'True'}}]}}\n",
            index + 1
        );
    }
    text
}

/// Settings of the mesh. Proxies without an agent have no certificates.
fn mesh(more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\n\
         data: {{mesh: '{{outboundTrafficPolicy: {{mode: REGISTRY_ONLY}}, enableAutoMtls: false, {more}}}'}}\n"
    )
}

/// As an agent writes a bootstrap file where `ISTIO_META_ENABLE_SELF_DISCOVERY` is set.
fn told_of_its_peers(bootstrap: String) -> String {
    let cluster = "\
clusters:
  - name: local_cluster
    type: EDS
    eds_cluster_config: {eds_config: {ads: {}, resource_api_version: V3}}";
    bootstrap
        .replace("metadata: {", "metadata: {ENABLE_SELF_DISCOVERY: \"true\", ")
        .replace("clusters:", cluster)
        .replace("\nstatic_resources:", "\ncluster_manager: {local_cluster_name: local_cluster}\nstatic_resources:")
}

#[test]
fn requests_stay_in_the_zone_as_far_as_its_endpoints_can_take_them() {
    let endpoints = PLACES.map(|(name, _)| Endpoint::start(name));
    let zones = |more: &str| balancer(&format!("zoneAwareLbSetting: {{{more}}}"));
    let plane = Plane::new();
    plane.write("web", &web(&endpoints));
    plane.write("clients", &clients(&["z1", "z2"]));
    plane.write("rule", &zones("minClusterSize: 2"));
    plane.write("mesh", &mesh(""));
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a folder");
    let start = || Proxy::start_as(&plane, folder.path(), "client-0", "full", 1, &[], told_of_its_peers);
    let proxy = start();
    eventually("the host", || (proxy.get("web.test").0 == 200).then_some(()));
    // Each zone has half of the clients and half of the region's endpoints.
    goes_to(&proxy, "the own zone", &["near"]);
    // Two thirds of the clients are in the own zone, and half of the endpoints: a quarter of the requests leaves.
    plane.write("clients", &clients(&["z1", "z2", "z1"]));
    settle(&plane);
    goes_to(&proxy, "the zones of the region", &["near", "region"]);
    // No third zone's clients take part, and those of other regions are not counted.
    plane.write("clients", &clients(&["z1", "z2"]));
    settle(&plane);
    goes_to(&proxy, "the own zone again", &["near"]);
    plane.write("rule", &zones(""));
    settle(&plane);
    goes_to(&proxy, "the region: for zones it has too few endpoints", &["near", "region"]);
    // Without zones, outlier detection prefers the nearest endpoints, as in Istio.
    plane.write("rule", &zones("enabled: false"));
    settle(&plane);
    goes_to(&proxy, "the nearest", &["near"]);
    // What fails is left, nearest first. Half of a region counts as 70 % of it, so the next region gets the rest.
    plane.write("rule", &zones("minClusterSize: 1"));
    settle(&plane);
    goes_to(&proxy, "the own zone", &["near"]);
    endpoints[0].fails.store(true, Ordering::Relaxed);
    goes_to(&proxy, "the own region and the next one, when the zone fails", &["region", "far"]);
    endpoints[1].fails.store(true, Ordering::Relaxed);
    goes_to(&proxy, "the other region, when the own one fails", &["far"]);
    endpoints.iter().for_each(|endpoint| endpoint.fails.store(false, Ordering::Relaxed));
    drop(proxy);
    // The mesh says so for all services.
    plane.remove("rule");
    plane.write("mesh", &mesh("zoneAwareLbSetting: {minClusterSize: 2}"));
    settle(&plane);
    let proxy = start();
    eventually("the host", || (proxy.get("web.test").0 == 200).then_some(()));
    goes_to(&proxy, "the own zone", &["near"]);
}
