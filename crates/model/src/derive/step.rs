//! The table of what is derived from objects: one row for each table of results, with the steps that fill it.
//!
//! Rows and steps stand in the order in which they may read each other's results: a step reads only what those before it have
//! made.

use std::sync::Arc;

use evenkeel_api::{Kind, ObjectKey};
use evenkeel_base::hostname::Hostname;

#[cfg(test)]
use super::example;
use super::run::Run;
use super::tracking::Tracker;
use super::{
    destination_rules, endpoints, gateways, mesh, objects, policies, route_sets, services, sidecars, workloads,
};
use crate::address_book::Allotment;
use crate::{GatewayRef, MeshConfig, Snapshot};

/// A namespace and a host: one service.
pub(super) type ServiceKey = (Arc<str>, Hostname);

/// What the steps of one row have made.
pub(super) trait Results {
    /// Brings what is others than last time into the next snapshot. Whether anything is.
    fn publish(&mut self, _next: &mut Snapshot) -> bool {
        false
    }
}

/// Declares rows: `results: Type { steps }`. A step is what it is about, the function that does it ([`Run`] reads, then writes),
/// and `for KIND by …`, which objects it is done for as they come, change and go: `id`, one for each object; `namespace`, one
/// for all of a namespace; `all`, one.
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
        /// One step: what it makes, and of what. Findings stand in this order where they are about the same place.
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
            /// Its place in the order: a step reads only results of those before.
            pub(super) fn stage(&self) -> Stage {
                match self {
                    $($( $(#[cfg($cfg)])? Self::$step { .. } => Stage::$step, )*)*
                }
            }

            /// Does it. Whether there is anything left that it could be about.
            pub(super) fn run(&self, run: &mut Run<'_>) -> bool {
                match self {
                    $($( $(#[cfg($cfg)])? Self::$step $(( $($about),+ ))? => $run(run $(, $($about),+)?), )*)*
                }
            }
        }

        /// Wants the steps that an object of this key is for.
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

        /// Whether objects of a kind are for some step.
        #[cfg(test)]
        pub(super) fn announced(kind: Kind) -> bool {
            [$($($( $(Kind::$kind),+, )?)*)*].contains(&kind)
        }

        /// What the steps have made.
        #[derive(Debug, Default)]
        pub(super) struct Tables {
            $( $(#[doc = $row_doc])* $(#[cfg($row_cfg)])? pub(super) $row: $Results, )*
        }

        impl Tables {
            /// Brings what is others than last time into the next snapshot. Whether anything is.
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
    services: services::Table {
        /// What a Service or ServiceEntry says of its hosts.
        Service(key: ObjectKey) = services::object_step, for Service | ServiceEntry by id;
        /// Whether a host needs an address.
        Want(host: Hostname) = services::want_step;
        /// Addresses of hosts that need one.
        Addresses = services::addresses_step;
        /// The services of a host.
        Host(host: Hostname) = services::host_step;
    }
    policies: policies::Table {
        /// The PeerAuthentications of a namespace.
        Peers(namespace: Arc<str>) = policies::peers_step, for PeerAuthentication by namespace;
        /// The AuthorizationPolicies of a name.
        Policy(key: ObjectKey) = policies::authorization_step, for AuthorizationPolicy by id;
    }
    workloads: workloads::Table {
        /// The workload of a Pod.
        Workload(key: ObjectKey) = workloads::pod_step, for Pod by id;
        /// Two Services at odds over a port.
        Conflict(overruled: Hostname, first: Hostname, port: u16) = workloads::conflict_step;
    }
    endpoints: endpoints::Table {
        /// The endpoints of a service.
        Endpoints(service: ServiceKey) = endpoints::service_step;
        /// Whether an EndpointSlice is of use.
        Slice(key: ObjectKey) = endpoints::slice_step, for EndpointSlice by id;
    }
    rules: destination_rules::Table {
        /// What a DestinationRule says.
        Rule(key: ObjectKey) = destination_rules::object_step, for DestinationRule by id;
        /// The DestinationRules of a namespace for a host, merged.
        Rules(namespace: Arc<str>, host: Hostname) = destination_rules::merge_step;
    }
    gateways: gateways::Table {
        /// All Gateways.
        Gateways = gateways::all_step, for Gateway by all;
    }
    routes: route_sets::Table {
        /// What an object with routes says.
        Route(key: ObjectKey) = route_sets::object_step, for VirtualService by id;
        /// Whose routes a host has at a gateway.
        GatewayHost(gateway: GatewayRef, host: Hostname) = route_sets::gateway_host_step;
        /// Whose routes a host has in the mesh.
        MeshHost(host: Hostname) = route_sets::mesh_host_step;
        /// What is left of an object's routes then.
        Parts(key: ObjectKey) = route_sets::parts_step;
    }
    sidecars: sidecars::Table {
        /// The Sidecars of a namespace.
        Sidecars(namespace: Arc<str>) = sidecars::namespace_step, for Sidecar by namespace;
    }
    #[cfg(test)]
    example: example::Table {
        /// What tests make of a kind that is not supported yet.
        #[cfg(test)]
        Example(key: ObjectKey) = example::object_step, for KubernetesGateway by id;
    }
}
