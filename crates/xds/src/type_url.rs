//! Type URLs of the resources and extensions this project speaks.

/// `type.googleapis.com/envoy.config.cluster.v3.Cluster`
pub const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
/// `type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment`
pub const ENDPOINT: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// `type.googleapis.com/envoy.config.listener.v3.Listener`
pub const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
/// `type.googleapis.com/envoy.config.route.v3.RouteConfiguration`
pub const ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
/// `type.googleapis.com/envoy.config.route.v3.VirtualHost`
pub const VIRTUAL_HOST: &str = "type.googleapis.com/envoy.config.route.v3.VirtualHost";
/// `type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret`
pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// `type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig`
pub const EXTENSION_CONFIG: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
/// `type.googleapis.com/istio.networking.nds.v1.NameTable`
pub const NAME_TABLE: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";
/// `type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig`
pub const PROXY_CONFIG: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";
/// `type.googleapis.com/istio.v1.HealthInformation`: the type of requests in which an agent reports whether its workload is
/// healthy. It has no resources.
pub const HEALTH_INFORMATION: &str = "type.googleapis.com/istio.v1.HealthInformation";

/// `type.googleapis.com/evenkeel.xds.v1.Rejections`
pub const REJECTIONS: &str = "type.googleapis.com/evenkeel.xds.v1.Rejections";
/// `type.googleapis.com/evenkeel.xds.v1.Report`
pub const REPORT: &str = "type.googleapis.com/evenkeel.xds.v1.Report";

/// Prefix of every type URL here.
pub const PREFIX: &str = "type.googleapis.com/";

/// The type URL of a message.
pub fn of<M: prost::Name>() -> String {
    format!("{PREFIX}{}", M::full_name())
}

/// The full message name in a type URL: what follows the last slash.
pub fn message_name(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}
