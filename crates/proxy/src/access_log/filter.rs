//! Access log filters: which records are logged, and which local replies `local_reply_config` changes.

use evenkeel_base::grpc::{parse_status, status, status_of_http};
use evenkeel_filters::cel;
use evenkeel_filters::format::Record;
use evenkeel_runtime_config::access_log::{Comparison, LogFilter, Operation};

/// Whether a filter admits a record.
pub fn admits(filter: &LogFilter, record: &Record<'_>) -> bool {
    match filter {
        LogFilter::All => true,
        LogFilter::ResponseFlags(wanted) if wanted.is_empty() => !record.stream.flags.is_empty(),
        LogFilter::ResponseFlags(wanted) => {
            record.stream.flags.short_names().any(|name| wanted.iter().any(|wanted| **wanted == *name))
        }
        LogFilter::StatusCode(comparison) => holds(*comparison, record.status.into()),
        LogFilter::Duration(comparison) => holds(*comparison, record.duration().as_millis() as u64),
        LogFilter::Header(header) => record.request.matches(header),
        LogFilter::GrpcStatus { statuses, exclude } => statuses.contains(&grpc_status(record)) != *exclude,
        LogFilter::Expression(expression) => cel::holds(expression, record),
        LogFilter::And(filters) => filters.iter().all(|filter| admits(filter, record)),
        LogFilter::Or(filters) => filters.iter().any(|filter| admits(filter, record)),
    }
}

fn holds(comparison: Comparison, value: u64) -> bool {
    let wanted = comparison.value.into();
    match comparison.operation {
        Operation::Equal => value == wanted,
        Operation::AtLeast => value >= wanted,
        Operation::AtMost => value <= wanted,
        Operation::NotEqual => value != wanted,
    }
}

/// The gRPC status that was sent, or the one that the HTTP status maps to.
fn grpc_status(record: &Record<'_>) -> u8 {
    let said = record.trailers.lookup("grpc-status").or_else(|| record.response.lookup("grpc-status"));
    match said {
        Some(said) => parse_status(said).unwrap_or(status::UNKNOWN),
        None if record.status == 0 => status::UNKNOWN,
        None => status_of_http(record.status),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use evenkeel_filters::{ConnectionInfo, ResponseFlags, StreamInfo};

    use super::*;
    use crate::connection_record::record_of_connection;

    #[test]
    fn filters_admit_what_they_say() {
        let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let start = Instant::now();
        let (mut stream, connection) = (StreamInfo::new(start), ConnectionInfo::new(1, start, nowhere, nowhere));
        stream.flags = ResponseFlags::NO_HEALTHY_UPSTREAM;
        let record = Record {
            status: 503,
            now: start + Duration::from_millis(20),
            ..record_of_connection(&stream, &connection)
        };
        let compare = |operation, value| Comparison { operation, value };
        let code = |operation, value| LogFilter::StatusCode(compare(operation, value));
        let grpc = |statuses: &[u8], exclude| LogFilter::GrpcStatus { statuses: statuses.into(), exclude };
        let no = || code(Operation::AtMost, 499);
        for (filter, expected) in [
            (code(Operation::Equal, 503), true),
            (code(Operation::NotEqual, 503), false),
            (code(Operation::AtLeast, 503), true),
            (code(Operation::AtLeast, 504), false),
            (code(Operation::AtMost, 503), true),
            (no(), false),
            (LogFilter::Duration(compare(Operation::AtLeast, 20)), true),
            (LogFilter::Duration(compare(Operation::AtMost, 19)), false),
            (grpc(&[14], false), true),
            (grpc(&[14], true), false),
            (grpc(&[2], true), true),
            (LogFilter::ResponseFlags(vec!["UH".into()]), true),
            (LogFilter::And(vec![LogFilter::All, no()]), false),
            (LogFilter::Or(vec![no(), LogFilter::All]), true),
        ] {
            assert_eq!(admits(&filter, &record), expected, "{filter:?}");
        }
    }
}
