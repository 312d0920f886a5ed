//! Ending: connections finish, files are written, nothing hangs.

use std::time::Duration;

use evenkeel_testkit::wait::PATIENCE;
use evenkeel_testkit::{Backend, Connection, Reply, TcpEcho, eventually};

use crate::harness::{Proxy, answering, http_listener, http_listener_at, stat, static_bootstrap, static_cluster};

fn bootstrap() -> String {
    bootstrap_of(&http_listener("web", &answering("hello"), ""))
}

fn bootstrap_of(listener: &str) -> String {
    let indented = listener.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\nstatic_resources:\n  listeners:\n  -\n{indented}"
    )
}

#[test]
fn told_to_end_it_lets_open_connections_finish() {
    let proxy = Proxy::start(&bootstrap());
    proxy.wait_live();
    let web = proxy.listener("web");
    let mut connection = Connection::open(web).expect("it accepts");
    assert_eq!(connection.get("test", "/", "").expect("an answer").text(), "hello");
    // Half a request is under way when the end begins.
    connection.send("GET / HTTP/1.1\r\n").expect("it reads");
    let stopping = std::thread::spawn(move || proxy.stop());
    eventually("the listener to close", || std::net::TcpStream::connect(web).is_err().then_some(()));
    connection.send("host: test\r\n\r\n").expect("it reads");
    let response = connection.response().expect("the request under way is answered");
    assert_eq!(response.text(), "hello");
    assert!(!response.keeps_open(), "{response:?}");
    drop(connection);
    stopping.join().expect("no panic").expect("a clean end");
}

#[test]
fn what_is_cut_when_the_drain_is_over_has_its_log_line() {
    let hangs = Backend::start(|_| Reply::After(PATIENCE, Box::new(Reply::Close)));
    let echo = TcpEcho::start();
    let check = |listener: &dyn Fn(&str) -> String, sent: &str, active: &str, expected: &str| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("log");
        let access_log = format!(
            "access_log: [{{name: file, typed_config: {{\"@type\": \
             type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: {}, log_format: \
             {{text_format_source: {{inline_string: \"%RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% \
             %CONNECTION_TERMINATION_DETAILS% %BYTES_RECEIVED%\\n\"}}}}}}}}]",
            log.display()
        );
        let clusters = [static_cluster("hangs", hangs.address(), ""), static_cluster("echo", echo.address(), "")];
        let proxy = Proxy::start_as(&static_bootstrap(&listener(&access_log), &clusters), |settings| {
            settings.drain_time = Duration::from_millis(100);
        });
        proxy.wait_live();
        let mut connection = Connection::open(proxy.listener("web")).expect("it accepts");
        connection.send(sent).expect("it reads");
        eventually("it to be under way", || (stat(&proxy, active) == [1]).then_some(()));
        if active.starts_with("tcp") {
            connection.read_exact(sent.len()).expect("an echo");
        }
        proxy.stop().expect("a clean end");
        assert_eq!(std::fs::read_to_string(&log).expect("a log"), expected);
    };
    let http = |access_log: &str| {
        let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                      /}, route: {cluster: hangs}}]}]}";
        http_listener("web", &format!("{routes}\n      {access_log}"), "")
    };
    let tcp = |access_log: &str| {
        format!(
            "name: web\naddress: {{socket_address: {{address: 127.0.2.10, port_value: 0}}}}\nfilter_chains:\n- filters:\n  - \
             name: tcp\n    typed_config:\n      \"@type\": \
             type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy\n      stat_prefix: tcp\n      \
             cluster: echo\n      {access_log}\n"
        )
    };
    let request = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nhalf";
    check(&http, request, "cluster.hangs.upstream_rq_active", "DC downstream_local_disconnect - 4\n");
    check(&tcp, "hello", "tcp.tcp.downstream_cx_active", "- - connection_cut 5\n");
}

#[test]
fn an_admin_port_in_use_is_an_error_with_its_address() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = bootstrap().replacen("port_value: 0", &format!("port_value: {port}"), 1);
    let (_stop, stopped) = tokio::sync::oneshot::channel();
    let error = evenkeel_proxy::run_until(crate::harness::settings(&text, &folder, None), stopped).expect_err("in use");
    let expected = format!("cannot listen on the admin address 127.0.0.1:{port}: Address already in use");
    assert!(error.to_string().starts_with(&expected), "{error}");
}

#[test]
fn a_static_listener_whose_port_is_taken_is_an_error_with_its_name() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound");
    let text = bootstrap_of(&http_listener_at(address, "web", &answering("hello"), ""));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = crate::harness::settings(&text, &folder, None);
    let (_stop, stopped) = tokio::sync::oneshot::channel();
    let error = evenkeel_proxy::run_until(settings, stopped).expect_err("in use").to_string();
    assert!(error.starts_with(&format!("listener web: cannot bind {address}: Address already in use")), "{error}");
}
