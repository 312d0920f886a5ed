//! The TCP proxy: what counts as idle, and what becomes of a connection that is.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use evenkeel_testkit::{Connection, eventually};

use crate::harness::{Proxy, stat, static_bootstrap, static_cluster};

/// Far longer than a busy machine holds up a test between two bytes.
const IDLE: Duration = Duration::from_millis(1500);

fn bootstrap(upstream: &TcpListener) -> String {
    let listener = format!(
        r#"
name: tcp
address: {{socket_address: {{address: 127.0.2.1, port_value: 0}}}}
filter_chains:
- filters:
  - name: envoy.filters.network.tcp_proxy
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: tcp
      cluster: backend
      idle_timeout: {}s
"#,
        IDLE.as_secs_f64()
    );
    static_bootstrap(&listener, &[static_cluster("backend", upstream.local_addr().expect("bound"), "")])
}

/// A client of the proxy and the connection that the proxy made for it.
fn open(proxy: &Proxy, upstream: &TcpListener) -> (TcpStream, TcpStream) {
    let client = Connection::socket(proxy.listener("tcp")).expect("it accepts");
    let (host, _) = upstream.accept().expect("the proxy connects");
    host.set_read_timeout(client.read_timeout().expect("set")).expect("a socket");
    (client, host)
}

fn pass(from: &mut TcpStream, to: &mut TcpStream) {
    let mut byte = [0];
    from.write_all(b"x").expect("the proxy reads");
    to.read_exact(&mut byte).expect("the proxy writes");
    assert_eq!(&byte, b"x");
}

fn assert_closed(side: &mut TcpStream) {
    assert_eq!(side.read(&mut [0; 16]).expect("an end in order"), 0);
}

#[test]
fn an_idle_connection_is_closed_on_both_sides() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = Proxy::start(&bootstrap(&upstream));
    proxy.wait_live();
    let (mut client, mut host) = open(&proxy, &upstream);
    let last_byte = Instant::now();
    pass(&mut client, &mut host);
    assert_closed(&mut client);
    assert_closed(&mut host);
    assert!(last_byte.elapsed() >= IDLE, "closed after {:?}", last_byte.elapsed());
    eventually("the timeout to be counted", || (stat(&proxy, "tcp.tcp.idle_timeout") == [1]).then_some(()));
    eventually("no connection", || (stat(&proxy, "tcp.tcp.downstream_cx_active") == [0]).then_some(()));
}

#[test]
fn bytes_in_one_direction_keep_a_connection_until_they_stop() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = Proxy::start(&bootstrap(&upstream));
    proxy.wait_live();
    let (client, host) = open(&proxy, &upstream);
    let other = open(&proxy, &upstream);
    let one_way = |mut from: TcpStream, mut to: TcpStream| {
        let started = Instant::now();
        eventually("more than two idle times to pass", || {
            pass(&mut from, &mut to);
            (started.elapsed() > 2 * IDLE + IDLE / 2).then_some(())
        });
        assert_closed(&mut from);
        assert_closed(&mut to);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| one_way(client, host));
        scope.spawn(|| one_way(other.1, other.0));
    });
    eventually("both timeouts to be counted", || (stat(&proxy, "tcp.tcp.idle_timeout") == [2]).then_some(()));
}
