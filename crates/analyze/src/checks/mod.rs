//! Checks of an analysis beyond those of reading and building: configurations that work as written, but are rarely intended.

mod authorization;
mod claims;
mod gateways;
pub(crate) mod grpc;
mod mutual_tls;
mod rules;
mod services;
pub(crate) mod workloads;

use evenkeel_api::Object;
use evenkeel_base::Diagnostics;
use evenkeel_model::Snapshot;

/// A check of all objects together.
pub type Check = fn(&[&Object], &Snapshot, &mut Diagnostics);

/// All checks.
pub const ALL: &[Check] = &[
    authorization::closed_datagrams,
    authorization::providers,
    authorization::requests_on_tcp_ports,
    claims::without_tokens,
    gateways::duplicate_certificates,
    gateways::ports_not_exposed,
    gateways::without_proxies,
    grpc::rules,
    grpc::tokens,
    mutual_tls::conflicts,
    rules::duplicate_matches,
    rules::subsets_without_effect,
    services::port_names,
    services::external_names,
    services::addresses_required,
    services::conflicting_protocols,
    services::other_protocols,
    workloads::injection_labels,
    workloads::reserved_users,
    workloads::sidecars_of_one_workload,
    workloads::target_ports,
    workloads::undeclared_targets,
];
