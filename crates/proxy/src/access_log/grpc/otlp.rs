//! Entries as log records of OpenTelemetry (`opentelemetry.proto.collector.logs.v1`): each batch is a call of its own.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use evenkeel_filters::Form;
use evenkeel_filters::callouts::grpc::{GrpcMethod, call};
use evenkeel_filters::callouts::{CallOptions, Callouts, HttpCall, Purpose};
use evenkeel_filters::format::{Record, format};
use evenkeel_http::{HeaderId, RequestHead};
use evenkeel_runtime_config::ext_authz::CallTarget;
use evenkeel_runtime_config::grpc_access_log::{Collector, GrpcLog, HttpPost, OtlpValue};
use evenkeel_upstream::turn;
use evenkeel_xds::pb::opentelemetry::proto::common::v1::any_value::Value;
use evenkeel_xds::pb::opentelemetry::proto::common::v1::{AnyValue, ArrayValue, KeyValue, KeyValueList};
use tokio::time::timeout_at;

use super::buffer::{Buffer, Due};
use super::entry::tag_value;
use super::{Shared, grpc_access_log};
use crate::callouts::target;

const METHOD: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
/// How long the last entries may take once no more come.
const LAST_ENTRIES: Duration = Duration::from_secs(1);
/// Maximum size of a collector's answer in bytes; it has little more than a message.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// `LogRecord`.
#[derive(Clone, PartialEq, prost::Message)]
struct LogRecord {
    #[prost(fixed64, tag = "1")]
    time_unix_nano: u64,
    #[prost(message, optional, tag = "5")]
    body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    attributes: Vec<KeyValue>,
}

/// Appends an entry as an element of `log_records` of `ScopeLogs`.
pub(super) fn append(log: &GrpcLog, record: &Record<'_>, out: &mut Vec<u8>) {
    const LOG_RECORDS: u32 = 2;
    let Some(contents) = &log.otlp else { return };
    let since_epoch = record.start.duration_since(UNIX_EPOCH).unwrap_or_default();
    let further =
        |key: &str, value: Vec<u8>| KeyValue { key: key.to_owned(), value: Some(text(&value)), ..KeyValue::default() };
    let states = log.filter_state.iter().filter_map(|key| {
        let mut value = Vec::new();
        record.stream.object(key)?.write(Form::Typed, &mut value).then(|| further(key, value))
    });
    let tags = log.tags.iter().filter_map(|(name, tag)| Some(further(name, tag_value(tag, record)?.into_bytes())));
    let entry = LogRecord {
        time_unix_nano: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
        body: contents.body.as_ref().map(|body| any(body, record)),
        attributes: pairs(&contents.attributes, record).chain(states).chain(tags).collect(),
    };
    prost::encoding::message::encode(LOG_RECORDS, &entry, out);
}

fn any(value: &OtlpValue, record: &Record<'_>) -> AnyValue {
    match value {
        OtlpValue::Text(whole) => {
            let mut out = Vec::new();
            format(whole, record, &mut out);
            text(&out)
        }
        OtlpValue::Map(values) => {
            AnyValue { value: Some(Value::KvlistValue(KeyValueList { values: pairs(values, record).collect() })) }
        }
        OtlpValue::List(values) => {
            let values = values.iter().map(|value| any(value, record)).collect();
            AnyValue { value: Some(Value::ArrayValue(ArrayValue { values })) }
        }
    }
}

fn pairs(values: &[(Box<str>, OtlpValue)], record: &Record<'_>) -> impl Iterator<Item = KeyValue> {
    values.iter().map(|(key, value)| KeyValue {
        key: key.to_string(),
        value: Some(any(value, record)),
        ..KeyValue::default()
    })
}

fn text(bytes: &[u8]) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(String::from_utf8_lossy(bytes).into_owned())) }
}

/// Exports what the buffer has until it is closed. Entries of a failed call are dropped and counted, as those of streams are.
pub(super) async fn run(config: Arc<Collector>, buffer: Rc<Buffer>, shared: Rc<Shared>) {
    loop {
        let due = buffer.due();
        match due {
            Due::Never => buffer.changed().await,
            Due::At(at) if at > turn::now() => _ = timeout_at(at, buffer.changed()).await,
            Due::At(_) | Due::Now => export(&config, &buffer, &shared).await,
            Due::Last => {
                let last = export(&config, &buffer, &shared);
                _ = timeout_at(turn::now() + LAST_ENTRIES, last).await;
                return;
            }
        }
    }
}

async fn export(config: &Collector, buffer: &Buffer, shared: &Shared) {
    let Some(batch) = buffer.take() else { return };
    let service = &config.target;
    let message = message(&config.resource, &batch.entries);
    if let Some(post) = &config.http {
        let taken = shared.callouts.http(request(config, post, message)).await;
        let status = taken.as_ref().map_or(0, |answer| answer.head.status);
        if !(200..300).contains(&status) {
            let failure = taken.err().map(|failure| failure.to_string()).unwrap_or_default();
            tracing::debug!(cluster = &*service.call.cluster, status, failure, "a collector did not take log records");
            shared.stats.add(grpc_access_log::Counter::logs_dropped, batch.count);
        }
        return;
    }
    let method = GrpcMethod {
        cluster: Arc::clone(&service.call.cluster),
        path: METHOD.into(),
        authority: Arc::clone(&service.authority),
        metadata: target::metadata(service),
        options: CallOptions {
            timeout: service.call.timeout,
            retry: service.call.retry.clone(),
            envoy_headers: !service.skip_envoy_headers,
            max_answer_bytes: service.max_message_bytes.unwrap_or(MAX_ANSWER_BYTES),
            purpose: Purpose::Telemetry,
            ..CallOptions::default()
        },
    };
    if let Err(failure) = call(&shared.callouts, &method, &message).await {
        tracing::debug!(cluster = &*method.cluster, %failure, "a collector did not take log records");
        shared.stats.add(grpc_access_log::Counter::logs_dropped, batch.count);
    }
}

/// A request with a message, over HTTP.
fn request(config: &Collector, post: &HttpPost, message: Vec<u8>) -> HttpCall {
    let mut head = RequestHead::default();
    head.set_method(b"POST");
    head.set_path(post.path.as_bytes());
    head.set_authority(post.host.as_bytes());
    head.headers.append_id(HeaderId::ContentType, b"application/x-protobuf");
    post.headers.iter().for_each(|(name, value)| head.headers.set_name(name.as_bytes(), value.as_bytes()));
    let CallTarget { cluster, timeout, .. } = &config.target.call;
    let options = CallOptions {
        timeout: *timeout,
        max_answer_bytes: MAX_ANSWER_BYTES,
        purpose: Purpose::Telemetry,
        ..CallOptions::default()
    };
    HttpCall { cluster: Arc::clone(cluster), head, body: message, options }
}

/// `ExportLogsServiceRequest` with one `ResourceLogs` and one `ScopeLogs`.
fn message(resource: &Vec<u8>, records: &Vec<u8>) -> Vec<u8> {
    let (mut of_resource, mut request) = (Vec::with_capacity(records.len() + resource.len() + 16), Vec::new());
    prost::encoding::bytes::encode(1, resource, &mut of_resource);
    prost::encoding::bytes::encode(2, records, &mut of_resource);
    prost::encoding::bytes::encode(1, &of_resource, &mut request);
    request
}
