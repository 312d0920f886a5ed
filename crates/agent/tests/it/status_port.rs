//! The agent's page: readiness, and metrics of the proxy and the program.

use std::time::Duration;

use evenkeel_agent::Options;
use evenkeel_testkit::{Backend, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::sds;
use crate::support::{ControlPlane, PATIENCE, start, status};

/// A request on loopback: status code, and the rest of the answer.
async fn ask(port: u16, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(format!("{request} HTTP/1.1\r\nhost: localhost\r\n{TIMEOUT}\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer in time").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), format!("{head}\n\n{body}"))
}

/// What Prometheus would say.
const TIMEOUT: &str = "x-prometheus-scrape-timeout-seconds: 0.5\r\n";

async fn until(what: &str, probe: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !probe().await {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn metrics(options: &Options) -> String {
    let (status, page) = ask(options.status_port().unwrap(), "GET /stats/prometheus").await;
    assert_eq!(status, 200, "{page}");
    assert!(page.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{page}");
    page
}

fn scraped(options: &mut Options, port: u16, path: &str) {
    let annotations = format!(r#"{{"scrape":"true","port":"{port}","path":"{path}"}}"#);
    options.environment.push(("ISTIO_PROMETHEUS_ANNOTATIONS".to_owned(), annotations));
}

#[tokio::test]
async fn metrics_of_proxy_and_program_are_on_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let envoy = evenkeel_testkit::envoy();
    for (name, more) in [("evenkeel", &[][..]), ("envoy", &["--envoy", envoy.to_str().unwrap()])] {
        let program = Backend::start(|request| match request.target.as_str() {
            "/own" => Reply::text("jobs_total 7"),
            _ => Reply::Close,
        });
        let mut options = control.agent(&folder.path().join(name), more);
        scraped(&mut options, program.address().port(), "own");
        let agent = start(options.clone());
        status(&options.state, "readiness", |status| status.ready).await;
        let page = metrics(&options).await;
        for line in ["\njobs_total 7\n", "\nenvoy_server_live", "\nistio_agent_scrapes_total 1\n"] {
            assert!(page.contains(line), "{name}: {line:?} not in\n{page}");
        }
        assert!(page.contains("istio_agent_scrape_failures_total{type=\"application\"} 0\n"), "{page}");
        let port = options.status_port().unwrap();
        until("readiness", async || ask(port, "GET /healthz/ready").await.0 == 200).await;
        for (request, expected) in [
            ("HEAD /healthz/ready", 200),
            ("POST /stats/prometheus", 405),
            ("GET /quitquitquit", 404),
            ("GET http://localhost/stats/prometheus?filter=x", 200),
        ] {
            assert_eq!(ask(port, request).await.0, expected, "{name}: {request}");
        }
        agent.stop().await;
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err(), "{name}: the page is still there");
    }
}

#[tokio::test]
async fn what_does_not_answer_is_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    // It accepts, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = control.agent(&folder.path().join("agent"), &[]);
    scraped(&mut options, silent.local_addr().unwrap().port(), "/metrics");
    let agent = start(options.clone());
    // Before there is a proxy, too, the page answers.
    let port = options.status_port().unwrap();
    until("the page", async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
    status(&options.state, "readiness", |status| status.ready).await;
    let page = metrics(&options).await;
    assert!(page.contains("\nenvoy_server_live"), "{page}");
    assert!(page.contains("istio_agent_scrape_failures_total{type=\"application\"} 1\n"), "{page}");
    // Clients that say nothing keep nobody from the page.
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    let (answers, _) = tokio::join!(metrics(&options), tokio::time::sleep(Duration::from_millis(1)));
    assert!(answers.contains("\nenvoy_server_live"), "{answers}");
    drop(idle);
    agent.stop().await;
}

#[tokio::test]
async fn a_port_that_is_taken_keeps_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let options = control.agent(&folder.path().join("agent"), &[]);
    let _taken = TcpListener::bind(("0.0.0.0", options.status_port().unwrap())).await.unwrap();
    let agent = start(options.clone());
    status(&options.state, "readiness", |status| status.ready).await;
    agent.stop().await;
}

#[tokio::test]
async fn it_stays_open_while_another_agent_takes_over() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let options = control.agent(&folder.path().join("agent"), &[]);
    let first = start(options.clone());
    status(&options.state, "readiness", |status| status.ready).await;
    let before = metrics(&options).await;
    assert!(before.contains("istio_agent_scrapes_total 1\n"), "{before}");
    let second = start(options.clone());
    // The next agent counts for itself.
    until("the next agent's page", async || metrics(&options).await.contains("istio_agent_scrapes_total 1\n")).await;
    timeout(PATIENCE, first.ended).await.expect("the agent before ends").expect("no panic").expect("a clean end");
    assert!(metrics(&options).await.contains("\nenvoy_server_live"));
    second.stop().await;
}

#[tokio::test]
async fn further_roots_verify_peers_and_not_the_control_plane() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let other = tempfile::tempdir().unwrap();
    evenkeel_ca::Authority::open(other.path(), "other.test", std::time::SystemTime::now()).unwrap();
    let root = std::fs::read_to_string(other.path().join("ca-cert.pem")).unwrap();
    let config = serde_json::json!({ "caCertificatesPem": [root, "not PEM"] }).to_string();
    let options = control.agent(&folder.path().join("agent"), &["--proxy-config", &config]);
    let agent = start(options.clone());
    status(&options.state, "readiness", |status| status.ready).await;
    let body = root.lines().nth(1).unwrap();
    let secrets = sds::secrets(&options.state.join("sds.sock"), ["ROOTCA", "control-plane-roots"]).await;
    let has = |name: &str| secrets.iter().find(|secret| secret.starts_with(name)).map(|secret| secret.contains(body));
    assert_eq!(has("ROOTCA="), Some(true), "{secrets:?}");
    assert_eq!(has("control-plane-roots="), Some(false), "{secrets:?}");
    agent.stop().await;
}
