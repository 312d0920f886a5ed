//! Upstreams on Unix sockets: by path, and in the abstract namespace.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread;

use evenkeel_testkit::free_port;

use crate::harness::{Proxy, get, http_listener, static_bootstrap};

/// Answers every request with `text`.
fn serve(listener: UnixListener, text: &'static str) {
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut head = [0; 4096];
                while stream.read(&mut head).is_ok_and(|count| count > 0) {
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

fn proxy(path: &str) -> Proxy {
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                  /}, route: {cluster: app}}]}]}";
    let cluster = format!(
        "{{name: app, type: STATIC, connect_timeout: 5s, load_assignment: {{cluster_name: app, endpoints: [{{lb_endpoints: \
         [{{endpoint: {{address: {{pipe: {{path: \"{path}\"}}}}}}}}]}}]}}}}"
    );
    let proxy = Proxy::start(&static_bootstrap(&http_listener("unix", routes, ""), &[cluster]));
    proxy.wait_live();
    proxy
}

#[test]
fn requests_go_to_a_socket_by_its_path_or_its_abstract_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("app.sock");
    serve(UnixListener::bind(&path).expect("bound"), "by path");
    // The port makes the name the test's own.
    let name = format!("evenkeel-test-{}", free_port());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    serve(UnixListener::bind_addr(&address).expect("bound"), "by name");
    let regular = folder.path().join("file");
    std::fs::write(&regular, "").expect("written");
    for (path, expected) in [
        (path.display().to_string(), (200, "by path")),
        (format!("@{name}"), (200, "by name")),
        (regular.display().to_string(), (503, "Connection refused")),
        (folder.path().join("none").display().to_string(), (503, "No such file or directory")),
    ] {
        let proxy = proxy(&path);
        let response = get(proxy.listener("unix"), "/");
        assert_eq!(response.status, expected.0, "{path}");
        assert!(response.text().contains(expected.1) || expected.0 == 503, "{path}: {}", response.text());
    }
}
