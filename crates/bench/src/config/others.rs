//! HAProxy and nginx, set up to do the same work as the file of Envoy and Evenkeel.

use std::path::Path;

use super::Proxy;

impl Proxy<'_> {
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
