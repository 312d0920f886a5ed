//! Network filters defined by tests, in front of the TCP proxy and the HTTP connection manager, over TLS and without: they
//! change bytes, wait for other services, close connections, and leave data for others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use evenkeel_filters::callouts::HttpCall;
use evenkeel_filters::network::test_filter::{self, CustomFilter, State};
use evenkeel_filters::network::{Close, ClosedBy, ConnectionContext, ConnectionFacts, Data, Decision, End};
use evenkeel_filters::{Pause, Woken};
use evenkeel_http::RequestHead;
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_testkit::http::Ending;
use evenkeel_testkit::{Backend, Connection, Random, Reply, TcpEcho, eventually};
use tempfile::TempDir;

use crate::harness::{MeshTls, Proxy, stat, static_bootstrap, static_cluster};

const NETWORK: &str = "type.googleapis.com/envoy.extensions.filters.network";

/// What stands behind the filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    Tcp,
    Http,
}

/// A listener with test filters of these names, and the field of a filter chain that makes it one of TLS.
fn listener(filters: &str, behind: Behind, tls: &str, log: &str) -> String {
    let log = format!(
        "access_log: [{{name: file, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: \"{log}\", log_format: \
         {{text_format_source: {{inline_string: \"%RESPONSE_FLAGS% %CONNECTION_TERMINATION_DETAILS% \
         %DYNAMIC_METADATA(parser)% %BYTES_RECEIVED%\\n\"}}}}}}}}]"
    );
    let last = match behind {
        Behind::Tcp => format!("{NETWORK}.tcp_proxy.v3.TcpProxy, stat_prefix: last, cluster: backend, {log}"),
        Behind::Http => format!(
            "{NETWORK}.http_connection_manager.v3.HttpConnectionManager, stat_prefix: last, {log}, \
             route_config: {{name: r, virtual_hosts: [{{name: v, domains: [\"*\"], routes: [{{match: {{prefix: /}}, \
             route: {{cluster: backend}}}}]}}]}}, http_filters: [{{name: router, typed_config: {{\"@type\": \
             type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]"
        ),
    };
    format!(
        "name: l\naddress: {{socket_address: {{address: 127.0.3.1, port_value: 0}}}}\nfilter_chains:\n- filters:\n{filters}  \
         - {{name: last, typed_config: {{\"@type\": {last}}}}}\n{tls}"
    )
}

/// One whose place a test's filter takes.
fn filter(name: &str) -> String {
    format!("  - {{name: {name}, typed_config: {{\"@type\": {NETWORK}.rbac.v3.RBAC, stat_prefix: {name}}}}}\n")
}

/// A proxy with such a listener, and its access log.
struct Scene {
    proxy: Proxy,
    tls: Option<MeshTls>,
    folder: TempDir,
}

impl Scene {
    fn start(filters: &str, behind: Behind, tls: bool, clusters: &[(&str, SocketAddr)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tls = tls.then(MeshTls::new);
        let field = tls.as_ref().map_or_else(String::new, |tls| tls.listener("http/1.1"));
        let log = folder.path().join("log");
        let clusters: Vec<_> = clusters.iter().map(|(name, host)| static_cluster(name, *host, "")).collect();
        let listener = listener(filters, behind, &field, &log.display().to_string());
        let proxy = Proxy::start(&static_bootstrap(&listener, &clusters));
        proxy.wait_live();
        Self { proxy, tls, folder }
    }

    fn open(&self) -> Connection {
        let address = self.proxy.listener("l");
        match &self.tls {
            Some(tls) => tls.open(address),
            None => Connection::open(address),
        }
        .expect("it accepts")
    }

    fn logged(&self, text: &str) {
        eventually("the line of the access log", || {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            log.lines().any(|line| line.contains(text)).then_some(())
        });
    }
}

/// Both kinds of what stands behind, over TLS and without.
fn everywhere() -> impl Iterator<Item = (Behind, bool)> {
    [Behind::Tcp, Behind::Http].into_iter().flat_map(|behind| [false, true].map(|tls| (behind, tls)))
}

/// Replaces text by other text of the same length, and counts.
struct Translate {
    ends: Arc<Mutex<Vec<End>>>,
    bytes: Arc<[AtomicU64; 2]>,
}

fn replace(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    for at in 0..bytes.len() {
        if let Some(place) = bytes.get_mut(at..at + old.len()).filter(|place| place == &old) {
            place.copy_from_slice(new);
        }
    }
}

impl CustomFilter for Translate {
    fn data(&self, _: &mut State, data: &mut Data<'_>, _: &mut ConnectionContext<'_>) -> Decision {
        self.bytes[0].fetch_add(data.bytes.len() as u64, SeqCst);
        replace(data.bytes, b"secret", b"public");
        Decision::Continue
    }

    fn upstream_data(&self, _: &mut State, data: &mut Data<'_>, _: &mut ConnectionContext<'_>) -> Decision {
        self.bytes[1].fetch_add(data.bytes.len() as u64, SeqCst);
        replace(data.bytes, b"public", b"PUBLIC");
        Decision::Continue
    }

    fn complete(&self, _: &mut State, end: &End, _: &mut ConnectionFacts) {
        self.ends.lock().expect("no panic").push(*end);
    }
}

#[test]
fn a_filter_sees_and_changes_all_bytes_in_both_directions() {
    let (echo, web) = (TcpEcho::start(), Backend::start(|request| Reply::text(request.target.clone())));
    for (behind, tls) in everywhere() {
        let (ends, bytes) = (Arc::<Mutex<Vec<End>>>::default(), Arc::new([const { AtomicU64::new(0) }; 2]));
        test_filter::register("translate", Translate { ends: Arc::clone(&ends), bytes: Arc::clone(&bytes) });
        let backend = if behind == Behind::Tcp { echo.address() } else { web.address() };
        let scene = Scene::start(&filter("translate"), behind, tls, &[("backend", backend)]);
        let mut client = scene.open();
        match behind {
            Behind::Tcp => {
                client.send("a secret").expect("open");
                assert_eq!(client.read_exact(8).expect("an echo"), b"a PUBLIC");
                // More than the proxy holds at once: what waits must not be lost, nor overtaken.
                for seed in 0..4 {
                    let random = Random::new(seed).bytes(200_000);
                    client.send(&random).expect("open");
                    assert_eq!(client.read_exact(random.len()).expect("the echo"), random);
                }
            }
            Behind::Http => {
                for _ in 0..3 {
                    assert_eq!(client.get("secret.test", "/secret", "").expect("an answer").text(), "/PUBLIC");
                }
            }
        }
        drop(client);
        let end = eventually("the end of the connection", || ends.lock().expect("no panic").first().copied());
        assert_eq!(end.by, ClosedBy::Client, "{behind:?} {tls}");
        assert_eq!([end.received, end.sent], [0, 1].map(|way| bytes[way].load(SeqCst)), "{behind:?} {tls}");
        assert!(end.received > 0 && end.sent > 0);
    }
}

/// Lets in whom another service lets in, and asks it again about what is sent.
struct Ask;

fn ask(context: &ConnectionContext<'_>, path: &str, state: &mut State) -> Decision {
    let verdict = Arc::new(AtomicU64::new(0));
    let mut head = RequestHead::default();
    head.set_method(b"GET");
    head.set_path(path.as_bytes());
    let call = context.services.callouts().http(HttpCall { cluster: "authority".into(), head, ..HttpCall::default() });
    let answered = Arc::clone(&verdict);
    *state = Some(Box::new(verdict));
    Decision::Pause(Pause::until(
        async move {
            let status = call.await.map_or(0, |answer| answer.head.status);
            answered.store(status.into(), SeqCst);
        },
        Duration::from_secs(20),
    ))
}

fn verdict(state: &mut State) -> Decision {
    let status = state.take().and_then(|state| state.downcast::<Arc<AtomicU64>>().ok());
    match status.map_or(0, |status| status.load(SeqCst)) {
        200 => Decision::Continue,
        _ => Decision::Close(Close { flag: Some("UAEX"), ..Close::new("not_let_in") }),
    }
}

impl CustomFilter for Ask {
    fn new_connection(&self, state: &mut State, context: &mut ConnectionContext<'_>) -> Decision {
        match context.woken {
            None => ask(context, "/connection", state),
            Some(woken) => {
                assert_eq!(woken, Woken::Ready);
                verdict(state)
            }
        }
    }

    fn data(&self, state: &mut State, data: &mut Data<'_>, context: &mut ConnectionContext<'_>) -> Decision {
        match context.woken {
            Some(_) => verdict(state),
            None if data.bytes.starts_with(b"GET /ask") => ask(context, "/data", state),
            None => Decision::Continue,
        }
    }
}

/// Answers 200 to paths while they are allowed, and counts what it is asked.
fn authority(allowed: &'static str) -> Backend {
    Backend::start(move |request| {
        if request.target == allowed || allowed == "all" {
            Reply::After(Duration::from_millis(50), Box::new(Reply::text("yes")))
        } else {
            Reply::Fixed(403, vec![], Vec::new())
        }
    })
}

#[test]
fn a_filter_waits_for_another_service_before_a_connection_and_its_data_go_on() {
    test_filter::register("ask", Ask);
    let (echo, web) = (TcpEcho::start(), Backend::start(|_| Reply::text("hello")));
    const REQUEST: &str = "GET /ask HTTP/1.1\r\nHost: a\r\n\r\n";
    for (behind, tls) in everywhere() {
        for allowed in ["all", "/connection", "none"] {
            let authority = authority(allowed);
            let backend = if behind == Behind::Tcp { echo.address() } else { web.address() };
            let clusters = [("backend", backend), ("authority", authority.address())];
            let scene = Scene::start(&filter("ask"), behind, tls, &clusters);
            let mut client = scene.open();
            // A filter may have closed it before.
            _ = client.send(REQUEST);
            match (allowed, behind) {
                ("all", Behind::Tcp) => {
                    assert_eq!(client.read_exact(REQUEST.len()).expect("an echo"), REQUEST.as_bytes());
                }
                ("all", Behind::Http) => assert_eq!(client.response().expect("an answer").text(), "hello"),
                _ => {
                    let ending = client.ending(Duration::from_secs(20)).expect("a socket");
                    assert!(matches!(ending, Ending::Closed | Ending::Reset), "{behind:?} {tls} {allowed}: {ending:?}");
                    if behind == Behind::Tcp {
                        scene.logged("UAEX not_let_in");
                    }
                }
            }
            let asked: Vec<_> = authority.requests().into_iter().map(|request| request.target).collect();
            let expected: &[_] = if allowed == "none" { &["/connection"] } else { &["/connection", "/data"] };
            assert_eq!(asked, expected, "{behind:?} {tls}");
        }
    }
}

/// Waits, in one direction, until the test says so.
struct Gate {
    upwards: bool,
    open: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    fn pass(&self, upwards: bool) -> Decision {
        let open = *self.open.0.lock().expect("no panic");
        if open || upwards != self.upwards {
            Decision::Continue
        } else {
            Decision::Pause(Pause::for_time(Duration::from_millis(10)))
        }
    }
}

impl CustomFilter for Gate {
    fn data(&self, _: &mut State, _: &mut Data<'_>, _: &mut ConnectionContext<'_>) -> Decision {
        self.pass(true)
    }

    fn upstream_data(&self, _: &mut State, _: &mut Data<'_>, _: &mut ConnectionContext<'_>) -> Decision {
        self.pass(false)
    }
}

#[test]
fn while_a_filter_waits_nothing_more_is_read_in_its_direction_and_the_other_goes_on() {
    const BYTES: usize = 32 << 20;
    let sent = Random::new(2).bytes(BYTES);
    for upwards in [true, false] {
        let open = Arc::<(Mutex<bool>, Condvar)>::default();
        test_filter::register("gate", Gate { upwards, open: Arc::clone(&open) });
        let host = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let backend = host.local_addr().expect("bound");
        let scene = Scene::start(&filter("gate"), Behind::Tcp, false, &[("backend", backend)]);
        let client = Connection::socket(scene.proxy.listener("l")).expect("it accepts");
        let (host, _) = host.accept().expect("the proxy connects");
        let (mut from, mut to) = if upwards { (client, host) } else { (host, client) };
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (mut writer, sent, written) = (from.try_clone().expect("a socket"), &sent, &written);
            scope.spawn(move || {
                for block in sent.chunks(64 << 10) {
                    writer.write_all(block).expect("open");
                    written.fetch_add(block.len() as u64, SeqCst);
                }
            });
            // The other direction is not held up.
            to.write_all(b"x").expect("open");
            from.read_exact(&mut [0]).expect("the proxy writes");
            // What the sockets hold is all that is taken.
            let mut before = (0, Instant::now());
            eventually("the writer to be held back", || {
                let now = written.load(SeqCst);
                if now != before.0 {
                    before = (now, Instant::now());
                }
                (now > 0 && before.1.elapsed() > Duration::from_millis(300)).then_some(())
            });
            assert!(written.load(SeqCst) < BYTES as u64, "upwards: {upwards}");
            *open.0.lock().expect("no panic") = true;
            let mut received = vec![0; BYTES];
            to.read_exact(&mut received).expect("the proxy writes");
            assert!(received == sent[..], "upwards: {upwards}");
        });
    }
}

/// Closes what says a word, and tells what was said before.
struct Parser {
    reset: bool,
}

impl CustomFilter for Parser {
    fn data(&self, _: &mut State, data: &mut Data<'_>, context: &mut ConnectionContext<'_>) -> Decision {
        let text = String::from_utf8_lossy(data.bytes).into_owned();
        if text.contains("goodbye") {
            let close = Close { flag: Some("RL"), reset: self.reset, ..Close::new("said_goodbye") };
            return Decision::Close(close.after(Duration::from_millis(30)));
        }
        if let Some((_, word)) = text.split_once("word=") {
            let word: String = word.chars().take_while(|character| character.is_ascii_alphanumeric()).collect();
            context.facts.metadata.merge("parser", &[("word".into(), MetadataValue::Text(word.into()))]);
        }
        Decision::Continue
    }
}

#[test]
fn a_filter_closes_a_connection_with_its_reason_in_the_log() {
    let (echo, web) = (TcpEcho::start(), Backend::start(|_| Reply::text("hello")));
    for (behind, tls) in everywhere() {
        for reset in [false, true] {
            test_filter::register("parser", Parser { reset });
            let backend = if behind == Behind::Tcp { echo.address() } else { web.address() };
            let scene = Scene::start(&filter("parser"), behind, tls, &[("backend", backend)]);
            let mut client = scene.open();
            let request = "POST /?word=one HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n";
            client.send(request).expect("open");
            match behind {
                Behind::Tcp => _ = client.read_exact(request.len()).expect("an echo"),
                Behind::Http => eventually("the request to have begun", || {
                    (stat(&scene.proxy, "http.last.downstream_rq_active") == [1]).then_some(())
                }),
            }
            client.send("goodbye").expect("open");
            let ending = client.ending(Duration::from_secs(20)).expect("a socket");
            if reset {
                assert_eq!(ending, Ending::Reset, "{behind:?} {tls}")
            } else {
                assert!(matches!(ending, Ending::Closed | Ending::Reset), "{behind:?} {tls}: {ending:?}")
            }
            match behind {
                Behind::Tcp => scene.logged("RL said_goodbye {\"word\":\"one\"}"),
                Behind::Http => scene.logged("DC said_goodbye"),
            }
        }
    }
}

#[test]
fn network_rules_go_by_what_filters_before_them_have_found_out() {
    test_filter::register("reader", Parser { reset: false });
    let echo = TcpEcho::start();
    for (enforcement, second_passes) in [("ONE_TIME_ON_FIRST_BYTE", true), ("CONTINUOUS", false)] {
        let rules = format!(
            "  - {{name: rules, typed_config: {{\"@type\": {NETWORK}.rbac.v3.RBAC, stat_prefix: rules, enforcement_type: \
             {enforcement}, rules: {{action: DENY, policies: {{drop: {{permissions: [{{metadata: {{filter: parser, path: \
             [{{key: word}}], value: {{string_match: {{exact: drop}}}}}}}}], principals: [{{any: true}}]}}}}}}}}}}\n"
        );
        let filters = filter("reader") + &rules;
        let scene = Scene::start(&filters, Behind::Tcp, false, &[("backend", echo.address())]);
        let mut client = scene.open();
        client.send("word=drop").expect("open");
        assert_ne!(client.ending(Duration::from_secs(20)).expect("a socket"), Ending::Bytes, "{enforcement}");
        scene.logged("rbac_access_denied_matched_policy[drop] {\"word\":\"drop\"}");
        let mut client = scene.open();
        client.send("word=keep").expect("open");
        assert_eq!(client.read_exact(9).expect("an echo"), b"word=keep");
        client.send("word=drop").expect("open");
        let ending = client.ending(Duration::from_secs(20)).expect("a socket");
        assert_eq!(ending == Ending::Bytes, second_passes, "{enforcement}: {ending:?}");
        drop(client);
        let (allowed, denied) = if second_passes { (1, 1) } else { (1, 2) };
        eventually("the counts", || {
            let counts = [stat(&scene.proxy, "rules.rbac.allowed"), stat(&scene.proxy, "rules.rbac.denied")];
            (counts == [[allowed], [denied]]).then_some(())
        });
    }
}
