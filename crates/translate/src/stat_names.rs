//! Names of clusters in statistics (`outboundClusterStatName` and `inboundClusterStatName` of MeshConfig).

use evenkeel_api::istio::StatVariable;
use evenkeel_model::Service;
use evenkeel_model::service::{ServicePort, TargetPort};
use evenkeel_model::workload::InboundPort;

use crate::context::Context;

/// The name of an outbound cluster, and of TCP connections that go to no other; empty if the mesh has no pattern. The
/// two clusters of a port without a declared protocol have the same name, as their subset has.
pub fn outbound(context: Context<'_>, service: &Service, port: &ServicePort, subset: &str) -> String {
    let Some(pattern) = &context.snapshot.mesh().outbound_stat_name else { return String::new() };
    let target = match port.target {
        TargetPort::Number(number) => number,
        TargetPort::Same => port.number,
        // Each workload may have another number.
        TargetPort::Name(_) => 0,
    };
    named(pattern, service, port, target, subset)
}

/// The name of an inbound cluster; empty if the mesh has no pattern, or if the port is of no service.
pub fn inbound(context: Context<'_>, port: &InboundPort) -> String {
    let Some(pattern) = &context.snapshot.mesh().inbound_stat_name else { return String::new() };
    let Some((service, number)) = &port.service else { return String::new() };
    let Some(of_service) = service.port(*number) else { return String::new() };
    named(pattern, service, of_service, port.port, "")
}

fn named(pattern: &str, service: &Service, port: &ServicePort, target: u16, subset: &str) -> String {
    let host = service.host.as_str();
    let is_kubernetes = service.is_kubernetes();
    StatVariable::ALL.iter().fold(pattern.to_owned(), |name, variable| {
        if !name.contains(variable.as_str()) {
            return name;
        }
        let value = match variable {
            StatVariable::Service if is_kubernetes => format!("{}.{}", service.name, service.namespace),
            StatVariable::ServiceName if is_kubernetes => service.name.to_string(),
            StatVariable::Service | StatVariable::ServiceName | StatVariable::ServiceFqdn => host.to_owned(),
            StatVariable::ServicePort => port.number.to_string(),
            StatVariable::TargetPort => target.to_string(),
            StatVariable::ServicePortName => port.name.to_string(),
            StatVariable::SubsetName => subset.to_owned(),
        };
        name.replace(variable.as_str(), &value)
    })
}
