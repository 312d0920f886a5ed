//! Where requests go by the places of client and endpoints: a control plane, proxies and backends over real sockets.

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
        let backend = Backend::start(move |_| match asked.load(Ordering::Relaxed) {
            true => Reply::Fixed(500, Vec::new(), Vec::new()),
            false => Reply::text(name),
        });
        Self { backend, fails }
    }
}

fn rule(setting: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: web, namespace: shop}}\n\
         spec:\n  host: web.test\n  trafficPolicy:\n    loadBalancer: {{localityLbSetting: {{{setting}}}}}\n\
         \x20   outlierDetection: {{consecutive5xxErrors: 1, interval: 1s, baseEjectionTime: 600s, maxEjectionPercent: 100}}\n"
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
    let listed: Vec<String> = PLACES
        .iter()
        .zip(&endpoints)
        .map(|((_, place), endpoint)| {
            let address = endpoint.backend.address();
            format!("{{address: {}, ports: {{http: {}}}, locality: {place}}}", address.ip(), address.port())
        })
        .collect();
    let plane = Plane::new();
    plane.write(
        "web",
        &format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: web, namespace: shop}}\n\
             spec:\n  hosts: [web.test]\n  location: MESH_EXTERNAL\n  resolution: STATIC\n\
             \x20 ports: [{{number: 80, name: http, protocol: HTTP}}]\n  endpoints: [{}]\n",
            listed.join(", ")
        ),
    );
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
