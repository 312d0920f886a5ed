//! The Gateway API: Gateways as the model's gateways, one for each listener, and routes as route sets, as Istio's conversion does
//! (`pilot/pkg/config/kube/gateway`).

mod backend_tls_status;
mod backends;
mod class_status;
mod frontend_tls;
mod gateway_status;
mod gateways;
mod grants;
mod grpc_routes;
mod http_filters;
mod http_routes;
mod http_rules;
mod l4_routes;
mod listener_set_status;
mod listener_sets;
mod listener_status;
mod listeners;
mod outline;
mod parent_fields;
mod parents;
mod route_sets;
mod route_status;
mod rule_session;
mod service_of_gateway;
pub(super) mod statuses;

pub(super) use self::gateways::{gateways, gateways_of_set};
pub(super) use self::listeners::{names_of_gateways, names_of_set};
pub(super) use self::route_sets::{in_mesh, parts};
pub(super) use self::route_status::RouteResult;
