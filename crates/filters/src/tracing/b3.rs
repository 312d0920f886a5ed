//! B3, the context of Zipkin: `x-b3-traceid` and the headers beside it, or `b3` with all in one
//! (<https://github.com/openzipkin/b3-propagation>).

use evenkeel_http::Headers;

use super::context::{Malformed, SpanContext, hex};

const SINGLE: &[u8] = b"b3";
const TRACE_ID: &[u8] = b"x-b3-traceid";
const SPAN_ID: &[u8] = b"x-b3-spanid";
const PARENT_SPAN_ID: &[u8] = b"x-b3-parentspanid";
const SAMPLED: &[u8] = b"x-b3-sampled";

/// Length of an id of 64 bits.
const ID: usize = 16;

/// The context that a caller sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Extracted {
    /// Whether the trace is recorded; `None`: the caller leaves that to us.
    pub(super) sampled: Option<bool>,
    /// The caller's span, if there is one. Its own `sampled` has no meaning.
    pub(super) caller: Option<SpanContext>,
    /// Whether the context is in one header.
    pub(super) single_header: bool,
}

/// Reads the context. Of repeated headers the first counts.
pub(super) fn extract(headers: &Headers) -> Result<Extracted, Malformed> {
    if let Some(single) = headers.find(SINGLE) {
        let caller = of_single_header(single)?;
        return Ok(Extracted { sampled: sampled_of_single(single), caller, single_header: true });
    }
    let sampled = headers.find(SAMPLED).map(|sampled| matches!(sampled, b"1" | b"true"));
    let caller = match (headers.find(TRACE_ID), headers.find(SPAN_ID)) {
        (Some(trace), Some(span)) => {
            let parent = headers.find(PARENT_SPAN_ID).filter(|parent| !parent.is_empty());
            Some(SpanContext {
                trace_id: trace_id(trace)?,
                span_id: hex(span)?,
                parent_id: parent.map(hex).transpose()?,
                ..SpanContext::default()
            })
        }
        _ => None,
    };
    Ok(Extracted { sampled, caller, single_header: false })
}

/// Replaces the context by that of a span.
pub(super) fn inject(headers: &mut Headers, span: &SpanContext) {
    let id = |id: u64| format!("{id:016x}");
    if span.single_header {
        let flag = if span.sampled { '1' } else { '0' };
        let parent = span.parent_id.map_or_else(String::new, |parent| format!("-{parent:016x}"));
        let value = format!("{}-{}-{flag}{parent}", trace_id_text(span.trace_id), id(span.span_id));
        return headers.set_name(SINGLE, value.as_bytes());
    }
    headers.set_name(TRACE_ID, trace_id_text(span.trace_id).as_bytes());
    headers.set_name(SPAN_ID, id(span.span_id).as_bytes());
    if let Some(parent) = span.parent_id {
        headers.set_name(PARENT_SPAN_ID, id(parent).as_bytes());
    }
    headers.set_name(SAMPLED, if span.sampled { b"1" } else { b"0" });
}

/// 16 digits, or 32 where the upper half is not 0.
pub(super) fn trace_id_text(id: u128) -> String {
    match u64::try_from(id) {
        Ok(id) => format!("{id:016x}"),
        Err(_) => format!("{id:032x}"),
    }
}

fn trace_id(digits: &[u8]) -> Result<u128, Malformed> {
    match digits.split_at_checked(ID) {
        Some((high, low)) if low.len() == ID => Ok(u128::from(hex(high)?) << 64 | u128::from(hex(low)?)),
        _ => hex(digits).map(u128::from),
    }
}

/// The flag in `b3`, where its length allows for one.
fn sampled_of_single(value: &[u8]) -> Option<bool> {
    let at = match value.len() {
        1 => 0,
        35 | 52 => 34,
        51 | 68 => 50,
        _ => return None,
    };
    value.get(at).copied().and_then(flag)
}

fn flag(flag: u8) -> Option<bool> {
    match flag {
        b'1' | b'd' => Some(true),
        b'0' => Some(false),
        _ => None,
    }
}

/// `TRACE-SPAN`, `TRACE-SPAN-FLAG` or `TRACE-SPAN-FLAG-PARENT`; or only a flag, without a span.
fn of_single_header(value: &[u8]) -> Result<Option<SpanContext>, Malformed> {
    if let [only] = value {
        return flag(*only).map(|_| None).ok_or(Malformed);
    }
    let mut parts = value.split(|byte| *byte == b'-');
    let (trace, span) = (parts.next().ok_or(Malformed)?, parts.next().ok_or(Malformed)?);
    if !matches!(trace.len(), ID | 32) || span.len() != ID {
        return Err(Malformed);
    }
    if let Some(said) = parts.next() {
        let [said] = said else { return Err(Malformed) };
        flag(*said).ok_or(Malformed)?;
    }
    let parent = match parts.next() {
        None => None,
        Some(parent) if parent.len() == ID => Some(hex(parent)?),
        Some(_) => return Err(Malformed),
    };
    if parts.next().is_some() {
        return Err(Malformed);
    }
    let (trace_id, span_id) = (trace_id(trace)?, hex(span)?);
    Ok(Some(SpanContext { trace_id, span_id, parent_id: parent, ..SpanContext::default() }))
}
