//! The streams of one busy HTTP/2 connection are served by several workers, and each gets its own answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use evenkeel_testkit::{Backend, Reply, eventually};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::harness::{Proxy, http_listener, static_bootstrap, static_cluster};

/// Requests under way at once.
const STREAMS: u64 = 64;

const ROUTES: &str = "route_config: {name: local, response_headers_to_add: [{header: {key: x-path, value: \
                      '%REQ(:PATH)%'}}], virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /up}, \
                      route: {cluster: backend}}, {match: {prefix: /}, direct_response: {status: 200, body: \
                      {inline_string: hello}}}]}]}";

async fn connect(web: SocketAddr) -> SendRequest<Full<Bytes>> {
    let io = TokioIo::new(TcpStream::connect(web).await.expect("it accepts"));
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// One request, whose number comes back in its answer. Each fifth goes to the host, with a body larger than what may be on
/// its way between two workers.
async fn ask(mut sender: SendRequest<Full<Bytes>>, number: u64) {
    let (path, body) = match number % 5 {
        0 => (format!("/up/{number}"), vec![b'0' + (number % 10) as u8; 200_000 + (number % 1000) as usize]),
        _ => (format!("/{number}"), Vec::new()),
    };
    let request = Request::post(format!("http://test{path}")).body(Full::new(Bytes::from(body.clone())));
    sender.ready().await.expect("the connection lives");
    let response = sender.send_request(request.expect("a request")).await.expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["x-path"], path);
    let answer = response.into_body().collect().await.expect("a whole answer").to_bytes();
    assert!(if body.is_empty() { answer == "hello" } else { answer == body }, "{path}: {} bytes", answer.len());
}

fn count(proxy: &Proxy, name: &str, workers: usize) -> Vec<u64> {
    let text = proxy.get("/stats").text();
    let value = |worker| {
        let prefix = format!("workers.worker_{worker}.{name}: ");
        text.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok()).expect("counted")
    };
    (0..workers).map(value).collect()
}

#[test]
fn a_hot_connections_streams_are_served_by_all_workers() {
    const WORKERS: usize = 3;
    let backend = Backend::start(|request| Reply::Fixed(200, Vec::new(), request.body.clone()));
    let clusters = [static_cluster("backend", backend.address(), "")];
    let proxy = Proxy::start_with(&static_bootstrap(&http_listener("web", ROUTES, ""), &clusters), WORKERS);
    proxy.wait_live();
    let web = proxy.listener("web");
    let runtime = Runtime::new().expect("threads");
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = runtime.spawn({
        let (stop, asked) = (Arc::clone(&stop), Arc::clone(&asked));
        async move {
            let sender = connect(web).await;
            let mut streams = JoinSet::new();
            for _ in 0..STREAMS {
                let (sender, stop, asked) = (sender.clone(), Arc::clone(&stop), Arc::clone(&asked));
                streams.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        ask(sender.clone(), asked.fetch_add(1, Ordering::Relaxed)).await;
                    }
                });
            }
            while let Some(ended) = streams.join_next().await {
                ended.expect("every answer is its request's");
            }
        }
    });
    eventually("every worker to serve streams of the one connection", || {
        assert!(!load.is_finished(), "the client has failed");
        let lent = count(&proxy, "downstream_rq_lent", WORKERS).iter().sum::<u64>();
        let served = count(&proxy, "downstream_rq_total", WORKERS);
        (lent >= 200 && served.iter().all(|served| *served >= 50)).then_some(())
    });
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(load).expect("no request lost");
    // Each request was counted once, on the worker that served it; the connection once, on the worker that holds it.
    eventually("all requests to be counted", || {
        let served = count(&proxy, "downstream_rq_total", WORKERS).iter().sum::<u64>();
        (served == asked.load(Ordering::Relaxed)).then_some(())
    });
    assert_eq!(count(&proxy, "downstream_cx_total", WORKERS).iter().sum::<u64>(), 1);
    drop(runtime);
    eventually("the connection to end", || {
        let text = proxy.get("/stats").text();
        let ended = ["downstream_cx_active: 0", "downstream_cx_http2_active: 0", "downstream_rq_active: 0"];
        ended.iter().all(|line| text.contains(&format!("http.web.{line}\n"))).then_some(())
    });
}
