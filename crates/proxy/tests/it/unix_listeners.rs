//! Listeners on Unix sockets: permissions, serving, and the life of the socket's file.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use evenkeel_testkit::{Backend, TcpEcho, eventually};
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use evenkeel_xds::{Resource, ResourceType};

use crate::harness::{
    ControlPlane, Proxy, dynamic_bootstrap, http_listener, resource, set, stat, static_bootstrap, static_cluster,
};

const ANSWER: &str = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                      /}, direct_response: {status: 200, body: {inline_string: here}}}]}]}";
const TO_WEB: &str = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                      /}, route: {cluster: web}}]}]}";

/// An HTTP listener on the socket at a path.
fn http_at(path: &Path, more: &str, routes: &str, manager: &str) -> String {
    let listener = http_listener("unix", routes, "");
    let address = listener.lines().find(|line| line.starts_with("address:")).expect("an address").to_owned();
    let pipe = format!("address: {{pipe: {{path: \"{}\"{more}}}}}", path.display());
    listener.replace(&address, &pipe).replace("      stat_prefix:", &format!("{manager}      stat_prefix:"))
}

/// The response to a request on a connection that stays open.
fn ask(stream: &mut UnixStream, method: &str, body: &str) -> std::io::Result<String> {
    let length = body.len();
    write!(stream, "{method} / HTTP/1.1\r\nhost: any.test\r\ncontent-length: {length}\r\n\r\n{body}")?;
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap_or(0);
        }
        head.push_str(&line);
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(format!("{} {}", head.split(' ').nth(1).unwrap_or_default(), String::from_utf8_lossy(&body)))
}

fn answered(path: &Path) -> Option<String> {
    ask(&mut UnixStream::connect(path).ok()?, "GET", "").ok()
}

#[test]
fn requests_and_bytes_pass_and_logs_name_the_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let (web, tcp, log) = (folder.path().join("web"), folder.path().join("tcp"), folder.path().join("log"));
    let (backend, echo) = (Backend::echo("web"), TcpEcho::start());
    let format = "%DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %RESPONSE_CODE%\\n";
    let logged = format!(
        "      access_log: [{{name: file, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: \"{}\", log_format: \
         {{text_format_source: {{inline_string: \"{format}\"}}}}}}}}]\n",
        log.display()
    );
    let bytes = format!(
        "name: tcp\naddress: {{pipe: {{path: \"{}\", mode: 384}}}}\nfilter_chains: [{{filters: [{{name: tcp, typed_config: \
         {{\"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, \
         cluster: echo}}}}]}}]\n",
        tcp.display()
    );
    let http = http_at(&web, "", TO_WEB, &logged);
    let indented: String = bytes.lines().map(|line| format!("    {line}\n")).collect();
    let clusters = [static_cluster("web", backend.address(), ""), static_cluster("echo", echo.address(), "")];
    let text = static_bootstrap(&http, &clusters);
    let text = text.replacen("  listeners:\n", &format!("  listeners:\n  -\n{indented}"), 1);
    let proxy = Proxy::start(&text);
    proxy.wait_live();
    let mut stream = UnixStream::connect(&web).expect("it listens");
    for _ in 0..3 {
        assert!(ask(&mut stream, "GET", "").expect("an answer").starts_with("200"));
    }
    assert!(ask(&mut stream, "POST", &"x".repeat(300_000)).expect("an answer").starts_with("200"));
    let line = eventually("the log", || std::fs::read_to_string(&log).ok()?.lines().next().map(str::to_owned));
    assert_eq!(line, format!("{} - 200", web.display()));
    let mode = std::fs::metadata(&tcp).expect("the socket").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let mut stream = UnixStream::connect(&tcp).expect("it listens");
    let sent = vec![7; 200_000];
    let mut writing = stream.try_clone().expect("a socket");
    let copy = sent.clone();
    let writer = std::thread::spawn(move || {
        writing.write_all(&copy).expect("open");
        writing.shutdown(std::net::Shutdown::Write).expect("open");
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("open");
    writer.join().expect("written");
    assert!(received == sent, "{} bytes", received.len());
    let listeners = proxy.json("/listeners?format=json");
    let text = listeners.to_string();
    assert!(text.contains(&format!("{{\"pipe\":{{\"path\":\"{}\"}}}}", web.display())), "{text}");
    let stats = proxy.get("/stats").text();
    let of = format!("listener.{}.downstream_cx_total: 1", web.display());
    assert!(stats.lines().any(|line| line == of), "{of}: {stats}");
}

fn listener(path: &Path, more: &str) -> Arc<Resource> {
    resource::<Listener>("unix", &http_at(path, more, ANSWER, ""))
}

#[test]
fn the_file_lives_as_long_as_the_listener() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    // What an ended process has left is replaced.
    drop(UnixListener::bind(&first).expect("bound"));
    let mut control = ControlPlane::start(set(vec![(ResourceType::Listener, listener(&first, ""))]));
    let proxy = Proxy::start(&dynamic_bootstrap(control.address, "DELTA_GRPC", ""));
    let here = Some("200 here".to_owned());
    eventually("the first", || (answered(&first) == here).then_some(()));
    // Other permissions, on the same socket.
    control.change(|set| set.insert(ResourceType::Listener, listener(&first, ", mode: 432")));
    let mode = |path: &Path| Some(std::fs::metadata(path).ok()?.permissions().mode() & 0o777);
    eventually("permissions", || (mode(&first) == Some(0o660)).then_some(()));
    assert_eq!(answered(&first), here);
    // It moves to where another process listens, and gets it when that one has ended.
    let other = UnixListener::bind(&second).expect("bound");
    control.change(|set| set.insert(ResourceType::Listener, listener(&second, "")));
    eventually("the first is removed", || (!first.exists()).then_some(()));
    assert!(second.exists());
    drop(other);
    eventually("the second", || (answered(&second) == here).then_some(()));
    control.change(|set| _ = set.remove(ResourceType::Listener, "unix"));
    eventually("the second is removed", || (!second.exists()).then_some(()));
    // A folder that comes later.
    let late = folder.path().join("late").join("socket");
    let failures = || stat(&proxy, "listener_create_failure").iter().sum::<u64>();
    let before = failures();
    control.change(|set| set.insert(ResourceType::Listener, listener(&late, "")));
    eventually("a failed attempt", || (failures() > before).then_some(()));
    std::fs::create_dir(late.parent().expect("a folder")).expect("created");
    eventually("the late one", || (answered(&late) == here).then_some(()));
    drop(proxy);
}

#[test]
fn a_successor_serves_the_same_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, meeting) = (folder.path().join("web"), folder.path().join("handover"));
    let text = static_bootstrap(&http_at(&path, "", ANSWER, ""), &[]);
    let start = || {
        let proxy = Proxy::start_as(&text, |settings| settings.handover = Some(meeting.clone()));
        proxy.wait_live();
        proxy
    };
    let first = start();
    let mut kept = UnixStream::connect(&path).expect("it listens");
    assert_eq!(ask(&mut kept, "GET", "").expect("an answer"), "200 here");
    let second = start();
    eventually("the first ends", || first.has_ended().then_some(()));
    assert_eq!(answered(&path), Some("200 here".to_owned()));
    // The connection is served on by the successor.
    assert_eq!(ask(&mut kept, "GET", "").expect("an answer"), "200 here");
    drop(second);
}
