use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use evenkeel_agent::Options;
use evenkeel_agent::trust::{self, ControlPlaneRoots};
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::support::{ControlPlane, PATIENCE, ask, eventually, eventually_asked, start, status};

/// A GET on loopback: status line and body.
async fn get(port: u16, path: &str) -> (String, String) {
    let (head, body) = ask(port, &format!("GET {path}")).await;
    (head.lines().next().unwrap().to_owned(), body)
}

async fn resolve(server: SocketAddr, name: &str) -> Vec<String> {
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(&query.to_vec().unwrap(), server).await.unwrap();
    let mut buffer = [0; 512];
    let count = timeout(PATIENCE, socket.recv(&mut buffer)).await.expect("an answer in time").unwrap();
    let answer = Message::from_vec(&buffer[..count]).unwrap();
    answer.answers.iter().map(|record| record.data.to_string()).collect()
}

/// What holds for both proxies.
async fn check_serving(options: &Options, proxy: &str) {
    let ready = status(&options.state, "readiness", |status| status.ready).await;
    assert_eq!(ready.identity.as_deref(), Some("spiffe://cluster.local/ns/default/sa/web"));
    assert_eq!((ready.proxy.as_str(), ready.waiting_for), (proxy, None));
    assert!(ready.cert_expiry.is_some_and(|expiry| expiry.ends_with('Z')));
    assert_eq!(get(options.readiness_port, "/healthz/ready").await.0, "HTTP/1.1 200 OK");
    // The admin interface shows nothing else through these listeners.
    assert_eq!(get(options.readiness_port, "/quitquitquit").await.0, "HTTP/1.1 404 Not Found");
    let (head, body) = get(options.stats_port, "/stats/prometheus").await;
    assert_eq!(head, "HTTP/1.1 200 OK");
    assert!(body.contains("# TYPE "), "{body}");
    // Nobody from outside says how much there is to compute.
    for query in ["filter=((%5Cw{100}){100}){100}", "%66ilter=x", "usedonly", "format=json"] {
        let (head, body) = get(options.stats_port, &format!("/stats/prometheus?{query}")).await;
        assert_eq!((head.as_str(), body.contains("# TYPE ")), ("HTTP/1.1 302 Found", false), "{query}");
    }
    let dns = options.dns_address.unwrap();
    for name in ["info.", "info.default.", "info.default.svc.cluster.local."] {
        assert_eq!(resolve(dns, name).await, ["10.96.0.7"], "{name}");
    }
}

#[tokio::test]
async fn the_built_in_proxy_comes_up_serves_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let options = control.agent(&folder.path().join("agent"), &[]);
    let agent = start(options.clone());
    check_serving(&options, "evenkeel").await;
    let nodes: Vec<_> = control.nodes.lock().unwrap().iter().map(|node| node.id.clone()).collect();
    // The proxy's stream and the agent's own say the same.
    assert_eq!(nodes.len(), 2);
    assert!(nodes.iter().all(|id| id == "sidecar~127.0.0.1~web-0.default~default.svc.cluster.local"), "{nodes:?}");
    agent.stop().await;
    assert!(!options.state.join("sds.sock").exists());
    assert!(TcpStream::connect(("127.0.0.1", options.admin_port())).await.is_err(), "the proxy runs on");
}

#[tokio::test]
async fn envoy_comes_up_is_restarted_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let envoy = evenkeel_testkit::envoy();
    let options = control.agent(&folder.path().join("agent"), &["--envoy", envoy.to_str().unwrap()]);
    let agent = start(options.clone());
    check_serving(&options, "envoy").await;

    // An Envoy that ends by itself is replaced.
    let mut quit = TcpStream::connect(("127.0.0.1", options.admin_port())).await.unwrap();
    quit.write_all(b"POST /quitquitquit HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let _ = quit.read_to_end(&mut Vec::new()).await;
    // One stream of the agent's and one of each Envoy.
    eventually("another Envoy", || (control.nodes.lock().unwrap().len() >= 3).then_some(())).await;
    let listens = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    eventually("its listeners", || (listens(options.readiness_port) && listens(options.stats_port)).then_some(()))
        .await;
    check_serving(&options, "envoy").await;

    agent.stop().await;
    assert!(TcpStream::connect(("127.0.0.1", options.admin_port())).await.is_err(), "Envoy runs on");
}

#[tokio::test]
async fn connections_are_accepted_while_others_learn_that_the_pod_ends() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let options = control.agent(&folder.path().join("agent"), &["--accept-after-stop-s", "3600"]);
    let agent = start(options.clone());
    status(&options.state, "readiness", |status| status.ready).await;
    let ended = agent.begin_to_stop();
    eventually_asked("the drain", async || {
        let (head, _) = get(options.readiness_port, "/healthz/ready").await;
        (head == "HTTP/1.1 503 Service Unavailable").then_some(())
    })
    .await;
    // Who ends the proxy meanwhile does not wait.
    ask(options.admin_port(), "POST /quitquitquit").await;
    timeout(PATIENCE, ended).await.expect("the agent ends in time").unwrap().unwrap();
}

#[tokio::test]
async fn certificates_are_renewed_before_they_expire() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    *control.lifetime.lock().unwrap() = Duration::from_secs(2);
    let options = control.agent(&folder.path().join("agent"), &[]);
    let agent = start(options.clone());
    let first = status(&options.state, "a certificate", |status| status.cert_expiry.is_some()).await;
    *control.lifetime.lock().unwrap() = Duration::from_secs(3600);
    let renewed = status(&options.state, "renewal", |status| status.cert_expiry != first.cert_expiry).await;
    assert!(renewed.cert_expiry > first.cert_expiry);
    assert_eq!(*control.issued.borrow(), 2);
    agent.stop().await;
}

#[tokio::test]
async fn what_is_missing_is_told_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let state = folder.path().join("agent");
    let mut options = control.agent(&state, &[]);
    let other = tempfile::tempdir().unwrap();
    evenkeel_ca::Authority::open(other.path(), "cluster.local", std::time::SystemTime::now()).unwrap();
    let root = folder.path().join("root.pem");
    std::fs::copy(other.path().join("ca-cert.pem"), &root).unwrap();
    options.root_cert = root.clone();
    let token = std::fs::read_to_string(&options.token).unwrap();
    std::fs::write(&options.token, "not a token\n").unwrap();

    let agent = start(options.clone());
    let waiting = status(&state, "a first status", |_| true).await;
    assert_eq!((waiting.ready, waiting.waiting_for.as_deref()), (false, Some("a certificate from the control plane")));
    // Neither a control plane that is somebody else's nor a token it does not accept ends the agent.
    std::fs::copy(control.state.join("ca-cert.pem"), &root).unwrap();
    assert_eq!(*control.issued.borrow(), 0);
    std::fs::write(&options.token, token).unwrap();
    status(&state, "readiness", |status| status.ready).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_stop_before_the_first_certificate_ends_the_agent() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let mut options = control.agent(&folder.path().join("agent"), &[]);
    options.token = Path::new("/nonexistent").to_owned();
    let agent = start(options.clone());
    status(&options.state, "a first status", |_| true).await;
    agent.stop().await;
}

#[tokio::test]
async fn new_roots_in_the_file_reach_the_proxy() {
    use evenkeel_agent::certificate::CertificateRenewer;
    use evenkeel_agent::sds::Secrets;
    use evenkeel_tls::SecretStore;
    use evenkeel_xds::ResourceType;
    use evenkeel_xds::server::Source;

    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let mut options = control.agent(&folder.path().join("agent"), &[]);
    let root = folder.path().join("root.pem");
    std::fs::copy(control.state.join("ca-cert.pem"), &root).unwrap();
    options.root_cert = root.clone();
    let secrets = Secrets::new();
    let (current, _) = tokio::sync::watch::channel(None);
    let trusted = (trust::channel().1, ControlPlaneRoots::default());
    let mut keeper = CertificateRenewer::new(options, secrets.clone(), SecretStore::new(), current, trusted).unwrap();
    timeout(PATIENCE, keeper.obtain()).await.expect("a certificate in time");
    let mut session = secrets.connect(&Default::default(), &Default::default()).await.unwrap();
    let mut version = |name: &str| session.resources.look().get(ResourceType::Secret, name).unwrap().version;
    let (root_before, certificate_before) = (version("ROOTCA"), version("default"));
    let keeping = tokio::spawn(keeper.keep());

    // Nonsense changes nothing; a second root does.
    std::fs::write(&root, "nonsense").unwrap();
    let other = tempfile::tempdir().unwrap();
    evenkeel_ca::Authority::open(other.path(), "cluster.local", std::time::SystemTime::now()).unwrap();
    let mut both = std::fs::read(control.state.join("ca-cert.pem")).unwrap();
    both.extend(std::fs::read(other.path().join("ca-cert.pem")).unwrap());
    std::fs::write(&root, both).unwrap();
    eventually("the new root", || (version("ROOTCA") != root_before).then_some(())).await;
    assert_eq!(version("default"), certificate_before);
    keeping.abort();
}
