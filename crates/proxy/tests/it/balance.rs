//! Connections whose load changes move to workers with room, and nobody notices.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_testkit::tls::{TestCa, TlsClient};
use evenkeel_testkit::{Connection, eventually};

use crate::harness::{Proxy, http_listener, http_listener_at, raise_open_files, static_bootstrap};

/// Every answer names the path that was asked for.
const ECHO: &str = "route_config: {name: local, response_headers_to_add: [{header: {key: x-path, value: \
                    '%REQ(:PATH)%'}}], virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, \
                    direct_response: {status: 200, body: {inline_string: hello}}}]}]}";

/// Requests written at once: those behind the first are with the connection when it moves.
const PIPELINED: usize = 3;

fn requests(proxy: &Proxy) -> Vec<u64> {
    per_worker(proxy, "requests_total")
}

fn per_worker(proxy: &Proxy, column: &str) -> Vec<u64> {
    let workers = proxy.json("/workers?format=json");
    let rows = workers["workers"].as_array().expect("a list");
    rows.iter().map(|row| row[column].as_u64().expect("a count")).collect()
}

/// How clients connect.
type Dial<'d> = dyn Fn(SocketAddr) -> std::io::Result<Connection> + Sync + 'd;

/// Opens connections one after the other; returns each with the worker it is on.
fn open(proxy: &Proxy, count: usize, dial: &Dial<'_>) -> Vec<(usize, Connection)> {
    let web = proxy.listener("web");
    let mut before = per_worker(proxy, "connections_active");
    let open = (0..count).map(|_| {
        let mut connection = dial(web).expect("it accepts");
        ask(&mut connection, 0);
        let now = per_worker(proxy, "connections_active");
        let worker = before.iter().zip(&now).position(|(before, now)| now > before).expect("a worker has it");
        before = now;
        (worker, connection)
    });
    open.collect()
}

/// Sends a few requests at once and reads the answers, which must be theirs and in order.
fn ask(connection: &mut Connection, turn: usize) {
    let path = |at: usize| format!("/{turn}/{at}");
    let head = |at: usize| format!("GET {} HTTP/1.1\r\nhost: test\r\n\r\n", path(at));
    connection.send((0..PIPELINED).map(head).collect::<String>()).expect("it reads");
    for at in 0..PIPELINED {
        let response = connection.response().expect("an answer");
        assert_eq!((response.status, response.header("x-path")), (200, Some(path(at).as_str())), "{response:?}");
    }
}

/// Asks over all of these connections in turn until told to stop.
fn load(connections: &mut [&mut Connection], stop: &AtomicBool) {
    for turn in 0.. {
        for connection in &mut *connections {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            ask(connection, turn);
        }
    }
}

struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn spread(counts: &[u64]) -> u64 {
    counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0)
}

/// Connections that come and go, each with a few requests.
fn churn(web: SocketAddr, dial: &Dial<'_>, stop: &AtomicBool) {
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        ask(&mut dial(web).expect("it accepts"), turn);
    }
}

/// One listener, with these filter chain fields.
fn bootstrap(transport: &str) -> String {
    static_bootstrap(&http_listener("web", ECHO, transport), &[])
}

/// All load comes over the connections of one worker, or all but that of connections that come and go.
struct Skew<'d> {
    workers: usize,
    connections: usize,
    /// What the proxy runs; its listener is `web`.
    bootstrap: String,
    dial: &'d Dial<'d>,
    churning: bool,
    /// Most that a worker may serve in the end, as a multiple of its fair share.
    most: f64,
}

impl Skew<'_> {
    fn plain(workers: usize, connections: usize) -> Self {
        Self { workers, connections, bootstrap: bootstrap(""), dial: &Connection::open, churning: false, most: 1.1 }
    }

    /// It spreads, and then each worker serves the same; no request is lost or out of order meanwhile.
    fn spreads(&self) {
        let &Self { workers, connections, dial, .. } = self;
        let proxy = Proxy::start_with(&self.bootstrap, workers);
        proxy.wait_live();
        let web = proxy.listener("web");
        let mut open = open(&proxy, connections, dial);
        let counts = per_worker(&proxy, "connections_active");
        assert!(counts.len() == workers && spread(&counts) <= 1, "{counts:?}");
        let mut hot: Vec<_> = open.iter_mut().filter(|(worker, _)| *worker == 0).map(|(_, open)| open).collect();
        assert_eq!(hot.len(), connections / workers);
        let stop = AtomicBool::new(false);
        let middle = hot.len() / 2;
        let (left, right) = hot.split_at_mut(middle);
        std::thread::scope(|scope| {
            let stopping = Stop(&stop);
            let mut clients: Vec<_> = [left, right].into_iter().map(|part| scope.spawn(|| load(part, &stop))).collect();
            if self.churning {
                clients.push(scope.spawn(|| churn(web, dial, &stop)));
            }
            self.wait_spread(&proxy, || {
                assert!(!clients.iter().any(|client| client.is_finished()), "a client has failed");
            });
            drop(stopping);
            for client in clients {
                client.join().expect("no request lost or out of order");
            }
        });
        let (moved_in, moved_out) = (per_worker(&proxy, "moved_in"), per_worker(&proxy, "moved_out"));
        let moved = moved_out.iter().sum::<u64>();
        assert_eq!(moved, moved_in.iter().sum::<u64>());
        // What comes and goes is load where it lands too, so that less has to move.
        let least = connections / workers / if self.churning { 4 } else { 2 };
        assert!(moved >= least as u64, "{moved} moves");
        // Nobody was lost on the way: all connections are open, counted once, and answer.
        let active = |expected: u64| {
            eventually(&format!("{expected} open connections"), || {
                (per_worker(&proxy, "connections_active").iter().sum::<u64>() == expected).then_some(())
            });
        };
        active(connections as u64);
        open.iter_mut().for_each(|(_, connection)| ask(connection, 7));
        drop(open);
        active(0);
    }

    fn wait_spread(&self, proxy: &Proxy, check: impl Fn()) {
        let mut before = requests(proxy);
        eventually("every worker to serve the same", || {
            let now = requests(proxy);
            let served: Vec<_> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
            let (total, most) = (served.iter().sum::<u64>(), *served.iter().max().expect("workers"));
            if total < 200 * self.workers as u64 {
                check();
                return None;
            }
            before = now;
            let ratio = most as f64 * self.workers as f64 / total as f64;
            (ratio <= self.most).then_some(())
        });
    }
}

#[test]
fn load_of_one_worker_spreads_over_2() {
    Skew::plain(2, 16).spreads();
}

#[test]
fn load_of_one_worker_spreads_over_4() {
    Skew::plain(4, 64).spreads();
}

#[test]
fn load_of_one_worker_spreads_over_8() {
    raise_open_files();
    Skew::plain(8, 256).spreads();
}

#[test]
fn load_of_one_worker_spreads_over_16() {
    raise_open_files();
    Skew::plain(16, 512).spreads();
}

#[test]
fn load_spreads_while_connections_come_and_go() {
    Skew { churning: true, most: 1.3, ..Skew::plain(4, 64) }.spreads();
}

#[test]
fn encrypted_connections_move_as_plain_ones() {
    let ca = TestCa::new();
    let server = ca.for_dns(&["web.test"]);
    let inline = |text: &str| format!("{{inline_string: {}}}", serde_json::to_string(text).expect("a string"));
    let transport = format!(
        "  transport_socket:\n    name: tls\n    typed_config:\n      \"@type\": \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext\n      \
         common_tls_context: {{tls_certificates: [{{certificate_chain: {}, private_key: {}}}]}}\n",
        inline(&server.cert_pem),
        inline(&server.key_pem),
    );
    let client = TlsClient { server_name: "web.test", root_pem: ca.root_pem(), ..TlsClient::default() };
    let dial = |address| client.open(address);
    Skew { bootstrap: bootstrap(&transport), dial: &dial, ..Skew::plain(4, 64) }.spreads();
    // Also while handshakes go on.
    Skew { bootstrap: bootstrap(&transport), dial: &dial, churning: true, most: 1.3, ..Skew::plain(2, 32) }.spreads();
}

/// Set where a test runs again in a network of its own.
const ALONE: &str = "EVENKEEL_TEST_ALONE";

/// A redirect rule sends what is dialled at one port to a listener at another, which hands the connection to the listener
/// of the port that was dialled.
#[test]
fn redirected_connections_move_as_direct_ones() {
    if std::env::var_os(ALONE).is_some() {
        return redirected();
    }
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net"])
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "balance::redirected_connections_move_as_direct_ones"])
        .env(ALONE, "1")
        .output()
        .expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

fn redirected() {
    const RULES: &str =
        "table ip mesh { chain output { type nat hook output priority -100; tcp dport 7000 redirect to :15001; }; }";
    for (tool, arguments) in [("ip", &["link", "set", "lo", "up"][..]), ("nft", &[RULES])] {
        let status = Command::new(tool).args(arguments).status().expect("installed");
        assert!(status.success(), "{tool}");
    }
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let answering_404 = "route_config: {name: none, virtual_hosts: []}";
    let catch_all = http_listener_at(at(15001), "web", answering_404, "use_original_dst: true");
    let dialled = http_listener_at(at(7000), "dialled", ECHO, "bind_to_port: false");
    let indented = dialled.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
    let bootstrap = static_bootstrap(&catch_all, &[]) + "  -\n" + &indented;
    Skew { bootstrap, dial: &|_| Connection::open(at(7000)), churning: true, most: 1.3, ..Skew::plain(4, 64) }
        .spreads();
}
