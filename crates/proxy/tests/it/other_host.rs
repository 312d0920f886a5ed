//! A program that has ended, possibly with a request in flight, behind its sidecar: the sidecar of its callers retries on
//! another replica wherever that is indistinguishable.

use std::net::SocketAddr;

use evenkeel_testkit::{Backend, Connection, Reply, free_port};

use crate::harness::{MeshTls, Proxy, http_listener, protocol, stat, static_bootstrap, static_cluster};

/// Istio's default policy, as the control plane writes it.
const POLICY: &str = "retry_policy: {retry_on: \"connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes\", \
     num_retries: 2, host_selection_retry_max_attempts: 5, retry_host_predicate: [{name: p, typed_config: {\"@type\": \
     type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}}]}, ";
/// Requests of each kind: as many to either replica.
const REQUESTS: usize = 20;

fn routes(policy: &str) -> String {
    format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, \
         route: {{{policy}cluster: next}}}}]}}]}}"
    )
}

/// A sidecar in front of a program.
fn inbound(tls: &MeshTls, program: SocketAddr) -> Proxy {
    let listener =
        http_listener("inbound", &routes(""), &(tls.listener("h2, http/1.1") + "traffic_direction: INBOUND"));
    let as_received = protocol("use_downstream_protocol_config: {http2_protocol_options: {}}");
    let proxy = Proxy::start_with(&static_bootstrap(&listener, &[static_cluster("next", program, &as_received)]), 1);
    proxy.wait_live();
    proxy
}

/// The sidecar of a client of two replicas.
fn outbound(tls: &MeshTls, replicas: [SocketAddr; 2], policy: &str) -> Proxy {
    let as_received = protocol("use_downstream_protocol_config: {http2_protocol_options: {}}");
    let cluster =
        static_cluster("next", replicas[0], &format!("{as_received}, {}", tls.cluster("istio-http/1.1, istio")));
    let [one, both] = [&replicas[..1], &replicas[..]].map(|replicas| {
        let endpoint = |address: &SocketAddr| {
            let (ip, port) = (address.ip(), address.port());
            format!("{{endpoint: {{address: {{socket_address: {{address: {ip}, port_value: {port}}}}}}}}}")
        };
        replicas.iter().map(endpoint).collect::<Vec<_>>().join(", ")
    });
    let cluster = cluster.replace(&one, &both);
    let proxy = Proxy::start_with(&static_bootstrap(&http_listener("outbound", &routes(policy), ""), &[cluster]), 1);
    proxy.wait_live();
    proxy
}

/// How many requests were answered with 200 where one of two replicas is behind `program`.
fn answered(program: SocketAddr, method: &str, policy: &str) -> usize {
    let tls = MeshTls::new();
    let well = Backend::start(|_| Reply::text("well"));
    let sidecars = [inbound(&tls, program), inbound(&tls, well.address())];
    let outbound = outbound(&tls, sidecars.each_ref().map(|sidecar| sidecar.listener("inbound")), policy);
    let entry = outbound.listener("outbound");
    let ask = |_| {
        let mut connection = Connection::open(entry).expect("it accepts");
        connection.send(format!("{method} / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi")).expect("it reads");
        let response = connection.response().expect("an answer");
        assert!([200, 503].contains(&response.status), "{}", response.text());
        usize::from(response.status == 200)
    };
    let answered = (0..REQUESTS).map(ask).sum();
    // Half of them came to the one whose program is not well, and nobody but the callers' sidecar was told.
    let refused: u64 = stat(&outbound, "cluster.next.http2.tx_reset").iter().sum();
    assert_eq!(refused, 0, "requests were given up by their own side");
    assert_eq!(well.requests().len(), answered);
    answered
}

#[test]
fn nobody_was_there_to_take_it() {
    let nobody = || SocketAddr::from(([127, 0, 0, 1], free_port()));
    assert_eq!(answered(nobody(), "POST", POLICY), REQUESTS);
}

#[test]
fn it_was_lost_and_may_be_asked_for_twice() {
    let dies = Backend::start(|_| Reply::Close);
    assert_eq!(answered(dies.address(), "PUT", POLICY), REQUESTS);
}

#[test]
fn it_was_lost_and_may_have_had_its_effect() {
    let dies = Backend::start(|_| Reply::Close);
    assert_eq!(answered(dies.address(), "POST", POLICY), REQUESTS / 2);
    assert_eq!(dies.requests().len(), REQUESTS / 2, "one was sent twice");
}
