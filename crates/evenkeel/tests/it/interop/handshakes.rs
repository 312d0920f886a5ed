//! A failed TLS handshake gives the same access log lines and statistics as in Envoy. The reason is in Envoy's words where
//! these are its own; where Envoy passes on BoringSSL's, Evenkeel's are plainer.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Connection, Identity, Process, TcpEcho, TestCa, eventually, free_ports};

use super::flags::reset_on_close;
use super::proxy::Program;
use super::web::{self, ROUTER, cluster, endpoint};

/// What a client does.
#[derive(Clone, Copy)]
enum Does {
    /// Shakes hands with this certificate, and then says something.
    Shakes(Option<&'static str>),
    /// Does not believe the server.
    Distrusts,
    /// Says these bytes, and then waits for the server to end it.
    Says(&'static [u8]),
    /// Says so many bytes of a ClientHello, and then ends it like that.
    Begins(usize, End),
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Waits,
    Closes,
    Resets,
}

use Does::{Begins, Distrusts, Says, Shakes};
use End::{Closes, Resets, Waits};

/// What the listener is for.
#[derive(Clone, Copy, PartialEq)]
enum Chain {
    Http,
    Tcp,
    /// The same, with a TLS inspector in front.
    Inspected,
    /// Only taken by connections that are TLS.
    Matched,
}

use Chain::{Http, Inspected, Matched, Tcp};

/// A name, where it connects to, what the TLS context has besides, what its client does, and what of Envoy's and of our reason is
/// to be found in the logs.
type Row = (&'static str, Chain, &'static str, Does, [&'static str; 2]);

const NEW: &str = "tls_params: { tls_minimum_protocol_version: TLSv1_3 }";
const OLD: &str = "tls_params: { tls_maximum_protocol_version: TLSv1_2 }";
/// Clients need no certificate, and their names do not matter.
const OPTIONAL: &str = "tls_params: {}";
/// For servers with an RSA key, which this one has not.
const RSA: &str =
    "tls_params: { tls_maximum_protocol_version: TLSv1_2, cipher_suites: [ ECDHE-RSA-AES128-GCM-SHA256 ] }";
const WHOLE: usize = usize::MAX;
const NONE: [&str; 2] = ["-", "-"];
const NO_CERTIFICATE: [&str; 2] = [
    "PEER_DID_NOT_RETURN_A_CERTIFICATE:peer_did_not_provide_required_client_certificate:TLS_error_end",
    "TLS_error:|peer_did_not_provide_required_client_certificate:TLS_error_end",
];
/// All roots of tests have the same name, so that only the signature tells them apart.
const WRONG_ROOT: [&str; 2] = [
    "verify_cert_failed:_X509_verify_cert:_certificate_verification_error_at_depth_0:_certificate_signature_failure:",
    "TLS_error:|verify_cert_failed:_its_signature_is_wrong:TLS_error_end",
];
const WRONG_NAME: [&str; 2] = [
    ":verify_cert_failed:_SAN_matcher,_certificate_SANs_are_[spiffe://mesh/other]:TLS_error_end",
    "TLS_error:|verify_cert_failed:_SAN_matcher,_certificate_SANs_are_[spiffe://mesh/other]:TLS_error_end",
];
const HTTP_REQUEST: [&str; 2] = [":HTTP_REQUEST:", "TLS_error:|the_client_sent_an_HTTP_request:TLS_error_end"];
const NO_HELLO: &str = "TLS_error:|the_client_sent_no_ClientHello:TLS_error_end";
const RESET: [&str; 2] = [":Connection_reset_by_peer:", "TLS_error:|Connection_reset_by_peer:TLS_error_end"];

const ROWS: [Row; 31] = [
    ("succeeds", Tcp, NEW, Shakes(Some("web")), NONE),
    ("needs-none", Tcp, OPTIONAL, Shakes(None), NONE),
    ("needs-one-of-that-name", Tcp, "", Shakes(None), NO_CERTIFICATE),
    ("has-none", Http, NEW, Shakes(None), NO_CERTIFICATE),
    ("has-none-in-1.2", Http, OLD, Shakes(None), NO_CERTIFICATE),
    ("has-none-for-tcp", Tcp, NEW, Shakes(None), NO_CERTIFICATE),
    ("has-none-inspected", Inspected, NEW, Shakes(None), NO_CERTIFICATE),
    ("wrong-root", Http, NEW, Shakes(Some("stranger")), WRONG_ROOT),
    ("wrong-root-in-1.2", Http, OLD, Shakes(Some("stranger")), WRONG_ROOT),
    ("wrong-name", Http, NEW, Shakes(Some("other")), WRONG_NAME),
    ("wrong-name-in-1.2", Tcp, OLD, Shakes(Some("other")), WRONG_NAME),
    ("expired", Http, NEW, Shakes(Some("expired")), ["_certificate_has_expired:", "|verify_cert_failed:_it_expired_"]),
    ("distrusts", Http, OLD, Distrusts, ["_ALERT_DECRYPT_ERROR:", "|the_peer_sent_the_alert_DecryptError:"]),
    ("no-cipher", Http, RSA, Shakes(Some("web")), [":NO_SHARED_CIPHER:", "|peer_is_incompatible:"]),
    ("http", Http, NEW, Says(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"), HTTP_REQUEST),
    ("http-for-tcp", Tcp, NEW, Says(b"POST / HTTP/1.1\r\nhost: a\r\n\r\n"), HTTP_REQUEST),
    ("http-inspected", Inspected, NEW, Says(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"), HTTP_REQUEST),
    ("garbage", Http, NEW, Says(b"\0\x01\x02 garbage, garbage"), [":WRONG_VERSION_NUMBER:", NO_HELLO]),
    ("no-hello", Http, NEW, Says(b"\x16\x03\x01\0\x05hello"), [":EXCESSIVE_MESSAGE_SIZE:", NO_HELLO]),
    ("says-nothing", Http, NEW, Begins(0, Waits), NONE),
    ("says-half-for-tcp", Tcp, NEW, Begins(50, Waits), NONE),
    ("leaves", Http, NEW, Begins(0, Closes), NONE),
    ("leaves-tcp", Tcp, NEW, Begins(50, Closes), NONE),
    ("resets", Http, NEW, Begins(0, Resets), RESET),
    ("resets-half", Http, NEW, Begins(50, Resets), RESET),
    ("resets-whole", Http, NEW, Begins(WHOLE, Resets), RESET),
    ("leaves-inspected", Inspected, NEW, Begins(0, Closes), NONE),
    ("leaves-inspected-half", Inspected, NEW, Begins(50, Closes), NONE),
    ("resets-inspected", Inspected, NEW, Begins(0, Resets), NONE),
    ("matched", Matched, NEW, Shakes(None), NO_CERTIFICATE),
    ("unmatched", Matched, NEW, Says(b"SSH-2.0-OpenSSH_9.2\r\n"), ["WRONG_VERSION_NUMBER", "-"]),
];

/// What is counted, of a listener's port and of the chain's last filter.
const COUNTED: [&str; 13] = [
    "ssl.connection_error",
    "ssl.handshake",
    "ssl.no_certificate",
    "ssl.fail_verify_no_cert",
    "ssl.fail_verify_error",
    "ssl.fail_verify_san",
    "downstream_cx_transport_socket_connect_timeout",
    "downstream_listener_filter_remote_close",
    "downstream_listener_filter_error",
    "no_filter_chain_match",
    "http.downstream_cx_total",
    "http.downstream_cx_ssl_total",
    "tcp.downstream_cx_total",
];

/// A row's lines, each with a reason, and what was counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    lines: Vec<(String, String)>,
    counted: Vec<String>,
}

#[test]
fn evenkeel_and_envoy_say_the_same_of_handshakes() {
    let scene = Scene::new();
    let [mut envoy, mut evenkeel] = [Program::Envoy, Program::Evenkeel].map(|program| scene.run(program));
    let mut failures = Vec::new();
    for (name, _, _, _, reasons) in ROWS {
        let (envoy, evenkeel) = (envoy.remove(name).unwrap_or_default(), evenkeel.remove(name).unwrap_or_default());
        let reasoned = [(&envoy, reasons[0]), (&evenkeel, reasons[1])].iter().all(|(seen, reason)| {
            let says = |(_, said): &(String, String)| said.contains(reason) && (*reason == "-") == (said == "-");
            !seen.lines.is_empty() && seen.lines.iter().all(says)
        });
        let rest = |seen: &Seen| seen.lines.iter().map(|(line, _)| line.clone()).collect::<Vec<_>>();
        if !reasoned || rest(&envoy) != rest(&evenkeel) || envoy.counted != evenkeel.counted {
            failures.push(format!("{name}: Envoy {envoy:#?}, Evenkeel {evenkeel:#?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

struct Scene {
    folder: tempfile::TempDir,
    ca: TestCa,
    clients: [(&'static str, Identity); 4],
    echo: TcpEcho,
}

impl Scene {
    fn new() -> Self {
        let (ca, stranger) = (TestCa::new(), TestCa::new());
        let folder = tempfile::tempdir().expect("a temporary folder");
        ca.for_dns(&["web.test"]).write(folder.path(), "server");
        std::fs::write(folder.path().join("root.pem"), ca.root_pem()).expect("a writable folder");
        let clients = [
            ("web", ca.for_spiffe("spiffe://mesh/web")),
            ("other", ca.for_spiffe("spiffe://mesh/other")),
            ("expired", ca.expired("spiffe://mesh/web")),
            ("stranger", stranger.for_spiffe("spiffe://mesh/web")),
        ];
        Self { folder, ca, clients, echo: TcpEcho::start() }
    }

    fn run(&self, program: Program) -> BTreeMap<String, Seen> {
        let (file, log) = (self.folder.path().join("bootstrap.yaml"), self.folder.path().join("access.log"));
        let ([admin], ports) = (free_ports::<1>(), free_ports::<{ ROWS.len() }>());
        let listeners: String = ROWS.iter().zip(ports).map(|(row, port)| self.listener(row, port, &log)).collect();
        let echo = cluster("echo", &endpoint(self.echo.address().port(), ""), "");
        std::fs::write(&file, web::scene(admin, &listeners, &[echo])).expect("a writable folder");
        // Not a row's port: whoever looks whether it is open is logged.
        let mut process = web::start(program, &file, admin, admin);
        std::thread::scope(|scope| {
            for ((.., does, _), port) in ROWS.iter().zip(ports) {
                scope.spawn(move || self.connect(*does, (Ipv4Addr::LOCALHOST, port).into()));
            }
        });
        let logged = eventually(&format!("{program:?} to have written all"), || logged(&log));
        std::fs::remove_file(&log).expect("it was written");
        let counted = statistics(&mut process, admin, &ports);
        let seen = |(name, mut lines): (String, Vec<_>)| {
            lines.sort();
            let counted = counted.get(&name).cloned().unwrap_or_default();
            (name, Seen { lines, counted })
        };
        logged.into_iter().map(seen).collect()
    }

    fn connect(&self, does: Does, server: SocketAddr) {
        let identity =
            |wanted| self.clients.iter().find(|(name, _)| Some(*name) == wanted).map(|(_, identity)| identity);
        let mut client = TlsClient { server_name: "web.test", root_pem: self.ca.root_pem(), ..TlsClient::default() };
        match does {
            Shakes(name) => {
                client.identity = identity(name);
                // In TLS 1.3 a client knows that it was refused when it reads.
                let _ = client.open(server).and_then(|mut connection| {
                    connection.send("ping")?;
                    connection.read_exact(4)
                });
            }
            Distrusts => {
                client.root_pem = TestCa::new().root_pem();
                assert!(client.open(server).is_err());
            }
            Says(bytes) => self.talk(server, bytes, Waits),
            Begins(count, end) => {
                let hello = client.client_hello();
                self.talk(server, hello.get(..count).unwrap_or(&hello), end);
            }
        }
    }

    fn talk(&self, server: SocketAddr, bytes: &[u8], end: End) {
        let mut socket = TcpStream::connect(server).expect("it accepts");
        socket.write_all(bytes).expect("it is open");
        match end {
            Waits => {}
            Closes => socket.shutdown(Shutdown::Write).expect("it is open"),
            Resets => {
                // A reset takes away what was not read: the first byte of an answer says that all was, and where none is due
                // a moment has to do.
                socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
                let _ = socket.read(&mut [0]);
                return reset_on_close(&socket);
            }
        }
        // Until the proxy has had enough.
        let _ = socket.read_to_end(&mut Vec::new());
    }

    fn listener(&self, (name, chain, params, ..): &Row, port: u16, log: &Path) -> String {
        let server_name = if *chain == Inspected { "%REQUESTED_SERVER_NAME%" } else { "" };
        let log = web::access_log(
            log,
            &[&format!(
                "{name};%RESPONSE_FLAGS%;%RESPONSE_CODE%;%RESPONSE_CODE_DETAILS%;%CONNECTION_TERMINATION_DETAILS%;\
                 %BYTES_RECEIVED%;%BYTES_SENT%;%PROTOCOL%;%FILTER_CHAIN_NAME%;{server_name};%DOWNSTREAM_TLS_VERSION%;\
                 %DOWNSTREAM_PEER_URI_SAN%;%DOWNSTREAM_PEER_SUBJECT%;%DOWNSTREAM_LOCAL_URI_SAN%;%UPSTREAM_CLUSTER%;\
                 %DOWNSTREAM_TRANSPORT_FAILURE_REASON%"
            )],
        );
        let filter = match chain {
            Tcp => web::tcp_filter(&format!("cluster: echo, {log}")),
            Http | Inspected | Matched => {
                let direct =
                    web::one_host("              - { match: { prefix: / }, direct_response: { status: 200 } }\n");
                web::http_filter(&format!("          http_filters: [ {ROUTER} ]\n{direct}"))
            }
        };
        let filter = filter.replace("stat_prefix: tcp", &format!("stat_prefix: {name}"));
        let filter = filter.replace("stat_prefix: http", &format!("stat_prefix: {name}"));
        let inspector = match chain {
            Inspected | Matched => {
                "    listener_filters: [ { name: i, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector } } ]\n"
            }
            Http | Tcp => "",
        };
        let only = if *chain == Matched { "      filter_chain_match: { transport_protocol: tls }\n" } else { "" };
        let (folder, required) = (self.folder.path().display(), !params.is_empty() && *params != OPTIONAL);
        let comma = if params.is_empty() { "" } else { ", " };
        let names = match *params {
            OPTIONAL => "",
            _ => ", match_typed_subject_alt_names: [ { san_type: URI, matcher: { exact: \"spiffe://mesh/web\" } } ]",
        };
        format!(
            "  - name: {name}
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    {log}
{inspector}    filter_chains:
    - name: {name}-chain
{only}      transport_socket_connect_timeout: 0.5s
      transport_socket:
        name: tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: {required}
          common_tls_context: {{ {params}{comma}tls_certificates: [ {{ certificate_chain: {{ filename: {folder}/server-cert.pem }}, private_key: {{ filename: {folder}/server-key.pem }} }} ], validation_context: {{ trusted_ca: {{ filename: {folder}/root.pem }}{names} }} }}
      filters:
{filter}"
        )
    }
}

/// The lines by row, once all are there: the listener's, and the TCP proxy's.
fn logged(log: &Path) -> Option<BTreeMap<String, Vec<(String, String)>>> {
    let text = std::fs::read_to_string(log).ok()?;
    let mut rows = BTreeMap::<_, Vec<_>>::new();
    for line in text.lines() {
        let (name, rest) = line.split_once(';')?;
        let (rest, reason) = rest.rsplit_once(';')?;
        // BoringSSL calls the version 1.2 before one is agreed on.
        let rest = if agreed(name) { rest.to_owned() } else { rest.replace(";TLSv1.2;", ";-;") };
        rows.entry(name.to_owned()).or_default().push((rest, reason.to_owned()));
    }
    let complete = |(name, chain, ..): &Row| {
        let expected = if *chain == Tcp { 2 } else { 1 };
        rows.get(*name).is_some_and(|lines| lines.len() == expected)
    };
    (text.ends_with('\n') && ROWS.iter().all(complete)).then_some(rows)
}

/// Whether the two sides came so far.
fn agreed(name: &str) -> bool {
    ROWS.iter().any(|(row, _, params, does, _)| {
        *row == name && *params != RSA && matches!(does, Shakes(_) | Distrusts | Begins(WHOLE, _))
    })
}

/// What was counted of each row, without zeros.
fn statistics(process: &mut Process, admin: u16, ports: &[u16]) -> BTreeMap<String, Vec<String>> {
    let text = process.wait_for("statistics", |_| {
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
        Some(Connection::open(admin).ok()?.get("admin", "/stats", "Connection: close\r\n").ok()?.text())
    });
    let values: BTreeMap<_, _> = text.lines().filter_map(|line| line.split_once(": ")).collect();
    let of_row = |((name, ..), port): (&Row, &u16)| {
        let counted = COUNTED.iter().filter_map(|what| {
            let full = match what.split_once('.') {
                Some((kind @ ("http" | "tcp"), metric)) => format!("{kind}.{name}.{metric}"),
                _ => format!("listener.127.0.0.1_{port}.{what}"),
            };
            let value = values.get(full.as_str()).filter(|value| **value != "0")?;
            Some(format!("{what} {value}"))
        });
        ((*name).to_owned(), counted.collect())
    };
    ROWS.iter().zip(ports).map(of_row).collect()
}
