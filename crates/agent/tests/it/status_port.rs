//! The agent's page: readiness, and metrics of the proxy and the program.

use evenkeel_agent::Options;
use evenkeel_testkit::{Backend, Reply};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::sds;
use crate::support::{ControlPlane, PATIENCE, Running, ask, eventually, eventually_asked, start, status};

/// The status code that a request is answered with.
async fn status_of(port: u16, request: &str) -> u16 {
    let (head, _) = ask(port, request).await;
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Starts an agent with these settings, and waits until it is ready.
async fn ready(options: &Options) -> Running {
    let agent = start(options.clone());
    status(&options.state, "readiness", |status| status.ready).await;
    agent
}

async fn metrics(options: &Options) -> String {
    // What Prometheus says of its patience.
    let patience = "x-prometheus-scrape-timeout-seconds: 0.5";
    let (head, page) = ask(options.status_port().unwrap(), &format!("GET /stats/prometheus\n{patience}")).await;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    format!("\n{page}")
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
        let agent = ready(&options).await;
        let page = metrics(&options).await;
        for line in ["\njobs_total 7\n", "\nenvoy_server_live", "\nistio_agent_scrapes_total 1\n"] {
            assert!(page.contains(line), "{name}: {line:?} not in\n{page}");
        }
        assert!(page.contains("istio_agent_scrape_failures_total{type=\"application\"} 0\n"), "{page}");
        let port = options.status_port().unwrap();
        let is_ready = async || (status_of(port, "GET /healthz/ready").await == 200).then_some(());
        eventually_asked("readiness", is_ready).await;
        for (request, expected) in [
            ("HEAD /healthz/ready", 200),
            ("POST /stats/prometheus", 405),
            ("GET /quitquitquit", 404),
            ("GET http://localhost/stats/prometheus?filter=x", 200),
        ] {
            assert_eq!(status_of(port, request).await, expected, "{name}: {request}");
        }
        agent.stop().await;
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err(), "{name}: the page is still there");
    }
}

/// Several programs are on the page, in their order, with one end mark; one that fails is counted, and the others stay.
#[tokio::test]
async fn pages_of_several_programs_are_on_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let open_metrics = |text: &'static str| {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        Backend::start(move |_| Reply::Fixed(200, vec![("content-type".into(), kind.into())], text.into()))
    };
    let (first, second) = (open_metrics("a_total 1\n# EOF\n"), open_metrics("b_total 2\n# EOF\n"));
    // It accepts, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ports = [second.address().port(), silent.local_addr().unwrap().port(), first.address().port()];
    let [b, none, a] = ports.map(|port| format!(r#"{{"port":"{port}","path":"/x"}}"#));
    let mut options = control.agent(&folder.path().join("agent"), &[]);
    let annotations = format!(r#"{{"targets":[{b},{none},{a}]}}"#);
    options.environment.push(("ISTIO_PROMETHEUS_ANNOTATIONS".to_owned(), annotations));
    let agent = ready(&options).await;
    let request =
        "GET /stats/prometheus\naccept: application/openmetrics-text\nx-prometheus-scrape-timeout-seconds: 0.5";
    let (_, page) = ask(options.status_port().unwrap(), request).await;
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text:?} in {page}"));
    assert!(at("envoy_server_live") < at("b_total 2\n") && at("b_total 2\n") < at("a_total 1\n"), "{page}");
    assert!(page.contains("istio_agent_scrape_failures_total{type=\"application\"} 1\n"), "{page}");
    assert!(page.ends_with("# EOF\n") && page.matches("# EOF").count() == 1, "{page}");
    agent.stop().await;
}

#[tokio::test]
async fn what_does_not_answer_is_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    // It accepts, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = control.agent(&folder.path().join("agent"), &[]);
    scraped(&mut options, silent.local_addr().unwrap().port(), "/metrics");
    let agent = ready(&options).await;
    let page = metrics(&options).await;
    assert!(page.contains("\nenvoy_server_live"), "{page}");
    assert!(page.contains("istio_agent_scrape_failures_total{type=\"application\"} 1\n"), "{page}");
    // Clients that say nothing keep nobody from the page.
    let port = options.status_port().unwrap();
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    let page = metrics(&options).await;
    assert!(page.contains("\nenvoy_server_live"), "{page}");
    drop(idle);
    agent.stop().await;
}

#[tokio::test]
async fn clients_that_do_not_read_hold_two_pages_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    // More than the sockets' buffers hold.
    let page = format!("jobs_total 7\n{}", "# filling\n".repeat(2 << 20));
    let program = Backend::start(move |_| Reply::text(page.clone()));
    let mut options = control.agent(&folder.path().join("agent"), &[]);
    scraped(&mut options, program.address().port(), "/metrics");
    let agent = ready(&options).await;
    let port = options.status_port().unwrap();
    let mut lazy = Vec::new();
    for last in 2..7 {
        let scrape = "GET /stats/prometheus HTTP/1.1\r\nhost: localhost\r\n\r\n";
        lazy.push(from([127, 0, 0, last], port, scrape).await);
    }
    eventually("two scrapes", || (program.requests().len() == 2).then_some(())).await;
    assert_eq!(status_of(port, "GET /healthz/ready").await, 200);
    assert_eq!(program.requests().len(), 2, "the others wait");
    drop(lazy);
    // On a busy machine the page takes longer than a scrape may.
    let whole = async || metrics(&options).await.contains("\njobs_total 7\n").then_some(());
    eventually_asked("the page of another client", whole).await;
    agent.stop().await;
}

/// A connection from this address of the loopback.
async fn from(address: [u8; 4], port: u16, sent: &str) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    let mut stream = socket.connect(([127, 0, 0, 1], port).into()).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    stream
}

/// Connections of one address, idle or with pages that it does not read, keep no other one from the page.
#[tokio::test]
async fn nobody_keeps_others_from_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let program = Backend::start(|_| Reply::text("a 1\n".repeat(8 << 20)));
    let mut options = control.agent(folder.path(), &[]);
    scraped(&mut options, program.address().port(), "/");
    let _agent = ready(&options).await;
    let port = options.status_port().unwrap();
    let scrape = "GET /stats/prometheus HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for sent in ["", "GET /heal", scrape] {
        let mut held = Vec::new();
        for _ in 0..100 {
            held.push(from([127, 0, 0, 2], port, sent).await);
        }
        assert_eq!(timeout(PATIENCE, status_of(port, "GET /healthz/ready")).await.unwrap(), 200, "{sent:?}");
        let page = timeout(PATIENCE, ask(port, "GET /stats/prometheus")).await.expect("the page of another address");
        assert!(page.0.starts_with("HTTP/1.1 200 OK"), "{sent:?}: {}", page.0);
    }
}

#[tokio::test]
async fn a_port_that_is_taken_keeps_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let options = control.agent(&folder.path().join("agent"), &[]);
    let _taken = TcpListener::bind(("0.0.0.0", options.status_port().unwrap())).await.unwrap();
    let agent = ready(&options).await;
    agent.stop().await;
    // Nor does the agent take what the proxy needs.
    for port in [Options::admin_port, |options: &Options| options.readiness_port] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = control.agent(&folder.path().join("agent"), &[]);
        options.status_port = Some(port(&options));
        let agent = ready(&options).await;
        assert_eq!(status_of(options.readiness_port, "GET /healthz/ready").await, 200);
        agent.stop().await;
    }
}

#[tokio::test]
async fn it_stays_open_while_another_agent_takes_over() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let options = control.agent(&folder.path().join("agent"), &[]);
    let first = ready(&options).await;
    let before = metrics(&options).await;
    assert!(before.contains("istio_agent_scrapes_total 1\n"), "{before}");
    let second = start(options.clone());
    // The next agent counts for itself.
    let counts_anew = async || metrics(&options).await.contains("istio_agent_scrapes_total 1\n").then_some(());
    eventually_asked("the next agent's page", counts_anew).await;
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
    let agent = ready(&options).await;
    let body = root.lines().nth(1).unwrap();
    let secrets = sds::secrets(&options.state.join("sds.sock"), ["ROOTCA", "control-plane-roots"]).await;
    let has = |name: &str| secrets.iter().find(|secret| secret.starts_with(name)).map(|secret| secret.contains(body));
    assert_eq!(has("ROOTCA="), Some(true), "{secrets:?}");
    assert_eq!(has("control-plane-roots="), Some(false), "{secrets:?}");
    agent.stop().await;
}

/// What kubelet asks the agent, and what the program then says.
#[tokio::test]
async fn probes_of_programs_are_made_by_the_agent() {
    let folder = tempfile::tempdir().unwrap();
    let control = ControlPlane::start(folder.path()).await;
    let program = Backend::start(|request| match request.target.as_str() {
        "/healthy"
            if request.headers.iter().any(|(name, value)| name.eq_ignore_ascii_case("x-probe") && value == "yes") =>
        {
            Reply::text("fine")
        }
        _ => Reply::Close,
    });
    let port = program.address().port();
    let table = format!(
        r#"{{"/app-health/web/readyz": {{"httpGet": {{"path": "/healthy", "port": {port},
              "httpHeaders": [{{"name": "X-Probe", "value": "yes"}}]}}, "timeoutSeconds": 5}},
            "/app-health/web/livez": {{"httpGet": {{"path": "/sick", "port": {port}}}}},
            "/app-health/web/startupz": {{"tcpSocket": {{"port": {port}}}}}}}"#
    );
    let mut options = control.agent(&folder.path().join("agent"), &[]);
    options.environment.push(("ISTIO_KUBE_APP_PROBERS".to_owned(), table));
    let agent = ready(&options).await;
    let page = options.status_port().unwrap();
    for (path, expected) in [
        ("/app-health/web/readyz", 200),
        ("/app-health/web/livez", 500),
        ("/app-health/web/startupz", 200),
        ("/app-health/web/other", 404),
        ("/app-health/../healthy", 404),
    ] {
        assert_eq!(status_of(page, &format!("GET {path}")).await, expected, "{path}");
    }
    agent.stop().await;
}
