//! What an idle connection costs: bytes on the heap, counted by the allocator, with hundreds of connections open after a
//! request each. A binary of its own, for the allocator sees everything a process does.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicIsize, Ordering};

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Connection, TestCa, eventually};

#[path = "../it/harness.rs"]
#[allow(dead_code, reason = "shared with the other test binary, which uses all of it")]
mod harness;

use harness::{Proxy, answering, http_listener, stat, static_bootstrap, static_cluster};

/// Connections measured at once; more only take longer.
const CONNECTIONS: usize = 400;
/// Bars for one idle HTTP/1.1 connection, everything included but the kernel's part.
const PLAIN_BYTES: usize = 4 * 1024;
const TLS_BYTES: usize = 20 * 1024;

/// The system's allocator, and what it has given out and not got back: how many blocks of each size, in steps of
/// [`STEP_BYTES`], the last for all above.
struct Counting;

const STEP_BYTES: usize = 16;
const STEPS: usize = 2049;
static LIVE: [AtomicIsize; STEPS] = [const { AtomicIsize::new(0) }; STEPS];

fn live_blocks(layout: Layout) -> &'static AtomicIsize {
    &LIVE[layout.size().div_ceil(STEP_BYTES).min(STEPS - 1)]
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        live_blocks(layout).fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        live_blocks(layout).fetch_sub(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The blocks one idle connection keeps: size in bytes, and how many.
struct Kept(Vec<(usize, f64)>);

impl Kept {
    /// Opens connections with `open` and counts what they keep. What the first one brings into being for all, such as pooled
    /// blocks and upstream connections, is not counted.
    fn measure(open: impl Fn() -> TcpStream, settled: impl Fn(usize)) -> Self {
        let snapshot = || LIVE.each_ref().map(|blocks| blocks.load(Ordering::Relaxed));
        let mut clients = Vec::with_capacity(CONNECTIONS + 1);
        clients.push(open());
        settled(1);
        let before = snapshot();
        clients.extend((0..CONNECTIONS).map(|_| open()));
        settled(CONNECTIONS + 1);
        let after = snapshot();
        let per_connection = |index: usize| (after[index] - before[index]) as f64 / CONNECTIONS as f64;
        // Less than one for every other connection is a table that grew, or belongs to something else.
        let kept = (0..STEPS).map(|index| (index * STEP_BYTES, per_connection(index)));
        Self(kept.filter(|(_, blocks)| *blocks >= 0.5).collect())
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|(size, blocks)| (*size as f64 * blocks) as usize).sum()
    }

    /// Says what is kept, and fails when it is more than `bar` bytes.
    fn check(&self, what: &str, bar: usize) {
        let (bytes, blocks) = (self.bytes(), &self.0);
        _ = writeln!(
            std::io::stderr(),
            "{what}: {bytes} bytes per idle connection, {bar} at most; blocks (size, count): {blocks:?}"
        );
        assert!(bytes <= bar, "{what}: {bytes} bytes per idle connection are more than {bar}: {blocks:?}");
    }
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nuser-agent: memory\r\n\r\n";

fn ask(connection: &mut (impl Read + Write)) {
    connection.write_all(REQUEST).expect("the proxy reads");
    let mut answer = Vec::with_capacity(1024);
    while !answer.ends_with(b"hello") {
        let mut byte = [0; 512];
        let count = connection.read(&mut byte).expect("the proxy answers");
        assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&byte[..count]);
    }
}

fn open_plain(address: SocketAddr) -> TcpStream {
    let mut socket = Connection::socket(address).expect("it accepts");
    ask(&mut socket);
    socket
}

/// Waits until the proxy has `count` connections on its listener.
fn settle(proxy: &Proxy, count: usize) {
    eventually("all connections to be counted", || {
        let active = stat(proxy, "http.http.downstream_cx_active");
        (active == [count as u64]).then_some(())
    });
}

/// One test: the allocator counts for the whole process.
#[test]
fn idle_connections_are_small() {
    let listener = http_listener("http", &answering("hello"), "");
    let proxy = Proxy::start_with(&static_bootstrap(&listener, &[]), 1);
    proxy.wait_live();
    let address = proxy.listener("http");
    Kept::measure(|| open_plain(address), |count| settle(&proxy, count)).check("plain", PLAIN_BYTES);
    drop(proxy);

    let ca = TestCa::new();
    let server = ca.for_spiffe("spiffe://cluster.local/ns/default/sa/server");
    let client = ca.for_spiffe("spiffe://cluster.local/ns/default/sa/client");
    let context = format!(
        r#"  transport_socket:
    name: tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
      require_client_certificate: true
      common_tls_context:
        tls_certificates:
        - certificate_chain: {{inline_string: {:?}}}
          private_key: {{inline_string: {:?}}}
        validation_context: {{trusted_ca: {{inline_string: {:?}}}}}
"#,
        server.cert_pem,
        server.key_pem,
        ca.root_pem(),
    );
    let listener = http_listener("http", &answering("hello"), &context);
    let proxy = Proxy::start_with(&static_bootstrap(&listener, &[]), 1);
    proxy.wait_live();
    let address = proxy.listener("http");
    let tls = TlsClient { server_name: "", root_pem: String::new(), identity: Some(&client), alpn: &[] };
    let open = || tls.open_unverified(address, ask).expect("a handshake");
    Kept::measure(open, |count| settle(&proxy, count)).check("mutual TLS", TLS_BYTES);
    drop(proxy);

    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let cluster = static_cluster("tcp", upstream.local_addr().expect("bound"), "");
    let listener = r#"
name: tcp
address: {socket_address: {address: 127.0.2.9, port_value: 0}}
filter_chains:
- filters:
  - name: envoy.filters.network.tcp_proxy
    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, cluster: tcp}
"#;
    let proxy = Proxy::start_with(&static_bootstrap(listener, &[cluster]), 1);
    proxy.wait_live();
    let address = proxy.listener("tcp");
    let servers = std::cell::RefCell::new(Vec::with_capacity(CONNECTIONS + 1));
    let open = || {
        let mut socket = Connection::socket(address).expect("it accepts");
        let (mut server, _) = upstream.accept().expect("the proxy connects");
        socket.write_all(b"x").expect("the proxy reads");
        server.read_exact(&mut [0]).expect("the proxy writes");
        servers.borrow_mut().push(server);
        socket
    };
    Kept::measure(open, |_| ()).check("TCP proxy, both sides", PLAIN_BYTES);
}
