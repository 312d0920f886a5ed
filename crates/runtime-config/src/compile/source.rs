//! `ConfigSource`: the source of a resource that another one names.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_tls::SdsServer;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::{Any, pb};

use super::Cx;
use crate::demand::{DEFAULT_HOLD, OnDemandClusters};

/// A reference to a resource that has to be subscribed to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Its name.
    pub name: Arc<str>,
    /// Its source.
    pub source: Source,
    /// After this long without a response, the referring resource proceeds without it; `None`: it waits indefinitely. 15 s when unset.
    pub initial_fetch_timeout: Option<Duration>,
}

/// The source of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// The aggregated stream of the bootstrap (`ads`), or the server that sent the referring resource (`self`).
    Ads,
    /// A separate gRPC stream to this static cluster.
    Grpc {
        /// Cluster name.
        cluster: Arc<str>,
        /// Incremental (`DELTA_GRPC`).
        delta: bool,
    },
    /// A file with a `DiscoveryResponse`.
    File {
        /// Its path.
        path: Arc<str>,
    },
}

impl Source {
    /// The same for the store of certificates.
    pub(crate) fn of_secrets(&self) -> SdsServer {
        match self {
            Self::Ads => SdsServer::Ads,
            Self::Grpc { cluster, .. } => SdsServer::Cluster(cluster.to_string()),
            Self::File { path } => SdsServer::File(path.to_string()),
        }
    }
}

/// The names a resource refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct References {
    pub routes: Vec<Reference>,
    pub secrets: Vec<Reference>,
    pub extensions: Vec<ExtensionUse>,
}

/// A filter's configuration by ECDS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExtensionUse {
    pub reference: Reference,
    /// What was there when the filter was compiled.
    pub used: Option<Arc<Any>>,
    /// Whether the listener waits for the first answer.
    pub awaited: bool,
}

impl References {
    /// Adds a part's references that are not present yet.
    pub fn add(&mut self, part: &Self) {
        for (all, more) in [(&mut self.routes, &part.routes), (&mut self.secrets, &part.secrets)] {
            let new: Vec<_> = more.iter().filter(|reference| !all.contains(reference)).cloned().collect();
            all.extend(new);
        }
        let new: Vec<_> = part.extensions.iter().filter(|used| !self.extensions.contains(used)).cloned().collect();
        self.extensions.extend(new);
    }
}

const DEFAULT_FETCH_TIMEOUT: Duration = Duration::from_secs(15);

impl Cx<'_> {
    /// A reference by name through the `ConfigSource` in `field`.
    pub fn reference(&mut self, name: &str, field: &str, source: Option<&core::ConfigSource>) -> Option<Reference> {
        let source = self.required(field, source)?;
        self.at(field, |cx| {
            let timeout =
                cx.limit("initial_fetch_timeout", source.initial_fetch_timeout.as_ref(), Some(DEFAULT_FETCH_TIMEOUT));
            let source = config_source(cx, source)?;
            Some(Reference { name: name.into(), source, initial_fetch_timeout: timeout })
        })
    }
}

/// The source of clusters that are requested on demand: must be the aggregated stream.
pub(crate) fn on_demand_clusters(
    cx: &mut Cx<'_>,
    field: &str,
    source: Option<&core::ConfigSource>,
    timeout: Option<&pb::google::protobuf::Duration>,
) -> Option<OnDemandClusters> {
    let source = cx.required(field, source)?;
    match cx.at(field, |cx| config_source(cx, source))? {
        Source::Ads => {}
        Source::Grpc { .. } | Source::File { .. } => return cx.fail_at(field, "must be ads"),
    }
    Some(OnDemandClusters { timeout: cx.duration("timeout", timeout).unwrap_or(DEFAULT_HOLD) })
}

/// Reads a `ConfigSource`.
#[allow(deprecated)] // V2 is named to be refused.
pub(crate) fn config_source(cx: &mut Cx<'_>, source: &core::ConfigSource) -> Option<Source> {
    use core::config_source::ConfigSourceSpecifier;
    if source.resource_api_version == core::ApiVersion::V2 as i32 {
        return cx.fail_at("resource_api_version", "must be V3");
    }
    match &source.config_source_specifier {
        Some(ConfigSourceSpecifier::Ads(_) | ConfigSourceSpecifier::Self_(_)) => Some(Source::Ads),
        Some(ConfigSourceSpecifier::ApiConfigSource(api)) => cx.at("api_config_source", |cx| api_source(cx, api)),
        Some(ConfigSourceSpecifier::PathConfigSource(file)) => {
            cx.at("path_config_source", |cx| file_source(cx, &file.path))
        }
        Some(ConfigSourceSpecifier::Path(path)) => file_source(cx, path),
        None => cx.fail("one of ads, self, api_config_source, path_config_source is required"),
    }
}

/// The proxy looks at the file itself, so it sees a change of `watched_directory`, too.
fn file_source(cx: &mut Cx<'_>, path: &str) -> Option<Source> {
    if path.is_empty() {
        return cx.fail_at("path", "is required");
    }
    Some(Source::File { path: path.into() })
}

/// A gRPC server of resources.
pub(crate) struct GrpcServer {
    /// Its cluster.
    pub cluster: Arc<str>,
    /// Incremental (`DELTA_GRPC`).
    pub delta: bool,
    /// What streams to it have in their heads (`initial_metadata`).
    pub metadata: Vec<InitialMetadata>,
}

/// A header of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialMetadata {
    /// Its name, in small letters.
    pub name: Arc<str>,
    /// Its value.
    pub value: Arc<str>,
}

/// Reads an `ApiConfigSource` over gRPC, for a single resource or type.
fn api_source(cx: &mut Cx<'_>, api: &core::ApiConfigSource) -> Option<Source> {
    let GrpcServer { cluster, delta, metadata } = grpc_server(cx, api)?;
    if !metadata.is_empty() {
        return cx.fail_at("grpc_services[0].initial_metadata", "is supported for ads_config only");
    }
    Some(Source::Grpc { cluster, delta })
}

/// Reads an `ApiConfigSource` over gRPC.
#[allow(deprecated)] // V2 is named to be refused.
pub(crate) fn grpc_server(cx: &mut Cx<'_>, api: &core::ApiConfigSource) -> Option<GrpcServer> {
    use core::api_config_source::ApiType;
    let delta = match ApiType::try_from(api.api_type) {
        Ok(ApiType::Grpc | ApiType::AggregatedGrpc) => false,
        Ok(ApiType::DeltaGrpc | ApiType::AggregatedDeltaGrpc) => true,
        Ok(ApiType::Rest) => return cx.fail_at("api_type", "REST is not supported; GRPC, DELTA_GRPC and files are"),
        _ => return cx.fail_at("api_type", "must be GRPC or DELTA_GRPC (or their aggregated forms)"),
    };
    if api.transport_api_version == core::ApiVersion::V2 as i32 {
        return cx.fail_at("transport_api_version", "must be V3");
    }
    let [service] = api.grpc_services.as_slice() else {
        return cx.fail_at("grpc_services", format!("must have one entry, has {}", api.grpc_services.len()));
    };
    let Some(core::grpc_service::TargetSpecifier::EnvoyGrpc(grpc)) = &service.target_specifier else {
        return cx.fail_at("grpc_services[0].envoy_grpc", "is required");
    };
    if service.timeout.is_some() {
        return cx.fail_at("grpc_services[0].timeout", "is not supported for sources of configuration");
    }
    let only_cluster = core::grpc_service::EnvoyGrpc { cluster_name: grpc.cluster_name.clone(), ..Default::default() };
    if *grpc != only_cluster {
        return cx
            .fail_at("grpc_services[0].envoy_grpc", "only cluster_name is supported for sources of configuration");
    }
    let cluster = cx.non_empty("grpc_services[0].envoy_grpc.cluster_name", &grpc.cluster_name)?;
    let metadata = cx.at("grpc_services[0]", |cx| cx.each("initial_metadata", &service.initial_metadata, metadata));
    Some(GrpcServer { cluster: cluster.into(), delta, metadata })
}

/// A header that gRPC can carry: binary ones (`-bin`) and operators are left to those who need them.
fn metadata(cx: &mut Cx<'_>, header: &core::HeaderValue) -> Option<InitialMetadata> {
    let is_name = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_.".contains(&c);
    let name = header.key.to_ascii_lowercase();
    if name.is_empty() || name.ends_with("-bin") || name.starts_with("grpc-") || !name.bytes().all(is_name) {
        return cx.fail_at("key", format!("{name:?} cannot be sent"));
    }
    let is_value = |c: u8| c == b' ' || c.is_ascii_graphic();
    if !header.raw_value.is_empty() || header.value.contains('%') || !header.value.bytes().all(is_value) {
        return cx.fail_at("value", "only text without operators is supported for sources of configuration");
    }
    Some(InitialMetadata { name: name.into(), value: header.value.as_str().into() })
}
