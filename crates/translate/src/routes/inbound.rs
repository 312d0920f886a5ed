//! The route of requests to the workload: one, to its port.

use super::{action, matches};
use crate::pb::config::route::{Route, RouteConfiguration, VirtualHost};

/// Routes everything to one cluster. There are no retries here, because the client's proxy retries.
pub fn to_workload(cluster: &str, service_port: u16) -> RouteConfiguration {
    let route = Route {
        name: "default".to_owned(),
        r#match: Some(matches::everything()),
        action: Some(action::pass_to(cluster)),
        ..Default::default()
    };
    let host = VirtualHost {
        name: format!("inbound|http|{service_port}"),
        domains: vec!["*".to_owned()],
        routes: vec![route],
        ..Default::default()
    };
    RouteConfiguration { name: cluster.to_owned(), virtual_hosts: vec![host], ..Default::default() }
}
