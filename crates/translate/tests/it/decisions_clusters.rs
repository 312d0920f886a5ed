//! Tables of decisions: services over several clusters and networks.

use std::sync::Arc;

use evenkeel_api::remote::name_in;
use evenkeel_api::{ObjectKey, load_object};
use evenkeel_base::yaml;
use evenkeel_base::{Rank, SourceId};
use evenkeel_model::{AddressBook, Builder, MeshConfig, Snapshot, SourceEvent};
use evenkeel_translate::{ClientKind, ProxyView};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use serde_json::{Value, json};

use crate::scenario::{as_json, translate};

/// The objects of each cluster; an empty name is the control plane's own.
fn snapshot(clusters: &[(&str, &str)]) -> Snapshot {
    let mut builder = Builder::new(MeshConfig::default(), AddressBook::default());
    let mut last = Snapshot::default();
    for (cluster, text) in clusters {
        let (name, rank) = if cluster.is_empty() { ("kubernetes", 200) } else { ("remote-clusters", 201) };
        let source = SourceId::new(name, Rank(rank));
        let (documents, found) = yaml::parse(&"a.yaml".into(), text);
        assert!(found.is_empty(), "{text}");
        let events = documents.iter().map(yaml::Node::to_json).map(|mut json| {
            let own = json["metadata"]["name"].as_str().expect("a name").to_owned();
            json["metadata"]["name"] = name_in(cluster, &own).into();
            let key = ObjectKey::of_json(&json).expect("a key");
            let (objects, found) = load_object(&source, &json);
            assert!(found.is_empty(), "{found:?}");
            (source.clone(), SourceEvent::of_object(key, 0, objects.into_iter().map(Arc::new).collect()))
        });
        last = (*builder.apply(events.collect::<Vec<_>>()).snapshot).clone();
    }
    last
}

fn service(name: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{clusterIP: {address}, selector: {{app: {name}}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}\n"
    )
}

fn pod(name: &str, app: &str, address: &str, labels: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {app}, security.istio.io/tlsMode: istio{labels}}}}}\n\
         spec: {{containers: [{{name: main, ports: [{{containerPort: 8080}}]}}]}}\n\
         status: {{podIP: {address}, podIPs: [{{ip: {address}}}], conditions: [{{type: Ready, status: \"True\"}}]}}\n"
    )
}

/// A namespace whose label says which network its cluster is in.
fn network(name: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: istio-system, labels: {{topology.istio.io/network: {name}}}}}\n"
    )
}

/// A gateway into a network, with addresses of its load balancer.
fn gateway(network: &str, labels: &str, addresses: &[&str]) -> String {
    let points = addresses.iter().map(|ip| format!("{{ip: {ip}}}")).collect::<Vec<_>>().join(", ");
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: eastwest, namespace: istio-system, labels: {{topology.istio.io/network: {network}{labels}}}}}\n\
         spec: {{type: LoadBalancer, clusterIP: 10.96.7.7, ports: [{{name: tls, port: 15443}}]}}\n\
         status: {{loadBalancer: {{ingress: [{points}]}}}}\n"
    )
}

/// A proxy beside the Pod `client` of a cluster.
fn client(cluster: &str, address: &str) -> ProxyView {
    let id = format!("sidecar~{address}~client.shop~shop.svc.cluster.local");
    let node = Node { id, ..Default::default() };
    ProxyView {
        cluster: cluster.into(),
        client_kind: ClientKind::EvenkeelFull,
        authenticated: true,
        captures_dns: true,
        ..ProxyView::from_node(&node).expect("a node")
    }
}

/// The endpoints of a cluster: `ADDRESS:PORT*WEIGHT`, with the workload's cluster in the metrics.
fn endpoints(snapshot: &Snapshot, view: &ProxyView, host: &str) -> Vec<String> {
    endpoints_of_subset(snapshot, view, "", host)
}

fn endpoints_of_subset(snapshot: &Snapshot, view: &ProxyView, subset: &str, host: &str) -> Vec<String> {
    let all = as_json(&translate(view, snapshot));
    let name = format!("outbound|80|{subset}|{host}");
    let list = all["EDS"].as_array().cloned().unwrap_or_default();
    let json = list.into_iter().find(|one| one["cluster_name"] == *name).unwrap_or_else(|| panic!("no {name}"));
    let groups = json["endpoints"].as_array().cloned().unwrap_or_default();
    let of_group = |group: &Value| group["lb_endpoints"].as_array().cloned().unwrap_or_default();
    let mut all: Vec<String> = groups
        .iter()
        .flat_map(of_group)
        .map(|one| {
            let at = &one["endpoint"]["address"]["socket_address"];
            let workload =
                one["metadata"]["filter_metadata"]["istio"]["workload"].as_str().unwrap_or_default().to_owned();
            let cluster = workload.split(';').nth(4).unwrap_or_default().to_owned();
            let (address, port, weight) = (&at["address"], &at["port_value"], &one["load_balancing_weight"]);
            format!("{}:{port}*{weight} {cluster}", address.as_str().unwrap_or_default())
        })
        .collect();
    all.sort();
    all
}

const REVIEWS: &str = "reviews.shop.svc.cluster.local";

/// Services of the same namespace and name are one, with the endpoints of all clusters; each cluster's Service selects its own Pods.
#[test]
fn a_service_has_the_endpoints_of_all_clusters() {
    let east = [
        service("reviews", "10.96.0.1"),
        pod("r-1", "reviews", "10.1.0.1", ""),
        pod("client", "client", "10.1.0.9", ""),
    ];
    let west = [
        service("reviews", "10.96.0.77"),
        service("only-there", "10.96.0.1"),
        pod("r-1", "reviews", "10.2.0.1", ""),
        pod("t-1", "only-there", "10.2.0.2", ""),
        pod("client", "client", "10.2.0.9", ""),
    ];
    let (east, west) = (east.concat(), west.concat());
    let snapshot = snapshot(&[("", &east), ("west", &west)]);
    let both = ["10.1.0.1:8080*1 Kubernetes", "10.2.0.1:8080*1 west"];
    for (cluster, address) in [("Kubernetes", "10.1.0.9"), ("west", "10.2.0.9")] {
        assert_eq!(endpoints(&snapshot, &client(cluster, address), REVIEWS), both, "{cluster}");
    }
    let here = client("Kubernetes", "10.1.0.9");
    assert_eq!(endpoints(&snapshot, &here, "only-there.shop.svc.cluster.local"), ["10.2.0.2:8080*1 west"]);

    // Each cluster's clients call a service at the address that it has there.
    let names = |view: &ProxyView, host: &str| {
        let all = as_json(&translate(view, &snapshot));
        let tables = all["NDS"].as_array().cloned().unwrap_or_default();
        tables.iter().map(|table| table["table"][host]["ips"].clone()).find(|ips| !ips.is_null()).expect("a name")
    };
    let there = client("west", "10.2.0.9");
    assert_eq!(names(&here, REVIEWS), json!(["10.96.0.1"]));
    assert_eq!(names(&there, REVIEWS), json!(["10.96.0.77"]));
    assert_eq!(names(&there, "only-there.shop.svc.cluster.local"), json!(["10.96.0.1"]));
    // In another cluster the address may be that of another Service: one of the mesh's own stands for it.
    let allotted = names(&here, "only-there.shop.svc.cluster.local");
    assert!(allotted[0].as_str().is_some_and(|ip| ip.starts_with("240.240.")), "{allotted}");
}

#[test]
fn a_service_may_stay_within_its_cluster() {
    let settings = |text: &str| {
        let text = text.replace('\n', "\n    ");
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |-\n    {text}\n"
        )
    };
    let check = |text: &str, expected: [&[&str]; 2]| {
        let east = [
            settings(text),
            service("reviews", "10.96.0.1"),
            pod("r", "reviews", "10.1.0.1", ""),
            pod("client", "client", "10.9.0.9", ""),
        ]
        .concat();
        let west = [
            service("reviews", "10.96.0.1"),
            pod("r", "reviews", "10.2.0.1", ""),
            pod("client", "client", "10.9.0.9", ""),
        ]
        .concat();
        let snapshot = snapshot(&[("", &east), ("west", &west)]);
        let found = ["Kubernetes", "west"].map(|name| endpoints(&snapshot, &client(name, "10.9.0.9"), REVIEWS));
        assert_eq!(found, expected.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>()), "{text}");
    };
    let (east, west) = ("10.1.0.1:8080*1 Kubernetes", "10.2.0.1:8080*1 west");
    check("{}", [&[east, west], &[east, west]]);
    let local = "serviceSettings: [{settings: {clusterLocal: true}, hosts: ['*.shop.svc.cluster.local']}]";
    check(local, [&[east], &[west]]);
    let but = "serviceSettings:\n- {settings: {clusterLocal: true}, hosts: ['*']}\n\
               - {settings: {clusterLocal: false}, hosts: [reviews.shop.svc.cluster.local]}";
    check(but, [&[east, west], &[east, west]]);
    let mesh = MeshConfig::default();
    let is_local = |host: &str| mesh.is_cluster_local(&evenkeel_base::hostname::Hostname::parse(host).expect("a host"));
    assert!(is_local("dns.kube-system.svc.cluster.local") && is_local("kubernetes.default.svc.cluster.local"));
    assert!(!is_local("a.default.svc.cluster.local"));
}

#[test]
fn another_network_is_reached_through_its_gateways() {
    let check = |east: &[String], west: &[String], expected: [&[&str]; 2]| {
        let own = [
            service("reviews", "10.96.0.1"),
            pod("r", "reviews", "10.1.0.1", ""),
            pod("client", "client", "10.1.0.9", ""),
        ];
        let east = [own.concat(), east.concat()].concat();
        let snapshot = snapshot(&[("", &east), ("west", &west.concat())]);
        let found = [("Kubernetes", "10.1.0.9"), ("west", "10.1.0.9")]
            .map(|(name, address)| endpoints(&snapshot, &client(name, address), REVIEWS));
        assert_eq!(found, expected.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>()));
    };
    // The Pods of another network may have the same addresses.
    let n2 = ", topology.istio.io/network: n2";
    let there = || {
        [
            service("reviews", "10.96.0.1"),
            pod("r-1", "reviews", "10.1.0.1", n2),
            pod("r-2", "reviews", "10.1.0.2", n2),
            pod("client", "client", "10.1.0.9", n2),
        ]
        .concat()
    };
    let local = "10.1.0.1:8080*1 Kubernetes";
    let direct = [local, "10.1.0.1:8080*1 west", "10.1.0.2:8080*1 west"];
    // Without gateways, or without a network of its own, all are called directly.
    check(&[network("n1")], &[there()], [&direct, &direct]);
    check(&[], &[there(), gateway("n2", "", &["192.0.2.2"])], [&direct, &direct]);
    let through = [local, "192.0.2.2:15443*2 west"];
    let west = [there(), gateway("n2", "", &["192.0.2.2"])];
    check(&[network("n1")], &west, [&through, &direct]);
    // Each of two gateways has half of what is behind them.
    let halves = ["10.1.0.1:8080*2 Kubernetes", "192.0.2.2:15900*2 west", "192.0.2.3:15900*2 west"];
    let two = gateway("n2", ", networking.istio.io/gatewayPort: '15900'", &["192.0.2.2", "192.0.2.3"]);
    check(&[network("n1")], &[there(), two], [&halves, &direct]);
    // In both directions.
    let back = ["10.1.0.1:8080*1 west", "10.1.0.2:8080*1 west", "192.0.2.1:15443*1 Kubernetes"];
    check(&[network("n1"), gateway("n1", "", &["192.0.2.1"])], &west, [&through, &back]);
    // Whoever has no proxy cannot be reached.
    let plain = there().replace("tlsMode: istio", "tlsMode: disabled");
    let gateways = gateway("n2", "", &["192.0.2.2"]);
    check(&[network("n1")], &[plain, gateways], [&[local], &direct]);
    // So do WorkloadEntries.
    let entry = "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: shop, labels: {security.istio.io/tlsMode: istio}}\n\
                 spec: {address: 172.16.0.1, network: n2, labels: {app: reviews}}\n";
    let own = [network("n1"), entry.to_owned()];
    // An address is called by whoever is in its network.
    let merged = [local, "192.0.2.2:15443*3 west"];
    check(&own, &west, [&merged, &[&direct[..], &["172.16.0.1:8080*1 Kubernetes"]].concat()]);
}

const BY_PLACE: &str = "\
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec:
  host: reviews.shop.svc.cluster.local
  subsets:
  - {name: own, labels: {topology.istio.io/cluster: Kubernetes}}
  - {name: west, labels: {topology.istio.io/cluster: west}}
  - {name: n1, labels: {topology.istio.io/network: n1}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews.shop.svc.cluster.local]
  http:
  - {name: of-n1, match: [{uri: {prefix: /n1}, sourceLabels: {topology.istio.io/network: n1}}], route: [{destination: {host: reviews, subset: own}}]}
  - {name: of-own, match: [{sourceLabels: {topology.istio.io/cluster: Kubernetes}}], route: [{destination: {host: reviews, subset: own}}]}
  - {name: of-west, match: [{sourceLabels: {topology.istio.io/cluster: west}}], route: [{destination: {host: reviews, subset: west}}]}
";

/// Istio gives every workload and endpoint the labels of its cluster and network; what Pods say of their cluster does not count.
#[test]
fn subsets_and_sources_are_told_apart_by_cluster_and_network() {
    let slice = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {name: by-hand, namespace: shop, labels: {kubernetes.io/service-name: reviews}}\naddressType: IPv4\n\
                 ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.3.0.1]}]\n";
    let entry = "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: shop}\n\
                 spec: {address: 172.16.0.1, labels: {app: reviews}}\n";
    let east = [
        BY_PLACE.to_owned(),
        network("n1"),
        service("reviews", "10.96.0.1"),
        pod("r", "reviews", "10.1.0.1", ", topology.istio.io/cluster: other"),
        pod("client", "client", "10.1.0.9", ""),
        slice.to_owned(),
        entry.to_owned(),
    ];
    // Remote Pods have the labels when they are put.
    let of_west = ", topology.istio.io/cluster: west, topology.istio.io/network: n2";
    let west = [
        service("reviews", "10.96.0.1"),
        pod("r", "reviews", "10.2.0.1", of_west),
        pod("client", "client", "10.2.0.9", of_west),
    ];
    let (east, west) = (east.concat(), west.concat());
    let snapshot = snapshot(&[("", &east), ("west", &west)]);
    let clients = [client("Kubernetes", "10.1.0.9"), client("west", "10.2.0.9")];
    let [here, there] = &clients;
    let check = |subset: &str, expected: &[&str]| {
        assert_eq!(endpoints_of_subset(&snapshot, here, subset, REVIEWS), expected, "{subset}");
    };
    check("own", &["10.1.0.1:8080*1 Kubernetes", "10.3.0.1:8080*1 Kubernetes", "172.16.0.1:8080*1 Kubernetes"]);
    check("west", &["10.2.0.1:8080*1 west"]);
    check("n1", &["10.1.0.1:8080*1 Kubernetes", "10.3.0.1:8080*1 Kubernetes"]);

    let routes = |view: &ProxyView| {
        let text = as_json(&translate(view, &snapshot)).to_string();
        ["of-n1", "of-own", "of-west"].map(|name| text.contains(&format!("\"{name}\"")))
    };
    assert_eq!(routes(here), [true, true, false]);
    assert_eq!(routes(there), [false, false, true]);
}

/// gRPC refuses a repeated address: a gateway stands once for all endpoints behind it, with their share.
#[test]
fn a_gateway_keeps_its_share_for_grpc_without_a_proxy() {
    let east = [
        network("n1"),
        service("reviews", "10.96.0.1"),
        pod("r", "reviews", "10.1.0.1", ""),
        pod("client", "client", "10.1.0.9", ""),
    ];
    let check = |regions: [&str; 3], expected: &[&str]| {
        let pods = regions.iter().enumerate().map(|(at, region)| {
            let labels = format!(", topology.istio.io/network: n2, topology.kubernetes.io/region: {region}");
            // The addresses of another network may be those of this one.
            pod(&format!("r-{at}"), "reviews", &format!("10.1.0.{}", at + 1), &labels)
        });
        let west = service("reviews", "10.96.0.1") + &pods.collect::<String>() + &gateway("n2", "", &["192.0.2.2"]);
        let snapshot = snapshot(&[("", &east.concat()), ("west", &west)]);
        let view = ProxyView { client_kind: ClientKind::Grpc, ..client("Kubernetes", "10.1.0.9") };
        let found: Vec<String> =
            endpoints(&snapshot, &view, REVIEWS).iter().map(|one| one.trim_end().to_owned()).collect();
        assert_eq!(found, expected, "{regions:?}");
    };
    check(["r1", "r1", "r1"], &["10.1.0.1:8080*1", "192.0.2.2:15443*3"]);
    check(["r1", "r2", "r1"], &["10.1.0.1:8080*1", "192.0.2.2:15443*3"]);
}
