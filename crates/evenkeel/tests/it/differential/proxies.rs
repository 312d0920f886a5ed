//! The four proxies, each in front of one backend with as little configuration as it takes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use evenkeel_testkit::{Process, envoy, free_ports};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    Evenkeel,
    Envoy,
    Haproxy,
    Nginx,
}

impl Program {
    pub const ALL: [Self; 4] = [Self::Evenkeel, Self::Envoy, Self::Haproxy, Self::Nginx];
}

/// A proxy that runs until it is dropped.
pub struct Running {
    address: SocketAddr,
    _process: Process,
}

impl Running {
    /// Starts a proxy in front of `backend`, with its files in `folder`.
    pub fn start(program: Program, backend: SocketAddr, folder: &Path) -> Self {
        let [port, admin] = free_ports();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let file = folder.join(format!("{program:?}.yaml"));
        let text = match program {
            Program::Evenkeel | Program::Envoy => bootstrap(port, admin, backend.port()),
            Program::Haproxy => haproxy(address, backend),
            Program::Nginx => nginx(address, backend, folder),
        };
        std::fs::write(&file, text).expect("a writable folder");
        let mut command = match program {
            Program::Evenkeel => Command::new(env!("CARGO_BIN_EXE_evenkeel")),
            Program::Envoy => Command::new(envoy()),
            Program::Haproxy => Command::new("haproxy"),
            Program::Nginx => Command::new("nginx"),
        };
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path);
        match program {
            Program::Evenkeel => command.args(["proxy", "--concurrency", "1", "-l", "error", "-c"]).arg(&file),
            Program::Envoy => {
                command.args(["--disable-hot-restart", "--concurrency", "1", "-l", "error", "-c"]).arg(&file)
            }
            Program::Haproxy => command.args(["-db", "-f"]).arg(&file),
            Program::Nginx => command.arg("-c").arg(&file).arg("-p").arg(folder),
        };
        let mut process = Process::spawn(&mut command);
        process.wait_for_port(address);
        Self { address, _process: process }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn bootstrap(port: u16, admin: u16, backend: u16) -> String {
    let address = |port: u16| format!("{{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}");
    format!(
        r#"
admin: {{ address: {admin} }}
static_resources:
  listeners:
  - name: http
    address: {listen}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          codec_type: HTTP1
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [ {{ match: {{ prefix: "/" }}, route: {{ cluster: backend }} }} ]
  clusters:
  - name: backend
    load_assignment:
      cluster_name: backend
      endpoints: [ {{ lb_endpoints: [ {{ endpoint: {{ address: {backend} }} }} ] }} ]
"#,
        admin = address(admin),
        listen = address(port),
        backend = address(backend),
    )
}

fn haproxy(address: SocketAddr, backend: SocketAddr) -> String {
    format!(
        "global\n  nbthread 1\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 5s\n  timeout server 5s\n\
         frontend in\n  bind {address}\n  default_backend out\nbackend out\n  server one {backend}\n"
    )
}

fn nginx(address: SocketAddr, backend: SocketAddr, folder: &Path) -> String {
    format!(
        r#"daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  server {{
    listen {address};
    location / {{
      proxy_pass http://{backend};
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
    }}
  }}
}}
"#,
        folder = folder.display(),
    )
}
