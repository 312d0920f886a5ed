//! The workload of this proxy, as Istio's agents name it in the node's metadata.

use std::collections::BTreeMap;

use evenkeel_runtime_config::peer::Peer;
use evenkeel_stats::{Registry, ScopeName, Writer, layout};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::google::protobuf::value::Kind;

layout! {
    /// `istio_`: the proxy's version.
    pub mod version {
        counters {}
        gauges {
            /// Always 1; the labels have the version.
            build,
        }
        histograms {}
        statuses None
    }
}

/// The workload of this proxy.
pub(crate) fn peer(node: &Node) -> Peer {
    let labels = match value(node, "LABELS") {
        Some(Kind::StructValue(labels)) => labels
            .fields
            .iter()
            .filter_map(|(name, value)| match &value.kind {
                Some(Kind::StringValue(text)) => Some((name.clone(), text.clone())),
                _ => None,
            })
            .collect(),
        _ => BTreeMap::new(),
    };
    Peer::new(text(node, "WORKLOAD_NAME"), text(node, "NAMESPACE"), text(node, "CLUSTER_ID"), &labels)
}

/// Counts this proxy in `istio_build`, until the writer is dropped, if it is one of a mesh.
pub(crate) fn announce_version(registry: &Registry, node: &Node) -> Option<Writer<version::Stats>> {
    if text(node, "WORKLOAD_NAME").is_empty() {
        return None;
    }
    let labels =
        [("component", "proxy"), ("tag", env!("CARGO_PKG_VERSION"))].map(|(name, value)| (name, value.to_owned()));
    let version = registry.scope(ScopeName::labelled("istio_", labels.into())).writer();
    version.set(version::Gauge::build, 1);
    Some(version)
}

fn value<'n>(node: &'n Node, name: &str) -> Option<&'n Kind> {
    node.metadata.as_ref()?.fields.get(name)?.kind.as_ref()
}

fn text<'n>(node: &'n Node, name: &str) -> &'n str {
    match value(node, name) {
        Some(Kind::StringValue(text)) => text,
        _ => "",
    }
}
