//! Access log configuration: destination, filter, and the compiled format (`SubstitutionFormatString`).

use std::sync::Arc;

use crate::expression::Expression;
use crate::grpc_access_log::GrpcLog;
use crate::matching::HeaderMatcher;
use crate::substitution_format::Format;

/// One access logger.
#[derive(Debug)]
pub struct AccessLog {
    /// The destination and the contents of entries.
    pub sink: LogSink,
    /// Which requests are logged.
    pub filter: LogFilter,
}

impl AccessLog {
    /// The cluster that gets the entries; `None`: they are lines of a file.
    pub(crate) fn service(&self) -> Option<&Arc<str>> {
        match &self.sink {
            LogSink::File { .. } => None,
            LogSink::Grpc(log) => Some(&log.collector.target.call.cluster),
        }
    }
}

/// The destination of entries.
#[derive(Debug)]
pub enum LogSink {
    /// `envoy.access_loggers.file`.
    File {
        /// The file; `/dev/stdout` and `/dev/stderr` are the process's own.
        path: Arc<str>,
        /// The format of a line.
        format: LogFormat,
    },
    /// `envoy.access_loggers.http_grpc`, `envoy.access_loggers.tcp_grpc`.
    Grpc(Box<GrpcLog>),
}

/// The format of a log line.
#[derive(Debug)]
pub enum LogFormat {
    /// Text; ends in a newline if the user wrote one.
    Text(Format),
    /// JSON object, keys in the order given; typed values (numbers stay numbers, absent is `null`).
    Json {
        /// Nested values.
        root: JsonFormat,
        /// Omit keys whose value is absent.
        omit_empty: bool,
    },
}

/// A JSON value with operators.
#[derive(Debug)]
pub enum JsonFormat {
    /// Object.
    Object(Vec<(Box<str>, JsonFormat)>),
    /// List.
    List(Vec<JsonFormat>),
    /// A string with operators; a lone operator keeps its type.
    Value(Format),
}

/// Selects the requests to log (`AccessLogFilter`).
#[derive(Debug, Default)]
pub enum LogFilter {
    /// All.
    #[default]
    All,
    /// Entries with one of these response flags (`response_flag_filter`); empty: any flag.
    ResponseFlags(Vec<Box<str>>),
    /// `status_code_filter`.
    StatusCode(Comparison),
    /// Duration in milliseconds (`duration_filter`).
    Duration(Comparison),
    /// A request header (`header_filter`).
    Header(HeaderMatcher),
    /// `grpc_status_filter`.
    GrpcStatus {
        /// Status numbers.
        statuses: Vec<u8>,
        /// Matches all but these.
        exclude: bool,
    },
    /// Those for which an expression is true (`envoy.access_loggers.extension_filters.cel`).
    Expression(Expression),
    /// Matches if all of these match.
    And(Vec<LogFilter>),
    /// Matches if any of these matches.
    Or(Vec<LogFilter>),
}

/// `ComparisonFilter`.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// The comparison operation.
    pub operation: Operation,
    /// The value to compare with.
    pub value: u32,
}

/// A comparison operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    Equal,
    AtLeast,
    AtMost,
    NotEqual,
}
