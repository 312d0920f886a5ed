//! Collectors of spans, for both proxies: Zipkin's JSON, and OTLP over HTTP and gRPC.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use evenkeel_testkit::{Backend, Reply};
use serde_json::Value;

/// What collectors have got: spans by the `row` tag, in whatever order.
pub type Spans = Arc<Mutex<Vec<Span>>>;

/// A span as both kinds of collectors have it.
#[derive(Debug, Clone)]
pub struct Span {
    pub way: &'static str,
    pub kind: String,
    pub name: String,
    /// Trace, parent and span.
    pub ids: [String; 3],
    /// Whatever else it has.
    pub more: String,
    pub tags: BTreeMap<String, String>,
}

impl Span {
    fn of_zipkin(way: &'static str, value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let tags = value["tags"].as_object().into_iter().flatten();
        let tags = tags.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect();
        assert!(value["timestamp"].is_u64() && value["duration"].is_u64(), "{value}");
        let annotations: Vec<_> =
            value["annotations"].as_array().into_iter().flatten().map(|one| one["value"].to_string()).collect();
        let more = format!(
            "shared={} endpoint={} annotations={annotations:?}",
            value["shared"],
            endpoint_of(&value["localEndpoint"])
        );
        Self { way, kind: text("kind"), name: text("name"), ids: ["traceId", "parentId", "id"].map(text), more, tags }
    }

    fn of_otlp(way: &'static str, bytes: &[u8], resource: &str) -> Self {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut span = Self {
            way,
            kind: String::new(),
            name: String::new(),
            ids: Default::default(),
            more: resource.to_owned(),
            tags: BTreeMap::new(),
        };
        let mut times = BTreeSet::new();
        for (number, field) in fields(bytes) {
            match (number, field) {
                (1, Field::Bytes(id)) => span.ids[0] = hex(id),
                (2, Field::Bytes(id)) => span.ids[2] = hex(id),
                (4, Field::Bytes(id)) => span.ids[1] = hex(id),
                (5, Field::Bytes(name)) => span.name = String::from_utf8_lossy(name).into_owned(),
                (6, Field::Number(kind)) => span.kind = if kind == 3 { "CLIENT" } else { "SERVER" }.into(),
                (7 | 8, Field::Number(_)) => _ = times.insert(number),
                (9, Field::Bytes(attribute)) => {
                    let (name, value) = attribute_of(attribute);
                    span.tags.insert(name, value);
                }
                // Envoy also writes a status that says nothing.
                (15, Field::Bytes(status)) => {
                    let code = fields(status).last().map_or(0, |(_, code)| code.number());
                    if code != 0 {
                        _ = write!(span.more, " status={code}");
                    }
                }
                (number, field) => _ = write!(span.more, " {number}={}", field.text()),
            }
        }
        assert_eq!(times.len(), 2, "beginning and end");
        span
    }
}

/// An address of this machine is as good as another.
fn endpoint_of(endpoint: &Value) -> String {
    let has_address = endpoint["ipv4"].as_str().is_some_and(|address| address.parse::<Ipv4Addr>().is_ok());
    format!("{} {} {has_address}", endpoint["serviceName"], endpoint["port"])
}

fn attribute_of(bytes: &[u8]) -> (String, String) {
    let mut parts = [String::new(), String::new()];
    for (number, field) in fields(bytes) {
        match (number, field) {
            (1, field) => parts[0] = field.text(),
            (_, Field::Bytes(any)) => parts[1] = fields(any).last().map(|(_, text)| text.text()).unwrap_or_default(),
            _ => {}
        }
    }
    parts.into()
}

/// A field of a protocol buffer.
#[derive(Debug, Clone, Copy)]
enum Field<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

impl Field<'_> {
    fn number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Bytes(_) => 0,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        }
    }
}

/// The fields of a message that a proxy has made.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut number, mut shift) = (0, 0);
        while let [first, rest @ ..] = *bytes {
            *bytes = rest;
            number |= u64::from(first & 0x7f) << shift;
            shift += 7;
            if first & 0x80 == 0 {
                break;
            }
        }
        number
    }
    fn fixed(bytes: &mut &[u8], length: usize) -> u64 {
        let (value, rest) = bytes.split_at(length);
        *bytes = rest;
        value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => Field::Number(fixed(&mut bytes, 8)),
            5 => Field::Number(fixed(&mut bytes, 4)),
            _ => {
                let length = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(value)
            }
        };
        all.push((key >> 3, field));
    }
    all
}

/// The spans of an `ExportTraceServiceRequest`.
fn spans_of_export(way: &'static str, message: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for (_, of_resource) in fields(message) {
        let Field::Bytes(of_resource) = of_resource else { continue };
        let mut resource = String::new();
        for (number, field) in fields(of_resource) {
            match (number, field) {
                (1, Field::Bytes(attributes)) => {
                    let attributes: BTreeMap<_, _> = fields(attributes)
                        .into_iter()
                        .filter_map(
                            |(_, field)| if let Field::Bytes(bytes) = field { Some(attribute_of(bytes)) } else { None },
                        )
                        .collect();
                    // Language, name and version of the program differ.
                    resource = format!("service={:?} {:?}", attributes["service.name"], attributes.keys());
                }
                (2, Field::Bytes(of_scope)) => {
                    let of_scope = fields(of_scope).into_iter().filter(|(number, _)| *number == 2);
                    spans.extend(of_scope.filter_map(|(_, field)| match field {
                        Field::Bytes(span) => Some(Span::of_otlp(way, span, &resource)),
                        Field::Number(_) => None,
                    }));
                }
                _ => {}
            }
        }
    }
    spans
}

/// Takes Zipkin's JSON, and OTLP over HTTP.
pub fn http_collector(spans: &Spans) -> Backend {
    let spans = Arc::clone(spans);
    Backend::start(move |request| {
        let mut spans = spans.lock().expect("no test panicked");
        if request.target == "/v1/traces" {
            spans.extend(spans_of_export("otlp-http", &request.body));
            return Reply::Fixed(200, Vec::new(), Vec::new());
        }
        let way = if request.target == "/api/v2/default" { "default" } else { "zipkin" };
        let list: Value = serde_json::from_slice(&request.body).expect("a JSON list of spans");
        spans.extend(list.as_array().into_iter().flatten().map(|span| Span::of_zipkin(way, span)));
        Reply::Fixed(202, Vec::new(), Vec::new())
    })
}

/// Takes OTLP over gRPC, on the port that is returned.
pub fn grpc_collector(spans: &Spans) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let (port, spans) = (listener.local_addr().expect("a bound socket").port(), Arc::clone(spans));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve_exports(socket, Arc::clone(&spans)));
            }
        });
    });
    port
}

async fn serve_exports(socket: tokio::net::TcpStream, spans: Spans) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(socket).await?;
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request?;
        let spans = Arc::clone(&spans);
        tokio::spawn(async move {
            let path = request.uri().path().to_owned();
            let (mut body, mut bytes) = (request.into_body(), Vec::new());
            while let Some(piece) = body.data().await {
                let piece = piece?;
                body.flow_control().release_capacity(piece.len())?;
                bytes.extend_from_slice(&piece);
            }
            assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
            // Behind the flag and the length of gRPC's frame.
            spans.lock().expect("no test panicked").extend(spans_of_export("otlp", bytes.get(5..).unwrap_or_default()));
            let head = http::Response::builder().header("content-type", "application/grpc").body(()).expect("a head");
            let mut stream = respond.send_response(head, false)?;
            stream.send_data(Bytes::from_static(&[0; 5]), false)?;
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            stream.send_trailers(trailers)
        });
    }
    Ok(())
}
