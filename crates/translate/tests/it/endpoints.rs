//! A change of endpoints rebuilds the resources that contain them, and nothing else.

use evenkeel_testkit::objects::GATEWAY;
use evenkeel_translate::{ClientKind, ProxyKind, ProxyView};

use crate::fleet::{Fleet, Work};
use crate::incremental::{Mesh, envoys, service};

/// Services whose endpoints stand in what differs: in assignments, in names, in clusters.
const SERVICES: [(&str, &str); 3] = [
    ("pods", "{clusterIP: 10.96.0.7, selector: {app: p}, ports: [{name: http, port: 80}]}"),
    ("headless", "{clusterIP: None, selector: {app: h}, ports: [{name: http, port: 80}, {name: tcp, port: 9000}]}"),
    ("unused", "{clusterIP: 10.96.0.8, selector: {app: u}, ports: [{name: http, port: 80}]}"),
];

/// A Pod that no proxy of the test stands beside.
fn endpoint(name: &str, app: &str, account: &str, ready: &str) -> (String, String) {
    let number = name.bytes().map(u32::from).sum::<u32>();
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}\n\
         spec: {{serviceAccountName: {account}, hostname: {name}, subdomain: headless, containers: [{{name: c}}]}}\n\
         status: {{podIP: 10.7.{}.{}, conditions: [{{type: Ready, status: \"{ready}\"}}]}}\n",
        number / 250,
        number % 250
    );
    (format!("{name}.yaml"), text)
}

fn resolved(address: &str) -> (String, String) {
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: dns, namespace: shop}}\n\
         spec: {{hosts: [dns.example.com], ports: [{{number: 80, name: http}}], resolution: DNS, endpoints: [{{address: {address}}}]}}\n"
    );
    ("dns.yaml".to_owned(), text)
}

/// What a change makes anew for sidecars and routers of a kind.
fn work_for(client_kind: ClientKind, change: &[(String, String)]) -> Work {
    let mut mesh = Mesh::new();
    let services = SERVICES.map(|(name, spec)| {
        let text =
            format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n");
        (format!("{name}.yaml"), text)
    });
    let pods = [("p-0", "p"), ("p-1", "p"), ("h-0", "h")].map(|(name, app)| endpoint(name, app, "a", "True"));
    let others = [resolved("a.test"), ("gateway.yaml".to_owned(), GATEWAY.to_owned())];
    let files: Vec<_> = (0..3).map(service).chain(services).chain(pods).chain(others).collect();
    let (snapshot, cause) = mesh.write(files.iter().map(|(name, text)| (name.clone(), text.as_str())));
    let mut fleet = Fleet::new(snapshot, cause);
    // Of one namespace: what a rule or a bare name says to its own clients is made apart from what it says to others.
    let is_one = |view: &ProxyView| client_kind != ClientKind::Grpc || view.kind == ProxyKind::Sidecar;
    for view in envoys().into_iter().filter(|view| *view.namespace == *"shop" && is_one(view)) {
        fleet.join(&ProxyView { client_kind, ..view });
    }
    let before = fleet.work();
    let (snapshot, cause) = mesh.write(change.iter().map(|(name, text)| (name.clone(), text.as_str())));
    fleet.update(snapshot, cause);
    let work = fleet.work().since(&before);
    assert_eq!(fleet.verify(), []);
    work
}

#[test]
fn a_change_of_endpoints_makes_anew_what_contains_them() {
    let check =
        |kind: ClientKind, change: &(String, String), units: u64, parts: u64, expected: &[(&'static str, u64)]| {
            let expected = Work { units, parts, resources: expected.iter().copied().collect() };
            assert_eq!(work_for(kind, std::slice::from_ref(change)), expected, "{kind:?} {change:?}");
        };
    let (name, text) = service(1);
    let moved = (name, text.replace("198.51.", "203.0."));
    let more = endpoint("p-2", "p", "a", "True");
    let not_ready = endpoint("p-1", "p", "a", "False");
    let gone = ("p-1.yaml".to_owned(), String::new());
    let named = endpoint("h-1", "h", "a", "True");
    let other_name = resolved("b.test");
    for kind in [ClientKind::Envoy, ClientKind::EvenkeelFull, ClientKind::EvenkeelLearned] {
        // Once for all sidecars, and once for the router.
        for change in [&moved, &more, &not_ready, &gone] {
            check(kind, change, 2, 0, &[("EDS", 2)]);
        }
        check(kind, &other_name, 2, 0, &[("CDS", 2)]);
    }
    // Of a headless service each Pod has a name, and a listener where the port is of bytes; an agent has the names in a table, or
    // the service's and each Pod's one by one. The router has endpoints of both ports.
    check(ClientKind::Envoy, &named, 4, 5, &[("EDS", 2), ("LDS", 1), ("NDS", 1)]);
    check(ClientKind::EvenkeelLearned, &named, 3, 2, &[("EDS", 2), ("LDS", 1), ("NDS", 3)]);
    for change in [&moved, &more, &not_ready, &gone] {
        check(ClientKind::Grpc, change, 1, 0, &[("EDS", 1)]);
    }
    check(ClientKind::Grpc, &named, 1, 0, &[("EDS", 2)]);
    check(ClientKind::Grpc, &other_name, 1, 0, &[("CDS", 1)]);
}

/// Whom a client is to meet at the other end stands in the cluster.
#[test]
fn endpoints_of_another_identity_make_clusters_anew() {
    for change in [endpoint("p-2", "p", "b", "True"), endpoint("u-0", "u", "a", "True")] {
        for kind in [ClientKind::Envoy, ClientKind::EvenkeelLearned] {
            let work = work_for(kind, std::slice::from_ref(&change));
            assert_eq!((work.units, work.resources.get("CDS")), (4, Some(&2)), "{kind:?} {change:?}: {work:?}");
        }
    }
}
