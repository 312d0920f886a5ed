//! The route of requests to the workload: one, to its port.

use super::{action, matches, virtual_host};
use crate::pb::config::route::{Route, RouteConfiguration};

/// Routes everything to one cluster. There are no retries here, because the client's proxy retries.
pub fn to_workload(cluster: &str, service_port: u16) -> RouteConfiguration {
    let route = Route {
        name: "default".to_owned(),
        r#match: Some(matches::everything()),
        action: Some(action::pass_to(cluster)),
        ..Default::default()
    };
    let mut host = virtual_host(format!("inbound|http|{service_port}"), vec!["*".to_owned()], vec![route]);
    host.include_request_attempt_count = false;
    RouteConfiguration { name: cluster.to_owned(), virtual_hosts: vec![host], ..Default::default() }
}
