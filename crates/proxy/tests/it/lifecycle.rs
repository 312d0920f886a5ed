//! Ending: connections finish, files are written, nothing hangs.

use evenkeel_testkit::{Connection, eventually};

use crate::harness::{Proxy, answering, http_listener, http_listener_at};

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
