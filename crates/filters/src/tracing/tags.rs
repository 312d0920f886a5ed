//! The tags of spans, under Envoy's names.

use evenkeel_base::grpc::{is_grpc, parse_status, status};
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::route::Route;
use evenkeel_runtime_config::tracing::{CustomTag, MetadataOf, TagValue, Tracing};

use super::span::Tags;
use super::try_end::TryEnd;
use crate::format::{Record, header_value};
use crate::info::ResponseFlags;

/// Value of a tag that is not known.
const NONE: &str = "-";

/// The data from which the tags of one request or try are made.
#[derive(Clone, Copy)]
pub(super) struct Facts<'t> {
    /// The request.
    pub(super) record: &'t Record<'t>,
    /// Its connection manager's settings.
    pub(super) config: &'t Tracing,
    /// Its route.
    pub(super) route: Option<&'t Route>,
    /// The name of its cluster in statistics.
    pub(super) cluster_stat_name: Option<&'t str>,
}

impl Facts<'_> {
    /// The tags of a request.
    pub(super) fn of_request(&self, tags: &mut Tags) {
        let Self { record, config, .. } = *self;
        let (stream, head) = (record.stream, record.request);
        tags.set("node_id", &config.node.id);
        tags.set("zone", &config.node.zone);
        if let Some(id) = head.lookup("x-request-id") {
            tags.set("guid:x-request-id", id);
        }
        tags.set("http.url", self.url());
        tags.set("http.method", head.lookup(":method").unwrap_or_default());
        let or_none = |name| head.lookup(name).unwrap_or(NONE.as_bytes());
        tags.set("downstream_cluster", or_none("x-envoy-downstream-service-cluster"));
        tags.set("user_agent", or_none("user-agent"));
        tags.set("http.protocol", stream.protocol.unwrap_or(NONE));
        match record.connection.socket_path() {
            Some(path) => tags.set("peer.address", path),
            None => tags.set("peer.address", record.connection.view.direct_remote.ip().to_canonical().to_string()),
        }
        if let Some(id) = head.lookup("x-client-trace-id") {
            tags.set("guid:x-client-trace-id", id);
        }
        if head.lookup("content-type").is_some_and(is_grpc) {
            for (tag, name) in [
                ("grpc.path", ":path"),
                ("grpc.authority", ":authority"),
                ("grpc.content_type", "content-type"),
                ("grpc.timeout", "grpc-timeout"),
            ] {
                if let Some(value) = head.lookup(name) {
                    tags.set(tag, value);
                }
            }
        }
        tags.set("request_size", stream.bytes_received.to_string());
        tags.set("response_size", stream.bytes_sent.to_string());
        self.common(tags, record.status, stream.flags);
        self.of_grpc_answer(tags);
    }

    /// The tags of a try. `protocol`: of the upstream connection, if there was one.
    pub(super) fn of_try(&self, tags: &mut Tags, end: &TryEnd<'_>, protocol: Option<&str>) {
        let (mut status, mut flags) = (0, ResponseFlags::NONE);
        match end {
            TryEnd::Answered { status: answer, canceled } => {
                status = *answer;
                self.of_grpc_answer(tags);
                if *canceled {
                    tags.set("canceled", "true");
                }
            }
            TryEnd::Reset { reason, flags: of_reset } => {
                tags.set("error", "true");
                tags.set("error.reason", reason);
                flags = *of_reset;
            }
            TryEnd::Canceled { flags: of_end } => {
                tags.set("canceled", "true");
                flags = *of_end;
            }
        }
        tags.set("http.protocol", protocol.unwrap_or(NONE));
        if let Some(host) = &self.record.stream.host {
            tags.set("upstream_address", &**host);
            tags.set("peer.address", &**host);
        }
        self.common(tags, status, flags);
    }

    fn common(&self, tags: &mut Tags, status: u16, flags: ResponseFlags) {
        tags.set("component", "proxy");
        if let Some(name) = &self.record.stream.cluster_name {
            tags.set("upstream_cluster", &**name);
            tags.set("upstream_cluster.name", self.cluster_stat_name.unwrap_or(name));
        }
        tags.set("http.status_code", status.to_string());
        let flags: Vec<_> = flags.short_names().collect();
        tags.set("response_flags", if flags.is_empty() { NONE.to_owned() } else { flags.join(",") });
        if status == 0 || status / 100 == 5 {
            tags.set("error", "true");
        }
        let of_route = self.route.and_then(|route| route.tracing.as_deref());
        let of_route = of_route.map(|tracing| tracing.custom_tags.as_slice()).unwrap_or_default();
        for tag in &self.config.custom_tags {
            if !of_route.iter().any(|other| other.tag == tag.tag) {
                self.custom(tags, tag);
            }
        }
        of_route.iter().for_each(|tag| self.custom(tags, tag));
    }

    /// A tag of the user's; a value that is empty counts as none.
    fn custom(&self, tags: &mut Tags, tag: &CustomTag) {
        let mut set = |value: &[u8]| {
            if !value.is_empty() {
                tags.set(tag.tag.to_string(), value);
            }
        };
        match &tag.value {
            TagValue::Literal(text) => set(text.as_bytes()),
            TagValue::RequestHeader { name, default } => {
                set(self.record.request.lookup(name).unwrap_or(default.as_bytes()));
            }
            TagValue::Format(format) => set(&header_value(format, self.record)),
            TagValue::Metadata { of, filter, path, default } => {
                let metadata: Option<&DynamicMetadata> = match of {
                    MetadataOf::Request => Some(&self.record.stream.metadata),
                    MetadataOf::Route => self.route.map(|route| &route.metadata),
                };
                let value = metadata.and_then(|metadata| metadata.get(filter, path)).and_then(text);
                set(value.as_deref().unwrap_or(default).as_bytes());
            }
        }
    }

    /// Adds the outcome of a gRPC call, which comes with the head or with the trailers.
    fn of_grpc_answer(&self, tags: &mut Tags) {
        for answer in [self.record.response, self.record.trailers] {
            let Some(value) = answer.lookup("grpc-status") else { continue };
            tags.set("grpc.status_code", value);
            if let Some(message) = answer.lookup("grpc-message") {
                tags.set("grpc.message", message);
            }
            if parse_status(value).is_some_and(is_upstreams_fault) {
                tags.set("error", "true");
            }
        }
    }

    /// The URL that the client asked for; its path is cut off after so many bytes.
    fn url(&self) -> Vec<u8> {
        let head = self.record.request;
        let Some(path) = head.lookup(":path") else { return Vec::new() };
        let path = self.record.original_path().unwrap_or(path);
        let path = path.get(..self.config.max_path_bytes).unwrap_or(path);
        let (scheme, host) = (head.lookup(":scheme").unwrap_or(b"http"), head.lookup(":authority").unwrap_or_default());
        [scheme, b"://", host, path].concat()
    }
}

/// The statuses that do not blame the client, as Envoy sees it.
fn is_upstreams_fault(status: u8) -> bool {
    matches!(
        status,
        status::UNKNOWN
            | status::DEADLINE_EXCEEDED
            | status::RESOURCE_EXHAUSTED
            | status::UNIMPLEMENTED
            | status::INTERNAL
            | status::UNAVAILABLE
            | status::DATA_LOSS
    )
}

/// A value as text: lists and objects as JSON.
fn text(value: &MetadataValue) -> Option<String> {
    match value {
        MetadataValue::Null => None,
        MetadataValue::Bool(value) => Some(value.to_string()),
        MetadataValue::Number(bits) => Some(f64::from_bits(*bits).to_string()),
        MetadataValue::Text(text) => Some(text.to_string()),
        MetadataValue::List(_) | MetadataValue::Object(_) => Some(json(value).to_string()),
    }
}

/// Its depth is that of a message that was decoded with a limit.
fn json(value: &MetadataValue) -> serde_json::Value {
    match value {
        MetadataValue::Null => serde_json::Value::Null,
        MetadataValue::Bool(value) => (*value).into(),
        MetadataValue::Number(bits) => number(f64::from_bits(*bits)),
        MetadataValue::Text(text) => (**text).into(),
        MetadataValue::List(values) => values.iter().map(json).collect(),
        MetadataValue::Object(fields) => {
            let fields: serde_json::Map<_, _> =
                fields.iter().map(|(name, value)| (name.to_string(), json(value))).collect();
            fields.into()
        }
    }
}

/// Formats whole numbers without a fraction.
fn number(value: f64) -> serde_json::Value {
    const LARGEST_WHOLE: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < LARGEST_WHOLE { (value as i64).into() } else { value.into() }
}
