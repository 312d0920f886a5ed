//! Envoy's bootstrap, for Envoy and Evenkeel.

use std::net::SocketAddr;

use super::{MutualTls, PATIENCE, Protocol, Proxy, policy};

const ACCESS_LOG_LINE: &str = concat!(
    r#"[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %RESPONSE_FLAGS% "#,
    r#"%BYTES_RECEIVED% %BYTES_SENT% %DURATION% \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" "#,
    r#"\"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER% %ROUTE_NAME%\n"#
);

impl Proxy<'_> {
    /// The whole file.
    pub fn bootstrap(&self) -> String {
        format!(
            r#"node: {{id: "{id}", cluster: bench}}
admin:
  address: {admin}
static_resources:
  listeners:
  - name: ingress
    address: {listen}{direction}
    filter_chains:
    - filters:{filter}{downstream_tls}
  clusters:
  - name: backend
    type: STATIC
    connect_timeout: {patience}s
    lb_policy: ROUND_ROBIN
    load_assignment:
      cluster_name: backend
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {upstream}}}{protocol}{upstream_tls}{authorization}
"#,
            id = self.id,
            patience = PATIENCE.as_secs(),
            admin = address(self.admin),
            listen = address(self.listen),
            // A listener with a server certificate is that of a sidecar's clients.
            direction = self.downstream_tls.map_or("", |_| "\n    traffic_direction: INBOUND"),
            upstream = address(self.upstream),
            filter = if self.protocol == Protocol::Tcp { self.tcp_proxy() } else { self.connection_manager() },
            downstream_tls = self.downstream_tls.map_or_else(String::new, |tls| self.downstream_tls(tls)),
            protocol = if self.protocol == Protocol::Http2 { HTTP2_UPSTREAM } else { "" },
            upstream_tls = self.upstream_tls.map_or_else(String::new, |tls| self.upstream_tls(tls)),
            authorization =
                self.authorization.map_or_else(String::new, |(asks, server)| asks.cluster(&address(server))),
        )
    }

    fn connection_manager(&self) -> String {
        format!(
            r#"
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ingress
          generate_request_id: true
          use_remote_address: true
          route_config:
            name: local
            virtual_hosts:
            - name: backend
              domains: ["backend.local"]
              routes:
              - match: {{prefix: "/other/"}}
                direct_response: {{status: 404}}
              - match: {{prefix: "/"}}
                route: {{cluster: backend, timeout: 0s}}
            - name: any
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster: backend, timeout: 0s}}
          http_filters:{tokens}{policy}{authorization}
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: {log}
              log_format:
                text_format_source:
                  inline_string: "{ACCESS_LOG_LINE}""#,
            tokens = self.issuer.map_or_else(String::new, |issuer| issuer.http_filter()),
            policy = if self.rules == 0 { String::new() } else { policy::http_filter(self.rules) },
            authorization = self.authorization.map_or_else(String::new, |(asks, _)| asks.http_filter()),
            log = self.log.display(),
        )
    }

    fn tcp_proxy(&self) -> String {
        format!(
            r#"
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: ingress
          cluster: backend
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: {log}
              log_format:
                text_format_source:
                  inline_string: "[%START_TIME%] %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \"%UPSTREAM_HOST%\"\n""#,
            log = self.log.display(),
        )
    }

    fn downstream_tls(&self, tls: &MutualTls) -> String {
        let alpn = match self.protocol {
            Protocol::Tcp => "",
            _ => "alpn_protocols: [istio-http/1.1, istio, h2, http/1.1], ",
        };
        format!(
            r#"
      transport_socket_connect_timeout: {}s
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context: {}"#,
            PATIENCE.as_secs(),
            common_tls(tls, alpn)
        )
    }

    fn upstream_tls(&self, tls: &MutualTls) -> String {
        let alpn = match self.protocol {
            Protocol::Http1 => "alpn_protocols: [http/1.1], ",
            Protocol::Mesh => "alpn_protocols: [istio-http/1.1, istio], ",
            Protocol::Http2 => "alpn_protocols: [h2], ",
            Protocol::Tcp => "",
        };
        format!(
            r#"
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: backend.local
        common_tls_context: {}"#,
            common_tls(tls, alpn)
        )
    }
}

pub(super) const HTTP2_UPSTREAM: &str = r#"
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}"#;

fn address(address: SocketAddr) -> String {
    format!("{{socket_address: {{address: {}, port_value: {}}}}}", address.ip(), address.port())
}

fn common_tls(tls: &MutualTls, alpn: &str) -> String {
    format!(
        "{{tls_params: {{tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}}, {alpn}\
         tls_certificates: [{{certificate_chain: {{filename: {}}}, private_key: {{filename: {}}}}}], \
         validation_context: {{trusted_ca: {{filename: {}}}}}}}",
        tls.cert.display(),
        tls.key.display(),
        tls.root.display()
    )
}
