//! "What would happen to this call?"

use std::net::SocketAddr;

use evenkeel_runtime_config::Builder;
use evenkeel_runtime_config::explain::{Authorizer, Call, PlainRequest, Verdict, explain};
use evenkeel_runtime_config::listener::ChainInput;
use evenkeel_runtime_config::rbac::RbacFilter;
use evenkeel_runtime_config::view::ConnectionView;

use crate::{input, routes};

/// Says the same of everything.
struct Always(bool);

impl Authorizer for Always {
    fn connection(&self, _filter: &RbacFilter, _connection: &ConnectionView) -> Verdict {
        Verdict { allowed: self.0, policy: None }
    }

    fn request(&self, _filter: &RbacFilter, _connection: &ConnectionView, _request: &PlainRequest) -> Verdict {
        Verdict { allowed: self.0, policy: Some("deny-all".into()) }
    }
}

fn mesh() -> Builder {
    let mut builder = input::builder();
    let rbac = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
    let listener = routes::rds_listener("\"80\"").replace(
        "      http_filters:\n",
        &format!("      http_filters:\n      - {{ name: rbac, typed_config: {{ \"@type\": {rbac}, rules: {{}} }} }}\n"),
    );
    builder.set_listener(&input::listener(&listener)).unwrap();
    builder
        .set_cluster(&input::cluster(
            "name: v1\nload_assignment: { endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 10.0.0.1, port_value: 80 } } } }] }] }",
        ))
        .unwrap();
    builder
        .set_route(&input::route(
            "name: \"80\"
virtual_hosts:
- name: info
  domains: [info]
  routes:
  - { name: old, match: { prefix: /old/ }, redirect: { prefix_rewrite: /new/, response_code: FOUND } }
  - name: split
    match: { prefix: /api }
    metadata: { filter_metadata: { istio: { config: /virtual-service/info } } }
    request_headers_to_remove: [x-secret]
    route:
      prefix_rewrite: /
      host_rewrite_literal: inner
      cluster_not_found_response_code: NOT_FOUND
      weighted_clusters: { clusters: [{ name: v1, weight: 9 }, { name: gone, weight: 1 }] }
  - { name: teapot, match: { path: /tea }, direct_response: { status: 418 } }
",
        ))
        .unwrap();
    builder
}

fn check(listener: &str, authority: &str, path: &str, random: u64, allowed: bool, expected: &str) {
    let peer: SocketAddr = "10.0.0.9:5000".parse().unwrap();
    let local: SocketAddr = "10.0.0.8:80".parse().unwrap();
    let connection = ConnectionView::plaintext(peer, local);
    let request = PlainRequest::new("GET", authority, path);
    let chain = ChainInput {
        destination: local,
        source: peer,
        direct_source: peer,
        server_name: None,
        transport_protocol: "raw_buffer",
        application_protocols: &[],
    };
    let call = Call { listener, chain, connection: &connection, request: Some(&request), random };
    let got = explain(&mesh().build(), &call, &Always(allowed)).to_string();
    assert_eq!(got.trim_end(), expected.trim(), "{path}");
}

#[test]
fn each_end_of_a_call_is_told() {
    let accepted = "listener \"l\": filter chain \"\"\nRBAC: allowed (policy that matched: deny-all)\n";
    let host = format!("{accepted}route table \"80\": virtual host \"info\"\n");
    let route =
        format!("{host}route \"split\", from /virtual-service/info\nheaders of the route: request: remove x-secret\n");
    check("none", "info", "/", 0, true, "no listener \"none\" serves");
    check("l", "other", "/", 0, true, &format!("{accepted}no route fits: 404"));
    check("l", "info", "/nothing", 0, true, &format!("{host}no route fits: 404"));
    check("l", "info", "/old/x?y", 0, true, &format!("{host}route \"old\"\nredirect: 302 http://info/new/x?y"));
    check("l", "info", "/tea", 0, true, &format!("{host}route \"teapot\"\ndirect response: 418"));
    let forward = "forward to cluster \"v1\": / (authority inner)\ncluster \"v1\": 1 endpoints";
    check("l", "info", "/api", 0, true, &format!("{route}{forward}"));
    let gone = "forward to cluster \"gone\": / (authority inner)\ncluster \"gone\" does not exist: 404";
    check("l", "info", "/api", 9, true, &format!("{route}{gone}"));
    let denied = "listener \"l\": filter chain \"\"\nRBAC: denied (policy that matched: deny-all)";
    check("l", "info", "/api", 0, false, denied);
}
