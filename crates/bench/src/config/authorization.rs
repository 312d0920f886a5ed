//! External authorization of every request.

use super::PATIENCE;
use super::bootstrap::HTTP2_UPSTREAM;

/// How the server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// `envoy.service.auth.v3.Authorization/Check`.
    Grpc,
    /// A request that resembles the client's.
    Http,
}

impl Asks {
    /// The HTTP filter, set up as Istio's control plane does for a provider.
    pub fn http_filter(self) -> String {
        let limit = PATIENCE.as_secs();
        let service = match self {
            Self::Grpc => format!("grpc_service: {{envoy_grpc: {{cluster_name: authorization}}, timeout: {limit}s}}"),
            Self::Http => format!(
                "http_service: {{server_uri: {{uri: \"http://authorization\", cluster: authorization, timeout: {limit}s}}, \
                 authorization_response: {{allowed_upstream_headers: {{patterns: [{{exact: x-ext-authz-check-result}}]}}}}}}"
            ),
        };
        format!(
            r#"
          - name: envoy.filters.http.ext_authz
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
              transport_api_version: V3
              {service}"#
        )
    }

    /// The server's cluster. `address`: as in a bootstrap.
    pub fn cluster(self, address: &str) -> String {
        let protocol = if self == Self::Grpc { HTTP2_UPSTREAM } else { "" };
        format!(
            r#"
  - name: authorization
    type: STATIC
    connect_timeout: {}s
    load_assignment:
      cluster_name: authorization
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {address}}}{protocol}"#,
            PATIENCE.as_secs()
        )
    }
}
