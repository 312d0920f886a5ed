//! The router (`envoy.filters.http.router`), always the last filter of a connection manager.

use evenkeel_xds::pb::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;

use super::{Cx, type_name};

/// The type of its configuration.
pub(super) const ROUTER: &str = "envoy.extensions.filters.http.router.v3.Router";

/// The router, the last filter. Its default where it is not there or cannot be decoded: others report that.
pub(super) fn router(cx: &mut Cx<'_>, filters: &[hcm::HttpFilter]) -> Router {
    match filters.last().and_then(|last| last.config_type.as_ref()) {
        Some(hcm::http_filter::ConfigType::TypedConfig(any)) if type_name(&any.type_url) == ROUTER => {
            cx.unpack(any).unwrap_or_default()
        }
        _ => Router::default(),
    }
}
