//! A client that shuts down its sending direction of an HTTP/1 connection and waits for its responses, and one that has
//! disconnected.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use evenkeel_testkit::{Backend, Connection, Reply, eventually};

use crate::harness::{Proxy, http_listener, stat, static_bootstrap, static_cluster};

const ROUTES: &str = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, \
                      route: {cluster: slow}}]}]}";

/// A proxy before a backend that answers with the request's path, after a while.
fn stage(after: Duration) -> (Proxy, Backend) {
    let backend = Backend::start(move |request| Reply::After(after, Box::new(Reply::text(request.target.clone()))));
    let clusters = [static_cluster("slow", backend.address(), "")];
    let proxy = Proxy::start(&static_bootstrap(&http_listener("web", ROUTES, ""), &clusters));
    proxy.wait_live();
    (proxy, backend)
}

/// What a client gets that sends `requests` and then its end.
fn answers(requests: &[&str]) -> Vec<(u16, String, bool)> {
    let (proxy, _backend) = stage(Duration::from_millis(50));
    let mut connection = Connection::open(proxy.listener("web")).expect("it accepts");
    connection.send(requests.concat()).expect("it reads");
    connection.finish_sending().expect("it is open");
    let answer = |connection: &mut Connection| {
        let response = connection.response().ok()?;
        Some((response.status, response.text(), response.keeps_open()))
    };
    std::iter::from_fn(|| answer(&mut connection)).collect()
}

#[test]
fn who_waits_gets_all_answers() {
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
    let post = "POST /post HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nbody";
    let check = |requests: &[&str], expected: &[(&str, bool)]| {
        let expected: Vec<_> = expected.iter().map(|(path, keeps)| (200, (*path).to_owned(), *keeps)).collect();
        assert_eq!(answers(requests), expected, "{requests:?}");
    };
    check(&[&get("/one")], &[("/one", false)]);
    check(&[post], &[("/post", false)]);
    check(&[&get("/one"), post, &get("/two")], &[("/one", true), ("/post", true), ("/two", false)]);
    // What is no request gets none; the one before it does.
    check(&[&get("/one"), "POST /cut HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nhalf"], &[("/one", true)]);
}

#[test]
fn who_has_left_is_not_waited_for() {
    let (proxy, _backend) = stage(Duration::from_secs(60));
    let mut connection = Connection::open(proxy.listener("web")).expect("it accepts");
    connection.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").expect("it reads");
    eventually("the request to be under way", || {
        (stat(&proxy, "cluster.slow.upstream_rq_active") == [1]).then_some(())
    });
    drop(connection);
    eventually("the request to end", || (stat(&proxy, "cluster.slow.upstream_rq_active") == [0]).then_some(()));
    let counted = || (stat(&proxy, "http.web.downstream_rq_rx_reset") == [1]).then_some(());
    eventually("it to be counted", counted);
}

/// Behind what its client has sent and nobody reads yet: requests in advance, or a body that an upstream does not take.
#[test]
fn who_has_left_behind_unread_bytes_is_not_waited_for() {
    type Leave = fn(TcpStream);
    let leaves: [Leave; 2] = [drop, |client| {
        socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("an option");
    }];
    let in_advance = "GET /next HTTP/1.1\r\nhost: test\r\n\r\n".repeat(1500);
    // Not even the client's end has room behind this.
    let body = format!("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 900000000\r\n\r\n{}", "x".repeat(32 << 20));
    for (what, bytes) in [("requests", &in_advance), ("a body", &body)] {
        for leave in leaves {
            // Its backlog takes connections, and nobody reads them.
            let deaf = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
            let (_slow, address) = match what {
                "requests" => {
                    let slow = Backend::start(|_| Reply::After(Duration::from_secs(60), Box::new(Reply::text("late"))));
                    let address = slow.address();
                    (Some(slow), address)
                }
                _ => (None, deaf.local_addr().expect("an address")),
            };
            let bootstrap = static_bootstrap(&http_listener("web", ROUTES, ""), &[static_cluster("slow", address, "")]);
            let proxy = Proxy::start(&bootstrap);
            proxy.wait_live();
            let mut client = Connection::socket(proxy.listener("web")).expect("it accepts");
            client.set_write_timeout(Some(Duration::from_millis(500))).expect("an option");
            // What is too much for all buffers is cut off there.
            let _ = client.write_all(bytes.as_bytes());
            eventually(&format!("{what} to be under way"), || {
                (stat(&proxy, "cluster.slow.upstream_rq_active") == [1]).then_some(())
            });
            leave(client);
            eventually(&format!("the request with {what} to end"), || {
                (stat(&proxy, "cluster.slow.upstream_rq_active") == [0]).then_some(())
            });
            assert_eq!(stat(&proxy, "http.web.downstream_rq_active"), [0], "{what}");
        }
    }
}

#[test]
fn who_waits_behind_many_requests_gets_all_answers() {
    const REQUESTS: usize = 1500;
    let (proxy, _backend) = stage(Duration::ZERO);
    let client = Connection::socket(proxy.listener("web")).expect("it accepts");
    let mut sender = client.try_clone().expect("a descriptor");
    let sending = std::thread::spawn(move || {
        let requests = "GET /next HTTP/1.1\r\nhost: test\r\n\r\n".repeat(REQUESTS);
        sender.write_all(requests.as_bytes()).expect("it reads");
        sender.shutdown(Shutdown::Write).expect("it is open");
    });
    let mut client = Connection::over(client.try_clone().expect("a descriptor"), client);
    let answers = std::iter::from_fn(|| client.response().ok()).filter(|answer| answer.text() == "/next").count();
    sending.join().expect("no panic");
    assert_eq!(answers, REQUESTS);
}
