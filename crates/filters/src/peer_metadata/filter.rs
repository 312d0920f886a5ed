//! Reads the headers about the other end's workload, removes them, and sends those about its own.

use std::rc::Rc;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evenkeel_http::Headers;
use evenkeel_runtime_config::peer_metadata::{MarkedRequests, PeerMetadata};

use super::known::{DOWNSTREAM, KnownPeers, PeerObject, UPSTREAM, namespace_of};
use crate::http::{
    Decision, Filter, Hooks, RequestContext, ResponseContext, ResponseDecision, RouteContext, Services, Setup,
};
use crate::verdict::FilterVerdict;

/// The header with the proxy's id.
const ID: &str = "x-envoy-peer-metadata-id";
/// The header with the workload.
const METADATA: &str = "x-envoy-peer-metadata";
/// Istio's name of the cluster for destinations that nobody knows.
const PASSTHROUGH: &str = "PassthroughCluster";

/// `envoy.filters.http.peer_metadata`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<PeerMetadata>,
    /// The own workload, as the header has it.
    own: String,
    known: KnownPeers,
}

/// What a request said of its sender.
#[derive(Debug, Default, Clone, Copy)]
pub struct Heard {
    id: bool,
    metadata: bool,
}

impl Filter for HttpFilter {
    type Config = PeerMetadata;
    type State = Heard;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD.and(Hooks::RESPONSE_HEAD);

    fn verdict(_: &PeerMetadata) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<PeerMetadata>, _: &Setup<'_>) -> Self {
        let own = BASE64_STANDARD.encode(&config.own.metadata);
        Self { config, own, known: KnownPeers::default() }
    }

    fn request_head(&self, heard: &mut Heard, context: &mut RequestContext<'_>) -> Decision {
        let headers = &mut context.head.headers;
        if self.config.reads_requests {
            *heard = Heard {
                id: headers.find(ID.as_bytes()).is_some(),
                metadata: headers.find(METADATA.as_bytes()).is_some(),
            };
            // Whoever has no certificate of the mesh may say anything.
            if let Some(certificate) = &context.connection.peer
                && let Some(peer) = self.peer_in(headers)
                && is_of_namespace(&peer, certificate.uri_sans.first())
            {
                context.info.set_object(DOWNSTREAM, peer);
            }
        }
        // The workload itself says nothing about itself: its own proxy does.
        if self.config.reads_requests || self.config.marks_requests.is_some() {
            remove(headers);
        }
        if self.marks(context.route, context.services) {
            self.add(headers, Heard { id: true, metadata: true });
        }
        Decision::Continue
    }

    fn response_head(&self, heard: &mut Heard, context: &mut ResponseContext<'_>) -> ResponseDecision {
        let headers = &mut context.head.headers;
        if self.config.reads_responses {
            if let Some(peer) = self.peer_in(headers).filter(|_| !context.local) {
                context.info.set_object(UPSTREAM, peer);
            }
            remove(headers);
        }
        if self.config.marks_responses {
            remove(headers);
            self.add(headers, *heard);
        }
        ResponseDecision::Continue
    }
}

impl HttpFilter {
    fn peer_in(&self, headers: &Headers) -> Option<Rc<PeerObject>> {
        self.known.read(headers.find(METADATA.as_bytes())?)
    }

    /// Whether the request gets headers.
    fn marks(&self, route: RouteContext<'_>, services: &dyn Services) -> bool {
        match self.config.marks_requests {
            None => false,
            Some(MarkedRequests::All) => true,
            Some(MarkedRequests::InMesh) => route.cluster.is_none_or(|cluster| {
                let scope = services.clusters().scope(cluster);
                **cluster != *PASSTHROUGH && !scope.is_some_and(|scope| scope.external)
            }),
        }
    }

    fn add(&self, headers: &mut Headers, heard: Heard) {
        if heard.id {
            headers.append(ID.as_bytes(), self.config.own.id.as_bytes());
        }
        if heard.metadata {
            headers.append(METADATA.as_bytes(), self.own.as_bytes());
        }
    }
}

fn remove(headers: &mut Headers) {
    headers.remove_name(ID.as_bytes());
    headers.remove_name(METADATA.as_bytes());
}

/// Whether the certificate names no other namespace than the peer does.
fn is_of_namespace(peer: &PeerObject, identity: Option<&String>) -> bool {
    identity.and_then(|identity| namespace_of(identity)).is_none_or(|namespace| namespace == &*peer.0.namespace)
}
