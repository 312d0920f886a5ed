//! OpenTelemetry: parents of spans, and OTLP
//! (<https://opentelemetry.io/docs/specs/otlp/>, `opentelemetry.proto.collector.trace.v1`).

use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_base::grpc::{parse_status, status};
use evenkeel_http::Headers;
use evenkeel_runtime_config::tracing::OpenTelemetry;

use super::context::{Malformed, SpanContext};
use super::span::{Kind, Span};
use super::w3c;
use crate::wire::Message;

/// Numbers of `Span.SpanKind` and `Status.StatusCode`.
const KIND_SERVER: u64 = 2;
const KIND_CLIENT: u64 = 3;
const STATUS_ERROR: u64 = 2;
/// `SpanFlags`: it is known whether the parent is remote, and it is.
const FLAGS_KNOWN: u32 = 0x100;
const FLAG_REMOTE: u32 = 0x200;

/// The span of a request. `split`: each try has a span of its own. `traced`: the decision; a caller may only decide against
/// it.
pub(super) fn of_request(
    headers: &Headers,
    (split, egress, traced): (bool, bool, bool),
    random: impl Fn() -> u64,
) -> Result<(SpanContext, Kind), Malformed> {
    let kind = if egress && !split { Kind::Client } else { Kind::Server };
    let context = match w3c::extract(headers)? {
        Some(caller) => SpanContext { sampled: caller.sampled && traced, ..child(&caller, random) },
        None => SpanContext {
            trace_id: u128::from(random()) << 64 | u128::from(random()),
            span_id: random(),
            sampled: traced,
            ..SpanContext::default()
        },
    };
    Ok((context, kind))
}

/// The span of a try, below that of its request.
pub(super) fn of_try(request: &SpanContext, random: impl Fn() -> u64) -> (SpanContext, Kind) {
    (child(request, random), Kind::Client)
}

fn child(parent: &SpanContext, random: impl Fn() -> u64) -> SpanContext {
    SpanContext { span_id: random(), parent_id: Some(parent.span_id), ..parent.clone() }
}

/// `ExportTraceServiceRequest`.
pub(super) fn encode(spans: &[Span], config: &OpenTelemetry) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |of_resource| {
        of_resource.message(1, |resource| {
            attribute(resource, 1, "service.name", &config.service_name);
            config.resource.iter().for_each(|(name, value)| attribute(resource, 1, name, value));
            attribute(resource, 1, "telemetry.sdk.language", "rust");
            attribute(resource, 1, "telemetry.sdk.name", "evenkeel");
            attribute(resource, 1, "telemetry.sdk.version", env!("CARGO_PKG_VERSION"));
        });
        of_resource.message(2, |of_scope| {
            of_scope.message(1, |scope| {
                scope.text(1, b"evenkeel");
                scope.text(2, env!("CARGO_PKG_VERSION").as_bytes());
            });
            spans.iter().for_each(|one| of_scope.message(2, |message| span(message, one)));
        });
    });
    request.into_bytes()
}

fn span(message: &mut Message, span: &Span) {
    let context = &span.context;
    message.bytes(1, &context.trace_id.to_be_bytes());
    message.bytes(2, &context.span_id.to_be_bytes());
    message.text(3, &context.state);
    if let Some(parent) = context.parent_id {
        message.bytes(4, &parent.to_be_bytes());
    }
    message.text(5, span.name.as_bytes());
    message.number(6, if span.kind == Kind::Client { KIND_CLIENT } else { KIND_SERVER });
    message.fixed_64(7, nanos(span.start));
    message.fixed_64(8, nanos(span.start + span.duration));
    span.tags.iter().for_each(|(name, value)| attribute(message, 9, name, value));
    if is_error(span) {
        message.message(15, |said| said.number(3, STATUS_ERROR));
    }
    message.fixed_32(16, FLAGS_KNOWN | u32::from(context.sampled) | if span.remote_parent { FLAG_REMOTE } else { 0 });
}

/// A string attribute, in a field of this number.
fn attribute(message: &mut Message, field: u32, name: &str, value: &str) {
    message.message(field, |attribute| {
        attribute.text(1, name.as_bytes());
        attribute.message(2, |any| any.bytes(1, value.as_bytes()));
    });
}

/// Whether the span's status is an error: by the gRPC status, else by the HTTP status. A server has done its part where
/// the client is to blame (semantic conventions of HTTP and gRPC spans).
fn is_error(span: &Span) -> bool {
    let of_client = span.kind == Kind::Client;
    let mut error = false;
    for (name, value) in span.tags.iter() {
        match name {
            "http.status_code" => {
                let status = value.parse::<u16>().unwrap_or_default();
                error |= status >= 500 || (of_client && status >= 400);
            }
            "grpc.status_code" => {
                error = match parse_status(value.as_bytes()) {
                    Some(status::OK) | None => false,
                    Some(_) if of_client => true,
                    Some(status) => matches!(
                        status,
                        status::UNKNOWN
                            | status::DEADLINE_EXCEEDED
                            | status::UNIMPLEMENTED
                            | status::INTERNAL
                            | status::UNAVAILABLE
                            | status::DATA_LOSS
                    ),
                };
            }
            _ => {}
        }
    }
    error
}

fn nanos(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
