//! The peers' configurations: the same work for each, one worker, keep-alive on both sides, an access log line per request.
//! Evenkeel and Envoy are started from the very same file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// TLS of one side of a listener or a cluster: this certificate, and peers' certificates have to be from this root.
pub struct MutualTls {
    /// Own certificate chain.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Root that the peer's certificate is verified with.
    pub root: PathBuf,
}

/// One proxy with one listener and one cluster.
pub struct Hop<'a> {
    /// Node id.
    pub id: &'a str,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where `/ready` is.
    pub admin: SocketAddr,
    /// Where requests go.
    pub upstream: SocketAddr,
    /// TLS of the listener.
    pub downstream_tls: Option<&'a MutualTls>,
    /// TLS of the cluster.
    pub upstream_tls: Option<&'a MutualTls>,
    /// The access log's file.
    pub log: PathBuf,
}

impl Hop<'_> {
    /// Envoy's bootstrap, for Envoy and Evenkeel.
    pub fn bootstrap(&self) -> String {
        let downstream_tls = self.downstream_tls.map_or_else(String::new, |tls| {
            format!(
                r#"
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context: {}"#,
                common_tls(tls)
            )
        });
        let upstream_tls = self.upstream_tls.map_or_else(String::new, |tls| {
            format!(
                r#"
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: backend.local
        common_tls_context: {}"#,
                common_tls(tls)
            )
        });
        format!(
            r#"node: {{id: {id}, cluster: bench}}
admin:
  address: {admin}
static_resources:
  listeners:
  - name: ingress
    address: {listen}
    filter_chains:
    - filters:
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
                route: {{cluster: backend}}
            - name: any
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster: backend}}
          http_filters:
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
                  inline_string: "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER% %ROUTE_NAME%\n"{downstream_tls}
  clusters:
  - name: backend
    type: STATIC
    connect_timeout: 5s
    lb_policy: ROUND_ROBIN
    load_assignment:
      cluster_name: backend
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {upstream}}}{upstream_tls}
"#,
            id = self.id,
            admin = address(self.admin),
            listen = address(self.listen),
            upstream = address(self.upstream),
            log = self.log.display(),
        )
    }

    /// nginx without a master process.
    pub fn nginx(&self, folder: &Path) -> String {
        format!(
            r#"daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{ worker_connections 4096; }}
http {{
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  log_format line '[$time_iso8601] "$request" $status $request_length $bytes_sent $request_time "$http_user_agent" "$request_id" "$host" "$upstream_addr"';
  access_log {log} line;
  keepalive_requests 100000000;
  upstream backend {{
    server {upstream};
    keepalive 512;
    keepalive_requests 100000000;
  }}
  server {{
    listen {listen} backlog=1024;
    location /other/ {{ return 404; }}
    location / {{
      proxy_pass http://backend;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Request-Id $request_id;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
    }}
  }}
}}
"#,
            folder = folder.display(),
            log = self.log.display(),
            upstream = self.upstream,
            listen = self.listen,
        )
    }

    /// HAProxy in one process with one thread. It writes no files: its log goes to standard output, which is the file.
    pub fn haproxy(&self) -> String {
        format!(
            r#"global
  nbthread 1
  maxconn 8192
  log stdout format raw local0
defaults
  mode http
  log global
  option httplog
  option forwardfor
  http-reuse always
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend ingress
  bind {listen}
  unique-id-format %{{+X}}o\ %ci:%cp_%fi:%fp_%Ts_%rt:%pid
  unique-id-header X-Request-Id
  acl other path_beg /other/
  http-request return status 404 if other
  default_backend backend
backend backend
  server one {upstream}
"#,
            listen = self.listen,
            upstream = self.upstream,
        )
    }
}

fn address(address: SocketAddr) -> String {
    format!("{{socket_address: {{address: {}, port_value: {}}}}}", address.ip(), address.port())
}

fn common_tls(tls: &MutualTls) -> String {
    format!(
        "{{tls_params: {{tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}}, \
         alpn_protocols: [http/1.1], \
         tls_certificates: [{{certificate_chain: {{filename: {}}}, private_key: {{filename: {}}}}}], \
         validation_context: {{trusted_ca: {{filename: {}}}}}}}",
        tls.cert.display(),
        tls.key.display(),
        tls.root.display()
    )
}
