//! The Gateway API: Gateways as the model's gateways, one for each listener, and routes as route sets, as Istio's conversion does
//! (`pilot/pkg/config/kube/gateway`).

mod backends;
mod gateways;
mod grants;
mod http_filters;
mod http_routes;
mod listeners;
mod parents;

pub(super) use self::gateways::gateways;
pub(super) use self::http_routes::{http_in_mesh, http_parts};
pub(super) use self::listeners::names_of_gateways;
