//! The table of derivations: one row for each table of results, with the steps that fill it.
//!
//! Rows and steps are in the order in which they may read each other's results: a step reads only the results of those
//! before it.

use std::sync::Arc;

use evenkeel_api::{Kind, ObjectKey};
use evenkeel_base::hostname::Hostname;

#[cfg(test)]
use super::example;
use super::run::Run;
use super::tracking::Tracker;
use super::{
    backend_tls, closed_services, credentials, destination_rules, endpoints, gateway_api, gateway_secrets, gateways,
    mesh, objects, policies, proxy_rules, route_sets, rule_secrets, services, sidecars, telemetries, tokens,
    workload_groups, workloads,
};
use crate::address_book::Allotment;
use crate::{GatewayRef, MeshConfig, Snapshot};

/// A namespace and a host: one service.
pub(super) type ServiceKey = (Arc<str>, Hostname);

/// The results of the steps of one row.
pub(super) trait Results {
    /// Puts changed results into the next snapshot; returns whether there are any.
    fn publish(&mut self, _next: &mut Snapshot) -> bool {
        false
    }
}

/// Declares rows: `results: Type { steps }`. A step has a subject, a function (a [`Run`] reads, then writes), and `for
/// KIND by …`: the kinds whose changes run it. `id` makes one step for each object, `namespace` one for each namespace,
/// `all` a single one.
macro_rules! derived {
    ($(
        $(#[doc = $row_doc:literal])* $(#[cfg($row_cfg:meta)])?
        $row:ident: $Results:ty {
            $(
                $(#[doc = $doc:literal])+ $(#[cfg($cfg:meta)])?
                $step:ident $(( $($about:ident: $About:ty),+ ))? = $run:path $(, for $($kind:ident)|+ by $by:ident)?;
            )*
        }
    )*) => {
        /// A step and its subject. Findings about the same position are in this order.
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(super) enum Step {
            $($( $(#[doc = $doc])+ $(#[cfg($cfg)])? $step $(( $($About),+ ))?, )*)*
        }

        /// The place of a step in the order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Stage {
            $($( $(#[doc = $doc])+ $(#[cfg($cfg)])? $step, )*)*
        }

        impl Step {
            /// Its place in the order: a step reads only results of earlier stages.
            pub(super) fn stage(&self) -> Stage {
                match self {
                    $($( $(#[cfg($cfg)])? Self::$step { .. } => Stage::$step, )*)*
                }
            }

            /// Runs the step; returns whether its subject still exists.
            pub(super) fn run(&self, run: &mut Run<'_>) -> bool {
                match self {
                    $($( $(#[cfg($cfg)])? Self::$step $(( $($about),+ ))? => $run(run $(, $($about),+)?), )*)*
                }
            }
        }

        /// Schedules the steps that depend on an object with this key.
        pub(super) fn announce(key: &ObjectKey, tracker: &mut Tracker) {
            $($(
                $(#[cfg($cfg)])?
                {
                    $(
                        if matches!(key.kind, $(Kind::$kind)|+) {
                            tracker.want(step_by!($by, Step::$step, key));
                        }
                    )?
                }
            )*)*
        }

        /// Whether some step depends on objects of this kind.
        #[cfg(test)]
        pub(super) fn announced(kind: Kind) -> bool {
            [$($($( $(Kind::$kind),+, )?)*)*].contains(&kind)
        }

        /// The results of all steps.
        #[derive(Debug, Default)]
        pub(super) struct Tables {
            $( $(#[doc = $row_doc])* $(#[cfg($row_cfg)])? pub(super) $row: $Results, )*
        }

        impl Tables {
            /// Puts changed results into the next snapshot; returns whether there are any.
            pub(super) fn publish(&mut self, next: &mut Snapshot) -> bool {
                let mut changed = false;
                $(
                    $(#[cfg($row_cfg)])?
                    {
                        changed |= self.$row.publish(next);
                    }
                )*
                changed
            }
        }
    };
}

/// The step an object is for.
macro_rules! step_by {
    (id, $step:path, $key:ident) => {
        $step($key.clone())
    };
    (namespace, $step:path, $key:ident) => {
        $step($key.namespace.clone())
    };
    (all, $step:path, $key:ident) => {
        $step
    };
}

derived! {
    objects: objects::Objects {
        /// Whether a name is used twice.
        Duplicates(key: ObjectKey) = objects::duplicates_step;
    }
    mesh: MeshConfig {
        /// Settings of the mesh.
        Mesh = mesh::settings_step, for ConfigMap by all;
    }
    namespaces: mesh::Namespaces {
        /// Labels of the namespaces.
        Namespaces = mesh::namespaces_step, for Namespace by all;
    }
    addresses: Allotment {}
    closed_services: closed_services::Table {
        /// What the policies of a name close at clients.
        Closing(key: ObjectKey) = closed_services::object_step, for AuthorizationPolicy | RequestAuthentication by id;
    }
    services: services::Table {
        /// Reads the hosts of a Service or ServiceEntry.
        Service(key: ObjectKey) = services::object_step, for Service | ServiceEntry by id;
        /// Whether a host needs an address.
        Want(host: Hostname) = services::want_step;
        /// Addresses of hosts that need one.
        Addresses = services::addresses_step;
        /// The services of a host.
        Host(host: Hostname) = services::host_step;
        /// The other names of hosts.
        Aliases = services::aliases_step;
    }
    policies: policies::Table {
        /// The PeerAuthentications of a namespace.
        Peers(namespace: Arc<str>) = policies::peers_step, for PeerAuthentication by namespace;
        /// The AuthorizationPolicies of a name.
        Policy(key: ObjectKey) = policies::authorization_step, for AuthorizationPolicy by id;
    }
    tokens: tokens::Table {
        /// The RequestAuthentications of a name.
        Tokens(key: ObjectKey) = tokens::step, for RequestAuthentication by id;
    }
    workloads: workloads::Table {
        /// The workload of a Pod or WorkloadEntry.
        Workload(key: ObjectKey) = workloads::object_step, for Pod | WorkloadEntry by id;
        /// Reports two Services with different protocols for one port.
        Conflict(overruled: Hostname, first: Hostname, port: u16) = workloads::conflict_step;
    }
    endpoints: endpoints::Table {
        /// The endpoints of a service.
        Endpoints(service: ServiceKey) = endpoints::service_step;
        /// Reports an EndpointSlice without effect.
        Slice(key: ObjectKey) = endpoints::slice_step, for EndpointSlice by id;
    }
    backend_tls: backend_tls::Table {
        /// Reads a BackendTLSPolicy.
        BackendTls(key: ObjectKey) = backend_tls::object_step, for BackendTlsPolicy by id;
    }
    rules: destination_rules::Table {
        /// Reads a DestinationRule.
        Rule(key: ObjectKey) = destination_rules::object_step, for DestinationRule by id;
        /// The DestinationRules of a namespace for a host, merged.
        Rules(namespace: Arc<str>, host: Hostname) = destination_rules::merge_step;
    }
    credentials: credentials::Table {
        /// The certificates and roots of a Secret.
        Credential(key: ObjectKey) = credentials::object_step, for Secret by id;
    }
    gateways: gateways::Table {
        /// All Gateways.
        Gateways = gateways::all_step, for Gateway | KubernetesGateway | ListenerSet | GatewayClass | ReferenceGrant | Ingress | IngressClass by all;
        /// Reports Secrets that the servers of a Gateway or Ingress cannot use.
        GatewaySecrets(key: ObjectKey) = gateway_secrets::object_step, for Gateway | KubernetesGateway | ListenerSet | Ingress by id;
        /// Reports Secrets that a DestinationRule cannot use.
        RuleSecrets(key: ObjectKey) = rule_secrets::object_step, for DestinationRule by id;
    }
    routes: route_sets::Table {
        /// Reads the routes of an object.
        Route(key: ObjectKey) = route_sets::object_step, for VirtualService | HttpRoute | GrpcRoute | TlsRoute | TcpRoute | UdpRoute | Ingress by id;
        /// The route sets of a host at a gateway.
        GatewayHost(gateway: GatewayRef, host: Hostname) = route_sets::gateway_host_step;
        /// The route sets of a host in the mesh.
        MeshHost(host: Hostname) = route_sets::mesh_host_step;
        /// The route sets of an object.
        Parts(key: ObjectKey) = route_sets::parts_step;
        /// Whether a route delegates to an object without hosts.
        Delegate(key: ObjectKey) = route_sets::delegate_step;
    }
    gateway_api_statuses: gateway_api::statuses::Table {
        /// The status of a GatewayClass.
        ClassStatus(key: ObjectKey) = gateway_api::statuses::class_step, for GatewayClass by id;
        /// The status of a Gateway of the Gateway API.
        GatewayStatus(key: ObjectKey) = gateway_api::statuses::gateway_step, for KubernetesGateway by id;
        /// The status of a ListenerSet.
        ListenerSetStatus(key: ObjectKey) = gateway_api::statuses::listener_set_step, for ListenerSet by id;
        /// The status of a BackendTLSPolicy.
        BackendTlsStatus(key: ObjectKey) = gateway_api::statuses::backend_tls_step, for BackendTlsPolicy by id;
    }
    sidecars: sidecars::Table {
        /// The Sidecars of a namespace.
        Sidecars(namespace: Arc<str>) = sidecars::namespace_step, for Sidecar by namespace;
        /// Whether the services that the mesh's settings name exist.
        MeshServices = sidecars::mesh_step, for ConfigMap | Telemetry by all;
    }
    proxy_rules: proxy_rules::Table {
        /// All ProxyConfigs.
        ProxyRules = proxy_rules::all_step, for ProxyConfig by all;
    }
    telemetries: telemetries::Table {
        /// All Telemetry objects.
        Telemetries = telemetries::all_step, for Telemetry by all;
    }
    workload_groups: workload_groups::Table {
        /// All WorkloadGroups.
        WorkloadGroups = workload_groups::all_step, for WorkloadGroup by all;
    }
    #[cfg(test)]
    example: example::Table {
        /// An example kind, only in tests.
        #[cfg(test)]
        Example(key: ObjectKey) = example::object_step, for ReferenceGrant by id;
    }
}
