//! W3C trace context, which OpenTelemetry uses: `traceparent` and `tracestate` (<https://www.w3.org/TR/trace-context/>).

use evenkeel_http::Headers;

use super::context::{Malformed, SpanContext, hex};

const PARENT: &[u8] = b"traceparent";
const STATE: &[u8] = b"tracestate";

/// Lengths of version, trace id, span id and flags.
const LENGTHS: [usize; 4] = [2, 32, 16, 2];
/// The flag of a recorded span.
const SAMPLED: u64 = 1;

/// Reads the context; `None`: there is none. Of repeated headers the first counts, as in Envoy.
pub(super) fn extract(headers: &Headers) -> Result<Option<SpanContext>, Malformed> {
    let Some(parent) = headers.find(PARENT) else { return Ok(None) };
    let parts: Vec<_> = parent.split(|byte| *byte == b'-').take(LENGTHS.len() + 1).collect();
    let [version, trace, span, flags] = parts[..] else { return Err(Malformed) };
    if [version, trace, span, flags].map(<[u8]>::len) != LENGTHS {
        return Err(Malformed);
    }
    hex(version)?;
    let (high, low) = trace.split_at_checked(16).ok_or(Malformed)?;
    let trace_id = u128::from(hex(high)?) << 64 | u128::from(hex(low)?);
    let (span_id, flags) = (hex(span)?, hex(flags)?);
    // Both mean "no id" (section 3.2.2).
    if trace_id == 0 || span_id == 0 {
        return Err(Malformed);
    }
    let state = headers.find(STATE).unwrap_or_default().into();
    let sampled = flags & SAMPLED != 0;
    Ok(Some(SpanContext { trace_id, span_id, sampled, state, ..SpanContext::default() }))
}

/// Replaces the context by that of a span.
pub(super) fn inject(headers: &mut Headers, span: &SpanContext) {
    inject_parent(headers, span);
    headers.set_name(STATE, &span.state);
}

/// Replaces only `traceparent`: `tracestate` stays as the caller has sent it.
pub(super) fn inject_parent(headers: &mut Headers, span: &SpanContext) {
    let SpanContext { trace_id, span_id, sampled, .. } = span;
    let value = format!("00-{trace_id:032x}-{span_id:016x}-{:02x}", u8::from(*sampled));
    headers.set_name(PARENT, value.as_bytes());
}
