//! The proxy's xDS streams: which streams exist, and what each subscribes to.

pub(crate) mod channel;
mod file;
pub(crate) mod key;
mod stream;
mod subscriptions;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::Source;
use evenkeel_runtime_config::bootstrap::{Ads, Bootstrap, Scope};
use evenkeel_runtime_config::builder::SubscriptionChange;
use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::config::core::v3::Node;

use self::key::StreamKey;
use self::subscriptions::StreamSubscriptions;
use crate::state::Shared;

/// All streams, and the bootstrap settings for them.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    node: Node,
    ads: Option<Ads>,
    lds: Option<Source>,
    cds: Option<Source>,
    scope: Scope,
    /// Types with a wildcard subscription.
    whole: BTreeSet<ResourceType>,
    streams: BTreeMap<StreamKey, Rc<StreamSubscriptions>>,
}

impl Subscriptions {
    pub fn new(bootstrap: &Bootstrap) -> Self {
        Self {
            node: bootstrap.node.clone(),
            ads: bootstrap.ads.clone(),
            lds: bootstrap.lds.clone(),
            cds: bootstrap.cds.clone(),
            scope: bootstrap.scope.clone(),
            whole: BTreeSet::new(),
            streams: BTreeMap::new(),
        }
    }

    /// Starts, changes and ends streams to match the changes in `asked` and the wildcard subscriptions.
    pub fn update(&mut self, asked: &[SubscriptionChange], clusters_ready: bool, shared: &Shared) {
        for (kind, source) in self.wholes(clusters_ready) {
            if self.whole.insert(kind)
                && let Some(stream) = self.stream(stream_of(kind, &source, None), shared)
            {
                stream.set_all(kind);
            }
        }
        let key = |asked: &SubscriptionChange| stream_of(asked.kind, &asked.source, Some(&asked.name));
        for asked in asked.iter().filter(|asked| asked.wanted) {
            if let Some(stream) = self.stream(key(asked), shared) {
                stream.set(asked.kind, &asked.name, true);
            }
        }
        for asked in asked.iter().filter(|asked| !asked.wanted) {
            let key = key(asked);
            let Some(stream) = self.streams.get(&key) else { continue };
            stream.set(asked.kind, &asked.name, false);
            if stream.is_empty() {
                stream.end();
                self.streams.remove(&key);
            }
        }
    }

    fn wholes(&self, clusters_ready: bool) -> Vec<(ResourceType, Source)> {
        let (cds, lds) = if self.scope.is_learned() {
            (None, None)
        } else {
            (self.cds.clone(), self.lds.clone().filter(|_| clusters_ready))
        };
        let vhds = self.ads.as_ref().filter(|_| self.scope == Scope::Full).map(|_| Source::Ads);
        let all = [(ResourceType::Cluster, cds), (ResourceType::Listener, lds), (ResourceType::VirtualHost, vhds)];
        all.into_iter().filter_map(|(kind, source)| Some((kind, source?))).collect()
    }

    /// The stream with that key, started if necessary; `None` when the bootstrap names no server for it.
    fn stream(&mut self, key: StreamKey, shared: &Shared) -> Option<Rc<StreamSubscriptions>> {
        if let Some(stream) = self.streams.get(&key) {
            return Some(Rc::clone(stream));
        }
        let wanted = Rc::<StreamSubscriptions>::default();
        match &key {
            StreamKey::Aggregated => self.start(&key, self.ads.clone()?, &wanted, shared),
            StreamKey::Single { cluster, delta, .. } => {
                let server = Ads { cluster: cluster.clone(), delta: *delta, metadata: Arc::default() };
                self.start(&key, server, &wanted, shared);
            }
            StreamKey::File { kind, path, .. } => {
                let (key, kind, path) = (key.clone(), *kind, path.clone());
                let file = file::File { key, kind, path, wanted: Rc::clone(&wanted), shared: shared.clone() };
                tokio::task::spawn_local(file.run());
            }
        }
        self.streams.insert(key, Rc::clone(&wanted));
        Some(wanted)
    }

    fn start(&self, key: &StreamKey, server: Ads, wanted: &Rc<StreamSubscriptions>, shared: &Shared) {
        let stream = stream::Stream {
            key: key.clone(),
            server,
            node: self.node.clone(),
            wanted: Rc::clone(wanted),
            shared: shared.clone(),
            recalled: false,
        };
        tokio::task::spawn_local(stream.run());
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
        Source::File { path } => {
            StreamKey::File { kind, path: path.clone(), secret: name.filter(|_| kind == ResourceType::Secret).cloned() }
        }
    }
}
