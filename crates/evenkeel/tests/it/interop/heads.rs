//! Request heads that connection managers handle differently, and malformed heads: the client's response, the access log and
//! the statistics are the same in Envoy and Evenkeel, over HTTP/1 and HTTP/2.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::http2::Frame;
use evenkeel_testkit::{Connection, Http2Frames, free_ports, wait};

use super::proxy::Program;
use super::web::{self, ROUTER, cluster, endpoint};

/// How long a program may take to write its log.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connection managers: name, and what they say. Without a word a malformed message ends its HTTP/2 connection.
const MANAGERS: [(&str, &str); 5] = [
    ("plain", ""),
    ("lenient", "          stream_error_on_invalid_http_message: true\n"),
    (
        "drops",
        "          common_http_protocol_options: { headers_with_underscores_action: DROP_HEADER }\n          http_protocol_options: { enable_trailers: true }\n",
    ),
    (
        "rejects",
        "          common_http_protocol_options: { headers_with_underscores_action: REJECT_REQUEST }\n          http_protocol_options: { enable_trailers: true }\n",
    ),
    ("no-urls", "          normalize_path: true\n          http_protocol_options: { allow_absolute_url: false }\n"),
];

/// What a client does on a connection of its own.
#[derive(Clone)]
enum Ask {
    /// Sends this HTTP/1 and reads an answer.
    Http1(String),
    /// Sends these frames and reads to the end of stream 1.
    Http2(Vec<u8>),
    /// Sends this HTTP/1, ends its sending, and reads an answer if there is one.
    Ends(String),
    /// Asks for the path over HTTP/2, and resets the stream with this code when the answer has begun, or when there is none.
    Reset(&'static str, u32),
}

struct Row {
    name: String,
    manager: &'static str,
    ask: Ask,
}

/// What came of a row: what the client got, and the line of the access log.
type Outcome = (String, String);

#[test]
fn evenkeel_and_envoy_take_and_refuse_the_same_heads() {
    let upstream = upstream();
    let rows: Vec<Row> = [underscores(), targets(), malformed(), resets(), ends()].concat_rows();
    let (envoy, envoys_counts) = run(Program::Envoy, upstream, &rows);
    let (evenkeel, counts) = run(Program::Evenkeel, upstream, &rows);
    let mut differences = String::new();
    for (name, expected) in &envoy {
        if evenkeel.get(name) != Some(expected) {
            let _ = writeln!(differences, "{name}:\n- {expected:?}\n+ {:?}", evenkeel.get(name));
        }
    }
    for (name, expected) in &envoys_counts {
        if counts.get(name) != Some(expected) {
            let _ = writeln!(differences, "{name}:\n- {expected}\n+ {:?}", counts.get(name));
        }
    }
    assert!(differences.is_empty(), "- Envoy, + Evenkeel\n{differences}");
    let says = |row: &str, answer: &str, line: &str| {
        let (got, logged) = &envoy[row];
        assert!(got.contains(answer) && logged.contains(line), "{row}: {got:?} {logged:?}");
    };
    says("rejects: h1 x_a", "400", "DPE http1.unexpected_underscore");
    says("rejects: h2 x_a", "reset 2", "DR http2.unexpected_underscore");
    says("drops: h1 x_a", "a-b: 2", "- via_upstream");
    says("no-urls: GET http://b/p", "404", "- absolute_path_rejected");
    says("lenient: h2 upper case", "reset 1", "DPE http2.invalid.header.field");
    says("plain: h2 client resets 0 /hangs", "", "0 - -");
    says("drops: h1 a thousand", "200", "- via_upstream");
    says("plain: GET *", "400", "DPE http1.invalid_url");
    says("no-urls: GET *", "404", "- absolute_path_rejected");
    says("plain: h2 body that is too long", "reset 1", "DPE http2.remote_reset");
    says("plain: ends in a head", "", "DC downstream_remote_disconnect");
    assert!(envoys_counts["http1.dropped_headers_with_underscores"] > 0, "{envoys_counts:?}");
}

/// Rows of several tables.
trait ConcatRows {
    fn concat_rows(self) -> Vec<Row>;
}

impl<const N: usize> ConcatRows for [Vec<Row>; N] {
    fn concat_rows(self) -> Vec<Row> {
        self.into_iter().flatten().collect()
    }
}

// Rows ----------------------------------------------------------------------------------------------------------------------

fn http1(manager: &'static str, name: &str, text: String) -> Row {
    Row { name: format!("{manager}: {name}"), manager, ask: Ask::Http1(text) }
}

fn http2(manager: &'static str, name: &str, frames: Vec<u8>) -> Row {
    Row { name: format!("{manager}: h2 {name}"), manager, ask: Ask::Http2(frames) }
}

fn underscores() -> Vec<Row> {
    let many: String = (0..120).map(|number| format!("x_{number}: 1\r\n")).collect();
    let many_fields: Vec<_> = (0..120).map(|number| (format!("x_{number}"), "1")).collect();
    let many_fields: Vec<(&str, &str)> = many_fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let ask = |manager| {
        let get = |path: &str, fields: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let chunked = |trailers: &str| {
            format!("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n{trailers}\r\n")
        };
        let with_trailers = |fields: &[(&str, &str)]| {
            [head("POST", "/p", &[], false), frame(Http2Frames::DATA, 0, b"a"), block(fields, true)].concat()
        };
        vec![
            http1(manager, "h1 x_a", get("/p", "x_a: 1\r\na-b: 2\r\n_a: 3\r\na_: 4\r\n")),
            http1(manager, "h1 in the path", get("/p_q?r_s=1", "a-b: x_y\r\n")),
            http1(manager, "h1 named by connection", get("/p", "connection: x_a\r\nx_a: 1\r\n")),
            http1(
                manager,
                "h1 that looks like a length",
                get("/p", "content_length: 5\r\ntransfer_encoding: chunked\r\n"),
            ),
            http1(manager, "h1 trailers", chunked("x_t: 1\r\ny-t: 2\r\n")),
            http1(manager, "h1 other trailers", chunked("y-t: 2\r\n")),
            http2(manager, "x_a", head("GET", "/p", &[("x_a", "1"), ("a-b", "2"), ("_a", "3")], true)),
            http2(manager, "in the path", head("GET", "/p_q?r_s=1", &[("a-b", "x_y")], true)),
            http2(manager, "trailers", with_trailers(&[("x_t", "1"), ("y-t", "2")])),
            http2(manager, "other trailers", with_trailers(&[("y-t", "2")])),
        ]
    };
    let mut rows = [ask("plain"), ask("drops"), ask("rejects")].concat_rows();
    // More lines than the parser makes room for at first.
    let crowd: String = (0..1000).map(|number| format!("x_{number}: 1\r\n")).collect();
    for manager in ["drops", "rejects"] {
        rows.push(http1(manager, "h1 a thousand", format!("GET /p HTTP/1.1\r\nHost: a\r\n{crowd}a-b: 2\r\n\r\n")));
        rows.push(http1(manager, "h1 many", format!("GET /p HTTP/1.1\r\nHost: a\r\n{many}\r\n")));
        rows.push(http2(manager, "many", head("GET", "/p", &many_fields, true)));
    }
    rows
}

fn targets() -> Vec<Row> {
    let mut rows = Vec::new();
    for manager in ["plain", "no-urls"] {
        for target in [
            "GET http://b/p",
            "GET https://b/p?q",
            "GET HTTP://b",
            "OPTIONS *",
            "GET *",
            "CONNECT *",
            "GET b/p",
            "CONNECT b:80",
            "OPTIONS http://b",
        ] {
            rows.push(http1(manager, target, format!("{target} HTTP/1.1\r\nHost: a\r\n\r\n")));
        }
        rows.push(http2(manager, "OPTIONS *", head("OPTIONS", "*", &[], true)));
        rows.push(http2(manager, "GET *", head("GET", "*", &[], true)));
    }
    // What is no URL to Evenkeel is a bad request; what is not looked into is answered like others.
    for target in ["http://[/p", "http://b/p#f", "http://u@b/p"] {
        rows.push(http1("no-urls", target, format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")));
    }
    // RFC 9112 section 3.2: Host is there whatever the target's form. Envoy asks for it only where the URL does not stand in.
    rows.push(http1("no-urls", "no host", "GET http://b/p HTTP/1.1\r\n\r\n".to_owned()));
    rows.push(http1(
        "no-urls",
        "two requests",
        "GET http://b/p HTTP/1.1\r\nHost: a\r\n\r\nGET /p HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
    ));
    rows
}

/// Heads that RFC 9113 has no request for.
fn malformed() -> Vec<Row> {
    let (get, scheme, authority) = ((":method", "GET"), (":scheme", "http"), (":authority", "a"));
    let trailers = |fields: &[(&str, &str)], end: bool| {
        [head("POST", "/p", &[], false), frame(Http2Frames::DATA, 0, b"a"), block(fields, end)].concat()
    };
    let body = |length, end: bool| {
        let end = if end { Http2Frames::END_STREAM } else { 0 };
        [head("POST", "/hangs", &[("content-length", length)], false), frame(Http2Frames::DATA, end, b"ab")].concat()
    };
    let bytes = |block: &[u8]| {
        Http2Frames::bytes(Http2Frames::HEADERS, Http2Frames::END_STREAM | Http2Frames::END_HEADERS, 1, block)
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("upper case", head("GET", "/p", &[("X-Up", "1")], true)),
        ("blank in a name", head("GET", "/p", &[("x a", "1")], true)),
        ("no name", head("GET", "/p", &[("", "1")], true)),
        ("NUL in a value", head("GET", "/p", &[("x-a", "a\0b")], true)),
        ("connection", head("GET", "/p", &[("connection", "close")], true)),
        ("te", head("GET", "/p", &[("te", "gzip")], true)),
        ("length that is none", head("GET", "/p", &[("content-length", "zz")], false)),
        ("body that is missing", head("GET", "/p", &[("content-length", "5")], true)),
        ("unknown pseudo-field", head("GET", "/p", &[(":foo", "1")], true)),
        ("no path", block(&[get, scheme, authority], true)),
        ("no method", block(&[(":path", "/p"), scheme, authority], true)),
        ("two methods", block(&[get, get, (":path", "/p"), scheme, authority], true)),
        ("late pseudo-field", block(&[get, ("x-a", "1"), (":path", "/p"), scheme, authority], true)),
        ("no slash", block(&[get, (":path", "p"), scheme, authority], true)),
        ("authority that is none", block(&[get, (":path", "/p"), scheme, (":authority", "a b")], true)),
        ("CONNECT with a path", block(&[(":method", "CONNECT"), (":path", "/p"), authority], true)),
        (
            "extended CONNECT",
            block(&[(":method", "CONNECT"), (":protocol", "websocket"), (":path", "/p"), scheme, authority], true),
        ),
        ("block that breaks off", bytes(&[0, 0x7f])),
        ("index that is not there", bytes(&[0xff, 0xff, 3])),
        ("pseudo-field in trailers", trailers(&[(":path", "/x")], true)),
        ("trailers that do not end", trailers(&[("x-t", "1")], false)),
        ("upper case in trailers", trailers(&[("X-T", "1")], true)),
        ("body that is too short", body("5", true)),
        ("body that is too long", body("1", false)),
    ];
    let under = |manager| cases.iter().map(move |(name, frames)| http2(manager, name, frames.clone()));
    under("plain").chain(under("lenient")).collect()
}

fn resets() -> Vec<Row> {
    let mut rows = Vec::new();
    for code in 0..=13 {
        for path in ["/hangs", "/begins"] {
            let name = format!("plain: h2 client resets {code} {path}");
            rows.push(Row { name, manager: "plain", ask: Ask::Reset(path, code) });
        }
    }
    rows
}

/// Clients that end their sending before their request is complete.
fn ends() -> Vec<Row> {
    let texts = [
        ("in a method", "GE"),
        ("in a head", "GET /p HTTP/1.1\r\nHost: a\r\n"),
        ("in a body", "POST /hangs HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"),
    ];
    let row = |(name, text): (&str, &str)| Row {
        name: format!("plain: ends {name}"),
        manager: "plain",
        ask: Ask::Ends(text.to_owned()),
    };
    texts.map(row).into()
}

// Frames --------------------------------------------------------------------------------------------------------------------

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    Http2Frames::bytes(kind, flags, 1, payload)
}

fn block(fields: &[(&str, &str)], end: bool) -> Vec<u8> {
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| Http2Frames::field(name, value)).collect();
    let end = if end { Http2Frames::END_STREAM } else { 0 };
    frame(Http2Frames::HEADERS, Http2Frames::END_HEADERS | end, &block)
}

fn head(method: &str, path: &str, fields: &[(&str, &str)], end: bool) -> Vec<u8> {
    let pseudo = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "a")];
    block(&[&pseudo, fields].concat(), end)
}

// Running -------------------------------------------------------------------------------------------------------------------

/// What came of all rows, and what was counted.
fn run(program: Program, upstream: SocketAddr, rows: &[Row]) -> (BTreeMap<String, Outcome>, BTreeMap<String, u64>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    let [admin] = free_ports();
    let ports = free_ports::<{ MANAGERS.len() }>();
    let access_log = web::access_log(
        &log,
        &[
            "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%>%DOWNSTREAM_LOCAL_PORT% %REQ(:METHOD)% %REQ(:PATH)% %REQ(:AUTHORITY)% %PROTOCOL% \
           %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %BYTES_RECEIVED% %BYTES_SENT%",
        ],
    );
    let listeners: String = MANAGERS
        .iter()
        .zip(ports)
        .map(|((name, more), port)| {
            let route = web::one_host("              - { match: { prefix: / }, route: { cluster: web } }\n");
            let manager = format!("{more}          {access_log}\n          http_filters: [ {ROUTER} ]\n{route}");
            web::http_listener(name, port, &manager).replace("stat_prefix: http", &format!("stat_prefix: {name}"))
        })
        .collect();
    let web = cluster("web", &endpoint(upstream.port(), ""), "");
    std::fs::write(&file, web::scene(admin, &listeners, &[web])).expect("a writable folder");
    let mut process = web::start(program, &file, admin, ports[0]);
    let mut answers = Vec::new();
    std::thread::scope(|scope| {
        let started: Vec<_> = rows
            .iter()
            .map(|row| {
                let at = MANAGERS.iter().position(|(name, _)| *name == row.manager).expect("a manager");
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[at]));
                (row, scope.spawn(move || play(&row.ask, address)))
            })
            .collect();
        for (row, thread) in started {
            let (client, answer) =
                thread.join().expect("no panic").unwrap_or_else(|error| panic!("{}: {error}", row.name));
            let at = MANAGERS.iter().position(|(name, _)| *name == row.manager).expect("a manager");
            // Two connections to different listeners may have the same port of ours.
            answers.push((row, format!("{client}>{}", ports[at]), answer));
        }
    });
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    let missing = || {
        let lines = lines(&log);
        rows.iter().zip(&answers).filter(|(_, (_, client, _))| !lines.contains_key(client)).count()
    };
    let _ = wait::poll(PATIENCE, || (missing() == 0).then_some(()));
    let lines = lines(&log);
    let counts = counts(admin);
    let outcome = |client: &String| lines.get(client).cloned().unwrap_or_default();
    let outcomes = answers.into_iter().map(|(row, client, answer)| (row.name.clone(), (answer, outcome(&client))));
    (outcomes.collect(), counts)
}

/// Lines of an access log by their connections: both ends.
fn lines(log: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let mut lines: BTreeMap<String, String> = BTreeMap::new();
    for (client, line) in text.lines().filter_map(|line| line.split_once(' ')) {
        // Envoy adds its library's words.
        let line = line.replace("codec_error:The_user_callback_function_failed", "codec_error");
        let _ = writeln!(lines.entry(client.to_owned()).or_default(), "{line}");
    }
    lines
}

/// What matters here of the statistics.
fn counts(admin: u16) -> BTreeMap<String, u64> {
    let mut admin = Connection::open((Ipv4Addr::LOCALHOST, admin).into()).expect("an admin port");
    let text = admin.get("admin", "/stats", "").expect("statistics").text();
    let read: BTreeMap<_, _> = text.lines().filter_map(|line| line.split_once(": ")).collect();
    let value = |name: &str| read.get(name).and_then(|value| value.parse().ok()).unwrap_or(0);
    let of_codecs = ["http1", "http2"].into_iter().flat_map(|codec| {
        ["dropped_headers_with_underscores", "requests_rejected_with_underscores_in_headers", "rx_messaging_error"]
            .map(|name| format!("{codec}.{name}"))
    });
    let of_managers = MANAGERS.iter().flat_map(|(manager, _)| {
        [
            "downstream_rq_total",
            "downstream_rq_4xx",
            "downstream_rq_completed",
            "downstream_rq_rx_reset",
            "downstream_rq_tx_reset",
            "downstream_rq_non_relative_path",
            "downstream_cx_protocol_error",
        ]
        .map(|name| format!("http.{manager}.{name}"))
    });
    of_codecs.chain(of_managers).map(|name| (name.clone(), value(&name))).collect()
}

/// Our address, and what came back.
fn play(ask: &Ask, address: SocketAddr) -> io::Result<(SocketAddr, String)> {
    if let Ask::Ends(text) = ask {
        let mut connection = Connection::open(address)?;
        connection.send(text)?;
        let client = connection.local_addr()?;
        connection.finish_sending()?;
        // In order or by a reset: that depends on what had arrived by then.
        let got = connection.read_to_end().unwrap_or_default();
        return Ok((client, String::from_utf8_lossy(&got).into_owned()));
    }
    if let Ask::Http1(text) = ask {
        let mut connection = Connection::open(address)?;
        connection.send(text)?;
        let client = connection.local_addr()?;
        let mut got = String::new();
        for _ in 0..text.matches("HTTP/1.1\r\n").count() {
            let response = connection.response()?;
            let _ = writeln!(got, "{} (stays open: {})\n{}", response.status, response.keeps_open(), response.text());
        }
        return Ok((client, got));
    }
    let mut connection = Http2Frames::open(address)?;
    let client = connection.local_addr()?;
    connection.frame(Http2Frames::SETTINGS, 0, 0, &[])?;
    match ask {
        Ask::Http1(_) | Ask::Ends(_) => {}
        Ask::Http2(frames) => connection.send(frames)?,
        Ask::Reset(path, code) => {
            connection.send(&head("GET", path, &[], true))?;
            connection.frame(Http2Frames::PING, 0, 0, b"and then")?;
            let until = if *path == "/hangs" { Http2Frames::PING } else { Http2Frames::DATA };
            while connection.next_frame()?.ok_or(io::ErrorKind::UnexpectedEof)?.kind != until {}
            connection.frame(Http2Frames::RST_STREAM, 0, 1, &code.to_be_bytes())?;
            return Ok((client, String::new()));
        }
    }
    Ok((client, answer(&mut connection)))
}

/// What comes on stream 1, to its end or the connection's.
fn answer(connection: &mut Http2Frames) -> String {
    let (mut got, mut body) = (String::new(), String::new());
    loop {
        let frame = match connection.next_frame() {
            Ok(Some(frame)) => frame,
            // In order or by a reset: that depends on what had arrived by then.
            Ok(None) | Err(_) => return got + "closed",
        };
        let Frame { kind, flags, payload, stream } = frame;
        match kind {
            Http2Frames::HEADERS => got.push_str("head\n"),
            Http2Frames::DATA => body.push_str(&String::from_utf8_lossy(&payload)),
            Http2Frames::RST_STREAM => {
                let code = payload.try_into().map_or(u32::MAX, u32::from_be_bytes);
                return format!("{got}{body}reset {code}");
            }
            _ => {}
        }
        if stream == 1 && kind <= Http2Frames::HEADERS && flags & Http2Frames::END_STREAM != 0 {
            return got + &body;
        }
    }
}

/// Echoes what of a head is not the proxies' own; hangs, or begins and hangs, when asked to.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || while serve(&stream).is_some() {});
        }
    });
    address
}

/// One request; `None` at the connection's end.
fn serve(mut stream: &TcpStream) -> Option<()> {
    let mut read = |ends: &mut dyn FnMut(&[u8]) -> bool| {
        let (mut bytes, mut byte) = (Vec::new(), [0]);
        while !ends(&bytes) {
            stream.read_exact(&mut byte).ok()?;
            bytes.push(byte[0]);
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let head = read(&mut |bytes| bytes.ends_with(b"\r\n\r\n"))?;
    if head.contains("chunked\r\n") && !head.contains("_encoding") {
        read(&mut |bytes| bytes.ends_with(b"0\r\n\r\n"))?;
    }
    if head.split(' ').nth(1) == Some("/hangs") {
        let _ = stream.read_to_end(&mut Vec::new());
        return None;
    }
    if head.starts_with("GET /begins") {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nab").ok()?;
        let _ = stream.read_to_end(&mut Vec::new());
        return None;
    }
    let ours = |line: &&str| !line.starts_with("x-");
    let text = head.lines().filter(ours).collect::<Vec<_>>().join("|");
    let answer = format!("HTTP/1.1 200 OK\r\nx_answer: 1\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    stream.write_all(answer.as_bytes()).ok()
}
