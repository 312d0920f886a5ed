//! What a change of the configuration does to connections that no worker has seen yet.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Barrier;

use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_tls::SecretStore;
use evenkeel_xds::json::read_text;
use evenkeel_xds::{Schema, pb};

use super::*;
use crate::access_log::{FlushOptions, LogThread};
use crate::worker::{Delivery, Worker};

const LISTENER: &str = r#"
name: web
address: {socket_address: {address: 127.0.13.1, port_value: 0}}
filter_chains:
- filters:
  - name: web
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: web
      route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 204}}]}]}
      http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
"#;

fn with_listener(yaml: &str) -> Builder {
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    let read = read_text::<pb::envoy::config::listener::v3::Listener>(&Schema::acquire(), "test.yaml", yaml);
    builder.set_listener(&evenkeel_xds::pack(&read.message.expect("a listener"))).expect("a usable listener");
    builder
}

/// A pool of one worker.
fn start(log: &LogThread) -> WorkerPool {
    let options = WorkerOptions {
        concurrency: 1,
        inherited: Vec::new(),
        overload: Arc::default(),
        handed: Vec::new(),
        log: log.handle(),
        node: Arc::default(),
        drain_time: Duration::from_secs(5),
        listener_drain_time: Duration::from_secs(5),
        recent: recent::Options::default(),
    };
    WorkerPool::start(options, Arc::default()).expect("a pool")
}

/// Keeps a worker busy until the test says so.
#[derive(Debug)]
struct Busy(Arc<Barrier>);

impl Delivery for Busy {
    fn serve(self: Box<Self>, _: &Rc<Worker>) {
        self.0.wait();
        self.0.wait();
    }
}

/// Says of how many listeners a worker keeps statistics.
#[derive(Debug)]
struct CountListeners(std::sync::mpsc::Sender<usize>);

impl Delivery for CountListeners {
    fn serve(self: Box<Self>, worker: &Rc<Worker>) {
        _ = self.0.send(worker.generation().listener_count());
    }
}

#[test]
fn connections_in_the_queue_of_a_removed_listener_are_served() {
    let mut builder = with_listener(LISTENER);
    let log = LogThread::start(FlushOptions::default()).expect("a thread");
    let pool = start(&log);
    assert!(pool.apply(&builder.build()).is_some_and(|errors| errors.is_empty()), "it is bound");
    let [bound] = &*pool.listeners() else { panic!("one listener") };
    let address = bound.address.socket().expect("an address");

    let barrier = Arc::new(Barrier::new(2));
    pool.workers[0].tell(Message::Deliver(Box::new(Busy(Arc::clone(&barrier)))));
    barrier.wait();
    let mut clients: Vec<TcpStream> =
        (0..10).map(|_| TcpStream::connect(address).expect("the kernel accepts")).collect();
    for client in &mut clients {
        client.write_all(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").expect("room");
    }
    builder.remove_listener("web");
    assert!(pool.apply(&builder.build()).is_some_and(|errors| errors.is_empty()));
    barrier.wait();
    for mut client in clients {
        client.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer, and no reset");
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer:?}");
    }
    let (count, counted) = std::sync::mpsc::channel();
    pool.workers[0].tell(Message::Deliver(Box::new(CountListeners(count))));
    assert_eq!(counted.recv(), Ok(0), "nothing is kept of a listener that is gone");
}

#[test]
fn a_change_of_clusters_alone_leaves_sockets_and_their_errors_as_they_are() {
    let taken = std::net::TcpListener::bind("127.0.13.2:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let port = address.port();
    let yaml = LISTENER.replace("127.0.13.1, port_value: 0", &format!("127.0.13.2, port_value: {port}"));
    let mut builder = with_listener(&yaml);
    let log = LogThread::start(FlushOptions::default()).expect("a thread");
    let pool = start(&log);
    let failed = |errors: &[BindError]| errors.iter().map(|error| error.listener.to_string()).collect::<Vec<_>>();

    let errors = pool.apply(&builder.build()).expect("a listener has come");
    assert_eq!(failed(&errors), ["web"], "its port is taken");
    let cluster = "{name: other, type: STATIC, load_assignment: {cluster_name: other}}";
    let read = read_text::<pb::envoy::config::cluster::v3::Cluster>(&Schema::acquire(), "test.yaml", cluster);
    builder.set_cluster(&evenkeel_xds::pack(&read.message.expect("a cluster"))).expect("a usable cluster");
    let config = builder.build();
    assert!(config.clusters.contains_key("other"));
    assert!(pool.apply(&config).is_none(), "no listener has changed");
    assert_eq!(failed(&pool.retry_listeners()), ["web"], "it is still to be bound");
    drop(taken);
    assert_eq!(failed(&pool.retry_listeners()), [""; 0]);
    assert_eq!(pool.listeners().len(), 1);
}
