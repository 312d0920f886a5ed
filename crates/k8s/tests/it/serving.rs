//! A control plane that reads nothing but a cluster serves a proxy.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_control::{ControlPlane, Options, Platform};
use evenkeel_testkit::kubernetes::ApiServer;
use evenkeel_xds::ResourceType;
use evenkeel_xds::client::connection::Service;
use evenkeel_xds::client::{Client, Connection, Protocol};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

use crate::mesh::{PATIENCE, pod, service, set_ready, start};
use crate::replica::options;

/// A sidecar that subscribes to all clusters.
struct Proxy {
    client: Client,
    connection: Connection,
}

impl Proxy {
    async fn open(address: SocketAddr, namespace: &str) -> Self {
        let node = Node {
            id: format!("sidecar~10.244.0.9~client-0.{namespace}~{namespace}.svc.cluster.local"),
            ..Node::default()
        };
        let mut client = Client::new(Protocol::Delta, node);
        client.subscribe_all(ResourceType::Cluster);
        client.on_connect();
        let first = client.poll_request().expect("a first request");
        let channel = Endpoint::from_shared(format!("http://{address}")).expect("a URI").connect().await;
        let connection = Connection::open(channel.expect("a connection"), Service::Aggregated, first).await;
        Self { client, connection: connection.expect("a stream") }
    }

    async fn until_held(&mut self, name: &str) {
        while !self.client.held(ResourceType::Cluster).any(|(held, _)| held == name) {
            let response = tokio::time::timeout(PATIENCE, self.connection.next()).await;
            let response = response.unwrap_or_else(|_| panic!("never {name}")).expect("an open stream");
            let update = self.client.on_response(response).expect("a type that is subscribed");
            self.client.answer(&update, &[]);
            while let Some(request) = self.client.poll_request() {
                drop(self.connection.send(request).await);
            }
        }
    }
}

async fn metrics(address: SocketAddr) -> String {
    page(address, "/metrics").await
}

async fn page(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nhost: control\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut page = String::new();
    stream.read_to_string(&mut page).await.expect("a page");
    page
}

fn count(page: &str, series: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_proxy_is_served_what_the_cluster_has() {
    let server = ApiServer::start();
    let shop = server.namespace("shop");
    server.apply(&[service(&shop, "a", 80), pod(&shop, "a-0", "a")].concat());
    set_ready(&server, &shop, "a-0", "10.1.0.1", false);
    let (_watching, source) = start(&server.kubeconfig()).await;
    let state = tempfile::tempdir().expect("a directory");
    let options = Options { config: Vec::new(), ..options(state.path()) };
    let platform = Platform { sources: vec![Box::new(source)], ..Platform::default() };
    let plane = ControlPlane::start_on(&options, platform).await.expect("a control plane");
    let addresses = plane.addresses;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(plane.serve(async move { drop(stopped.await) }));
    let mut proxy = Proxy::open(addresses.grpc, &shop).await;
    proxy.until_held(&format!("outbound|80||a.{shop}.svc.cluster.local")).await;

    server.apply(&service(&shop, "b", 80));
    proxy.until_held(&format!("outbound|80||b.{shop}.svc.cluster.local")).await;
    // What no proxy can see is counted, and no byte is sent.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = count(&metrics(addresses.http).await, "pilot_xds_pushes{type=\"cds\"}");
    assert!(before > 0);
    let restarted = r#"{"status":{"conditions":[{"type":"Initialized","status":"True"}]}}"#;
    server.kubectl(&["patch", "pod", "a-0", "-n", &shop, "--subresource=status", "-p", restarted]);
    let is_counted = async {
        while count(&metrics(addresses.http).await, "pilot_k8s_reg_events{type=\"Pods\",event=\"updatesame\"}") == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, is_counted).await.is_ok(), "{}", metrics(addresses.http).await);
    assert_eq!(count(&metrics(addresses.http).await, "pilot_xds_pushes{type=\"cds\"}"), before);
    drop(stop);
    serving.await.expect("no panic").expect("a clean end");
}

/// Who looks at the control plane sees that it cannot follow its API server.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_outage_is_a_finding_and_a_metric() {
    let server = ApiServer::start();
    let (_watching, source) = start(&server.kubeconfig()).await;
    let state = tempfile::tempdir().expect("a directory");
    let options = Options { config: Vec::new(), ..options(state.path()) };
    let platform = Platform { sources: vec![Box::new(source)], ..Platform::default() };
    let plane = ControlPlane::start_on(&options, platform).await.expect("a control plane");
    let http = plane.addresses.http;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(plane.serve(async move { drop(stopped.await) }));
    let until = async |expected: u64| {
        let is_so = async {
            loop {
                let (metrics, findings) = (metrics(http).await, page(http, "/debug/diagnostics").await);
                let status = page(http, "/debug/syncz").await;
                let is_metric = metrics.contains(&format!("evenkeel_source_outages {expected}\n"));
                let are_named = [findings, status].iter().all(|page| page.contains("source-outage") == (expected > 0));
                if is_metric && are_named {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(180), is_so).await.is_ok();
        assert!(in_time, "never {expected}: {}", page(http, "/debug/diagnostics").await);
    };
    until(0).await;
    server.kill();
    until(1).await;
    server.restart();
    until(0).await;
    drop(stop);
    serving.await.expect("no panic").expect("a clean end");
}
