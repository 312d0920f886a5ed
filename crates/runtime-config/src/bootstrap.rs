//! `envoy.config.bootstrap.v3.Bootstrap`: the process's initial configuration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::bootstrap::v3 as bootstrap;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::google::protobuf::value::Kind;
use evenkeel_xds::{Any, pack};
use prost::Message as _;

use crate::access_log::AccessLog;
use crate::bind::BindConfig;
use crate::compile::access_log::admin_logs;
use crate::compile::dns::default_resolver;
use crate::compile::runtime::layers;
use crate::compile::source::{GrpcServer, InitialMetadata, Source, config_source, grpc_server};
use crate::compile::tracing::default_provider;
use crate::compile::{Cx, Environment, address, extension_type};
use crate::dns::DnsResolver;
use crate::histogram_buckets::{self, HistogramBuckets};
use crate::overload::{self, Overload};
use crate::rejection::{Problem, Rejection};
use crate::runtime::Runtime;
use crate::stats_matcher::{self, StatsMatcher};
use crate::stats_sinks::{self, StatsSinks};
use crate::stats_tags::{self, StatsTags};
use crate::support;
use crate::tracing::Provider;

/// A validated bootstrap file.
#[derive(Debug, Clone)]
pub struct Bootstrap {
    /// The node identity sent to xDS servers.
    pub node: core::Node,
    /// Address of the admin interface.
    pub admin: Option<SocketAddr>,
    /// Where requests to it are logged.
    pub admin_logs: Vec<Arc<AccessLog>>,
    /// Static listeners, for [`crate::Builder::set_static_listener`].
    pub listeners: Vec<Any>,
    /// Static clusters, for [`crate::Builder::set_static_cluster`].
    pub clusters: Vec<Any>,
    /// Source address and socket options of clusters that configure none.
    pub bind: BindConfig,
    /// The DNS resolver of clusters that configure none.
    pub resolver: Arc<DnsResolver>,
    /// The static cluster whose hosts are the proxies like this one (`cluster_manager.local_cluster_name`).
    pub local_cluster: Option<Arc<str>>,
    /// The aggregated xDS stream.
    pub ads: Option<Ads>,
    /// The source of listeners.
    pub lds: Option<Source>,
    /// The source of clusters.
    pub cds: Option<Source>,
    /// Overload actions and resource limits.
    pub overload: Overload,
    /// Which statistics are reported.
    pub stats: StatsMatcher,
    /// Their labels.
    pub stats_tags: StatsTags,
    /// Buckets of histograms; the first that matches a histogram's name counts.
    pub histogram_buckets: Vec<HistogramBuckets>,
    /// Default destination of spans, for connection managers that set none (`tracing.http`).
    pub tracing: Option<Arc<Provider>>,
    /// The recipients of statistics.
    pub stats_sinks: StatsSinks,
    /// Values of runtime keys, for [`crate::Builder::set_runtime`].
    pub runtime: Arc<Runtime>,
    /// How much of the mesh the proxy holds, by its node metadata.
    pub scope: Scope,
    /// What is accepted and not honoured.
    pub warnings: Vec<Problem>,
}

/// How much of the mesh a proxy holds: node metadata `EVENKEEL: {"SCOPE": …}`. Only Evenkeel's control plane evaluates it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Scope {
    /// As the server decides; no scope is requested.
    #[default]
    Given,
    /// `full`: everything, virtual hosts included.
    Full,
    /// `learned`: what the workload uses.
    Learned {
        /// Listeners to begin with (`LISTENERS`).
        listeners: Vec<Arc<str>>,
        /// Resources not used for this long are dropped (`UNUSED_AFTER_S`).
        unused_after: Duration,
    },
}

/// The only engine; it reads the same expressions.
const GOOGLE_RE2: &str = "envoy.extensions.regex_engines.v3.GoogleRE2";
/// Resources not used for a day are dropped, unless the metadata says otherwise.
const DEFAULT_UNUSED_AFTER: Duration = Duration::from_secs(24 * 3600);

impl Scope {
    /// Whether listeners and clusters are requested by name.
    pub fn is_learned(&self) -> bool {
        matches!(self, Self::Learned { .. })
    }

    fn of(node: Option<&core::Node>) -> Self {
        let Some(Kind::StructValue(said)) = node
            .and_then(|node| node.metadata.as_ref())
            .and_then(|metadata| metadata.fields.get("EVENKEEL"))
            .and_then(|value| value.kind.as_ref())
        else {
            return Self::Given;
        };
        let field = |name: &str| said.fields.get(name).and_then(|value| value.kind.as_ref());
        let listeners = match field("LISTENERS") {
            Some(Kind::ListValue(list)) => list.values.as_slice(),
            _ => &[],
        };
        let listeners = listeners.iter().filter_map(|value| match &value.kind {
            Some(Kind::StringValue(name)) => Some(name.as_str().into()),
            _ => None,
        });
        let unused_after = match field("UNUSED_AFTER_S") {
            Some(Kind::NumberValue(seconds)) if *seconds >= 1.0 => Duration::from_secs(*seconds as u64),
            _ => DEFAULT_UNUSED_AFTER,
        };
        match field("SCOPE") {
            Some(Kind::StringValue(scope)) if scope == "learned" => {
                Self::Learned { listeners: listeners.collect(), unused_after }
            }
            Some(Kind::StringValue(scope)) if scope == "full" => Self::Full,
            _ => Self::Given,
        }
    }
}

/// `dynamic_resources.ads_config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ads {
    /// The static cluster that serves it.
    pub cluster: Arc<str>,
    /// Incremental (`DELTA_GRPC`).
    pub delta: bool,
    /// What the stream has in its head (`initial_metadata`).
    pub metadata: Arc<[InitialMetadata]>,
}

/// The part of a bootstrap that holds the static clusters, each as bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct WithClusters {
    #[prost(message, optional, tag = "2")]
    static_resources: Option<Clusters>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Clusters {
    #[prost(bytes = "vec", repeated, tag = "2")]
    clusters: Vec<Vec<u8>>,
}

impl Bootstrap {
    /// Replaces the static clusters by those of an encoded bootstrap, which keep fields that the API's Rust types do
    /// not have. Several encoded bootstraps in a row are one, merged.
    pub fn take_clusters(&mut self, encoded: &[u8]) {
        let clusters = WithClusters::decode(encoded).ok().and_then(|bootstrap| bootstrap.static_resources);
        let clusters = clusters.map(|resources| resources.clusters).unwrap_or_default();
        if clusters.len() == self.clusters.len() {
            for (cluster, value) in self.clusters.iter_mut().zip(clusters) {
                cluster.value = value;
            }
        }
    }

    /// Checks a bootstrap: every field that is set must be supported, here and in the static resources.
    pub fn new(message: &bootstrap::Bootstrap, environment: &Environment) -> Result<Self, Rejection> {
        let name = message.node.as_ref().map(|node| node.id.clone()).unwrap_or_default();
        let rejection = |problems| Rejection { kind: "Bootstrap", name: name.clone(), problems };
        let unsupported = support::check_with(&pack(message), &environment.custom_filters);
        if !unsupported.is_empty() {
            return Err(rejection(unsupported));
        }
        let mut cx = Cx::new(environment);
        match compile(&mut cx, message) {
            Some(bootstrap) if cx.problems.is_empty() => Ok(Self { warnings: cx.warnings, ..bootstrap }),
            _ => Err(rejection(cx.problems)),
        }
    }
}

fn compile(cx: &mut Cx<'_>, message: &bootstrap::Bootstrap) -> Option<Bootstrap> {
    if let Some(runtime) = &message.layered_runtime {
        // Before the access logs of the admin port, which may compare with runtime values.
        cx.runtime = cx.at("layered_runtime", |cx| layers(cx, runtime)).into();
    }
    let resources = message.static_resources.clone().unwrap_or_default();
    let dynamic = message.dynamic_resources.clone().unwrap_or_default();
    let admin = message.admin.as_ref().and_then(|admin| admin.address.as_ref());
    let admin = match admin {
        None => None,
        Some(_) => Some(cx.at("admin", |cx| address::admin_address(cx, admin))?),
    };
    let admin_logs = match &message.admin {
        None => Vec::new(),
        Some(admin) => cx.at("admin", |cx| Some(admin_logs(cx, admin)))?,
    };
    let bind = match message.cluster_manager.as_ref().and_then(|manager| manager.upstream_bind_config.as_ref()) {
        None => BindConfig::default(),
        Some(bind) => cx.at("cluster_manager.upstream_bind_config", |cx| address::bind_config(cx, bind))?,
    };
    let local_cluster = message.cluster_manager.as_ref().map(|manager| manager.local_cluster_name.as_str());
    let local_cluster: Option<Arc<str>> = local_cluster.filter(|name| !name.is_empty()).map(Into::into);
    if let Some(name) = &local_cluster
        && !resources.clusters.iter().any(|cluster| *cluster.name == **name)
    {
        cx.fail_at::<()>("cluster_manager.local_cluster_name", format!("there is no static cluster {name:?}"));
    }
    let resolver = default_resolver(cx, message).unwrap_or_default();
    let (ads, lds, cds) = cx.at("dynamic_resources", |cx| {
        let ads = match &dynamic.ads_config {
            None => None,
            Some(api) => {
                let GrpcServer { cluster, delta, metadata } = cx.at("ads_config", |cx| grpc_server(cx, api))?;
                Some(Ads { cluster, delta, metadata: metadata.into() })
            }
        };
        let lds = source(cx, "lds_config", dynamic.lds_config.as_ref(), ads.is_some())?;
        let cds = source(cx, "cds_config", dynamic.cds_config.as_ref(), ads.is_some())?;
        Some((ads, lds, cds))
    })?;
    for source in [&ads.as_ref().map(|ads| ads.cluster.clone()), &grpc_cluster(&lds), &grpc_cluster(&cds)] {
        let known = |name: &Arc<str>| resources.clusters.iter().any(|cluster| *cluster.name == **name);
        if let Some(name) = source.as_ref().filter(|name| !known(name)) {
            cx.fail_at::<()>("dynamic_resources", format!("there is no static cluster {name:?} to connect to"));
        }
    }
    if let Some(engine) = &message.default_regex_engine {
        cx.at("default_regex_engine", |cx| extension_type(cx, engine, GOOGLE_RE2));
    }
    let overload = overload::compile(cx, message);
    let stats = stats_matcher::compile(cx, message.stats_config.as_ref())?;
    let stats_tags = stats_tags::compile(cx, message.stats_config.as_ref())?;
    #[allow(deprecated)] // Envoy and Istio still use it.
    let tracing = default_provider(cx, message.tracing.as_ref())?;
    let stats_sinks = stats_sinks::compile(cx, message)?;
    let histogram_buckets = histogram_buckets::compile(cx, message.stats_config.as_ref())?;
    Some(Bootstrap {
        node: message.node.clone().unwrap_or_default(),
        admin,
        admin_logs,
        listeners: resources.listeners.iter().map(pack).collect(),
        clusters: resources.clusters.iter().map(pack).collect(),
        bind,
        resolver,
        local_cluster,
        ads,
        lds,
        cds,
        overload,
        stats,
        stats_tags,
        histogram_buckets,
        tracing,
        stats_sinks,
        runtime: Arc::clone(&cx.runtime),
        scope: Scope::of(message.node.as_ref()),
        warnings: Vec::new(),
    })
}

fn grpc_cluster(source: &Option<Source>) -> Option<Arc<str>> {
    match source {
        Some(Source::Grpc { cluster, .. }) => Some(cluster.clone()),
        _ => None,
    }
}

/// `Some(None)` if not configured.
fn source(cx: &mut Cx<'_>, field: &str, source: Option<&core::ConfigSource>, ads: bool) -> Option<Option<Source>> {
    let Some(source) = source else { return Some(None) };
    cx.at(field, |cx| match config_source(cx, source)? {
        Source::Ads if !ads => cx.fail_at("ads", "needs dynamic_resources.ads_config"),
        source => Some(Some(source)),
    })
}
