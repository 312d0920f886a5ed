//! Compiles protobuf messages, one file per kind.
//!
//! A compile function takes a message and [`Cx`], which tracks the current field path and collects problems; after
//! recording one, the function returns `None` (or a partial result that the caller discards). All problems of a
//! resource are reported together. Fields outside the table in [`crate::support`] never reach these functions.

pub(crate) mod access_log;
pub(crate) mod address;
pub(crate) mod cluster;
mod discovery;
pub(crate) mod dns;
pub(crate) mod endpoint;
pub(crate) mod expression;
pub(crate) mod fraction;
pub(crate) mod grpc_access_log;
pub(crate) mod grpc_service;
mod hash_policy;
pub(crate) mod headers;
pub(crate) mod health_check;
pub(crate) mod http2;
pub(crate) mod http_connection_manager;
mod inherited;
mod listen_options;
pub(crate) mod listener;
mod load_balancer;
mod local_reply;
pub(crate) mod matcher;
pub(crate) mod metadata;
mod mirror;
mod otlp_access_log;
pub(crate) mod outlier_detection;
pub(crate) mod proxy_protocol;
pub(crate) mod rate_limit;
pub(crate) mod retry;
pub(crate) mod route;
pub(crate) mod route_action;
pub(crate) mod route_change;
mod router;
pub(crate) mod runtime;
mod skip;
pub(crate) mod source;
pub(crate) mod subset;
pub(crate) mod tls;
pub(crate) mod tracing;
mod udp_proxy;
pub(crate) mod uri_template;
mod utilization;

use std::fmt::{Display, Write};
use std::path::Path;
use std::time::Duration;

use evenkeel_xds::pb;
use evenkeel_xds::pb::google::protobuf::Any;
use prost::{Message, Name};

use crate::FastMap;
use crate::bind::BindConfig;
use crate::dns::DnsResolver;
use crate::filters::custom::CustomFilterKind;
use crate::rejection::Problem;
use crate::runtime::Runtime;
use crate::substitution_format::{Format, FormatError, Surroundings};

/// External inputs: files, environment variables, and defaults from the bootstrap.
pub struct Environment {
    /// Reads a file that a resource names.
    pub read_file: Box<ReadFile>,
    /// Reads an environment variable that a resource names.
    pub variable: Box<ReadVariable>,
    /// `cluster_manager.upstream_bind_config`, for clusters without one.
    pub bind: BindConfig,
    /// `typed_dns_resolver_config` of the bootstrap, for clusters without one.
    pub resolver: std::sync::Arc<DnsResolver>,
    /// The proxy's own locality (`node.locality`), as `region/zone/sub_zone`.
    pub locality: Option<std::sync::Arc<str>>,
    /// `cluster_manager.local_cluster_name`: the cluster of the proxies like this one.
    pub local_cluster: Option<std::sync::Arc<str>>,
    /// `tracing` of the bootstrap, and what spans tell of this proxy.
    pub tracing: TracingDefaults,
    /// Values of runtime keys, from the bootstrap.
    pub runtime: std::sync::Arc<Runtime>,
    /// HTTP and network filters beyond those in the registries.
    pub custom_filters: Vec<CustomFilterKind>,
}

/// The bootstrap's defaults for connection managers that trace.
#[derive(Debug, Clone, Default)]
pub struct TracingDefaults {
    /// `tracing.http`: where spans go, if a connection manager does not say.
    pub provider: Option<std::sync::Arc<crate::tracing::Provider>>,
    /// The data about this proxy in spans.
    pub node: std::sync::Arc<crate::tracing::OwnNode>,
}

/// Reads a file.
pub type ReadFile = dyn Fn(&Path) -> std::io::Result<Vec<u8>> + Send + Sync;
/// Reads an environment variable.
pub type ReadVariable = dyn Fn(&str) -> Option<String> + Send + Sync;

impl Environment {
    /// The process's own files and environment variables.
    pub fn process() -> Self {
        Self {
            read_file: Box::new(evenkeel_tls::read_file),
            variable: Box::new(|name| std::env::var(name).ok()),
            bind: BindConfig::default(),
            resolver: std::sync::Arc::default(),
            locality: None,
            local_cluster: None,
            tracing: TracingDefaults::default(),
            runtime: std::sync::Arc::default(),
            custom_filters: Vec::new(),
        }
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment")
            .field("bind", &self.bind)
            .field("resolver", &self.resolver)
            .field("locality", &self.locality)
            .field("local_cluster", &self.local_cluster)
            .finish_non_exhaustive()
    }
}

/// The current field path, and the problems found so far.
pub(crate) struct Cx<'e> {
    path: String,
    pub problems: Vec<Problem>,
    /// What is accepted and not honoured.
    pub warnings: Vec<Problem>,
    /// Values of runtime keys.
    pub runtime: std::sync::Arc<Runtime>,
    pub env: &'e Environment,
    /// Whether a cluster exists, for `validate_clusters`; `None`: not checked.
    pub known_clusters: Option<&'e dyn Fn(&str) -> bool>,
    /// The result depends on files.
    pub reads_files: bool,
    /// Configurations of filters received by ECDS.
    pub extensions: Option<&'e FastMap<std::sync::Arc<str>, std::sync::Arc<Any>>>,
    /// RDS, SDS and ECDS names the resource refers to.
    pub references: source::References,
    /// The kind of access log that is compiled (`%ACCESS_LOG_TYPE%`); empty: none is.
    pub log_type: &'static str,
}

impl<'e> Cx<'e> {
    pub fn new(env: &'e Environment) -> Self {
        Self {
            path: String::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
            runtime: std::sync::Arc::clone(&env.runtime),
            env,
            known_clusters: None,
            reads_files: false,
            extensions: None,
            references: source::References::default(),
            log_type: "",
        }
    }

    /// Compiles a format string.
    pub fn format(&mut self, field: &str, text: &str) -> Option<Format> {
        let parsed = self.parse_format(text);
        self.check(field, parsed)
    }

    /// Parses a format string with what is known here.
    pub fn parse_format(&self, text: &str) -> Result<Format, FormatError> {
        let node = &self.env.tracing.node;
        let node = std::sync::Arc::new([node.id.clone(), node.cluster.clone()]);
        let surroundings = Surroundings { variable: &self.env.variable, node, log_type: self.log_type };
        Format::parse_in(text, &surroundings)
    }

    /// Runs `f` with the path extended by a field.
    pub fn at<R>(&mut self, field: &str, f: impl FnOnce(&mut Self) -> R) -> R {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(field);
        let result = f(self);
        self.path.truncate(length);
        result
    }

    /// Runs `f` with the path extended by an element: `[3]` or `["key"]`.
    pub fn element<R>(&mut self, key: impl Display, f: impl FnOnce(&mut Self) -> R) -> R {
        let length = self.path.len();
        // Writing to a string does not fail.
        let _ = write!(self.path, "[{key}]");
        let result = f(self);
        self.path.truncate(length);
        result
    }

    /// Compiles each element of a repeated field; elements that fail are omitted, with their problems recorded.
    pub fn each<'m, T: 'm + ?Sized, R>(
        &mut self,
        field: &str,
        items: impl IntoIterator<Item = &'m T>,
        mut f: impl FnMut(&mut Self, &'m T) -> Option<R>,
    ) -> Vec<R> {
        self.at(field, |cx| {
            items.into_iter().enumerate().filter_map(|(index, item)| cx.element(index, |cx| f(cx, item))).collect()
        })
    }

    /// Records a problem at the current path.
    pub fn fail<R>(&mut self, reason: impl Into<String>) -> Option<R> {
        self.problems.push(Problem { path: self.path.clone(), reason: reason.into() });
        None
    }

    /// Records a problem with a field of the current message.
    pub fn fail_at<R>(&mut self, field: &str, reason: impl Into<String>) -> Option<R> {
        self.at(field, |cx| cx.fail(reason))
    }

    /// Records at the current path what is accepted and not honoured.
    pub fn warn<R>(&mut self, reason: impl Into<String>) -> Option<R> {
        self.warnings.push(Problem { path: self.path.clone(), reason: reason.into() });
        None
    }

    /// Records that a field of the current message is accepted and not honoured.
    pub fn warn_at<R>(&mut self, field: &str, reason: impl Into<String>) -> Option<R> {
        self.at(field, |cx| cx.warn(reason))
    }

    /// The value of `result`, or its error recorded at `field`.
    pub fn check<R, E: Display>(&mut self, field: &str, result: Result<R, E>) -> Option<R> {
        match result {
            Ok(value) => Some(value),
            Err(error) => self.fail_at(field, error.to_string()),
        }
    }

    /// Requires a field to be set.
    pub fn required<'m, T>(&mut self, field: &str, value: Option<&'m T>) -> Option<&'m T> {
        value.or_else(|| self.fail_at(field, "is required"))
    }

    /// Requires a string not to be empty.
    pub fn non_empty<'m>(&mut self, field: &str, value: &'m str) -> Option<&'m str> {
        if value.is_empty() { self.fail_at(field, "must not be empty") } else { Some(value) }
    }

    /// Decodes an extension configuration whose type is already known to match.
    pub fn unpack<M: Message + Name + Default>(&mut self, any: &Any) -> Option<M> {
        match M::decode(any.value.as_slice()) {
            Ok(message) => Some(message),
            Err(error) => self.fail(format!("cannot be decoded as {}: {error}", M::full_name())),
        }
    }

    /// A duration that must not be negative; absent yields `None`.
    pub fn duration(&mut self, field: &str, value: Option<&pb::google::protobuf::Duration>) -> Option<Duration> {
        let value = value?;
        let (seconds, nanos) = (u64::try_from(value.seconds), u32::try_from(value.nanos));
        match (seconds, nanos) {
            (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 && seconds <= LONGEST_DURATION_SECONDS => {
                Some(Duration::new(seconds, nanos))
            }
            _ => self.fail_at(field, format!("must lie between 0 s and {LONGEST_DURATION_SECONDS} s")),
        }
    }

    /// A duration where 0 means "no limit"; absent yields `default`.
    pub fn limit(
        &mut self,
        field: &str,
        value: Option<&pb::google::protobuf::Duration>,
        default: Option<Duration>,
    ) -> Option<Duration> {
        match value {
            None => default,
            some => self.duration(field, some).filter(|limit| !limit.is_zero()),
        }
    }
}

/// `google.protobuf.Duration`'s own limit, about 10,000 years.
const LONGEST_DURATION_SECONDS: u64 = 315_576_000_000;

/// The message name in a type URL: what follows the last slash.
pub(crate) fn type_name(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}

/// Checks that a `TypedExtensionConfig` holds the only type allowed there.
pub(crate) fn extension_type(
    cx: &mut Cx<'_>,
    extension: &pb::envoy::config::core::v3::TypedExtensionConfig,
    expected: &str,
) -> Option<()> {
    match extension.typed_config.as_ref().map(|any| type_name(&any.type_url)) {
        Some(name) if name == expected => Some(()),
        Some(name) => cx.fail_at("typed_config", format!("{name} does not belong here; expected {expected}")),
        None => cx.fail_at("typed_config", "is required"),
    }
}
