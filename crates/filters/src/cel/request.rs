//! `request` and `response`.

use std::time::{Duration, SystemTime};

use evenkeel_base::grpc::is_grpc;
use evenkeel_cel::Value;
use evenkeel_runtime_config::substitution_format::TimePoint;

use crate::format::{HeadLookup, Record};
use crate::info::ResponseFlags;

/// The attributes that are headers.
const HEADERS: [(&str, &str); 7] = [
    ("path", ":path"),
    ("host", ":authority"),
    ("scheme", ":scheme"),
    ("method", ":method"),
    ("referer", "referer"),
    ("useragent", "user-agent"),
    ("id", "x-request-id"),
];

pub(super) fn of_request(record: &Record<'_>, field: &str) -> Option<Value> {
    if let Some((_, header)) = HEADERS.iter().find(|(name, _)| *name == field) {
        return record.request.lookup(header).map(Value::lossy);
    }
    match field {
        "url_path" => split_path(record).map(|(path, _)| path),
        "query" => split_path(record).map(|(_, query)| query),
        "headers" => Some(headers(record.request)),
        "protocol" => record.stream.protocol.map(Value::text),
        "time" => Some(Value::Time(nanos(record.start.duration_since(SystemTime::UNIX_EPOCH).ok()?))),
        "duration" => Some(Value::Duration(nanos(record.duration()))),
        "size" => Some(size(record.stream.bytes_received)),
        "total_size" => Some(size(record.stream.bytes_received + record.request.bytes())),
        _ => None,
    }
}

pub(super) fn of_response(record: &Record<'_>, field: &str) -> Option<Value> {
    match field {
        "code" => (record.status != 0).then(|| Value::Int(record.status.into())),
        "code_details" => (!record.stream.details.is_empty()).then(|| Value::text(&record.stream.details)),
        "flags" => Some(Value::Int(bits(record.stream.flags))),
        "grpc_status" => grpc_status(record),
        "headers" => Some(headers(record.response)),
        "trailers" => Some(headers(record.trailers)),
        "size" => Some(size(record.stream.bytes_sent)),
        "total_size" => Some(size(record.stream.bytes_sent + record.response.bytes() + record.trailers.bytes())),
        "backend_latency" => {
            let passed = record.stream.times.between(TimePoint::UpstreamTxBegin, TimePoint::UpstreamRxEnd);
            passed.map(|passed| Value::Duration(nanos(passed)))
        }
        _ => None,
    }
}

fn split_path(record: &Record<'_>) -> Option<(Value, Value)> {
    let path = record.request.lookup(":path")?;
    let (path, query) = match path.iter().position(|byte| *byte == b'?') {
        Some(at) => path.split_at(at),
        None => (path, &b"?"[..]),
    };
    Some((Value::lossy(path), Value::lossy(query.get(1..).unwrap_or_default())))
}

/// All headers, by lower-case names; several values are joined with commas.
fn headers(head: &dyn HeadLookup) -> Value {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    head.each(&mut |name, value| {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => {
                values.push(b',');
                values.extend_from_slice(value);
            }
            None => all.push((name, value.to_vec())),
        }
    });
    Value::map(all.iter().map(|(name, value)| (name.as_str(), Value::lossy(value))))
}

fn grpc_status(record: &Record<'_>) -> Option<Value> {
    let status = record.trailers.lookup("grpc-status").or_else(|| record.response.lookup("grpc-status"));
    let status = status.filter(|_| record.request.lookup("content-type").is_some_and(is_grpc))?;
    std::str::from_utf8(status).ok()?.parse().ok().map(Value::Int)
}

pub(super) fn size(bytes: u64) -> Value {
    Value::Int(i64::try_from(bytes).unwrap_or(i64::MAX))
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Envoy's bits of the flags (`CoreResponseFlag`).
const BITS: [&str; 30] = [
    "LH", "UH", "UT", "LR", "UR", "UF", "UC", "UO", "NR", "DI", "FI", "RL", "UAEX", "RLSE", "DC", "URX", "SI", "IH",
    "DPE", "UMSDR", "RFCF", "NFCF", "DT", "UPE", "NC", "OM", "DF", "DO", "DR", "UDO",
];

fn bits(flags: ResponseFlags) -> i64 {
    let bit = |name: &str| BITS.iter().position(|known| *known == name).map_or(0, |bit| 1 << bit);
    flags.short_names().map(bit).sum()
}
