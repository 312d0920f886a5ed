//! The proxy's xDS streams: which there are, and what each asks for.

mod channel;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_runtime_config::bootstrap::{Bootstrap, Scope};
use evenkeel_runtime_config::builder::Interest;
use evenkeel_runtime_config::{Reference, Source};
use evenkeel_xds::ResourceType;
use evenkeel_xds::client::connection::Service;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use tokio::sync::watch;

use crate::state::Shared;

/// One stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StreamKey {
    /// The aggregated one.
    Aggregated,
    /// One type from a server of its own; secrets have a stream each, as Envoy's do.
    Single { kind: ResourceType, cluster: Arc<str>, delta: bool, secret: Option<Arc<str>> },
}

impl StreamKey {
    pub fn is_aggregated(&self) -> bool {
        *self == Self::Aggregated
    }

    fn service(&self) -> Service {
        match self {
            Self::Aggregated => Service::Aggregated,
            Self::Single { kind, .. } => Service::of(*kind),
        }
    }

    /// How resources that come from this stream are referred to.
    fn source(&self) -> Source {
        match self {
            Self::Aggregated => Source::Ads,
            Self::Single { cluster, delta, .. } => Source::Grpc { cluster: cluster.clone(), delta: *delta },
        }
    }
}

impl std::fmt::Display for StreamKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Aggregated => f.write_str("ADS"),
            Self::Single { kind, cluster, secret: Some(secret), .. } => write!(f, "{kind} {secret} from {cluster}"),
            Self::Single { kind, cluster, .. } => write!(f, "{kind} from {cluster}"),
        }
    }
}

/// What a stream asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub all: BTreeSet<ResourceType>,
    pub names: BTreeMap<ResourceType, BTreeSet<Arc<str>>>,
}

/// All streams, and what the bootstrap says of them.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    node: Node,
    ads: Option<(Arc<str>, bool)>,
    lds: Option<Source>,
    cds: Option<Source>,
    scope: Scope,
    streams: BTreeMap<StreamKey, watch::Sender<Wanted>>,
}

impl Subscriptions {
    pub fn new(bootstrap: &Bootstrap) -> Self {
        Self {
            node: bootstrap.node.clone(),
            ads: bootstrap.ads.as_ref().map(|ads| (ads.cluster.clone(), ads.delta)),
            lds: bootstrap.lds.clone(),
            cds: bootstrap.cds.clone(),
            scope: bootstrap.scope.clone(),
            streams: BTreeMap::new(),
        }
    }

    /// Starts, changes and ends streams so that all of `interest` is asked for.
    pub fn update(&mut self, interest: &Interest, clusters_ready: bool, shared: &Shared) {
        let wanted = self.wanted(interest, clusters_ready);
        // A stream whose sender goes, ends.
        self.streams.retain(|key, _| wanted.contains_key(key));
        for (key, wanted) in wanted {
            if let Some(sender) = self.streams.get(&key) {
                sender.send_if_modified(|current| {
                    let changed = *current != wanted;
                    *current = wanted;
                    changed
                });
                continue;
            }
            let Some((cluster, delta)) = self.server_of(&key) else { continue };
            let (sender, receiver) = watch::channel(wanted);
            let stream = stream::Stream {
                key: key.clone(),
                cluster,
                delta,
                node: self.node.clone(),
                wanted: receiver,
                shared: shared.clone(),
                recalled: false,
            };
            tokio::task::spawn_local(stream.run());
            self.streams.insert(key, sender);
        }
    }

    fn wanted(&self, interest: &Interest, clusters_ready: bool) -> BTreeMap<StreamKey, Wanted> {
        let mut wanted: BTreeMap<StreamKey, Wanted> = BTreeMap::new();
        let mut add_all = |kind, source: &Option<Source>| {
            if let Some(source) = source {
                wanted.entry(stream_of(kind, source, None)).or_default().all.insert(kind);
            }
        };
        if !self.scope.is_learned() {
            add_all(ResourceType::Cluster, &self.cds);
            if clusters_ready {
                add_all(ResourceType::Listener, &self.lds);
            }
        }
        if self.scope == Scope::Full {
            add_all(ResourceType::VirtualHost, &self.ads.as_ref().map(|_| Source::Ads));
        }
        let mut add_names = |kind, references: &[Reference]| {
            for reference in references {
                let key = stream_of(kind, &reference.source, Some(&reference.name));
                let names = wanted.entry(key).or_default().names.entry(kind).or_default();
                names.insert(reference.name.clone());
            }
        };
        add_names(ResourceType::Cluster, &interest.clusters);
        add_names(ResourceType::Listener, &interest.listeners);
        add_names(ResourceType::VirtualHost, &interest.virtual_hosts);
        add_names(ResourceType::Endpoint, &interest.endpoints);
        add_names(ResourceType::Route, &interest.routes);
        add_names(ResourceType::Secret, &interest.secrets);
        wanted
    }

    fn server_of(&self, key: &StreamKey) -> Option<(Arc<str>, bool)> {
        match key {
            StreamKey::Aggregated => self.ads.clone(),
            StreamKey::Single { cluster, delta, .. } => Some((cluster.clone(), *delta)),
        }
    }
}

fn stream_of(kind: ResourceType, source: &Source, name: Option<&Arc<str>>) -> StreamKey {
    match source {
        Source::Ads => StreamKey::Aggregated,
        Source::Grpc { cluster, delta } => StreamKey::Single {
            kind,
            cluster: cluster.clone(),
            delta: *delta,
            secret: name.filter(|_| kind == ResourceType::Secret).cloned(),
        },
    }
}
