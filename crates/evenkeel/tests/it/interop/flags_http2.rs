//! Failures of an HTTP/2 upstream: access log and statistics are the same as Envoy's.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_testkit::{Connection, Http2Frames as H2, free_ports, wait};

use super::proxy::Program;
use super::web::{self, ROUTER, endpoint};

/// What an upstream does when it was asked.
enum Does {
    /// Sends these frames, whose stream is the request's unless they say otherwise; then it waits.
    Sends(Vec<Part>),
    /// The same, and closes.
    Closes(Vec<Part>),
    /// Sends these bytes before anything else, its SETTINGS included, and waits.
    Begins(Vec<u8>),
}

/// A frame: type, flags, whether it is the connection's, payload.
type Part = (u8, u8, bool, Vec<u8>);

use Does::{Begins, Closes, Sends};

/// A row, its upstream's port, and what that is known to be counted by in Envoy alone.
struct Row {
    name: &'static str,
    port: u16,
    known: &'static [&'static str],
}

/// What is compared of a cluster's statistics.
const COUNTED: [&str; 5] = [
    "upstream_rq_rx_reset",
    "upstream_rq_tx_reset",
    "upstream_cx_protocol_error",
    "upstream_rq_pending_failure_eject",
    "http2.rx_messaging_error",
];
/// And of the connection manager's, over all rows.
const COUNTED_DOWNSTREAM: [&str; 3] = ["downstream_rq_rx_reset", "downstream_rq_tx_reset", "downstream_rq_completed"];
/// How long a program may take to write its log, and to count.
const PATIENCE: Duration = Duration::from_secs(10);
/// The window both proxies give a stream, in bytes.
const WINDOW: usize = 65_535;

fn head(fields: &[(&str, &str)], end: bool) -> Part {
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| H2::field(name, value)).collect();
    let end = if end { H2::END_STREAM } else { 0 };
    (H2::HEADERS, H2::END_HEADERS | end, false, block)
}

fn ok() -> Part {
    head(&[(":status", "200")], false)
}

fn data(bytes: &[u8], end: bool) -> Part {
    (H2::DATA, if end { H2::END_STREAM } else { 0 }, false, bytes.to_vec())
}

fn reset(code: u32) -> Part {
    (H2::RST_STREAM, 0, false, code.to_be_bytes().to_vec())
}

/// Of the whole connection.
fn goaway(last: u32, code: u32) -> Part {
    (H2::GOAWAY, 0, true, [last.to_be_bytes(), code.to_be_bytes()].concat())
}

/// A PING of the wrong length.
fn bad_ping() -> Part {
    (H2::PING, 0, true, vec![1])
}

fn table() -> Vec<(&'static str, Does)> {
    let answers = |name, fields: &[(&str, &str)]| (name, Sends(vec![head(fields, true)]));
    let begun = |name, then: Part| (name, Sends(vec![ok(), data(b"ab", false), then]));
    let long: Vec<(String, String)> = (0..150).map(|number| (format!("x-{number}"), "1".to_owned())).collect();
    let mut many = vec![(":status", "200")];
    many.extend(long.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let mut rows = vec![
        answers("answers", &[(":status", "200")]),
        answers("upper-case", &[(":status", "200"), ("X-Up", "1")]),
        answers("no-status", &[("x-a", "1")]),
        answers("status-that-is-none", &[(":status", "abc")]),
        answers("connection-field", &[(":status", "200"), ("connection", "close")]),
        answers("switches-protocols", &[(":status", "101")]),
        answers("no-content-of-a-length", &[(":status", "204"), ("content-length", "5")]),
        answers("ends-with-100", &[(":status", "100")]),
        answers("too-many-fields", &many),
        ("body-too-short", Sends(vec![head(&[(":status", "200"), ("content-length", "5")], false), data(b"ab", true)])),
        ("body-too-long", Sends(vec![head(&[(":status", "200"), ("content-length", "1")], false), data(b"ab", true)])),
        ("length-that-is-none", Sends(vec![head(&[(":status", "200"), ("content-length", "zz")], false)])),
        ("bad-index", Sends(vec![(H2::HEADERS, H2::END_HEADERS, false, vec![0xff, 0xff, 3])])),
        ("bad-ping", Sends(vec![bad_ping()])),
        ("bad-window", Sends(vec![(H2::WINDOW_UPDATE, 0, true, vec![0; 4])])),
        ("says-no-more", Closes(vec![])),
        ("leaves-before", Closes(vec![goaway(0, 0)])),
        ("leaves-with-an-error", Closes(vec![goaway(1, 1)])),
        ("begins-and-closes", Closes(vec![ok(), data(b"ab", false)])),
        ("speaks-http1", Begins(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec())),
        begun("begins-bad-ping", bad_ping()),
        begun("trailers-upper-case", head(&[("X-T", "1")], true)),
        begun("trailers-pseudo", head(&[(":status", "200")], true)),
        begun("trailers-that-go-on", head(&[("x-t", "1")], false)),
        ("overruns", Sends([vec![ok()], vec![data(&vec![b'x'; 16_000], false); 2 * WINDOW / 16_000]].concat())),
    ];
    for (before, after, code) in [
        ("reset-0", "begun-reset-0", 0),
        ("reset-1", "begun-reset-1", 1),
        ("reset-2", "begun-reset-2", 2),
        ("reset-7", "begun-reset-7", 7),
        ("reset-8", "begun-reset-8", 8),
        ("reset-11", "begun-reset-11", 11),
        ("reset-13", "begun-reset-13", 13),
    ] {
        rows.extend([(before, Sends(vec![reset(code)])), begun(after, reset(code))]);
    }
    rows.push((BODY_FIRST, Sends(vec![data(b"ab", false)])));
    rows
}

const BODY_FIRST: &str = "body-before-head";

/// The rows, each with its upstream.
fn rows() -> Vec<Row> {
    let row = |(name, does)| {
        let known: &[_] = match name {
            // RFC 9113 section 8.1: one message is malformed, and the other streams have nothing to do with it.
            BODY_FIRST => &["upstream_cx_protocol_error"],
            _ => &[],
        };
        Row { name, port: upstream(does), known }
    };
    table().into_iter().map(row).collect()
}

#[test]
fn evenkeel_and_envoy_say_the_same_of_what_http2_upstreams_do() {
    let rows = rows();
    let envoy = run(Program::Envoy, &rows, |_| true);
    let wanted = corrected(&rows, envoy.clone());
    let evenkeel = run(Program::Evenkeel, &rows, |seen| *seen == wanted);
    let differs = |(name, said): &(&String, &String)| evenkeel.get(*name) != Some(*said);
    let differences: Vec<_> =
        wanted.iter().filter(differs).map(|(name, said)| (name, said, evenkeel.get(name))).collect();
    assert!(differences.is_empty(), "row, Envoy, Evenkeel: {differences:#?}");
    let says = |row: &str, expected: &str| assert!(envoy[row].contains(expected), "{row}: {envoy:#?}");
    says("upper-case", "502 UPE upstream_reset_before_response_started{protocol_error}");
    says("reset-1", "502 UPE upstream_reset_before_response_started{protocol_error}");
    says("reset-2", "503 UR upstream_reset_before_response_started{remote_reset}");
    says("begun-reset-1", "200 UPE upstream_reset_after_response_started{protocol_error}");
    says("too-many-fields", "503 UR ");
    says("upper-case", "upstream_cx_protocol_error: 1");
    says("begun-reset-1", "upstream_rq_tx_reset: 1");
    says("begun-reset-2", "upstream_rq_rx_reset: 1");
    says("says-no-more", "upstream_rq_pending_failure_eject: 1");
}

/// What is expected of Evenkeel where Envoy did that.
fn corrected(rows: &[Row], mut envoy: BTreeMap<String, String>) -> BTreeMap<String, String> {
    for row in rows {
        for counter in row.known {
            let said = envoy.get_mut(row.name).expect("every row has a line");
            let differs = format!("{counter}: 1");
            assert!(said.contains(&differs), "{} does not differ any more: {said}", row.name);
            *said = said.replace(&differs, &format!("{counter}: 0"));
        }
    }
    envoy
}

// Upstreams -----------------------------------------------------------------------------------------------------------------

/// Where an upstream listens that does this to every connection.
fn upstream(does: Does) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let does = Arc::new(does);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let does = Arc::clone(&does);
            // The proxy may be gone before all is said.
            std::thread::spawn(move || serve(stream, &does));
        }
    });
    port
}

fn serve(socket: TcpStream, does: &Does) -> io::Result<()> {
    let mut connection = H2::accept(socket)?;
    let (parts, closes) = match does {
        Begins(bytes) => {
            connection.send(bytes)?;
            (&[][..], false)
        }
        Sends(parts) => (parts.as_slice(), false),
        Closes(parts) => (parts.as_slice(), true),
    };
    if !matches!(does, Begins(_)) {
        connection.frame(H2::SETTINGS, 0, 0, &[])?;
    }
    while let Some(frame) = connection.next_frame()? {
        if frame.kind != H2::HEADERS {
            continue;
        }
        let stream = |of_all: bool| if of_all { 0 } else { frame.stream };
        let bytes =
            parts.iter().flat_map(|(kind, flags, of_all, payload)| H2::bytes(*kind, *flags, stream(*of_all), payload));
        connection.send(&bytes.collect::<Vec<u8>>())?;
        if closes {
            return Ok(());
        }
    }
    Ok(())
}

// Running -------------------------------------------------------------------------------------------------------------------

/// What a program's log and statistics say of each row, once `complete`.
fn run(
    program: Program,
    rows: &[Row],
    complete: impl Fn(&BTreeMap<String, String>) -> bool,
) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    let [http, admin] = free_ports();
    std::fs::write(&file, scene(&log, http, admin, rows)).expect("a writable folder");
    let mut process = web::start(program, &file, admin, http);
    std::thread::scope(|scope| {
        for row in rows {
            scope.spawn(move || {
                let mut client = Connection::open((Ipv4Addr::LOCALHOST, http).into()).expect("it accepts");
                // An answer that is cut short is what some rows are about.
                let _ = client.get("test", &format!("/{}", row.name), "connection: close\r\n");
            });
        }
    });
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    let whole = |seen: &BTreeMap<String, String>| seen.len() > rows.len() && complete(seen);
    let seen = || said(&log, admin, rows);
    wait::poll(PATIENCE, || Some(seen()).filter(whole)).unwrap_or_else(seen)
}

fn said(log: &Path, admin: u16, rows: &[Row]) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: BTreeMap<_, _> = text.lines().filter_map(|line| line.strip_prefix('/')?.split_once(' ')).collect();
    let mut admin = Connection::open((Ipv4Addr::LOCALHOST, admin).into()).expect("an admin port");
    let stats = admin.get("admin", "/stats", "").expect("statistics").text();
    let stats: BTreeMap<_, _> = stats.lines().filter_map(|line| line.split_once(": ")).collect();
    let counted = |prefix: &str, names: &[&str]| -> String {
        let value = |name: &&str| stats.get(format!("{prefix}{name}").as_str()).copied().unwrap_or("0");
        names.iter().map(|name| format!("\n  {name}: {}", value(name))).collect()
    };
    let of_row = |row: &Row| {
        let line = lines.get(row.name)?;
        Some((row.name.to_owned(), format!("{line}{}", counted(&format!("cluster.{}.", row.name), &COUNTED))))
    };
    let all = ("all".to_owned(), counted("http.http.", &COUNTED_DOWNSTREAM));
    rows.iter().filter_map(of_row).chain([all]).collect()
}

fn scene(log: &Path, http: u16, admin: u16, rows: &[Row]) -> String {
    let routes = rows.iter().map(|Row { name, .. }| {
        format!("              - {{ match: {{ path: /{name} }}, route: {{ cluster: {name} }} }}\n")
    });
    let access_log = format!(
        "access_log: [ {{ name: file, typed_config: {{ \"@type\": \
         type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: \"{}\", log_format: {{ \
         text_format_source: {{ inline_string: \"%REQ(:PATH)% %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS%\\n\" }} }} }} }} ]",
        log.display()
    );
    let manager = format!(
        "          {access_log}\n          http_filters: [ {ROUTER} ]\n{}",
        web::one_host(&routes.collect::<String>())
    );
    let clusters = rows.iter().map(|Row { name, port, .. }| {
        format!(
            "{{ name: {name}, type: STATIC, typed_extension_protocol_options: {{ \
             envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{ \"@type\": \
             type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {{ \
             http2_protocol_options: {{ initial_stream_window_size: {WINDOW} }} }} }} }}, load_assignment: {{ \
             cluster_name: {name}, endpoints: [ {{ lb_endpoints: [ {} ] }} ] }} }}",
            endpoint(*port, "")
        )
    });
    web::scene(admin, &web::http_listener("http", http, &manager), &clusters.collect::<Vec<_>>())
}
