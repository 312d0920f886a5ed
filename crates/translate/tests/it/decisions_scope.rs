//! The parts of a VirtualService with several hosts that a Sidecar lets a proxy see.

use crate::calls::{Arrival, HTTP, Mesh, object_of, virtual_service};

/// A VirtualService of three hosts, of which one has no service; its answers are told from the services' own.
const ROUTES: &str = "hosts: [reviews, ratings, old.example.com]\nhttp: [{directResponse: {status: 418}}]";
const ALT: Arrival = Arrival { listener: "0.0.0.0_8080", to: "10.96.0.1:8080", ..HTTP };

fn mesh(imported: &str) -> Mesh {
    let spec = format!("outboundTrafficPolicy: {{mode: REGISTRY_ONLY}}\negress: [{{hosts: [{imported}]}}]");
    let sidecar = object_of("networking.istio.io/v1", "Sidecar", "default", "shop", &spec);
    Mesh::new(&format!("{}{sidecar}", virtual_service("several", "shop", ROUTES)))
}

#[test]
fn a_virtual_service_with_one_imported_host_counts_for_its_other_hosts_on_that_hosts_ports_only() {
    let check = |imported: &str, arrival: Arrival, host: &str, expected: &str| {
        let got = mesh(imported).client().decide(arrival, &format!("GET {host} /"));
        assert_eq!(got, expected, "{imported}: {} {host}", arrival.listener);
    };
    // Without a limit, each host is called on its own ports and on those of the others.
    let all = "'*/*'";
    for (arrival, host, expected) in [
        (HTTP, "reviews", "418"),
        (HTTP, "ratings", "418"),
        (HTTP, "old.example.com", "418"),
        (ALT, "reviews", "418"),
        (ALT, "ratings", "418"),
        (ALT, "old.example.com", "418"),
    ] {
        check(all, arrival, host, expected);
    }
    // `reviews` has the ports 80 and 8080. As in Istio, a host that is not imported is then one without a service.
    let reviews = "'./reviews.shop.svc.cluster.local'";
    for arrival in [HTTP, ALT] {
        check(reviews, arrival, "reviews", "418");
        check(reviews, arrival, "ratings.shop.svc.cluster.local", "418");
        check(reviews, arrival, "old.example.com", "418");
        check(reviews, arrival, "other.example.com", "502");
    }
    // `ratings` has port 80 only, so there is nothing on port 8080.
    let ratings = "'./ratings.shop.svc.cluster.local'";
    check(ratings, HTTP, "ratings", "418");
    check(ratings, HTTP, "reviews.shop.svc.cluster.local", "418");
    check(ratings, HTTP, "old.example.com", "418");
    let nothing = "no listener";
    for host in ["ratings", "reviews", "reviews.shop.svc.cluster.local", "old.example.com"] {
        check(ratings, ALT, host, nothing);
    }
    // Another namespace's import is none of this VirtualService, and none of its hosts can be called.
    for host in ["reviews", "ratings", "old.example.com"] {
        check("'stock/*'", HTTP, host, "502");
    }
}

#[test]
fn connections_of_hosts_that_are_not_imported_are_not_routed() {
    // TCP to `ratings` by its address, where only `reviews` is imported.
    let routes = "hosts: [reviews, ratings]\ntcp: [{route: [{destination: {host: ledger.stock.svc.cluster.local, port: {number: 80}}}]}]";
    let check = |imported: &str, to: &'static str, expected: &str| {
        let spec = format!("outboundTrafficPolicy: {{mode: REGISTRY_ONLY}}\negress: [{{hosts: [{imported}]}}]");
        let sidecar = object_of("networking.istio.io/v1", "Sidecar", "default", "shop", &spec);
        let mesh = Mesh::new(&format!("{}{sidecar}", virtual_service("several", "shop", routes)));
        let listener = match to {
            "10.96.0.1:9000" => "10.96.0.1_9000",
            _ => "10.96.0.2_9000",
        };
        assert_eq!(mesh.client().decide(Arrival { listener, to, ..HTTP }, ""), expected, "{imported} {to}");
    };
    check("'*/*'", "10.96.0.1:9000", "ledger.stock:80");
    check("'*/*'", "10.96.0.2:9000", "ledger.stock:80");
    let reviews = "'./reviews.shop.svc.cluster.local'";
    check(reviews, "10.96.0.1:9000", "ledger.stock:80");
    check(reviews, "10.96.0.2:9000", "no listener");
}
