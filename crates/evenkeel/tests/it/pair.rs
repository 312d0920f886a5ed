//! Two gateways, each with an agent: `a` forwards plaintext calls to `b` over mutual TLS, and `b` to a backend that answers
//! with what it is told about its client.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use evenkeel_ca::{TokenKey, Workload};
use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Backend, Connection, Identity, Process, Reply, free_ports};
use serde_json::Value;

use crate::mesh::{Plane, host};

/// The identities, in the trust domain `cluster.local`.
pub const A: &str = "spiffe://cluster.local/ns/shop/sa/a";
pub const B: &str = "spiffe://cluster.local/ns/shop/sa/b";

/// A gateway with its agent.
pub struct Gateway {
    name: &'static str,
    folder: PathBuf,
    pub program: PathBuf,
    admin: SocketAddr,
}

/// What its admin page says of its certificate.
#[derive(Debug)]
pub struct Certificate {
    pub serial: String,
    pub names: String,
    /// The places of its roots.
    pub roots: String,
}

impl Gateway {
    /// Its files are in a folder of its name in this one.
    pub fn new(folder: &Path, name: &'static str) -> Self {
        Self::of_program(folder, name, env!("CARGO_BIN_EXE_evenkeel").into())
    }

    /// The same, with a copy of the program.
    pub fn of_program(folder: &Path, name: &'static str, program: PathBuf) -> Self {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).expect("a folder");
        let [admin] = free_ports();
        Self { name, folder, program, admin: ([127, 0, 0, 1], admin).into() }
    }

    pub fn start(&self, plane: &Plane, more: &[String]) -> Process {
        let name = self.name;
        let workload = Workload { namespace: "shop".into(), service_account: name.into(), pod: format!("{name}-0") };
        let tokens = TokenKey::open(&plane.state()).expect("the key of tokens");
        let token = tokens.mint(&workload, Duration::from_secs(3600), SystemTime::now()).expect("a token");
        std::fs::write(self.folder.join("token"), token).expect("a file");
        let [ready, stats] = free_ports();
        let mut command = Command::new(&self.program);
        command.args(["agent", "router", "--no-capture", "--concurrency", "1", "--ip", "127.0.0.1"]);
        command.args(["--id", &format!("{name}-0.shop"), "--namespace", "shop", "--service-account", name]);
        command.args([
            "--labels",
            &format!("app={name}"),
            "--discovery-address",
            &format!("127.0.0.1:{}", plane.secure),
        ]);
        command.arg("--token").arg(self.folder.join("token"));
        command.arg("--root-cert").arg(plane.state().join("trust-bundle.pem"));
        command.arg("--state").arg(self.folder.join("state"));
        command.args(["--admin-port", &self.admin.port().to_string(), "--readiness-port", &ready.to_string()]);
        Process::spawn(command.args(["--stats-port", &stats.to_string(), "--status-port", "0"]).args(more))
    }

    pub fn certificate(&self) -> Option<Certificate> {
        let page = Connection::open(self.admin).ok()?.get("admin", "/certs", "").ok()?;
        let page: Value = serde_json::from_slice(&page.body).ok()?;
        let all = page["certificates"].as_array()?;
        let leaf = all.iter().find_map(|of| of["cert_chain"].as_array()?.first().cloned())?;
        let roots = all.iter().flat_map(|of| of["ca_cert"].as_array().cloned().unwrap_or_default());
        Some(Certificate {
            serial: leaf["serial_number"].as_str()?.to_owned(),
            names: leaf["subject_alt_names"].to_string(),
            roots: roots.map(|root| root["path"].to_string()).collect(),
        })
    }
}

impl Gateway {
    /// The sum of its proxy's statistics with this end of a name.
    pub fn counts(&self, name: &str) -> u64 {
        let page = Connection::open(self.admin).and_then(|mut admin| admin.get("admin", "/stats", "")).expect("a page");
        let all = page.text();
        let counts = all.lines().filter_map(|line| line.split_once(": ")).filter(|(stat, _)| stat.ends_with(name));
        counts.map(|(_, count)| count.parse::<u64>().unwrap_or_default()).sum()
    }
}

/// Two free addresses.
pub fn local_ports() -> [SocketAddr; 2] {
    free_ports().map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
}

/// A server that answers with its client's certificate, as it is told.
pub fn caller_of() -> Backend {
    Backend::start(|request| {
        let header = request.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-client-cert"));
        Reply::text(header.map(|(_, value)| value.clone()).unwrap_or_default())
    })
}

/// The objects. `a` makes a connection per request, and expects `identity` of `b`.
pub fn objects(a: SocketAddr, b: SocketAddr, backend: SocketAddr, identity: &str) -> String {
    let gateway = |name: &str, server: String| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{selector: {{app: {name}}}, servers: [{{hosts: ['*'], {server}}}]}}\n"
        )
    };
    let route = |gateway: &str, to: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {gateway}, namespace: shop}}\n\
             spec: {{hosts: ['*'], gateways: [{gateway}], http: [{{route: [{{destination: {{host: {to}.test}}}}]}}]}}\n"
        )
    };
    let mutual = "tls: {mode: ISTIO_MUTUAL}";
    [
        host("backend", backend),
        "---\n".to_owned() + &host("b", b),
        gateway("a", format!("port: {{number: {}, name: http, protocol: HTTP}}", a.port())),
        gateway("b", format!("port: {{number: {}, name: https, protocol: HTTPS}}, {mutual}", b.port())),
        route("a", "b"),
        route("b", "backend"),
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: b, namespace: shop}}\n\
             spec: {{host: b.test, trafficPolicy: {{tls: {{mode: ISTIO_MUTUAL, subjectAltNames: ['{identity}']}}, \
             connectionPool: {{http: {{maxRequestsPerConnection: 1}}}}}}}}\n"
        ),
    ]
    .concat()
}

/// A mesh's settings with roots of another trust domain.
pub fn trusting(own: &str, other: &str, roots: &str) -> String {
    let pem = roots.lines().map(|line| format!("        {line}\n")).collect::<String>();
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    \
         trustDomain: {own}\n    caCertificates:\n    - trustDomains: [{other}]\n      pem: |\n{pem}"
    )
}

/// What the backend is told of the client when somebody asks at `a`.
pub fn ask(a: SocketAddr) -> Result<String, String> {
    let mut connection = Connection::open(a).map_err(|error| error.to_string())?;
    let response = connection.get("any.test", "/", "").map_err(|error| error.to_string())?;
    match response.status {
        200 => Ok(response.text()),
        status => Err(format!("{status}: {}", response.text())),
    }
}

/// The same of a client with a certificate of its own, straight at `b`.
pub fn ask_with(b: SocketAddr, identity: &Identity) -> Result<String, String> {
    let client = TlsClient { identity: Some(identity), ..TlsClient::default() };
    let mut answer = Vec::new();
    let asked = client.open_unverified(b, |stream| {
        // Refused, the client sees it when it reads.
        drop(stream.write_all(b"GET / HTTP/1.1\r\nhost: b.test\r\nconnection: close\r\n\r\n"));
        drop(stream.read_to_end(&mut answer));
    });
    asked.map_err(|error| error.to_string())?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    if answer.starts_with("HTTP/1.1 200") { Ok(answer) } else { Err(format!("answered `{answer}`")) }
}
