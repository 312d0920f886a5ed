//! Zipkin: parents of spans, and JSON v2 (<https://zipkin.io/zipkin-api/>).

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_http::Headers;
use evenkeel_runtime_config::tracing::{OwnNode, Zipkin};
use serde_json::{Map, Value, json};

use super::b3::{self, Extracted};
use super::context::{Malformed, SpanContext};
use super::span::{Kind, Span};
use super::w3c;

/// The span of a request. `split`: it is a server's, whatever the listener's direction, as each try has its own.
/// `traced`: the decision, if the caller has made none.
pub(super) fn of_request(
    headers: &Headers,
    config: &Zipkin,
    (split, egress, traced): (bool, bool, bool),
    random: impl Fn() -> u64,
) -> Result<(SpanContext, Kind), Malformed> {
    let kind = kind(config, split, egress, false);
    let Extracted { sampled, caller, single_header } = extract(headers, config)?;
    let sampled = sampled.unwrap_or(traced);
    let context = match caller {
        Some(caller) => following(config, kind, SpanContext { sampled, single_header, ..caller }, &random),
        None => {
            let id = random();
            let high = if config.trace_id_128bit { random() } else { 0 };
            let trace_id = u128::from(high) << 64 | u128::from(id);
            SpanContext { trace_id, span_id: id, sampled, single_header, ..SpanContext::default() }
        }
    };
    Ok((context, kind))
}

/// The caller's context: B3's, and W3C's where the configuration says so and the caller names no span in B3.
fn extract(headers: &Headers, config: &Zipkin) -> Result<Extracted, Malformed> {
    let of_b3 = b3::extract(headers)?;
    if !config.uses_w3c || of_b3.caller.is_some() {
        return Ok(of_b3);
    }
    // As in Envoy, one that is malformed counts as none here.
    Ok(match w3c::extract(headers).unwrap_or_default() {
        Some(caller) => Extracted { sampled: of_b3.sampled.or(Some(caller.sampled)), caller: Some(caller), ..of_b3 },
        None => of_b3,
    })
}

/// Writes a span's context into the head of a request.
pub(super) fn inject(headers: &mut Headers, config: &Zipkin, span: &SpanContext) {
    b3::inject(headers, span);
    if config.uses_w3c {
        w3c::inject_parent(headers, span);
    }
}

/// The span of a try, below that of its request.
pub(super) fn of_try(
    request: &SpanContext,
    config: &Zipkin,
    (split, egress): (bool, bool),
    random: impl Fn() -> u64,
) -> (SpanContext, Kind) {
    let kind = kind(config, split, egress, true);
    (following(config, kind, request.clone(), &random), kind)
}

fn kind(config: &Zipkin, split: bool, egress: bool, of_try: bool) -> Kind {
    let client = if split || config.split_spans_for_request { of_try } else { egress };
    if client { Kind::Client } else { Kind::Server }
}

/// A server's span is the one that its client has begun, if ids are shared; any other is a child.
fn following(config: &Zipkin, kind: Kind, before: SpanContext, random: &impl Fn() -> u64) -> SpanContext {
    match kind {
        // No id is 0: such a parent is none.
        Kind::Server if config.shared_span_context => {
            SpanContext { parent_id: before.parent_id.filter(|parent| *parent != 0), ..before }
        }
        Kind::Server | Kind::Client => SpanContext { span_id: random(), parent_id: Some(before.span_id), ..before },
    }
}

/// The spans as a JSON list.
pub(super) fn encode(spans: &[Span], config: &Zipkin, node: &OwnNode) -> Vec<u8> {
    let endpoint = endpoint(node);
    let list: Vec<_> = spans.iter().map(|span| object(span, config, &endpoint)).collect();
    Value::Array(list).to_string().into_bytes()
}

fn object(span: &Span, config: &Zipkin, endpoint: &Value) -> Value {
    let context = &span.context;
    let mut object = Map::new();
    let mut set = |name: &str, value: Value| _ = object.insert(name.to_owned(), value);
    set("traceId", b3::trace_id_text(context.trace_id).into());
    if let Some(parent) = context.parent_id {
        set("parentId", format!("{parent:016x}").into());
    }
    set("id", format!("{:016x}", context.span_id).into());
    set("kind", if span.kind == Kind::Client { "CLIENT" } else { "SERVER" }.into());
    // As in Envoy, also of a span that begins a trace.
    if span.kind == Kind::Server && config.shared_span_context {
        set("shared", true.into());
    }
    if !span.name.is_empty() {
        set("name", (*span.name).into());
    }
    set("timestamp", micros(span.start).into());
    set("duration", (span.duration.as_micros() as u64).into());
    // The end of the span: Envoy sends that, too.
    let end = json!({ "timestamp": micros(span.start + span.duration), "value": if span.kind == Kind::Client { "cr" } else { "ss" } });
    set("annotations", json!([end]));
    set("localEndpoint", endpoint.clone());
    let tags = span.tags.iter().filter(|(_, value)| !value.is_empty());
    let tags: Map<_, _> = tags.map(|(name, value)| (name.to_owned(), value.into())).collect();
    if !tags.is_empty() {
        set("tags", tags.into());
    }
    object.into()
}

fn endpoint(node: &OwnNode) -> Value {
    let mut endpoint = Map::new();
    if let Some(address) = node.address {
        let name = if matches!(address, IpAddr::V4(_)) { "ipv4" } else { "ipv6" };
        endpoint.insert(name.to_owned(), address.to_string().into());
        endpoint.insert("port".to_owned(), json!(0));
    }
    if !node.cluster.is_empty() {
        endpoint.insert("serviceName".to_owned(), node.cluster.clone().into());
    }
    endpoint.into()
}

fn micros(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}
