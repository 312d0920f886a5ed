//! Stateful sessions, enabled by a label of a service or by a route: requests of one session go to the endpoint that
//! served the first.

use std::collections::BTreeMap;

use evenkeel_model::{Service, Session};

use crate::pb::config::cluster::Cluster;
use crate::pb::core::{HealthStatus, HealthStatusSet, TypedExtensionConfig};
use crate::pb::google::protobuf::Any;
use crate::pb::hcm::{HttpFilter, http_filter};
use crate::pb::session::{Cookie, CookieAttribute, CookieBasedSessionState, HeaderBasedSessionState, per_route};
use crate::pb::session::{StatefulSession, StatefulSessionPerRoute};
use crate::proto::{any, duration};

/// Istio's label: the session is kept in a cookie, `NAME` or `NAME:PATH`.
const COOKIE_LABEL: &str = "istio.io/persistent-session";
/// Istio's label: the session is kept in a header of this name.
const HEADER_LABEL: &str = "istio.io/persistent-session-header";
const FILTER: &str = "envoy.filters.http.stateful_session";

/// Returns the filter, which does nothing on routes that do not configure it.
pub fn filter() -> HttpFilter {
    HttpFilter {
        name: FILTER.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&StatefulSession::default()))),
        ..Default::default()
    }
}

/// The per-route configuration of the filter; empty for most services.
pub fn of_service(service: &Service) -> BTreeMap<String, Any> {
    state(service).map(per_route).unwrap_or_default()
}

/// The per-route configuration of the filter for a route that says how its sessions are known. `tls`: clients use TLS.
pub fn of_route(session: &Session, tls: bool) -> BTreeMap<String, Any> {
    per_route(match session {
        Session::Header(name) => header_state(name),
        Session::Cookie { name, path, lifetime } => {
            // Other sites and scripts need it not (GEP-1619).
            let attribute =
                |name: &str, value: &str| CookieAttribute { name: name.to_owned(), value: value.to_owned() };
            let mut attributes = vec![attribute("SameSite", "Strict")];
            attributes.extend(tls.then(|| attribute("Secure", "")));
            let ttl = lifetime.map(duration);
            cookie_state(Cookie { name: name.to_string(), path: path.to_string(), ttl, attributes })
        }
    })
}

fn per_route(state: TypedExtensionConfig) -> BTreeMap<String, Any> {
    let session = StatefulSession { session_state: Some(state), ..Default::default() };
    let config = StatefulSessionPerRoute { r#override: Some(per_route::Override::StatefulSession(session)) };
    [(FILTER.to_owned(), any(&config))].into()
}

/// Whether requests of a session go to one endpoint; then a draining endpoint keeps those that it has.
pub fn are_kept(service: &Service) -> bool {
    state(service).is_some()
}

/// Sessions stay with a draining endpoint.
pub fn apply(service: &Service, cluster: &mut Cluster) {
    if state(service).is_none() {
        return;
    }
    if let Some(common) = &mut cluster.common_lb_config {
        let statuses = [HealthStatus::Healthy, HealthStatus::Draining, HealthStatus::Unknown, HealthStatus::Degraded];
        let statuses = statuses.map(|status| status as i32).to_vec();
        common.override_host_status = Some(HealthStatusSet { statuses });
    }
}

fn state(service: &Service) -> Option<TypedExtensionConfig> {
    let label = |name: &str| service.labels.get(name).filter(|value| !value.is_empty());
    if let Some(cookie) = label(COOKIE_LABEL) {
        let (name, path) = cookie.split_once(':').unwrap_or((cookie, "/"));
        return Some(cookie_state(Cookie { name: name.to_owned(), path: path.to_owned(), ..Default::default() }));
    }
    Some(header_state(label(HEADER_LABEL)?))
}

fn cookie_state(cookie: Cookie) -> TypedExtensionConfig {
    extension("cookie", any(&CookieBasedSessionState { cookie: Some(cookie) }))
}

fn header_state(name: &str) -> TypedExtensionConfig {
    extension("header", any(&HeaderBasedSessionState { name: name.to_owned() }))
}

fn extension(name: &str, config: Any) -> TypedExtensionConfig {
    TypedExtensionConfig { name: format!("envoy.http.stateful_session.{name}"), typed_config: Some(config) }
}
