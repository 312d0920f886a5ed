//! Secrets of gateways over real sockets, with Evenkeel's proxy and with stock Envoy: replaced under load, missing, broken,
//! taken away, and withheld from another namespace.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use evenkeel_ca::Authority;
use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Identity, Process, TestCa, eventually, free_ports, objects};
use rcgen::{CertificateParams, KeyPair, SanType};

use crate::mesh::Plane;

/// A gateway of which the ports are known.
struct Edge {
    /// Two servers, `a.test` and `b.test`.
    main: SocketAddr,
    /// One server, `c.test`, whose Secret comes late.
    late: SocketAddr,
}

impl Edge {
    fn new() -> Self {
        let [main, late] = free_ports().map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        Self { main, late }
    }

    fn objects(&self) -> String {
        let server = |port: u16, name: &str| {
            format!(
                "    - {{port: {{number: {port}, name: {name}, protocol: HTTPS}}, hosts: [{name}.test], \
                 tls: {{mode: SIMPLE, credentialName: {name}}}}}\n"
            )
        };
        let (main, late) = (self.main.port(), self.late.port());
        let servers = [server(main, "a"), server(main, "b"), server(late, "c")].concat();
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
             spec:\n  selector: {{istio: edge}}\n  servers:\n{servers}---\n\
             apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v, namespace: shop}}\n\
             spec: {{hosts: ['*'], gateways: [g], http: [{{directResponse: {{status: 200, body: {{string: ok}}}}}}]}}\n"
        )
    }
}

/// Whether a new connection for a host is answered with a certificate that the root vouches for.
pub fn serves(address: SocketAddr, host: &str, ca: &TestCa) -> bool {
    let client = TlsClient { server_name: host, root_pem: ca.root_pem(), ..TlsClient::default() };
    let response = client.open(address).and_then(|mut connection| connection.get(host, "/", ""));
    response.is_ok_and(|response| response.status == 200)
}

/// A certificate of a workload, as an agent gets it.
fn workload(plane: &Plane, namespace: &str) -> Identity {
    let now = SystemTime::now();
    let authority = Authority::open(&plane.state(), "cluster.local", now).expect("the authority");
    let identity = format!("spiffe://cluster.local/ns/{namespace}/sa/edge");
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(identity.as_str().try_into().expect("a name"))];
    let request = params.serialize_request(&key).and_then(|request| request.pem()).expect("a request");
    let day = Duration::from_secs(24 * 3600);
    let issued =
        authority.sign(request.as_bytes(), &identity.parse().expect("an id"), day, now).expect("a certificate");
    Identity { cert_pem: issued.chain.concat(), key_pem: key.serialize_pem() }
}

/// Starts a gateway proxy in a namespace.
pub fn start(plane: &Plane, folder: &Path, namespace: &str, program: Program) -> Process {
    start_with(plane, folder, namespace, program, "")
}

/// The same, with more fields in its bootstrap file.
pub fn start_with(plane: &Plane, folder: &Path, namespace: &str, program: Program, more: &str) -> Process {
    let (chain, key) = workload(plane, namespace).write(folder, namespace);
    let text = BOOTSTRAP
        .replace("NAMESPACE_OF_GATEWAY", namespace)
        .replace("XDS_PORT", &plane.secure.to_string())
        .replace("CHAIN_FILE", &chain.display().to_string())
        .replace("KEY_FILE", &key.display().to_string())
        + more;
    let path = folder.join(format!("{namespace}.yaml"));
    std::fs::write(&path, text).expect("a file");
    let mut command = match program {
        Program::Evenkeel => {
            let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
            command.arg("proxy");
            command
        }
        Program::Envoy => {
            let mut command = Command::new(evenkeel_testkit::envoy());
            command.args(["--use-dynamic-base-id", "-l", "warning"]);
            command
        }
    };
    Process::spawn(command.args(["--concurrency", "1", "-c"]).arg(path))
}

#[derive(Debug, Clone, Copy)]
pub enum Program {
    Evenkeel,
    Envoy,
}

/// How many resources of a type the gateway has been sent.
fn sent(plane: &Plane, kind: &str) -> u64 {
    let status = plane.json("/debug/syncz").expect("the page");
    let types = status["proxies"][0]["types"].as_array().expect("types").clone();
    let of_kind = types.iter().find(|of| of["type"] == kind).expect("the type");
    of_kind["resources_sent"].as_u64().expect("a number")
}

#[test]
fn evenkeel_follows_its_secrets() {
    follow(Program::Evenkeel);
}

#[test]
fn envoy_follows_its_secrets() {
    follow(Program::Envoy);
}

fn follow(program: Program) {
    let (old, new) = (TestCa::new(), TestCa::new());
    let (plane, edge) = (Plane::new(), Edge::new());
    let secret = |ca: &TestCa, name: &str| objects::tls_secret(ca, "ingress", name, &format!("{name}.test"));
    plane.write("edge", &edge.objects());
    plane.write("a", &secret(&old, "a"));
    plane.write("b", &secret(&old, "b"));
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let gateway = start(&plane, folder.path(), "ingress", program);
    eventually("both servers", || {
        (serves(edge.main, "a.test", &old) && serves(edge.main, "b.test", &old)).then_some(())
    });
    // Without its Secret a server has no certificate, also not that of another one.
    assert!(!serves(edge.late, "c.test", &old));

    // A certificate is replaced while clients come, and one stays.
    let (before, listeners) = (sent(&plane, "SDS"), sent(&plane, "LDS"));
    let (stop, failed, asked) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (edge, stop, failed, asked) = (&edge, &stop, &failed, &asked);
        let roots = old.root_pem() + &new.root_pem();
        let client = |host| TlsClient { server_name: host, root_pem: roots.clone(), ..TlsClient::default() };
        let (one, other) = (client("a.test"), client("b.test"));
        for client in [one, other] {
            scope.spawn(move || {
                let mut kept = client.open(edge.main).expect("a connection");
                while !stop.load(Ordering::Relaxed) {
                    let mut connections = [client.open(edge.main).ok()];
                    let fresh = connections.iter_mut().flatten().map(|c| c.get(client.server_name, "/", ""));
                    let all_good =
                        fresh.chain([kept.get(client.server_name, "/", "")]).filter(Result::is_ok).count() == 2;
                    failed.fetch_add(usize::from(!all_good), Ordering::Relaxed);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _stop = evenkeel_testkit::load::Stop(stop);
        plane.write("a", &secret(&new, "a"));
        eventually("the new certificate", || serves(edge.main, "a.test", &new).then_some(()));
        let then = asked.load(Ordering::Relaxed) + 20;
        eventually("more requests", || (asked.load(Ordering::Relaxed) > then).then_some(()));
    });
    assert_eq!(failed.load(Ordering::Relaxed), 0, "of {}: {}", asked.load(Ordering::Relaxed), gateway.output());
    assert!(serves(edge.main, "b.test", &old) && !serves(edge.main, "b.test", &new));
    assert_eq!((sent(&plane, "SDS"), sent(&plane, "LDS")), (before + 1, listeners), "only the one Secret is sent");

    // What is taken away or broken stays in use, as in Envoy; what comes late is used.
    plane.remove("a");
    let broken = objects::secret("ingress", "b", &[("tls.crt", &new.for_dns(&["b.test"]).cert_pem), ("tls.key", "x")]);
    plane.write("b", &broken);
    plane.write("c", &secret(&new, "c"));
    eventually("the late server", || serves(edge.late, "c.test", &new).then_some(()));
    assert!(serves(edge.main, "a.test", &new) && serves(edge.main, "b.test", &old), "{}", gateway.output());

    // Keys are nowhere to be seen.
    let page = plane.page("/debug/config_dump?proxyID=edge-0");
    assert!(page.contains("kubernetes://c") && page.contains("W3JlZGFjdGVkXQ=="), "{page}");
    let key = new.for_dns(&["x"]).key_pem;
    let header = key.lines().nth(1).and_then(|line| line.get(..20)).expect("a line");
    assert!(!page.contains("PRIVATE KEY"), "{header}");
    for entry in walk(&plane.state().join("history")) {
        let text = String::from_utf8_lossy(&std::fs::read(&entry).expect("a file")).into_owned();
        assert!(!text.contains("PRIVATE KEY"), "{}", entry.display());
    }

    // A gateway of another namespace that the same Gateway selects has none of the Secrets.
    drop(gateway);
    let other = start(&plane, folder.path(), "other", program);
    eventually("its listeners", || {
        let page = plane.page("/debug/config_dump?proxyID=edge-0.other");
        (page.contains("\"LDS\"") && !page.contains("\"SDS\"")).then_some(())
    });
    eventually("its port", || std::net::TcpStream::connect(edge.main).ok().map(drop));
    assert!(!serves(edge.main, "a.test", &new) && !serves(edge.main, "b.test", &old), "{}", other.output());
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect()
}

const BOOTSTRAP: &str = r#"
node:
  id: router~127.0.0.1~edge-0.NAMESPACE_OF_GATEWAY~NAMESPACE_OF_GATEWAY.svc.cluster.local
  cluster: edge
  metadata: {NAMESPACE: NAMESPACE_OF_GATEWAY, SERVICE_ACCOUNT: edge, LABELS: {istio: edge, gateway.networking.k8s.io/gateway-name: edge}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: xds}}]
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          alpn_protocols: [h2]
          tls_certificates: [{certificate_chain: {filename: CHAIN_FILE}, private_key: {filename: KEY_FILE}}]
    load_assignment:
      cluster_name: xds
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: XDS_PORT}}}}]}]
"#;
