//! Listeners of gRPC clients, requested by the target that a client dials.

use std::sync::Arc;

use evenkeel_model::Service;

use super::routes;
use crate::context::Context;
use crate::finish::{encoded, packed_manager};
use crate::output::{Collection, Output, Part};
use crate::pb::config::listener::{ApiListener, Listener};
use crate::pb::hcm::{HttpConnectionManager, Rds, http_connection_manager::RouteSpecifier};
use crate::proto::ads;
use crate::routes::filters;
use crate::{http, names};

/// A listener for each target of a service's port. Two services may have the same target (the short name of one and the
/// host of another); the one whose host it is takes precedence.
pub fn of_service(context: Context<'_>, service: &Arc<Service>, out: &mut Output<'_>) {
    let ports = context.callable(service);
    for callable in &ports {
        let number = callable.port.number;
        let manager = packed_manager(context.patches(), manager(&routes::name(service, number)));
        for target in targets(context, service, number, ports.len() == 1) {
            let api_listener = Some(ApiListener { api_listener: Some(manager.clone()) });
            let made = Listener { name: target.clone(), api_listener, ..Default::default() };
            let resource = encoded(&made, Some(service.origin.clone()));
            out.give(Collection::Target(target.into()), Part::Listener(resource, service.order()));
        }
    }
}

/// The targets of a port: `NAME:PORT`, and the name alone if the service has no other port.
fn targets(context: Context<'_>, service: &Service, port: u16, is_only: bool) -> Vec<String> {
    let mut hosts = vec![service.host.to_string()];
    hosts.extend(service.short_names(&context));
    let with_port: Vec<String> = hosts.iter().map(|host| names::virtual_host(host, port)).collect();
    let bare = hosts.into_iter().filter(|_| is_only);
    with_port.into_iter().chain(bare).collect()
}

fn manager(route: &str) -> HttpConnectionManager {
    let rds = Rds { config_source: Some(ads()), route_config_name: route.to_owned() };
    HttpConnectionManager {
        route_specifier: Some(RouteSpecifier::Rds(rds)),
        http_filters: vec![filters::fault(), http::router()],
        ..Default::default()
    }
}
