//! Pages of programs in Pods, through a real API server. The kubelet's side of the stream is the test's.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_admin::client::{self, Address, Connection};
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_k8s::cluster::Cluster;
use evenkeel_testkit::kubernetes::ApiServer;
use evenkeel_testkit::kubernetes::kubelet::Kubelet;
use http::Response;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::fixture::pod;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server whose pages are their own path and host, `/long` a megabyte.
async fn pages() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request: http::Request<hyper::body::Incoming>| async move {
                let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
                let body = match request.uri().path() {
                    "/long" => "x".repeat(1 << 20),
                    path => format!("{path} {host}"),
                };
                Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(body))))
            });
            let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(async move { drop(served.await) });
        }
    });
    address
}

async fn cluster(kubeconfig: std::path::PathBuf) -> Cluster {
    Cluster::of(&ClusterOptions { kubeconfig: Some(kubeconfig), context: None }).await.expect("a cluster")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_pods_are_read_with_the_rights_of_the_user() {
    let server = ApiServer::shared();
    let shop = server.namespace("forward");
    let address = pages().await;
    let wanted = Arc::new(Mutex::new(Vec::new()));
    let seen = wanted.clone();
    let kubelet = Kubelet::start(move |port| {
        seen.lock().expect("no panic").push(format!("{}.{}:{}", port.pod, port.namespace, port.port));
        (port.port == 15014).then_some(address)
    });
    kubelet.register(server, &shop);
    server.apply(&pod(&shop, "istiod-0", "default").replace("node-1", &shop));
    let admin = cluster(server.kubeconfig()).await;
    let dialed =
        |cluster: &Cluster, pod: &str, port: u16| Address::Dialed(Arc::new(cluster.pod_port(&shop, pod, port)));
    let read = async |address: &Address, path: &str| {
        let page = client::page(address, path, None, PATIENCE).await.map_err(|error| error.to_string());
        page.map(|page| String::from_utf8_lossy(page.body()).into_owned())
    };

    let istiod = dialed(&admin, "istiod-0", 15014);
    assert_eq!(istiod.to_string(), format!("istiod-0.{shop}:15014"));
    assert_eq!(read(&istiod, "/debug/syncz").await.as_deref(), Ok("/debug/syncz localhost"));
    assert_eq!(read(&istiod, "/long").await.map(|page| page.len()), Ok(1 << 20));
    // A connection stays open for several requests.
    let before = wanted.lock().expect("no panic").len();
    let mut connection = Connection::to(&istiod).await.expect("a connection");
    for path in ["/a", "/b"] {
        let page = connection.page(path, 100).await.expect("a page");
        assert_eq!(page.body(), format!("{path} localhost").as_bytes());
    }
    assert_eq!(wanted.lock().expect("no panic")[before..], [format!("istiod-0.{shop}:15014")]);

    let check = async |address: Address, expected: &str| {
        let error = read(&address, "/").await.expect_err("no page");
        assert!(error.contains(expected), "{address}: {error}");
    };
    // Nobody listens there, the Pod is another one, and the user may not.
    check(dialed(&admin, "istiod-0", 15000), "error forwarding port 15000 to pod istiod-0: connection refused").await;
    check(dialed(&admin, "istiod-1", 15014), "no such Pod").await;
    let nobody = cluster(server.kubeconfig_of(&shop, "default")).await;
    check(dialed(&nobody, "istiod-0", 15014), "`pods/portforward`").await;
    let forward = ["create", "role", "forward", "--verb=get,create", "--resource=pods/portforward", "-n", &shop];
    server.kubectl(&forward);
    let account = format!("--serviceaccount={shop}:default");
    server.kubectl(&["create", "rolebinding", "forward", "--role=forward", &account, "-n", &shop]);
    crate::fixture::until(async || read(&dialed(&nobody, "istiod-0", 15014), "/x").await.is_ok()).await;
}

/// Commands have runtimes of their own, and threads without one.
#[test]
fn streams_of_one_runtime_are_read_on_others() {
    let server = ApiServer::shared();
    let shop = server.namespace("forward");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let address = runtime.block_on(pages());
    Kubelet::start(move |_| Some(address)).register(server, &shop);
    server.apply(&pod(&shop, "web-0", "default").replace("node-1", &shop));
    let dialed = runtime.block_on(async {
        let cluster = cluster(server.kubeconfig()).await;
        Address::Dialed(Arc::new(cluster.pod_port(&shop, "web-0", 15000)))
    });
    let page = client::blocking_page(&dialed, "/stats", None, PATIENCE).expect("a page");
    assert_eq!(page.body(), b"/stats localhost".as_slice());
}
