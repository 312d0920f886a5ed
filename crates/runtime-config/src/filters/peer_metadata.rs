//! Istio's `envoy.filters.http.peer_metadata`, compiled: proxies tell each other which workload they are for, in headers.

use evenkeel_xds::istio::peer_metadata::config;
use evenkeel_xds::istio::peer_metadata::{Config, config::discovery_method, config::propagation_method};

use crate::compile::Cx;
use crate::filter_needs::FilterNeeds;
use crate::peer::PeerHeaders;
use crate::support::message::{MessageSupport, extension, part};

/// The filter's configuration.
#[derive(Debug)]
pub struct PeerMetadata {
    /// Whether the headers of requests say who the client is.
    pub reads_requests: bool,
    /// Whether the headers of responses say who the server is.
    pub reads_responses: bool,
    /// Whether responses get headers about this proxy's workload, if the request had some.
    pub marks_responses: bool,
    /// Which requests get headers about this proxy's workload.
    pub marks_requests: Option<MarkedRequests>,
    /// The values of these headers.
    pub own: PeerHeaders,
}

/// Which requests get headers about this proxy's workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkedRequests {
    /// All of them.
    All,
    /// Those to clusters in the mesh (`skip_external_clusters`).
    InMesh,
}

impl FilterNeeds for PeerMetadata {
    fn why_once(&self) -> Option<&'static str> {
        Some("the second would remove the headers of the first")
    }
}

pub(crate) fn peer_metadata(cx: &mut Cx<'_>, config: &Config) -> Option<PeerMetadata> {
    let node = &cx.env.tracing.node;
    let marks = |methods: &[config::PropagationMethod]| {
        methods.iter().find_map(|method| {
            method.method_specifier.map(|propagation_method::MethodSpecifier::IstioHeaders(headers)| headers)
        })
    };
    let marked = marks(&config.upstream_propagation)
        .map(|headers| if headers.skip_external_clusters { MarkedRequests::InMesh } else { MarkedRequests::All });
    Some(PeerMetadata {
        reads_requests: config.downstream_discovery.iter().any(is_by_headers),
        reads_responses: config.upstream_discovery.iter().any(is_by_headers),
        marks_responses: marks(&config.downstream_propagation).is_some(),
        marks_requests: marked,
        own: node.workload.headers(&node.id),
    })
}

fn is_by_headers(method: &config::DiscoveryMethod) -> bool {
    matches!(method.method_specifier, Some(discovery_method::MethodSpecifier::IstioHeaders(_)))
}

const NO_DISCOVERY: &str = "without Istio's bootstrap extension, Istio's proxies look nothing up either";
const NO_BAGGAGE: &str = "deprecated; Istio's proxies ignore it, too";
const NOT_SHARED: &str = "upstream filters do not read it";

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    MessageSupport {
        no_effect: &[(NOT_SHARED, &["shared_with_upstream"])],
        ..extension("io.istio.http.peer_metadata.Config",
            &["downstream_discovery", "upstream_discovery", "downstream_propagation", "upstream_propagation"])
    },
    MessageSupport {
        no_effect: &[(NO_BAGGAGE, &["baggage"]), (NO_DISCOVERY, &["workload_discovery"])],
        ..part("io.istio.http.peer_metadata.Config.DiscoveryMethod", &["istio_headers"])
    },
    part("io.istio.http.peer_metadata.Config.PropagationMethod", &["istio_headers"]),
    part("io.istio.http.peer_metadata.Config.IstioHeaders", &["skip_external_clusters"]),
];
