//! The route of requests to the workload: one, to its port.

use evenkeel_base::hostname::Hostname;

use super::{action, matches};
use crate::context::Context;
use crate::pb::config::route::{Route, RouteConfiguration, VirtualHost};
use crate::tracing;

/// Routes everything to one cluster. `host`: the service's, by which spans are called. `repeats`: what was reset before it reached the workload
/// is sent again; further retries are those of the client's proxy.
pub fn to_workload(
    context: Context<'_>,
    cluster: &str,
    host: Option<&Hostname>,
    service_port: u16,
    repeats: bool,
) -> RouteConfiguration {
    let mut route = Route {
        name: "default".to_owned(),
        r#match: Some(matches::everything()),
        action: Some(action::to_workload(cluster, context.snapshot.mesh(), repeats)),
        ..Default::default()
    };
    if let Some(host) = host {
        tracing::decorate_as(context, &mut route, &format!("{host}:{service_port}/*"));
    }
    let host = VirtualHost {
        name: format!("inbound|http|{service_port}"),
        domains: vec!["*".to_owned()],
        routes: vec![route],
        ..Default::default()
    };
    RouteConfiguration { name: cluster.to_owned(), virtual_hosts: vec![host], ..Default::default() }
}
