//! The identity of an xDS stream.

use std::sync::Arc;

use evenkeel_runtime_config::Source;
use evenkeel_xds::ResourceType;
use evenkeel_xds::client::connection::Service;

/// One xDS stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StreamKey {
    /// The aggregated stream (ADS).
    Aggregated,
    /// One type from a server of its own; each secret has its own stream, as in Envoy.
    Single { kind: ResourceType, cluster: Arc<str>, delta: bool, secret: Option<Arc<str>> },
    /// One type from a file; each secret has its own.
    File { kind: ResourceType, path: Arc<str>, secret: Option<Arc<str>> },
}

impl StreamKey {
    pub fn is_aggregated(&self) -> bool {
        *self == Self::Aggregated
    }

    pub(super) fn service(&self) -> Service {
        match self {
            Self::Aggregated => Service::Aggregated,
            Self::Single { kind, .. } | Self::File { kind, .. } => Service::of(*kind),
        }
    }

    /// The config source that resources from this stream are referred to by.
    pub(super) fn source(&self) -> Source {
        match self {
            Self::Aggregated => Source::Ads,
            Self::Single { cluster, delta, .. } => Source::Grpc { cluster: cluster.clone(), delta: *delta },
            Self::File { path, .. } => Source::File { path: path.clone() },
        }
    }
}

impl std::fmt::Display for StreamKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Aggregated => f.write_str("ADS"),
            Self::Single { kind, cluster, secret: Some(secret), .. } => write!(f, "{kind} {secret} from {cluster}"),
            Self::Single { kind, cluster, .. } => write!(f, "{kind} from {cluster}"),
            Self::File { kind, path, secret: Some(secret) } => write!(f, "{kind} {secret} from {path}"),
            Self::File { kind, path, secret: None } => write!(f, "{kind} from {path}"),
        }
    }
}
