//! Hosts that close idle connections just when a request is sent: no request that may be repeated fails for that, and none is
//! ever executed twice.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use evenkeel_testkit::tls::{TlsConnection, TlsServer};
use evenkeel_testkit::wait::PATIENCE;
use evenkeel_testkit::{Connection, Random, TestCa};

use crate::harness::{Proxy, http_listener, static_bootstrap, static_cluster};

/// Clients, and the requests of each.
const CLIENTS: u64 = 8;
const REQUESTS: u32 = 250;
/// How long the host keeps an idle connection, and how long a client thinks, in milliseconds.
const IDLE_MILLIS: std::ops::Range<u64> = 40..60;
const THINK_MILLIS: std::ops::Range<u64> = 0..12;
/// Once in so many answers the host closes behind one at once, without a word.
const CLOSES_AT_ONCE: usize = 7;

/// A time in this range.
fn within(millis: &std::ops::Range<u64>, random: &mut Random) -> Duration {
    Duration::from_millis(millis.start + random.bits() % (millis.end - millis.start))
}

/// What the host did.
#[derive(Default)]
struct Seen {
    /// How often each request was carried out.
    done: Mutex<BTreeMap<String, u32>>,
    /// Requests that had arrived when it closed, and that it did not look at.
    unread: Mutex<BTreeSet<String>>,
    closed: AtomicUsize,
    stop: AtomicBool,
}

/// A connection, plain or TLS.
trait Wire: Read + Write {
    fn socket(&self) -> &TcpStream;

    /// Ends it, so that from here on whatever arrives is answered with a reset.
    fn close(&mut self) -> std::io::Result<()> {
        self.socket().shutdown(Shutdown::Both)
    }
}

impl Wire for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Wire for TlsConnection {
    fn socket(&self) -> &TcpStream {
        TlsConnection::socket(self)
    }

    fn close(&mut self) -> std::io::Result<()> {
        self.close_notify()?;
        TlsConnection::socket(self).shutdown(Shutdown::Both)
    }
}

/// An HTTP/1 server that closes idle connections soon, and some connections right behind an answer.
struct Hasty {
    address: SocketAddr,
    seen: Arc<Seen>,
}

impl Hasty {
    fn start(tls: Option<TlsServer>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::<Seen>::default();
        let shared = Arc::clone(&seen);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                let (seen, random) = (Arc::clone(&shared), Random::new(number as u64));
                // A connection that fails is one that the proxy closed.
                let wire: Box<dyn Wire + Send> = match &tls {
                    None => Box::new(stream),
                    Some(tls) => Box::new(tls.accept(stream)),
                };
                thread::spawn(move || _ = serve(wire, &seen, random));
            }
        });
        Self { address, seen }
    }
}

impl Drop for Hasty {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: Box<dyn Wire + Send>, seen: &Seen, mut random: Random) -> std::io::Result<()> {
    stream.socket().set_nodelay(true)?;
    // It was opened for a request, which may take a while to come where there is much to do.
    stream.socket().set_read_timeout(Some(PATIENCE))?;
    let mut input = Vec::new();
    loop {
        let id = match read_request(&mut stream, &mut input) {
            Ok(Some(id)) => id,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Ok(None) => return Ok(()),
            Err(error) => return Err(error),
        };
        *seen.done.lock().expect("not poisoned").entry(id).or_default() += 1;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        if random.once_in(CLOSES_AT_ONCE) {
            break;
        }
        stream.socket().set_read_timeout(Some(within(&IDLE_MILLIS, &mut random)))?;
    }
    stream.close()?;
    // What had arrived before can still be told.
    seen.closed.fetch_add(1, Ordering::SeqCst);
    while let Ok(Some(id)) = read_request(&mut stream, &mut input) {
        seen.unread.lock().expect("not poisoned").insert(id);
    }
    Ok(())
}

/// The value of `x-id`, once a request of five bytes, or of none, is there. `None`: the end.
fn read_request(stream: &mut Box<dyn Wire + Send>, input: &mut Vec<u8>) -> std::io::Result<Option<String>> {
    loop {
        if let Some(end) = input.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&input[..end]).to_ascii_lowercase();
            let whole = end + 4 + if head.contains("content-length: 5") { 5 } else { 0 };
            if input.len() >= whole {
                input.drain(..whole);
                let id = head.lines().find_map(|line| line.strip_prefix("x-id: ")).expect("all requests have one");
                return Ok(Some(id.to_owned()));
            }
        }
        let mut block = [0; 4096];
        match stream.read(&mut block)? {
            0 => return Ok(None),
            count => input.extend_from_slice(&block[..count]),
        }
    }
}

/// Sends requests from several clients at once; gives what was not answered with 200.
fn run(method: &'static str, host: &Hasty, transport: &str) -> BTreeSet<String> {
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                  /}, route: {cluster: hasty}}]}]}";
    let name = format!("race-{}-{}", method.to_ascii_lowercase(), transport.len());
    let cluster = static_cluster("hasty", host.address, transport);
    let proxy = Proxy::start(&static_bootstrap(&http_listener(&name, routes, ""), &[cluster]));
    proxy.wait_live();
    let listener = proxy.listener(&name);
    let clients = (0..CLIENTS).map(|client| {
        thread::spawn(move || {
            let mut random = Random::new(1000 + client);
            let mut connection = Connection::open(listener).expect("it accepts");
            let mut failed = Vec::new();
            for number in 0..REQUESTS {
                // Now and then a think time around the host's limit.
                let near = random.once_in(10);
                think(within(if near { &IDLE_MILLIS } else { &THINK_MILLIS }, &mut random));
                let id = format!("{client}-{number}");
                let body = if method == "POST" { "content-length: 5\r\n\r\nhello" } else { "\r\n" };
                connection.send(format!("{method} / HTTP/1.1\r\nhost: test\r\nx-id: {id}\r\n{body}")).expect("sent");
                match connection.response().expect("an answer").status {
                    200 => {}
                    503 => failed.push(id),
                    status => panic!("{id}: {status}"),
                }
            }
            failed
        })
    });
    let clients: Vec<_> = clients.collect();
    let failed = clients.into_iter().flat_map(|client| client.join().expect("no client fails")).collect();
    proxy.stop().expect("a clean end");
    failed
}

/// What a client does between two requests.
fn think(time: Duration) {
    thread::park_timeout(time);
}

#[test]
fn no_get_fails_because_its_connection_was_just_closed() {
    no_get_fails(&Hasty::start(None), "");
}

#[test]
fn nor_does_one_over_tls() {
    let (server, transport) = over_tls();
    no_get_fails(&Hasty::start(Some(server)), &transport);
}

fn no_get_fails(host: &Hasty, transport: &str) {
    assert_eq!(run("GET", host, transport), BTreeSet::new());
    assert!(host.seen.closed.load(Ordering::SeqCst) > 100, "the host closed connections all the time");
}

/// A host's end of TLS, and the cluster's transport to it.
fn over_tls() -> (TlsServer, String) {
    let ca = TestCa::new();
    let root = ca.root_pem().replace('\n', "\\n");
    let transport = format!(
        "transport_socket: {{name: tls, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, sni: hasty.test, \
         common_tls_context: {{validation_context: {{trusted_ca: {{inline_string: \"{root}\"}}}}}}}}}}"
    );
    (TlsServer::new(&ca.for_dns(&["hasty.test"])), transport)
}

#[test]
fn a_post_fails_only_where_nobody_can_know_that_it_was_not_carried_out() {
    posts_fail_only_if_need_be(&Hasty::start(None), "");
}

#[test]
fn nor_does_one_over_tls_fail_without_need() {
    let (server, transport) = over_tls();
    posts_fail_only_if_need_be(&Hasty::start(Some(server)), &transport);
}

fn posts_fail_only_if_need_be(host: &Hasty, transport: &str) {
    let failed = run("POST", host, transport);
    let (done, unread) = (host.seen.done.lock().expect("not poisoned"), host.seen.unread.lock().expect("not poisoned"));
    let twice: Vec<_> = done.iter().filter(|&(_, &times)| times > 1).collect();
    assert!(twice.is_empty(), "carried out more than once: {twice:?}");
    assert!(failed.is_subset(&unread), "failed without need: {:?}", failed.difference(&unread));
    let whole = usize::try_from(CLIENTS).expect("few") * REQUESTS as usize;
    assert_eq!(done.len() + failed.len(), whole, "the others were carried out once");
    assert!(host.seen.closed.load(Ordering::SeqCst) > 100, "the host closed connections all the time");
}
