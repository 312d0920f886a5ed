//! Connections are placed evenly, those whose load changes move to workers with room, and no client notices.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use evenkeel_testkit::tls::{TestCa, TlsClient};
use evenkeel_testkit::{Connection, cases, eventually};

use crate::harness::{Proxy, http_listener, http_listener_at, raise_open_files, static_bootstrap};

/// Every answer names the path that was asked for, and the client.
const ECHO: &str = "forward_client_cert_details: SANITIZE\n      route_config: {name: local, response_headers_to_add: \
                    [{header: {key: x-path, value: '%REQ(:PATH)%'}}, {header: {key: x-peer, value: \
                    '%DOWNSTREAM_PEER_URI_SAN%'}}], virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: \
                    {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]}]}";

/// Within so many samples of the load, ten a second, it is even again.
const SAMPLES_IN_TWO_SECONDS: u64 = 20;

/// Requests of a worker in a sample, on average, from which on a tenth more than that shows in so many samples. Where the machine has
/// no time for so many, samples count for less.
const REQUESTS_PER_SAMPLE: u64 = 100;

/// What `/workers` says at one moment.
struct Workers(serde_json::Value);

impl Workers {
    fn of(proxy: &Proxy) -> Self {
        Self(proxy.json("/workers?format=json"))
    }

    fn column(&self, name: &str) -> Vec<u64> {
        let rows = self.0["workers"].as_array().expect("a list");
        rows.iter().map(|row| row[name].as_u64().expect("a count")).collect()
    }

    fn sum(&self, name: &str) -> u64 {
        self.column(name).iter().sum()
    }

    /// Requests each worker has served since then.
    fn since(&self, then: &Self) -> Vec<u64> {
        let (now, then) = (self.column("requests_total"), then.column("requests_total"));
        now.iter().zip(&then).map(|(now, then)| now - then).collect()
    }

    fn samples(&self) -> u64 {
        self.0["samples"].as_u64().expect("a count")
    }
}

/// How clients connect to the listener at that address.
type Dial<'d> = dyn Fn(SocketAddr) -> std::io::Result<Connection> + Sync + 'd;

/// A connection, and whom the proxy takes its client for.
struct Client {
    connection: Connection,
    peer: Option<String>,
    /// Requests it writes at once: those behind the first are with the connection when it moves.
    at_once: usize,
}

impl Client {
    fn open(web: SocketAddr, dial: &Dial<'_>, at_once: usize) -> Self {
        let mut client = Self { connection: dial(web).expect("it accepts"), peer: None, at_once };
        client.connection.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").expect("it reads");
        client.peer = client.connection.response().expect("an answer").header("x-peer").map(str::to_owned);
        client
    }

    /// Sends requests and reads the answers, which must be theirs, in order, and for this client.
    fn ask(&mut self, turn: usize) {
        let path = |at: usize| format!("/{turn}/{at}");
        let head = |at: usize| format!("GET {} HTTP/1.1\r\nhost: test\r\n\r\n", path(at));
        self.connection.send((0..self.at_once).map(head).collect::<String>()).expect("it reads");
        for at in 0..self.at_once {
            let response = self.connection.response().expect("an answer");
            assert_eq!((response.status, response.header("x-path")), (200, Some(path(at).as_str())), "{response:?}");
            assert_eq!(response.header("x-peer"), self.peer.as_deref());
        }
    }
}

/// Asks over all of these connections in turn until told to stop, and calls `between` after each turn.
fn load(clients: &mut [&mut Client], stop: &AtomicBool, between: impl Fn(usize)) {
    for turn in 0.. {
        for client in &mut *clients {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            client.ask(turn);
        }
        between(turn);
    }
}

struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One listener, with these filter chain fields.
fn bootstrap(transport: &str) -> String {
    static_bootstrap(&http_listener("web", ECHO, transport), &[])
}

/// All load comes over the connections of some workers, and a little over connections that come and go.
#[derive(Clone, Copy)]
struct Skew<'d> {
    workers: usize,
    connections: usize,
    /// What the proxy runs; its listener is `web`.
    bootstrap: &'d str,
    dial: &'d Dial<'d>,
    /// Which workers' connections have load.
    hot: fn(usize) -> bool,
    /// What a connection writes at once, by its number: what it costs.
    at_once: fn(usize) -> usize,
    churning: bool,
}

/// Most that a worker may serve in the end, as a multiple of its fair share.
const MOST: f64 = 1.1;
/// Where connections come and go it is to stay so.
const TIMES_IN_A_ROW: usize = 2;

impl<'d> Skew<'d> {
    /// The first worker has all the load, equal on all of its connections.
    fn of_one_worker(bootstrap: &'d str, workers: usize, connections: usize) -> Self {
        let (hot, at_once) = (|worker| worker == 0, |_| 3);
        Self { workers, connections, bootstrap, dial: &Connection::open, hot, at_once, churning: false }
    }

    /// Half of the workers have it, and some of their connections four times as much as others.
    fn of_some_connections(bootstrap: &'d str, workers: usize, connections: usize) -> Self {
        let (hot, at_once) = (|worker| worker % 2 == 0, |number| 1 + number % 4);
        Self { hot, at_once, ..Self::of_one_worker(bootstrap, workers, connections) }
    }

    fn churning(self) -> Self {
        Self { churning: true, ..self }
    }

    fn start(&self) -> (Proxy, SocketAddr) {
        raise_open_files();
        let proxy = Proxy::start_with(self.bootstrap, self.workers);
        proxy.wait_live();
        let web = proxy.listener("web");
        (proxy, web)
    }

    /// Opens connections one after the other; returns each with the worker it is on.
    fn open(&self, proxy: &Proxy, web: SocketAddr) -> Vec<(usize, Client)> {
        let mut before = Workers::of(proxy).column("connections_active");
        let open = (0..self.connections).map(|number| {
            let client = Client::open(web, self.dial, (self.at_once)(number));
            let now = Workers::of(proxy).column("connections_active");
            let worker = before.iter().zip(&now).position(|(before, now)| now > before).expect("a worker has it");
            before = now;
            (worker, client)
        });
        let open: Vec<_> = open.collect();
        assert_even(&before, self.workers);
        open
    }

    /// It spreads, and then each worker serves the same; no request is lost or out of order meanwhile.
    fn spreads(&self) {
        let (proxy, web) = self.start();
        let mut open = self.open(&proxy, web);
        let mut hot: Vec<_> =
            open.iter_mut().filter(|(worker, _)| (self.hot)(*worker)).map(|(_, client)| client).collect();
        let hot_workers = (0..self.workers).filter(|worker| (self.hot)(*worker)).count();
        assert_eq!(hot.len(), self.connections / self.workers * hot_workers);
        let stop = AtomicBool::new(false);
        let middle = hot.len() / 2;
        let (left, right) = hot.split_at_mut(middle);
        let churn = |turn| {
            if self.churning {
                Client::open(web, self.dial, 3).ask(turn);
            }
        };
        std::thread::scope(|scope| {
            let stopping = Stop(&stop);
            let clients = [left, right].map(|part| scope.spawn(|| load(part, &stop, churn)));
            self.wait_spread(&proxy, || {
                assert!(!clients.iter().any(|client| client.is_finished()), "a client has failed");
            });
            drop(stopping);
            for client in clients {
                client.join().expect("no request lost or out of order");
            }
        });
        self.all_are_there(&proxy, open);
    }

    fn wait_spread(&self, proxy: &Proxy, check: impl Fn()) {
        let skewed = Workers::of(proxy);
        let mut before = Workers(skewed.0.clone());
        let mut even = 0;
        eventually("every worker to serve the same", || {
            let now = Workers::of(proxy);
            let served = now.since(&before);
            let (total, most) = (served.iter().sum::<u64>(), *served.iter().max().expect("workers"));
            if total < self.telling() {
                check();
                return None;
            }
            let all = now.since(&skewed).iter().sum::<u64>();
            let samples = (now.samples() - skewed.samples()).min(all / (REQUESTS_PER_SAMPLE * self.workers as u64));
            before = now;
            let ratio = most as f64 * self.workers as f64 / total as f64;
            even = if ratio <= MOST { even + 1 } else { 0 };
            // Connections that come and go are new load all the time.
            let in_time = self.churning || samples <= SAMPLES_IN_TWO_SECONDS || even > 0;
            assert!(in_time, "{ratio:.2} after {samples} samples: {served:?}");
            let enough = if self.churning { TIMES_IN_A_ROW } else { 1 };
            (even >= enough).then_some(())
        });
    }

    /// So many requests tell an even load from an uneven one: connections are seen in whole turns, but for the last.
    fn telling(&self) -> u64 {
        let hot = (0..self.connections).filter(|number| (self.hot)(number % self.workers));
        let turn: usize = hot.map(self.at_once).sum();
        (200 * self.workers).max(4 * turn) as u64
    }

    /// Nobody was lost on the way: all connections are open, counted once, and answer. Whoever gave some away got others back.
    fn all_are_there(&self, proxy: &Proxy, mut open: Vec<(usize, Client)>) {
        let active = |expected: usize| {
            eventually(&format!("{expected} open connections"), || {
                (Workers::of(proxy).sum("connections_active") == expected as u64).then_some(())
            });
        };
        active(self.connections);
        // The last moves may be under way still.
        let moved = eventually("all that moved to have arrived, and counts to be level", || {
            let workers = Workers::of(proxy);
            let arrived = workers.sum("moved_in") == workers.sum("moved_out");
            (arrived && is_even(&workers.column("connections_active"))).then_some(workers.column("moved_in"))
        });
        // What comes and goes is load where it lands, too. Without it, all that a cold worker serves has moved there.
        let cold = moved.iter().enumerate().filter(|(worker, _)| !(self.hot)(*worker));
        assert!(self.churning || cold.clone().all(|(_, moved)| *moved > 0), "{moved:?}");
        open.iter_mut().for_each(|(_, client)| client.ask(7));
        drop(open);
        active(0);
    }

    /// Where those of a worker have closed it gets others', and then nothing moves any more.
    fn levels_when_idle(&self) {
        let (proxy, web) = self.start();
        let mut open = self.open(&proxy, web);
        open.retain(|(worker, _)| *worker != 0);
        let moved = eventually("counts to be level", || {
            let workers = Workers::of(&proxy);
            let all_there = workers.sum("connections_active") == open.len() as u64;
            (all_there && is_even(&workers.column("connections_active"))).then(|| workers.sum("moved_out"))
        });
        assert_eq!(moved, (open.len() / self.workers) as u64, "as many as it takes");
        let samples = Workers::of(&proxy).samples();
        eventually("a second to pass", || (Workers::of(&proxy).samples() > samples + 10).then_some(()));
        let workers = Workers::of(&proxy);
        assert_eq!((workers.sum("moved_out"), workers.sum("moved_in")), (moved, moved), "nothing came in between");
        open.iter_mut().for_each(|(_, client)| client.ask(7));
    }

    /// Connections are placed evenly, also where others have left room.
    fn is_even_at_accept(&self) {
        let (proxy, web) = self.start();
        let mut open = self.open(&proxy, web);
        open.retain(|(worker, _)| *worker != 0);
        let left = eventually("the others to be closed", || {
            let active = Workers::of(&proxy).column("connections_active");
            (active[0] == 0).then_some(active)
        });
        let missing = self.connections - usize::try_from(left.iter().sum::<u64>()).expect("a count");
        assert_eq!(missing, self.connections / self.workers);
        // They stay silent: load that only these have would make some of them move at once.
        let _silent: Vec<_> = (0..missing).map(|_| (self.dial)(web).expect("it accepts")).collect();
        let active = eventually("all of them to be placed", || {
            let workers = Workers::of(&proxy);
            (workers.sum("connections_active") == self.connections as u64).then(|| workers.column("connections_active"))
        });
        assert_even(&active, self.workers);
    }
}

fn is_even(counts: &[u64]) -> bool {
    counts.iter().max().expect("workers") - counts.iter().min().expect("workers") <= 1
}

fn assert_even(counts: &[u64], workers: usize) {
    assert!(counts.len() == workers && is_even(counts), "{counts:?}");
}

/// Workers and connections of the runs over every kind of listener; the first are always tried.
const SIZES: [(usize, usize); 4] = [(2, 16), (16, 1024), (4, 64), (8, 256)];

fn every_size(bootstrap: &str, dial: &Dial<'_>) {
    for &(workers, connections) in &SIZES[..cases(2, SIZES.len())] {
        let skew = Skew { dial, ..Skew::of_some_connections(bootstrap, workers, connections) };
        skew.is_even_at_accept();
        skew.spreads();
        skew.churning().spreads();
    }
}

#[test]
fn load_of_one_worker_spreads_over_2() {
    Skew::of_one_worker(&bootstrap(""), 2, 16).spreads();
}

#[test]
fn load_of_one_worker_spreads_over_4() {
    Skew::of_one_worker(&bootstrap(""), 4, 64).spreads();
}

#[test]
fn load_of_one_worker_spreads_over_8() {
    Skew::of_one_worker(&bootstrap(""), 8, 256).spreads();
}

#[test]
fn load_of_one_worker_spreads_over_16() {
    Skew::of_one_worker(&bootstrap(""), 16, 1024).spreads();
}

#[test]
fn gaps_are_filled_from_other_workers() {
    for (workers, connections) in [(2, 16), (4, 66), (8, 256)] {
        Skew::of_one_worker(&bootstrap(""), workers, connections).levels_when_idle();
    }
}

#[test]
fn a_gateways_connections_are_even() {
    every_size(&bootstrap(""), &Connection::open);
}

#[test]
fn encrypted_connections_move_as_plain_ones() {
    let ca = TestCa::new();
    let server = ca.for_dns(&["web.test"]);
    let inline = |text: &str| format!("{{inline_string: {}}}", serde_json::to_string(text).expect("a string"));
    let transport = format!(
        "  transport_socket:\n    name: tls\n    typed_config:\n      \"@type\": \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext\n      \
         common_tls_context: {{tls_certificates: [{{certificate_chain: {}, private_key: {}}}], validation_context: \
         {{trusted_ca: {}}}}}\n",
        inline(&server.cert_pem),
        inline(&server.key_pem),
        inline(&ca.root_pem()),
    );
    let bootstrap = bootstrap(&transport);
    // Every third client shows no certificate, the others one of two.
    let identities = ["a", "b"].map(|name| ca.for_spiffe(&format!("spiffe://cluster.local/ns/default/sa/{name}")));
    let opened = AtomicUsize::new(0);
    let dial = |address| {
        let identity = identities.get(opened.fetch_add(1, Ordering::Relaxed) % 3);
        TlsClient { server_name: "web.test", root_pem: ca.root_pem(), identity, alpn: &[] }.open(address)
    };
    Skew { dial: &dial, ..Skew::of_one_worker(&bootstrap, 4, 64) }.spreads();
    // Also while handshakes go on.
    Skew { dial: &dial, ..Skew::of_one_worker(&bootstrap, 2, 32) }.churning().spreads();
}

/// Set where a test runs again in a network of its own.
const ALONE: &str = "EVENKEEL_TEST_ALONE";

/// Runs this test again in a network of its own, with this port redirected to that one.
fn alone(test: &str, redirect: (u16, u16), body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_none() {
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net"])
            .arg(std::env::current_exe().expect("this test"))
            .args(["--exact", test])
            .env(ALONE, "1")
            .output()
            .expect("unshare");
        let text = String::from_utf8_lossy(&output.stdout);
        let passed = output.status.success() && text.contains("1 passed");
        assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let (from, to) = redirect;
    let rules = format!(
        "table ip mesh {{ chain output {{ type nat hook output priority -100; tcp dport {from} redirect to :{to}; }}; }}"
    );
    for (tool, arguments) in [("ip", &["link", "set", "lo", "up"][..]), ("nft", &[&rules])] {
        let status = Command::new(tool).args(arguments).status().expect("installed");
        assert!(status.success(), "{tool}");
    }
    body();
}

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

const NOWHERE: &str = "route_config: {name: none, virtual_hosts: []}";

/// What is dialled at one port comes to a listener at another, which hands the connection to the listener of the port that was
/// dialled.
#[test]
fn outbound_connections_are_even() {
    alone("balance::outbound_connections_are_even", (7000, 15001), || {
        let extra = "use_original_dst: true\ntraffic_direction: OUTBOUND";
        let catch_all = http_listener_at(at(15001), "web", NOWHERE, extra);
        let dialled = http_listener_at(at(7000), "dialled", ECHO, "bind_to_port: false");
        let indented = dialled.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
        let bootstrap = static_bootstrap(&catch_all, &[]) + "  -\n" + &indented;
        every_size(&bootstrap, &|_| Connection::open(at(7000)));
    });
}

/// What is dialled at one port comes to a listener at another, whose filter chains go by the port that was dialled.
#[test]
fn inbound_connections_are_even() {
    alone("balance::inbound_connections_are_even", (7001, 15006), || {
        let extra = "  filter_chain_match: {destination_port: 7001}\ntraffic_direction: INBOUND\nlistener_filters:\n- name: \
                     envoy.filters.listener.original_dst\n  typed_config: {\"@type\": \
                     type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst}";
        let inbound = http_listener_at(at(15006), "web", ECHO, extra);
        every_size(&static_bootstrap(&inbound, &[]), &|_| Connection::open(at(7001)));
    });
}
