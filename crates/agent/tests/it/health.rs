//! Health checks of a workload over real sockets and processes, and their reports to a control plane.

use std::net::TcpListener;
use std::time::Duration;

use evenkeel_agent::health::{Prober, ReadinessProbe};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::{ControlPlane, PATIENCE, eventually, start};

fn prober(probe: &Value) -> Result<Prober, String> {
    let config = json!({ "readinessProbe": probe });
    let config = config.as_object().expect("an object");
    let probe = ReadinessProbe::of(config).map_err(|error| error.to_string())?.expect("a probe");
    Prober::new(&probe, None)
}

/// Checks once; `None`: it has no result within a second.
async fn ask(probe: &Value) -> Option<Result<(), String>> {
    let prober = prober(probe).expect("a check");
    timeout(Duration::from_secs(1), prober.ask()).await.ok()
}

/// A server that sends every client these bytes, and nothing if there are none.
async fn server(answer: &'static str) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let mut request = [0; 1024];
            if !answer.is_empty() && client.read(&mut request).await.is_ok() {
                _ = client.write_all(answer.as_bytes()).await;
            }
            open.push(client);
        }
    });
    port
}

#[tokio::test]
async fn http_and_tcp() {
    let check = async |probe: Value, expected: &str| {
        let shown = match ask(&probe).await {
            None => "hangs".to_owned(),
            Some(Ok(())) => "healthy".to_owned(),
            Some(Err(reason)) => reason,
        };
        assert!(shown.contains(expected), "{probe}: {shown}");
    };
    let get =
        |port: u16| json!({ "httpGet": { "port": port, "path": "/ok", "httpHeaders": [{"name": "a", "value": "b"}] } });
    check(get(server("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await), "healthy").await;
    check(get(server("HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n").await), "healthy").await;
    check(get(server("HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await), "/ok: answers 503").await;
    // The body is not waited for, however long it is.
    check(get(server("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\nx").await), "healthy").await;
    check(get(server("what?\r\n\r\n").await), "GET localhost:").await;
    let silent = server("").await;
    check(get(silent), "hangs").await;
    check(json!({ "tcpSocket": { "port": silent } }), "healthy").await;
    check(json!({ "grpc": { "port": silent } }), "hangs").await;
    check(json!({ "httpGet": { "port": silent, "scheme": "HTTPS" } }), "hangs").await;

    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    check(json!({ "tcpSocket": { "port": closed, "host": "127.0.0.1" } }), "TCP 127.0.0.1:").await;
    check(json!({ "grpc": { "port": closed } }), "gRPC localhost:").await;
    check(json!({ "tcpSocket": { "port": closed, "host": "nowhere.invalid" } }), "TCP nowhere.invalid").await;
}

#[tokio::test]
async fn commands() {
    let run = |command: &[&str]| json!({ "exec": { "command": command } });
    let check = async |command: &[&str], expected: Option<&str>| {
        let result = ask(&run(command)).await.expect("a result");
        match expected {
            None => assert_eq!(result, Ok(()), "{command:?}"),
            Some(text) => {
                assert!(result.as_ref().is_err_and(|reason| reason.contains(text)), "{command:?}: {result:?}")
            }
        }
    };
    check(&["true"], None).await;
    check(&["sh", "-c", "exit 3"], Some("command sh: exit status: 3")).await;
    check(&["/nonexistent/program"], Some("command /nonexistent/program: No such file")).await;

    // One that hangs, and one that prints for ever: they end with the check, and what they have started does, too.
    let folder = tempfile::tempdir().expect("a directory");
    for body in ["sleep 1000", "yes"] {
        let file = folder.path().join(body.split(' ').next().unwrap_or_default());
        let script = format!("{body} & echo $! > {}; wait", file.display());
        assert_eq!(ask(&run(&["sh", "-c", &script])).await, None, "{body}");
        let process = std::fs::read_to_string(&file).expect("its process id").trim().to_owned();
        let ended = || {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            (stat.is_empty() || stat.contains(") Z ")).then_some(())
        };
        eventually("the end of what it started", ended).await;
    }
}

#[tokio::test]
async fn probes_that_make_no_sense_are_named() {
    let check = |probe: Value, expected: &str| {
        let refused = prober(&probe).expect_err("refused");
        assert!(refused.contains(expected), "{probe}: {refused}");
    };
    check(json!({}), "readinessProbe has no check");
    check(json!({ "exec": { "command": [] } }), "exec.command is empty");
    check(json!({ "httpGet": { "port": 80, "scheme": "FTP" } }), "`FTP` is neither HTTP nor HTTPS");
    check(json!({ "httpGet": { "port": 80, "httpHeaders": [{ "name": "a b", "value": "" }] } }), "httpHeaders");
    check(json!({ "httpGet": { "port": 80, "path": "/a b" } }), "httpGet.path");
    check(json!({ "tcpSocket": {} }), "port");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_health_are_reported() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut plane = ControlPlane::start(folder.path()).await;
    let file = folder.path().join("healthy");
    let probe = json!({ "exec": { "command": ["test", "-e", file] }, "periodSeconds": 1 });
    let config = json!({ "readinessProbe": probe }).to_string();
    let agent = start(plane.agent(&folder.path().join("agent"), &["--proxy-config", &config]));
    let mut next = async || timeout(PATIENCE, plane.health.recv()).await.expect("a report in time").expect("a stream");
    let first = next().await;
    assert!(first.is_err(), "{first:?}");
    std::fs::write(&file, "").expect("a file");
    assert_eq!(next().await, Ok(()));
    std::fs::remove_file(&file).expect("a removed file");
    let reason = next().await.expect_err("unhealthy");
    assert_eq!(reason, "command test: exit status: 1");
    agent.stop().await;
}
